"""Where two plans of one graph differ, and what the difference costs.

Two ops are *together* when some kernel computes both, *apart* otherwise. Pairs that could be fused are counted: one
reads what the other wrote, or both read the same version of a tensor. Pairs with a matrix kernel are left out: no
policy fuses across one, so counting them would inflate the score.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memwall.analysis.matching import clusters
from memwall.analysis.table import summed
from memwall.core.flow import Flow
from memwall.core.graph import Graph
from memwall.fusion import Group, Plan
from memwall.fusion.rules import MATRIX_CLASSES
from memwall.hardware.lookup import Gpu
from memwall.perfmodel.roofline import predict_cost
from memwall.record.kernels import collapse

_PHASES = ("forward", "backward")
#: readers of one tensor are each paired with this many next ones
_SIBLINGS = 4


@dataclass(frozen=True)
class Difference:
    """Kernels of two plans that run the same ops in different groups; repeated layers are one row. Bytes and seconds
    are the second plan's minus the first's, over all ``count`` places."""

    module: str
    phase: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    count: int
    bytes: int
    time_s: float


@dataclass(frozen=True)
class PlanDiff:
    """How far two plans agree. ``pairs`` could be fused; ``same`` of them are fused in both plans or in neither.
    ``all_pairs`` are all pairs of ops of one phase, matrix kernels aside, ``all_same`` pairs on which the groups that
    own them agree."""

    pairs: int
    same: int
    only_first: int
    only_second: int
    all_pairs: int
    all_same: int
    kernels: tuple[int, int]
    dram_bytes: tuple[int, int]
    differences: tuple[Difference, ...]

    @property
    def all_share(self) -> float:
        """Fraction of all pairs on which they agree (the Rand index); 1 where there are none."""
        return self.all_same / self.all_pairs if self.all_pairs else 1.0

    @property
    def share(self) -> float:
        """Fraction of the pairs on which they agree; 1 where there are none."""
        return self.same / self.pairs if self.pairs else 1.0


def plan_diff(graph: Graph, first: Plan, second: Plan, gpu: Gpu) -> PlanDiff:
    """Compare two plans over the forward and backward ops."""
    places = [_places(plan) for plan in (first, second)]
    counts: Counter[tuple[bool, bool]] = Counter()
    for a, b in _pairs(graph):
        one, two = (not place[a].isdisjoint(place[b]) for place in places)
        counts[one, two] += 1
    ours, theirs = ([g for g in plan.groups if graph.ops[g.op_ids[0]].phase in _PHASES] for plan in (first, second))
    return PlanDiff(
        counts.total(),
        counts[False, False] + counts[True, True],
        counts[True, False],
        counts[False, True],
        *_rand(graph, first, second),
        (sum(g.cost.kernels for g in ours), sum(g.cost.kernels for g in theirs)),
        (_bytes(ours), _bytes(theirs)),
        tuple(_differences(graph, ours, theirs, gpu)),
    )


def _rand(graph: Graph, first: Plan, second: Plan) -> tuple[int, int]:
    """All pairs of ops of a phase, and pairs that are in one group in both plans or in neither."""
    owners = [{op: n for n, group in enumerate(plan.groups) for op in group.op_ids} for plan in (first, second)]
    pairs = same = 0
    for phase in _PHASES:
        ops = [op.id for op in graph.ops if op.phase == phase and op.op_class not in MATRIX_CLASSES]
        every = math.comb(len(ops), 2)
        one, two, both = (
            sum(math.comb(count, 2) for count in Counter(map(key, ops)).values())
            for key in (owners[0].__getitem__, owners[1].__getitem__, lambda op: (owners[0][op], owners[1][op]))
        )
        pairs += every
        same += every - one - two + 2 * both
    return pairs, same


def _bytes(groups: Sequence[Group]) -> int:
    return sum(group.cost.bytes for group in groups)


def _places(plan: Plan) -> Mapping[int, set[int]]:
    """The groups that compute each op."""
    places: dict[int, set[int]] = {}
    for index, group in enumerate(plan.groups):
        for op in (*group.op_ids, *group.recomputes):
            places.setdefault(op, set()).add(index)
    return places


def _pairs(graph: Graph) -> set[tuple[int, int]]:
    flow = Flow.of(graph)
    counted = {op.id for op in graph.ops if op.phase in _PHASES and op.op_class not in MATRIX_CLASSES}
    pairs: set[tuple[int, int]] = set()
    for version, readers in enumerate(flow.readers):
        chain = [op for op in readers if op in counted]
        writer = flow.writer[version]
        if writer in counted:
            pairs.update((writer, reader) for reader in chain if reader != writer)
        for i, reader in enumerate(chain):
            pairs.update((reader, other) for other in chain[i + 1 : i + 1 + _SIBLINGS])
    return {(a, b) for a, b in pairs if graph.ops[a].phase == graph.ops[b].phase}


def _differences(graph: Graph, ours: Sequence[Group], theirs: Sequence[Group], gpu: Gpu) -> list[Difference]:
    found = []
    for one, two in clusters([group.op_ids for group in ours], [group.op_ids for group in theirs]):
        mine, other = [ours[i] for i in one], [theirs[i] for i in two]
        if {(group.op_ids, group.cost.bytes) for group in mine} != {(g.op_ids, g.cost.bytes) for g in other}:
            first = graph.ops[mine[0].op_ids[0]]
            times = [sum(predict_cost(group.cost, gpu).time_s for group in groups) for groups in (mine, other)]
            found.append(
                Difference(
                    collapse(first.module),
                    first.phase,
                    _names(graph, mine),
                    _names(graph, other),
                    1,
                    _bytes(other) - _bytes(mine),
                    times[1] - times[0],
                )
            )
    keys = [(row.module, row.phase, row.ours, row.theirs) for row in found]
    return sorted(summed(found, keys, ("count", "bytes", "time_s")), key=lambda r: (-abs(r.bytes), r.module, r.ours))


def _names(graph: Graph, groups: Sequence[Group]) -> tuple[str, ...]:
    def name(op_id: int) -> str:
        return graph.ops[op_id].name.removeprefix("aten.").partition(".")[0]

    return tuple("+".join(map(name, g.op_ids)) + "".join(f" (again {name(i)})" for i in g.recomputes) for g in groups)
