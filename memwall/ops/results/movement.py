"""Results of ops that move, gather, scatter, fill or order, and of Fourier transforms."""

from __future__ import annotations

import math

from memwall.core.errors import Unsupported
from memwall.core.graph import contiguous
from memwall.ops.recorded import Recorded, Specs, promote, stated_dtype


def concatenated(call: Recorded) -> Specs:
    """The tensors of a list one after another."""
    specs = call.tensors("tensors") if "tensors" in call.arguments else tuple(call.inputs())
    if not specs:
        raise Unsupported("the shapes of the list were not recorded")
    whole = sum(spec.numel for spec in specs)
    return (contiguous((whole,), promote(specs)),)


def selected(call: Recorded) -> Specs:
    """``index_select``: slices of one axis."""
    data, index, dim = call.need("self"), call.need("index"), call.value("dim", 0)
    shape = list(data.shape) or [1]
    shape[dim % len(shape) if type(dim) is int else 0] = index.numel
    return (contiguous(tuple(shape), data.dtype),)


def embedded(call: Recorded) -> Specs:
    """A row for each index."""
    weight, indices = call.need("weight"), call.need("indices")
    return (contiguous((*indices.shape, *weight.shape[1:]), weight.dtype),)


def indexed(call: Recorded) -> Specs:
    """``self[indices]``: a trace has no indices, so the launched threads bound the result from below."""
    data = call.need("self")
    found = call.gradient[0] if call.gradient else None
    if found is not None:
        return (contiguous(found.shape, data.dtype),)
    if call.slices and data.shape and data.shape[0]:
        return (contiguous((call.slices, *data.shape[1:]), data.dtype),)
    if not call.elements:
        raise Unsupported("the indices were not recorded")
    call.notes.append("the indices were not recorded: counted are the fewest elements that the launch can cover")
    return (contiguous((call.elements,), data.dtype),)


def embedding_gradient(call: Recorded) -> Specs:
    """The gradient of the whole table."""
    grad = call.tensor("grad_output") or call.need("grad")
    rows = call.value("num_weights")
    if type(rows) is not int:
        raise Unsupported("the length of the table was not recorded")
    return (contiguous((rows, grad.shape[-1]), grad.dtype),)


def filled(call: Recorded) -> Specs:
    """A tensor of a stated size."""
    for name in ("size", "sizes"):
        if (sizes := call.sizes(name)) is not None:
            like = call.inputs()
            return (contiguous(sizes, stated_dtype(call, like[0].dtype if like else "float32")),)
    raise Unsupported("the size of the result was not recorded")


def counted(call: Recorded) -> Specs:
    """``arange``: as long as its end, start and step say."""
    start, end, step = (call.value(name, default) for name, default in (("start", 0), ("end", None), ("step", 1)))
    if not all(isinstance(n, (int, float)) for n in (start, end, step)) or not step:
        raise Unsupported("the ends of the range were not recorded")
    return (contiguous((max(math.ceil((end - start) / step), 0),), stated_dtype(call, "int64")),)


def repeated(call: Recorded) -> Specs:
    """The tensor several times along its axes."""
    data, times = call.need("self"), call.sizes("repeats")
    if times is None:
        raise Unsupported("the repeats were not recorded")
    shape = (*((1,) * (len(times) - len(data.shape))), *data.shape)
    return (contiguous(tuple(n * t for n, t in zip(shape, times, strict=False)), data.dtype),)


def padded(call: Recorded) -> Specs:
    """Longer at the ends of the last axes."""
    data, pads = call.need("self"), call.sizes("pad") or call.sizes("padding")
    if pads is None or len(pads) // 2 > len(data.shape):
        raise Unsupported("the padding was not recorded")
    shape = list(data.shape)
    for i in range(len(pads) // 2):
        shape[-1 - i] += pads[2 * i] + pads[2 * i + 1]
    return (contiguous(tuple(max(n, 0) for n in shape), data.dtype),)


def permuted(call: Recorded) -> Specs:
    """``randperm``, ``linspace``: as long as was asked for."""
    count = call.value("n", call.value("steps"))
    if type(count) is not int:
        raise Unsupported("the length of the result was not recorded")
    return (contiguous((count,), stated_dtype(call, "int64" if call.packet == "randperm" else "float32")),)


def unknown_count(call: Recorded) -> Specs:
    """``nonzero``, ``masked_select``: no trace has the number of results; counted as none."""
    call.notes.append("how many elements were found was not recorded: counted as none")
    return (contiguous((0,), "int64"),)


def places_in(call: Recorded) -> Specs:
    """``bucketize``, ``searchsorted``, ``isin``: a place, or a truth, for each element that is looked up."""
    packet = call.packet
    if packet == "isin":
        return (contiguous(call.need("elements").shape, "bool"),)
    looked_up = call.tensor("self")
    narrow = call.value("out_int32") is True
    return (contiguous(looked_up.shape if looked_up is not None else (), "int32" if narrow else "int64"),)


def transformed(call: Recorded) -> Specs:
    """Fourier transforms: of a real one the last axis holds half of the points and one."""
    data, axes = call.need("self"), call.sizes("dim")
    if call.packet == "_fft_c2c":
        return (contiguous(data.shape, data.dtype),)
    if not axes:
        raise Unsupported("the axes of the transform were not recorded")
    shape, last = list(data.shape), axes[-1]
    if call.packet == "_fft_r2c":
        shape[last] = shape[last] // 2 + 1 if call.value("onesided", True) is True else shape[last]
        return (contiguous(tuple(shape), "complex128" if data.dtype == "float64" else "complex64"),)
    size = call.value("last_dim_size")
    shape[last] = size if type(size) is int else 2 * (shape[last] - 1)
    return (contiguous(tuple(shape), "float64" if data.dtype == "complex128" else "float32"),)


def bag(call: Recorded) -> Specs:
    """``_embedding_bag``: a row for each bag."""
    weight, offsets = call.need("weight"), call.need("offsets")
    return (contiguous((max(offsets.numel, 1), *weight.shape[1:]), weight.dtype),)
