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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memwall.analysis.fused import capture_of
from memwall.hardware.lookup import Gpu
from memwall.record.profile import Profile

#: the folder that holds this memwall
_HOME = Path(__file__).parents[2]
_START = """import sys
sys.path.insert(0, sys.argv[1])
import memwall
sys.path.remove(sys.argv[1])
from memwall.gate.child import main
main(sys.argv[2], sys.argv[3])
"""

#: workloads captured by TorchDynamo that one process takes, and the most processes for a side
_JOBS, _MOST = 4, 4


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
    ``real`` says that the model reads its own data, so that it was traced on real tensors.
    """

    name: str
    profile: Profile | None
    error: str = ""
    notes: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    absent: bool = False
    real: bool = False


class Running:
    """A child at work on a folder's jobs; :meth:`result` waits for it."""

    def __init__(self, folder: Path, jobs: Sequence[Job], avoid: Path | None = None) -> None:
        self.folder, self.jobs, self.avoid = folder, jobs, avoid
        self._place = tempfile.TemporaryDirectory(prefix="memwall-gate-")
        task, self._answer = Path(self._place.name, "task"), Path(self._place.name, "answer")
        task.write_bytes(pickle.dumps((list(jobs), avoid)))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, str(_HOME), str(task), str(self._answer)],
            # the order of a set in a model is no difference between base and head
            cwd=folder, stdin=subprocess.DEVNULL, stdout=2, env={**os.environ, "PYTHONHASHSEED": "0"},
        )  # fmt: skip

    def result(self) -> tuple[dict[str, Traced], list[Job]]:
        """Name → what became of the job; and the jobs that are left because the child died of the one before them."""
        code = self._process.wait()
        rows = {row.name: row for row in _read(self._answer)}
        left = [job for job in self.jobs if job.name not in rows]
        if left:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            name = left[0].name
            rows[name] = Traced(name, None, f"its process {how}; out of memory, or the model ended it")
        return rows, left[1:]

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
    say(f"tracing {len(jobs)} workload{'s' if len(jobs) != 1 else ''}" + (" twice: base and head" if base else ""))
    if base is None:
        return _traced([(head, jobs, None)])[0], {}
    # TorchDynamo takes most of the time, and a head without breaks needs no base to be held against
    ours, theirs = _traced([(head, jobs, None), (base, [replace(job, breaks=False) for job in jobs], avoid)])
    again: tuple[list[Job], list[Job]] = [], []
    for job in jobs:
        one, other = ours[job.name], theirs[job.name]
        if one.profile is None or other.profile is None:
            continue
        # a real tensor may lie in memory otherwise than one without data: both sides as the one that needs it
        both = replace(job, options={**job.options, "real": True}) if one.real or other.real else job
        if other.real and not one.real:
            again[0].append(both)
        if (one.real and not other.real) or (job.breaks and _may_break(one.profile)):
            again[1].append(both)
    if any(again):
        say(f"tracing {len({job.name for row in again for job in row})} again")
        late = _traced([(head, again[0], None), (base, again[1], avoid)])
        return ours | late[0], theirs | late[1]
    return ours, theirs


def _may_break(profile: Profile) -> bool:
    capture = capture_of(profile.capture)
    return capture is None or capture.failure is not None or bool(capture.breaks)


def _traced(sides: Sequence[tuple[Path, Sequence[Job], Path | None]]) -> list[dict[str, Traced]]:
    """Each side's jobs done, all sides at the same time, both in as many processes as the captures of one ask for: a
    model that changes its process does so to the same ones on either side."""
    running: list[tuple[int, Running]] = []
    try:
        captures = max(sum(job.breaks for job in jobs) for _, jobs, _ in sides)
        parts = min(-(-captures // _JOBS) or 1, os.cpu_count() or 1, _MOST)
        for number, (folder, jobs, avoid) in enumerate(sides):
            shares = [jobs[i::parts] for i in range(parts)]
            running += [(number, Running(folder, share, avoid)) for share in shares if share]
        found: list[dict[str, Traced]] = [{} for _ in sides]
        for number, child in running:  # which grows where one dies
            rows, left = child.result()
            found[number] |= rows
            if left:
                running.append((number, Running(child.folder, left, child.avoid)))
        return found
    finally:
        for _, child in running:
            child.close()
