"""Pointwise ops: FLOPs per element of the output (broadcasts included) from one table.

- One add, subtract, multiply, divide or transcendental call (exp, log, sqrt, rsqrt, tanh, erf, sin, pow, ...) is one
  FLOP. A comparison, a selection, a change of sign, a rounding, a cast, a logical or bit operation costs 0: relu,
  clamp, where, maximum, abs and their gradients are 0.
- Compound functions count what their CUDA kernels compute (aten/src/ATen/native/cuda/Activation*.cu): sigmoid 3 (exp,
  add, divide), silu 4, gelu 5 (erf) or 9 (tanh); ``alpha`` or ``value`` other than 1 is one multiply more.
- Dropout is one FLOP per element in both directions; drawing random numbers costs none, but integer instructions.
- Results of an integer or bool dtype cost no FLOP. float64 counts on the vector engine's float64; all else on its
  float32, in which PyTorch computes half and bfloat16. A complex add is 2 FLOP, any other complex operation 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from memwall.ops import expressions as write
from memwall.ops import loops
from memwall.ops.base import Call, Cost
from memwall.ops.domains import POSITIVE, always
from memwall.ops.expressions import Expression
from memwall.ops.launches import Stream
from memwall.ops.passes import first_result, loop_instructions, pass_over, per_element, streamed, vector_flops
from memwall.ops.recorded import same
from memwall.ops.registry import define, find_row, flops_of, formula, rows
from memwall.ops.results import movement as moved
from memwall.ops.results import pointwise as results
from memwall.ops.results import windows
from memwall.ops.results.rows import loss as reduced_loss

op = partial(formula, "elementwise")

#: the tanh forms: 5 for the scaled x + 0.044715 x^3, tanh, and 3 for 0.5 x (1 + tanh); the gradient shares
#: the first 6 and adds 12: 0.5 x, 1 + tanh, its half, 1 - tanh^2 (2), the inner derivative (3), two products
#: and dy (a + b)
_GELU_TANH = {"gelu": 9, "gelu_backward": 18}


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


#: instructions for each random number of PyTorch's own kernels, which use all four of a call of the generator: a
#: quarter of the body of their loop, ``fused_dropout_kernel_vec`` (Dropout.cu) and ``distribution_elementwise_grid_
#: stride_kernel`` (DistributionTemplates.h) as NVRTC 12.6 compiles it for 7.0 to 9.0: 129 to 142, 153 to 162, 239 to
#: 247. Pascal, which has no multiplier of 32 bits, needs 1.8 times as many
_PER_DROPOUT, _PER_UNIFORM, _PER_NORMAL = 34, 39, 60
_NORMAL = frozenset(("normal", "randn", "randn_like", "normal_functional", "_philox_normal", "log_normal"))


def pointwise(
    names: str,
    flops: int,
    expression: Expression | None = None,
    *,
    in_place: bool = True,
    is_module: bool = False,
    integers: str = "floats",
    **stages: Any,
) -> None:
    """Rows of pointwise ops: all that memwall has to know of one, from its cost to its generated kernel.

    Args:
        names, stages: as :func:`memwall.ops.registry.define` takes them.
        flops: per element of the (broadcast) output.
        in_place: the name with an underscore at its end is the op that writes over its first argument.
        is_module: models call it as a module: the host's way to its launch is longer.
        integers: what they become: ``floats``, ``integers``, or ``bool``, which floats become too.
    """
    names = " ".join(f"{name} {name}_" if in_place else name for name in names.split())
    kind = {"launch_kind": "relu"} if is_module else {}
    given = {"op_class": "elementwise", "cost": pointwise_cost, "results": results.pointwise, **kind, **stages}
    define(names, flops=flops, integers=integers, expression=expression, **given)


def pointwise_cost(call: Call) -> Cost:
    """FLOPs of the row for each element of the (broadcast) output."""
    row, output = find_row(call.name), call.outputs[0]
    name = call.name.split(".")[1].rstrip("_")
    cost = call.cost(vector_flops(output, output.numel * scalar_flops(call, name, flops_of(call.name)), name))
    kind = row.launch_kind if row else ""
    if row and row.is_random:
        drawing = _PER_DROPOUT * output.numel
        return streamed(cost, output.numel, kind=kind, draws=output.numel, instructions=drawing)
    return streamed(cost, output.numel, kind=kind, instructions=loop_instructions(call.inputs, output))


#: elements of a thread's vector of dropout, after which its block meets (Dropout.cu, fused_dropout_kernel_vec)
_DROPOUT_VECTOR = 4


def dropout(call: Call) -> Cost:
    """As of other pointwise ops; a kernel of its own draws four random numbers, loads as many elements, and meets: its
    draws take no turns of others, and are part of the time between two barriers."""
    cost = pointwise_cost(call)
    (work,) = cost.launches
    assert isinstance(work, Stream)
    return replace(cost, launches=(replace(work, barrier_elements=_DROPOUT_VECTOR, instructions=0),))


def flops_by_name() -> Mapping[str, int]:
    """FLOPs per element of pointwise ops, ``add`` among them."""
    return {
        name.split(".")[1]: row.flops
        for name, row in rows()
        if row.flops is not None and (not name.endswith("_") or name.endswith("__"))
    }


@op("binary_cross_entropy_with_logits", loop=loops.loss, results=reduced_loss,
    domains={"target": always("positive", scale=0.5)})  # fmt: skip
def binary_cross_entropy_with_logits(call: Call) -> Cost:
    """6 FLOP per element and the reduction's add.

    Eager runs five kernels: log_sigmoid, 1 - target, a product, a difference and the mean (Loss.cpp), which
    pass over eleven tensors where two reads would do.
    """
    logits = call.need("self")
    reduced = call.attributes.get("reduction", 1) != 0
    one, two = pass_over(logits.nbytes, logits.nbytes, logits.numel), pass_over(2 * logits.nbytes, logits.nbytes)
    mean = (pass_over(logits.nbytes, call.write_bytes),) * reduced
    return call.cost(vector_flops(logits, logits.numel * (6 + reduced)), launches=(one, one, two, two, *mean))


@op("bernoulli normal rrelu_with_noise rrelu_with_noise_", is_random=True, results=same)
@op("bernoulli_ normal_", is_random=True, overwrites=True, results=same)
@op("rand_like randn_like randint_like", is_random=True, shape_only=True, results=same)
@op("rand randn randint", is_random=True, results=moved.filled)
@op("uniform exponential random", is_random=True)
@op("uniform_ exponential_ random_", is_random=True, overwrites=True)
@op("cauchy geometric log_normal", is_random=True)
@op("cauchy_ geometric_ log_normal_", is_random=True, overwrites=True)
@op("normal_functional _philox_normal _philox_uniform", is_random=True, results=same)
@op("_philox_normal_ _philox_uniform_", is_random=True, overwrites=True)
def random_fill(call: Call) -> Cost:
    """Random numbers, written once; of float64 a call of the generator makes two."""
    output, name = call.outputs[0], call.name.split(".")[1].rstrip("_")
    each = (_PER_NORMAL if name in _NORMAL else _PER_UNIFORM) * (1 + (output.dtype == "float64"))
    return streamed(call.cost(), output.numel, draws=output.numel, instructions=each * output.numel)


#: samples whose kernels loop as their data say: bytes only
_sampled = per_element(first_result, 0)
op("_standard_gamma _sample_dirichlet binomial", is_random=True, loop=loops.opaque)(_sampled)
op("randperm", loop=loops.opaque, results=moved.permuted)(_sampled)
op("multinomial poisson", loop=loops.opaque)(_sampled)


# -- rows: names, FLOPs per element, expression -----------------------------------------------------------------------

pointwise("abs", 0, "tl.abs({self})", integers="integers")
pointwise("neg", 0, write.neg, integers="integers")
pointwise("sign", 0, write.sign, integers="integers")
pointwise("ceil", 0, "tl.ceil({self})", integers="integers")
pointwise("floor", 0, "tl.floor({self})", integers="integers")
pointwise("relu", 0, "tl.where({self} < 0, 0, {self})", integers="integers", is_module=True)
pointwise("clamp clamp_min clamp_max", 0, write.clamp, integers="integers")
pointwise("bitwise_and", 0, "{self} & {other}", integers="integers")
pointwise("bitwise_or", 0, "{self} | {other}", integers="integers")
pointwise("bitwise_xor", 0, "{self} ^ {other}", integers="integers")
pointwise("bitwise_not", 0, write.bitwise_not, integers="integers")
pointwise("masked_fill", 0, "tl.where({mask}, {value}, {self})", integers="integers", cpu_rate="where")
pointwise("where", 0, "tl.where({condition}, {self}, {other})", in_place=False, integers="integers", cpu_rate="where")
pointwise("maximum", 0, write.extremum("maximum", "{self} | {other}"), in_place=False, integers="integers")
pointwise("minimum", 0, write.extremum("minimum", "{self} & {other}"), in_place=False, integers="integers")
pointwise("floor_divide", 0, write.floor_divide, integers="integers", preserves="values", domains={"other": POSITIVE})
pointwise("absolute negative sgn round trunc clip threshold fmod remainder gcd lcm heaviside nan_to_num"
          " bitwise_left_shift bitwise_right_shift", 0, integers="integers")  # fmt: skip
pointwise("__lshift__ __rshift__ fmax fmin", 0, in_place=False, integers="integers")
pointwise("max.other min.other", 0, in_place=False, integers="integers", loop=loops.point)
pointwise("hardtanh", 0, integers="integers", is_module=True)
pointwise("relu6", 0, is_module=True)
pointwise("hardshrink", 0, in_place=False, is_module=True)
pointwise("conj_physical copysign fix nextafter", 0)
pointwise("threshold_backward", 0, "tl.where({self} <= {threshold}, 0.0, {grad_output})", in_place=False)
pointwise("_conj_physical", 0, in_place=False, results=same)
pointwise("complex polar real imag view_as_real_copy view_as_complex_copy hardshrink_backward"
          " hardtanh_backward softshrink_backward", 0, in_place=False)  # fmt: skip

for _name, _sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    pointwise(_name, 0, write.comparison(_sign), casts="common", integers="bool", cpu_rate="compare")
for _name, _sign in (("logical_and", "&"), ("logical_or", "|"), ("logical_xor", "^")):
    pointwise(_name, 0, f"({{self}} != 0) {_sign} ({{other}} != 0)", casts="none", integers="bool")
pointwise("logical_not", 0, "{self} == 0", casts="none", integers="bool")
pointwise("isnan", 0, "{self} != {self}", in_place=False, casts="none", integers="bool")
pointwise("isinf isfinite isneginf isposinf signbit", 0, in_place=False, integers="bool")
pointwise("isin", 0, in_place=False, integers="bool", loop=loops.opaque, results=moved.places_in)

pointwise("add", 1, write.unless_bool("{self} + {alpha} * {other}", "{self} | {other}"), integers="integers",
          preserves="sign")  # fmt: skip
pointwise("sub", 1, write.scaled("{self} - {alpha} * {other}"), integers="integers")
pointwise("rsub", 1, write.scaled("{other} - {alpha} * {self}"), in_place=False, integers="integers")
pointwise("mul", 1, write.unless_bool("{self} * {other}", "{self} & {other}"), integers="integers", preserves="sign")
pointwise("div", 1, write.divide, domains={"other": POSITIVE})
pointwise("true_divide", 1, write.divide)
pointwise("pow", 1, write.power, integers="integers")
define("pow.Tensor_Tensor pow.Scalar", cpu_rate="pow")  # a power that is a number is multiplied out
pointwise("square", 1, "{self} * {self}", integers="integers")
pointwise("reciprocal", 1, "1.0 / {self}", domains={"self": POSITIVE})
pointwise("sqrt", 1, "tl.sqrt({self})", cpu_rate="sqrt", domains={"self": POSITIVE})
pointwise("rsqrt", 1, "1.0 / tl.sqrt({self})", cpu_rate="rsqrt", domains={"self": POSITIVE})
pointwise("exp", 1, "tl.exp({self})", cpu_rate="exp")
pointwise("exp2", 1, "tl.exp2({self})")
pointwise("log", 1, "tl.log({self})", cpu_rate="log", domains={"self": POSITIVE})
pointwise("log2", 1, "tl.log2({self})", cpu_rate="log", domains={"self": POSITIVE})
pointwise("log10", 1, cpu_rate="log", domains={"self": POSITIVE})
pointwise("log1p", 1, cpu_rate="log")
pointwise("expm1", 1, cpu_rate="exp")
pointwise("sin", 1, "tl.sin({self})", cpu_rate="sin")
pointwise("cos", 1, "tl.cos({self})", cpu_rate="sin")
pointwise("tanh", 1, write.tanh, cpu_rate="tanh")
pointwise("erf", 1, "tl.erf({self})", cpu_rate="erf")
pointwise("erfc", 1, cpu_rate="erf")
pointwise("leaky_relu", 1, "tl.where({self} > 0, {self}, {self} * {negative_slope})", is_module=True)
pointwise("softshrink", 1, in_place=False, is_module=True)
pointwise("subtract multiply", 1, integers="integers")
pointwise("divide tan asin acos atan atan2 sinh cosh asinh acosh atanh erfinv float_power lgamma digamma polygamma i0"
          " frac deg2rad rad2deg ldexp", 1)  # fmt: skip
pointwise("special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_zeta"
          " special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1"
          " special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0"
          " rrelu_with_noise_backward _standard_gamma_grad _dirichlet_grad", 1, in_place=False)  # fmt: skip
pointwise("igamma igammac mvlgamma", 1)
pointwise("frexp", 0, in_place=False, loop=loops.opaque, results=None)
pointwise("special_erfcx special_i0e special_i1 special_i1e special_ndtri _masked_scale leaky_relu_backward"
          " hardsigmoid_backward angle", 1, in_place=False)  # fmt: skip
pointwise("_prelu_kernel", 1, in_place=False, results=same)
pointwise("rrelu_with_noise_functional", 1, in_place=False, is_random=True, results=same)
pointwise("native_dropout", 1, in_place=False, is_random=True, cpu_rate="dropout", results=results.dropout,
          cost=dropout)  # fmt: skip
pointwise("_fused_dropout", 1, in_place=False, is_random=True, results=results.dropout, cost=dropout)
pointwise("native_dropout_backward", 1, "{grad_output} * {mask}.to(tl.float32) * {scale}", in_place=False)

pointwise("addcmul", 2, "{self} + {value} * ({tensor1} * {tensor2})", integers="integers")
pointwise("addcdiv", 2, "{self} + {value} * ({tensor1} / {tensor2})")
pointwise("hardsigmoid", 2, is_module=True)
pointwise("sinc xlogy", 2)
pointwise("_prelu_kernel_backward", 2, in_place=False, results=results.two_gradients)
pointwise("special_entr special_xlog1py huber_loss_backward smooth_l1_loss_backward", 2,
          in_place=False)  # fmt: skip
pointwise("sigmoid", 3, "tl.sigmoid({self})", cpu_rate="sigmoid")
pointwise("lerp", 3, write.lerp)
pointwise("elu celu selu hardswish", 3, is_module=True)
pointwise("hypot logit", 3)
pointwise("sigmoid_backward", 3, "{grad_output} * (1.0 - {output}) * {output}", in_place=False)
pointwise("tanh_backward", 3, "{grad_output} * (1.0 - {output} * {output})", in_place=False)
pointwise("mse_loss_backward", 3, "2.0 * ({self} - {target}) * {grad_output} / {count}", in_place=False)
pointwise("linalg_cross", 3, in_place=False, integers="integers", loop=loops.opaque)
pointwise("elu_backward hardswish_backward log_sigmoid_forward special_log_ndtr logit_backward logaddexp2", 3,
          in_place=False)  # fmt: skip
pointwise("silu", 4, "{self} * tl.sigmoid({self})", is_module=True, cpu_rate="silu")
pointwise("mish", 4, is_module=True)
pointwise("softplus", 4, write.softplus, in_place=False, is_module=True)
pointwise("glu", 4, in_place=False, results=results.halved)
pointwise("glu_backward", 4, in_place=False, results=windows.like_input)
pointwise("logaddexp binary_cross_entropy_backward", 4, in_place=False)
pointwise("gelu", 5, write.gelu, launch_kind="gelu", cpu_rate="gelu")
pointwise("softplus_backward", 5, in_place=False)
pointwise("log_sigmoid_backward soft_margin_loss_backward", 6, in_place=False)
pointwise("silu_backward", 8, write.SILU_BACKWARD, in_place=False)
pointwise("gelu_backward", 11, write.gelu_backward, in_place=False, cpu_rate="gelu_backward")
pointwise("mish_backward", 12, in_place=False)

#: two terms of a recurrence are at least a multiply, a multiply and a difference; which term is asked is often data
pointwise("special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v"
          " special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he"
          " special_laguerre_polynomial_l special_legendre_polynomial_p", 3, in_place=False)  # fmt: skip

define("upsample_bilinear2d upsample_bicubic2d upsample_linear1d", loop=loops.window)
