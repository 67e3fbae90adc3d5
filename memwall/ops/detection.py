"""Regions of images: torchvision's non-maximum suppression, region pooling and deformable convolution
(torchvision/csrc/ops/cuda).

FLOPs per bin of a region follow its kernel: each sample of ``roi_align`` is a bilinear interpolation of four taps (a
multiply and an add each), and the bin their mean. Maxima are comparisons: none. Where ``sampling_ratio`` is not given,
a bin has as many samples as the region has pixels in it, which depends on data: one along each axis, the least.
"""

from __future__ import annotations

import math
from functools import partial

from memwall.core.graph import TensorSpec, contiguous
from memwall.ops import loops
from memwall.ops.base import Call, Cost, fetched_bytes
from memwall.ops.contraction import product_flops, product_pipe
from memwall.ops.launches import Launch, Stream
from memwall.ops.passes import first_result, launched, pass_over, per_element, stream_of, streamed, vector_flops
from memwall.ops.product_launches import Gemm
from memwall.ops.recorded import Recorded, Specs
from memwall.ops.registry import formula
from memwall.ops.results.movement import unknown_count

op = partial(formula, "elementwise", loop=loops.opaque)

#: FLOPs of a pair of boxes: two widths and heights each of the boxes and of their overlap, three areas, the sum of two
#: of them less the third, the quotient (nms_kernel.cu, devIoU; maxima are comparisons)
_IOU_FLOPS = 12
#: boxes of a block, whose bits make one word of the mask
_BOXES = 64


