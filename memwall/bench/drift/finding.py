"""Runs → drift: for each kernel whether its latest time has left what it was before, and since which run.

A kernel *drifts* in one of two ways. It left its **scatter**: from some run on, the interval of its median (95 %,
:func:`memwall.bench.stats.timing`) meets the interval of no run before, always on the same side, and its median differs
by more than a least share from the median of those. It left its **modeled range**: from some run on, the interval of
its median lies outside of the 80 % interval that the model gave in that run, and it did not before. A kernel that lay
outside from its first run on is an error of the model and no drift; it is counted apart.

Runs on different days are not paired, as the runs of :mod:`memwall.bench.ab` are: what moved the machine as a whole
moves its kernels too. So the bandwidth of a large copy, timed in each run, and the clock are among what is said to have
changed. Runs of different devices, workloads or inputs are never compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from memwall.analysis.savings import group_name
from memwall.analysis.table import group_by
from memwall.analysis.validation import Pair
from memwall.bench.device import in_doubt
from memwall.bench.drift.runs import KernelKey, RecordedRun, shown_commit, told
from memwall.bench.origin import TIME
from memwall.bench.stats import scatter, side
from memwall.core.errors import UsageError, unknown
from memwall.core.git import git
from memwall.core.structure import one_line
from memwall.core.units import bandwidth, si
from memwall.core.version import __version__
from memwall.record.measurement import Timing

SCHEMA = "memwall.drift/1"

#: what of an environment tells no two runs apart: when it ran, what is told otherwise, and what is timed itself
_NOT_CHANGED = ("time", "commit", "changes", "note", "floor_s", "module_step")
#: characters of a condition that are told
_LONGEST = 60
#: two clocks, or two bandwidths of a copy, that differ by no more are one
_SAME_RATE = 0.02


@dataclass(frozen=True, slots=True)
class Departure:
    """Since when a kernel lies outside: ``way`` is ``slower`` or ``faster``; ``first`` the run from which on it does,
    by time, commit (empty outside of a repository) and torch; ``before`` the run before that one (empty: there is
    none) and ``changed`` what differs between the two."""

    way: str
    first: str
    commit: str
    torch: str
    before: str
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelDrift:
    """One kernel of one workload on one device over its runs. Seconds of one launch, the latest run's but for
    ``usual_s`` and its interval, which are of the runs before it drifted (None: it did not). ``modeled_low_s`` and
    ``modeled_high_s`` are the ends of the 80 % interval, None where the run has none."""

    workload: str
    configuration: str
    inputs: str
    device: str
    gpu: str
    executor: str
    kernel: str
    module: str
    phase: str
    shapes: str
    dtype: str
    repeats: int
    runs: int
    median_s: float
    low_s: float
    high_s: float
    usual_s: float | None
    usual_low_s: float | None
    usual_high_s: float | None
    modeled_s: float
    modeled_low_s: float | None
    modeled_high_s: float | None
    #: it left its scatter; it lies outside of its modeled range, whether it left it or always lay there
    left_scatter: Departure | None
    outside_range: Departure | None

    @property
    def drifted(self) -> Departure | None:
        """Since when it drifts, None where it does not; of both ways the scatter, which does not hang on a model."""
        left_range = self.outside_range if self.outside_range and self.outside_range.before else None
        return self.left_scatter or left_range

    @property
    def step_s(self) -> float:
        """Seconds of all equal kernels of a step."""
        return self.median_s * self.repeats

    @property
    def change(self) -> float | None:
        """The latest median over the median of the runs before it drifted, less 1."""
        return self.median_s / self.usual_s - 1 if self.usual_s else None


@dataclass(frozen=True, slots=True)
class Drift:
    """What a folder of runs says: its kernels, drifting ones first, of each kind the longest first. ``gone`` names
    kernels that the latest run has no time of, and the run before has."""

    runs: int
    first: str
    last: str
    since: str
    kernels: tuple[KernelDrift, ...]
    gone: tuple[str, ...] = ()
    schema: str = SCHEMA
    memwall_version: str = __version__

    @property
    def drifted(self) -> tuple[KernelDrift, ...]:
        return tuple(kernel for kernel in self.kernels if kernel.drifted)

    @property
    def always_outside(self) -> tuple[KernelDrift, ...]:
        """The kernels that lay outside of their modeled range in all runs: errors of the model."""
        return tuple(k for k in self.kernels if k.outside_range and not k.outside_range.before)


def find_drift(
    runs: Sequence[RecordedRun], *, workload: str | None = None, since: str | None = None, least: float = 0.05
) -> Drift:
    """What drifted in some runs.

    Args:
        runs: oldest first.
        workload, since, least: as in :class:`memwall.bench.question.DriftOptions`.

    Raises:
        UsageError: no run is of that workload, ``since`` is neither a date nor a commit of a run, or ``least`` is no
            share.
    """
    if not 0 < least < 1:
        raise UsageError(f"--least {least:g} is no share of a time; want one between 0 and 1, such as 0.05 for 5 %")
    names = dict.fromkeys(run.workload.name for run in runs)
    if workload is not None and workload not in names:
        raise unknown("run of a workload named", workload, names)
    chosen = [run for run in runs if workload in (None, run.workload.name)]
    begin = "" if since is None else _time_of(since, chosen)
    several = group_by(chosen, [run.series for run in chosen]).values()
    found = [kernel for series in several for kernel in _of_series(series, begin, least)]
    gone = [name for series in several for name in _gone(series, begin)]
    ordered = sorted(found, key=lambda kernel: (kernel.drifted is None, -kernel.step_s))
    files = {run.file for run in chosen}
    return Drift(len(files), chosen[0].time, chosen[-1].time, since or "", tuple(ordered), tuple(gone))


def _time_of(since: str, runs: Sequence[RecordedRun]) -> str:
    """The time from which on a run is looked at. Raises ``UsageError``."""

    def first_at(commit: str) -> str | None:
        known = len(commit) >= 4
        return next((run.time for run in runs if known and run.commit.startswith(commit.lower())), None)

    if time := first_at(since):
        return time
    try:
        when = datetime.fromisoformat(since)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC).strftime(TIME)
    except ValueError:
        pass
    code, commit = git(".", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{since}^{{commit}}")
    if not code and (time := first_at(commit)):
        return time
    what = f"no run is of the commit {commit[:12]}" if not code else "neither a date nor a commit of a run"
    raise UsageError(f"--since {since[:60]}: {what}; want one such as 2026-11-22, or the hash of a run's commit")


# -- one kernel --------------------------------------------------------------------------------------------------------


def _of_series(series: Sequence[RecordedRun], begin: str, least: float) -> list[KernelDrift]:
    """The kernels of the latest run over the runs of what it ran on the same device."""
    found = []
    for key in series[-1].kernels:
        rows = [(run, run.kernels[key]) for run in series if key in run.kernels]
        found.append(_of_kernel(key, rows, begin, least))
    return found


def _gone(series: Sequence[RecordedRun], begin: str) -> list[str]:
    """The kernels that the run before the latest has, and the latest has not: renamed, not run or failed."""
    if len(series) < 2 or series[-1].time < begin:
        return []
    before, latest = series[-2:]
    left = [pair for key, pair in before.kernels.items() if key not in latest.kernels]
    return [f"{group_name(pair.op_names or [pair.kernel.name])} of {latest.workload.name}" for pair in left]


def _of_kernel(key: KernelKey, rows: Sequence[tuple[RecordedRun, Pair]], begin: str, least: float) -> KernelDrift:
    run, pair = rows[-1]
    timings = [_timing(pair) for _, pair in rows]
    start = next((i for i, (each, _) in enumerate(rows) if each.time >= begin), len(rows))
    left = left_scatter(timings, max(start, 1), least)
    usual = left and (statistics.median(t.median_s for t in timings[:left]), *scatter(timings[:left]))
    outside = outside_range([each.fits * _range_side(pair) for each, pair in rows], start)
    timing, m, kernel = timings[-1], run.measurement, pair.kernel
    name, configuration, _, inputs = run.what
    _, phase, module, *_ = key
    usual_s, usual_low_s, usual_high_s = usual or (None, None, None)
    return KernelDrift(
        workload=name,
        configuration=configuration,
        inputs=inputs,
        device=m.device,
        gpu=m.gpu,
        executor=m.executor,
        kernel=group_name(pair.op_names or [kernel.name]),
        module=module,
        phase=phase,
        shapes=pair.shape,
        dtype=pair.dtype,
        repeats=kernel.repeats,
        runs=len(rows),
        median_s=timing.median_s,
        low_s=timing.low_s,
        high_s=timing.high_s,
        usual_s=usual_s,
        usual_low_s=usual_low_s,
        usual_high_s=usual_high_s,
        modeled_s=kernel.modeled_s,
        modeled_low_s=kernel.modeled_low_s,
        modeled_high_s=kernel.modeled_high_s,
        left_scatter=_departure(rows, left, side(timing, *usual[1:]) if usual else 0),
        outside_range=_departure(rows, outside, _range_side(pair)),
    )


def left_scatter(timings: Sequence[Timing], start: int, least: float) -> int | None:
    """The first run, not before ``start``, from which on all lie on one side of what the runs before it span, by more
    than a ``least`` share of their median; None where there is no such run."""
    for first in range(start, len(timings)):
        low_s, high_s = scatter(timings[:first])
        usual_s = statistics.median(t.median_s for t in timings[:first])
        sides = {side(t, low_s, high_s) * (abs(t.median_s / usual_s - 1) > least) for t in timings[first:]}
        if sides in ({1}, {-1}):
            return first
    return None


def outside_range(sides: Sequence[int], start: int) -> int | None:
    """The first run of the last ones in a row that lie on one side of their range (1 above, -1 below, 0 inside or not
    known); None where the latest is inside, or where they began before ``start``."""
    first = len(sides)
    while first and sides[first - 1] and sides[first - 1] == sides[-1]:
        first -= 1
    return first if start <= first < len(sides) else None


def _range_side(pair: Pair) -> int:
    if pair.low_s is None or pair.high_s is None:
        return 0
    return side(_timing(pair), pair.low_s, pair.high_s)


def _timing(pair: Pair) -> Timing:
    assert pair.timing is not None
    return pair.timing


# -- what changed ------------------------------------------------------------------------------------------------------


def _departure(rows: Sequence[tuple[RecordedRun, Pair]], first: int | None, where: int) -> Departure | None:
    """The departure at a run, to the side where the latest run lies (1 above); None where no run departs."""
    if first is None:
        return None
    run = rows[first][0]
    before = rows[first - 1] if first else None
    changed = _changes(_conditions(*before), _conditions(*rows[first])) if before else ()
    torch = told(run.measurement, "torch")
    way = "slower" if where > 0 else "faster"
    return Departure(way, run.time, shown_commit(run), torch, before[0].time if before else "", changed)


def _conditions(run: RecordedRun, pair: Pair) -> dict[str, Any]:
    """What a time depends on beside the kernel: name → text, or a rate in base units."""
    environment, sensors = run.measurement.environment, pair.kernel.sensors
    plain = {
        name: one_line(value, _LONGEST) for name, value in environment.items() if isinstance(value, (str, int, float))
    }
    return {
        "commit": shown_commit(run),
        **{name.replace("_", " "): text for name, text in plain.items() if name not in _NOT_CHANGED},
        "schedule": pair.kernel.schedule,
        "in doubt": ", ".join(in_doubt(sensors.flags)),
        "clock": sensors.clock_hz,
        "memory clock": sensors.memory_clock_hz,
        "copy": run.measurement.copy_bytes_per_s or None,
    }


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """``torch 2.11.0 -> 2.12.0``: each condition that differs."""
    found = []
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if isinstance(old, float) and isinstance(new, float):
            shown = bandwidth if name == "copy" else lambda value: si(value, "Hz")
            if abs(new - old) > _SAME_RATE * old:
                found.append(f"{name} {shown(old)} -> {shown(new)}")
        elif (old or new) and isinstance(old or "", str) and isinstance(new or "", str) and (old or "") != (new or ""):
            found.append(f"{name} {old or 'none'} -> {new or 'none'}")
    return tuple(found)
