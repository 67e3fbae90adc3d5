"""Plan × Gpu → Schedule: every kernel's estimate in launch order, and the sums over them.

A touched storage counts as in L2 until more bytes than L2 holds have moved
(:func:`memwall.simulate.memory.reuse_distances`). No kernel gets faster than its ``bound_s``, which assumes no
residency unless all that the kernel touches fits. :mod:`memwall.simulate.launch_queue` says how long each kernel waits
for the CPU.

On a CPU (a spec with ``[cpu]``) the terms are from :mod:`memwall.perfmodel.cpu`. A TPU's arrays are padded
(:func:`memwall.perfmodel.tpu.padding`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import chain, repeat
from operator import add
from typing import Any, NamedTuple

from memwall.core.graph import Graph
from memwall.fusion import Group, Plan
from memwall.hardware.host import Host
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.perfmodel.cpu import predict_on_cpu
from memwall.perfmodel.roofline import WALLS, Estimate, Prediction, peak_compute_s, predict_cost
from memwall.perfmodel.tpu import laid_out, padding, requests
from memwall.simulate.launch_queue import QueuedKernel
from memwall.simulate.memory import MemoryPeak, reserved_bytes
from memwall.simulate.plan_context import AlikeKernels, Issued, PlanContext
from memwall.simulate.power import LONE, LOOPS, in_call, in_loop, is_held, multiplies
from memwall.simulate.streams import Needs, Overlap, sides_of


@dataclass(frozen=True)
class Totals:
    """One policy on one GPU, summed over its kernels. ``low_s`` and ``high_s`` enclose ``time_s``: model errors are
    assumed equal for all kernels of an op class and independent between classes and from the host's time."""

    bound_s: float
    time_s: float
    kernels: int
    flops: int
    dram_bytes: int
    peak_memory_bytes: int
    mfu: float
    low_s: float
    high_s: float
    #: of ``dram_bytes``, bytes that are read from L2, where earlier kernels left them
    resident_bytes: int = 0
    #: as ``mfu``, with what backward computes again of forward, fused attention's kernels their scores
    hfu: float = 0.0


class KernelTiming(NamedTuple):
    """When only a kernel's time matters: its wall, its seconds, and of these the seconds in which it waits for the
    CPU."""

    limited_by: str
    time_s: float
    wait_s: float

    @classmethod
    def of(cls, known: Prediction, wait_s: float, hidden_s: float = 0.0) -> KernelTiming:
        """The timing of a predicted kernel after a wait, a part of which other kernels hide."""
        if wait_s:
            link_s = known.link_s and known.link_s + wait_s
            known = replace(known, overhead_s=known.overhead_s + wait_s, link_s=link_s)
        return cls(known.limited_by, known.time_s - hidden_s, wait_s)


class Alone(NamedTuple):
    """A kernel by its first op: its seconds without waits, the CPU's seconds to issue it, its FLOPs, and the seconds of
    its matrix FLOPs at the peaks of their pipes; and both of what it does again of forward."""

    op: int
    time_s: float
    issue_s: float = 0.0
    flops: int = 0
    matrix_s: float = 0.0
    again: int = 0
    again_s: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """The kernels of one plan on one GPU, in launch order. ``graph`` numbers the profile's graph that was simulated;
    ``plan`` is what was simulated, None for a schedule from a record, which does not hold it."""

    gpu: Gpu
    policy: str
    kernels: Sequence[Estimate]
    totals: Totals
    memory: MemoryPeak
    graph: int = 0
    plan: Plan | None = field(default=None, compare=False, repr=False)
    #: how the CPU issues the kernels, one of :data:`memwall.simulate.issue.LAUNCHES`
    launch: str = "eager"
    #: the ops that no compiled graph holds
    outside: frozenset[int] = frozenset()

    @cached_property
    def timings(self) -> Sequence[KernelTiming]:
        """The wall and the time of each kernel, in launch order."""
        if isinstance(self.kernels, ScheduledKernels):
            return self.kernels.timings()
        return [KernelTiming(kernel.limited_by, kernel.time_s, kernel.wait_s) for kernel in self.kernels]

    @property
    def mbu(self) -> float:
        """Model bandwidth utilization: compulsory bytes that no kernel finds in L2, over what the datasheet bandwidth
        moves in ``time_s``."""
        moved = self.totals.time_s * self.gpu.dram_bytes_per_s
        return (self.totals.dram_bytes - self.totals.resident_bytes) / moved if moved else 0.0

    @property
    def reserved_bytes(self) -> int:
        """Device memory assumed for the context and the allocator."""
        return reserved_bytes(self.gpu, self.totals.peak_memory_bytes)

    @property
    def fits(self) -> bool:
        """Whether the peak, with what is assumed for the context and the allocator, fits the memory of the GPU."""
        return self.totals.peak_memory_bytes + self.reserved_bytes <= self.gpu.dram_bytes


