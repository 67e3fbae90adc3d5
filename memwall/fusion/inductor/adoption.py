"""Which traced ops an FX node stands for that a graph pass put in the place of others: attention written by hand."""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import GraphModule, Node

from memwall.core.graph import Graph
from memwall.fusion.inductor.tags import ALSO, OP, RESULT, op_of, ops_of, users_behind_views


def adopt(graph: Graph, module: GraphModule, op_ids: Iterable[int]) -> None:
    """Give nodes without an op those ops that no node computes any more and whose results go where the node's go."""
    computed = {op for node in module.graph.nodes for op in ops_of(node)}
    vanished = set(op_ids) - computed
    writer = _writers(graph)
    for node in reversed(module.graph.nodes):
        if not vanished or node.op != "call_function" or op_of(node) is not None or not _computes(node):
            continue
        readers = [op for user in _users(node) for op in ops_of(user)]
        found = _behind(graph, readers, vanished, writer)
        if found:
            vanished -= found
            last, *others = sorted(found, reverse=True)
            node.meta["custom"] = {OP: last, ALSO: tuple(others), RESULT: True}


def _computes(node: Node) -> bool:
    """Whether a library does the node's work: what is left of a replaced group is such a call, or scraps beside it."""
    return "attention" in str(node.target)


def _users(node: Node) -> list[Node]:
    """Who uses the results of a call, be it one tensor or several."""
    found = []
    for user in users_behind_views(node):
        taken = str(user.target).startswith("<built-in function getitem")
        found.extend(users_behind_views(user) if taken else [user])
    return found


def _writers(graph: Graph) -> dict[tuple[int, int], int]:
    """(storage, reading op) -> the op that wrote the storage last before."""
    last: dict[int, int] = {}
    result: dict[tuple[int, int], int] = {}
    for op in graph.ops:
        for value_id in op.inputs:
            storage = graph.values[value_id].storage
            if storage in last:
                result[storage, op.id] = last[storage]
        for value_id in op.outputs:
            last[graph.values[value_id].storage] = op.id
    return result


def _behind(graph: Graph, readers: list[int], vanished: set[int], writer: dict[tuple[int, int], int]) -> set[int]:
    """The vanished ops that some ops' inputs come from, through vanished ops only."""
    found: set[int] = set()
    pending = list(readers)
    while pending:
        op = graph.ops[pending.pop()]
        for value_id in op.inputs:
            maker = writer.get((graph.values[value_id].storage, op.id))
            if maker in vanished and maker not in found:
                found.add(maker)
                pending.append(maker)
    return found
