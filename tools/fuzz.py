"""Read mutated inputs with every reader, and count how each ends: ok, refused (exit 2), a bug (exit 70), a hang.

    python tools/fuzz.py [--count 20000] [--readers trace record ...] [-o reports/fuzz.md]

Inputs are mutations of valid ones: values of another type, nested, huge, NaN, cut off, repeated, in another order, with
other bytes. Input N of a reader is the same in every run (``--only N`` reads it alone, with the traceback). Worker
processes have 5 s for each input and 4 GiB of memory; one that takes longer is killed and counted as a hang.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import random
import re
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from fuzz_readers import READERS, Reader  # noqa: E402

from memwall.core.errors import MemwallError  # noqa: E402

LIMIT_S, MEMORY_BYTES = 5.0, 4 << 30
ENDS = ("ok", "refused", "bug", "hang")


def end_of(reader: Reader, value: Any, folder: Path) -> tuple[str, str]:
    """How an input ends, and where a bug is."""
    try:
        reader.read(value, folder)
    except MemwallError:
        return "refused", ""
    except Exception as error:
        return "bug", where(error)
    return "ok", ""


def where(error: Exception) -> str:
    """The last line of memwall in a traceback, and the error."""
    text = str(error) if isinstance(error, RuntimeError) and "Traceback" in str(error) else "".join(
        traceback.format_exception(error))  # fmt: skip
    lines = re.findall(r'File ".*?(memwall/[^"]+)", line (\d+)', text)
    what = next((line for line in reversed(text.strip().splitlines()) if re.match(r"\w+(Error|Exception)\b", line)), "")
    return f"{':'.join(lines[-1]) if lines else '?'} {what[:120]}"


def input_of(reader: Reader, name: str, number: int) -> Any:
    return reader.make(random.Random(f"{name}:{number}"))


def work(reader: Reader, name: str, numbers: Sequence[int], pipe: Connection) -> None:
    """Read inputs in a process of its own; tell how each ended."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    with tempfile.TemporaryDirectory() as text:
        os.chdir(text)
        for number in numbers:
            value = input_of(reader, name, number)
            pipe.send(("begin", number, ""))
            pipe.send((*end_of(reader, value, Path(text)), number))
    pipe.close()


class Worker:
    """A process, the inputs that it has left, and when it began the last one."""

    def __init__(self, reader: Reader, name: str, numbers: Sequence[int]) -> None:
        self.numbers, self.begun, self.current = numbers, time.monotonic(), -1
        self.pipe, other = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.get_context("fork").Process(target=work, args=(reader, name, numbers, other))
        self.process.start()
        other.close()

    def stop(self) -> Sequence[int]:
        """Kill it; what it had not begun."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        return [number for number in self.numbers if number > self.current]


def fuzz(name: str, count: int, workers: int) -> tuple[Counter[str], dict[str, list[int]]]:
    """How the inputs of a reader end, and the inputs of each bug and hang."""
    reader = READERS[name]()
    with tempfile.TemporaryDirectory() as text, redirect_stdout(io.StringIO()):
        read = 0
        for number in range(200):  # what is imported on first use counts for nobody
            read += end_of(reader, input_of(reader, name, number), Path(text))[0] == "ok"
            if read == 8:
                break
    ends: Counter[str] = Counter()
    bugs: dict[str, list[int]] = {}
    running = [Worker(reader, name, range(first, count, workers)) for first in range(workers)]
    while running:
        ready = wait([worker.pipe for worker in running], timeout=0.5)
        for worker in list(running):
            if worker.pipe in ready and take(worker, ends, bugs):
                continue
            if worker.pipe not in ready and time.monotonic() - worker.begun < LIMIT_S + 1:
                continue
            running.remove(worker)
            if left := worker.stop():
                what = "hang" if worker.pipe not in ready else "process died"
                ends["hang" if what == "hang" else "bug"] += worker.current >= 0
                bugs.setdefault(what, []).append(worker.current)
                running.append(Worker(reader, name, left))
    return ends, bugs


def take(worker: Worker, ends: Counter[str], bugs: dict[str, list[int]]) -> bool:
    """Note what a worker says; False at its end."""
    try:
        end, detail, number = worker.pipe.recv()
    except (EOFError, OSError):
        return False
    if end == "begin":
        worker.current, worker.begun = detail, time.monotonic()
        return True
    ends[end] += 1
    worker.begun = time.monotonic()
    if end == "bug":
        bugs.setdefault(detail, []).append(number)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="inputs of each reader")
    parser.add_argument("--readers", nargs="+", choices=READERS, default=list(READERS))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int, help="read this input alone and show what happens")
    parser.add_argument("-o", "--output", type=Path, help="write the counts here")
    options = parser.parse_args()
    if options.only is not None:
        reader = READERS[options.readers[0]]()
        value = input_of(reader, options.readers[0], options.only)
        print(value if isinstance(value, str) else value[:3000])
        with tempfile.TemporaryDirectory() as text:
            reader.read(value, Path(text))
        return 0
    lines = ["# Mutated inputs", "", f"`python tools/fuzz.py --count {options.count} -o reports/fuzz.md`: how each of"
             " the inputs ended. A refusal is one line and exit code 2.", "",
             f"| reader | inputs | {' | '.join(ENDS)} |", "|:---|---:" + "|---:" * len(ENDS) + "|"]  # fmt: skip
    failed = False
    for name in options.readers:
        ends, bugs = fuzz(name, options.count, options.workers)
        lines.append(f"| {name} | {sum(ends.values()):,} | {' | '.join(f'{ends[end]:,}' for end in ENDS)} |")
        print(lines[-1], flush=True)
        for what, numbers in sorted(bugs.items(), key=lambda item: -len(item[1])):
            print(f"  {len(numbers)} x {what} (--only {numbers[0]})", flush=True)
        failed |= bool(bugs)
    if options.output:
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
