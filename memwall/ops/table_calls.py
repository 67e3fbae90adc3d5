"""Calls built from shapes, without torch: what a row of a table ran, as the cost formulas see it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from memwall.core.graph import ITEMSIZE, Pipe, TensorSpec, contiguous
from memwall.ops import Call, Cost, cost_of
from memwall.ops.launches import Launch, Rows, Stream
from memwall.ops.product_launches import Convolution, FusedAttention, Gemm, VectorGemm

Inputs = Sequence[tuple[str, TensorSpec]]


def cost(name: str, inputs: Inputs, outputs: Sequence[TensorSpec], **attributes: Any) -> Cost:
    """The cost of one call; ``inputs`` are (schema argument, spec) in schema order, each in a storage of its own."""
    specs = tuple(spec for _, spec in inputs)
    names = tuple(argument for argument, _ in inputs)
    read, write = sum(spec.nbytes for spec in specs), sum(spec.nbytes for spec in outputs)
    return cost_of(Call(name, specs, names, tuple(outputs), attributes, read, write))


@lru_cache(maxsize=1 << 16)
def product(m: int, n: int, k: int, dtype: str, *, bias: bool = False, out: str = "") -> Cost:
    """``[m, k] x [k, n]`` of one dtype; ``out`` is the result's where it is another."""
    left, right, result = (contiguous(s, dtype) for s in ((m, k), (k, n), (m, n)))
    result = contiguous((m, n), out or dtype)
    if bias:
        inputs = (("self", contiguous((n,), dtype)), ("mat1", left), ("mat2", right))
        return cost("aten.addmm.default", inputs, [result], allow_tf32=False)
    name = "aten._scaled_mm.default" if dtype.startswith("float8") else "aten.mm.default"
    return cost(name, (("self", left), ("mat2", right)), [result], allow_tf32=False)


@lru_cache(maxsize=1 << 16)
def batched_product(batch: int, m: int, n: int, k: int, dtype: str) -> Cost:
    """``[batch, m, k] x [batch, k, n]``."""
    inputs = (("self", contiguous((batch, m, k), dtype)), ("mat2", contiguous((batch, k, n), dtype)))
    return cost("aten.bmm.default", inputs, [contiguous((batch, m, n), dtype)], allow_tf32=False)


def in_float32(given: Cost) -> Cost:
    """The same work with float32 arithmetic on half-precision operands, as cublasSgemmEx does it."""
    pipe = Pipe("tensor", "float32")
    return replace(given, flops={pipe: given.total_flops}, launches=tuple(_in(pipe, work) for work in given.launches))


def in_aligned_rows(given: Cost) -> Cost:
    """The same work with rows that are padded to whole 16 bytes."""
    padded = (replace(work, aligned=True) if isinstance(work, Gemm) else work for work in given.launches)
    return replace(given, launches=tuple(padded))


def _in(pipe: Pipe, work: Launch) -> Launch:
    """A launch on another pipe."""
    if isinstance(work, Gemm):
        known = {item.name: getattr(work, item.name) for item in fields(Gemm)}
        return VectorGemm(**{**known, "pipe": pipe})
    return replace(work, pipe=pipe) if isinstance(work, Convolution) else work


@lru_cache(maxsize=1 << 16)
def elementwise(name: str, shape: tuple[int, ...], dtype: str, operands: int) -> Cost:
    """An op of one or two operands of the same shape."""
    spec = contiguous(shape, dtype)
    inputs = [("self", spec), ("other", spec)][:operands]
    return cost(name, inputs, [spec])


@lru_cache(maxsize=1 << 16)
def softmax(shape: tuple[int, ...], dtype: str) -> Cost:
    """Softmax over the last axis."""
    spec = contiguous(shape, dtype)
    return cost("aten._softmax.default", (("self", spec),), [spec], dim=-1, half_to_float=False)


