"""Normalisations.

FLOPs per element of the normalised tensor, after Ivanov et al., "Data Movement Is All You Need" (spcl/substation):

- layer, group and batch norm with statistics 7 (sum; subtract, square, sum; scale, weight, bias), batch norm with given
  statistics 4; gradients 9 for the input and 4 for weight and bias. RMS norm 4 (square, sum, scale, weight), 7 and 3.

Bytes are compulsory (each tensor once). What eager CUDA kernels read again goes in ``extra_bytes``: a second pass over
data of which a block cannot keep its share on chip. Sources are named next to each rule.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from memwall.core.graph import TensorSpec
from memwall.ops import loops
from memwall.ops.base import Call, Cost
from memwall.ops.domains import MEAN, POSITIVE
from memwall.ops.launches import WELFORD_STEPS, Launch, Rows, Stream
from memwall.ops.passes import (
    broadcast_instructions,
    first_result,
    in_one_piece,
    launched,
    pass_over,
    per_element,
    stream_of,
    streamed,
    vector_flops,
)
from memwall.ops.recorded import same, shaped
from memwall.ops.registry import define, formula
from memwall.ops.results import rows as results

op = partial(formula, "normalization")
_MOMENTS = {"mean": MEAN, "rstd": POSITIVE}

#: rows in flight on a multiprocessor of 2048 threads where a block of 128 has one (layer_norm_kernel.cu)
_ROWS_PER_SM = 16
#: threads of the block that goes over a group for its moments, an element each (group_norm_kernel.cu), or over a
#: channel (Normalization.cuh, ``batch_norm_collect_statistics_kernel``); and how many a multiprocessor's registers hold
_MOMENT_THREADS, _MOMENT_RESIDENT = 512, 1024
#: threads of a block where a group has fewer elements than that
_WARP = 32
#: group norm's gradients of weight and bias: images up to which a thread for each channel adds them, threads of its
#: block, and bytes of an image's sum (group_norm_kernel.cu)
_FEW_IMAGES, _SUM_THREADS, _SUM_BYTES = 128, 256, 4
#: load latencies of cuDNN's batch norm in training form for each 512 elements of a channel, a block for each channel:
#: four in flight in the pass for its moments, one in the pass for the result (level1_33 of kernelbench_v0, A100)
_CHANNEL_STEPS = 1.25
#: and of such a block besides: its scale, two sums that its threads join by shuffles and barriers, a root and what it
#: saves, about one each (batch norm of 16 channels of 392 elements takes 3 us beyond its launches on an H200)
_CHANNEL_ENDS = 4.0
#: load latencies of PyTorch's own kernel for the gradients for each 512 elements of a channel, in the pass for its sums
#: and again in that for the result (Normalization.cuh, ``batch_norm_backward_kernel``): both tensors at once, an
#: element each (0.95 us for 512 elements of 64 channels on an H200)
_GRADIENT_STEPS = 2.7

#: ``g * v / |v|``: square, sum, scale; backward: multiply, sum; scale, subtract, scale
op("_weight_norm_interface")(per_element("v", 3))
op("_weight_norm_interface_backward")(per_element("saved_v", 5))


@op("native_layer_norm", loop=loops.row_norm, results=results.layer_norm, cpu_rate="layer_norm")
def layer_norm(call: Call) -> Cost:
    """7 per element in two passes over a row, for its moments and for its result (layer_norm_kernel.cu)."""
    data = call.need("input")
    return call.cost(vector_flops(data, 7 * data.numel), launches=_norm_launches(call, data))


#: threads of the block that goes over such a row for its result, an element each
_RESULT_THREADS = 256
#: elements of a row that the kernel of whole vectors takes at once; other rows have a kernel for their moments and one
#: for the result (layer_norm_kernel.cu, can_vectorize)
_VECTOR = 4


def _norm_launches(call: Call, data: TensorSpec, kind: str = "layer_norm") -> tuple[Launch, ...]:
    """The launches of a layer or RMS norm."""
    length = _norm_length(call, data)
    if length % _VECTOR == 0:
        whole = _norm_rows(call, data, call.read_bytes, call.write_bytes, data.nbytes)
        return (replace(whole, kind=kind),)
    moments = call.write_bytes - call.outputs[0].nbytes
    result = replace(
        pass_over(call.read_bytes + moments, call.outputs[0].nbytes, data.numel),
        steps=math.ceil(length / _RESULT_THREADS),
        blocks=math.ceil(data.numel / max(length, 1) * _RESULT_THREADS / _MOMENT_THREADS),
    )
    return _norm_rows(call, data, data.nbytes, moments, 0), result


def _norm_length(call: Call, data: TensorSpec) -> int:
    """Elements that are normalised together: elements of all axes of the normalised shape."""
    return math.prod(call.attributes.get("normalized_shape") or data.shape[-1:])


def _norm_rows(call: Call, data: TensorSpec, read_bytes: int, write_bytes: int, second_pass_bytes: int) -> Rows:
    length = _norm_length(call, data)
    return Rows(
        kind="layer_norm",
        rows=data.numel // length if length else 0,
        columns=length,
        itemsize=data.itemsize,
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        second_pass_bytes=second_pass_bytes,
        rows_per_sm=_ROWS_PER_SM,
    )


@op("_fused_rms_norm", loop=loops.row_norm, results=results.layer_norm)
def rms_norm(call: Call) -> Cost:
    """4 per element, 3 without a weight."""
    data = call.need("input")
    per_element = 4 if call.arg("weight") is not None else 3
    return call.cost(vector_flops(data, per_element * data.numel), launches=_norm_launches(call, data, "rms_norm"))


#: op -> FLOPs per element of the input's gradient, and of the gradients of weight and bias
_ROW_BACKWARD = {"native_layer_norm_backward": (9, 4), "_fused_rms_norm_backward": (7, 3)}


@op("native_layer_norm_backward", loop=loops.row_norm_backward, results=results.norm_backward,
    cpu_rate="layer_norm_backward", domains=_MOMENTS)  # fmt: skip
@op("_fused_rms_norm_backward", loop=loops.row_norm_backward, results=results.norm_backward, domains={"rstd": POSITIVE})
def row_norm_backward(call: Call) -> Cost:
    """Layer and RMS norm: a kernel for the input, one for weight and bias; each reads both tensors, the first in two
    passes over a row. A gradient that is expanded is written out before (layer_norm_kernel.cu, ``expect_contiguous``).
    """
    for_input, for_weight = _ROW_BACKWARD[call.name.split(".")[1]]
    grad, data = _output_gradient(call), call.need("input")
    wanted = _wanted(call, data)
    flops = vector_flops(data, (for_input * wanted[0] + for_weight * wanted[1]) * data.numel)
    if not wanted[0]:
        return streamed(call.cost(flops), data.numel)
    whole, written = in_one_piece(grad)
    both = whole + data.nbytes
    first = _norm_rows(call, data, call.read_bytes + whole - grad.nbytes, data.nbytes, both)
    second = (_weight_gradient(first, both, max(call.write_bytes - data.nbytes, 0), data.numel),) * wanted[1]
    return call.cost(flops, launches=(*written, first, *second))


#: the kernel that adds up the gradients of weight and bias: columns of a block of 32 x 32 threads, rows of one turn of
#: its loop, whose loads do not wait for each other (layer_norm_kernel.cu)
_SUM_COLUMNS, _SUM_BLOCK, _TURN_ROWS, _TURN_STEPS = 32, 1024, 256, 1


def _weight_gradient(over: Rows, read_bytes: int, write_bytes: int, elements: int) -> Stream:
    """A block for some columns goes down all rows: few columns keep few multiprocessors busy."""
    return replace(
        pass_over(read_bytes, write_bytes, elements),
        steps=_TURN_STEPS * math.ceil(over.rows / _TURN_ROWS),
        blocks=math.ceil(over.columns / _SUM_COLUMNS),
        block_threads=_SUM_BLOCK,
    )


def _output_gradient(call: Call) -> TensorSpec:
    return call.arg("grad_out") or call.need("grad_output")


def _wanted(call: Call, data: TensorSpec) -> tuple[bool, bool]:
    """Whether the gradient of the input, and the gradients of weight and bias, are asked for; else what is returned."""
    mask = call.attributes.get("output_mask")
    if mask is not None:
        return bool(mask[0]), any(mask[1:])
    shapes = [output.shape for output in call.outputs]
    return data.shape in shapes, any(shape != data.shape for shape in shapes)


@op("native_group_norm", loop=loops.group_norm, results=results.group_norm)
def group_norm(call: Call) -> Cost:
    """7 per element: kernels for the moments, for their blend with weight and bias, and to apply them
    (group_norm_kernel.cu); the input is read twice."""
    data = call.need("input")
    cost = call.cost(vector_flops(data, 7 * data.numel))
    groups = data.shape[0] * call.attributes.get("group", 1)
    applied = stream_of(cost, data.numel, instructions=broadcast_instructions(2) * data.numel)
    return launched(cost, _moments(data, groups, "group"), pass_over(0, 0), applied)


def _moments(data: TensorSpec, blocks: int, of: str) -> Stream:
    """A pass of blocks over a part of the data each, for its moments; ten more updates join the moments of 512
    threads."""
    about = f"a block goes over each {of} for its moments, an element for each thread and turn"
    return _block_each(pass_over(data.nbytes, 0, data.numel), blocks, about, WELFORD_STEPS, 10 * (WELFORD_STEPS - 1))


def _block_each(work: Stream, blocks: int, about: str, turn_steps: float = 1.0, join_steps: float = 1.0) -> Stream:
    """The pass by a block for each part, with the load latencies of a turn and latencies to join what its threads
    found: two sums, whose shuffles and barriers take about one. Registers leave room for half of the threads (level2_79
    of kernelbench_v0, A100)."""
    elements = work.elements / max(blocks, 1)
    threads = _MOMENT_THREADS if elements >= _MOMENT_THREADS else _WARP
    return replace(
        work,
        steps=turn_steps * math.ceil(elements / threads) + join_steps,
        blocks=blocks,
        block_threads=threads,
        resident_threads=_MOMENT_RESIDENT,
        about=about,
    )


@op("native_group_norm_backward", loop=loops.group_norm_backward, results=results.norm_backward, domains=_MOMENTS)
def group_norm_backward(call: Call) -> Cost:
    """9 and 4 per element: sums over both tensors, their blend, the gradients of input and parameters."""
    grad, data = _output_gradient(call), call.need("input")
    wanted = _wanted(call, data)
    flops = (9 * wanted[0] + 4 * wanted[1]) * data.numel
    again = (grad.nbytes + data.nbytes) * wanted[0]
    sums = pass_over(call.read_bytes, 0 if wanted[0] else call.write_bytes, data.numel)
    sums = _block_each(sums, math.prod(data.shape[:2]), "a block goes over each channel of an image for its sums")
    small = (pass_over(0, 0), _blended(call, data)) * wanted[0] + (_parameter_sums(data),) * wanted[1]
    result = (pass_over(again, call.write_bytes, data.numel),) * wanted[0]
    result = tuple(replace(work, instructions=broadcast_instructions(3) * data.numel) for work in result)
    return call.cost(vector_flops(data, flops), launches=(sums, *small, *result))


def _blended(call: Call, data: TensorSpec) -> Stream:
    """A block for each group of an image blends the sums of its channels (Compute1dBackwardFusedParamsCUDAKernel)."""
    images, channels = data.shape[:2]
    sums = pass_over(2 * _SUM_BYTES * images * channels, 0, images * channels)
    return _block_each(sums, images * call.attributes.get("group", 1), "a block goes over the channels of a group")


def _parameter_sums(data: TensorSpec) -> Stream:
    """The gradients of weight and bias from each image's sums: of few images by a thread for each channel, of more by a
    block for 32 channels (GammaBetaBackwardCUDAKernel1 and 2)."""
    images, channels = data.shape[:2]
    sums = pass_over(2 * _SUM_BYTES * images * channels, 0, images * channels)
    if images <= _FEW_IMAGES:
        about = f"a thread for each channel adds {images} images one after another"
        blocks = math.ceil(channels / _SUM_THREADS)
        return replace(sums, steps=images, blocks=blocks, block_threads=_SUM_THREADS, about=about)
    about = f"a block for 32 channels adds {images} images"
    steps = math.ceil(images / _WARP) + 1
    return replace(sums, steps=steps, blocks=math.ceil(channels / _WARP), block_threads=512, about=about)


#: ops whose schemas do not mark ``running_mean`` and ``running_var`` as written
_SILENT_UPDATES = ("aten.native_batch_norm", "aten.cudnn_batch_norm", "aten.miopen_batch_norm")
_BATCH_NORM_GIVEN = ("aten._native_batch_norm_legit_no_training", "aten._batch_norm_no_update")
_RUNNING = {"running_mean": MEAN, "running_var": POSITIVE}


@op("native_batch_norm", loop=loops.batch_norm, results=results.batch_norm, cpu_rate="batch_norm_training",
    domains=_RUNNING)  # fmt: skip
@op("cudnn_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional _batch_norm_with_update",
    loop=loops.batch_norm, results=results.batch_norm, cpu_rate="batch_norm_training")  # fmt: skip
@op("miopen_batch_norm", results=results.batch_norm)
@op("_native_batch_norm_legit_no_training _batch_norm_no_update", loop=loops.batch_norm, results=results.batch_norm,
    cpu_rate="batch_norm")  # fmt: skip
def batch_norm(call: Call) -> Cost:
    """Training: 7 per element, the input read for its statistics and again. Inference: 4, read once.

    cuDNN goes over a channel with one block, twice (:func:`_by_cudnn`); PyTorch's own kernels are one for the moments,
    a block per channel as well, a small one, and one for the result.
    """
    data = call.need("input")
    given = call.name in _BATCH_NORM_GIVEN or not call.attributes.get("training", True)
    if given:  # the outputs for saved statistics stay empty
        cost = call.cost(vector_flops(data, 4 * data.numel), write_bytes=call.outputs[0].nbytes)
        return streamed(cost, data.numel)
    flops, write_bytes = vector_flops(data, 7 * data.numel), call.write_bytes + _running_bytes(call)
    if _by_cudnn(call, data):
        cost = call.cost(flops, write_bytes=write_bytes, extra_bytes=data.nbytes)
        return _a_block_per_channel(cost, data)
    cost = call.cost(flops, write_bytes=write_bytes)
    channels = data.shape[1] if data.is_contiguous else 0
    moments = _moments(data, channels, "channel") if channels else pass_over(data.nbytes, 0, data.numel)
    return replace(cost, launches=(moments, pass_over(0, 0), stream_of(cost, data.numel)))


def _by_cudnn(call: Call, data: TensorSpec) -> bool:
    """Whether PyTorch gives it to cuDNN (Normalization.cpp, ``_select_batch_norm_backend``): with weight and bias, no
    bfloat16, and float16 with a float32 weight alone."""
    weight = call.arg("weight")
    if weight is None or (call.arg("bias") is None and "backward" not in call.name):
        return False
    return data.dtype != "bfloat16" and (data.dtype != "float16" or weight.dtype == "float32")


def _a_block_per_channel(cost: Cost, data: TensorSpec) -> Cost:
    """The cost as cuDNN's kernel. Data of two axes, or with channels last, goes by others, which fill the GPU."""
    if len(data.shape) < 3 or not data.is_contiguous:
        return streamed(cost, data.numel)
    channels = data.shape[1]
    turns = math.ceil(data.numel / max(channels, 1) / _MOMENT_THREADS)
    return streamed(
        cost,
        data.numel,
        steps=_CHANNEL_STEPS * turns + _CHANNEL_ENDS,
        blocks=channels,
        block_threads=_MOMENT_THREADS,
        about="a block goes over each channel twice, for its sums and for its result, as cuDNN does",
    )


