"""The modeled step on a clock, in whole nanoseconds: what the CPU issues, what the device runs, and what is alive.

The time that a kernel waits for the CPU (``wait_s``, part of its ``overhead_s``) is a gap in front of it here. Only
what is alive needs the plan: a saved schedule of a compiler, whose plan cannot be made again, has no memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memwall.analysis.explanation import with_plan
from memwall.core.graph import Graph
from memwall.fusion import Plan
from memwall.perfmodel.roofline import Estimate
from memwall.record.kernels import kernel_module, kernel_phase
from memwall.record.profile import Profile
from memwall.simulate.memory import MemoryPeak, memory_levels
from memwall.simulate.schedule import Schedule

#: a module and the numbers behind it: ``layers.0.attn`` is ``layers.0`` and ``attn``
_STEP = re.compile(r"[^.]+(?:\.\d+(?![^.]))*")


@dataclass(frozen=True, slots=True)
class Span:
    """From ``start_ns`` up to ``end_ns``, after the start of the step."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Scope:
    """A phase (``depth`` 0), or a module within the scopes around it, while its kernels run without another between."""

    name: str
    depth: int
    span: Span


@dataclass(frozen=True)
class Timeline:
    """One schedule on a clock. ``launches[i]`` and ``runs[i]`` are those of ``kernels[i]``; no two of a kind overlap.

    ``scopes`` are in the order in which they open. ``memory`` holds the bytes alive from a nanosecond on; it is empty
    where the plan is not known.
    """

    launches: tuple[Span, ...]
    runs: tuple[Span, ...]
    scopes: tuple[Scope, ...]
    memory: tuple[tuple[int, MemoryPeak], ...]


def timeline(profile: Profile, schedule: Schedule) -> Timeline:
    """The timeline of one of the profile's schedules; its last run ends at ``totals.time_s``."""
    launches, runs = _queue(schedule.kernels)
    paths = [
        (kernel_phase(profile, schedule, kernel), *_STEP.findall(kernel_module(profile, schedule, kernel)))
        for kernel in schedule.kernels
    ]
    plan = with_plan(profile, schedule).plan
    memory = [] if plan is None else _memory(profile.graphs[schedule.graph], plan, runs)
    if max((level.total for _, level in memory), default=0) != schedule.totals.peak_memory_bytes:
        memory = []  # an older memwall's record, which counted otherwise
    return Timeline(launches, runs, tuple(_scopes(paths, runs)), tuple(memory))


def _queue(kernels: Iterable[Estimate]) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    launches, runs = [], []
    issued_s = free_s = 0.0
    for kernel in kernels:
        launches.append(_span(issued_s, issued_s + kernel.issue_s))
        issued_s += kernel.issue_s
        start_s = free_s + kernel.wait_s
        free_s += kernel.time_s
        runs.append(_span(start_s, free_s))
    return tuple(launches), tuple(runs)


def _span(start_s: float, end_s: float) -> Span:
    """Rounding keeps the order of times, so what did not overlap does not."""
    return Span(round(start_s * 1e9), round(end_s * 1e9))


def _scopes(paths: Iterable[Sequence[str]], runs: Iterable[Span]) -> list[Scope]:
    """Neighbours share the scopes that their paths begin with."""
    found: list[Scope] = []
    starts: list[tuple[str, int, int]] = []  # name, start and place in ``found`` of each open scope
    end_ns = 0

    def close(depth: int) -> None:
        while len(starts) > depth:
            name, start_ns, place = starts.pop()
            found[place] = Scope(name, len(starts), Span(start_ns, end_ns))

    for path, run in zip(paths, runs, strict=True):
        shared = 0
        while shared < min(len(path), len(starts)) and path[shared] == starts[shared][0]:
            shared += 1
        close(shared)
        for name in path[shared:]:
            starts.append((name, run.start_ns, len(found)))
            found.append(Scope(name, len(starts) - 1, run))
        end_ns = run.end_ns
    close(0)
    return found


def _memory(graph: Graph, plan: Plan, runs: Sequence[Span]) -> list[tuple[int, MemoryPeak]]:
    """Changes of what is alive; what dies as a kernel ends is gone when the next one starts at the same time."""
    levels = (MemoryPeak(*level) for level in memory_levels(graph, plan))
    points = [(0, next(levels))]
    for run, during, after in zip(runs, levels, levels, strict=True):
        if points[-1][0] == run.start_ns:
            points.pop()
        if not points or points[-1][1] != during:
            points.append((run.start_ns, during))
        if after != during:
            points.append((run.end_ns, after))
    return points
