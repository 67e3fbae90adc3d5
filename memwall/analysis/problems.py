"""The size of a kernel's problem, as short as tells it from others: ``8x1024x64x1024`` for products (batch, M, N, K).

A convolution is its input, then its filters: ``32x64x56x56*128x3x3/2`` (N, C, H, W; output channels, window, stride).
Attention is batch, heads, queries and head size, with the keys where there are others than queries. A recurrent layer
is its steps, rows and features, then hidden size, layers and directions: ``100x16x128*256x3x1``. Anything else is its
largest tensor, or how many tensors it writes. In backward a product is ``dX`` or ``dW``: the gradient of its input or
of its weight, unless it computes again what forward did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from memwall.core.graph import Graph, Op
from memwall.ops import Cost
from memwall.ops.product_launches import Convolution, FusedAttention, Gemm, Recurrent
from memwall.ops.registry import is_recurrent

#: ops that keep a tensor, perhaps in another dtype, or gather its shards; ops that add to a gradient, or scatter it
_COPIES = (
    "aten._to_copy", "aten.copy_", "aten.clone", "aten._foreach_copy_", "aten.split_with_sizes_copy",
    "c10d._allgather_base_",
    "lax.transpose", "lax.reshape", "lax.convert_element_type", "lax.dynamic_slice", "lax.copy",
)  # fmt: skip
_SUMS = (
    "aten.add", "aten.add_", "aten.div", "aten._chunk_cat", "c10d._reduce_scatter_base_",
    "lax.add_any", "lax.dynamic_update_slice",
)  # fmt: skip
#: a call that writes more tensors than these has them counted
_MANY = 8
_CONVOLVED = {"input": "dX", "weight": "dW"}


class Problems:
    """The problems of one graph's kernels. ``costs[i]`` is the cost of ``graph.ops[i]``."""

    def __init__(self, graph: Graph, costs: Sequence[Cost]) -> None:
        self._graph, self._costs = graph, costs
        self._weights = {s.id for s in graph.storages if s.role == "parameter"}
        self._gradients = {s.id for s in graph.storages if s.role == "gradient"}
        for op in _named(graph, _COPIES):
            if not self._weights.isdisjoint(self._storages(op.inputs)):
                self._weights.update(self._storages(op.outputs))
        for op in reversed(_named(graph, _COPIES + _SUMS)):
            if not self._gradients.isdisjoint(self._storages(op.outputs)):
                self._gradients.update(self._storages(op.inputs))

    def of(self, op_ids: Sequence[int]) -> str:
        """The problem of a kernel: its first product's, if it has one."""
        for i in op_ids:
            op = self._graph.ops[i]
            parts = [(_text(launch), launch) for launch in self._costs[i].launches]
            if known := [(text, launch) for text, launch in parts if text]:
                roles = [_CONVOLVED.get(launch.role, "") for _, launch in known if isinstance(launch, Convolution)]
                return " ".join(filter(None, (*(roles or [self._gradient(op)]), known[0][0])))
        return self._largest([self._graph.ops[i] for i in op_ids])

    def _gradient(self, op: Op) -> str:
        if op.phase != "backward" or op.again or op.op_class != "contraction" or is_recurrent(op.name):
            return ""
        if not self._gradients.isdisjoint(self._storages(op.outputs)):
            return "dW"
        return "" if self._weights.isdisjoint(self._storages(op.inputs)) else "dX"

    def _storages(self, ids: Sequence[int]) -> set[int]:
        return {self._graph.values[i].storage for i in ids}

    def _largest(self, ops: Sequence[Op]) -> str:
        if len(ops) == 1 and len(ops[0].outputs) > _MANY:
            return f"{len(ops[0].outputs):,} tensors"
        specs = self._graph.specs(i for op in ops for i in (*op.outputs, *op.inputs))
        return _times(max(specs, key=lambda spec: spec.numel).shape) if specs else ""


def _named(graph: Graph, names: Sequence[str]) -> list[Op]:
    return [op for op in graph.ops if op.name in names or op.name.rpartition(".")[0] in names]


def _text(launch: object) -> str:
    """What the geometry of a launch says of its problem; nothing where it has none."""
    if isinstance(launch, Gemm):
        return _times((*((launch.batch,) if launch.batch > 1 else ()), launch.m, launch.n, launch.k))
    if isinstance(launch, Convolution):
        image = _times((launch.images, launch.groups * launch.channels_in, *launch.places_in))
        stride = f"/{launch.stride[0]}" if any(step > 1 for step in launch.stride) else ""
        return f"{image}*{_times((launch.groups * launch.channels_out, *launch.kernel))}{stride}"
    if isinstance(launch, Recurrent):
        rows = math.ceil(launch.rows / launch.steps)
        of_layers = _times((launch.hidden, launch.layers, launch.directions))
        return f"{_times((launch.steps, rows, launch.inputs))}*{of_layers}"
    if isinstance(launch, FusedAttention):
        keys = f", {launch.keys} keys" if launch.keys != launch.queries else ""
        return _times((launch.batch, launch.heads, launch.queries, launch.head_size)) + keys
    return ""


def _times(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes)) or "1"
