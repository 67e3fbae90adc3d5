"""Products in the dtype that their operands are stored in: one of 8 bits that is cast to float32 for a product has no
more than 8 bits, and a kernel may multiply it on the tensor cores of that dtype."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memwall.core.flow import Flow
from memwall.core.graph import Graph, Pipe, TensorSpec
from memwall.fusion.rules import MATRIX_CLASSES
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops.contraction import product_pipe


def in_stored_dtypes(graph: Graph, costs: Sequence[Cost], gpu: Gpu) -> list[Cost]:
    """The costs with the FLOPs of products on the pipe of the wider of their operands as they are stored, where a GPU
    has one that is faster."""
    flow, found = Flow.of(graph), list(costs)
    for op in graph.ops:
        cost = found[op.id]
        if op.op_class not in MATRIX_CLASSES or len(cost.flops) != 1:
            continue
        stored = [
            spec for spec in (_stored(graph, flow, version, value) for value, version in flow.reads[op.id]) if spec
        ]
        if len(stored) < 2:
            continue
        pipe = product_pipe(max(stored[:2], key=lambda spec: spec.itemsize).dtype, {})
        (written,) = cost.flops
        if gpu.peak_flop_per_s.get(pipe, 0.0) > gpu.peak(written):
            found[op.id] = replace(cost, flops={pipe: cost.total_flops})
    return found


#: products of TF32 of which one of float32 is the sum (CUTLASS, example 27: as accurate)
SPLIT = 3


def in_parts(graph: Graph, costs: Sequence[Cost], gpu: Gpu) -> list[Cost]:
    """The costs with each product of float32 on vector units as several of TF32, where a GPU is faster so."""
    whole, part, found = product_pipe("float32", {}), Pipe("tensor", "tf32"), list(costs)
    if gpu.peak_flop_per_s.get(part, 0.0) <= SPLIT * gpu.peak(whole):
        return found
    for op in graph.ops:
        cost = found[op.id]
        if op.op_class in MATRIX_CLASSES and cost.flops.keys() == {whole}:
            found[op.id] = replace(cost, flops={part: SPLIT * cost.total_flops})
    return found


def _stored(graph: Graph, flow: Flow, version: int, value: int) -> TensorSpec | None:
    """What a product's operand is made of: the largest of the tensors that ops other than products make it of."""
    seen, stack, found = {version}, [(value, version)], list[TensorSpec]()
    while stack:
        value, version = stack.pop()
        writer = flow.writer[version]
        if writer < 0 or graph.ops[writer].op_class in MATRIX_CLASSES:
            found.append(graph.values[value].spec)
            continue
        for other in flow.reads[writer]:
            if other[1] not in seen:
                seen.add(other[1])
                stack.append(other)
    return max(found, key=lambda spec: spec.numel, default=None)
