"""Ops that read a tensor at computed places: interpolation, sampling on a grid, binary search.

FLOPs as in :mod:`memwall.ops.elementwise`. No more is read than the places that are looked at.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from memwall.ops import loops
from memwall.ops.base import Call, Cost, fetched_bytes
from memwall.ops.domains import always
from memwall.ops.passes import launched, looped, pass_over, stream_of, streamed, table_of, vector_flops
from memwall.ops.registry import define, formula
from memwall.ops.results import movement as moved
from memwall.ops.results import windows

op = partial(formula, "elementwise")

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
#: threads of a block of an interpolation (UpSampleBilinear2d.cu): each makes the same place of all images and channels,
#: so that many channels of a small picture leave multiprocessors idle
_THREADS = 1024


@op(" ".join(name for name in _RESAMPLING if name.endswith("_backward")), results=windows.like_input)
@op(" ".join(name for name in _RESAMPLING if not name.endswith("_backward")), results=windows.resized)
def resampling(call: Call) -> Cost:
    """Interpolation, counted on its fine side; gradients are scattered into a zeroed tensor."""
    name = call.name.split(".")[1]
    backward = name.endswith("_backward")
    fine = call.need("grad_output") if backward else call.outputs[0]
    flops = vector_flops(fine, fine.numel * _RESAMPLING[name])
    if backward:
        cost = call.cost(flops)
        return launched(cost, pass_over(0, cost.write_bytes), stream_of(cost, fine.numel))
    taps = _TAPS.get(name.strip("_"), 1)
    cost = call.cost(flops, read_bytes=min(call.read_bytes, taps * fine.numel * fine.itemsize))
    planes = math.prod(fine.shape[:2])
    if taps == 1 or not fine.is_contiguous or not planes:
        return streamed(cost, fine.numel)
    about = f"a thread makes one place of {planes} planes, one after another"
    return looped(cost, fine.numel, fine.numel // planes, planes, about, _THREADS)


#: antialiased interpolation → input pixels under the kernel where nothing is made smaller
_KERNEL_WIDTH = {"bilinear": 2, "bicubic": 4, "lanczos": 6}


def _covered(size: int, target: int, width: int, scale: float | None, corners: bool) -> int:
    """Input pixels of all windows along one axis, which are wider where an axis shrinks (UpSample.cuh,
    ``compute_weights_span``)."""
    if corners:
        step = (size - 1) / (target - 1) if target > 1 else 0.0
    else:
        step = 1 / scale if scale else size / target
    support = width / 2 * max(step, 1.0)
    total = 0
    for place in range(target):
        center = step * (place + 0.5)
        total += min(int(center + support + 0.5), size) - max(int(center - support + 0.5), 0)
    return total


@op(" ".join(f"_upsample_{kind}2d_aa" for kind in _KERNEL_WIDTH), loop=loops.opaque, results=windows.resized)
@op(" ".join(f"_upsample_{kind}2d_aa_backward" for kind in _KERNEL_WIDTH), loop=loops.opaque,
    results=windows.like_input)  # fmt: skip
def antialiased(call: Call) -> Cost:
    """2 FLOP per pixel of an element's window, and 2 per row of it (UpSampleBilinear2d.cu); of the gradient 3 per pixel
    (the product of two weights, a multiply, an add), added into zeros."""
    kind = call.name.split("_upsample_")[1].partition("2d")[0]
    backward = "backward" in call.name
    fine, coarse = (call.need("grad_output"), call.outputs[0]) if backward else (call.outputs[0], call.need("self"))
    corners = bool(call.attributes.get("align_corners"))
    scales = call.attributes.get("scale_factors") or [call.attributes.get(f"scales_{axis}") for axis in "hw"]
    rows, columns = (
        _covered(size, target, _KERNEL_WIDTH[kind], scale, corners)
        for size, target, scale in zip(coarse.shape[-2:], fine.shape[-2:], scales, strict=True)
    )
    images, width = fine.numel // max(fine.shape[-1] * fine.shape[-2], 1), fine.shape[-1]
    flops = images * (3 * rows * columns if backward else 2 * rows * columns + 2 * rows * width)
    if backward:
        cost = call.cost(vector_flops(fine, flops))
        return launched(cost, pass_over(0, cost.write_bytes), stream_of(cost, fine.numel))
    read = min(call.read_bytes, images * rows * columns * fine.itemsize)
    return streamed(call.cost(vector_flops(fine, flops), read_bytes=read), fine.numel)


@formula("contraction", "affine_grid_generator")
def affine_grid(call: Call) -> Cost:
    """A grid of coordinates (filled axis by axis) times each image's matrix: [places, axes + 1] x [axes + 1, axes]."""
    grid, axes = call.outputs[0], call.outputs[0].shape[-1]
    base = grid.nbytes // max(axes, 1) * (axes + 1)
    fills = (pass_over(0, base // (axes + 1)),) * (axes + 1)
    cost = call.cost(vector_flops(grid, 2 * (axes + 1) * grid.numel))
    return launched(cost, *fills, replace(stream_of(cost, grid.numel), read_bytes=call.read_bytes + base))


@op("grid_sampler_2d grid_sampler_3d cudnn_grid_sampler", loop=loops.opaque, results=windows.sampled)
def grid_sampler(call: Call) -> Cost:
    """A multiply and an add per tap: 4 (bilinear), 8 (trilinear), none (nearest), 16 (bicubic, 35 FLOP). No more of
    the input is read than the taps."""
    output = call.outputs[0]
    taps, flops = _grid_taps(call, len(output.shape) - 2)
    read = call.need("grid").nbytes + fetched_bytes(call.arg("input") or call.inputs[0], output.numel * taps)
    return streamed(call.cost(vector_flops(output, output.numel * flops), read_bytes=read), output.numel)


def _grid_taps(call: Call, axes: int) -> tuple[int, int]:
    """Input elements, and FLOPs, of one element that is sampled."""
    return {0: (2**axes, 2 * 2**axes), 1: (1, 0), 2: (16, 35)}[call.attributes.get("interpolation_mode", 0)]


@op("grid_sampler_2d_backward grid_sampler_3d_backward", results=windows.like_input)
def grid_sampler_backward(call: Call) -> Cost:
    """The taps' gradients, added into zeros, and one number per axis for the grid: each takes the FLOPs of forward."""
    grad, axes = call.need("grad_output"), len(call.need("grad_output").shape) - 2
    taps, flops = _grid_taps(call, axes)
    read = grad.nbytes + call.need("grid").nbytes + fetched_bytes(call.need("input"), grad.numel * taps)
    cost = call.cost(vector_flops(grad, grad.numel * flops * (1 + axes)), read_bytes=read)
    return launched(cost, pass_over(0, cost.write_bytes), stream_of(cost, grad.numel))


@op("searchsorted bucketize", loop=loops.opaque, results=moved.places_in)
def search(call: Call) -> Cost:
    """A binary search per value: no more loads of the sorted sequence than its halvings."""
    name = "sorted_sequence" if "searchsorted" in call.name else "boundaries"
    edges = call.need(name)
    loads = call.outputs[0].numel * (max(edges.shape[-1], 1).bit_length() if edges.shape else 1)
    read = call.bytes_except(name) + fetched_bytes(edges, loads)
    return streamed(call.cost(read_bytes=read), call.outputs[0].numel)


define("searchsorted", domains={"sorted_sequence": always("ascending", high=100)})
