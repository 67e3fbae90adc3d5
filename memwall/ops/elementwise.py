"""Pointwise ops: FLOPs per element of the output (broadcasts included) from one table.

Conventions:

- One add, subtract, multiply, divide or transcendental call (exp, log, sqrt, rsqrt, tanh, erf, sin, pow, ...)
  is one FLOP. A comparison, a selection, a change of sign, a rounding, a cast, a logical or bit operation is
  none: relu, clamp, where, maximum, abs and their gradients are 0.
- Compound functions count what their CUDA kernels compute (aten/src/ATen/native/cuda/Activation*.cu): sigmoid
  3 (exp, add, divide), silu 4, gelu 5 (erf) or 9 (tanh); ``alpha`` or ``value`` other than 1 is one multiply
  more.
- Dropout is one FLOP per element in both directions; drawing random numbers is none.
- Results of an integer or bool dtype cost no FLOP. float64 counts on the vector engine's float64; all else on
  its float32, in which PyTorch computes half and bfloat16. A complex add is 2 FLOP, any other complex
  operation 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memwall.core.graph import Pipe, TensorSpec
from memwall.ops.base import Call, Cost
from memwall.ops.launches import Stream, Work
from memwall.ops.registry import register_cost

_DOUBLE = frozenset({"float64", "complex128"})
_COMPLEX = frozenset({"complex32", "complex64", "complex128"})
#: ops that are linear in their operands: a complex one is two real ones
_ADDS = frozenset({"add", "sub", "rsub", "sum", "mean", "cumsum"})


def vector_flops(spec: TensorSpec, count: int, name: str = "") -> dict[Pipe, int]:
    """``count`` FLOPs of elements like ``spec`` on the vector engine; none where it holds integers."""
    dtype = spec.dtype
    if dtype in _COMPLEX:
        count *= 2 if name in _ADDS else 6
    elif not dtype.startswith(("float", "bfloat")):
        return {}
    return {Pipe("vector", "float64" if dtype in _DOUBLE else "float32"): count}


def table_of(rows: dict[int, str]) -> dict[str, int]:
    """``{1: "add sub"}`` -> ``{"add": 1, "sub": 1}``."""
    return {name: flops for flops, names in rows.items() for name in names.split()}


#: FLOPs per element of ops that exist as ``name`` and, in place, as ``name_``
POINTWISE = table_of({
    0: "abs absolute neg negative sign sgn ceil floor round trunc fix relu relu6 hardtanh threshold clamp"
       " clamp_max clamp_min clip conj_physical eq ne lt le gt ge logical_and logical_or logical_xor"
       " logical_not bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift"
       " masked_fill nan_to_num copysign heaviside fmod remainder floor_divide gcd lcm nextafter",
    1: "add sub subtract mul multiply div divide true_divide square reciprocal sqrt rsqrt exp exp2 expm1"
       " log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc"
       " erfinv pow float_power leaky_relu lgamma digamma polygamma i0 frac deg2rad rad2deg ldexp",
    2: "addcmul addcdiv hardsigmoid sinc xlogy",
    3: "sigmoid lerp elu celu selu hardswish hypot logit",
    4: "silu mish",
    5: "gelu",
})  # fmt: skip
#: FLOPs per element of ops that have no in-place form
POINTWISE_FUNCTIONAL = table_of({
    0: "where isnan isinf isfinite isneginf isposinf signbit maximum minimum fmax fmin max.other min.other"
       " hardshrink threshold_backward hardtanh_backward hardshrink_backward softshrink_backward isin"
       " bucketize searchsorted __lshift__ __rshift__ complex polar real imag view_as_real_copy"
       " view_as_complex_copy _conj_physical",
    1: "rsub softshrink special_erfcx special_i0e special_i1 special_i1e special_ndtri"
       " native_dropout_backward native_dropout _fused_dropout _masked_scale _prelu_kernel"
       " rrelu_with_noise_functional leaky_relu_backward hardsigmoid_backward angle",
    2: "_prelu_kernel_backward special_entr special_xlog1py huber_loss_backward smooth_l1_loss_backward",
    3: "linalg_cross tanh_backward sigmoid_backward elu_backward hardswish_backward log_sigmoid_forward"
       " mse_loss_backward special_log_ndtr logit_backward logaddexp2",
    4: "softplus glu glu_backward logaddexp binary_cross_entropy_backward",
    5: "softplus_backward",
    6: "log_sigmoid_backward soft_margin_loss_backward",
    8: "silu_backward",
    11: "gelu_backward",
    12: "mish_backward",
})  # fmt: skip
#: the tanh forms: 5 for the scaled x + 0.044715 x^3, tanh, and 3 for 0.5 x (1 + tanh); the gradient shares
#: the first 6 and adds 12: 0.5 x, 1 + tanh, its half, 1 - tanh^2 (2), the inner derivative (3), two products
#: and dy (a + b)
_GELU_TANH = {"gelu": 9, "gelu_backward": 18}
#: FLOPs per element of the output of an interpolation, and per element of ``grad_output`` of its gradient
_RESAMPLING = table_of({
    0: "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d"
       " _upsample_nearest_exact2d _upsample_nearest_exact3d",
    1: "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward"
       " _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward"
       " _upsample_nearest_exact3d_backward",
    3: "upsample_linear1d",
    6: "upsample_linear1d_backward",  # per tap: one weight product, one multiply, one add
    9: "upsample_bilinear2d",  # three blends of two taps
    12: "upsample_bilinear2d_backward",
    21: "upsample_trilinear3d",  # seven blends
    24: "upsample_trilinear3d_backward",
    35: "upsample_bicubic2d",  # five blends of four taps
    48: "upsample_bicubic2d_backward",
})  # fmt: skip
#: input elements that one element of the output is made of, where more than one
_TAPS = {"upsample_linear1d": 2, "upsample_bilinear2d": 4, "upsample_trilinear3d": 8, "upsample_bicubic2d": 16}
#: random fills: written once, no FLOP counted
_RANDOM = (
    "normal normal_ uniform uniform_ bernoulli bernoulli_ exponential exponential_ random random_ cauchy"
    " cauchy_ geometric geometric_ log_normal log_normal_ rand rand_like randn randn_like randint randint_like"
    " randperm multinomial poisson rrelu_with_noise rrelu_with_noise_"
)


def scalar_flops(call: Call, name: str, flops: int) -> int:
    """FLOPs per element once the scalars of a call are known."""
    attributes = call.attributes
    if name in _GELU_TANH and attributes.get("approximate") == "tanh":
        return _GELU_TANH[name]
    if name in ("add", "sub", "subtract", "rsub") and attributes.get("alpha", 1) != 1:
        return flops + 1
    if name in ("addcmul", "addcdiv") and attributes.get("value", 1) != 1:
        return flops + 1
    return flops


def stream_of(cost: Cost, elements: int, **how: Any) -> Stream:
    """The launch that does all of a cost's compulsory work at once; ``how`` are further fields of the stream."""
    pipe = max(cost.flops, key=cost.flops.__getitem__, default=None)
    return Stream(
        read_bytes=cost.read_bytes, write_bytes=cost.write_bytes, elements=elements,
        flops=cost.total_flops, pipe=pipe, **how,
    )  # fmt: skip


