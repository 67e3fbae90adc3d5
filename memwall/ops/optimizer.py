"""Multi-tensor ops: ``_foreach_*`` and the fused optimizers.

- A ``_foreach_*`` op costs what its pointwise namesake costs per element, over all tensors of the list.
- A fused optimizer's FLOPs per element are counted by hand below, from fused_adam_utils.cuh, FusedSgdKernel.cu and
  fused_adagrad_utils.cuh. Gradients are written only where a ``grad_scale`` is undone in place, whatever the schema
says. - Launches: MultiTensorApply.cuh packs chunks of 65536 elements, at most 320 per launch, of at most 110, 64, 48,
  36 or 30 tensors where an op walks 1 to 5 lists at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from memwall.ops.base import Call, Cost
from memwall.ops.domains import POSITIVE, SECOND_MOMENT, WEIGHT_SCALE, always
from memwall.ops.elementwise import scalar_flops
from memwall.ops.passes import of_scalars, streamed, vector_flops
from memwall.ops.reduction import norm_flops
from memwall.ops.registry import flops_of, formula
from memwall.ops.results.pointwise import norms

op = partial(formula, "optimizer")

_CHUNK_ELEMENTS = 65536
_MAX_CHUNKS = 320
_MAX_TENSORS = (110, 64, 48, 36, 30)


def launches(sizes: Iterable[int], lists: int) -> int:
    """Kernels that process tensors of these sizes, in ``lists`` parallel lists."""
    limit = _MAX_TENSORS[min(max(lists, 1), 5) - 1]
    count = tensors = chunks = 0
    for size in sizes:
        if size == 0:
            continue
        tensors += 1
        full, chunks = divmod(chunks + -(-size // _CHUNK_ELEMENTS), _MAX_CHUNKS)
        if full:  # launched because the chunks ran out; what is left of this tensor goes on
            count += full
            tensors = 1 if chunks else 0
        if tensors == limit:
            count += 1
            tensors = chunks = 0
    return count + (1 if chunks else 0)


_FOREACH_POINTWISE = (
    "abs acos asin atan ceil clamp_max clamp_min cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2"
    " maximum minimum neg pow reciprocal round rsqrt sigmoid sign sin sinh sub tan tanh trunc"
)


@op("_foreach_sqrt _foreach_sqrt_", domains={"self": always("positive", scale=SECOND_MOMENT)})
@op("_foreach_addcdiv _foreach_addcdiv_", domains={"self": always("normal", scale=WEIGHT_SCALE)})
@op("_foreach_div _foreach_div_", domains={"other": POSITIVE})
@op("_foreach_mul _foreach_mul_ _foreach_addcmul_ _foreach_lerp_ _foreach_add_", preserves="sign")
@op("_foreach_addcmul _foreach_lerp _foreach_add")
@op(" ".join(f"_foreach_{name} _foreach_{name}_" for name in _FOREACH_POINTWISE.split()))
@op("_foreach_copy _foreach_clone _foreach_zero")
@op("_foreach_copy_ _foreach_zero_", overwrites=True)
def foreach(call: Call) -> Cost:
    """The pointwise op of the same name on every tensor of the lists."""
    packet = call.name.split(".")[1]
    name, in_place = packet.removeprefix("_foreach_").rstrip("_"), packet.endswith("_")
    sizes = [output.numel for output in call.outputs]
    overwrites = in_place and call.arg("self") is None  # zero_, copy_: the target is in no input list
    read = sum(call.arguments.count(argument) == len(sizes) for argument in set(call.arguments))
    if name in ("copy", "clone", "zero"):
        flops = 0
    elif name.startswith("addc") and call.name.endswith(("ScalarList", "Tensor")):
        flops = flops_of(f"aten.{name}") + 1  # one factor per tensor: taken to be other than 1
    else:
        flops = scalar_flops(call, name, flops_of(f"aten.{name}"))
    cost = call.cost(
        vector_flops(call.outputs[0], sum(sizes) * flops, name),
        kernels=max(launches(sizes, read + (not in_place or overwrites)), 1),
    )
    return streamed(cost, sum(sizes))


@op("_foreach_norm", results=norms)
@op("_foreach_max _foreach_powsum")
def foreach_reduction(call: Call) -> Cost:
    """One number per tensor: partial results per chunk, then a kernel combines them (ForeachReduceOp.cu)."""
    tensors = call.args("self")
    per_element = 0 if "_max" in call.name else norm_flops(call.attributes.get("ord", 2))
    total = sum(tensor.numel for tensor in tensors)
    kernels = launches((tensor.numel for tensor in tensors), 1) + 1
    return streamed(call.cost(vector_flops(tensors[0], total * per_element), kernels=kernels), total)


@op("_amp_foreach_non_finite_check_and_unscale_")
def unscale(call: Call) -> Cost:
    """One multiply per gradient element."""
    tensors = call.args("self")
    total = sum(tensor.numel for tensor in tensors)
    cost = call.cost(vector_flops(tensors[0], total), kernels=max(launches((tensor.numel for tensor in tensors), 1), 1))
    return streamed(cost, total)


op("_amp_update_scale_")(of_scalars)


def _adam_flops(given: Mapping[str, Any]) -> int:
    # m = fma(b1, m, fma(-b1, g, g)) 4; v = fma(b2, v, fma(-b2, g * g, g * g)) 5; sqrt(v) / c + eps 3;
    # p -= step * m / that 3
    return 15


def _sgd_flops(given: Mapping[str, Any]) -> int:
    # b = momentum * b + (1 - dampening) * g 3, on the first step a copy; nesterov: g + momentum * b 2; p -= lr * g 2
    if not given.get("momentum", 0):
        return 2
    return 2 + (0 if given.get("is_first_step") else 3) + (2 if given.get("nesterov") else 0)


def _adagrad_flops(given: Mapping[str, Any]) -> int:
    # s += g * g 2; p -= step * g / (sqrt(s) + eps) 5
    return 7


#: op -> FLOPs per element, and the lists that it updates
_FUSED = {
    "_fused_adam_": (_adam_flops, ("self", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs")),
    "_fused_adamw_": (_adam_flops, ("self", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs")),
    "_fused_sgd_": (_sgd_flops, ("self", "momentum_buffer_list")),
    "_fused_adagrad_": (_adagrad_flops, ("self", "state_sums")),
}


@op(" ".join(_FUSED))
def fused_step(call: Call) -> Cost:
    """One optimizer step; weight decay (a multiply and an add or subtract) where it is not 0."""
    per_element, updated = _FUSED[call.name.split(".")[1]]
    parameters, unscaled = call.args("self"), call.arg("grad_scale") is not None  # g /= scale
    flops = per_element(call.attributes) + (2 if call.attributes.get("weight_decay", 0) else 0) + unscaled
    total = sum(parameter.numel for parameter in parameters)
    written = (*updated, *(("grads",) * unscaled))
    read = call.read_bytes
    if call.attributes.get("is_first_step"):  # momentum is written, not read
        read -= sum(spec.nbytes for spec in call.args("momentum_buffer_list"))
    depth = 1 + sum(bool(call.args(name)) for name in updated)
    cost = call.cost(
        vector_flops(parameters[0], total * flops),
        read_bytes=read,
        write_bytes=sum(spec.nbytes for name in written for spec in call.args(name)),
        kernels=max(launches((parameter.numel for parameter in parameters), depth), 1),
    )
    return streamed(cost, total)
