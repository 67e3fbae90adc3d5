"""Plan × Gpu → Schedule: every kernel's estimate in launch order, and the sums over them.

A storage that was touched is taken to be in L2 as long as no more bytes than L2 holds have moved since
(:func:`memwall.simulate.memory.reuse_distances`). No kernel is made faster by it than its ``bound_s``, which knows no
residency unless all that the kernel touches fits. :mod:`memwall.simulate.launch_queue` says how long each kernel waits
for the CPU.

On a CPU (a spec with ``[cpu]``) the terms are those of :mod:`memwall.perfmodel.cpu`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from memwall.core.graph import Graph
from memwall.fusion import Group, Plan
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops.registry import OP_CLASSES
from memwall.perfmodel.cpu import predict_on_cpu
from memwall.perfmodel.roofline import WALLS, Estimate, Prediction, peak_compute_s, predict_cost
from memwall.simulate.launch_queue import issue_s, queue
from memwall.simulate.memory import MemoryPeak, memory_peak, reuse_distances

#: Classes whose FLOPs count for MFU: the model's matrix work.
MODEL_CLASSES = ("contraction", "convolution", "attention")


@dataclass(frozen=True)
class Totals:
    """One policy on one GPU, summed over its kernels.

    ``low_s`` and ``high_s`` enclose ``time_s``: the model is taken to err alike on all kernels of an op class and
    independently from class to class.
    """

    bound_s: float
    time_s: float
    kernels: int
    flops: int
    dram_bytes: int
    peak_memory_bytes: int
    mfu: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class Schedule:
    """The kernels of one plan on one GPU, in launch order. ``graph`` numbers the profile's graph that was simulated.

    ``plan`` is what was simulated; None of a schedule that was read from a record, which does not hold it.
    """

    gpu: Gpu
    policy: str
    kernels: tuple[Estimate, ...]
    totals: Totals
    memory: MemoryPeak
    graph: int = 0
    plan: Plan | None = field(default=None, compare=False, repr=False)

    @property
    def mbu(self) -> float:
        """Model bandwidth utilization: compulsory DRAM bytes over what the datasheet bandwidth moves in ``time_s``."""
        moved = self.totals.time_s * self.gpu.dram_bytes_per_s
        return self.totals.dram_bytes / moved if moved else 0.0

    @property
    def fits(self) -> bool:
        """Whether the peak fits the memory of the GPU."""
        return self.totals.peak_memory_bytes <= self.gpu.dram_bytes

    def time_by_wall(self) -> dict[str, float]:
        """Seconds per wall, each kernel whole under what limits it."""
        total = dict.fromkeys(WALLS, 0.0)
        for kernel in self.kernels:
            total[kernel.limited_by] += kernel.time_s
        return total


def simulate(
    graph: Graph, plan: Plan, gpu: Gpu, *, context: PlanContext | None = None, graph_index: int = 0
) -> Schedule:
    """Run a plan on a modeled GPU.

    ``context`` holds what depends on the plan alone; pass one to simulate several GPUs without recomputing it.
    """
    context = context or PlanContext.of(graph, plan)
    known = _predictions(graph, plan, gpu, context)
    issues = [issue_s(gpu, phase, g.cost.kernels) for phase, g in zip(context.phases, plan.groups, strict=True)]
    waits, time_s = queue(zip(issues, [k.time_s for k in known], strict=True))
    kernels = tuple(
        Estimate(
            id=index, name=context.labels[index][0], op_ids=group.op_ids, op_class=context.labels[index][1],
            flops=context.flops[index], read_bytes=group.cost.read_bytes, write_bytes=group.cost.write_bytes,
            bound_s=of.bound_s, compute_s=of.compute_s, memory_s=of.memory_s, overhead_s=of.overhead_s + wait_s,
            low_s=of.low_s + wait_s, high_s=of.high_s + wait_s, launches=group.cost.kernels,
            recomputes=group.recomputes, issue_s=issued_s, wait_s=wait_s,
        )
        for index, (group, of, issued_s, wait_s) in enumerate(zip(plan.groups, known, issues, waits, strict=True))
    )  # fmt: skip
    totals = _totals(plan, gpu, context, known, time_s)
    return Schedule(gpu, plan.policy, kernels, totals, context.memory, graph_index, plan)


def _predictions(graph: Graph, plan: Plan, gpu: Gpu, context: PlanContext) -> list[Prediction]:
    """Each kernel once it was issued; equal costs with as many bytes in L2 are predicted once."""
    if gpu.cpu is not None:
        return [
            predict_on_cpu(graph, (*group.op_ids, *group.recomputes), group.cost, gpu, reuse)
            for group, reuse in zip(plan.groups, context.reuse, strict=True)
        ]
    memo: dict[tuple[int, int], Prediction] = {}
    l2_bytes, found = gpu.l2_bytes, []
    for group, number, reuse in zip(plan.groups, context.costs, context.reuse, strict=True):
        resident = sum([n for n, distance in reuse if distance <= l2_bytes])
        known = memo.get((number, resident))
        if known is None:
            known = memo[number, resident] = predict_cost(group.cost, gpu, resident)
        found.append(known)
    return found


def _totals(plan: Plan, gpu: Gpu, context: PlanContext, known: Sequence[Prediction], time_s: float) -> Totals:
    peaks: dict[int, float] = {}
    spread: dict[str, list[float]] = {}
    bound_s = matrix_s = 0.0
    for group, (_, op_class), kernel in zip(plan.groups, context.labels, known, strict=True):
        bound_s += kernel.bound_s
        around = spread.setdefault(op_class, [0.0, 0.0])
        around[0] += kernel.time_s - kernel.low_s
        around[1] += kernel.high_s - kernel.time_s
        if op_class in MODEL_CLASSES:
            if id(group.cost) not in peaks:
                peaks[id(group.cost)] = _matrix_s(group, group.cost, gpu)
            matrix_s += peaks[id(group.cost)]
    down_s, up_s = (math.sqrt(sum(around[side] ** 2 for around in spread.values())) for side in (0, 1))
    return Totals(
        bound_s, time_s, context.kernels, context.total_flops, context.dram_bytes, context.memory.total,
        matrix_s / time_s if time_s else 0.0, max(time_s - down_s, bound_s), time_s + up_s,
    )  # fmt: skip


@dataclass(frozen=True)
class PlanContext:
    """What a plan determines on any GPU: names, sums, the memory peak and the reuse distance of each read."""

    labels: Sequence[tuple[str, str]]
    #: the number of each kernel's cost; equal costs have one
    costs: Sequence[int]
    phases: Sequence[str]
    flops: Sequence[int]
    reuse: Sequence[tuple[tuple[int, int], ...]]
    memory: MemoryPeak
    kernels: int
    total_flops: int
    dram_bytes: int

    @classmethod
    def of(cls, graph: Graph, plan: Plan) -> PlanContext:
        """Derive the context of a plan."""
        flops_of: dict[int, int] = {}
        flops = []
        for group in plan.groups:
            key = id(group.cost)
            if key not in flops_of:
                flops_of[key] = group.cost.total_flops
            flops.append(flops_of[key])
        return cls(
            labels=[_label(graph, group) for group in plan.groups],
            costs=_numbered([group.cost for group in plan.groups]),
            phases=[graph.ops[group.op_ids[0]].phase for group in plan.groups],
            flops=flops,
            reuse=reuse_distances(graph, plan),
            memory=memory_peak(graph, plan),
            kernels=sum(group.cost.kernels for group in plan.groups),
            total_flops=sum(flops),
            dram_bytes=sum(group.cost.bytes for group in plan.groups),
        )


def _numbered(costs: Sequence[Cost]) -> list[int]:
    """One number for each cost, the same for equal ones."""
    by_id: dict[int, int] = {}
    by_value: dict[tuple[object, ...], int] = {}
    for cost in costs:
        if id(cost) not in by_id:
            flops = tuple(cost.flops.items())
            value = (flops, cost.read_bytes, cost.write_bytes, cost.extra_bytes, cost.extra_flops, cost.least_flops,
                     cost.kernels, cost.works)  # fmt: skip
            by_id[id(cost)] = by_value.setdefault(value, len(by_value))
    return [by_id[id(cost)] for cost in costs]


def _matrix_s(group: Group, cost: Cost, gpu: Gpu) -> float:
    """Seconds at the peaks; of a group that holds more than a matrix kernel, its products alone."""
    if len(group.op_ids) > 1:
        cost = Cost({pipe: count for pipe, count in cost.flops.items() if pipe.engine == "tensor"})
    return peak_compute_s(cost, gpu)


def _label(graph: Graph, group: Group) -> tuple[str, str]:
    """The kernel's name, that of all its ops, and its class, that of its weightiest op."""
    ops = [graph.ops[i] for i in group.op_ids]
    if len(ops) == 1:
        return ops[0].name, ops[0].op_class
    op_class = min((op.op_class for op in ops), key=OP_CLASSES.index)
    return "+".join(op.name.removeprefix("aten.") for op in ops), op_class