def time_by_wall(kernels: Iterable[Any]) -> dict[str, float]:
    """Seconds per wall, each kernel, or row of kernels, counted whole under the wall that limits it."""
    total = dict.fromkeys(WALLS, 0.0)
    for kernel in kernels:
        total[kernel.limited_by] = total.get(kernel.limited_by, 0.0) + kernel.time_s
    return total


def simulate(
    graph: Graph,
    plan: Plan,
    gpu: Gpu,
    *,
    context: PlanContext | None = None,
    graph_index: int = 0,
    launch: str = "eager",
) -> Schedule:
    """Run a plan on a modeled GPU, its kernels issued in one of the ways of :data:`memwall.simulate.issue.LAUNCHES`.
    Each distinct kernel is predicted once; ``context`` holds what depends only on the plan, for simulating several
    GPUs."""
    context = context or PlanContext.of(graph, plan)
    known = _predictions(graph, as_run_again(gpu, context, launch), context)
    issued, host, ways = context.issued(launch), gpu.host, context.ways(gpu)
    steps = issued.steps(host, [each.time_s for each in known], is_lone=launch in ("call", "replay"))
    links, costs = context.links(gpu), [kind.group.cost for kind in context.kinds]
    needs = [*map(Needs, links, map(sides_of, known, costs, links, repeat(gpu)), ways)]
    ran = _queued(context, issued, steps, needs, launch)
    fast_s = slow_s = ran.time_s
    if host.varies:
        scaled = ([each.scaled(factor) for each in steps] for factor in (host.low, host.high))
        fast_s, slow_s = (_queued(context, issued, some, needs, launch).time_s for some in scaled)
    kernels = ScheduledKernels(plan, context, known, issued.seconds(host), ran)
    totals = _totals(gpu, context, known, ran.time_s, (fast_s, slow_s), ways)
    return Schedule(gpu, plan.policy, kernels, totals, context.memory, graph_index, plan, launch, plan.outside)


def as_launched(gpu: Gpu, launch: str) -> Gpu:
    """The GPU for kernels that are issued so: a CUDA graph of a step holds those too that a library launches one by
    one. Compiled code does not: TorchDynamo leaves recurrent layers out, and they take as long in KernelBench."""
    return replace(gpu, host=Host.uniform(0.0)) if launch == "graph" else gpu


def as_run_again(gpu: Gpu, context: PlanContext, launch: str) -> Gpu:
    """The GPU as kernels find it: as :func:`as_launched`, with the power that products have then."""
    launched = as_launched(gpu, launch)
    if gpu.cpu is not None or launch not in (*LOOPS, *LONE):
        return launched
    counted = multiplies if launch in LONE else is_held
    products = {n for n, kind in enumerate(context.kinds) if counted(kind.group.cost, gpu)}
    if not products:
        return launched
    if launch in LONE:
        return in_call(launched, sum(number in products for number in context.order))
    known = _predictions(context.graph, in_loop(launched), context)
    spent_s = {True: 0.0, False: 0.0}
    for number in context.order:
        spent_s[number in products] += known[number].time_s
    return in_loop(launched, spent_s[True], spent_s[False])


