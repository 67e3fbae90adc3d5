"""Base and head, each profiled in a process of its own in its own folder, both with this memwall.

A child always imports this memwall, and finds its folder's own packages before installed ones, so that the base does
not run the head's code; if it did anyway, the result says so. The user's code prints to standard error.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from memwall.analysis.fused import MOST_UNASKED, distinct_ops
from memwall.core.errors import MemwallError, NeedsData
from memwall.core.process import HOME, Child, Lost, environment
from memwall.frontend.dynamo.capture import REAL_BYTES, capture_of
from memwall.frontend.workload import Workload, resolve
from memwall.frontend.workload.blame import blame
from memwall.hardware.lookup import Gpu
from memwall.pipeline import profile, with_capture
from memwall.record.profile import Profile

#: workloads captured by TorchDynamo that one process takes, and the most processes for base or head
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
    """The outcome of a job: a profile or an error message; ``absent``: the target does not exist. ``foreign`` are files
    outside the folder that the model was loaded from although the head has them. ``real``: the model reads its own
    data, so it was traced on real tensors."""

    name: str
    profile: Profile | None
    error: str = ""
    notes: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    absent: bool = False
    real: bool = False


def profile_both(
    head: Path, base: Path | None, jobs: Sequence[Job], say: Callable[[str], None], avoid: Path | None = None
) -> tuple[dict[str, Traced], dict[str, Traced]]:
    """The jobs profiled in the head's folder and, at the same time, in the base's; ``avoid``: the head's checkout, of
    which the base must load nothing."""
    say(f"tracing {len(jobs)} workload{'s' if len(jobs) != 1 else ''}" + (" twice: base and head" if base else ""))
    if base is None:
        return _traced([(head, jobs, None)])[0], {}
    # TorchDynamo takes most of the time, and a head without breaks needs no base to compare with
    ours, theirs = _traced([(head, jobs, None), (base, [replace(job, breaks=False) for job in jobs], avoid)])
    again: tuple[list[Job], list[Job]] = [], []
    for job in jobs:
        one, other = ours[job.name], theirs[job.name]
        if one.profile is None or other.profile is None:
            continue
        # a real tensor may have other strides than one without data: trace both sides on real tensors if one needs it
        both = replace(job, options={**job.options, "real": True}) if one.real or other.real else job
        if other.real and not one.real:
            again[0].append(both)
        capture = capture_of(one.profile.capture)
        may_break = capture is None or capture.failure is not None or bool(capture.breaks)
        if (one.real and not other.real) or (job.breaks and may_break):
            again[1].append(both)
    if any(again):
        say(f"tracing {len({job.name for row in again for job in row})} again")
        late = _traced([(head, again[0], None), (base, again[1], avoid)])
        return ours | late[0], theirs | late[1]
    return ours, theirs


def _traced(sides: Sequence[tuple[Path, Sequence[Job], Path | None]]) -> list[dict[str, Traced]]:
    """The jobs of base and head done at the same time, both in as many processes as the captures of one need: a model
    that changes its process affects the same jobs on both sides."""
    captures = max(sum(job.breaks for job in jobs) for _, jobs, _ in sides)
    parts = min(-(-captures // _JOBS) or 1, os.cpu_count() or 1, _MOST)
    found: list[dict[str, Traced]] = [{} for _ in sides]
    lanes = [
        _Lane(rows, folder, [*jobs[i::parts]], avoid)
        for rows, (folder, jobs, avoid) in zip(found, sides, strict=True)
        for i in range(parts)
    ]
    try:
        for lane in lanes:
            lane.begin()
        while busy := [lane for lane in lanes if lane.child]:
            done = wait([lane.child for lane in busy])
            for lane in busy:
                if lane.child in done:
                    lane.finish()
        return found
    finally:  # done or interrupted
        for lane in lanes:
            lane.stop()


class _Lane:
    """Jobs done one after another by a process in a folder, and by name what became of each. A model that ends its
    process is lost alone: the next job gets another."""

    def __init__(self, rows: dict[str, Traced], folder: Path, jobs: list[Job], avoid: Path | None) -> None:
        self.rows, self.folder, self.jobs, self.avoid = rows, folder, jobs, avoid
        self.child: Any = None

    def begin(self) -> None:
        """Hand the next job to the process; stop it after the last one."""
        if not self.jobs:
            self.stop()
            return
        if self.child is None:
            # the order of a set in a model is no difference between base and head
            variables = {**environment(), "PYTHONHASHSEED": "0"}
            tracer = "memwall.gate.tracing:Tracer"
            self.child = Child(tracer, variables, folder=self.folder, own_path=True, shown=True)
        self.child.send(self.jobs[0], self.avoid)

    def finish(self) -> None:
        """Take the answer to the first job, and go on."""
        job = self.jobs.pop(0)
        try:
            self.rows[job.name] = self.child.receive(None)
        except Lost as lost:
            code = lost.code or 0
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            self.rows[job.name] = Traced(job.name, None, f"its process {how}; out of memory, or the model ended it")
            self.stop()
        self.begin()

    def stop(self) -> None:
        """End the process, where one runs."""
        child, self.child = self.child, None
        if child is not None:
            child.stop()


# -- in the child ------------------------------------------------------------------------------------------------------


class Tracer:
    """Profiles jobs in its working folder, whose own packages come first; this memwall is imported already."""

    def __init__(self) -> None:
        self._folder = Path.cwd()
        with contextlib.suppress(ValueError):
            sys.path.remove(HOME)
        # a checkout's own packages: in the folder and those above it up to the repository's, each with its src
        above = [p for p in (self._folder, *self._folder.parents) if p.is_relative_to(_top(self._folder))]
        sys.path[:0] = [str(place) for one in above for place in (one, one / "src") if place.is_dir()]

    def __call__(self, job: Job, avoid: Path | None) -> Traced:
        import torch

        with contextlib.redirect_stdout(sys.stderr):
            torch.set_default_dtype(torch.float32)  # the model before may have set others for the whole process
            torch.set_default_device(None)
            torch.set_grad_enabled(True)
            row = _trace(job)
        return row if avoid is None else replace(row, foreign=_loaded_from(avoid, self._folder))


def _top(folder: Path) -> Path:
    """The top of a folder's repository; the folder itself outside of any."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)