@lru_cache(maxsize=1 << 16)
def cross_entropy(rows: int, classes: int, dtype: str, threads: int | None = None) -> Cost:
    """``F.cross_entropy`` forward, two ops: a log-softmax, and the mean of the targets' entries, which so many
    ``threads`` pick (None: as torch takes them since 2.8; 32 before)."""
    logits, targets, loss = (contiguous((rows, classes), dtype), contiguous((rows,), "int64"), contiguous((), dtype))
    inputs = (("self", logits),)
    picked = (("self", logits), ("target", targets))
    return cost("aten._log_softmax.default", inputs, [logits], dim=1, half_to_float=False) + cost(
        "aten.nll_loss_forward.default", picked, [loss, loss], reduction=1, ignore_index=-100, threads=threads
    )


@lru_cache(maxsize=1 << 16)
def layer_norm(shape: tuple[int, ...], dtype: str) -> Cost:
    """Layer norm over the last axis, with weight and bias; its moments are saved in float32."""
    data, weight, moments = _normed(shape, dtype)
    inputs = (("input", data), ("weight", weight), ("bias", weight))
    return cost(
        "aten.native_layer_norm.default", inputs, [data, moments, moments], normalized_shape=shape[-1:], eps=1e-5
    )


@lru_cache(maxsize=1 << 16)
def layer_norm_backward(shape: tuple[int, ...], dtype: str) -> Cost:
    """The gradients of its input, its weight and its bias."""
    data, weight, moments = _normed(shape, dtype)
    names = ("grad_out", "input", "mean", "rstd", "weight", "bias")
    inputs = tuple(zip(names, (data, data, moments, moments, weight, weight), strict=True))
    return cost(
        "aten.native_layer_norm_backward.default",
        inputs,
        [data, weight, weight],
        normalized_shape=shape[-1:],
        output_mask=[True] * 3,
    )


@lru_cache(maxsize=1 << 16)
def rms_norm(shape: tuple[int, ...], dtype: str) -> Cost:
    """RMS norm over the last axis, with a weight; a reciprocal for each row is saved in float32."""
    data, weight, reciprocals = _normed(shape, dtype)
    inputs = (("input", data), ("weight", weight))
    return cost("aten._fused_rms_norm.default", inputs, [data, reciprocals], normalized_shape=shape[-1:])


@lru_cache(maxsize=1 << 16)
def rms_norm_backward(shape: tuple[int, ...], dtype: str) -> Cost:
    """The gradients of its input and its weight."""
    data, weight, reciprocals = _normed(shape, dtype)
    inputs = (("grad_out", data), ("input", data), ("rstd", reciprocals), ("weight", weight))
    return cost(
        "aten._fused_rms_norm_backward.default",
        inputs,
        [data, weight],
        normalized_shape=shape[-1:],
        output_mask=[True] * 2,
    )


def _normed(shape: tuple[int, ...], dtype: str) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """What is normalised over its last axis, a weight, and a float32 number for each row."""
    return contiguous(shape, dtype), contiguous(shape[-1:], dtype), contiguous((*shape[:-1], 1), "float32")


@lru_cache(maxsize=1 << 16)
def convolution(
    data: tuple[int, ...],
    weight: tuple[int, ...],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dtype: str,
    role: str = "forward",
) -> Cost:
    """A convolution in NCHW without bias and without TF32, or its backward for the ``input`` or the ``weight``; by the
    fastest of the library's engines (DeepBench and NeuSight searched for it)."""
    sizes = tuple(
        (size + 2 * pad - window) // step + 1
        for size, pad, window, step in zip(data[2:], padding, weight[2:], stride, strict=True)
    )
    x, w = contiguous(data, dtype), contiguous(weight, dtype)
    y = contiguous((data[0], weight[0], *sizes), dtype)
    common = {
        "stride": list(stride),
        "padding": list(padding),
        "dilation": [1, 1],
        "transposed": False,
        "output_padding": [0, 0],
        "groups": 1,
        "allow_tf32": False,
        "benchmark": True,
    }
    if role == "forward":
        return cost("aten.convolution.default", (("input", x), ("weight", w)), [y], **common)
    inputs = (("grad_output", y), ("input", x), ("weight", w))
    mask = [role == "input", role == "weight", False]
    return cost("aten.convolution_backward.default", inputs, [x if mask[0] else w], output_mask=mask, **common)


