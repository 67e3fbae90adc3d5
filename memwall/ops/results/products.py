"""Results of matrix products, recurrent layers and attention."""

from __future__ import annotations

import math

from memwall.core.errors import Unsupported
from memwall.core.graph import contiguous
from memwall.ops.recorded import Recorded, Rule, Specs, broadcast, dense, stated_dtype


def product(left: str, right: str) -> Rule:
    def rule(call: Recorded) -> Specs:
        a, b = call.need(left), call.need(right)
        if not a.shape or not b.shape:
            raise Unsupported("an operand of a matmul has no dims")
        rows = a.shape[:-1] if len(a.shape) > 1 else ()
        columns = b.shape[-1:] if len(b.shape) > 1 else ()
        batch = broadcast([a.shape[:-2], b.shape[:-2]]) if len(b.shape) > 2 else None
        shape = (*batch, *a.shape[-2:-1], *columns) if batch is not None else (*rows, *columns)
        return (contiguous(shape, stated_dtype(call, a.dtype)),)

    return rule


def linear(call: Recorded) -> Specs:
    """[..., k] x [n, k]."""
    data, weight = call.need("input"), call.need("weight")
    return (contiguous((*data.shape[:-1], *weight.shape[:-1]), data.dtype),)


def integer_product(call: Recorded) -> Specs:
    """int8 x int8 to int32."""
    (spec,) = product("self", "mat2")(call)
    return (contiguous(spec.shape, "int32"),)


def grouped_product(call: Recorded) -> Specs:
    """2D x 3D, 3D x 2D, 2D x 2D (one result a group) or 3D x 3D."""
    a, b, offsets = call.need("self"), call.need("mat2"), call.tensor("offs")
    if len(a.shape) == 2 and len(b.shape) == 2 and offsets is not None:
        shape: tuple[int, ...] = (offsets.numel, a.shape[0], b.shape[1])
    elif len(a.shape) == 3 and len(b.shape) == 3:
        shape = (a.shape[0], a.shape[1], b.shape[2])
    else:
        shape = (a.shape[-2], b.shape[-1])
    return (contiguous(shape, stated_dtype(call, a.dtype if a.itemsize > 1 else "bfloat16")),)


def linear_backward(call: Recorded) -> Specs:
    """Gradients of input, weight and bias."""
    return (call.need("self"), call.need("weight"))


def recurrent(call: Recorded) -> Specs:
    """An RNN's output for each step, and its last states."""
    data, state = call.need("input"), call.tensor("hx")
    hidden, directions = call.value("hidden_size"), 2 if call.value("bidirectional") is True else 1
    if state is not None:
        hidden = state.shape[-1]
    if type(hidden) is not int:
        raise Unsupported("the size of the state was not recorded")
    output = contiguous((*data.shape[:-1], directions * hidden), data.dtype)
    return (output, state, state) if state is not None else (output,)


def recurrent_backward(call: Recorded) -> Specs:
    """The gradients of input and weights."""
    data = call.need("input")
    return (contiguous(data.shape, data.dtype), *call.tensors("weight"))


def gates(call: Recorded) -> Specs:
    """The cell of an LSTM or GRU: the new states, in the shape of the old, and what its gradient needs."""
    name = "cx" if "lstm" in call.packet else "hx"
    state, kept = call.need(name), call.need("input_gates")
    return (state, state, kept) if name == "cx" else (state, kept)


#: offsets of sequences that lie behind each other, and the longest of them, by the tensor that holds them
_PACKED = {
    "query": (("cum_seq_q", "max_q"), ("cu_seqlens_q", "max_seqlen_q")),
    "key": (("cum_seq_k", "max_k"), ("cu_seqlens_k", "max_seqlen_k")),
}
#: arguments that only a call on cached keys and values has
_CACHED = ("block_table", "seqused_k")


def _check_lengths(call: Recorded) -> None:
    """Refuse attention whose work does not follow from shapes: products grow with the square of each sequence's length.

    Lengths are known of a batch, of a single sequence, and of packed ones of which the longest is the mean.

    Raises:
        Unsupported: the lengths are in tensors' values, which nobody recorded.
    """
    unknown = any(call.tensor(name) is not None for name in _CACHED)
    for tensor, arguments in _PACKED.items():
        spec = call.need(tensor)
        offsets = next((found for name, _ in arguments if (found := call.tensor(name)) is not None), None)
        longest = next((found for _, name in arguments if type(found := call.value(name)) is int), 0)
        if offsets is None:
            unknown |= len(spec.shape) < 4
        elif (count := offsets.numel - 1) != 1:
            unknown |= longest * count != math.prod(spec.shape[:-2])
    if unknown:
        raise Unsupported("the lengths of its sequences were not recorded")


def attention(call: Recorded) -> Specs:
    """The output in the shape of the query with the value's head size, and a float32 for each query and head."""
    _check_lengths(call)
    query, value = call.need("query"), call.need("value")
    shape = (*query.shape[:-1], value.shape[-1])
    heads_first = call.packet.startswith("_scaled")
    rows = query.shape[:-1] if heads_first else (*query.shape[:-3], query.shape[-2], query.shape[-3])
    output = contiguous(shape, query.dtype if query.itemsize > 1 else "bfloat16")
    kept = call.value("compute_log_sumexp", True) is not False if "efficient" in call.packet else True
    return (output, contiguous(rows, "float32")) if kept else (output,)


def attention_backward(call: Recorded) -> Specs:
    """The gradients of query, key and value."""
    _check_lengths(call)
    return tuple(dense(s.shape, s.dtype, [s]) for s in map(call.need, ("query", "key", "value")))
