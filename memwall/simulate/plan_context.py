"""What a plan determines on any GPU: its distinct kernels, their order, how the host issues them, and the memory peak.
:mod:`memwall.simulate.schedule` puts it on one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from memwall.core.graph import Graph
from memwall.fusion import Group, Plan
from memwall.hardware.host import Host, HostWork
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops.registry import class_order
from memwall.perfmodel.collectives import link_of, ways_of
from memwall.simulate.issue import work_of
from memwall.simulate.launch_queue import QueuedKernel
from memwall.simulate.memory import MemoryPeak, planned_peak, reuse_distances
from memwall.simulate.streams import DMA, Lanes

#: Classes whose FLOPs count for MFU: the model's matrix work.
MODEL_CLASSES = ("contraction", "convolution", "attention")


@dataclass(frozen=True, slots=True)
class AlikeKernels:
    """Kernels of a plan that are alike on every GPU: equal ops and cost, in one phase, with equal reuse distances.
    ``group`` is the first of them; ``cost`` numbers its cost, equal ones alike."""

    group: Group
    cost: int
    phase: str
    name: str
    op_class: str
    flops: int
    reuse: tuple[tuple[int, int], ...]
    #: backward computes again what it does
    again: bool = False
    #: whether one of its ops is the model's matrix work
    multiplies: bool = False
    #: whether the host reads its result, and waits for it
    awaited: bool = False
    #: whether it copies in a stream of its own, as compiled programs start copies and wait for them
    aside: bool = False

    @property
    def flops_again(self) -> int:
        """FLOPs of its launches that are forward's, done again: no work of the model."""
        return sum(sum(launch.flops_again.values()) for launch in self.group.cost.launches)

    def resident_bytes(self, gpu: Gpu) -> int:
        """Bytes of its reads that are in L2 when it begins; none on a TPU, whose VMEM is no cache: a compiler places
        values there within one program, and what it leaves in HBM is read from there."""
        if gpu.tpu:
            return 0
        return sum([n for n, distance in self.reuse if distance <= gpu.l2_bytes])


@dataclass(frozen=True)
class PlanContext:
    """What a plan determines on any GPU: its distinct kernels, sums, and the memory peak."""

    kinds: Sequence[AlikeKernels]
    #: the kind of each kernel, in launch order; of the kernels of each class; and of kernels that MFU counts
    order: Sequence[int]
    by_class: Mapping[str, Sequence[int]]
    matrix: Sequence[int]
    memory: MemoryPeak
    kernels: int
    total_flops: int
    dram_bytes: int
    graph: Graph
    plan: Plan
    lanes: Lanes

    @classmethod
    def of(cls, graph: Graph, plan: Plan, costs: Sequence[Cost] = ()) -> PlanContext:
        """Derive the context of a plan. ``costs`` are of the graph's ops; without them a kernel has the first
        class of its ops."""
        alike = graph.alike
        first: dict[tuple[Any, ...], int] = {}
        kinds: list[AlikeKernels] = []
        order: list[int] = []
        by_value: dict[Cost, int] = {}  # one number for each cost, the same for equal ones
        numbers = {
            id(c): by_value.setdefault(c, len(by_value)) for c in {id(g.cost): g.cost for g in plan.groups}.values()
        }
        for group, reuse in zip(plan.groups, reuse_distances(graph, plan), strict=True):
            number_of_cost = numbers[id(group.cost)]
            phase, again = graph.ops[group.op_ids[0]].phase, any(graph.ops[i].again for i in group.op_ids)
            ops = tuple([alike[i] for i in group.op_ids]), tuple([alike[i] for i in group.recomputes])
            starts = graph.ops[group.op_ids[0]]
            aside = bool(starts.stream) and starts.op_class == "movement"
            number = first.setdefault((ops, number_of_cost, phase, again, reuse, aside), len(kinds))
            if number == len(kinds):
                label = label_of(graph, group, costs)
                members = [graph.ops[i] for i in group.op_ids]
                multiplies = any(op.op_class in MODEL_CLASSES for op in members)
                awaited = any("to_host" in (op.attributes or ()) for op in members)
                flops = group.cost.total_flops
                kinds.append(
                    AlikeKernels(group, number_of_cost, phase, *label, flops, reuse, again, multiplies, awaited, aside)
                )
            order.append(number)
        by_class: dict[str, list[int]] = {}
        for number in order:
            by_class.setdefault(kinds[number].op_class, []).append(number)

        def total(of_kind: Iterable[int]) -> int:
            return sum(map([*of_kind].__getitem__, order))

        return cls(
            kinds=kinds,
            order=order,
            by_class=by_class,
            memory=planned_peak(graph, plan),
            matrix=[number for number in order if kinds[number].multiplies],
            kernels=total(kind.group.cost.kernels for kind in kinds),
            total_flops=total(kind.flops for kind in kinds),
            dram_bytes=total(kind.group.cost.bytes for kind in kinds),
            graph=graph,
            plan=plan,
            lanes=Lanes.of(graph, plan),
        )

    def links(self, gpu: Gpu) -> Sequence[str]:
        """What each kind of kernels occupies: ``""`` the GPU itself, the outermost link that a message crosses, or of a
        TPU the engines that copy next to its cores."""
        return [DMA if kind.aside and gpu.tpu else link_of(kind.group.cost, gpu) for kind in self.kinds]

    def ways(self, gpu: Gpu) -> Sequence[tuple[str, ...]]:
        """Of each kind of kernels what it occupies, as :func:`memwall.perfmodel.collectives.ways_of` says."""
        return [(DMA,) if kind.aside and gpu.tpu else ways_of(kind.group.cost, gpu) for kind in self.kinds]

    def issued(self, launch: str) -> Issued:
        """How the host issues the kernels."""
        if launch not in self._issued:
            launches = [kind.group.cost.kernels for kind in self.kinds]
            calls = [(group.op_ids, launches[n]) for group, n in zip(self.plan.groups, self.order, strict=True)]
            work = work_of(self.graph, self.plan.policy, calls, launch, self.plan.outside)
            numbers: dict[tuple[HostWork, int, int], int] = {}
            order = [
                numbers.setdefault((w, n, launches[n]), len(numbers)) for w, n in zip(work, self.order, strict=True)
            ]
            self._issued[launch] = Issued(list(numbers), order, [kind.awaited for kind in self.kinds])
        return self._issued[launch]

    @cached_property
    def _issued(self) -> dict[str, Issued]:
        return {}

    def cold(self) -> PlanContext:
        """The same context with nothing in L2 when a kernel begins."""
        return replace(self, kinds=[replace(kind, reuse=()) for kind in self.kinds])


