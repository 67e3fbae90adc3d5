"""Products of which a part is known to be zero, or is not needed: a kernel that knows leaves it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memwall.core.flow import Flow
from memwall.core.graph import Graph, Op
from memwall.ops import Cost

#: ops that make a matrix of which the diagonal alone is not zero, and a triangle alone
_DIAGONAL, _TRIANGLE = ("aten.diag_embed", "aten.eye", "aten.eye.m"), ("aten.tril", "aten.triu")


def of_needed(graph: Graph, costs: Sequence[Cost]) -> list[Cost]:
    """The costs with the FLOPs of products that meet no zeros of a diagonal or triangular operand, for the results
    that later ops read or the caller gets."""
    flow, found = Flow.of(graph), list(costs)
    for op in graph.ops:
        if op.op_class != "contraction" or not costs[op.id].flops or op.phase != "forward":
            continue
        share = _results(graph, flow, op)
        for value, version in flow.reads[op.id]:
            writer = graph.ops[flow.writer[version]] if flow.writer[version] >= 0 else op
            if writer.outputs and graph.values[value].spec.numel == graph.values[writer.outputs[0]].spec.numel:
                share *= _not_zero(graph, writer)
        if share < 1:
            flops = {pipe: int(count * share) for pipe, count in costs[op.id].flops.items()}
            found[op.id] = replace(costs[op.id], flops=flops)
    return found


def _not_zero(graph: Graph, writer: Op) -> float:
    """The share of what an op writes that may differ from zero."""
    rows, columns = (1, 1, *graph.values[writer.outputs[0]].spec.shape)[-2:]
    if writer.name in _DIAGONAL:
        return min(rows, columns) / max(rows * columns, 1)
    if writer.name in _TRIANGLE and rows * columns:
        upper, diagonal = writer.name == "aten.triu", int(writer.attributes.get("diagonal", 0))
        ends = (min(max(row + diagonal + (not upper), 0), columns) for row in range(rows))
        kept = sum(columns - end if upper else end for end in ends)
        return kept / (rows * columns)
    return 1.0


def _results(graph: Graph, flow: Flow, op: Op) -> float:
    """The share of a product's results that ops read, or the caller gets."""
    ((value, version), *others) = flow.writes[op.id] or ((0, 0), (0, 0))
    readers, whole = flow.readers[version], graph.values[value].spec.numel
    given = [graph.values[v] for v in graph.outputs if graph.values[v].storage == flow.storage[version]]
    if others or not (readers or given) or (version in flow.kept and not given):
        return 1.0
    read = float(sum(value.spec.numel for value in given if version in flow.kept))
    for reader in readers:
        share = _not_zero(graph, graph.ops[reader]) if graph.ops[reader].name in _TRIANGLE else 1.0
        read += sum(graph.values[v].spec.numel * share for v, n in flow.reads[reader] if n == version)
    return min(read / max(whole, 1), 1.0)
