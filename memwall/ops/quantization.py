"""Rounding to few bits and back: fake quantization, observers, conversions to quantized tensors.

FLOPs per element: scaling and a zero point are a multiply and an add; rounding, clamping and the comparison that makes
a mask are none (FakeQuantizeCore.cu, AffineQuantizer.cu).
"""

from __future__ import annotations

from functools import partial

from memwall.core.graph import TensorSpec
from memwall.ops import loops
from memwall.ops.base import Call, Cost
from memwall.ops.elementwise import pointwise
from memwall.ops.passes import first_result, launched, pass_over, per_element, stream_of, streamed, vector_flops
from memwall.ops.registry import formula
from memwall.ops.results.pointwise import dropout as with_mask

op = partial(formula, "elementwise", loop=loops.opaque)

#: to integers and back: a multiply, an add; a subtraction, a multiply
FAKE_QUANTIZE = 4

pointwise("fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask"
          " _fake_quantize_per_tensor_affine_cachemask_tensor_qparams", FAKE_QUANTIZE, in_place=False,
          loop=loops.opaque, results=with_mask)  # fmt: skip
pointwise("_fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_channel_affine", FAKE_QUANTIZE,
          in_place=False, loop=loops.opaque)  # fmt: skip


@op("_fake_quantize_learnable_per_tensor_affine_backward _fake_quantize_learnable_per_channel_affine_backward")
def learnable_backward(call: Call) -> Cost:
    """The input's gradient (a mask), the scale's (the rounding again, a difference, two products) and the zero point's
    (a product), and the sums of the last two: 8 in the kernel, 2 in the sums."""
    grad, data = call.need("grad"), call.need("self")
    cost = call.cost(vector_flops(data, 10 * data.numel))
    each = stream_of(Cost(vector_flops(data, 8 * data.numel), grad.nbytes + data.nbytes, 3 * data.nbytes), data.numel)
    total = pass_over(data.nbytes, data.itemsize, data.numel)
    return launched(cost, each, total, total)


@op("_fused_moving_avg_obs_fq_helper _fused_moving_avg_obs_fq_helper_functional")
def observer(call: Call) -> Cost:
    """Smallest and largest value (a pass), their running averages, scale and zero point (small kernels), then fake
    quantization."""
    data = call.need("self")
    state = call.read_bytes - data.nbytes
    range_of, small = pass_over(data.nbytes, state, data.numel), pass_over(state, state)
    rounded = stream_of(call.cost(vector_flops(data, FAKE_QUANTIZE * data.numel)), data.numel)
    return call.cost(vector_flops(data, FAKE_QUANTIZE * data.numel), launches=(range_of, small, small, rounded))


op("quantize_per_tensor quantize_per_channel quantize_per_tensor_dynamic")(per_element("self", 2))


@op("dequantize")
def dequantize(call: Call) -> Cost:
    """A subtraction and a multiply per element."""
    made = sum(output.numel for output in call.outputs)
    like: TensorSpec = call.outputs[0]
    return streamed(call.cost(vector_flops(like, 2 * made)), made)


# a copy of what a quantized tensor holds
op("int_repr q_per_channel_scales q_per_channel_zero_points")(per_element(first_result, 0))