def streamed(cost: Cost, elements: int, **how: Any) -> Cost:
    """The cost with its launch: one that streams the compulsory bytes, and ``extra_bytes`` as reads."""
    work = stream_of(cost, elements, **how)
    return replace(cost, works=(replace(work, read_bytes=work.read_bytes + cost.extra_bytes),))


def pass_over(read_bytes: int, write_bytes: int, elements: int = 0) -> Stream:
    """A launch that streams so many bytes and computes next to nothing."""
    return Stream(read_bytes=int(read_bytes), write_bytes=int(write_bytes), elements=elements)


def launched(cost: Cost, *works: Work) -> Cost:
    """The cost with these launches."""
    return replace(cost, works=works)


#: integer instructions per element of a kernel that finds each place by itself: per axis a fast division and the
#: operands' offsets, and the loop around (Loops.cuh, IntegerDivider.cuh); estimated from the code, and right for the
#: rotary embeddings of Liger's pairs on an A100 (198e9 elements/s over kernels of two and three axes)
_PER_AXIS, _PER_ELEMENT = 12, 12
#: where operands differ in dtype: a switch on it at each load and store (MemoryAccess.cuh, LoadWithCast); from the
#: bfloat16 RMS norm of Liger's pairs on an A100 (183e9 elements/s in its three casting kernels)
_PER_CAST = 53


def loop_instructions(operands: Sequence[TensorSpec], output: TensorSpec) -> int:
    """Integer instructions of a TensorIterator kernel over ``output``: none where it loads whole vectors, which takes
    operands of one dtype and one dense layout."""
    tensors = [spec for spec in operands if spec.numel > 1]
    if output.numel <= 1 or not tensors:
        return 0
    axes = _axes((output, *tensors), output)
    per_element = 0
    if axes > 1:
        per_element = _PER_ELEMENT + _PER_AXIS * axes
    if len({spec.dtype for spec in (output, *tensors)} - {"bool"}) > 1:  # a mask is read as it is
        per_element = max(per_element, _PER_CAST)
    return per_element * output.numel


def _axes(tensors: Sequence[TensorSpec], output: TensorSpec) -> int:
    """Axes that are left of the output's once those that lie in one run in every tensor are joined; 2 where one tensor
    has gaps along the only one."""
    rank = len(output.shape)
    rows = [_aligned(spec, rank) for spec in tensors]
    real = [axis for axis in range(rank) if output.shape[axis] > 1]
    order = sorted(real, key=lambda axis: output.strides[axis])
    count, previous = 0, -1
    for axis in order:
        joins = previous >= 0 and all(row[axis] == row[previous] * output.shape[previous] for row in rows)
        count += not joins
        previous = axis
    dense = all(row[order[0]] == 1 for row in rows) if order else True
    return count if dense else max(count, 2)


