"""Profile → the runs of each device, executors compared on the same groups of ops, and rows for other tools.

The eager time of a group is the sum over the eager kernels of its ops, found by op, else by an op that does the same to
tensors of the same shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from memwall.analysis.table import group_by
from memwall.analysis.validation.pairs import MeasuredRun, Pair, geomean
from memwall.core.graph import Graph, Op
from memwall.record.kernels import common_module, shapes_text
from memwall.record.measurement import MeasuredKernel, Measurement, Timing
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule

#: executors in the order in which they are read, and what each is compared with
ORDER = ("eager", "inductor", "generated")
VERSUS = (("generated", "eager"), ("generated", "inductor"), ("inductor", "eager"))


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """A group of ops of memwall's planner under each executor that ran it; eager as the sum of its ops' kernels."""

    pair: Pair
    times: Mapping[str, Timing]

    def ratio(self, executor: str, versus: str) -> float | None:
        """How many times faster one executor is than another; None if one has no time."""
        if executor not in self.times or versus not in self.times:
            return None
        return self.times[versus].median_s / self.times[executor].median_s

    def is_slower(self, executor: str, versus: str) -> bool:
        """Whether it is slower beyond noise: the intervals of the two medians do not meet."""
        return self.times[executor].low_s > self.times[versus].high_s

    def step_s(self, executor: str) -> float:
        return self.times[executor].median_s * self.pair.kernel.repeats


@dataclass(frozen=True, slots=True)
class SameGroups:
    """One executor next to another over the groups both ran. Seconds over all repeats; ratios above 1: faster."""

    executor: str
    versus: str
    groups: int
    seconds: float
    versus_seconds: float
    geomean: float
    worst: float
    slower: int

    @property
    def ratio(self) -> float:
        return self.versus_seconds / self.seconds


@dataclass(frozen=True)
class MeasuredDevice:
    """All that was measured on one device and modeled as one GPU."""

    name: str
    gpu: str
    runs: tuple[MeasuredRun, ...]
    graph: Graph

    @property
    def is_cpu(self) -> bool:
        """Whether it is a machine's CPU, whose ceilings ``memwall calibrate`` measured."""
        return any(run.measurement.kind == "cpu" for run in self.runs)

    @property
    def executors(self) -> dict[str, MeasuredRun]:
        """The last run of each executor, in reading order."""
        return {run.measurement.executor: run for run in self.runs}

    @cached_property
    def groups(self) -> tuple[GroupTimes, ...]:
        """The groups of memwall's planner that an executor timed, longest first."""
        runs = self.executors
        eager_of = _eager_lookup(self.graph, runs["eager"]) if "eager" in runs else (lambda op_id: None)
        found: dict[tuple[int, ...], tuple[Pair, dict[str, Timing]]] = {}
        for executor in ("generated", "inductor"):
            for pair in runs[executor].measured if executor in runs else ():
                assert pair.timing is not None
                found.setdefault(pair.kernel.op_ids, (pair, {}))[1][executor] = pair.timing
        groups = []
        for op_ids, (pair, times) in found.items():
            parts = [eager_of(op_id) for op_id in op_ids]
            eager = {"eager": _sum([part for part in parts if part])} if parts and all(parts) else {}
            groups.append(GroupTimes(pair, {**eager, **times}))
        return tuple(sorted(groups, key=lambda group: -max(map(group.step_s, group.times))))

    @cached_property
    def same_groups(self) -> tuple[SameGroups, ...]:
        """Each executor compared with the executors before it, on the same groups."""
        found = []
        for sides in VERSUS:
            both = [group for group in self.groups if {*sides} <= group.times.keys()]
            ratios = [group.ratio(*sides) or 0.0 for group in both]
            if both:
                own_s, other_s = (sum(group.step_s(side) for group in both) for side in sides)
                slower = sum(group.is_slower(*sides) for group in both)
                found.append(SameGroups(*sides, len(both), own_s, other_s, geomean(ratios), min(ratios), slower))
        return tuple(found)


def _eager_lookup(graph: Graph, run: MeasuredRun) -> Callable[[int], Timing | None]:
    """op id -> the timing of its eager kernel, or of one that does the same."""
    timed = {pair.kernel.op_ids[0]: pair.timing for pair in run.measured if len(pair.kernel.op_ids) == 1}
    alike: dict[int, Timing | None] = {}
    for op_id, timing in timed.items():
        if op_id < len(graph.ops):
            alike.setdefault(graph.alike[op_id], timing)
    return lambda op_id: timed.get(op_id) or (alike.get(graph.alike[op_id]) if op_id < len(graph.ops) else None)


