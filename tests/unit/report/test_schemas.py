"""The JSON schemas that are printed: true of the records that memwall writes."""

import json

import pytest

from memwall.bench.accuracy import score_files
from memwall.bench.accuracy.page import AccuracyReport
from memwall.cli.report import SCHEMAS
from memwall.fusing import run as fuse_run
from memwall.fusing.page import FusedReport
from memwall.gate.history import entry_of
from memwall.hardware.cluster import load_cluster
from memwall.hardware.lookup import load_gpu
from memwall.record import profile
from memwall.report import render
from memwall.report.json_schema import RECORDS, schema_text
from memwall.serving import saved as serving
from memwall.serving.saved import saved
from memwall.sweeping.compare import compare_gpus, compare_profile
from memwall.traces.analysing import analyse
from memwall.traces.comparison import compare_traces, compare_with_model
from memwall.traces.comparison_page import TraceComparisonReport
from memwall.traces.page import TraceReport
from memwall.traces.reading import read_trace
from tests.unit.measured_fixture import make_measured
from tests.unit.pictures_fixture import served
from tests.unit.report_fixture import NEW, OLD, make_profile
from tests.unit.traces.test_trace_collectives import all_reduce
from tests.unit.traces_fixture import call, kernel, op, write
from tools.schemas import main as write_schemas

jsonschema = pytest.importorskip("jsonschema")


def test_each_is_made_and_written(tmp_path):
    assert {*SCHEMAS} == {*RECORDS, "gate", "settings"}
    write_schemas(tmp_path)
    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert written == {f"{name}-1.schema.json": schema_text(name) for name in SCHEMAS}


def test_a_record_states_the_schema_that_it_has():
    for name, family in (("profile", profile.SCHEMA), ("fusion", fuse_run.SCHEMA), ("serving", serving.SCHEMA)):
        assert json.loads(schema_text(name))["properties"]["schema"] == {"const": family}


def validator(name: str):
    schema = json.loads(schema_text(name))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_records_keep_their_schemas():
    profile = make_profile()
    records = [
        ("profile", render(profile, "json")),
        ("comparison", render(compare_profile(profile, [OLD, NEW]), "json")),
        ("comparison", render(compare_gpus([OLD, NEW]), "json")),
        ("fusion", render(FusedReport(fuse_run.fused(profile, ("eager", "memwall", "ideal"))), "json")),
    ]
    records.append(("serving", render(saved(served()), "json")))
    for name, text in records:
        validator(name).validate(json.loads(text))
    for measurement in make_measured().measurements:
        validator("measurement").validate(json.loads(json.dumps(measurement)))


def keys(schema, part) -> set[str]:
    """The keys of an object of a schema, or of a part of it."""
    return set((schema["$defs"][part] if part else schema)["properties"])


def test_a_trace_keeps_its_schema(tmp_path):
    """Every key of the record is in the schema, which has no other: its dataclasses do not write it."""
    events = [op("aten::mm", 0, 20, Input__Dims=[[64, 64]] * 2, Input__type=["float"] * 2),
              call("cudaLaunchKernel", 5, 1, 1), kernel("gemm", 30, 9, 1), kernel("lonely", 50, 9, 2),
              *all_reduce(1000, 100.5, 3)]  # fmt: skip
    trace = read_trace(write(tmp_path, events))
    record = json.loads(render(TraceReport(analyse(
        trace, load_gpu("h100"), dram_bytes={0: 7, 1: 9}, cluster=load_cluster("dgx-h100"), others=[trace]
    )), "json"))  # fmt: skip
    known = validator("trace")
    known.validate(record)
    places = {"": record, "TraceDevice": record["devices"][0], "TraceTotals": record["totals"],
              "TraceRow": record["rows"][0], "TracedKernel": record["rows"][0]["kernels"][0],
              "Gap": record["gaps"][0], "Alike": record["collectives"][0],
              "RankWaits": record["ranks"][0]}  # fmt: skip
    assert set(known.schema["$defs"]) == places.keys() - {""}
    assert {part: keys(known.schema, part) for part in places} == {part: {*own} for part, own in places.items()}
    assert [row.get("measured_dram_bytes") for row in record["rows"]] == [7, 9, None]
    assert len(record["gaps"]) == 2
    analysis = analyse(trace, load_gpu("h100"))
    for comparison in (compare_traces([analysis, analysis]), compare_with_model(analysis, [load_gpu("a100")])):
        validator("trace_comparison").validate(json.loads(render(TraceComparisonReport(comparison), "json")))


def test_scores_and_a_history_keep_their_schemas(tmp_path):
    make_measured().save(tmp_path / "measured.json")
    cells = json.loads(render(AccuracyReport(score_files([tmp_path / "measured.json"])), "json"))
    validator("accuracy").validate(cells)
    assert cells and not validator("accuracy").is_valid([{**cells[0], "mape": "small"}])
    rows = entry_of({"net": make_profile()}, "0" * 40, "2026-11-22T05:24:55Z")
    lines = [json.loads(row.to_line()) for row in rows]
    for line in lines:
        validator("history").validate(line)
    assert lines and not validator("history").is_valid({**lines[0], "figures": 3})


def test_a_schema_refuses_what_is_none():
    record = json.loads(render(make_profile(), "json"))
    record["simulations"][0]["kernels"][0]["time_s"] = "soon"
    assert not validator("profile").is_valid(record)
    del record["workload"]
    assert not validator("profile").is_valid(record)
