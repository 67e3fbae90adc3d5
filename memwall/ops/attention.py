"""Fused attention, with b batches, h query heads, s queries, t keys, head sizes d (query, key) and dv (value).

- Forward: ``2 * b * h * pairs * (d + dv)`` where ``pairs`` is the number of (query, key) pairs to compute: ``s * t``,
  or those on and under the diagonal where the call is causal, or inside its window. ``dense_flops`` has the figure
  without any mask, as other tools report it. Key and value heads may be fewer than h (grouped queries).
- ``is_causal`` of ``scaled_dot_product_*`` aligns the diagonal at the top left (query 0 sees key 0 only); the raw
  ``_flash_attention_*`` and mask type 2 of ``_efficient_attention_*`` align it at the bottom right.
- Backward: four products (dV, dP, dQ, dK), twice the forward; recomputing QK^T goes in ``extra_flops``.
- Softmax, scaling, dropout and an additive mask are not counted as FLOPs. A dense mask never lowers the count.
- Variable-length calls are costed as sequences of equal length: for self-attention the least that the same number of
  tokens can cost, so the bound stays a bound.
- Keys and values in pages (``block_table``) are of full contexts, ``max_k`` tokens or what the table's pages
  hold: the lengths are data.
- Bytes: query, key, value, mask and saved outputs once each; no score matrix. float32 runs in the memory-efficient
  kernel on the tensor engine as three TF32 products (gemm_kernel_utils.h, OpMultiplyAddFastF32): one is counted,
  :mod:`memwall.perfmodel.attention` knows of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from memwall.core.graph import Pipe, TensorSpec
from memwall.ops.base import Call, Cost
from memwall.ops.contraction import product_pipe
from memwall.ops.launches import Launch, Stream
from memwall.ops.product_launches import FusedAttention
from memwall.ops.registry import define, formula
from memwall.ops.results import products

#: the kernel of each op's name; flash for other names
_KERNELS = ("flash", "efficient", "cudnn")
op = partial(formula, "attention")

_RANDOM_STATE = frozenset(("philox_seed", "philox_offset", "rng_state", "unused"))
_CUMULATIVE = (("cum_seq_q", "cum_seq_k"), ("cu_seqlens_q", "cu_seqlens_k"))


class _Shape(NamedTuple):
    """The problem: batch times heads, queries and keys per sequence, head sizes, and heads of the keys."""

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    value_size: int
    key_heads: int


def _shape(call: Call) -> _Shape:
    query, key, value = call.need("query").shape, call.need("key").shape, call.need("value").shape
    if "._scaled_dot_product_" in call.name:
        batch, heads, queries = math.prod(query[:-3]), query[-3], query[-2]
        return _Shape(batch, heads, queries, key[-2], query[-1], value[-1], key[-3])
    batch, queries, keys = math.prod(query[:-3]), query[-3], key[-3]
    for query_name, _ in _CUMULATIVE:
        offsets = call.arg(query_name)
        if offsets is not None and offsets.numel > 1:
            sequences = (offsets.numel - 1) * batch
            queries, keys, batch = queries * batch // sequences, keys * batch // sequences, sequences
    if (table := call.arg("block_table")) is not None:  # keys and values lie in pages: [pages, tokens, heads, size]
        keys = table.shape[-1] * key[-3]
        if (longest := call.attributes.get("max_k")) is not None:
            keys = min(keys, longest)
    return _Shape(batch, query[-2], queries, keys, query[-1], value[-1], key[-2])


def _triangle(rows: int, limit: int) -> int:
    """Sum of min(i, limit) for i in 1..rows."""
    if rows <= 0:
        return 0
    full = min(rows, limit)
    return full * (full + 1) // 2 + (rows - full) * limit


def pairs_up_to(queries: int, keys: int, diagonal: int) -> int:
    """How many (i, j) have ``j <= i + diagonal``, with i < queries and 0 <= j < keys."""
    return _triangle(diagonal + queries, keys) - _triangle(diagonal, keys)


def _window(call: Call, name: str) -> int | None:
    size = call.attributes.get(name)
    return None if size is None or size < 0 else size


def _diagonal(call: Call, queries: int, keys: int) -> tuple[int, int | None, int | None]:
    """The key on whose diagonal query 0 stands, and how many keys before and after its own a query attends to; None:
    all."""
    mask_type = call.attributes.get("custom_mask_type", 0)
    causal = bool(call.attributes.get("is_causal")) or mask_type in (1, 2)
    bottom_right = mask_type == 2 or "._flash_attention_" in call.name
    diagonal = keys - queries if bottom_right else 0
    left = _window(call, "window_size_left")
    right = 0 if causal else _window(call, "window_size_right")
    if call.attributes.get("window_size"):  # of the memory-efficient kernel: keys before the diagonal, causal only
        left = call.attributes["window_size"] - 1
    return diagonal, left, right


def _pairs(call: Call, queries: int, keys: int) -> int:
    """The (query, key) pairs that a kernel cannot skip."""
    diagonal, left, right = _diagonal(call, queries, keys)
    upper = queries * keys if right is None else pairs_up_to(queries, keys, diagonal + right)
    lower = 0 if left is None else pairs_up_to(queries, keys, diagonal - left - 1)
    return max(upper - lower, 0)


def _unseen_bytes(call: Call, shape: _Shape) -> int:
    """Bytes of keys and values that no query attends to: after the diagonal of the last one, before the window of the
    first."""
    diagonal, left, right = _diagonal(call, shape.queries, shape.keys)
    first = 0 if left is None else min(max(diagonal - left, 0), shape.keys)
    stop = shape.keys if right is None else min(max(shape.queries + diagonal + right, first), shape.keys)
    key, value = call.need("key"), call.need("value")
    shared = key.nbytes + value.nbytes
    if call.arg("block_table") is not None:  # of the pages, what the sequences fill
        row_bytes = shape.key_heads * (shape.size * key.itemsize + shape.value_size * value.itemsize)
        return max(shared - shape.batch * (stop - first) * row_bytes, 0)
    return shared - shared * (stop - first) // max(shape.keys, 1)


def _launch(call: Call, shape: _Shape, pipe: Pipe, read_bytes: int, write_bytes: int, backward: bool) -> FusedAttention:
    """The launch that computes the pairs."""
    query = call.need("query")
    return FusedAttention(
        pipe=pipe,
        kernel=call.attributes.get("implementation") or next((name for name in _KERNELS if name in call.name), "flash"),
        backward=backward,
        batch=shape.batch,
        heads=shape.heads,
        kv_heads=shape.key_heads,
        queries=shape.queries,
        keys=shape.keys,
        head_size=shape.size,
        value_size=shape.value_size,
        pairs=_pairs(call, shape.queries, shape.keys),
        itemsize=query.itemsize,
        read_bytes=read_bytes,
        write_bytes=write_bytes,
    )


#: ``_scaled_dot_product_*``: [b, heads, length, size]; the others: [b, length, heads, size], or [tokens, heads, size]
#: with cumulative sequence lengths
@op("_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention"
    " _scaled_dot_product_fused_attention_overrideable _flash_attention_forward _efficient_attention_forward",
    results=products.attention)  # fmt: skip
@op("_scaled_dot_product_flash_attention_for_cpu _flash_attention_forward_no_dropout_inplace")
def attention(call: Call) -> Cost:
    """``query`` [b, h, s, d], ``key`` [b, hk, t, d], ``value`` [b, hk, t, dv]: two products, one kernel."""
    shape = _shape(call)
    per_pair = 2 * shape.batch * shape.heads * (shape.size + shape.value_size)
    flops = per_pair * _pairs(call, shape.queries, shape.keys)
    pipe = product_pipe(call.need("query").dtype, call.attributes, allow_tf32=True)
    write_bytes = call.write_bytes - _random_state_bytes(call, call.outputs)
    read_bytes = call.read_bytes - _unseen_bytes(call, shape)
    return call.cost(
        {pipe: flops},
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        dense_flops=per_pair * shape.queries * shape.keys,
        launches=(_launch(call, shape, pipe, read_bytes, write_bytes, backward=False),),
    )


def _random_state_bytes(call: Call, specs: Sequence[TensorSpec]) -> int:
    """Bytes of the random generator's state, which is passed along and not touched where nothing is dropped."""
    if call.attributes.get("dropout_p", 0):
        return 0
    return sum(spec.nbytes for spec in specs if spec.dtype in ("uint64", "int64") and spec.numel <= 2)