def _running_bytes(call: Call) -> int:
    """Bytes of the running statistics, which ops update although their schemas do not say so."""
    if not call.name.startswith(_SILENT_UPDATES) or call.name.endswith("_functional"):
        return 0
    return sum(spec.nbytes for spec in (call.arg("running_mean"), call.arg("running_var")) if spec)


@op("native_batch_norm_backward", loop=loops.batch_norm, results=results.norm_backward, cpu_rate="batch_norm_backward",
    domains={**_RUNNING, "save_mean": MEAN, "save_invstd": POSITIVE})  # fmt: skip
@op("cudnn_batch_norm_backward", loop=loops.batch_norm, results=results.norm_backward, cpu_rate="batch_norm_backward")
@op("batch_norm_backward", loop=loops.batch_norm, results=results.norm_backward)
@op("miopen_batch_norm_backward", results=results.norm_backward)
def batch_norm_backward(call: Call) -> Cost:
    """Training: 9 for the input (with the sums it needs) and 4; both tensors are read twice, for sums and
    result.

    With given statistics the input's gradient is a scale: 2 per element, and 4 for weight and bias.
    """
    grad, data = _output_gradient(call), call.need("input")
    wanted = _wanted(call, data)
    if call.attributes.get("train", call.attributes.get("update", True)):
        flops, again = (9 * wanted[0] + 4 * wanted[1]) * data.numel, (grad.nbytes + data.nbytes) * wanted[0]
        return _training_gradients(call, call.cost(vector_flops(data, flops), extra_bytes=again), data)
    flops, again = (2 * wanted[0] + 4 * wanted[1]) * data.numel, grad.nbytes * all(wanted)
    return streamed(call.cost(vector_flops(data, flops), extra_bytes=again), data.numel)


