"""The distinct kernels of a plan: each is generated once, for all groups that do the same to other tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from memwall.codegen.kernel import Kernel, NotGenerated
from memwall.core.flow import Flow
from memwall.core.graph import Graph, Value
from memwall.fusion import Group, Plan
from memwall.fusion.rules import MATRIX_CLASSES, Spills, work_of
from memwall.hardware.lookup import Gpu

Generate = Callable[[Graph, Flow, Group, Gpu], Kernel]


@dataclass(frozen=True)
class Distinct:
    """A kernel with its ops, the places in the plan of the groups that it runs, and the DRAM bytes of all of these."""

    kernel: Kernel
    ops: tuple[str, ...]
    groups: tuple[int, ...]
    dram_bytes: int
    has_contraction: bool


@dataclass(frozen=True)
class Left:
    """Equal groups that no kernel is generated for: their ops, why, and the DRAM bytes of all of them together."""

    ops: tuple[str, ...]
    reason: str
    groups: tuple[int, ...]
    dram_bytes: int


def distinct_kernels(
    graph: Graph, flow: Flow, plan: Plan, gpu: Gpu, generate: Generate, spills: Spills
) -> tuple[tuple[Distinct, ...], tuple[Left, ...]]:
    """The kernels of a plan in order of their first launch, and the groups that have none.

    A contraction that shares its launch with nothing is its library's, and stands in neither. A group in ``spills`` has
    no kernel: ops that the planner could not part run as eager kernels.
    """
    twins: dict[Hashable, list[int]] = {}
    keys = GroupKeys(graph, flow)
    for place, group in enumerate(plan.groups):
        has_contraction = _has_contraction(graph, group)
        if not (has_contraction and len(group.op_ids) == 1):
            twins.setdefault((keys.key(group), has_contraction), []).append(place)
    made: dict[tuple[str, str], Distinct] = {}
    left = []
    for places in twins.values():
        group = plan.groups[places[0]]
        ops = tuple(graph.ops[i].name for i in sorted((*group.op_ids, *group.recomputes)))
        dram_bytes = sum(plan.groups[place].cost.bytes for place in places)
        has_contraction = _has_contraction(graph, group)
        reason = spills.get(work_of(graph, (*group.op_ids, *group.recomputes)))
        try:
            if reason is not None:
                raise NotGenerated(reason)
            kernel = generate(graph, flow, group, gpu)
        except NotGenerated as error:
            if not has_contraction:
                left.append(Left(ops, str(error), tuple(places), dram_bytes))
            continue
        key = kernel.source, str(kernel.launches)
        old = made.get(key, Distinct(kernel, ops, (), 0, has_contraction))
        made[key] = replace(old, groups=(*old.groups, *places), dram_bytes=old.dram_bytes + dram_bytes)
    return tuple(made.values()), tuple(left)


def _has_contraction(graph: Graph, group: Group) -> bool:
    return any(graph.ops[i].op_class in MATRIX_CLASSES for i in (*group.op_ids, *group.recomputes))


@dataclass
class GroupKeys:
    """Tells which groups do the same: equal keys, equal kernels but for the names in comments."""

    graph: Graph
    flow: Flow
    #: the version with which each storage begins
    first: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.first = {storage: version for version, storage in reversed([*enumerate(self.flow.storage)])}

    def key(self, group: Group) -> Hashable:
        """All that a kernel of the group depends on, with values and storages numbered as they first appear."""
        numbers = _Numbers(self.graph)
        again = frozenset(group.recomputes)
        inside = again.union(group.op_ids)
        steps = []
        for i in sorted(inside):
            op = self.graph.ops[i]
            reads = tuple((*numbers.value(v), self.flow.writer[n] in inside) for v, n in self.flow.reads[i])
            writes = tuple((*numbers.value(v), n == self.first[self.flow.storage[n]]) for v, n in self.flow.writes[i])
            steps.append((op.name, op.arguments, repr(_sorted(op.attributes)), reads, writes, i in again))
        ends = tuple(numbers.value(v) for v in (*group.reads, *group.writes))
        return tuple(steps), ends, len(group.reads)


class _Numbers:
    """Numbers that stand for values and storages, in order of appearance."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: dict[int, int] = {}
        self.storages: dict[int, int] = {}

    def value(self, value_id: int) -> tuple[Hashable, ...]:
        value: Value = self.graph.values[value_id]
        storage = self.graph.storages[value.storage]
        number = self.values.setdefault(value_id, len(self.values))
        place = self.storages.setdefault(value.storage, len(self.storages))
        return number, place, value.spec, value.offset, storage.nbytes, storage.role


def _sorted(attributes: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    return sorted((attributes or {}).items(), key=lambda item: item[0])