@lru_cache(maxsize=1 << 16)
def fused_attention(
    kernel: str,
    batch: int,
    heads: tuple[int, int],
    lengths: tuple[int, int],
    sizes: tuple[int, int],
    dtype: str,
    *,
    causal: bool,
    window: int | None = None,
    backward: bool = False,
) -> Cost:
    """Attention, forward or backward, by a ``kernel`` of :class:`memwall.ops.product_launches.FusedAttention`.

    Args:
        heads: of the queries, and of the keys and values.
        lengths: queries and keys of a sequence; the diagonal of a causal call ends at both last ones.
        sizes: numbers of a query's head, and of a value's.
        dtype: of queries, keys and values; the result of eight-bit ones is bfloat16.
        window: the most keys that a query attends to, its own among them; None: all.
    """
    (query_heads, key_heads), (queries, keys), (size, value_size) = heads, lengths, sizes
    wide = dtype if ITEMSIZE[dtype] > 1 else "bfloat16"
    query = contiguous((batch, queries, query_heads, size), dtype)
    key, value = (contiguous((batch, keys, key_heads, width), dtype) for width in sizes)
    out = contiguous((batch, queries, query_heads, value_size), wide)
    sums = contiguous((batch, query_heads, queries), "float32")
    given = {"is_causal": causal, "window_size_left": None if window is None else window - 1, "dropout_p": 0.0}
    if not backward:
        inputs: Inputs = (("query", query), ("key", key), ("value", value))
        found = cost("aten._flash_attention_forward.default", inputs, [out, sums], **given)
    else:
        names = ("grad_out", "query", "key", "value", "out", "logsumexp")
        inputs = tuple(zip(names, (out, query, key, value, out, sums), strict=True))
        gradients = [contiguous(spec.shape, wide) for spec in (query, key, value)]
        found = cost(f"aten._{_LIKE[kernel]}_attention_backward.default", inputs, gradients, **given)
    launches = tuple(
        replace(work, kernel=kernel) if isinstance(work, FusedAttention) else work for work in found.launches
    )
    return replace(found, launches=launches)


#: kernel → the op of torch whose backward pass launches what the kernel's does
_LIKE = {"cudnn": "efficient", "cudnn_mxfp8": "efficient", "flash": "flash"}


@lru_cache(maxsize=1 << 16)
def stream(read_bytes: int, write_bytes: int, elements: int, *, instructions: int = 0, round_trips: int = 0) -> Cost:
    """A kernel that moves so many bytes once, with so many integer instructions for each of its ``elements``."""
    work = Stream(
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        elements=elements,
        instructions=instructions * elements,
        round_trips=round_trips,
    )
    return Cost({}, read_bytes, write_bytes, launches=(work,))


@lru_cache(maxsize=1 << 16)
def rows(kind: str, shape: tuple[int, ...], dtype: str, read: int, written: int) -> Cost:
    """A fused kernel with a block of 1024 threads a row, in two passes, that reads ``read`` and writes ``written``
    tensors of this shape."""
    spec = contiguous(shape, dtype)
    count = math.prod(shape[:-1])
    return row_kernel(kind, count, shape[-1], spec.itemsize, read * spec.nbytes, written * spec.nbytes)


@lru_cache(maxsize=1 << 16)
def row_kernel(kind: str, count: int, columns: int, itemsize: int, read_bytes: int, write_bytes: int) -> Cost:
    """The same over ``count`` rows and the given bytes, of which the second pass reads each row again."""
    work = Rows(
        kind=kind,
        rows=count,
        columns=columns,
        itemsize=itemsize,
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        rows_per_sm=2,
        second_pass_bytes=count * columns * itemsize,
    )
    return Cost({}, read_bytes, write_bytes, launches=(work,))
