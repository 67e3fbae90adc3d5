"""Normalisations and their gradients: rows of ``rows`` × ``cols``, whatever the shape; batch norm by channel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from memwall.codegen.index import ravel, unravel
from memwall.codegen.ops.base import (
    Made,
    OpRule,
    OpView,
    as_dtype,
    constant,
    flat,
    mapped,
    product,
    reduction_result,
    reshaped,
    rules,
)
from memwall.codegen.tensors import Body, Indices, Reduction, Tensor


def _matrix(tensor: Tensor, cols: int) -> Tensor:
    return reshaped(tensor, (tensor.numel // cols if cols else 0, cols))


def _statistics(rows: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation of each row."""
    moments = Reduction("moments", as_dtype(rows, "float32"), (1,))
    shape = (rows.shape[0],)
    mean = reduction_result(moments, 0, shape, "float32")
    variance = reduction_result(moments, 1, shape, "float32")
    cols = max(rows.shape[1], 1)
    return mean, mapped(variance, f"1.0 / tl.sqrt({{}} * {1 / cols!r} + {eps!r})")


def _scaled(value: Callable[[Body, Indices], str], weight: Tensor | None, bias: Tensor | None,
            at: Callable[[Indices], Indices]) -> Callable[[Body, Indices], str]:  # fmt: skip
    """A rule followed by an affine map; ``at`` gives the position of weight and bias."""

    def rule(body: Body, i: Indices) -> str:
        text = value(body, i)
        if weight is not None:
            text = f"({text}) * {weight.at(body, at(i))}"
        if bias is not None:
            text = f"{text} + {bias.at(body, at(i))}"
        return text

    return rule


Affine = tuple[Tensor | None, Tensor | None]


def _normalised(view: OpView, rows: Tensor, affine: Affine, at: Callable[[Indices], Indices]) -> Made:
    """Rows minus their mean, over their deviation, then weight and bias (``affine``), whose position ``at`` gives."""
    mean, rstd = _statistics(rows, float(view.number("eps", 1e-5)))
    element = _scaled(lambda body, i: f"({rows.at(body, i)} - {mean.at(body, i[:1])}) * {rstd.at(body, i[:1])}",
                      *affine, at)  # fmt: skip
    out = Tensor(rows.shape, view.spec.dtype, element)
    return [reshaped(t, spec.shape) for t, spec in zip((out, mean, rstd), view.outputs, strict=False)]


def _layer_norm(view: OpView) -> Made:
    rows = _matrix(view.tensor("input"), math.prod(view.number("normalized_shape")))
    return _normalised(view, rows, (flat(view.find("weight")), flat(view.find("bias"))), lambda i: i[1:])


def _rms_norm(view: OpView) -> Made:
    source = view.tensor("input")
    cols = math.prod(view.number("normalized_shape"))
    rows = _matrix(source, cols)
    eps = view.number("eps")
    if eps is None:
        eps = 2.0**-23  # torch's, of float32, in which it computes
    squares = reduction_result(Reduction("sum", product(rows, rows), (1,)), 0, rows.shape[:1], "float32")
    rstd = mapped(squares, f"1.0 / tl.sqrt({{}} * {1 / max(cols, 1)!r} + {float(eps)!r})")
    out = Tensor(
        rows.shape, view.spec.dtype,
        _scaled(lambda body, i: f"{rows.at(body, i)} * {rstd.at(body, i[:1])}",
                flat(view.find("weight")), None, lambda i: i[1:]),
    )  # fmt: skip
    shapes = [spec.shape for spec in view.outputs]
    return [reshaped(t, shape) for t, shape in zip((out, rstd), shapes, strict=False)]


def _row_norm_backward(centred: bool) -> OpRule:
    """Gradients of layer norm (``centred``) and RMS norm: of the input row by row, of the affine map over all rows."""

    def rule(view: OpView) -> Made:
        source = view.tensor("input")
        cols = math.prod(view.number("normalized_shape"))
        grad, x = _matrix(view.tensor("grad_out"), cols), _matrix(source, cols)
        rstd = flat(view.tensor("rstd"))
        mean = flat(view.find("mean")) if centred else None
        weight = flat(view.find("weight"))
        assert rstd is not None
        normal = _normal(x, mean, rstd)
        scaled = grad if weight is None else Tensor(
            x.shape, "float32", lambda body, i: f"{grad.at(body, i)} * {weight.at(body, i[1:])}"
        )  # fmt: skip
        out = reshaped(_norm_gradient(scaled, normal, rstd, centred), view.spec.shape)
        mask = view.number("output_mask", (True, weight is not None, True))
        sums = [out] if mask[0] else []
        shape = view.outputs[-1].shape
        if mask[1]:
            sums.append(_column_sum(product(grad, normal), shape, weight.dtype if weight else "float32"))
        if centred and mask[2]:
            sums.append(_column_sum(grad, shape, view.outputs[-1].dtype))
        return sums

    return rule