@dataclass(frozen=True, slots=True)
class Issued:
    """How the kernels of a plan are issued: each distinct work of the host with each kind of kernel (its number and its
    launches), which of these each kernel is, in launch order, and of each kind of kernel whether the host awaits it."""

    kinds: Sequence[tuple[HostWork, int, int]]
    order: Sequence[int]
    awaited: Sequence[bool]

    def seconds(self, host: Host) -> list[float]:
        """The seconds to issue each kernel."""
        of_kind = [host.issue_s(work) for work, _, _ in self.kinds]
        return [of_kind[number] for number in self.order]

    def steps(self, host: Host, busy_s: Sequence[float], is_lone: bool) -> list[QueuedKernel]:
        """Each kind in the queue; ``busy_s`` is by kind of kernel."""
        found = []
        for work, number, launches in self.kinds:
            issue_s, later_s, after_s = host.split_s(work, is_lone)
            found.append(QueuedKernel(issue_s, busy_s[number], later_s, launches, after_s, self.awaited[number]))
        return found


def label_of(graph: Graph, group: Group, costs: Sequence[Cost]) -> tuple[str, str]:
    """The kernel's name, from all its ops, and its class: the first in order that explains half of what the kernel
    does, as a product does with what is fused to it, else the one that explains most."""
    ops = [graph.ops[i] for i in group.op_ids]
    if len(ops) == 1:
        return ops[0].name, ops[0].op_class
    explained: dict[str, float] = {}
    for op in ops:
        explained[op.op_class] = explained.get(op.op_class, 0.0) + (_effort(costs[op.id]) if costs else 0.0)
    classes, half = sorted(explained, key=class_order), _effort(group.cost) / 2
    most = max(classes, key=explained.__getitem__)
    op_class = next((name for name in classes if explained[name] >= half), most)
    names = (op.name.removeprefix("aten.").removeprefix("lax.") for op in ops)
    return "+".join(names), op_class if costs else classes[0]


#: FLOPs of each engine that take as long as a byte of DRAM: an A100's (312 and 19.5 TFLOP/s, 2.04 TB/s)
_PER_BYTE = {"tensor": 153.0, "vector": 9.6}


def _effort(cost: Cost) -> float:
    """Work in bytes of DRAM, whatever the GPU."""
    return cost.bytes + sum(count / _PER_BYTE[pipe.engine] for pipe, count in cost.flops.items())
