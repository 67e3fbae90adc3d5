"""Normalisations and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    without,
)
from memwall.codegen.tensors import Body, Indices, Tensor, TensorReduction

At = Callable[[Indices], Indices]


@dataclass(frozen=True)
class _Layout:
    """A norm's input as a tensor of ``shape`` whose statistics are taken along ``dims``: rows of a matrix, or channels.

    ``row`` and ``affine`` turn an index into the indices of its statistics and of its weight and bias. The gradients of
    weight and bias are sums along ``affine_dims`` of a tensor of ``affine_shape``.
    """

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    row: At
    affine: At
    affine_shape: tuple[int, ...]
    affine_dims: tuple[int, ...]

    @property
    def count(self) -> int:
        """Elements that share a mean, 1 for none."""
        return max(math.prod(self.shape[d] for d in self.dims), 1)

    def reduced(self, kind: str, tensor: Tensor, component: int = 0) -> Tensor:
        return _reduced(kind, as_dtype(tensor, "float32"), self.dims, component)


def _reduced(kind: str, source: Tensor, dims: tuple[int, ...], component: int = 0, dtype: str = "float32") -> Tensor:
    return reduction_result(TensorReduction(kind, source, dims), component, without(source.shape, dims), dtype)


def _rows(view: OpView) -> _Layout:
    """Layer norm and RMS norm: the last axes are a row."""
    numel, cols = view.tensor("input").numel, math.prod(view.number("normalized_shape"))
    shape = (numel // cols if cols else 0, cols)
    return _Layout(shape, (1,), lambda i: i[:1], lambda i: i[1:], shape, (0,))


def _groups(view: OpView) -> _Layout:
    """Group norm: some channels of an image are a row."""
    whole, groups = view.tensor("input").shape, int(view.number("group", 1))
    rows = whole[0] * groups
    shape = (rows, math.prod(whole) // rows if rows else 0)

    def channel(i: Indices) -> Indices:
        return unravel(ravel(i, (rows, math.prod(whole[1:]) // groups)), whole)[1:2]

    return _Layout(shape, (1,), lambda i: i[:1], channel, whole, _not_channels(whole))


def _channels(view: OpView) -> _Layout:
    """Batch norm: a channel of all images shares its statistics."""
    whole = view.tensor("input").shape
    dims = _not_channels(whole)
    return _Layout(whole, dims, lambda i: i[1:2], lambda i: i[1:2], whole, dims)


def _not_channels(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(i for i in range(len(shape)) if i != 1)


def _normalised(view: OpView, layout: _Layout, mean: Tensor | None, rstd: Tensor) -> Tensor:
    """The input minus its mean, over its deviation, times weight, plus bias."""
    x = reshaped(view.tensor("input"), layout.shape)
    weight, bias = flat(view.find("weight")), flat(view.find("bias"))
    normal = _normal(x, mean, rstd, layout.row)

    def rule(body: Body, i: Indices) -> str:
        text = normal.rule(body, i)
        if weight is not None:
            text = f"({text}) * {weight.at(body, layout.affine(i))}"
        return text if bias is None else f"{text} + {bias.at(body, layout.affine(i))}"

    return reshaped(Tensor(x.shape, view.spec.dtype, rule), view.spec.shape)


def _normal(x: Tensor, mean: Tensor | None, rstd: Tensor, row: At) -> Tensor:
    def rule(body: Body, i: Indices) -> str:
        text = x.at(body, i)
        if mean is not None:
            text = f"({text} - {mean.at(body, row(i))})"
        return f"{text} * {rstd.at(body, row(i))}"

    return Tensor(x.shape, "float32", rule)


def _statistics(view: OpView, layout: _Layout) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, sum of squared deviations and reciprocal deviation."""
    moments = TensorReduction("moments", as_dtype(reshaped(view.tensor("input"), layout.shape), "float32"), layout.dims)
    mean, squares = (reduction_result(moments, n, moments.kept, "float32") for n in (0, 1))
    return mean, squares, _rstd(squares, layout, float(view.number("eps", 1e-5)))


def _rstd(squares: Tensor, layout: _Layout, eps: float) -> Tensor:
    return mapped(squares, f"1.0 / tl.sqrt({{}} * {1 / layout.count!r} + {eps!r})")


def _norm(layout_of: Callable[[OpView], _Layout]) -> OpRule:
    def rule(view: OpView) -> Made:
        layout = layout_of(view)
        mean, _, rstd = _statistics(view, layout)
        results = (_normalised(view, layout, mean, rstd), mean, rstd)
        return [reshaped(t, spec.shape) for t, spec in zip(results, view.outputs, strict=False)]

    return rule


def _rms_norm(view: OpView) -> Made:
    layout = _rows(view)
    x = reshaped(view.tensor("input"), layout.shape)
    eps = view.number("eps", 2.0**-23)  # torch's, of float32, in which it computes
    rstd = _rstd(_reduced("sum", product(x, x), (1,)), layout, float(eps))
    results = (_normalised(view, layout, None, rstd), rstd)
    return [reshaped(t, spec.shape) for t, spec in zip(results, view.outputs, strict=False)]


