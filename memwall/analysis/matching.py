"""Which op of the head is which op of the base: by place first, then by what it does; which groups share ops.

Ops are matched within their module and phase, in order, if name, shapes, dtypes and arguments agree; the remaining ones
by name alone (the op is still there and grew), then by class for the classes of :data:`_REPLACED` (another kernel does
the same); the remaining ones in modules that one side lacks, by all but the module (it was renamed). The rest appeared
or vanished.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memwall.analysis.table import group_by, join
from memwall.core.graph import Graph, Op

#: classes in which an op may replace another: one matrix product or normalization for the other
_REPLACED = frozenset(("contraction", "convolution", "attention", "normalization"))

#: most ops of one module that appeared or vanished for a search by order: beyond, equal ops are matched from the front
_EDITS = 400


def match_ops(base: Graph, head: Graph) -> dict[int, int]:
    """Head op id → base op id, for the ops that are still there."""
    base_keys, head_keys = ([_key(graph, op) for op in graph.ops] for graph in (base, head))
    pairs: dict[int, int] = {}
    left_base: list[int] = []
    left_head: list[int] = []
    ours, theirs = (group_by(range(len(g.ops)), [(op.phase, op.module) for op in g.ops]) for g in (head, base))
    for _, mine, others in join(ours, theirs):
        heads, bases = mine or [], others or []
        same = in_order([base_keys[i] for i in bases], [head_keys[i] for i in heads])
        found = {heads[h]: bases[b] for b, h in same}
        for kind in ("name", "op_class"):
            taken = set(found.values())
            rest_base = [i for i in bases if i not in taken and (kind == "name" or base.ops[i].op_class in _REPLACED)]
            rest_head = [i for i in heads if i not in found and (kind == "name" or head.ops[i].op_class in _REPLACED)]
            alike = in_order(
                [getattr(base.ops[i], kind) for i in rest_base], [getattr(head.ops[i], kind) for i in rest_head]
            )
            found |= {rest_head[h]: rest_base[b] for b, h in alike}
        taken = set(found.values())
        left_base += [i for i in bases if i not in taken]
        left_head += [i for i in heads if i not in found]
        pairs |= found
    left_base.sort()
    left_head.sort()
    moved = in_order([base_keys[i] for i in left_base], [head_keys[i] for i in left_head])
    return pairs | {left_head[h]: left_base[b] for b, h in moved}


def clusters(
    first: Sequence[Sequence[int]], second: Sequence[Sequence[int]], same: Callable[[int], int | None] = lambda op: op
) -> list[tuple[list[int], list[int]]]:
    """Groups of ops of two sides that share ops, directly or through others: their numbers on either side. Every group
    is in exactly one cluster, those with a group of the first side in its order, then the others. ``same``: the op of
    the second side that matches an op of the first, or None."""
    offset = len(first)
    parent = list(range(offset + len(second)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    holder: dict[int | None, int] = {op: offset + i for i, ops in enumerate(second) for op in ops}
    for i, ops in enumerate(first):
        for op in ops:
            other = holder.get(same(op))
            if other is not None:
                one, two = root(i), root(other)
                parent[max(one, two)] = min(one, two)
    found: dict[int, tuple[list[int], list[int]]] = {}
    for node in range(len(parent)):
        sides = found.setdefault(root(node), ([], []))
        sides[node >= offset].append(node - offset * (node >= offset))
    return list(found.values())


def _key(graph: Graph, op: Op) -> tuple[object, ...]:
    """What an op does, wherever it is."""
    return (
        op.name,
        op.phase,
        graph.specs(op.inputs),
        graph.specs(op.outputs),
        op.arguments,
        tuple((name, repr(value)) for name, value in op.attributes.items()),
    )


def in_order(base: Sequence[object], head: Sequence[object]) -> list[tuple[int, int]]:
    """Pairs (base index, head index) of equal items in the same order on both sides."""
    if not base or not head:
        return []
    numbers: dict[object, int] = {}
    first, second = ([numbers.setdefault(item, len(numbers)) for item in row] for row in (base, head))
    start = 0
    while start < min(len(first), len(second)) and first[start] == second[start]:
        start += 1
    end = 0
    while end < min(len(first), len(second)) - start and first[-1 - end] == second[-1 - end]:
        end += 1
    pairs = [(i, i) for i in range(start)]
    inside = first[start : len(first) - end], second[start : len(second) - end]
    inner = _common(*inside)
    pairs += [(start + a, start + b) for a, b in (_greedy(*inside) if inner is None else inner)]
    return pairs + [(len(first) - 1 - i, len(second) - 1 - i) for i in range(end)]


def _common(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]] | None:
    """Pairs of a longest common subsequence (Myers 1986, O(ND)); None beyond :data:`_EDITS` items of either alone."""
    reached = {1: 0}
    trail: list[dict[int, int]] = []
    for edits in range(min(len(first) + len(second), _EDITS) + 1):
        trail.append(dict(reached))
        for diagonal in range(-edits, edits + 1, 2):
            x = reached[diagonal + 1] if _down(reached, diagonal, edits) else reached[diagonal - 1] + 1
            while x < len(first) and x - diagonal < len(second) and first[x] == second[x - diagonal]:
                x += 1
            reached[diagonal] = x
            if x >= len(first) and x - diagonal >= len(second):
                return _walked_back(trail, x, x - diagonal)
    return None


def _down(reached: dict[int, int], diagonal: int, edits: int) -> bool:
    """Whether the furthest way to a diagonal takes an item of the second."""
    return diagonal == -edits or (diagonal != edits and reached[diagonal - 1] < reached[diagonal + 1])


def _walked_back(trail: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs = []
    for edits in range(len(trail) - 1, -1, -1):
        reached, diagonal = trail[edits], x - y
        before = diagonal + 1 if _down(reached, diagonal, edits) else diagonal - 1
        while x > reached[before] and y > reached[before] - before:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = reached[before], reached[before] - before
    return pairs[::-1]


def _greedy(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    places = group_by(range(len(first)), first)
    return [(places[item].pop(0), i) for i, item in enumerate(second) if places.get(item)]
