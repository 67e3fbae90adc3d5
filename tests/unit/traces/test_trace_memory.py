"""A large trace in bounded memory: what is dropped costs nothing, whatever a file claims to hold."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.places import ROOT
from tests.unit.processes import HANGS_S
from tests.unit.traces.xspace import Event, Plane, write_space
from tests.unit.traces_fixture import call, frame, kernel, op

STATUS = Path("/proc/self/status")
pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="peak memory is read from /proc/self/status")

_CHILD = """
import sys
from memwall.core.errors import UsageError
from memwall.traces.reading import read_trace
try:
    trace = read_trace(sys.argv[1])
    print(len(trace.kernels), len(trace.ops), sum(k.op is None for k in trace.kernels))
except UsageError as error:
    print(error)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def _read(path: Path) -> tuple[str, float]:
    """What a fresh process printed, and its peak memory in MiB."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=HANGS_S
    )
    text, peak = done.stdout.strip().rsplit("\n", 1)
    return text, int(peak) / 1024


def _block(first: int, junk: int) -> str:
    """Events of one op with its kernel and ``junk`` Python frames that are nobody's, none like another."""
    events = [
        op("aten::addmm", 100 * first, 90, External__id=first, Input__Dims=[[16], [4, 8], [8, 16], [], []]),
        call("cudaLaunchKernel", 100 * first + 5, 2, first),
        kernel("gemm", 100 * first + 20, 50, first, grid=[1, 1, 1], block=[128, 1, 1]),
    ]
    for i in range(junk):
        events.append(frame(f"<built-in method view of Tensor object at 0x7f{first:06x}{i:03x}>", 100 * first, 1))
    return "".join(json.dumps(event, indent=2) + ",\n" for event in events)


def _write(path: Path, blocks: int, junk: int) -> float:
    """A trace of so many blocks; returns its size in MB."""
    with path.open("w") as handle:
        handle.write('{"schemaVersion": 1, "traceEvents": [\n')
        handle.writelines(_block(first, junk) for first in range(1, blocks + 1))
        handle.write('{"ph": "i", "name": "Record Window End", "ts": 0}]}')
    return path.stat().st_size / 1e6


def test_frames_that_nobody_needs_cost_no_memory(tmp_path: Path) -> None:
    small, large = tmp_path / "small.json", tmp_path / "large.json"
    assert _write(small, 500, junk=4) < 1.5
    assert _write(large, 500, junk=200) > 17
    (said, base), (again, peak) = _read(small), _read(large)
    assert said == again == "500 500 0"
    assert peak - base < 8  # two windows of text, not 17 MB


def test_a_kept_kernel_costs_some_hundred_bytes(tmp_path: Path) -> None:
    """Op, call, kernel and gap in columns: measured 0.37 KB a kernel; twice that is an object for each of them."""
    few, many = tmp_path / "few.json", tmp_path / "many.json"
    _write(few, 500, junk=0)
    _write(many, 7_000, junk=0)
    (_, base), (said, peak) = _read(few), _read(many)
    assert said == "7000 7000 0"
    assert (peak - base) * 1024 / 6_500 < 0.75


@pytest.mark.defect("44c")
def test_kernels_without_a_launch_are_not_sorted_as_objects(tmp_path: Path) -> None:
    """Rows of the GPU were sorted as lists of Python numbers, those without a launch as one tie, which took more than
    the rows themselves: a small packed file of many alike took gigabytes.

    Columns of 49 bytes for a row, 60 for a kernel and its gap: 132 measured with what grows by doubling; a list of
    numbers would add 36 or more. Files large enough that what the process itself takes does not count."""
    few, many = tmp_path / "few.json", tmp_path / "many.json"
    for path, count in ((few, 80_000), (many, 220_000)):
        rows = (json.dumps(kernel("k", 2 * i, 1, 0)) for i in range(count))
        path.write_text(f'{{"schemaVersion": 1, "traceEvents": [{", ".join(rows)}]}}', encoding="utf-8")
    (_, base), (said, peak) = _read(few), _read(many)
    assert said == "220000 0 220000"
    assert (peak - base) * 2**20 / 140_000 < 150


@pytest.mark.parametrize(
    ("begin", "repeated"),
    [('{"traceEvents": [', "["), ('{"traceEvents": [{"args": ', '{"a":'), ('{"metadata": ', "["), ("", "[")],
)
def test_a_nesting_bomb_is_refused_at_once(tmp_path: Path, begin: str, repeated: str) -> None:
    """An eighth of a gigabyte of brackets in little gzip: refused at the first thousand of them."""
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as handle:
        handle.write(begin.encode())
        for _ in range(128):
            handle.write(repeated.encode() * ((1 << 20) // len(repeated)))
    said, peak = _read(path)
    assert "nested too deep to be a profiler trace" in said
    assert peak < 60


def test_deep_and_crossing_spans_take_no_quadratic_time(tmp_path: Path) -> None:
    """10,000 ops each inside the last, and 10,000 that overlap without nesting; each launches a kernel."""
    path = tmp_path / "deep.json"
    events = []
    for i in range(10_000):
        events += [op("aten::a", i, 100_000 - 2 * i), call("cudaLaunchKernel", i + 0.5, 0.1, i + 1)]
        events += [op("aten::b", i, 40_000, tid=2), call("cudaLaunchKernel", i + 0.5, 0.1, 50_001 + i, tid=2)]
        events += [kernel("k", 200_000 + 2 * i, 1, i + 1), kernel("k", 300_000 + 2 * i, 1, 50_001 + i)]
    path.write_text(json.dumps(events))
    said, peak = _read(path)
    assert said == "20000 1000 0"  # what lies deeper than 500 ops belongs to the 500th
    assert peak < 400


def test_a_kernel_of_an_xspace_costs_some_hundred_bytes(tmp_path: Path) -> None:
    """Beside the file, whose pages are mapped: measured 0.14 KB a kernel with its launch and a frame of Python."""

    def write(name: str, count: int) -> Path:
        stats = {"hlo_op": "fusion.1", "hlo_module": "jit_f", "kernel_details": "grid:1,1,1 block:128,1,1"}
        ran = [Event("fusion_1", 100 * i, 50, {**stats, "correlation_id": i}) for i in range(count)]
        calls = [Event("cuLaunchKernelEx", 100 * i, 2, {"correlation_id": i}) for i in range(count)]
        frames = [Event(f"$file.py:{i % 99} f", 100 * i, 2) for i in range(count)]
        device = Plane("/device:GPU:0", {"Stream #7(Compute)": ran})
        return write_space(tmp_path / name, device, Plane("/host:CPU", {"main": calls, "python": frames}))

    few, many = write("few.xplane.pb", 500), write("many.xplane.pb", 10_500)
    (_, base), (said, peak) = _read(few), _read(many)
    assert said == "10500 10500 0"
    mapped = (many.stat().st_size - few.stat().st_size) / 2**20
    assert (peak - base - mapped) * 1024 / 10_000 < 0.6
