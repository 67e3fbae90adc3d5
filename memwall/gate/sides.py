"""Base and head, each profiled in a process of its own in its own folder, both with this memwall.

A child imports this memwall whatever its folder holds, and finds its folder's own packages before installed ones, so
that the base does not run the head's code; where it did all the same, that is said. The user's code prints to standard
error.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwall.hardware import Gpu
from memwall.profile import Profile

#: the folder that holds this memwall
_HOME = Path(__file__).parents[2]
_START = """import sys
sys.path.insert(0, sys.argv[1])
import memwall
sys.path.remove(sys.argv[1])
from memwall.gate.child import main
main(sys.argv[2], sys.argv[3])
"""


@dataclass(frozen=True)
class Job:
    """One workload to profile: keywords of :func:`memwall.profile`, and whether to look for graph breaks; ``asked``,
    however long that takes."""

    name: str
    target: str
    options: Mapping[str, Any]
    gpus: tuple[Gpu, ...]
    policies: tuple[str, ...]
    breaks: bool = False
    asked: bool = False


@dataclass(frozen=True)
class Traced:
    """What became of a job: a profile, or the message of what went wrong; ``absent`` says that the target names nothing
    that is there. ``foreign`` are files outside the folder that the model was loaded from although the head has them.
    """

    name: str
    profile: Profile | None
    error: str = ""
    notes: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    absent: bool = False


class Running:
    """A child at work on a folder's jobs; :meth:`result` waits for it."""

    def __init__(self, folder: Path, jobs: Sequence[Job], avoid: Path | None = None) -> None:
        self._jobs = jobs
        self._place = tempfile.TemporaryDirectory(prefix="memwall-gate-")
        task, self._answer = Path(self._place.name, "task"), Path(self._place.name, "answer")
        task.write_bytes(pickle.dumps((list(jobs), avoid)))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, str(_HOME), str(task), str(self._answer)],
            # the order of a set in a model is no difference between base and head
            cwd=folder, stdin=subprocess.DEVNULL, stdout=2, env={**os.environ, "PYTHONHASHSEED": "0"},
        )  # fmt: skip

    def result(self) -> dict[str, Traced]:
        """Name → what became of the job; where the child died, that is what became of its job and of those after it."""
        code = self._process.wait()
        rows = {row.name: row for row in _read(self._answer)}
        left = [job.name for job in self._jobs if job.name not in rows]
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        for name in left:
            error = f"its process {how}; out of memory, or the model ended it"
            rows[name] = Traced(name, None, error if name == left[0] else f"the process {how} at {left[0]}")
        return rows

    def close(self) -> None:
        """Stop the child if it still runs, and take its files away."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._place.cleanup()


def _read(answer: Path) -> Iterator[Traced]:
    """The rows that a child has written, as far as they are whole."""
    with contextlib.suppress(FileNotFoundError, EOFError, pickle.UnpicklingError), answer.open("rb") as file:
        while True:
            yield pickle.load(file)


def profile_sides(
    head: Path, base: Path | None, jobs: Sequence[Job], say: Callable[[str], None], avoid: Path | None = None
) -> tuple[dict[str, Traced], dict[str, Traced]]:
    """The jobs profiled in the head's folder and, at the same time, in the base's.

    Args:
        avoid: the head's checkout, of which the base must load nothing.
    """
    say(
        f"tracing {len(jobs)} workload{'s' if len(jobs) != 1 else ''}"
        + (" twice: base and head" if base else "")
    )
    running = [Running(head, jobs)]
    try:
        if base is not None:
            running.append(Running(base, jobs, avoid))
        results = [child.result() for child in running]
    finally:
        for child in running:
            child.close()
    return results[0], results[1] if base is not None else {}
