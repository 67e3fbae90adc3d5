"""Traces next to each other: what is matched, what changed, by hand."""

from pathlib import Path

import pytest

from memwall.cli import main
from memwall.hardware.lookup import load_gpu
from memwall.report import render
from memwall.traces.analysing import analyse
from memwall.traces.comparison import TraceComparison, compare_traces, compare_with_model
from memwall.traces.comparison_page import TraceComparisonReport
from memwall.traces.reading import read_trace
from tests.unit.traces_fixture import Event, annotation, call, kernel, op, write

_GPU = "h100-sxm"


def _launch(number: int, name: str, size: int, dur: float, kernel_name: str = "k") -> list[Event]:
    at = 100 * number
    shapes = {"Input__Dims": [[size], [size], []], "Input__type": ["float", "float", "Scalar"]}
    return [op(name, at, 90, **shapes), call("cudaLaunchKernel", at + 5, 2, number),
            kernel(kernel_name, at + 10, dur, number)]  # fmt: skip


def _analysed(folder: Path, *launches: tuple[str, int, float, str], steps: int = 0):
    events = [event for n, row in enumerate(launches, 1) for event in _launch(n, *row)]
    events += [annotation(f"ProfilerStep#{n}", 100 * n, 50) for n in range(1, steps + 1)]
    return analyse(read_trace(write(folder, events)), load_gpu(_GPU))


def _changes(found: TraceComparison) -> dict[tuple[str, str], tuple[str, float]]:
    return {(row.name, row.shapes): (row.change, round(1e6 * row.difference_s, 6)) for row in found.ops}


def test_ops_are_matched_by_name_and_shapes(tmp_path: Path) -> None:
    before = _analysed(tmp_path, ("aten::add", 64, 10, "k"), ("aten::add", 32, 4, "k"), ("aten::mul", 8, 2, "k"))
    after = _analysed(tmp_path, ("aten::add", 64, 13, "k2"), ("aten::add", 32, 3, "k"), ("aten::sub", 8, 7, "k"))
    found = compare_traces([before, after])
    assert _changes(found) == {
        ("aten::add", "64 64 float"): ("slower", 3), ("aten::add", "32 32 float"): ("faster", -1),
        ("aten::mul", "8 8 float"): ("gone", -2), ("aten::sub", "8 8 float"): ("new", 7),
    }  # fmt: skip
    assert found.compared_s == pytest.approx((16e-6, 23e-6))
    assert [round(1e6 * op.difference_s) for op in found.ops] == [7, 3, -2, -1]
    assert found.ops[1].kernels == ("k", "k2")
    assert not found.per_step
    assert dict(found.classes) == {"elementwise": pytest.approx((16e-6, 23e-6))}


def test_times_are_per_step_where_all_traces_have_steps(tmp_path: Path) -> None:
    one = _analysed(tmp_path, ("aten::add", 64, 10, "k"), steps=1)
    two = _analysed(tmp_path, *[("aten::add", 64, 10, "k")] * 2, steps=2)
    found = compare_traces([one, two])
    assert found.per_step
    assert [(row.change, row.counts) for row in found.ops] == [("equal", (1, 1))]
    assert [column.time_s for column in found.columns] == pytest.approx([10e-6, 10e-6])
    bare = _analysed(tmp_path, *[("aten::add", 64, 10, "k")] * 2)
    assert _changes(compare_traces([one, bare])) == {("aten::add", "64 64 float"): ("slower", 10)}


def test_what_has_no_model_is_compared_nowhere(tmp_path: Path) -> None:
    trace = _analysed(tmp_path, ("aten::add", 64, 10, "k"), ("mine::op", 64, 30, "k"))
    found = compare_with_model(trace, [load_gpu("h100-sxm"), load_gpu("b200")])
    assert [(c.gpu, c.what) for c in found.columns] == [
        ("h100-sxm", "measured"), ("h100-sxm", "modeled"), ("b200", "modeled"),
    ]  # fmt: skip
    assert {row.name: row.change for row in found.ops} == {"aten::add": "faster", "mine::op": "not modeled"}
    assert found.compared_s[0] == pytest.approx(10e-6)
    assert found.columns[0].time_s == pytest.approx(40e-6)
    assert found.classes["not modeled"] == pytest.approx((30e-6, 0, 0))
    modeled_s = next(row.modeled_s for row in trace.rows if row.name == "aten::add")
    assert found.compared_s[1] == modeled_s


def test_every_kind_of_output(tmp_path: Path) -> None:
    before = _analysed(tmp_path, ("aten::add", 64, 10, "k"))
    report = TraceComparisonReport(compare_traces([before, _analysed(tmp_path, ("aten::add", 64, 13, "k"))]))
    text = render(report, "text")
    assert "B takes 3.00 us more than A (1.300 of its time): 1 kind of op slower (+3.00 us)" in " ".join(text.split())
    assert all(render(report, kind) for kind in report.kinds if kind != "parquet")


@pytest.mark.parametrize(("arguments", "says"), [
    (("trace.json", "model.py"), "model.py is no profiler's trace"),
    (("trace.json", "--batch", "4"), "--batch says how to trace a model"),
    (("trace.json", "--price", "h100=2"), "--price goes with a model"),
])  # fmt: skip
def test_what_does_not_go_with_traces(tmp_path: Path, monkeypatch, capsys, arguments, says) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, _launch(1, "aten::add", 64, 10))
    assert main(["compare", *arguments]) == 2
    assert says in capsys.readouterr().err
