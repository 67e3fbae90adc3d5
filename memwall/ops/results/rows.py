"""Results of normalizations, losses, reductions and scans."""

from __future__ import annotations

from collections.abc import Sequence

from memwall.core.errors import Unsupported
from memwall.core.graph import TensorSpec, contiguous
from memwall.ops.recorded import (
    INTEGERS,
    Recorded,
    Specs,
    broadcast,
    dense,
    first_tensor,
    stated_dtype,
    taken_elsewhere,
)


def softmax(call: Recorded) -> Specs:
    """Like the input; float32 where a half was asked to become one."""
    spec = first_tensor(call)
    wide = call.value("half_to_float") is True
    return (dense(spec.shape, "float32" if wide else stated_dtype(call, spec.dtype), [spec]),)


def layer_norm(call: Recorded) -> Specs:
    """The result, and two moments for each row."""
    data = call.need("input")
    sizes = call.sizes("normalized_shape")
    weight = call.tensor("weight")
    axes = len(sizes) if sizes else len(weight.shape) if weight is not None else 1
    moments = contiguous(data.shape[: len(data.shape) - axes], "float32" if data.itemsize < 8 else data.dtype)
    count = 1 if "rms" in call.packet else 2
    return (dense(data.shape, data.dtype, [data]), *((moments,) * count))


def group_norm(call: Recorded) -> Specs:
    """The result, and two moments for each group."""
    data, groups = call.need("input"), call.value("group", 1)
    moments = contiguous((data.shape[0], groups if type(groups) is int else 1), data.dtype)
    return (dense(data.shape, data.dtype, [data]), moments, moments)


def batch_norm(call: Recorded) -> Specs:
    """The result, and two moments for each channel."""
    data = call.need("input")
    moments = contiguous(data.shape[1:2], "float32" if data.itemsize < 8 else data.dtype)
    return (dense(data.shape, data.dtype, [data]), moments, moments)


def norm_backward(call: Recorded) -> Specs:
    """The gradients of the input and, where there are any, of weight and bias."""
    data, weight = call.need("input"), call.tensor("weight")
    grad = dense(data.shape, data.dtype, [data])
    mask = call.values.get("output_mask")
    wanted = [bool(v) for v in mask] if isinstance(mask, (list, tuple)) else [True, weight is not None, False]
    parts = (grad, weight, None if "rms" in call.packet else weight)
    return tuple(s for s, w in zip(parts, wanted, strict=False) if w and s is not None)


def nll_loss(call: Recorded) -> Specs:
    """The loss, of each row where it is not reduced, and the sum of weights."""
    scores, target = call.need("self"), call.need("target")
    shape = target.shape if call.value("reduction", 1) == 0 else ()
    return (contiguous(shape, scores.dtype), contiguous((), scores.dtype))


def reduced(call: Recorded) -> Specs:
    """The input without the axes that were reduced."""
    data = first_tensor(call)
    shape = _reduced_shape(call, data)
    name = call.packet
    if name in ("all", "any", "equal"):
        dtype = "bool" if data.dtype != "uint8" else "uint8"
    elif name in ("argmax", "argmin", "count_nonzero"):
        dtype = "int64"
    elif name in ("sum", "prod", "nansum") and data.dtype in (*INTEGERS, "bool"):
        dtype = stated_dtype(call, "int64")
    else:
        dtype = stated_dtype(call, data.dtype)
    values = contiguous(shape, dtype)
    overload = call.name.split(".")[2]
    if name in ("var_mean", "std_mean", "aminmax", "_aminmax"):
        return (values, values)
    if name in ("mode", "kthvalue"):
        return (values, contiguous(shape, "int64"))
    if overload == "dim" and name in ("max", "min", "median", "nanmedian"):
        return (values, contiguous(shape, "int64"))
    return (values,)


def _reduced_shape(call: Recorded, data: TensorSpec) -> tuple[int, ...]:
    name = next((name for name in ("dim", "dims") if name in call.arguments), None)
    if name is None:
        return ()
    if name not in call.values:
        found = taken_elsewhere(call, lambda spec: _is_reduced(spec.shape, data.shape))
        if found is None:
            call.notes.append("which axes were reduced was not recorded: counted as all")
        return found.shape if found is not None else ()
    value = call.value(name)
    if value is None or value == []:
        axes = set(range(len(data.shape)))
    else:
        rank = max(len(data.shape), 1)
        axes = {v % rank for v in (value if isinstance(value, (list, tuple)) else [value]) if type(v) is int}
    if call.value("keepdim", False) is True:
        return tuple(1 if i in axes else n for i, n in enumerate(data.shape))
    return tuple(n for i, n in enumerate(data.shape) if i not in axes)


def _is_reduced(shape: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether a shape is a tensor's with some axes gone or of length 1."""
    if len(shape) == len(whole):
        return all(n in (1, m) for n, m in zip(shape, whole, strict=True))
    rest = iter(whole)
    return len(shape) < len(whole) and all(any(n == m for m in rest) for n in shape)


def with_places(call: Recorded) -> Specs:
    """Values and their places, in the shape of the input; of the k best, k along the axis."""
    data = call.need("self")
    shape = list(data.shape)
    if call.packet == "topk":
        k, dim = call.value("k"), call.value("dim", -1)
        if type(k) is not int or type(dim) is not int or not shape:
            raise Unsupported("k was not recorded")
        shape[dim % len(shape)] = k
    return (contiguous(tuple(shape), data.dtype), contiguous(tuple(shape), "int64"))


def loss(call: Recorded) -> Specs:
    """A number, or one for each element where the loss is not reduced."""
    data = call.need("self")
    if call.value("reduction", 1) != 0:
        return (contiguous((), data.dtype),)
    return (contiguous(broadcast(spec.shape for spec in call.inputs()[:2]), data.dtype),)


def scanned(call: Recorded) -> Specs:
    """Like the input; sums of integers are int64."""
    data = first_tensor(call)
    wide = "int64" if data.dtype in (*INTEGERS, "bool") else data.dtype
    return (contiguous(data.shape, stated_dtype(call, wide)),)
