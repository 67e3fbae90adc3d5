"""Whole encoder layers (spcl/substation): BERT-large, fp16, forward and backward, on a V100-SXM2.

The layer is summed from its ops as Ivanov et al. list them, one PyTorch op for each, biases separate from products; a
trace of the same layer (``profiles/bert_layer``) gives the same kernels. Views move nothing; the launch queue is full,
and L2 is assumed cold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from memwall.bench.accuracy.kinds import Record, Skip
from memwall.bench.accuracy.samples import Sample
from memwall.core.graph import TensorSpec, contiguous
from memwall.ops import Cost
from memwall.ops import table_calls as calls
from memwall.simulate.power import in_loop
from memwall_lab.tables.base import Call, Table

_DTYPE = "float16"
_WIDTH, _HEADS, _FFN = 1024, 16, 4096
#: share of a layer's time that matmuls take (Ivanov et al. 2021, table 1)
_PRODUCTS = 0.61


def _encoder(record: Record) -> Call:
    sizes = re.search(r"\bb(\d{1,6}) s(\d{1,6})\b", str(record["config"]))
    if not sizes:
        raise Skip("its config states no batch and sequence")
    if record["implementation"] != "PyTorch":
        raise Skip("the kernels of another framework")
    batch, sequence = map(int, sizes.groups())
    cost = sum(layer_costs(batch, sequence), start=Cost(launches=()))
    return Call(op_class="encoder layer", dtype=_DTYPE, shape=str(record["config"]), cost=cost, warm=0)


def layer_costs(batch: int, sequence: int) -> Iterator[Cost]:
    """The kernels of one layer, forward, then backward."""
    tokens, heads = batch * sequence, batch * _HEADS
    scores = (heads * sequence, sequence)
    yield from _linear(tokens, 3 * _WIDTH, _WIDTH)
    yield from _attention(heads, sequence)
    yield _map("clone", (tokens, _WIDTH))  # the heads side by side again
    yield calls.softmax(scores, _DTYPE)
    data = _half(*scores)
    inputs = (("grad_output", data), ("output", data))
    yield calls.cost("aten._softmax_backward_data.default", inputs, [data], dim=-1, input_dtype=_DTYPE)
    yield from _dropout(scores)
    gradients = [("tensors", _half(tokens, _WIDTH))] * 3  # of q, k and v
    yield calls.cost("aten.stack.default", gradients, [_half(tokens, 3 * _WIDTH)])
    for wide, narrow in ((_WIDTH, _WIDTH), (_WIDTH, _FFN)):
        yield from _linear(tokens, wide, narrow)
        yield from _dropout((tokens, _WIDTH))
        yield _map("add.Tensor", (tokens, _WIDTH), 2)  # the residual, and the sum of two gradients
        yield _map("add.Tensor", (tokens, _WIDTH), 2)
        yield from _norm(tokens)
    yield from _linear(tokens, _FFN, _WIDTH)
    yield _map("relu.default", (tokens, _FFN))
    hidden = _half(tokens, _FFN)
    inputs = (("grad_output", hidden), ("self", hidden))
    yield calls.cost("aten.threshold_backward.default", inputs, [hidden], threshold=0)
    yield from _dropout((tokens, _FFN))


def _half(*shape: int) -> TensorSpec:
    return contiguous(shape, _DTYPE)


def _map(name: str, shape: tuple[int, ...], operands: int = 1) -> Cost:
    return calls.elementwise(f"aten.{name}", shape, _DTYPE, operands)


def _linear(tokens: int, columns: int, depth: int) -> Iterator[Cost]:
    """A product and its bias; the gradients of its input, its weight and its bias."""
    yield calls.product(tokens, columns, depth, _DTYPE)
    yield _map("add.Tensor", (tokens, columns))
    yield calls.product(tokens, depth, columns, _DTYPE)
    yield calls.product(depth, columns, tokens, _DTYPE)
    yield calls.cost("aten.sum.dim_IntList", (("self", _half(tokens, columns)),), [_half(1, columns)], dim=[0])


def _attention(heads: int, sequence: int) -> Iterator[Cost]:
    """Scores and their product with the values; two gradients each."""
    size = _WIDTH // _HEADS
    for columns, depth in ((sequence, size), (size, sequence)):
        yield calls.batched_product(heads, sequence, columns, depth, _DTYPE)
        yield calls.batched_product(heads, sequence, depth, columns, _DTYPE)
        yield calls.batched_product(heads, depth, columns, sequence, _DTYPE)


def _dropout(shape: tuple[int, ...]) -> Iterator[Cost]:
    data, mask = _half(*shape), contiguous(shape, "bool")
    yield calls.cost("aten.native_dropout.default", (("input", data),), [data, mask], p=0.1, train=True)
    yield calls.cost("aten.native_dropout_backward.default", (("grad_output", data), ("mask", mask)), [data], scale=1.1)


def _norm(tokens: int) -> Iterator[Cost]:
    yield calls.layer_norm((tokens, _WIDTH), _DTYPE)
    yield calls.layer_norm_backward((tokens, _WIDTH), _DTYPE)


class Steps(Table):
    """A table of steps that follow each other."""

    def _sample(self, record: Record, call: Call) -> Sample:
        sample = super()._sample(record, call)
        return replace(sample, gpu=in_loop(sample.gpu, _PRODUCTS, 1 - _PRODUCTS))


#: all of it was measured on one GPU
ENCODER = Steps("ivanov_encoder_e2e", "what config implementation ms", _encoder, gpu="V100-SXM2-16GB", time="ms")
