"""Convolutions.

- Forward: ``2 * output elements * (Cin / groups) * kernel size``; transposed, the same on its input. Both are the
  "wide" side times the weights that each of its elements meets, so padding is counted as if it were data.
- Backward: each gradient asked for, of input and of weight, costs as much as the forward pass. Neither the bias add nor
  the bias gradient's sum is counted; the bytes of both are.
- Bytes of the input: the positions that some window touches; a stride longer than the window skips the rest.
- float32 uses TF32 unless the call says ``allow_tf32=False`` (torch's default for cuDNN). A depthwise convolution (one
  input channel per group) runs on the vector engine (DepthwiseConv2d.cu accumulates in float32).
- Launches: one for each result, and a pass over the output where cuDNN adds the bias separately.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from memwall.core.graph import Pipe, TensorSpec, contiguous, is_channels_last
from memwall.ops.base import Call, Cost, per_axis, touched_bytes
from memwall.ops.contraction import product_flops, product_pipe
from memwall.ops.launches import Launch, Reduction, Stream
from memwall.ops.passes import in_one_piece, loop_instructions, sector_bytes
from memwall.ops.product_launches import Convolution, Gemm
from memwall.ops.registry import define, formula, full_name
from memwall.ops.results import windows

op = partial(formula, "convolution")

#: results of a block of a copy (512 threads of 4), and elements of 2 bytes of a sector of L2
_BLOCK_ELEMENTS, _SECTOR_ELEMENTS = 2048, 16
_TRANSPOSED = "cudnn_convolution_transpose miopen_convolution_transpose slow_conv_transpose2d slow_conv_transpose3d"
_TRANSPOSED_NAMES = frozenset(map(full_name, _TRANSPOSED.split()))
#: names under which cuDNN gets its bias as a second kernel that passes over the output (Convolution.cpp)
_SEPARATE_BIAS = frozenset({"aten.convolution", "aten._convolution"})


def _input(call: Call) -> TensorSpec:
    return call.arg("input") or call.need("self")


def _is_transposed(call: Call) -> bool:
    return call.name in _TRANSPOSED_NAMES or bool(call.attributes.get("transposed"))


def _is_depthwise(call: Call, weight: TensorSpec) -> bool:
    groups = call.attributes.get("groups", 1)
    return "depthwise" in call.name or (groups > 1 and weight.shape[1] == 1)


def _work(call: Call, wide: TensorSpec, weight: TensorSpec, passes: int = 1) -> dict[Pipe, int]:
    # weight is [Cout, Cin/groups, *kernel]; of a transposed convolution [Cin, Cout/groups, *kernel]
    flops = passes * product_flops(wide.numel * math.prod(weight.shape[1:]), weight.dtype)
    if _is_depthwise(call, weight):
        return {Pipe("vector", "float64" if weight.dtype == "float64" else "float32"): flops}
    return {product_pipe(weight.dtype, call.attributes, allow_tf32=True): flops}


@op("convolution _convolution convolution_overrideable cudnn_convolution cudnn_convolution_relu"
    " cudnn_convolution_add_relu miopen_convolution miopen_convolution_relu miopen_convolution_add_relu"
    " miopen_depthwise_convolution mkldnn_convolution _conv_depthwise2d conv_depthwise3d _slow_conv2d_forward"
    f" slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d {_TRANSPOSED}",
    results=windows.convolution)  # fmt: skip
def convolution(call: Call) -> Cost:
    """``input`` [b, Cin, *size], ``weight``, optional ``bias`` -> [b, Cout, *size]."""
    data, weight, output, bias = _input(call), call.need("weight"), call.outputs[0], call.arg("bias")
    flops = _work(call, data if _is_transposed(call) else output, weight)
    read = call.read_bytes - _skipped_bytes(call, data, weight, output)
    copied = _copied(data, output)
    if call.name in _SEPARATE_BIAS and bias is not None and not _is_depthwise(call, weight):
        product = _launch(call, "forward", data, output, read - bias.nbytes, output.nbytes)
        added = Stream(
            read_bytes=output.nbytes + bias.nbytes,
            write_bytes=output.nbytes,
            elements=output.numel,
            about="a kernel of its own adds the bias",
        )
        return call.cost(flops, read_bytes=read, launches=(*copied, product, added))
    product = _launch(call, "forward", data, output, read, call.write_bytes)
    return call.cost(flops, read_bytes=read, launches=(*copied, product))


def _copied(data: TensorSpec, output: TensorSpec) -> tuple[Stream, ...]:
    """The pass that lays an input out as the result is: channels last, where the weight alone has them
    (``cudnn_conv_suggest_memory_format`` of ConvUtils.h)."""
    if not (_has_channels_last(output) and data.is_contiguous and data.numel > 1 and data.shape[1] > 1):
        return ()
    if math.prod(data.shape[2:]) == 1:
        return ()
    _, channels, *places = data.shape
    strides = [channels * step for step in contiguous(places, data.dtype).strides]
    laid_out = TensorSpec(data.shape, (channels * math.prod(places), 1, *strides), data.dtype)
    copy = Stream(
        read_bytes=data.nbytes,
        write_bytes=data.nbytes,
        elements=data.numel,
        instructions=loop_instructions([data], laid_out),
        # a block's results are some places with all their channels; where these are few it uses whole sectors
        sector_bytes=sector_bytes(data, laid_out) if channels > _BLOCK_ELEMENTS // _SECTOR_ELEMENTS else 0,
        about="the input is copied to channels last, as the weight is",
    )
    return (copy,)


def _has_channels_last(spec: TensorSpec) -> bool:
    return is_channels_last(spec.shape, spec.strides)


#: role of a convolution -> role of the convolution that it transposes
_TRANSPOSED_ROLE = {"forward": "input", "input": "forward", "weight": "weight"}


def _launch(call: Call, role: str, data: TensorSpec, output: TensorSpec, read_bytes: int, write_bytes: int) -> Launch:
    """The launch that makes the output or, of one of that shape, the gradient of the data or the weight."""
    weight = call.need("weight")
    if _is_transposed(call):
        role, data, output = _TRANSPOSED_ROLE[role], output, data
    kernel = weight.shape[2:]
    groups = max(data.shape[-len(kernel) - 1] // max(weight.shape[1], 1), 1)
    (pipe,) = _work(call, output, weight)
    return Convolution(
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        pipe=pipe,
        role=role,
        transposed=_is_transposed(call),
        images=math.prod(output.shape[: -len(kernel) - 1]),
        groups=groups,
        channels_in=weight.shape[1],
        channels_out=weight.shape[0] // groups,
        places_in=data.shape[-len(kernel) :],
        places_out=output.shape[-len(kernel) :],
        kernel=kernel,
        stride=tuple(per_axis(call.attributes.get("stride", 1), len(kernel))),
        itemsize=weight.itemsize,
        searched=bool(call.attributes.get("benchmark")),
        dilation=tuple(per_axis(call.attributes.get("dilation", 1), len(kernel))),
        channels_last=_has_channels_last(output) or (not data.is_contiguous and data.strides[-len(kernel) - 1] == 1),
    )


def _skipped_bytes(call: Call, data: TensorSpec, weight: TensorSpec, output: TensorSpec) -> int:
    """Bytes of the input between the windows, in none of them."""
    if _is_transposed(call) or "stride" not in call.attributes:
        return 0
    rank = len(weight.shape) - 2
    touched = touched_bytes(
        data,
        weight.shape[2:],
        output.shape[-rank:],
        call.attributes["stride"],
        call.attributes.get("padding", 0),
        call.attributes.get("dilation", 1),
    )
    return data.nbytes - touched


@op("convolution_backward convolution_backward_overrideable", results=windows.convolution_backward)
def convolution_backward(call: Call) -> Cost:
    """One kernel per gradient in ``output_mask`` (input, weight, bias); each reads ``grad_output`` again."""
    grad, weight, data = call.need("grad_output"), call.need("weight"), call.need("input")
    mask = [bool(wanted) for wanted in call.attributes.get("output_mask", (True, True, False))]
    flops = _work(call, data if _is_transposed(call) else grad, weight, passes=sum(mask[:2]))
    touched = data.nbytes - _skipped_bytes(call, data, weight, grad)
    return call.cost(
        flops,
        read_bytes=grad.nbytes + weight.nbytes * mask[0] + touched * mask[1],
        launches=_gradients(call, mask, touched),
    )


def _gradients(call: Call, mask: list[bool], touched_bytes: int) -> tuple[Launch, ...]:
    """One launch for each requested gradient; ``touched_bytes`` of the input are in some window. A library wants the
    output's gradient in one piece: a gradient that is expanded, as a sum's is, is written out before (Conv_v8.cpp,
    ``contiguous``); the bias's is summed as it was given."""
    grad, weight, data = call.need("grad_output"), call.need("weight"), _input(call)
    (whole, written), channels = in_one_piece(grad), grad.shape[1]
    launches = (
        _launch(call, "input", data, grad, whole + weight.nbytes, data.nbytes),
        _launch(call, "weight", data, grad, whole + touched_bytes, weight.nbytes),
        Reduction(
            read_bytes=grad.nbytes,
            write_bytes=channels * grad.itemsize,
            elements=grad.numel,
            outputs=channels,
            reduced=grad.numel // max(channels, 1),
            inner=1 if grad.is_contiguous else channels,
        ),
    )
    wanted = (launch for launch, asked in zip(launches, [*mask, False, False], strict=False) if asked)
    before = (replace(one, about="the expanded gradient is written out before") for one in written)
    return (*(before if any(mask[:2]) else ()), *wanted)


