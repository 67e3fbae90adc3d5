"""Which FX nodes a loop of Inductor's really computes.

Inductor names, for each buffer, the FX nodes that went into it; a tensor that is read from memory through a view brings
along the names of all that it was made from. Here a node counts only if the loop makes it of what it reads.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from torch._inductor import ir
from torch.fx import Node

from memwall.fusion.inductor.tags import behind_views, is_view, users_behind_views


def holders(results: Mapping[Node, Any], buffers: Iterable[Any]) -> dict[Node, frozenset[str]]:
    """FX node -> names of the buffers that hold what its lowering gave, or a part of it; none where it was inlined."""
    holding = {node: set(_names(result)) for node, result in results.items()}
    for buffer in buffers:
        if buffer.get_origin_node() is None:  # a product without its bias, a sum before it becomes a mean
            for node in _last(_origins(buffer)):
                holding.setdefault(node, set()).add(buffer.get_name())
    return {node: frozenset(names) for node, names in holding.items()}


def _origins(buffer: Any) -> set[Node]:
    return {node for node in buffer.get_origins() if node.op == "call_function" and not is_view(node)}


def _last(nodes: set[Node]) -> set[Node]:
    """Those that no other takes."""
    return {node for node in nodes if nodes.isdisjoint(users_behind_views(node))}


def _names(result: Any) -> Iterable[str]:
    for value in result if isinstance(result, (list, tuple)) else (result,):
        while isinstance(value, (ir.MutableBox, ir.BaseView)):
            value = value.data
        if isinstance(value, ir.Buffer):
            yield value.get_name()


def computed(buffers: Iterable[Any], reads: frozenset[str], holding: Mapping[Node, frozenset[str]]) -> set[Node]:
    """The FX nodes of which a launch that writes ``buffers`` computes something, from their results back to ``reads``.

    A launch that only copies a tensor, into another layout say, or that only adds up the partial sums of another,
    computes none.
    """
    origins: set[Node] = set()
    results: set[Node] = set()
    for buffer in buffers:
        origins |= _origins(buffer)
        last = buffer.get_origin_node()
        results.update(() if last is None else (behind_views(last),))
    made: set[Node] = set()
    named = origins | results
    for node in sorted(named.union(*map(_parts, named))):
        if not _is_read(node, reads, holding) and _is_made(node, reads, holding, made):
            made.add(node)
    last_made = {node for node in made & named if made.isdisjoint(users_behind_views(node))}
    return _back_from(last_made | (results & made), made)


def _parts(node: Node) -> set[Node]:
    """The single results of a call that has several."""
    return {user for user in node.users if user.target is operator.getitem}


def _is_read(node: Node, reads: frozenset[str], holding: Mapping[Node, frozenset[str]]) -> bool:
    """Whether the node's tensor, or what it is a view of, is in a buffer that is read."""
    while reads.isdisjoint(holding.get(node, ())):
        if not (is_view(node) and node.args and isinstance(node.args[0], Node)):
            return False
        node = node.args[0]
    return True


def _is_made(node: Node, reads: frozenset[str], holding: Mapping[Node, frozenset[str]], made: set[Node]) -> bool:
    """Whether all that the node takes is at hand. A row of numbers is: it is made anew rather than read."""
    return all(
        _is_read(one, reads, holding) or behind_views(one) in made or _is_numbers(behind_views(one))
        for one in node.all_input_nodes
    )


def _is_numbers(node: Node) -> bool:
    return node.op == "call_function" and not node.all_input_nodes


def _back_from(ends: set[Node], made: set[Node]) -> set[Node]:
    """The ends, and those among ``made`` that they take."""
    found: set[Node] = set()
    pending = list(ends)
    while pending:
        node = pending.pop()
        if node in made and node not in found:
            found.add(node)
            pending.extend(behind_views(one) for one in node.all_input_nodes)
    return found