def _normal(x: Tensor, mean: Tensor | None, rstd: Tensor) -> Tensor:
    """The rows normalised again from their statistics."""

    def rule(body: Body, i: Indices) -> str:
        text = x.at(body, i)
        if mean is not None:
            text = f"({text} - {mean.at(body, i[:1])})"
        return f"{text} * {rstd.at(body, i[:1])}"

    return Tensor(x.shape, "float32", rule)


def _norm_gradient(scaled: Tensor, normal: Tensor, rstd: Tensor, centred: bool) -> Tensor:
    """``rstd * (g - mean(g) - x̂ mean(g x̂))`` for rows of g (``scaled``) and x̂ (``normal``)."""
    rows, cols = normal.shape
    along = reduction_result(Reduction("sum", product(scaled, normal), (1,)), 0, (rows,), "float32")
    total = reduction_result(Reduction("sum", as_dtype(scaled, "float32"), (1,)), 0, (rows,), "float32")
    share = 1 / max(cols, 1)

    def rule(body: Body, i: Indices) -> str:
        a = body.name(f"{along.at(body, i[:1])} * {share!r}")
        text = f"{scaled.at(body, i)} - {normal.at(body, i)} * {a}"
        if centred:
            b = body.name(f"{total.at(body, i[:1])} * {share!r}")
            text += f" - {b}"
        return f"({text}) * {rstd.at(body, i[:1])}"

    return Tensor(normal.shape, "float32", rule)


def _column_sum(tensor: Tensor, shape: Sequence[int], dtype: str) -> Tensor:
    found = reduction_result(Reduction("sum", as_dtype(tensor, "float32"), (0,)), 0, tensor.shape[1:], dtype)
    return reshaped(found, tuple(shape))


def _group_norm(view: OpView) -> Made:
    source, groups = view.tensor("input"), int(view.number("group", 1))
    affine = view.find("weight"), view.find("bias")
    return _normalised(view, _grouped(source, groups), affine, _channel_of(source.shape, groups))


