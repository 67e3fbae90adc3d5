"""Pooling: FLOPs, the bytes that windows touch, and PyTorch's kernels.

An average is one add per window element, a maximum none. A thread makes one output and waits for each element of its
window: 27 elements in waves of full multiprocessors take 650 to 710 clocks each on A100, A10 and T4 (level1_43 of
kernelbench_v0), whatever the bandwidth.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from memwall.core.graph import TensorSpec
from memwall.core.units import counted
from memwall.ops import loops
from memwall.ops.base import Call, Cost, per_axis, touched_bytes
from memwall.ops.domains import pooled_places
from memwall.ops.passes import launched, looped, pass_over, stream_of, streamed, vector_flops
from memwall.ops.registry import formula
from memwall.ops.results import windows

op = partial(formula, "reduction")

#: threads of a block (DilatedMaxPool2d.cu; AveragePool2d.cu, of whose blocks a multiprocessor holds one: 342 us for
#: level1_45 of kernelbench_v0 on an A100)
_THREADS = {"max": 256, "avg": 1024}
#: load latencies of an element that the windows of other threads of the block have too: it is in L1, and the loop
#: around it takes longer than it does (windows of 7 x 7 with a stride of 3 on an H200); in three dimensions all wait
_SHARED_STEPS = 0.2
#: columns and rows of the block that makes so many outputs of one plane (DilatedMaxPool3d.cu, AveragePool3d.cu,
#: AdaptiveAveragePooling.cu, AdaptiveMaxPooling2d.cu)
_TILE = (32, 8)


def _rank(call: Call) -> int:
    return 2 if "2d" in call.name else 3


def _windowed(
    cost: Cost, output: TensorSpec, window: list[int], kind: str = "max", tiled: bool = False, new: float = 1.0
) -> Cost:
    """The cost as one launch whose threads make an output each from a window, whose share ``new`` no other has."""
    about = f"a thread goes over a window of {'x'.join(map(str, window))}"
    if len(window) == 2 and not tiled:
        return _gathered(cost, output, math.prod(window) * (new + _SHARED_STEPS * (1 - new)), about, kind)
    columns, rows = (*reversed(output.shape[-2:]), 1, 1)[:2]
    planes = output.numel // max(columns * rows, 1)
    tile = math.prod(_TILE)
    threads = tile * planes * math.ceil(columns / _TILE[0]) * math.ceil(rows / _TILE[1])
    return looped(cost, output.numel, threads, math.prod(window), about, tile)


def _gathered(cost: Cost, made: TensorSpec, steps: float, about: str, kind: str) -> Cost:
    """The cost as one launch whose threads make an element of ``made`` each, ``steps`` loads one after another."""
    threads = _THREADS[kind]
    resident = threads if kind == "avg" else 0
    return looped(cost, made.numel, made.numel, steps, about, threads, resident_threads=resident)


def _window_bytes(call: Call, size: list[int]) -> int:
    """Bytes of the input that the windows touch."""
    attributes = call.attributes
    return touched_bytes(
        call.arg("self") or call.inputs[0],
        size,
        call.outputs[0].shape[-len(size) :],
        attributes.get("stride") or attributes["kernel_size"],
        attributes.get("padding", 0),
        attributes.get("dilation", 1),
    )


def _new_share(call: Call, size: list[int]) -> float:
    """Share of a window's elements that the window before it along each axis has not."""
    stride = per_axis(call.attributes.get("stride") or size, len(size))
    return math.prod(min(step / length, 1.0) for length, step in zip(size, stride, strict=True))


@op("max_pool2d_with_indices max_pool2d", loop=loops.window, results=windows.pool, cpu_rate="max_pool")
@op("max_pool3d_with_indices", loop=loops.window, results=windows.pool)
@op("adaptive_max_pool2d adaptive_max_pool3d", results=windows.resized)
@op("max_pool3d fractional_max_pool2d fractional_max_pool3d")
def max_pool(call: Call) -> Cost:
    """No FLOP; windows that overlap are read once, what lies between windows is not read."""
    if "kernel_size" not in call.attributes or "fractional" in call.name:
        return _resized(call, call.cost())
    output, size = call.outputs[0], per_axis(call.attributes["kernel_size"], _rank(call))
    return _windowed(call.cost(read_bytes=_window_bytes(call, size)), output, size, new=_new_share(call, size))


