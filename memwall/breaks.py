"""What graph breaks cost: the fusion that is lost across them, in DRAM bytes and modeled time on a GPU.

A plan with the partial graphs of a capture is held against plans in which breaks are healed: the graphs on both sides
become one, with the ops between that no graph held, and their backward ops too. What the breaks do not cause stays as
it is in both: gradients are added up and the optimizer steps outside all graphs. Only fusion is priced, not the time
that Python takes between two graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memwall.cost import Cost
from memwall.fusion import plan_graph
from memwall.graph import Graph, Op
from memwall.hardware import Gpu
from memwall.simulate import Totals, simulate

#: Breaks that are priced one by one; each takes a plan of its own.
MAX_PRICED = 32

#: The region of an op that no captured graph holds.
EAGER = -1


@dataclass(frozen=True, slots=True)
class Loss:
    """What is lost against a run without the breaks: DRAM bytes, modeled seconds, kernels."""

    dram_bytes: int
    time_s: float
    kernels: int

    @classmethod
    def between(cls, broken: Totals, healed: Totals) -> Loss:
        """Totals with the breaks less those without."""
        return cls(
            broken.dram_bytes - healed.dram_bytes,
            broken.time_s - healed.time_s,
            broken.kernels - healed.kernels,
        )


@dataclass(frozen=True, slots=True)
class BreakPrices:
    """The price of all breaks together, and of each alone; None for those beyond ``MAX_PRICED``.

    Single prices need not add up: healing two neighbours may let more fuse than healing each.
    """

    together: Loss
    each: tuple[Loss | None, ...]


def price_breaks(
    graph: Graph,
    costs: Sequence[Cost],
    gpu: Gpu,
    regions: Sequence[int],
    cuts: Sequence[Sequence[int]],
    policy: str = "memwall",
) -> BreakPrices:
    """The price of each break on a GPU, under our own planner unless another policy is named.

    Args:
        regions: for each op the number of the partial graph that holds it, or ``EAGER``.
        cuts: for each break the ops after which a graph ended because of it.
    """

    def totals(of: Sequence[int]) -> Totals:
        return simulate(graph, plan_graph(policy, graph, costs, gpu, planned(graph, of)), gpu).totals

    broken = totals(regions)
    known: dict[tuple[int, ...], Totals] = {tuple(regions): broken}
    each: list[Loss | None] = []
    for places in cuts[:MAX_PRICED]:
        mended = healed(graph, regions, places)
        if mended not in known:
            known[mended] = totals(mended)
        each.append(Loss.between(broken, known[mended]))
    each += [None] * (len(cuts) - len(each))
    return BreakPrices(Loss.between(broken, totals(whole(graph, regions))), tuple(each))


def planned(graph: Graph, regions: Sequence[int]) -> list[int]:
    """Regions as our planner takes them: an op outside all graphs runs alone, the optimizer's ops are one region."""
    optimizer = max(regions, default=0) + 1
    return [
        optimizer if op.phase == "optimizer" else optimizer + 1 + op.id if region == EAGER else region
        for op, region in zip(graph.ops, regions, strict=True)
    ]


def is_broken(graph: Graph, regions: Sequence[int]) -> bool:
    """Whether some fusion of forward or backward ops is lost: not all of them belong to one graph."""
    return tuple(regions) != whole(graph, regions)


def healed(graph: Graph, regions: Sequence[int], places: Sequence[int]) -> tuple[int, ...]:
    """The regions when the graphs on both sides of each place (the op before it) are one, as is what lies between."""
    forward = [op.id for op in graph.ops if op.phase == "forward"]
    same = {region: region for region in regions}
    joined: set[int] = set()
    for place in places:
        left = next((i for i in reversed(forward) if i <= place and regions[i] != EAGER), None)
        right = next((i for i in forward if i > place and regions[i] != EAGER), None)
        if left is None or right is None:
            continue
        old, new = same[regions[right]], same[regions[left]]
        same = {region: new if name == old else name for region, name in same.items()}
        joined.update(i for i in forward if left < i < right)
    result = [same[region] for region in regions]
    for op_id in joined:
        result[op_id] = _nearest(result, op_id)
    return tuple(result)


def _nearest(regions: Sequence[int], op_id: int) -> int:
    """The region of the last op before this one that is in any."""
    return next((regions[i] for i in range(op_id, -1, -1) if regions[i] != EAGER), EAGER)


def whole(graph: Graph, regions: Sequence[int]) -> tuple[int, ...]:
    """The regions without any break: forward and backward are one graph, gradients are still added up outside."""
    roles = [graph.storages[value.storage].role for value in graph.values]

    def outside(op: Op) -> bool:
        adds_up = op.phase == "backward" and all(roles[i] == "gradient" for i in op.outputs)
        return op.phase == "optimizer" or (adds_up and regions[op.id] == EAGER)

    return tuple([EAGER if outside(op) else 0 for op in graph.ops])