def _training_gradients(call: Call, cost: Cost, data: TensorSpec) -> Cost:
    """The cost as cuDNN's kernel, which wants the output's gradient in one piece (one that is expanded is written out
    before), or as PyTorch's: a block for each channel makes its sums and then its result."""
    grad = _output_gradient(call)
    if _by_cudnn(call, data) or not data.is_contiguous:
        (work,), (whole, written) = _a_block_per_channel(cost, data).launches, in_one_piece(grad)
        read_bytes = work.read_bytes + 2 * (whole - grad.nbytes)
        return replace(cost, launches=(*written, replace(work, read_bytes=read_bytes)))
    work = stream_of(cost, data.numel)
    work = replace(work, read_bytes=cost.read_bytes + cost.extra_bytes)
    about = "a block goes over each channel twice, for its sums and for its result"
    return replace(cost, launches=(_block_each(work, data.shape[1], about, _GRADIENT_STEPS),))


# Batch norm over several GPUs: each its own statistics, all of them gathered, then applied (Normalization.cuh).

# 4 per element: sum; subtract, square, sum
op("batch_norm_stats", loop=loops.batch_norm)(per_element("input", 4))
# the statistics of all GPUs into one, and the running ones: a few FLOP per channel, not counted
op("batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_update_stats")(per_element(first_result, 0))
# 3 per element, with 4 for the statistics the 7 of batch norm: scale, weight, bias
op("batch_norm_elemt", results=same)(per_element("input", 3))
# 4 per element: the gradient's sum; subtract, multiply, sum
op("batch_norm_backward_reduce")(per_element("input", 4))
# 9 per element, as batch norm's gradient of its input
op("batch_norm_backward_elemt", results=same)(per_element("input", 9))


# -- results of calls that other libraries recorded --------------------------------------------------------------------

define("_C::rms_norm aiter::rms_norm aiter::rmsnorm2d_fwd", results=shaped("input"))