def _aligned(spec: TensorSpec, rank: int) -> tuple[int, ...]:
    """Strides along the output's axes: 0 where the tensor is broadcast."""
    strides = tuple(0 if n == 1 else s for n, s in zip(spec.shape, spec.strides, strict=True))
    return (0,) * (rank - len(strides)) + strides


#: ops that models call as modules: the host's way to their launch is longer
_MODULES = frozenset(
    ("relu", "relu6", "leaky_relu", "silu", "elu", "celu", "selu", "mish", "hardswish", "hardsigmoid", "hardtanh",
     "softplus", "softshrink", "hardshrink")
)  # fmt: skip
_FLOPS = {**POINTWISE, **{name.split(".")[0]: flops for name, flops in POINTWISE_FUNCTIONAL.items()}}


@register_cost(
    *(f"aten.{name}{suffix}" for name in POINTWISE for suffix in ("", "_")),
    *(f"aten.{name}" for name in POINTWISE_FUNCTIONAL),
    op_class="elementwise",
)
def pointwise(call: Call) -> Cost:
    """FLOPs of the table for each element of the (broadcast) output."""
    name, output = call.name.split(".")[1], call.outputs[0]
    if name not in _FLOPS:
        name = name[:-1]  # the in-place form
    cost = call.cost(vector_flops(output, output.numel * scalar_flops(call, name, _FLOPS[name]), name))
    kind = name if name == "gelu" else "relu" if name in _MODULES else ""
    return streamed(cost, output.numel, kind=kind, instructions=loop_instructions(call.inputs, output))


@register_cost(*(f"aten.{name}" for name in _RESAMPLING), op_class="elementwise")
def resampling(call: Call) -> Cost:
    """Interpolation, counted on its fine side; gradients are scattered into a zeroed tensor."""
    name = call.name.split(".")[1]
    backward = name.endswith("_backward")
    fine = call.need("grad_output") if backward else call.outputs[0]
    flops = vector_flops(fine, fine.numel * _RESAMPLING[name])
    if backward:
        cost = call.cost(flops, kernels=2)
        return launched(cost, pass_over(0, cost.write_bytes), stream_of(cost, fine.numel))
    taps = _TAPS.get(name.strip("_"), 1)
    cost = call.cost(flops, read_bytes=min(call.read_bytes, taps * fine.numel * fine.itemsize))
    return streamed(cost, fine.numel)


@register_cost("aten.grid_sampler_2d", "aten.cudnn_grid_sampler", "aten.grid_sampler_3d", op_class="elementwise")
def grid_sampler(call: Call) -> Cost:
    """A multiply and an add per tap: 4 (bilinear), 8 (trilinear), none (nearest), 16 (bicubic, 35 FLOP)."""
    output = call.outputs[0]
    linear = 16 if call.name.startswith("aten.grid_sampler_3d") else 8
    per_element = {0: linear, 1: 0, 2: 35}[call.attributes.get("interpolation_mode", 0)]
    return streamed(call.cost(vector_flops(output, output.numel * per_element)), output.numel)


@register_cost("aten.binary_cross_entropy_with_logits", op_class="elementwise")
def binary_cross_entropy_with_logits(call: Call) -> Cost:
    """6 FLOP per element and the reduction's add.

    Eager runs five kernels: log_sigmoid, 1 - target, a product, a difference and the mean (Loss.cpp), which
    pass over eleven tensors where two reads would do.
    """
    logits = call.need("self")
    reduced = call.attributes.get("reduction", 1) != 0
    cost = call.cost(
        vector_flops(logits, logits.numel * (7 if reduced else 6)),
        extra_bytes=9 * logits.nbytes, kernels=5 if reduced else 4,
    )  # fmt: skip
    one, two = (pass_over(logits.nbytes, logits.nbytes, logits.numel), pass_over(2 * logits.nbytes, logits.nbytes))
    return launched(cost, one, one, two, two, *([pass_over(logits.nbytes, 0)] if reduced else []))


#: op -> FLOPs per hidden element without and with biases: gate sums, 3 per sigmoid, 1 per tanh, and the
#: state's blend
_CELLS = {"_thnn_fused_lstm_cell": (19, 27), "_thnn_fused_gru_cell": (14, 20)}


@register_cost(*(f"aten.{name}" for name in _CELLS), op_class="elementwise")
def recurrent_cell(call: Call) -> Cost:
    """The gates of an LSTM (4) or GRU (3) cell after its two products."""
    hidden = call.outputs[0]
    plain, biased = _CELLS[call.name.split(".")[1]]
    per_element = biased if call.arg("input_bias") is not None else plain
    return streamed(call.cost(vector_flops(hidden, hidden.numel * per_element)), hidden.numel)


@register_cost(*(f"aten.{name}" for name in _RANDOM.split()), op_class="elementwise")
def random_fill(call: Call) -> Cost:
    """Random numbers: bytes only."""
    return streamed(call.cost(), call.outputs[0].numel)