def _grouped(tensor: Tensor, groups: int) -> Tensor:
    rows = tensor.shape[0] * groups
    return reshaped(tensor, (rows, tensor.numel // rows if rows else 0))


def _channel_of(shape: Sequence[int], groups: int) -> Callable[[Indices], Indices]:
    """Row and column of ``[N * groups, C / groups * HW]`` as the channel."""

    def at(i: Indices) -> Indices:
        whole = unravel(ravel(i, (shape[0] * groups, math.prod(shape[1:]) // groups)), shape)
        return whole[1:2]

    return at


def _group_norm_backward(view: OpView) -> Made:
    source = view.tensor("input")
    groups = int(view.number("group", 1))
    x, grad = _grouped(source, groups), _grouped(view.tensor("grad_out"), groups)
    mean, rstd = flat(view.tensor("mean")), flat(view.tensor("rstd"))
    weight = view.find("weight")
    channel = _channel_of(source.shape, groups)
    assert rstd is not None
    normal = _normal(x, mean, rstd)
    scaled = grad if weight is None else Tensor(
        x.shape, "float32", lambda body, i: f"{grad.at(body, i)} * {weight.at(body, channel(i))}"
    )  # fmt: skip
    mask = view.number("output_mask", (True, True, True))
    results = [reshaped(_norm_gradient(scaled, normal, rstd, True), source.shape)] if mask[0] else []
    dims = tuple(i for i in range(len(source.shape)) if i != 1)
    for wanted, tensor in zip(mask[1:], (product(grad, normal), grad), strict=True):
        if wanted:
            whole = reshaped(as_dtype(tensor, "float32"), source.shape)
            dtype = view.outputs[-1].dtype
            results.append(reduction_result(Reduction("sum", whole, dims), 0, source.shape[1:2], dtype))
    return results


def _batch_norm(view: OpView) -> Made:
    source = view.tensor("input")
    training = view.number("training", "no_training" not in view.packet)
    eps, momentum = float(view.number("eps", 1e-5)), view.number("momentum", 0.1)
    dims = tuple(i for i in range(len(source.shape)) if i != 1)
    channels = source.shape[1:2]
    weight, bias = view.find("weight"), view.find("bias")
    if training:
        count = math.prod(source.shape[d] for d in dims)
        moments = Reduction("moments", as_dtype(source, "float32"), dims)
        mean = reduction_result(moments, 0, channels, "float32")
        squares = reduction_result(moments, 1, channels, "float32")
        rstd = mapped(squares, f"1.0 / tl.sqrt({{}} * {1 / max(count, 1)!r} + {eps!r})")
        for name, tensor, factor in (
            ("running_mean", mean, 1.0), ("running_var", squares, 1 / max(count - 1, 1)),
        ):  # fmt: skip
            old = view.find(name)
            if old is not None:
                view.updates[name] = _moved(old, tensor, float(momentum), factor)
        saved: list[Tensor] = [mean, rstd]
    else:
        mean = view.tensor("running_mean")
        rstd = mapped(view.tensor("running_var"), f"1.0 / tl.sqrt({{}} + {eps!r})")
        saved = [constant(spec.shape, spec.dtype, 0) for spec in view.outputs[1:]]
    out = Tensor(
        source.shape, view.spec.dtype,
        _scaled(lambda body, i: f"({source.at(body, i)} - {mean.at(body, i[1:2])}) * {rstd.at(body, i[1:2])}",
                weight, bias, lambda i: i[1:2]),
    )  # fmt: skip
    return [out, *saved]


def _moved(old: Tensor, new: Tensor, momentum: float, factor: float) -> Tensor:
    """A running statistic after this batch."""

    def rule(body: Body, i: Indices) -> str:
        return f"{old.at(body, i)} * {1 - momentum!r} + {new.at(body, i)} * {momentum * factor!r}"

    return Tensor(old.shape, old.dtype, rule)


def _batch_norm_backward(view: OpView) -> Made:
    source, grad = view.tensor("input"), view.tensor("grad_out")
    training = view.number("train", True)
    eps = float(view.number("eps", 1e-5))
    dims = tuple(i for i in range(len(source.shape)) if i != 1)
    count = math.prod(source.shape[d] for d in dims)
    weight = view.find("weight")
    if training:
        mean, rstd = view.tensor("save_mean"), view.tensor("save_invstd")
    else:
        mean = view.tensor("running_mean")
        rstd = mapped(view.tensor("running_var"), f"1.0 / tl.sqrt({{}} + {eps!r})")
    centred = Tensor(source.shape, "float32", lambda body, i: f"({source.at(body, i)} - {mean.at(body, i[1:2])})")
    channels = source.shape[1:2]
    dot = reduction_result(Reduction("sum", product(grad, centred), dims), 0, channels, "float32")
    total = reduction_result(Reduction("sum", as_dtype(grad, "float32"), dims), 0, channels, "float32")
    share = 1 / max(count, 1)

    def element(body: Body, i: Indices) -> str:
        r = rstd.at(body, i[1:2])
        text = grad.at(body, i)
        if training:
            slope = body.name(f"{dot.at(body, i[1:2])} * {share!r} * {r} * {r}")
            text = f"({text} - {total.at(body, i[1:2])} * {share!r} - {centred.at(body, i)} * {slope})"
        return f"{text} * {r}" + (f" * {weight.at(body, i[1:2])}" if weight is not None else "")

    mask = view.number("output_mask", (True, True, True))
    gamma = Tensor(channels, "float32", lambda body, i: f"{dot.at(body, i)} * {rstd.at(body, i)}")
    results = (Tensor(source.shape, view.spec.dtype, element), gamma, total)
    return [tensor for tensor, wanted in zip(results, mask, strict=True) if wanted]


#: packet -> rule
RULES = rules({
    _layer_norm: "native_layer_norm",
    _rms_norm: "_fused_rms_norm",
    _row_norm_backward(True): "native_layer_norm_backward",
    _row_norm_backward(False): "_fused_rms_norm_backward",
    _group_norm: "native_group_norm",
    _group_norm_backward: "native_group_norm_backward",
    _batch_norm: "native_batch_norm",
    _batch_norm_backward: "native_batch_norm_backward",
})  # fmt: skip