def _queued(
    context: PlanContext, issued: Issued, of_kind: Sequence[QueuedKernel], needs: Sequence[Needs], launch: str
) -> Overlap:
    """How the kernels wait and overlap; by kind of them what each needs."""
    steps, order = [of_kind[number] for number in issued.order], context.order
    return context.lanes.run(steps, [needs[number] for number in order], launch in ("call", "replay"))


class ScheduledKernels(Sequence[Estimate]):
    """The estimates of a schedule, in launch order; built on first use. ``spans``: when each runs, if some overlap."""

    def __init__(
        self, plan: Plan, context: PlanContext, known: Sequence[Prediction], issues: Sequence[float], ran: Overlap
    ) -> None:
        self._plan, self._context, self._known, self._issues = plan, context, known, issues
        self._waits, self._hidden, self.spans = ran.waits, ran.hidden, ran.spans

    @cached_property
    def _all(self) -> tuple[Estimate, ...]:
        return tuple(map(self._estimate, range(len(self))))

    def _estimate(self, index: int) -> Estimate:
        group, n, wait_s, hidden_s = (
            self._plan.groups[index],
            self._context.order[index],
            self._waits[index],
            self._hidden[index],
        )
        kind, known = self._context.kinds[n], self._known[n]
        return Estimate(
            id=index,
            name=kind.name,
            op_ids=group.op_ids,
            op_class=kind.op_class,
            flops=kind.flops,
            read_bytes=group.cost.read_bytes,
            write_bytes=group.cost.write_bytes,
            bound_s=max(known.bound_s - hidden_s, 0.0),
            compute_s=known.compute_s,
            memory_s=known.memory_s,
            latency_s=known.latency_s,
            hidden_s=hidden_s,
            overhead_s=known.overhead_s + wait_s,
            low_s=max(known.low_s + wait_s - hidden_s, 0.0),
            high_s=known.high_s + wait_s - hidden_s,
            launches=group.cost.kernels,
            recomputes=group.recomputes,
            issue_s=self._issues[index],
            wait_s=wait_s,
            link_s=known.link_s and known.link_s + wait_s,
        )

    def alone(self, gpu: Gpu) -> Iterator[Alone]:
        """The kernels of a schedule on a GPU, each alone."""
        kinds = [
            (known.time_s, kind.flops, _matrix_s(kind, known, gpu), kind.flops_again, _again_s(kind, gpu))
            for known, kind in zip(self._known, self._context.kinds, strict=True)
        ]
        for group, n, issue_s in zip(self._plan.groups, self._context.order, self._issues, strict=True):
            time_s, flops, matrix_s, again, again_s = kinds[n]
            yield Alone(group.op_ids[0], time_s, issue_s, flops, matrix_s, again, again_s)

    def timings(self) -> list[KernelTiming]:
        """What :attr:`Schedule.timings` says, without the estimates."""
        of_kind = [KernelTiming.of(known, 0.0) for known in self._known]
        return [
            KernelTiming.of(self._known[n], wait_s, hidden_s) if wait_s or hidden_s else of_kind[n]
            for n, wait_s, hidden_s in zip(self._context.order, self._waits, self._hidden, strict=True)
        ]

    def __len__(self) -> int:
        return len(self._waits)

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self._all)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) or "_all" in vars(self):
            return self._all[index]
        return self._estimate(range(len(self))[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._all)

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._all,)


def _predictions(graph: Graph, gpu: Gpu, context: PlanContext) -> list[Prediction]:
    """The time of each kind of kernel after its issue; equal costs with equally many bytes in L2 are predicted once."""
    if gpu.cpu is not None:
        return [
            predict_on_cpu(graph, (*k.group.op_ids, *k.group.recomputes), k.group.cost, gpu, k.reuse)
            for k in context.kinds
        ]
    memo: dict[tuple[Any, ...], Prediction] = {}
    found = []
    for kind in context.kinds:
        resident, group = kind.resident_bytes(gpu), kind.group
        layout = _layout(graph, group, gpu) if gpu.tpu else ()
        key = kind.cost, resident, *layout
        if key not in memo:
            cost = laid_out(group.cost, gpu, *layout) if layout else group.cost
            memo[key] = predict_cost(cost, gpu, resident)
        found.append(memo[key])
    return found