@op("_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward"
    " _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_fused_attention_overrideable_backward"
    " _flash_attention_backward _efficient_attention_backward", results=products.attention_backward)  # fmt: skip
@op("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(call: Call) -> Cost:
    """Four products and, not in ``flops``, the recomputed scores."""
    shape = _shape(call)
    pairs = _pairs(call, shape.queries, shape.keys)
    per_pair = 4 * shape.batch * shape.heads * (shape.size + shape.value_size)
    pipe = product_pipe(call.need("query").dtype, call.attributes, allow_tf32=True)
    state = [spec for name, spec in zip(call.arguments, call.inputs, strict=True) if name in _RANDOM_STATE]
    read_bytes = call.read_bytes - _random_state_bytes(call, state) - _unseen_bytes(call, shape)
    return call.cost(
        {pipe: per_pair * pairs},
        read_bytes=read_bytes,
        dense_flops=per_pair * shape.queries * shape.keys,
        launches=_backward_launches(call, shape, pipe, read_bytes),
    )


def _backward_launches(call: Call, shape: _Shape, pipe: Pipe, read_bytes: int) -> tuple[Launch, ...]:
    """Every variant first reduces ``grad_out * out`` to one number per query. Flash (flash_bwd_launch_template.h) also
    accumulates dQ in float32 (cleared, summed, then converted), and sums dK and dV over the query heads that share a
    key head in a further pass each (flash_api.cpp)."""
    grad, out, query = call.arg("grad_out") or call.need("grad_out_"), call.need("out"), call.need("query")
    shared = (call.need("key"), call.need("value"))
    row_bytes = 4 * shape.batch * shape.heads * shape.queries
    sums_bytes, group, after = 0, 1, []
    if "flash" in call.name:
        sums_bytes, group = 4 * query.numel, shape.heads // shape.key_heads
        after.append(Stream(read_bytes=sums_bytes, write_bytes=query.nbytes, elements=query.numel))
    if group > 1:
        after += [
            Stream(read_bytes=group * spec.nbytes, write_bytes=spec.nbytes, elements=spec.numel) for spec in shared
        ]
    before = Stream(read_bytes=grad.nbytes + out.nbytes, write_bytes=row_bytes + sums_bytes, elements=out.numel)
    write_bytes = call.write_bytes + (group - 1) * sum(spec.nbytes for spec in shared)
    write_bytes += sums_bytes - query.nbytes if sums_bytes else 0
    kernel = _launch(call, shape, pipe, read_bytes - out.nbytes + row_bytes, write_bytes, backward=True)
    return before, kernel, *after


# -- results of calls that attention libraries recorded ---------------------------------------------------------------

define("flash_attn::_flash_attn_forward flash_attn::_flash_attn_varlen_forward aiter::_flash_attn_forward"
       " aiter::mha_fwd aiter::fmha_v3_fwd aiter::wrapper_fmha_v3_fwd", results=products.attention)  # fmt: skip
define("flash_attn::_flash_attn_backward flash_attn::_flash_attn_varlen_backward aiter::_flash_attn_backward"
       " aiter::mha_bwd aiter::wrapper_fmha_v3_bwd", results=products.attention_backward)  # fmt: skip