def _sum(parts: Sequence[Timing]) -> Timing:
    """The sum of timings; the ends of the intervals are added, which makes the interval wide."""
    return Timing(
        sum(t.median_s for t in parts),
        sum(t.low_s for t in parts),
        sum(t.high_s for t in parts),
        min(t.samples for t in parts),
        sum(t.min_s for t in parts),
        sum(t.max_s for t in parts),
    )


# -- from a profile ----------------------------------------------------------------------------------------------------


def measurements(profile: Profile) -> tuple[Measurement, ...]:
    """The measurements of a record. Raises BadRecord: one is not as the format says."""
    return tuple(Measurement.from_dict(record, f"measurements[{i}]") for i, record in enumerate(profile.measurements))


def devices(profile: Profile) -> tuple[MeasuredDevice, ...]:
    """What was measured, device by device, in the order of the record; within one eager first."""
    found = measurements(profile)
    return tuple(
        MeasuredDevice(
            name,
            gpu,
            tuple(_run(profile, m) for m in sorted(own, key=lambda m: ORDER.index(m.executor))),
            _graph(profile, gpu),
        )
        for (name, gpu), own in group_by(found, [(m.device, m.gpu) for m in found]).items()
    )


def _graph(profile: Profile, gpu: str) -> Graph:
    """The graph that ran: the graph of the simulation on the same GPU."""
    return profile.graphs[next((s.graph for s in profile.simulations if s.gpu.name == gpu), 0)]


def _run(profile: Profile, measurement: Measurement) -> MeasuredRun:
    graph, wanted = _graph(profile, measurement.gpu), (measurement.gpu, measurement.policy)
    schedule = next((s for s in profile.simulations if (s.gpu.name, s.policy) == wanted), None)
    pairs = tuple(_pair(graph, kernel, measurement) for kernel in measurement.kernels)
    return MeasuredRun(measurement, pairs, len(schedule.kernels) if schedule else None)


def _pair(graph: Graph, kernel: MeasuredKernel, measurement: Measurement) -> Pair:
    ops = [graph.ops[i] for i in sorted(kernel.op_ids) if i < len(graph.ops)]
    return Pair(
        f"memwall {measurement.executor}",
        measurement.gpu,
        kernel.op_class,
        main_dtype(graph, ops),
        kernel.modeled_s,
        kernel.timing.median_s if kernel.timing and kernel.status == "ok" else 0.0,
        kernel.bound_s,
        shapes_text(graph.values[i].spec for op in ops for i in op.inputs),
        kernel.modeled_low_s,
        kernel.modeled_high_s,
        kernel=kernel,
        op_names=tuple(op.name for op in ops),
        phase=ops[-1].phase if ops else "",
        module=common_module([op.module for op in ops]) if ops else "",
        copy_bytes_per_s=measurement.copy_bytes_per_s,
    )


def main_dtype(graph: Graph, ops: Iterable[Op]) -> str:
    """The dtype of most of the bytes that ops read and write; a floating one if there is any."""
    moved: Counter[str] = Counter()
    for spec in graph.specs(dict.fromkeys(i for op in ops for i in (*op.inputs, *op.outputs))):
        moved[spec.dtype] += spec.nbytes
    known = {dtype: nbytes for dtype, nbytes in moved.items() if "float" in dtype} or moved
    return min(known, key=lambda dtype: (-known[dtype], dtype), default="")


