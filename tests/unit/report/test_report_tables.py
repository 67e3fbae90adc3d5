"""CSV, Parquet, JSON and the Chrome trace."""

import csv
import io
import json
import sys
from dataclasses import replace

import pytest

from memwall.core.errors import MissingError
from memwall.record.profile import Profile
from memwall.report import render
from memwall.report.pages.profile import KERNEL_COLUMNS, ProfileReport
from memwall.sweeping.compare import compare_gpus, compare_profile
from tests.unit.report_fixture import HOSTILE, NEW, OLD, make_profile


@pytest.fixture(scope="module")
def profile():
    return make_profile()


def read_csv(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_one_row_per_kernel_and_gpu(profile):
    rows = read_csv(render(profile, "csv"))
    assert len(rows) == 2 * 12
    assert tuple(rows[0]) == KERNEL_COLUMNS
    first = rows[0]
    assert (first["gpu"], first["name"], first["module"], first["phase"]) == (
        "old",
        "aten.mm",
        "blocks.0.proj",
        "forward",
    )
    assert int(first["flops"]) == 2**31
    assert float(first["time_s"]) == profile.simulation("old").kernels[0].time_s  # all digits
    assert first["modeled"] == "true"
    assert HOSTILE in {row["name"] for row in rows}


def test_csv_disarms_what_a_spreadsheet_takes_for_a_formula():
    rows = read_csv(render(compare_profile(make_profile(name="=1+1"), [OLD]), "csv"))
    assert rows[0]["workload"] == "'=1+1"


def test_csv_of_comparisons(profile):
    rows = read_csv(render(compare_profile(profile, [OLD, NEW]), "csv"))
    assert [row["gpu"] for row in rows] == ["old", "new"]
    assert float(rows[0]["wall_shares.compute"]) > 0.5
    machines = read_csv(render(compare_gpus([OLD, NEW]), "csv"))
    assert float(machines[1]["growth.float16"]) == 10.0
    assert float(machines[0]["peak_flop_per_s.tensor.float16"]) == 100e12


def test_parquet_round_trips(profile):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    data = render(profile, "parquet")
    table = parquet.read_table(io.BytesIO(data))
    assert table.num_rows == 24
    assert tuple(table.column_names) == KERNEL_COLUMNS
    assert table["flops"][0].as_py() == 2**31
    assert render(profile, "parquet") == data


def test_without_pyarrow_the_extra_is_named(profile, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingError, match=r"pip install 'memwall-roofline\[parquet\]'"):
        render(profile, "parquet")


def test_json_is_the_record(profile):
    assert Profile.from_dict(json.loads(render(profile, "json"))).workload == profile.workload


@pytest.mark.parametrize("kind", [k for k in ProfileReport.kinds if k != "parquet"])
def test_every_kind_takes_the_options_of_the_command_line(profile, kind):
    assert render(profile, kind, top=3, sort="bytes", by="module")


@pytest.mark.defect("47")
@pytest.mark.parametrize("kind", ["csv", "html", "md", "svg"])
def test_no_file_has_what_a_terminal_acts_on(kind, profile):
    """Writers of files passed on the characters of names as they were, so that a table or a page that is printed set
    colors, titles and the direction of text."""
    module = "blocks.\x1b[31m0\x1b]0;title\x07\u202e.\x9bproj"
    graph = profile.graphs[0]
    ops = [replace(op, module=module, source=f"{module}.py:1") for op in graph.ops]
    workload = replace(profile.workload, name=f"net \x1b[31m{profile.workload.name}", target=f"{module}.py")
    odd = replace(profile, workload=workload, graphs=(replace(graph, ops=ops),))
    written = render(odd, kind)
    assert [hex(ord(each)) for each in "\x1b\x07\u202e\x9b\x7f\r" if each in written] == []
