"""What reading a profiler's trace did wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.places import ROOT
from tests.unit.processes import HANGS_S

#: a file of this kind is read in about a second
_LIMIT_S = HANGS_S


def _launch(dims: object = ((2,), (2,)), kernel: str = "k", **args: object) -> list[dict[str, Any]]:
    """An op, its launch, its kernel."""
    recorded = {"Input Dims": dims, "Input type": ["float", "float"], **args}
    return [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 10, "dur": 50, "args": recorded},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 20, "dur": 2,
         "args": {"correlation": 7}},
        {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": 40, "dur": 5,
         "args": {"correlation": 7, "device": 0, "stream": 7, "grid": [1, 1, 1], "block": [32, 1, 1]}},
    ]  # fmt: skip


def _write(folder: Path, events: list[dict[str, Any]], blanks: int = 0) -> None:
    text = json.dumps(events)[1:]
    (folder / "t.json").write_text('{"traceEvents": [' + " " * blanks + "1, " + text + "}", encoding="utf-8")


def test_c20_blanks_are_skipped_once(folder, shell) -> None:
    """The reader tried every way to split a run of blanks in two before it saw that no event follows."""
    _write(folder, _launch(), blanks=150_000)
    assert shell("profile", "t.json", "--gpu", "h100", timeout=_LIMIT_S).code == 0


def test_c20_a_long_name_takes_linear_time(folder, shell) -> None:
    """Patterns for kernels' names were tried from every letter, and to every letter, of a name."""
    name = "void cutlass_80_" + "tensorop" * 20_000
    _write(folder, [*_launch(kernel=name), *_launch(kernel="Cijk_" + "a_" * 20_000)])
    assert shell("profile", "t.json", "--gpu", "h100", timeout=_LIMIT_S).code == 0


def test_c20_calls_of_one_number_take_linear_time(folder, shell) -> None:
    """Each kernel looked through all the calls of its correlation id, and each gap through all overheads."""
    events = []
    for number in range(15_000):
        for event in _launch():
            events.append({**event, "ts": 100 * number + event["ts"]})
        events.append({**events[-2], "cat": "overhead", "name": "Buffer Request", "dur": 0.01})
    _write(folder, events)
    assert shell("profile", "t.json", "--gpu", "h100", timeout=2 * _LIMIT_S).code == 0


NORM = """\
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Threshold(0.1, 2.0))

def inputs():
    return (torch.randn(4, 64),)
"""


@pytest.mark.parametrize("edit", [{"eps": "x"}, {"normalized_shape": None}, {"threshold": []}])
def test_c21_edited_attributes_of_a_record(folder, run, edit: dict[str, object]) -> None:
    """Rules and generated kernels took an op's attributes as a record had them, whatever they were."""
    (folder / "norm.py").write_text(NORM, encoding="utf-8")
    assert run("profile", "norm.py", "-o", "record.json").code == 0
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    for op in [op for graph in _graphs(record) for op in graph["ops"]]:
        for name in edit.keys() & op.get("attributes", {}).keys():
            op["attributes"][name] = edit[name]
    (folder / "record.json").write_text(json.dumps(record), encoding="utf-8")
    found = run("fuse", "record.json", "--policy", "memwall", "--emit", "kernels")
    assert (found.code, found.err.count("\n")) == (2, 1), found.err
    assert "record.json: op" in found.err and "attributes" in found.err