@op("conv_tbc")
def time_major(call: Call) -> Cost:
    """``self`` [T, B, Cin], ``weight`` [kernel, Cin, Cout] -> [T', B, Cout]: a product for each tap
    (ConvolutionTBC.cpp)."""
    data, weight, output = call.need("self"), call.need("weight"), call.outputs[0]
    pipe = product_pipe(weight.dtype, call.attributes)
    flops = {pipe: product_flops(output.numel * math.prod(weight.shape[:2]), weight.dtype)}
    rows, (taps, depth, channels) = output.numel // max(output.shape[-1], 1), weight.shape
    one = Gemm(
        pipe=pipe,
        batch=1,
        m=rows,
        n=channels,
        k=depth,
        itemsize=weight.itemsize,
        read_bytes=data.nbytes + weight.nbytes // max(taps, 1),
        write_bytes=output.nbytes,
    )
    return call.cost(flops, launches=(one,) * taps)


@op("_slow_conv2d_backward.output_mask")
def slow_convolution_backward(call: Call) -> Cost:
    """The im2col fallback's backward: one pass per gradient of input and weight."""
    grad, weight = call.need("grad_output"), call.need("weight")
    mask = [bool(wanted) for wanted in call.attributes.get("output_mask", (True, True, False))]
    flops = _work(call, grad, weight, passes=sum(mask[:2]))
    launches = _gradients(call, mask, _input(call).nbytes)
    return call.cost(flops, launches=launches)


# -- results of recorded calls of older versions -----------------------------------------------------------------------

define("thnn_conv2d_forward", results=windows.convolution)
define("cudnn_convolution_backward miopen_convolution_backward cudnn_convolution_transpose_backward",
       results=windows.convolution_backward)  # fmt: skip
define(" ".join(windows.LONE_GRADIENTS), results=windows.legacy_convolution_gradient)
define("convolution", operands=("input", "weight"), tf32_switch="cudnn")
define("convolution_backward", tf32_switch="cudnn")
