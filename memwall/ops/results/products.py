"""Results of matrix products, recurrent layers and attention."""

from __future__ import annotations

from memwall.core.errors import Unsupported
from memwall.core.graph import contiguous
from memwall.ops.recorded import Recorded, Rule, Specs, broadcast, dense, stated_dtype


def product(left: str, right: str) -> Rule:
    def rule(call: Recorded) -> Specs:
        a, b = call.need(left), call.need(right)
        if not a.shape or not b.shape:
            raise Unsupported("an operand of a product has no dims")
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


def attention(call: Recorded) -> Specs:
    """The output in the shape of the query with the value's head size, and a float32 for each query and head."""
    query, value = call.need("query"), call.need("value")
    shape = (*query.shape[:-1], value.shape[-1])
    heads_first = call.packet.startswith("_scaled")
    rows = query.shape[:-1] if heads_first else (*query.shape[:-3], query.shape[-2], query.shape[-3])
    output = contiguous(shape, query.dtype if query.itemsize > 1 else "bfloat16")
    kept = call.value("compute_log_sumexp", True) is not False if "efficient" in call.packet else True
    return (output, contiguous(rows, "float32")) if kept else (output,)


def attention_backward(call: Recorded) -> Specs:
    """The gradients of query, key and value."""
    return tuple(dense(s.shape, s.dtype, [s]) for s in map(call.need, ("query", "key", "value")))