def _trace(job: Job) -> Traced:
    """One workload profiled, with its graph breaks where they are asked for or where it reads its own data."""
    notes: list[str] = []
    options = dict(job.options)
    sizes = {key: options.pop(key) for key in ("batch", "seq", "input_specs") if key in options}
    try:
        workload = resolve(job.target, **sizes, mode=options.get("mode", "inference"))
    except MemwallError as error:  # one that the user's code raised has a cause
        return Traced(job.name, None, str(error), absent=error.__cause__ is None)
    try:
        found = _profile(workload, job, options, notes)
        count = distinct_ops(found.graph) if job.breaks or notes else 0
        if count > MOST_UNASKED and not job.asked:
            notes.append(f"no capture: TorchDynamo would take {count:,} ops one by one")
        elif job.breaks or notes:
            found = with_capture(found, workload, options)
            captured = capture_of(found.capture)
            if captured is not None and captured.failure:
                notes.append(f"TorchDynamo captures nothing: {captured.failure}")
    except MemwallError as error:
        return Traced(job.name, None, str(error))
    except (SystemExit, GeneratorExit, Exception) as error:
        return Traced(job.name, None, str(blame(error, f"running {job.target}")))
    return Traced(job.name, found, notes=tuple(notes), real=bool(options.get("real")))


def _profile(workload: Workload, job: Job, options: dict[str, Any], notes: list[str]) -> Profile:
    """The profile; on real tensors where the model reads them and they are not too many."""
    try:
        return profile(workload, gpu=job.gpus, policy=job.policies, **options)
    except NeedsData as error:
        from memwall.frontend.torch.build import build_module

        module = build_module(workload.model, "meta", lambda message: None)
        if sum(p.numel() * p.element_size() for p in module.parameters()) > REAL_BYTES:
            raise
        options["real"] = True
        notes.append(f"traced on real tensors: {str(error).partition(';')[0]}")
        return profile(workload, gpu=job.gpus, policy=job.policies, **options)


def _loaded_from(avoid: Path, folder: Path) -> tuple[str, ...]:
    """Modules' files under ``avoid``, relative to it, that are neither installed packages nor memwall's own."""
    found = []
    home, top = Path(__file__).parents[1], _top(folder)
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    for path in map(_resolved, (file for file in files if isinstance(file, str))):
        if path.is_relative_to(avoid) and not (path.is_relative_to(top) or path.is_relative_to(home)):
            inside = path.relative_to(avoid)
            if not {"site-packages", "dist-packages"} & set(inside.parts):
                found.append(inside.as_posix())
    return tuple(sorted(found))


_resolved = functools.cache(lambda file: Path(file).resolve())
