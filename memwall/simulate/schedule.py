"""Plan × Gpu → Schedule: the launch queue, what is still in L2, and the memory peak.

The launch queue: the CPU issues ops one after another, ``dispatch_s`` each in the forward pass and less in the others;
further launches of an op follow at the GPU's own pace. The GPU runs them in order and waits when none has been issued.
The wait is charged to the kernel that was late, so a run of tiny ops is overhead-bound as a whole.

L2 residency: a storage that was touched is taken to be in L2 as long as no more bytes than L2 holds have moved since.
No kernel is made faster by it than its ``bound_s``, which knows no residency unless all that the kernel touches fits.

On a CPU (a spec with ``[cpu]``) the terms are those of :mod:`memwall.perfmodel.cpu`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from memwall.core.graph import Graph, Storage
from memwall.fusion import Group, Plan
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops.registry import OP_CLASSES
from memwall.perfmodel.cpu import predict_on_cpu
from memwall.perfmodel.roofline import Estimate, Prediction, peak_compute_s, predict_cost

#: The CPU's time to issue an op of a phase, relative to the forward pass: launch after launch of a ResNet-50 step on a
#: V100 (torch-tb-profiler's sample trace: 63, 57 and 37 us, the profiler's own time in all three)
_DISPATCH = {"forward": 1.0, "backward": 0.9, "optimizer": 0.6}

#: Classes whose FLOPs count for MFU: the model's matrix work.
MODEL_CLASSES = ("contraction", "convolution", "attention")


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """Device memory at the moment when most is alive, in bytes. Buffers count as parameters, inputs as activations."""

    parameters: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """Bytes alive at the peak."""
        return self.parameters + self.gradients + self.optimizer_state + self.activations


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
        """Seconds per wall: ``compute``, ``bandwidth``, ``overhead``, each kernel whole under what limits it."""
        total = dict.fromkeys(("compute", "bandwidth", "overhead"), 0.0)
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
    memo: dict[tuple[int, int], Prediction] = {}
    peaks: dict[int, float] = {}
    spread: dict[str, list[float]] = {}
    kernels = []
    issued_s = gpu_s = time_sum = bound_sum = matrix_s = 0.0
    l2_bytes = gpu.l2_bytes
    for index, group in enumerate(plan.groups):
        cost = group.cost
        name, op_class = context.labels[index]
        resident = sum([n for n, distance in context.reuse[index] if distance <= l2_bytes])
        known = memo.get((context.costs[index], resident)) if gpu.cpu is None else None
        if known is None:
            if gpu.cpu is not None:
                known = predict_on_cpu(graph, (*group.op_ids, *group.recomputes), group.cost, gpu, context.reuse[index])
            else:
                known = memo[context.costs[index], resident] = predict_cost(cost, gpu, resident)
        own_issue_s = issue_s(gpu, context.phases[index], cost.kernels)
        issued_s += own_issue_s
        wait_s = issued_s - gpu_s if issued_s > gpu_s else 0.0
        time_s = known.time_s + wait_s
        kernels.append(Estimate(
            index, name, group.op_ids, op_class, context.flops[index], cost.read_bytes, cost.write_bytes,
            known.bound_s, known.compute_s, known.memory_s, known.overhead_s + wait_s,
            known.low_s + wait_s, known.high_s + wait_s, cost.kernels, group.recomputes, own_issue_s,
        ))  # fmt: skip
        gpu_s += time_s
        time_sum += time_s
        bound_sum += known.bound_s
        around = spread.setdefault(op_class, [0.0, 0.0])
        around[0] += known.time_s - known.low_s
        around[1] += known.high_s - known.time_s
        if op_class in MODEL_CLASSES:
            if id(cost) not in peaks:
                peaks[id(cost)] = _matrix_s(group, cost, gpu)
            matrix_s += peaks[id(cost)]
    down_s, up_s = (math.sqrt(sum(around[side] ** 2 for around in spread.values())) for side in (0, 1))
    totals = Totals(
        bound_sum, time_sum, context.kernels, context.total_flops, context.dram_bytes,
        context.memory.total, matrix_s / time_sum if time_sum else 0.0,
        max(time_sum - down_s, bound_sum), time_sum + up_s,
    )  # fmt: skip
    return Schedule(gpu, plan.policy, tuple(kernels), totals, context.memory, graph_index, plan)


def issue_s(gpu: Gpu, phase: str, launches: int) -> float:
    """CPU seconds to issue an op of a phase; the launches after its first go out as fast as the GPU takes them."""
    return gpu.dispatch_s * _DISPATCH[phase] + (launches - 1) * min(gpu.launch_overhead_s, gpu.dispatch_s)


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


def reuse_distances(graph: Graph, plan: Plan) -> list[tuple[tuple[int, int], ...]]:
    """For each group, (bytes, distance) of every read of a storage touched before.

    The distance is the number of bytes that kernels moved from the start of the kernel that last touched the storage to
    the start of this one: the bytes are in an LRU cache of at least that size.
    """
    values = graph.values
    touched_at: dict[int, int] = {}
    moved = 0
    result = []
    for group in plan.groups:
        hits = []
        for value_id in dict.fromkeys(group.reads):
            value = values[value_id]
            last = touched_at.get(value.storage)
            if last is not None:
                hits.append((value.spec.nbytes, moved - last))
        for value_id in (*group.reads, *group.writes):
            touched_at[values[value_id].storage] = moved
        moved += group.cost.bytes + group.cost.extra_bytes
        result.append(tuple(hits))
    return result


def memory_peak(graph: Graph, plan: Plan) -> MemoryPeak:
    """The moment of :func:`memory_levels` when most bytes are alive."""
    return MemoryPeak(*max(memory_levels(graph, plan), key=sum))


def memory_levels(graph: Graph, plan: Plan) -> Iterator[tuple[int, int, int, int]]:
    """Walk the groups: bytes alive before the first, then for each group while it runs and after it, in the order of
    the fields of :class:`MemoryPeak`.

    Parameters, buffers, inputs and optimizer state live throughout (a training step in steady state). Gradients live
    from their first write to the end, as do the outputs. Any other storage lives from the first group that touches it
    to the last.
    """
    values = graph.values
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, group in enumerate(plan.groups):
        for value_id in (*group.reads, *group.writes):
            number = values[value_id].storage
            first.setdefault(number, index)
            last[number] = index
    kept = {values[i].storage for i in graph.outputs}
    live = [0, 0, 0, 0]
    births: dict[int, list[Storage]] = {}
    deaths: dict[int, list[Storage]] = {}
    for storage in graph.storages:
        if storage.role in _PERSISTENT:
            live[_FIELD[storage.role]] += storage.nbytes
        elif storage.id in first:
            births.setdefault(first[storage.id], []).append(storage)
            if storage.role != "gradient" and storage.id not in kept:
                deaths.setdefault(last[storage.id], []).append(storage)
    yield _level(live)
    for index in range(len(plan.groups)):
        for born in births.get(index, ()):
            live[_FIELD[born.role]] += born.nbytes
        yield _level(live)
        for dead in deaths.get(index, ()):
            live[_FIELD[dead.role]] -= dead.nbytes
        yield _level(live)


def _level(live: Sequence[int]) -> tuple[int, int, int, int]:
    parameters, gradients, optimizer_state, activations = live
    return parameters, gradients, optimizer_state, activations


_PERSISTENT = frozenset(("parameter", "buffer", "input", "optimizer_state"))
#: role of a storage -> which field of MemoryPeak counts it
_FIELD = {"parameter": 0, "buffer": 0, "gradient": 1, "optimizer_state": 2, "input": 3, "activation": 3}


def total_cost(costs: Sequence[Cost]) -> Cost:
    """The sum of some costs."""
    return sum(costs, start=Cost(kernels=0))