def in_memory(graph: Graph, group: Group, gpu: Gpu) -> Cost:
    """The cost of a kernel as its arrays lie in the memory of a GPU."""
    return laid_out(group.cost, gpu, *_layout(graph, group, gpu)) if gpu.tpu else group.cost


def _layout(graph: Graph, group: Group, gpu: Gpu) -> tuple[float, int]:
    """Bytes of a kernel's arrays on a TPU over the bytes of their elements, and what it looks up."""
    arrays = (graph.values[i].spec for i in (*group.reads, *group.writes))
    return padding(arrays, gpu), requests(graph, group.op_ids)


def _totals(
    gpu: Gpu,
    context: PlanContext,
    known: Sequence[Prediction],
    time_s: float,
    hosts_s: tuple[float, float],
    ways: Sequence[tuple[str, ...]],
) -> Totals:
    """The sums. ``hosts_s``: the time with the fastest and the slowest host that the interval allows; ``ways``: what
    each kind of kernels occupies while others run."""

    def total(of_kind: Iterable[float], kernels: Sequence[int]) -> float:
        """The sum over some kernels, added up in launch order."""
        return reduce(add, map([*of_kind].__getitem__, kernels), 0.0)

    bound_s = total((k.bound_s for k in known), context.order)
    if context.lanes.overlap:  # what runs at the same time: the longest
        each_s = [[k.bound_s * (way in of) for k, of in zip(known, ways, strict=True)] for way in {*chain(*ways)}]
        bound_s = max(total(seconds, context.order) for seconds in each_s)
    resident = [min(kind.resident_bytes(gpu), kind.group.cost.read_bytes) for kind in context.kinds]
    matrix_s = [*map(_matrix_s, context.kinds, known, repeat(gpu))]
    model_s, all_s = (
        total(matrix_s, [n for n in context.matrix if not context.kinds[n].again]),
        total(matrix_s, context.matrix),
    )
    all_s += total((_again_s(kind, gpu) for kind in context.kinds), context.matrix)
    below, above = [k.time_s - k.low_s for k in known], [k.high_s - k.time_s for k in known]
    down_s, up_s = (
        math.hypot(host_s, *(total(side, kernels) for kernels in context.by_class.values()))
        for side, host_s in ((below, time_s - hosts_s[0]), (above, hosts_s[1] - time_s))
    )
    return Totals(
        bound_s,
        time_s,
        context.kernels,
        context.total_flops,
        context.dram_bytes,
        context.memory.total,
        model_s / time_s if time_s else 0.0,
        max(time_s - down_s, bound_s),
        time_s + up_s,
        sum(map(resident.__getitem__, context.order)),
        all_s / time_s if time_s else 0.0,
    )


def _again_s(kind: AlikeKernels, gpu: Gpu) -> float:
    """Seconds at the peaks of what a kernel does again of forward beyond the model's FLOPs."""
    again = (launch.flops_again.items() for launch in kind.group.cost.launches)
    return sum(count / gpu.peak(pipe) for pipes in again for pipe, count in pipes)


def _matrix_s(kind: AlikeKernels, known: Prediction, gpu: Gpu) -> float:
    """Seconds that the matrix FLOPs take at the peaks of their pipes; of a group only the products, not other ops."""
    cost = kind.group.cost
    if len(kind.group.op_ids) > 1:
        cost = Cost({pipe: count for pipe, count in cost.flops.items() if pipe.engine == "tensor"})
    return max(peak_compute_s(cost, gpu) - known.spared_s, 0.0)
