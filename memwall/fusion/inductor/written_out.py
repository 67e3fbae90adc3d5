"""Attention that a model writes out: a softmax between two matrix products."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from memwall.core.graph import Graph, Op

#: Classes of what may stand between a product and the softmax: a scale, a mask, a dropout, a copy.
_BETWEEN = frozenset(("elementwise", "dropout", "movement"))

_NOTE = (
    "attention is written out by hand; torch.compile replaces some forms of it by one fused kernel in "
    "training, and this plan keeps the products and the softmax apart"
)


def written_out(graph: Graph) -> list[int]:
    """The forward softmax ops that stand between two matrix products."""
    makers, readers = _neighbours(graph)
    return [
        op.id
        for op in graph.ops
        if op.phase == "forward"
        and op.name.startswith("aten._softmax")
        and _meets_product(graph, op, makers)
        and _meets_product(graph, op, readers)
    ]


def note_on(graph: Graph, replaced: Iterable[int]) -> tuple[str, ...]:
    """What to say of a training step in which attention stays written out; ``replaced`` ops became one call."""
    training = any(op.phase == "backward" for op in graph.ops)
    left = set(written_out(graph)).difference(replaced)
    return (_NOTE,) if training and left else ()


def _neighbours(graph: Graph) -> tuple[Mapping[int, list[int]], Mapping[int, list[int]]]:
    """Of each forward op those that made what it reads, and those that read what it makes."""
    last: dict[int, int] = {}
    makers: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    for op in graph.ops:
        if op.phase != "forward":
            continue
        for value_id in op.inputs:
            maker = last.get(graph.values[value_id].storage)
            if maker is not None:
                makers.setdefault(op.id, []).append(maker)
                readers.setdefault(maker, []).append(op.id)
        for value_id in op.outputs:
            last[graph.values[value_id].storage] = op.id
    return makers, readers


def _meets_product(graph: Graph, start: Op, beside: Mapping[int, Sequence[int]]) -> bool:
    """Whether a matrix product is reached in one direction through what may stand between."""
    pending, seen = [start.id], {start.id}
    while pending:
        for number in beside.get(pending.pop(), ()):
            op = graph.ops[number]
            if op.name in _PRODUCTS:
                return True
            if op.op_class in _BETWEEN and number not in seen:
                seen.add(number)
                pending.append(number)
    return False


_PRODUCTS = frozenset(("aten.bmm", "aten.baddbmm"))