def _norm_backward(layout_of: Callable[[OpView], _Layout], centred: bool = True) -> OpRule:
    """Gradients of layer and group norm, and of RMS norm (not ``centred``): of the input row by row, of the affine map
    over all rows."""

    def rule(view: OpView) -> Made:
        layout = layout_of(view)
        x, grad = (reshaped(view.tensor(name), layout.shape) for name in ("input", "grad_out"))
        mean, rstd = flat(view.find("mean")) if centred else None, reshaped(view.tensor("rstd"), layout.shape[:1])
        weight = flat(view.find("weight"))
        normal = _normal(x, mean, rstd, layout.row)
        scaled = (
            grad
            if weight is None
            else Tensor(x.shape, "float32", lambda body, i: f"{grad.at(body, i)} * {weight.at(body, layout.affine(i))}")
        )
        results = [reshaped(_input_gradient(scaled, normal, rstd, layout, centred), view.tensor("input").shape)]
        for tensor in (product(grad, normal), grad) if centred else (product(grad, normal),):
            whole = reshaped(as_dtype(tensor, "float32"), layout.affine_shape)
            total = _reduced("sum", whole, layout.affine_dims, dtype=view.outputs[-1].dtype)
            results.append(reshaped(total, view.outputs[-1].shape))
        mask = view.number("output_mask", (True, weight is not None, True))
        return [tensor for tensor, wanted in zip(results, mask, strict=False) if wanted]

    return rule


def _input_gradient(scaled: Tensor, normal: Tensor, rstd: Tensor, layout: _Layout, centred: bool) -> Tensor:
    """``rstd * (g - mean(g) - x̂ mean(g x̂))`` for rows of g (``scaled``) and x̂ (``normal``)."""
    along, total = layout.reduced("sum", product(scaled, normal)), layout.reduced("sum", scaled)
    share = 1 / layout.count

    def rule(body: Body, i: Indices) -> str:
        a = body.name(f"{along.at(body, i[:1])} * {share!r}")
        text = f"{scaled.at(body, i)} - {normal.at(body, i)} * {a}"
        if centred:
            b = body.name(f"{total.at(body, i[:1])} * {share!r}")
            text += f" - {b}"
        return f"({text}) * {rstd.at(body, i[:1])}"

    return Tensor(normal.shape, "float32", rule)


def _batch_norm(view: OpView) -> Made:
    layout = _channels(view)
    if not view.number("training", "no_training" not in view.packet):
        out = _normalised(view, layout, *_running(view))
        return [out, *(constant(spec.shape, spec.dtype, 0) for spec in view.outputs[1:])]
    mean, squares, rstd = _statistics(view, layout)
    momentum = float(view.number("momentum", 0.1))
    for name, tensor, factor in (("running_mean", mean, 1.0), ("running_var", squares, 1 / max(layout.count - 1, 1))):
        if (old := view.find(name)) is not None:
            view.updates[name] = _moved(old, tensor, momentum, factor)
    return [_normalised(view, layout, mean, rstd), mean, rstd]


def _running(view: OpView) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation that training left."""
    eps = float(view.number("eps", 1e-5))
    return view.tensor("running_mean"), mapped(view.tensor("running_var"), f"1.0 / tl.sqrt({{}} + {eps!r})")


def _moved(old: Tensor, new: Tensor, momentum: float, factor: float) -> Tensor:
    """A running statistic after this batch."""

    def rule(body: Body, i: Indices) -> str:
        return f"{old.at(body, i)} * {1 - momentum!r} + {new.at(body, i)} * {momentum * factor!r}"

    return Tensor(old.shape, old.dtype, rule)


def _batch_norm_backward(view: OpView) -> Made:
    source, grad, weight = view.tensor("input"), view.tensor("grad_out"), view.find("weight")
    training, layout = view.number("train", True), _channels(view)
    mean, rstd = (view.tensor("save_mean"), view.tensor("save_invstd")) if training else _running(view)
    centred = Tensor(source.shape, "float32", lambda body, i: f"({source.at(body, i)} - {mean.at(body, i[1:2])})")
    dot, total = _reduced("sum", product(grad, centred), layout.dims), layout.reduced("sum", grad)
    share = 1 / layout.count

    def element(body: Body, i: Indices) -> str:
        r = rstd.at(body, i[1:2])
        text = grad.at(body, i)
        if training:
            slope = body.name(f"{dot.at(body, i[1:2])} * {share!r} * {r} * {r}")
            text = f"({text} - {total.at(body, i[1:2])} * {share!r} - {centred.at(body, i)} * {slope})"
        return f"{text} * {r}" + (f" * {weight.at(body, i[1:2])}" if weight is not None else "")

    gamma = Tensor(dot.shape, "float32", lambda body, i: f"{dot.at(body, i)} * {rstd.at(body, i)}")
    results = (Tensor(source.shape, view.spec.dtype, element), gamma, total)
    mask = view.number("output_mask", (True, True, True))
    return [tensor for tensor, wanted in zip(results, mask, strict=True) if wanted]


#: packet -> rule
RULES = rules({
    _norm(_rows): "native_layer_norm",
    _norm(_groups): "native_group_norm",
    _rms_norm: "_fused_rms_norm",
    _norm_backward(_rows): "native_layer_norm_backward",
    _norm_backward(_rows, centred=False): "_fused_rms_norm_backward",
    _norm_backward(_groups): "native_group_norm_backward",
    _batch_norm: "native_batch_norm",
    _batch_norm_backward: "native_batch_norm_backward",
})  # fmt: skip
