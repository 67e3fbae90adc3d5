"""Profile → the runs of each device, and executors compared on the same groups of ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from memwall.analysis.validation.pairs import Pair, Run, geomean
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
        """The ratio of the sums."""
        return self.versus_seconds / self.seconds


@dataclass(frozen=True)
class Device:
    """All that was measured on one device and modeled as one GPU."""

    name: str
    gpu: str
    runs: tuple[Run, ...]
    graph: Graph

    @property
    def executors(self) -> dict[str, Run]:
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
            eager = _sum([part for part in parts if part]) if parts and all(parts) else None
            groups.append(GroupTimes(pair, {"eager": eager, **times} if eager else times))
        return tuple(sorted(groups, key=lambda g: -max(t.median_s for t in g.times.values()) * g.pair.kernel.repeats))

    @cached_property
    def same_groups(self) -> tuple[SameGroups, ...]:
        """Each executor compared with those before it, on the same groups."""
        return tuple(filter(None, (_same_groups(self.groups, *sides) for sides in VERSUS)))


# -- from a profile ----------------------------------------------------------------------------------------------------


def measurements(profile: Profile) -> tuple[Measurement, ...]:
    """The measurements of a record.

    Raises:
        BadRecord: one is not as the format says.
    """
    return tuple(Measurement.from_dict(record, f"measurements[{i}]") for i, record in enumerate(profile.measurements))


def devices(profile: Profile) -> tuple[Device, ...]:
    """What was measured, device by device, in the order of the record; within one eager first."""
    runs: dict[tuple[str, str], list[Run]] = {}
    for measurement in measurements(profile):
        run = _run(profile, measurement)
        runs.setdefault((measurement.device, measurement.gpu), []).append(run)
    return tuple(
        Device(name, gpu, tuple(sorted(found, key=lambda run: ORDER.index(run.measurement.executor))),
               profile.graphs[_graph_number(profile, found[0].measurement)])
        for (name, gpu), found in runs.items()
    )  # fmt: skip


def _simulation(profile: Profile, measurement: Measurement) -> Schedule | None:
    wanted = (measurement.gpu, measurement.policy)
    return next((s for s in profile.simulations if (s.gpu.name, s.policy) == wanted), None)


def _graph_number(profile: Profile, measurement: Measurement) -> int:
    """The graph that ran: that of the simulation on the same GPU."""
    return next((s.graph for s in profile.simulations if s.gpu.name == measurement.gpu), 0)


def _run(profile: Profile, measurement: Measurement) -> Run:
    graph = profile.graphs[_graph_number(profile, measurement)]
    schedule = _simulation(profile, measurement)
    pairs = tuple(_pair(graph, kernel, measurement) for kernel in measurement.kernels)
    return Run(measurement, pairs, len(schedule.kernels) if schedule else None)


def _pair(graph: Graph, kernel: MeasuredKernel, measurement: Measurement) -> Pair:
    ops = [graph.ops[i] for i in sorted(kernel.op_ids) if i < len(graph.ops)]
    return Pair(
        kernel=kernel,
        op_names=tuple(op.name for op in ops),
        dtype=main_dtype(graph, ops),
        phase=ops[-1].phase if ops else "",
        module=common_module([op.module for op in ops]) if ops else "",
        shapes=shapes_text(graph.values[i].spec for op in ops for i in op.inputs),
        copy_bytes_per_s=measurement.copy_bytes_per_s,
    )


def main_dtype(graph: Graph, ops: Iterable[Op]) -> str:
    """The dtype of most of the bytes that ops read and write; a floating one if there is any."""
    moved: dict[str, int] = {}
    for value_id in dict.fromkeys(i for op in ops for i in (*op.inputs, *op.outputs)):
        spec = graph.values[value_id].spec
        moved[spec.dtype] = moved.get(spec.dtype, 0) + spec.nbytes
    floating = {dtype: nbytes for dtype, nbytes in moved.items() if "float" in dtype}
    known = floating or moved
    return min(known, key=lambda dtype: (-known[dtype], dtype), default="")


# -- the same groups under several executors ---------------------------------------------------------------------------


def _same_work(graph: Graph, op_id: int) -> tuple[Any, ...]:
    """The identity of an op's work: its name, tensors and attributes."""
    op, values = graph.ops[op_id], graph.values
    return (
        op.name, tuple(values[i].spec for i in op.inputs), tuple(values[i].spec for i in op.outputs), op.arguments,
        repr(op.attributes),
    )  # fmt: skip


def _eager_lookup(graph: Graph, run: Run) -> Callable[[int], Timing | None]:
    """op id -> the timing of its eager kernel, or of one that does the same."""
    by_op: dict[int, Timing] = {}
    by_work: dict[tuple[Any, ...], Timing] = {}
    for pair in run.measured:
        if len(pair.kernel.op_ids) == 1 and pair.kernel.op_ids[0] < len(graph.ops) and pair.timing:
            by_op[pair.kernel.op_ids[0]] = pair.timing
            by_work.setdefault(_same_work(graph, pair.kernel.op_ids[0]), pair.timing)

    def find(op_id: int) -> Timing | None:
        if op_id in by_op or op_id >= len(graph.ops):
            return by_op.get(op_id)
        return by_work.get(_same_work(graph, op_id))

    return find


def _sum(parts: Sequence[Timing]) -> Timing:
    """The sum of timings; the ends of the intervals are added, which makes the interval wide."""
    return Timing(
        sum(t.median_s for t in parts), sum(t.low_s for t in parts), sum(t.high_s for t in parts),
        min(t.samples for t in parts), sum(t.min_s for t in parts), sum(t.max_s for t in parts),
    )  # fmt: skip


def _same_groups(groups: Sequence[GroupTimes], executor: str, versus: str) -> SameGroups | None:
    both = [group for group in groups if group.ratio(executor, versus) is not None]
    if not both:
        return None
    ratios = [ratio for group in both if (ratio := group.ratio(executor, versus)) is not None]
    return SameGroups(
        executor, versus, len(both), sum(g.times[executor].median_s * g.pair.kernel.repeats for g in both),
        sum(g.times[versus].median_s * g.pair.kernel.repeats for g in both), geomean(ratios), min(ratios),
        sum(g.is_slower(executor, versus) for g in both),
    )  # fmt: skip


# -- on a roofline -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
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
        """FLOPs over modeled time."""
        return self.flops / self.modeled_s

    @property
    def measured_flop_per_s(self) -> float:
        """FLOPs over measured time."""
        return self.flops / self.measured_s


def measured_points(profile: Profile, schedule: Schedule) -> tuple[Point, ...]:
    """The kernels measured for a simulation's GPU and policy, largest share first; those without FLOPs are left out."""
    found = []
    for measurement in measurements(profile):
        if (measurement.gpu, measurement.policy) == (schedule.gpu.name, schedule.policy):
            run = _run(profile, measurement)
            found += [_point(run, pair) for pair in run.measured if _has_place(pair.kernel)]
    return tuple(sorted(found, key=lambda p: (-p.share, p.executor, p.name)))


def _has_place(kernel: MeasuredKernel) -> bool:
    return bool(kernel.flops and kernel.bytes and kernel.modeled_s)


def _point(run: Run, pair: Pair) -> Point:
    k = pair.kernel
    assert pair.measured_s is not None
    return Point(
        run.measurement.executor, k.name, k.op_class, k.flops / k.bytes, k.modeled_s, pair.measured_s, k.flops,
        pair.step_s / run.total.measured_s,
    )  # fmt: skip
