"""Results of pointwise ops, and of those like their input."""

from __future__ import annotations

from memwall.core.graph import contiguous
from memwall.ops.elementwise import flops_by_name
from memwall.ops.recorded import INTEGERS, Recorded, Rule, Specs, UnknownCall, broadcast, dense, each, promote, same

_COMPARISONS = frozenset(
    ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not", "isnan",
     "isinf", "isfinite", "isneginf", "isposinf", "signbit", "isin", "equal")
)  # fmt: skip
_KEEPS_INTEGERS = frozenset(
    ("add", "sub", "subtract", "mul", "multiply", "rsub", "abs", "absolute", "neg", "negative", "sign",
     "sgn", "square", "pow", "clamp", "clamp_max", "clamp_min", "clip", "relu", "where", "maximum",
     "minimum", "remainder", "fmod", "floor_divide", "bitwise_and", "bitwise_or", "bitwise_xor",
     "bitwise_not", "bitwise_left_shift", "bitwise_right_shift", "masked_fill", "__lshift__", "__rshift__",
     "floor", "ceil", "round", "trunc", "threshold", "gcd", "lcm", "max", "min", "fmax", "fmin",
     "heaviside", "hardtanh", "nan_to_num", "addcmul", "linalg_cross")
)  # fmt: skip
#: arguments that may be a number beside a tensor
_SCALARS = ("other", "value", "alpha", "exponent", "min", "max")


def pointwise(call: Recorded) -> Specs:
    """The broadcast of all tensors."""
    specs = call.inputs()
    if not specs:
        raise UnknownCall("no tensor was recorded")
    packet = call.packet
    values = [spec for name, spec in call.named() if name != "condition"] or specs
    dtype = promote(values)
    if dtype in (*INTEGERS, "bool") and any(isinstance(call.value(name), float) for name in _SCALARS):
        dtype = "float32"
    if packet in _COMPARISONS:
        dtype = "bool"
    elif packet in ("abs", "absolute") and dtype.startswith("complex"):
        dtype = f"float{int(dtype.removeprefix('complex')) // 2}"
    elif packet in ("complex", "polar") and dtype in ("float32", "float64"):
        dtype = f"complex{2 * int(dtype.removeprefix('float'))}"
    elif dtype in (*INTEGERS, "bool") and packet not in _KEEPS_INTEGERS:
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


def fused_results(call: Recorded) -> Specs:
    """A list in the shapes of the first list."""
    return call.tensors("self") if "self" in call.arguments else tuple(call.inputs())


def norms(call: Recorded) -> Specs:
    """A number for each tensor of a list."""
    return tuple(contiguous((), spec.dtype) for spec in call.tensors("self"))


RULES: dict[str, Rule] = {
    **dict.fromkeys(flops_by_name(), pointwise),
    **each("clone contiguous _to_copy copy fill zeros_like ones_like full_like rand_like randn_like randint_like"
           " bernoulli normal rrelu_with_noise rrelu_with_noise_functional _prelu_kernel", same),
    **each("native_dropout _fused_dropout", dropout),
    **each("equal dist scalar_tensor", no_elements),
    **each("_foreach_add _foreach_mul _foreach_div _foreach_sub _foreach_sqrt _foreach_neg _foreach_addcdiv"
           " _foreach_addcmul _foreach_pow _foreach_maximum _foreach_reciprocal _foreach_clamp_min _foreach_clone"
           " _foreach_rsqrt _foreach_lerp", fused_results),
    "glu": halved, "masked_scatter": pointwise, "_prelu_kernel_backward": two_gradients, "_foreach_norm": norms,
}  # fmt: skip