# -- on a roofline -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """A measured kernel on a roofline, with its modeled position. Seconds of one launch; ``share`` of the measured time
    of its executor, all repeats."""

    executor: str
    name: str
    op_class: str
    arithmetic_intensity: float
    modeled_s: float
    measured_s: float
    flops: int
    share: float

    @property
    def modeled_flop_per_s(self) -> float:
        return self.flops / self.modeled_s

    @property
    def measured_flop_per_s(self) -> float:
        return self.flops / self.measured_s


def measured_points(profile: Profile, schedule: Schedule) -> tuple[MeasuredPoint, ...]:
    """The kernels measured for a simulation's GPU and policy, largest share first; kernels without FLOPs are left
    out."""
    found = []
    for measurement in measurements(profile):
        if (measurement.gpu, measurement.policy) == (schedule.gpu.name, schedule.policy):
            run = _run(profile, measurement)
            for pair in run.measured:
                k = pair.kernel
                if k.flops and k.bytes and k.modeled_s:
                    found.append(
                        MeasuredPoint(
                            measurement.executor,
                            k.name,
                            k.op_class,
                            k.flops / k.bytes,
                            k.modeled_s,
                            pair.measured_s,
                            k.flops,
                            pair.step_s / run.total.measured_s,
                        )
                    )
    return tuple(sorted(found, key=lambda p: (-p.share, p.executor, p.name)))


# -- for other tools ---------------------------------------------------------------------------------------------------

#: Columns of :func:`rows`: seconds, bytes, FLOPs and Hz; of one launch, ``repeats`` of them in a step. ``error`` is
#: modeled over measured less 1, ``of_bound`` and ``of_copy`` are fractions, ``deviation`` is the worst distance from
#: float64 in units of the tolerance. Empty: not known.
COLUMNS = (
    "workload", "mode", "device", "kind", "gpu", "executor", "policy", "id", "name", "class", "dtype", "phase",
    "module", "shapes", "ops", "repeats", "flops", "bytes", "bound_s", "modeled_s", "measured_s", "low_s", "high_s",
    "min_s", "max_s", "samples", "error", "of_bound", "of_copy", "copy_bytes_per_s", "status", "reason", "deviation",
    "schedule", "flags", "clock_hz", "memory_clock_hz", "power_w", "temperature_c",
)  # fmt: skip


def rows(profile: Profile) -> list[dict[str, Any]]:
    """One row of ``COLUMNS`` per distinct measured kernel of each run; ``pandas.DataFrame(rows(profile))`` takes it."""
    return [
        dict(zip(COLUMNS, _cells(profile, run.measurement, pair), strict=True))
        for device in devices(profile)
        for run in device.runs
        for pair in run.pairs
    ]


def _cells(profile: Profile, m: Measurement, pair: Pair) -> tuple[Any, ...]:
    k, t, sensors = pair.kernel, pair.timing, pair.kernel.sensors
    spread = (t.median_s, t.low_s, t.high_s, t.min_s, t.max_s, t.samples) if t else (None,) * 6
    return (
        profile.workload.name,
        profile.workload.mode,
        m.device,
        m.kind,
        m.gpu,
        m.executor,
        m.policy,
        k.id,
        k.name,
        k.op_class,
        pair.dtype,
        pair.phase,
        pair.module,
        pair.shape,
        len(k.op_ids),
        k.repeats,
        k.flops,
        k.bytes,
        k.bound_s,
        k.modeled_s,
        *spread,
        *((pair.error, pair.of_bound, pair.of_copy) if t else (None,) * 3),
        m.copy_bytes_per_s or None,
        k.status,
        k.reason,
        k.error,
        k.schedule,
        "; ".join(sensors.flags),
        sensors.clock_hz,
        sensors.memory_clock_hz,
        sensors.power_w,
        sensors.temperature_c,
    )


def summary(profile: Profile) -> list[dict[str, Any]]:
    """The sums of each run as plain JSON types."""
    return [
        {
            "device": device.name,
            "gpu": device.gpu,
            "violations": sum(len(run.violations) for run in device.runs),
            "runs": [_run_summary(run) for run in device.runs],
            "same_groups": [
                {
                    "executor": c.executor,
                    "versus": c.versus,
                    "groups": c.groups,
                    "ratio": c.ratio,
                    "geomean": c.geomean,
                    "worst": c.worst,
                    "slower": c.slower,
                }
                for c in device.same_groups
            ],
        }
        for device in devices(profile)
    ]


def _run_summary(run: MeasuredRun) -> dict[str, Any]:
    m, total = run.measurement, run.total
    return {
        "executor": m.executor,
        "policy": m.policy,
        "kernels": total.kernels,
        "distinct": total.distinct,
        "modeled_s": total.modeled_s,
        "measured_s": total.measured_s,
        "error": total.error,
        "median_error": total.median_error,
        "of_bound": total.of_bound,
        "of_copy": total.of_copy,
        "streaming_of_copy": run.streaming_of_copy,
        "violations": len(run.violations),
        "flags": dict(run.flags),
        "step_measured_s": m.step.median_s if m.step else None,
        "step_modeled_s": m.step_modeled_s,
        "step_error": run.step_error,
        "complete": m.complete,
    }
