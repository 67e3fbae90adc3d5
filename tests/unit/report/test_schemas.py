"""The JSON schemas that are shipped: as generated, and true of the records that memwall writes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from memwall.analysis.compare import compare_gpus, compare_profile
from memwall.analysis.fused import fuse
from memwall.report import render
from memwall.report.pages.fused import FusedReport
from tests.unit.measured_fixture import make_measured
from tests.unit.places import ROOT
from tests.unit.report_fixture import NEW, OLD, make_profile

jsonschema = pytest.importorskip("jsonschema")
FOLDER = ROOT / "memwall/report/schemas"


def test_the_schemas_are_those_of_the_dataclasses():
    done = subprocess.run([sys.executable, "tools/schemas.py", "--check"], cwd=ROOT, check=False, text=True,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 0, done.stderr


def validator(name: str):
    schema = json.loads((FOLDER / f"{name}-1.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_records_keep_their_schemas():
    profile = make_profile()
    records = [
        ("profile", render(profile, "json")),
        ("comparison", render(compare_profile(profile, [OLD, NEW]), "json")),
        ("comparison", render(compare_gpus([OLD, NEW]), "json")),
        ("fusion", render(FusedReport(fuse(profile, [OLD], ("eager", "memwall", "ideal"), op_counts=False)), "json")),
    ]
    for name, text in records:
        validator(name).validate(json.loads(text))
    for measurement in make_measured().measurements:
        validator("measurement").validate(json.loads(json.dumps(measurement)))


def test_a_schema_refuses_what_is_none():
    record = json.loads(render(make_profile(), "json"))
    record["simulations"][0]["kernels"][0]["time_s"] = "soon"
    assert not validator("profile").is_valid(record)
    del record["workload"]
    assert not validator("profile").is_valid(record)
