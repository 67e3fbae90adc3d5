"""Ops that read a tensor at computed places: interpolation, sampling on a grid, binary search.

FLOPs as in :mod:`memwall.ops.elementwise`. No more is read than the places that are looked at.
"""

from __future__ import annotations

from functools import partial

from memwall.ops import loops
from memwall.ops.base import Call, Cost, fetched_bytes
from memwall.ops.domains import always
from memwall.ops.elementwise import launched, pass_over, stream_of, streamed, table_of, vector_flops
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
    return streamed(cost, fine.numel)


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
