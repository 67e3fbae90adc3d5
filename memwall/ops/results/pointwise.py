"""Results of pointwise ops, and of ops whose result is like their input."""

from __future__ import annotations

from memwall.core.graph import contiguous
from memwall.ops.recorded import INTEGERS, Recorded, Specs, broadcast, dense, first_tensor, promote
from memwall.ops.registry import find_row

#: arguments that may be a number next to a tensor
_SCALARS = ("other", "value", "alpha", "exponent", "min", "max")


def pointwise(call: Recorded) -> Specs:
    """The broadcast of all tensors."""
    first_tensor(call)
    specs, packet = call.inputs(), call.packet
    values = [spec for name, spec in call.named() if name != "condition"] or specs
    dtype = promote(values)
    if dtype in (*INTEGERS, "bool") and any(isinstance(call.value(name), float) for name in _SCALARS):
        dtype = "float32"
    row = find_row(call.name)
    integers = row.integers if row else "floats"
    if integers == "bool":
        dtype = "bool"
    elif packet in ("abs", "absolute") and dtype.startswith("complex"):
        dtype = f"float{int(dtype.removeprefix('complex')) // 2}"
    elif packet in ("complex", "polar") and dtype in ("float32", "float64"):
        dtype = f"complex{2 * int(dtype.removeprefix('float'))}"
    elif dtype in (*INTEGERS, "bool") and integers != "integers":
        dtype = "float32"
    return (dense(broadcast(spec.shape for spec in specs), dtype, specs),)


def dropout(call: Recorded) -> Specs:
    """The result and its mask."""
    data = call.need("input") if "input" in call.arguments else call.need("self")
    return (dense(data.shape, data.dtype, [data]), contiguous(data.shape, "bool"))


def halved(call: Recorded) -> Specs:
    """``glu``: half as long along one axis."""
    data, dim = call.need("self"), call.value("dim", -1)
    shape = list(data.shape)
    shape[dim % len(shape)] //= 2
    return (contiguous(tuple(shape), data.dtype),)


def two_gradients(call: Recorded) -> Specs:
    """In the shapes of the input and of its weight."""
    first, second = call.need("self"), call.need("weight")
    return (contiguous(first.shape, first.dtype), contiguous(first.shape, second.dtype))


def no_elements(call: Recorded) -> Specs:
    """A number."""
    specs = call.inputs()
    return (contiguous((), specs[0].dtype if specs else "float32"),)


def like_list(call: Recorded) -> Specs:
    """A list in the shapes of the first list."""
    return call.tensors("self") if "self" in call.arguments else tuple(call.inputs())


def norms(call: Recorded) -> Specs:
    """A number for each tensor of a list."""
    return tuple(contiguous((), spec.dtype) for spec in call.tensors("self"))
