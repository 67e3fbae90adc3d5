"""Results of convolutions, pooling and interpolation, whose windows may not have been recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memwall.core.errors import Unsupported
from memwall.core.graph import TensorSpec, contiguous
from memwall.ops.recorded import Recorded, Specs, dense, first_tensor, taken_elsewhere


def per_axis(value: Sequence[int] | None, rank: int, default: int) -> tuple[int, ...]:
    values = tuple(value or ()) or (default,)
    return values if len(values) == rank else values[:1] * rank


#: places times window along an axis with gaps, which are counted one by one
_MOST_GAPPED = 2**22


def _check_places(places: Sequence[int], kernel: Sequence[int], steps: Sequence[int], gaps: Sequence[int]) -> None:
    axes = zip(places, kernel, steps, gaps, strict=True)
    if any(n <= 0 or (s > 1 and d > 1 and n * k > _MOST_GAPPED) for n, k, s, d in axes):
        raise Unsupported("the recorded sizes give no output")


def convolution(call: Recorded) -> Specs:
    """[b, Cin, *size] x [Cout, Cin/groups, *kernel]."""
    data, weight = call.tensor("input") or call.need("self"), call.need("weight")
    rank = len(weight.shape) - 2
    batch = data.shape[: len(data.shape) - rank - 1]
    strides = call.sizes("stride")
    if strides is None:
        return (_inferred_output(call, batch, weight.shape[0], rank),)
    kernel, steps = weight.shape[2:], per_axis(strides, rank, 1)
    pads, gaps = per_axis(call.sizes("padding"), rank, 0), per_axis(call.sizes("dilation"), rank, 1)
    if call.value("transposed") is True or "transpose" in call.packet:
        more = per_axis(call.sizes("output_padding"), rank, 0)
        groups = call.value("groups", 1)
        channels = weight.shape[1] * (groups if type(groups) is int else 1)
        places = [
            (n - 1) * s - 2 * p + d * (k - 1) + o + 1
            for n, s, p, d, k, o in zip(data.shape[-rank:], steps, pads, gaps, kernel, more, strict=True)
        ]
    else:
        channels = weight.shape[0]
        places = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, s, p, d, k in zip(data.shape[-rank:], steps, pads, gaps, kernel, strict=True)
        ]
    _check_places(places, kernel, steps, gaps)
    return (dense((*batch, channels, *places), data.dtype, same_layout(data, (*batch, channels, *places))),)


def same_layout(data: TensorSpec, shape: tuple[int, ...]) -> Specs:
    """A tensor of the shape with its channels last, where the data's are."""
    rank = len(shape)
    if rank < 4 or data.is_contiguous or data.strides[1] != 1:
        return ()
    order = (0, *range(2, rank), 1)
    strides, step = [0] * rank, 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return (TensorSpec(shape, tuple(strides), data.dtype),)


def _inferred_output(call: Recorded, batch: Sequence[int], channels: int, rank: int) -> TensorSpec:
    def fits(spec: TensorSpec) -> bool:
        return len(spec.shape) == len(batch) + 1 + rank and spec.shape[: len(batch) + 1] == (*batch, channels)

    found = taken_elsewhere(call, fits)
    if found is None:
        raise Unsupported("neither stride nor padding was recorded, and no other op tells the result's shape")
    call.notes.append("stride and padding were not recorded: the result's shape is that which another op took")
    return found


def inferred_window(call: Recorded) -> dict[str, Any]:
    """Stride and padding of a convolution from the shapes of its input and output."""
    data = call.tensor("input") or call.tensor("self")
    grad = call.tensor("grad_output")
    try:
        weight = call.tensor("weight") or weight_of(call)
        output = grad or convolution(call)[0]
        if data is None:
            data = input_of(call)
    except Unsupported:
        return {}
    rank = len(weight.shape) - 2
    pairs = [
        _step_and_padding(n, m, k)
        for n, m, k in zip(data.shape[-rank:], output.shape[-rank:], weight.shape[2:], strict=True)
    ]
    return {"stride": [step for step, _ in pairs], "padding": [pad for _, pad in pairs]}


