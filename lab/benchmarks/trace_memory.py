"""Peak memory and seconds of ``memwall profile trace.json`` on traces of millions of events.

    python lab/benchmarks/trace_memory.py TRACE.json.gz ... [--events 1000000 5000000] [--against FOLDER ...] [-o FILE]

A trace of so many events is a recorded one repeated: each repeat later, with numbers (correlations, external ids,
sequence numbers) of its own. Text and ``--json`` are measured in processes of their own, this state and the checkouts
of ``--against`` in turn; peak memory is ``VmHWM`` of the process. After the first turn nothing is distinct any more, so
what the peak grows by from there on is that of each event. Standard output, or ``-o``, is Markdown.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
#: arguments that number an event
NUMBERS = ("correlation", "External id", "external id", "Sequence number", "Ev Idx")


class Source(NamedTuple):
    """A recorded trace: its other keys, its events, how long it lasts in us, and more than any number in it."""

    header: dict[str, Any]
    events: list[dict[str, Any]]
    span_us: int
    numbers: int


def read(path: Path) -> Source:
    """A recorded trace, without the events that name processes and threads."""
    with gzip.open(path) as file:
        header = json.load(file)
    events = [event for event in header.pop("traceEvents") if event.get("ph") != "M"]
    times = [(float(event["ts"]), float(event.get("dur", 0))) for event in events if "ts" in event]
    span_us = max(start + dur for start, dur in times) - min(start for start, _ in times)
    known = [event.get("id") for event in events] + [
        event["args"].get(name) for event in events if isinstance(event.get("args"), dict) for name in NUMBERS
    ]
    return Source(header, events, int(span_us) + 1_000, 1 + max(n for n in known if isinstance(n, int)))


def repeated(source: Source, count: int) -> Iterator[dict[str, Any]]:
    """``count`` events: the recorded ones again and again."""
    for number in range(count):
        turn, place = divmod(number, len(source.events))
        event = dict(source.events[place])
        if "ts" in event:
            ts = float(event["ts"]) + turn * source.span_us
            event["ts"] = int(ts) if ts.is_integer() else ts
        if isinstance(event.get("id"), int):
            event["id"] += turn * source.numbers
        if isinstance(event.get("args"), dict):
            own = event["args"] = dict(event["args"])
            for name in NUMBERS:
                if isinstance(own.get(name), int) and own[name] > 0:
                    own[name] += turn * source.numbers
        yield event


def write(source: Source, count: int, path: Path) -> None:
    """A trace of ``count`` events."""
    with path.open("w", encoding="utf-8") as file:
        file.write(f'{json.dumps(source.header)[:-1]}, "traceEvents": [\n')
        file.writelines(f"{',' if n else ''}{json.dumps(event)}\n" for n, event in enumerate(repeated(source, count)))
        file.write("]}\n")


class Run(NamedTuple):
    peak_mb: float
    cpu_s: float
    wall_s: float


#: runs the command line of the folder that it runs in, and says what it took
CHILD = """
import sys, time
from memwall.cli import main
code = main(sys.argv[1:])
sys.stdout.flush()
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak, time.process_time(), file=sys.stderr)
sys.exit(code)
"""


def measure(root: Path, trace: Path, options: Sequence[str]) -> Run:
    """One run of the command line of a checkout, in a process of its own."""
    command = [sys.executable, "-c", CHILD, "profile", str(trace), *options]
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )  # fmt: skip
    wall_s = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"memwall profile {trace} failed in {root}: {done.stderr}")
    peak_kb, cpu_s = map(float, done.stderr.split()[-2:])
    return Run(peak_kb / 1024, cpu_s, wall_s)


def median(runs: Sequence[Run]) -> Run:
    return Run(*map(statistics.median, zip(*runs, strict=True)))


def table(trace: Path, counts: Sequence[int], roots: Sequence[Path], runs: int) -> list[str]:
    """The rows of one recorded trace."""
    source, lines = read(trace), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for what, options in (("text", ()), ("--json", ("--json",))):
            once = len(source.events)
            write(source, once, path)
            least = [median([measure(root, path, options) for _ in range(3)]).peak_mb for root in roots]
            for count in counts:
                write(source, count, path)
                found: list[list[Run]] = [[] for _ in roots]
                for _ in range(runs):
                    for root, own in zip(roots, found, strict=True):
                        own.append(measure(root, path, options))
                for root, own, base in zip(roots, found, least, strict=True):
                    peak_mb, cpu_s, wall_s = median(own)
                    grows = (peak_mb - base) * 2**20 / (count - once)
                    name = "this state" if root == ROOT else root.name
                    cells = (trace.name.partition(".")[0], f"{count:,}", what, name, f"{peak_mb:,.0f}", f"{grows:,.0f}",
                             f"{cpu_s:.1f}", f"{wall_s:.1f}")  # fmt: skip
                    lines.append(f"| {' | '.join(cells)} |")
                    print(lines[-1], file=sys.stderr, flush=True)
    return lines


HEAD = """# Memory of reading a profiler's trace

`{command}`

Recorded traces, repeated to so many events. *Peak*: of the whole process, in MiB. *Each event*: by how many bytes the
peak grows with each event after the first turn, in which all that is distinct has been seen. Seconds are of CPU time,
and by the clock of a machine that others use too.

What is kept of an event is its time, its duration and numbers (its links, the number of its name, of its arguments):
20 to 53 bytes in columns, and some 70 more for the events of one thread while they are sorted. Names, shapes and other
arguments are kept once for all events that share them; a row of the result is 12 bytes and the number of its kind, and
JSON is written row by row. So memory is a number of bytes for each event, and what is distinct once. It is not bounded
by distinct kernels alone: what links a kernel to its op may stand anywhere in the file.

| trace | events | output | state | peak, MiB | each event, B | CPU, s | clock, s |
|:---|---:|:---|:---|---:|---:|---:|---:|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--events", nargs="+", type=int, default=[1_000_000, 5_000_000])
    parser.add_argument("--against", nargs="*", type=Path, default=[], help="checkouts of other states")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    lines = []
    for trace in options.traces:
        lines += table(trace, options.events, [*options.against, ROOT], options.runs)
    names = " ".join(trace.name for trace in options.traces)
    against = "".join(f" {root.name}" for root in options.against)
    command = f"python lab/benchmarks/trace_memory.py {names} --events {' '.join(map(str, options.events))}"
    command += f" --against{against}" if against else ""
    text = HEAD.format(command=command) + "\n".join(lines) + "\n"
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
