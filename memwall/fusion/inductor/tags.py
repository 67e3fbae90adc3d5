"""Which traced op an FX node came from: what a node carries under ``meta["custom"]``, which torch's passes keep."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

#: Keys: the op's id, whether the node is what the op hands on, and further ops that went into the node.
OP, RESULT, ALSO = "memwall_op", "memwall_result", "memwall_also"

_ATEN: Any = torch.ops.aten


def op_of(node: Node) -> int | None:
    """The id of the op that an FX node computes a part of; None for views and for what no op asked for."""
    if is_view(node):
        return None
    number = (node.meta.get("custom") or {}).get(OP)
    return number if isinstance(number, int) else None


def ops_of(node: Node) -> tuple[int, ...]:
    """Like :func:`op_of`, with the further ops that a pass replaced by this node."""
    own = op_of(node)
    return () if own is None else (own, *node.meta["custom"].get(ALSO, ()))


def is_view(node: Node) -> bool:
    """Whether a node only looks at its input in another way."""
    target = node.target
    return node.op != "call_function" or getattr(target, "is_view", False) or target in _UNSEEN_VIEWS


def behind_views(node: Node) -> Node:
    """The node that a chain of views looks at."""
    while is_view(node) and node.args and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


_UNSEEN_VIEWS = frozenset(
    (_ATEN._unsafe_view.default, _ATEN.alias.default, _ATEN.detach.default, _ATEN.empty_strided.default)
)


def mark_results(module: GraphModule) -> None:
    """Mark the nodes that another op, or the caller, takes an op's result from, where no node of the op is marked."""
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