def _step_and_padding(size: int, places: int, kernel: int) -> tuple[int, int]:
    """The stride and the smallest usual padding with which ``places`` windows of ``kernel`` fit ``size``."""
    for pad in dict.fromkeys(((kernel - 1) // 2, 0, *range(kernel))):
        for step in range(1, max(kernel, 1) * 4 + 1):
            if (size + 2 * pad - kernel) // step + 1 == places:
                return step, pad
    return 1, 0


def weight_of(call: Recorded) -> TensorSpec:
    """The weight of a backward call that was only given its size."""
    return _of_size(call, "weight_size", 2)


def input_of(call: Recorded) -> TensorSpec:
    """The input of a backward call that was only given its size."""
    return _of_size(call, "self_size", 0)


def _of_size(call: Recorded, size: str, place: int) -> TensorSpec:
    """A tensor by its size, else the tensor of ``cudnn_convolution_backward(input, grad_output, weight, ...)``
    around."""
    data, sizes = call.need("grad_output"), call.sizes(size)
    if sizes is not None:
        return contiguous(sizes, data.dtype)
    spec = call.parent[place] if place < len(call.parent) else None
    if spec is None:
        raise Unsupported("a size of this convolution was not recorded")
    return spec


def convolution_backward(call: Recorded) -> Specs:
    """The gradients that ``output_mask`` asks for, of input, weight and bias."""
    mask = gradient_mask(call, 3)
    data, weight, grad = call.need("input"), call.need("weight"), call.need("grad_output")
    bias = contiguous((grad.shape[1],), grad.dtype)
    return tuple(spec for spec, wanted in zip((data, weight, bias), mask, strict=False) if wanted)


def gradient_mask(call: Recorded, count: int) -> list[bool]:
    value = call.values.get("output_mask")
    if isinstance(value, (list, tuple)):
        return [bool(v) for v in value] + [False] * (count - len(value))
    call.notes.append("which gradients were asked for was not recorded: counted as that of the weight alone")
    return [False, True, *([False] * (count - 2))]


def legacy_convolution_gradient(call: Recorded) -> Specs:
    """``cudnn_convolution_backward_input`` and ``_weight``: one gradient each."""
    return (input_of(call),) if call.packet.endswith("_input") else (weight_of(call),)


#: ops that make one gradient have no mask
LONE_GRADIENTS: dict[str, dict[str, Any]] = {
    f"{library}_convolution_backward_{part}": {"output_mask": mask}
    for library in ("cudnn", "miopen")
    for part, mask in (("input", [True, False, False]), ("weight", [False, True, False]))
}

#: rules of ops whose stride and padding follow from shapes, where they were not recorded
WINDOWED = frozenset((convolution, convolution_backward, legacy_convolution_gradient))


def pool(call: Recorded) -> Specs:
    """Windows over the last axes; a maximum also gives its places."""
    data, rank = first_tensor(call), 3 if "3d" in call.packet else 2
    kernel = call.sizes("kernel_size")
    if kernel is None:
        batch = data.shape[:-rank]
        found = taken_elsewhere(call, lambda spec: spec.shape[:-rank] == batch and len(spec.shape) == len(data.shape))
        if found is None:
            raise Unsupported("the window was not recorded")
        shape = found.shape
    else:
        sizes = per_axis(kernel, rank, 1)
        steps, pads = (per_axis(call.sizes("stride") or sizes, rank, 1), per_axis(call.sizes("padding"), rank, 0))
        gaps = per_axis(call.sizes("dilation"), rank, 1)
        up = call.value("ceil_mode") is True
        places = []
        for n, k, s, p, d in zip(data.shape[-rank:], sizes, steps, pads, gaps, strict=True):
            span = n + 2 * p - d * (k - 1) - 1
            places.append((-(-span // s) if up else span // s) + 1)
        _check_places(places, sizes, steps, gaps)
        shape = (*data.shape[:-rank], *places)
    output = dense(shape, data.dtype, same_layout(data, shape))
    return (output, TensorSpec(output.shape, output.strides, "int64")) if "indices" in call.packet else (output,)


def resized(call: Recorded) -> Specs:
    """Interpolation and adaptive pooling: the axes after the channels are ``output_size`` or scaled."""
    data = first_tensor(call)
    sizes = call.sizes("output_size")
    rank = next((n for n in (1, 2, 3) if f"{n}d" in call.packet), 2)
    if sizes is None:
        batch = data.shape[:-rank]
        found = taken_elsewhere(call, lambda s: len(s.shape) == len(data.shape) and s.shape[:-rank] == batch)
        if found is None:
            raise Unsupported("the size of the result was not recorded")
        return (contiguous(found.shape, data.dtype),)
    shape = (*data.shape[:-rank], *per_axis(sizes, rank, 1))
    output = contiguous(shape, data.dtype)
    return (output, contiguous(shape, "int64")) if "max_pool" in call.packet else (output,)


def like_input(call: Recorded) -> Specs:
    """A gradient in the shape of the input that the call names, or whose size it states."""
    for name in ("self", "input"):
        if (spec := call.tensor(name)) is not None:
            return (contiguous(spec.shape, spec.dtype),)
    sizes = call.sizes("input_size") or call.sizes("input_sizes") or call.sizes("self_sizes")
    if sizes is None:
        raise Unsupported("the size of the input was not recorded")
    return (contiguous(sizes, first_tensor(call).dtype),)


def sampled(call: Recorded) -> Specs:
    """``grid_sampler``: a value for each place of the grid and channel."""
    data, grid = call.need("input"), call.need("grid")
    return (contiguous((*data.shape[:2], *grid.shape[1:-1]), data.dtype),)