@formula("other", "torchvision::nms", results=unknown_count)
def nms(call: Call) -> Cost:
    """Boxes sorted by score; each is compared with all after it, and the bits of who overlaps are scanned by one block,
    box after box (nms_kernel.cu). All pairs in blocks of 64 x 64 on or above the diagonal are compared."""
    boxes, scores = call.need("dets"), call.need("scores")
    count = boxes.shape[0]
    blocks = math.ceil(count / _BOXES)
    pairs = min(_BOXES**2 * blocks * (blocks + 1) // 2, count * (count + 1) // 2)
    mask = count * blocks * 8
    cost = call.cost(vector_flops(boxes, _IOU_FLOPS * pairs))
    order = pass_over(scores.nbytes, count * 8, count)
    sorted_boxes = pass_over(boxes.nbytes + count * 8, boxes.nbytes, boxes.numel)
    compared = stream_of(Cost(cost.flops, boxes.nbytes, mask), count * blocks)
    scanned = Stream(read_bytes=mask, write_bytes=call.write_bytes, elements=count, round_trips=count // _BOXES)
    return launched(cost, order, sorted_boxes, compared, scanned)


# at least the 12 FLOP of an overlap of upright boxes for each pair; polygons are clipped by comparisons
formula("other", "torchvision::box_iou_rotated")(per_element(first_result, _IOU_FLOPS))


def _pooled(call: Recorded) -> Specs:
    """A region's bins of each channel; of position-sensitive regions (``ps_``) as many channels as a bin has."""
    data, regions = call.need("input"), call.need("rois").shape[0]
    bins = (call.value("pooled_height", 1), call.value("pooled_width", 1))
    sensitive = call.packet.startswith("ps_")
    channels = data.shape[1] // math.prod(bins) if sensitive else data.shape[1]
    shape = (regions, channels, *bins)
    made = contiguous(shape, data.dtype)
    return (made,) if call.packet == "roi_align" else (made, contiguous(shape, "int32"))


def _filtered(call: Recorded) -> Specs:
    """The image with a channel for each filter, at the places of the offsets."""
    data, weight, offset = (call.need(name) for name in ("input", "weight", "offset"))
    return (contiguous((data.shape[0], weight.shape[0], *offset.shape[-2:]), data.dtype),)


def _samples(call: Call) -> int:
    """Samples of a bin."""
    return max(call.attributes.get("sampling_ratio", 0), 1) ** 2


#: bilinear taps of a sample
_TAPS = 4


@op("torchvision::qroi_align")
@op("torchvision::roi_align torchvision::ps_roi_align", results=_pooled)
def roi_align(call: Call) -> Cost:
    """[K, C, height, width] bins: 2 FLOP per tap of each sample, and the mean."""
    output, samples = call.outputs[0], _samples(call)
    read = call.bytes_except("input") + fetched_bytes(call.need("input"), _TAPS * samples * output.numel)
    flops = vector_flops(output, (2 * _TAPS * samples + 1) * output.numel)
    return streamed(call.cost(flops, read_bytes=read), output.numel)


@op("torchvision::roi_pool", results=_pooled)
def roi_pool(call: Call) -> Cost:
    """The maximum of each bin's pixels: no FLOP; at least one pixel of each is read."""
    output = call.outputs[0]
    read = call.bytes_except("input") + fetched_bytes(call.need("input"), output.numel)
    return streamed(call.cost(read_bytes=read), output.numel)


@op("torchvision::ps_roi_pool", results=_pooled)
def ps_roi_pool(call: Call) -> Cost:
    """The mean of each bin's pixels, at least one: an add and the division."""
    output = call.outputs[0]
    read = call.bytes_except("input") + fetched_bytes(call.need("input"), output.numel)
    return streamed(call.cost(vector_flops(output, 2 * output.numel), read_bytes=read), output.numel)


@op("torchvision::_roi_align_backward torchvision::_ps_roi_align_backward torchvision::_ps_roi_pool_backward"
    " torchvision::_roi_pool_backward")  # fmt: skip
def roi_backward(call: Call) -> Cost:
    """Zeros, to which each tap's share of the gradient is added: a weight's product, the mean's division, the add; of a
    maximum the add alone."""
    grad, name = call.need("grad"), call.name
    per_bin = 3 * _TAPS * _samples(call) if "align" in name else 2 if "ps_roi" in name else 1
    cost = call.cost(vector_flops(grad, per_bin * grad.numel))
    return launched(cost, pass_over(0, cost.write_bytes), stream_of(cost, grad.numel))


# Deformable convolution: columns whose taps are sampled, then a product per group (deform_conv2d_kernel.cu).

#: of an element of the columns: its bilinear sample (four weights of a product each, four multiply-adds) and its mask
_SAMPLE_FLOPS = 4 + 2 * _TAPS


def _columns(call: Call) -> tuple[TensorSpec, int]:
    """The weight, and the elements of the columns: one for each place, channel and tap."""
    data, weight, offset = (call.need(name) for name in ("input", "weight", "offset"))
    places = offset.shape[0] * math.prod(offset.shape[-2:])
    return weight, places * data.shape[1] * math.prod(weight.shape[2:])


def _products(call: Call, passes: int) -> tuple[dict, list[Launch]]:
    """The products of columns and weight, and their launches: one per group."""
    weight, columns = _columns(call)
    groups = max(call.attributes.get("groups", call.attributes.get("n_weight_grps", 1)), 1)
    offset = call.need("offset")
    places = offset.shape[0] * math.prod(offset.shape[-2:])
    depth = math.prod(weight.shape[1:])
    pipe = product_pipe(weight.dtype, call.attributes, allow_tf32=False)
    flops = {pipe: passes * product_flops(weight.shape[0] * depth * places, weight.dtype)}
    read, written = columns * weight.itemsize + weight.nbytes, weight.shape[0] * places * weight.itemsize
    gemm = Gemm(
        pipe=pipe,
        batch=groups,
        m=weight.shape[0] // groups,
        n=places,
        k=depth,
        itemsize=weight.itemsize,
        read_bytes=read,
        write_bytes=written,
    )
    return flops, [gemm] * passes


def _masked(call: Call) -> int:
    return int(bool(call.attributes.get("use_mask", True)))


def _read(call: Call) -> int:
    """Bytes of the operands that are used: a mask that is not stands for none."""
    mask = call.arg("mask")
    return call.read_bytes - (mask.nbytes if mask is not None and not _masked(call) else 0)


@formula("convolution", "torchvision::deform_conv2d", tf32_switch="matmul", results=_filtered)
def deform_conv2d(call: Call) -> Cost:
    """The product of a convolution, 2 * output elements * (Cin / groups) * kernel size, of columns that are sampled
    first: written, and read by the product."""
    weight, columns = _columns(call)
    flops, products = _products(call, 1)
    sampled = vector_flops(weight, (_SAMPLE_FLOPS + _masked(call)) * columns)
    read, itemsize = _read(call) - weight.nbytes, weight.itemsize
    im2col = stream_of(Cost(sampled, read, columns * itemsize), columns)
    bias = Stream(read_bytes=call.write_bytes, write_bytes=call.write_bytes, elements=call.outputs[0].numel)
    return call.cost({**flops, **sampled}, read_bytes=_read(call), launches=(im2col, *products, bias))


@formula("convolution", "torchvision::_deform_conv2d_backward", tf32_switch="matmul")
def deform_conv2d_backward(call: Call) -> Cost:
    """Two products (the columns' gradient, the weight's) and three passes over columns: sampled again, scattered into
    the input's gradient (a weight, a product, an add for each tap), and the offsets' and mask's gradients (the two
    derivatives of a sample and their sums)."""
    weight, columns = _columns(call)
    flops, products = _products(call, 2)
    sample, masked = _SAMPLE_FLOPS, _masked(call)
    each = (sample + masked, 3 * _TAPS + masked, 2 * (sample + 2) + masked * (sample + 1))
    sampled = vector_flops(weight, sum(each) * columns)
    moved, data = columns * weight.itemsize, call.need("input").nbytes
    reads, writes = (_read(call), 2 * moved, 2 * moved), (moved, data, call.write_bytes - data)
    passes = tuple(
        stream_of(Cost(vector_flops(weight, one * columns), read, written), columns)
        for one, read, written in zip(each, reads, writes, strict=True)
    )
    return call.cost({**flops, **sampled}, read_bytes=_read(call), launches=(*products, *passes))
