"""The trace reader next to ijson (C backend): seconds on real traces, paired in one run, and what each accepts.

``pip install ijson``, then ``python lab/benchmarks/json_readers.py TRACE.json.gz ...``.
"""

from __future__ import annotations

import gzip
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ijson

from memwall.core.errors import UsageError
from memwall.traces.stream import read_events

ROUNDS = 7
#: what profilers write -> an event with it
WRITTEN = {
    "a plain event": b'{"name": "add"}',
    "NaN": b'{"name": "add", "value": NaN}',
    "quotes inside a name": b'{"name": "{"device": "cpu"}(12): run", "pid": 5}',
    "a lone backslash": b'{"name": "C:\\dir"}',
    "a control character": b'{"name": "a\x01b"}',
    "invalid UTF-8": b'{"name": "a\xffb"}',
}


def ours(path: Path) -> int:
    """The number of events that memwall reads."""
    events: list[None] = []
    read_events(path, lambda _: events.append(None), frozenset())
    return len(events)


def theirs(path: Path) -> int:
    """The number of events that ijson reads."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        return sum(1 for _ in ijson.items(file, "traceEvents.item", use_float=True))


def seconds(read: Callable[[Path], int], path: Path) -> float:
    start_s = time.perf_counter()
    read(path)
    return time.perf_counter() - start_s


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        pairs = [(seconds(ours, path), seconds(theirs, path)) for _ in range(ROUNDS)]
        ratio = statistics.median(their_s / our_s for our_s, their_s in pairs)
        print(f"{path.name}: {ours(path):,} events, memwall {statistics.median(s for s, _ in pairs):.2f} s,"
              f" ijson ({ijson.backend}) {ratio:.2f} times that")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for what, event in WRITTEN.items():
            path.write_bytes(b'{"traceEvents": [' + event + b"]}")
            said = [accepts(read, path) for read in (ours, theirs)]
            print(f"{what}: memwall {said[0]}, ijson {said[1]}")


def accepts(read: Callable[[Path], int], path: Path) -> str:
    try:
        return "reads it" if read(path) == 1 else "loses it"
    except (UsageError, ijson.JSONError):
        return "refuses it"


if __name__ == "__main__":
    main()