def _graphs(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [record["graph"], *record.get("graphs", [])]


def test_d34_the_page_of_a_trace_has_pictures_and_a_filter(folder, run) -> None:
    """The page of a trace was tables alone: no picture, nothing to sort or filter by."""
    _write(folder, [event for _ in range(12) for event in _launch()])
    assert run("profile", "t.json", "--gpu", "h100", "-o", "page.html").code == 0
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "<svg" in page and "of GPU time by op class" in page
    assert 'type = "search"' in page and "aria-sort" in page


def test_d34_a_picture_of_a_trace_without_shapes(folder, run) -> None:
    """A trace that recorded no shapes had no picture, although its time by op class is known."""
    _write(folder, [{**event, "args": {k: v for k, v in event["args"].items() if not k.startswith("Input")}}
                    for event in _launch()])  # fmt: skip
    found = run("profile", "t.json", "--gpu", "h100", "-o", "t.svg")
    assert found.code == 0, found.err
    assert "100.0 %" in (folder / "t.svg").read_text(encoding="utf-8")
    assert "aten::add" in found.out or "add" in found.out


def test_e39_two_traces_are_compared(folder, run) -> None:
    """memwall compare took a trace for a saved profile and refused it."""
    for name, kernel_us in (("a", 5), ("b", 8)):
        _write(
            folder, [{**event, "dur": kernel_us if event["cat"] == "kernel" else event["dur"]} for event in _launch()]
        )
        (folder / "t.json").rename(folder / f"{name}.json")
    found = run("compare", "a.json", "b.json", "--gpu", "h100", "--json")
    assert found.code == 0, found.err
    (op,) = json.loads(found.out)["ops"]
    assert (op["op"], op["change"]) == ("aten::add", "slower")
    assert op["times_s"] == pytest.approx([5e-6, 8e-6])


def test_c30_ops_of_libraries_have_figures_or_a_reason(folder, run) -> None:
    """Ops of vLLM, FBGEMM and bitsandbytes had no formula, and no word on why their work cannot be known."""
    quantised = {"Input Dims": [[6, 8], [], []], "Input type": ["c10::BFloat16", "", ""]}
    routed = {"Input Dims": [[6, 8], [6, 4], []], "Input type": ["c10::BFloat16", "float", ""]}
    events = []
    for number, (name, args) in enumerate(
        {"bitsandbytes::quantize_4bit": quantised, "vllm::moe_forward": routed}.items()
    ):
        for event in _launch():
            own = {**event["args"], "correlation": number + 1} if event["cat"] != "cpu_op" else args
            title = name if event["cat"] == "cpu_op" else event["name"]
            events.append({**event, "name": title, "ts": event["ts"] + 100 * number, "args": own})
    _write(folder, events)
    found = run("profile", "t.json", "--gpu", "h100", "--json")
    first, second = json.loads(found.out)["rows"]
    assert (first["read_bytes"], first["write_bytes"]) == (2 * 48, 24)
    assert second["flops"] is None and "weights of the experts" in second["reason"]


#: the command line with each file; the most memory that each file took so far, in KiB
_PEAK = """
import sys
from memwall.cli import main
for name in sys.argv[1:]:
    assert main(["profile", name, "--gpu", "h100", "--json"]) == 0
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(peak, file=sys.stderr)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc/self/status")
def test_c28_a_trace_takes_some_bytes_for_each_event(folder) -> None:
    """An object, or several, was kept for each event, and the whole record was one text in memory."""
    for launches in (1_000, 13_000):
        events = [{**event, "ts": 100 * number + event["ts"], "args": {**event["args"], "correlation": number}}
                  for number in range(1, launches + 1) for event in _launch()]  # fmt: skip
        _write(folder, events)
        (folder / "t.json").rename(folder / f"{launches}.json")
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, "1000.json", "13000.json"], cwd=folder, text=True, capture_output=True,
        check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=HANGS_S,
    )  # fmt: skip
    few, many = (1024 * int(line) for line in done.stderr.split())
    assert (many - few) / (3 * 12_000) < 200


@pytest.mark.parametrize("name", ["profile", "trace", "trace_comparison"])
def test_e41_a_record_has_a_schema(folder, run, name: str) -> None:
    """Records were written with the name of a schema that could be had nowhere."""
    jsonschema = pytest.importorskip("jsonschema")
    _write(folder, _launch())
    lines = {"profile": ("profile", "net.py", "--gpu", "h100"), "trace": ("profile", "t.json", "--gpu", "h100"),
             "trace_comparison": ("compare", "t.json", "t.json", "--gpu", "h100")}  # fmt: skip
    found, schema = run(*lines[name], "--json"), run("report", "--schema", name)
    assert (found.code, schema.code) == (0, 0), found.err + schema.err
    jsonschema.validate(json.loads(found.out), json.loads(schema.out))
    assert json.loads(schema.out)["properties"]["schema"] == {"const": json.loads(found.out)["schema"]}
