"""Readers of one trace side by side: the time of its kernels, CPU seconds and peak memory.

    python lab/benchmarks/trace_readers.py TRACE.json.gz ... [-o FILE]

HTA (``pip install HolisticTraceAnalysis``) gives its breakdown of kernels, memwall its profile, each in a process of
its own. *By hand* is the sum of the durations of kernels, copies and fills in the file. Seconds are of CPU time and
hold the imports, memory is the process's peak. Standard output, or ``-o``, is Markdown.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

KINDS = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")

_END = """
import time
with open("/proc/self/status") as status:
    used = dict(line.split(":", 1) for line in status)
print(json.dumps([found_s, time.process_time(), int(used["VmHWM"].split()[0]) / 1024]))
"""
_HTA = """
import json, logging, os, shutil, sys, tempfile, warnings
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
with tempfile.TemporaryDirectory() as folder:
    shutil.copyfile(sys.argv[1], path := os.path.join(folder, "rank0.json.gz"))
    with open(os.devnull, "w") as nowhere:
        sys.stdout, shown = nowhere, sys.stdout
        analysis = TraceAnalysis({0: path}, folder, include_last_profiler_step=LAST)
        _, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=1 << 20)
        sys.stdout = shown
found_s = float(kernels["sum (us)"].sum()) / 1e6
"""
_MEMWALL = """
import io, json, sys, contextlib
from memwall.cli import main
with contextlib.redirect_stdout(io.StringIO()) as said:
    main(["profile", sys.argv[1], "-q", "--json"])
found_s = json.loads(said.getvalue())["totals"]["measured_s"]
"""
#: reader -> the program that reads
READERS = {
    "HTA, as it is": _HTA.replace("LAST", "False"),
    "HTA, with the last step": _HTA.replace("LAST", "True"),
    "memwall": _MEMWALL,
}


def by_hand_s(path: str) -> float:
    """Seconds of all kernels, copies and fills of a trace."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    return sum(e["dur"] for e in events if e.get("ph") == "X" and str(e.get("cat", "")).lower() in KINDS) / 1e6


def asked(program: str, path: str) -> tuple[float, float, float] | None:
    """Seconds of kernels, CPU seconds and MiB of a reader; None where it is not installed or cannot read the file."""
    done = subprocess.run([sys.executable, "-c", program + _END, path], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr.strip().splitlines()[-1], file=sys.stderr)
        return None
    found_s, cpu_s, peak_mib = json.loads(done.stdout.splitlines()[-1])
    return found_s, cpu_s, peak_mib


def rows_of(path: str) -> list[str]:
    """The rows of one trace."""
    hand_s, name = by_hand_s(path), Path(path).name.partition(".")[0]
    rows = [f"| {name} | by hand | {hand_s * 1e3:,.3f} | 1 | | |"]
    for reader, program in READERS.items():
        if found := asked(program, path):
            found_s, cpu_s, peak = found
            rows.append(
                f"| {name} | {reader} | {found_s * 1e3:,.3f} | {found_s / hand_s:.3f} | {cpu_s:.1f} | {peak:,.0f} |"
            )
    return rows


_TEXT = """# Readers of a trace, side by side

`python lab/benchmarks/trace_readers.py {names}`

*By hand* is the sum of the durations of all kernels, copies and fills in the file. HTA {version} leaves out the last
step of the profiler unless it is told otherwise, counts only kernels whose launch lies in a step, and cuts times to
whole microseconds, which loses a part of short kernels. memwall has every kernel of the file, and says how much of
their time an op launched. Seconds are of CPU time and hold the imports; memory is the peak of the process.

| trace | reader | time of kernels, ms | of the sum by hand | CPU, s | peak, MiB |
|:---|:---|---:|---:|---:|---:|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", nargs="+")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    names = " ".join(Path(trace).name for trace in given.traces)
    text = _TEXT.format(names=names, version=version("HolisticTraceAnalysis"))
    text += "\n".join(row for trace in given.traces for row in rows_of(trace)) + "\n"
    if given.output:
        given.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