@op("_adaptive_avg_pool2d", loop=loops.window, results=windows.resized)
@op("_adaptive_avg_pool3d", results=windows.resized)
def adaptive_average_pool(call: Call) -> Cost:
    """One add per input element (rows in two overlapping windows count once)."""
    data = call.need("self")
    return _resized(call, call.cost(vector_flops(data, data.numel)))


def _resized(call: Call, cost: Cost) -> Cost:
    """The cost as one launch whose threads go over as much of each axis as one output has of it."""
    rank, output = _rank(call), call.outputs[0]
    sizes = zip((call.arg("self") or call.inputs[0]).shape[-rank:], output.shape[-rank:], strict=True)
    return _windowed(cost, output, [math.ceil(size / max(count, 1)) for size, count in sizes], tiled=True)


@op("avg_pool2d avg_pool3d", loop=loops.window, results=windows.pool)
def average_pool(call: Call) -> Cost:
    """One add per window element."""
    output, size = call.outputs[0], per_axis(call.attributes["kernel_size"], _rank(call))
    flops = vector_flops(output, output.numel * math.prod(size))
    cost = call.cost(flops, read_bytes=_window_bytes(call, size))
    return _windowed(cost, output, size, kind="avg", new=_new_share(call, size))


# -- gradients ---------------------------------------------------------------------------------------------------------


def _covering(call: Call) -> int:
    """Windows that an element of the input may be in: a thread that makes its gradient looks at all of them."""
    size = per_axis(call.attributes["kernel_size"], _rank(call))
    stride = per_axis(call.attributes.get("stride") or size, len(size))
    return math.prod(math.ceil(length / step) for length, step in zip(size, stride, strict=True))


@op("max_pool2d_with_indices_backward", loop=loops.window, results=windows.like_input,
    domains={"indices": pooled_places})  # fmt: skip
@op("max_pool3d_with_indices_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward",
    results=windows.like_input)  # fmt: skip
@op("fractional_max_pool2d_backward fractional_max_pool3d_backward")
def max_pool_backward(call: Call) -> Cost:
    """One add per ``grad_output`` element into zeros; of the input only the shape is used, not its values. In two
    dimensions a thread makes an element of the input's gradient from all windows around it; others scatter."""
    grad, indices = call.need("grad_output"), call.arg("indices")
    read = grad.nbytes + (indices.nbytes if indices is not None else 0)
    cost = call.cost(vector_flops(grad, grad.numel), read_bytes=read)
    if call.name.split(".")[1] != "max_pool2d_with_indices_backward" or "kernel_size" not in call.attributes:
        return launched(cost, pass_over(0, cost.write_bytes), stream_of(cost, grad.numel))
    about = f"a thread looks at {counted(_covering(call), 'window')} around its element"
    gathered = _gathered(cost, call.outputs[0], 2 * _covering(call), about, "max")  # a place, then its gradient
    return launched(cost, pass_over(0, cost.write_bytes), *gathered.launches)


@op("avg_pool2d_backward", loop=loops.window, results=windows.like_input)
@op("avg_pool3d_backward", results=windows.like_input)
def average_pool_backward(call: Call) -> Cost:
    """One add per window element; of the input only the shape is used. In three dimensions windows that overlap add to
    zeros."""
    grad, rank = call.need("grad_output"), _rank(call)
    size = math.prod(per_axis(call.attributes["kernel_size"], rank))
    cost = call.cost(vector_flops(grad, grad.numel * size), read_bytes=grad.nbytes)
    if rank == 3:
        zeros = (pass_over(0, cost.write_bytes),) * (_covering(call) > 1)
        added = stream_of(cost, grad.numel)
        return launched(cost, *zeros, replace(added, read_bytes=cost.read_bytes + cost.write_bytes * len(zeros)))
    about = f"a thread looks at {counted(_covering(call), 'window')} around its element"
    return _gathered(cost, call.outputs[0], _covering(call), about, "avg")


@op("_adaptive_avg_pool2d_backward", loop=loops.window, results=windows.like_input)
@op("_adaptive_avg_pool3d_backward", results=windows.like_input)
def adaptive_average_pool_backward(call: Call) -> Cost:
    """One multiply per element of the gradient; of the input only the shape is used."""
    output = call.outputs[0]
    cost = call.cost(vector_flops(output, output.numel), read_bytes=call.need("grad_output").nbytes)
    return streamed(cost, output.numel)
