"""Which traced op an FX node came from: what a node carries under ``meta["custom"]``, which torch's passes keep.

A node that a pass substituted for others (decomposed attention that became one call) has no origin; it is assigned
the ops that no node computes any more.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from memwall.core.flow import Flow
from memwall.core.graph import Graph

#: Keys: the op's id, whether the node is a result of the op, and further ops that went into the node.
OP, RESULT, ALSO = "memwall_op", "memwall_result", "memwall_also"

_ATEN: Any = torch.ops.aten


def op_of(node: Node) -> int | None:
    """The id of the op that an FX node computes a part of; None for views and for nodes of no op."""
    if is_view(node):
        return None
    number = (node.meta.get("custom") or {}).get(OP)
    return number if isinstance(number, int) else None


def ops_of(node: Node) -> tuple[int, ...]:
    """Like :func:`op_of`, with the further ops that a pass replaced by this node."""
    own = op_of(node)
    return () if own is None else (own, *node.meta["custom"].get(ALSO, ()))


def is_view(node: Node) -> bool:
    """Whether a node is only a view of its input."""
    target = node.target
    return node.op != "call_function" or getattr(target, "is_view", False) or target in _UNSEEN_VIEWS


def behind_views(node: Node) -> Node:
    """The node at the base of a chain of views."""
    while is_view(node) and node.args and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


_UNSEEN_VIEWS = frozenset(
    (_ATEN._unsafe_view.default, _ATEN.alias.default, _ATEN.detach.default, _ATEN.empty_strided.default)
)


def mark_results(module: GraphModule) -> None:
    """Mark the nodes from which another op or the caller takes a result, for ops without a marked node."""
    nodes = [(node, own) for node in module.graph.nodes if (own := op_of(node)) is not None]
    known = {own for node, own in nodes if node.meta["custom"].get(RESULT)}
    for node, own in nodes:
        if own not in known and any(op_of(user) != own for user in users_behind_views(node)):
            node.meta["custom"] = {**node.meta["custom"], RESULT: True}


def users_behind_views(node: Node) -> list[Node]:
    """The nodes that use a node's result, directly or through views of it."""
    found: list[Node] = []
    pending = list(node.users)
    while pending:
        user = pending.pop()
        if user.op == "call_function" and is_view(user):
            pending.extend(user.users)
        else:
            found.append(user)
    return found


def assign_origins(graph: Graph, module: GraphModule, op_ids: Iterable[int]) -> None:
    """Assign to nodes without an op the ops that no node computes any more and whose results have the same users."""
    computed = {op for node in module.graph.nodes for op in ops_of(node)}
    vanished = set(op_ids) - computed
    flow = Flow.of(graph)
    for node in reversed(module.graph.nodes):
        # a replaced group leaves a library's call, or leftovers next to it
        if not vanished or op_of(node) is not None or "attention" not in str(node.target) or node.op != "call_function":
            continue
        users = [  # several results are taken one by one
            end
            for user in users_behind_views(node)
            for end in (users_behind_views(user) if user.target is operator.getitem else [user])
        ]
        found = _behind(flow, [op for user in users for op in ops_of(user)], vanished)
        if found:
            vanished -= found
            last, *others = sorted(found, reverse=True)
            node.meta["custom"] = {OP: last, ALSO: tuple(others), RESULT: True}


def _behind(flow: Flow, readers: Iterable[int], vanished: set[int]) -> set[int]:
    """The vanished ops that some ops depend on through vanished ops only."""
    found: set[int] = set()
    pending = list(readers)
    while pending:
        makers = {flow.writer[version] for _, version in flow.reads[pending.pop()]}
        new = makers & vanished - found
        found |= new
        pending += new
    return found
