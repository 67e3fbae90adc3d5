"""What graph breaks cost: the fusion that is lost across them, in DRAM bytes and modeled time on a GPU.

A plan with the partial graphs of a capture is compared with plans in which breaks are healed: the graphs on both sides
become one, with the ops between that no graph held and, if all of forward is then one graph, with their backward ops.
What the breaks do not cause is the same in both: gradients are accumulated and the optimizer steps outside all graphs.
Only fusion is priced, not the time that Python takes between two graphs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from memwall.core.graph import EAGER, Graph, Op
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.record.schedules import Schedules
from memwall.simulate.schedule import Totals

#: Most breaks that are priced one by one; each needs its own plan.
MAX_PRICED = 32

#: How backward makes the gradient of the loss by itself.
SEED = "aten.ones_like"


@dataclass(frozen=True, slots=True)
class Loss:
    """What is lost compared with a run without the breaks: DRAM bytes, modeled seconds, kernels."""

    dram_bytes: int
    time_s: float
    kernels: int

    @classmethod
    def between(cls, broken: Totals, healed: Totals) -> Loss:
        """Totals with the breaks less totals without."""
        names = (each.name for each in fields(cls))
        return cls(*(getattr(broken, name) - getattr(healed, name) for name in names))


@dataclass(frozen=True, slots=True)
class BreakPrices:
    """The price of all breaks together, and of each alone; None for one that splits nothing by itself or is beyond
    ``MAX_PRICED``. Single prices need not add up: healing two neighbours may let more fuse than healing each."""

    together: Loss
    each: tuple[Loss | None, ...]


class Cut(NamedTuple):
    """Where a break splits graphs: after which ops, and from which op on Python ran the model's own function."""

    places: Sequence[int]
    lost_from: int | None = None


def price_breaks(
    graph: Graph,
    costs: Sequence[Cost],
    gpu: Gpu,
    regions: Sequence[int],
    cuts: Sequence[Cut],
    behind: int | None = None,
) -> BreakPrices:
    """The price of each break on a GPU.

    Args:
        regions: for each op the number of the partial graph that holds it, or ``EAGER``.
        cuts: one for each break.
        behind: the first op after the model, or None.
    """
    one = whole(graph, regions, behind)
    schedules = Schedules((graph,), (costs,))

    def totals(of: tuple[int, ...]) -> Totals:
        return schedules.schedule(gpu, "memwall", regions=planned(graph, of)).totals

    broken = totals(tuple(regions))
    each: list[Loss | None] = [None] * len(cuts)
    for number, cut in enumerate(cuts[:MAX_PRICED]):
        if cut.lost_from is not None:
            others = {i for n, other in enumerate(cuts) if n != number for i in other.places}
            each[number] = Loss.between(broken, totals(recaptured(graph, regions, one, cut.lost_from, others)))
        elif cut.places:
            each[number] = Loss.between(broken, totals(healed(graph, regions, one, cut.places)))
    return BreakPrices(Loss.between(broken, totals(one)), tuple(each))


def planned(graph: Graph, regions: Sequence[int]) -> list[int]:
    """Regions as memwall's planner takes them: the optimizer's ops are a region of their own."""
    optimizer = max(regions, default=0) + 1
    return [optimizer if op.phase == "optimizer" else region for op, region in zip(graph.ops, regions, strict=True)]


def is_broken(graph: Graph, regions: Sequence[int], behind: int | None = None) -> bool:
    """Whether the forward and backward ops are split over several graphs, so that some fusion is lost."""
    return tuple(regions) != whole(graph, regions, behind)


def healed(graph: Graph, regions: Sequence[int], one: Sequence[int], places: Sequence[int]) -> tuple[int, ...]:
    """The regions with the graphs on both sides of each place (the op before it), and the ops between, merged. ``one``:
    the regions without any break, as :func:`whole` has them."""
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
    for op_id in joined:  # the region of the last op before it that is in one
        result[op_id] = next((result[i] for i in range(op_id, -1, -1) if result[i] != EAGER), EAGER)
    return _backward_too(graph, one, result)


def recaptured(
    graph: Graph, regions: Sequence[int], one: Sequence[int], start: int, cuts: Collection[int]
) -> tuple[int, ...]:
    """The regions if all forward ops from ``start`` on were captured together, except at the cuts of other breaks."""
    number = max(regions, default=EAGER) + 1
    result, became = list(regions), {}
    for op in graph.ops[start:]:
        if op.phase == "forward" and one[op.id] != EAGER:
            became[regions[op.id]] = result[op.id] = number
            number += op.id in cuts
        elif regions[op.id] != EAGER:
            result[op.id] = became.get(regions[op.id], regions[op.id])
    return _backward_too(graph, one, result)


def _backward_too(graph: Graph, one: Sequence[int], result: Sequence[int]) -> tuple[int, ...]:
    """The regions; if forward is one graph, the backward of ops that no graph held joins it."""
    forward = {result[op.id] for op in graph.ops if op.phase == "forward" and one[op.id] != EAGER}
    return tuple(one) if len(forward) == 1 and EAGER not in forward else tuple(result)


def whole(graph: Graph, regions: Sequence[int], behind: int | None = None) -> tuple[int, ...]:
    """The regions without any break: forward and backward are one graph. Ops that no break put outside stay outside:
    the optimizer, gradient accumulation, the stand-in for a loss after the model, and the gradient that backward begins
    with."""
    roles = [graph.storages[value.storage].role for value in graph.values]
    end = len(graph.ops) if behind is None else behind
    first = next((op.id for op in graph.ops if op.phase == "backward"), None)

    def outside(op: Op) -> bool:
        if op.phase == "optimizer" or (op.phase == "forward" and op.id >= end):
            return True
        adds_up = op.phase == "backward" and all(roles[i] == "gradient" for i in op.outputs)
        begins = op.id == first and op.name == SEED
        return (adds_up or begins) and regions[op.id] == EAGER

    return tuple([EAGER if outside(op) else 0 for op in graph.ops])
