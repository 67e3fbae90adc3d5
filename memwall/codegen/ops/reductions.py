"""Sums, extrema and softmax along axes, losses over rows or elements, and their gradients."""

from __future__ import annotations

import math

from memwall.codegen.index import AffineIndex
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.ops.base import (
    Made,
    OpRule,
    OpView,
    as_dtype,
    broadcast,
    constant,
    mapped,
    product,
    reduction_result,
    reshaped,
    rules,
    without,
)
from memwall.codegen.tensors import Body, Indices, Tensor, TensorReduction
from memwall.ops.expressions import log1p


def _dims(view: OpView, source: Tensor) -> tuple[int, ...]:
    given, rank = view.number("dim"), len(source.shape)
    if given is None or given in ((), []):
        return tuple(range(rank))
    listed = (given,) if isinstance(given, int) else given
    return tuple(sorted(d % rank for d in listed)) if rank else ()


def _reduced(kind: str) -> OpRule:
    def rule(view: OpView) -> Made:
        source = view.tensor("self")
        if kind != "sum" and not source.dtype.startswith(("float", "bfloat")):
            raise NotGenerated(f"the extremum of {source.dtype}")
        return [_over(view, source, _dims(view, source), kind)]

    return rule


def _over(view: OpView, source: Tensor, dims: tuple[int, ...], kind: str = "sum") -> Tensor:
    dtype = view.spec.dtype
    if not dims or all(source.shape[d] == 1 for d in dims):
        return reshaped(as_dtype(source, dtype), view.spec.shape)
    return reduction_result(TensorReduction(kind, as_dtype(source, dtype), dims), 0, view.spec.shape, dtype)


def _mean(view: OpView, source: Tensor | None = None) -> Made:
    """The mean of the op's tensor along its axes, or the mean of all of another."""
    dims = _dims(view, view.tensor("self")) if source is None else tuple(range(len(source.shape)))
    source = source or view.tensor("self")
    count = math.prod(source.shape[d] for d in dims)
    share = repr(1 / count) if count else 'float("nan")'
    return [mapped(_over(view, source, dims), f"{{}} * {share}", view.spec.dtype)]


def _softmax(logarithmic: bool, safe: bool = False) -> OpRule:
    """``safe``: a row that is all minus infinity gives zeros."""

    def rule(view: OpView) -> Made:
        source, dtype = view.tensor("self"), view.spec.dtype
        if not source.shape:
            return [constant((), dtype, 0.0 if logarithmic else 1.0)]
        axis = view.number("dim", -1) % len(source.shape)
        reduction = TensorReduction("softmax", as_dtype(source, dtype), (axis,))
        most, total = (reduction_result(reduction, n, reduction.kept, dtype) for n in (0, 1))

        def element(body: Body, indices: Indices) -> str:
            x, row = source.at(body, indices), without(indices, (axis,))
            m, s = most.at(body, row), total.at(body, row)
            if logarithmic:
                return f"{x} - {m} - tl.log({s})"
            share = f"tl.exp({x} - {m}) / {s}"
            return f'tl.where({m} == float("-inf"), 0.0, {share})' if safe else share

        return [Tensor(source.shape, dtype, element)]

    return rule


def _softmax_backward(logarithmic: bool) -> OpRule:
    def rule(view: OpView) -> Made:
        grad, output = view.tensor("grad_output"), view.tensor("output")
        axis = view.number("dim", -1) % max(len(output.shape), 1)
        reduction = TensorReduction("sum", as_dtype(grad if logarithmic else product(grad, output), "float32"), (axis,))
        total = reduction_result(reduction, 0, reduction.kept, "float32")

        def element(body: Body, indices: Indices) -> str:
            g, y = grad.at(body, indices), output.at(body, indices)
            s = total.at(body, without(indices, (axis,)))
            return f"{g} - tl.exp({y}) * {s}" if logarithmic else f"{y} * ({g} - {s})"

        return [Tensor(output.shape, view.spec.dtype, element)]

    return rule


# -- losses -----------------------------------------------------------------------------------------------------------


def _nll(view: OpView) -> Made:
    """Mean or sum of ``-w[t] x[row, t]`` over the rows whose target counts, and the sum of the weights."""
    source, target, weight = view.tensor("self"), view.tensor("target"), view.find("weight")
    ignored, mode = view.number("ignore_index", -100), view.number("reduction", 1)
    if len(source.shape) != 2 or mode == 0:
        raise NotGenerated("a loss of one row, or of each row")
    classes = source.shape[1]

    def weighed(body: Body, i: Indices) -> str:
        t = target.at(body, i)
        w = "1.0" if weight is None else weight.at(body, (_class(body, t, classes, i),))
        return f"tl.where({t} == {ignored}, 0.0, {w})"

    weights = Tensor(target.shape, "float32", weighed)

    def loss(body: Body, i: Indices) -> str:
        t = target.at(body, i)
        x = source.at(body, (i[0], _class(body, t, classes, i)))
        return f"tl.where({t} == {ignored}, 0.0, -{weights.at(body, i)} * {x})"

    losses = Tensor(target.shape, "float32", loss)
    total, count = (reduction_result(TensorReduction("sum", t, (0,)), 0, (), "float32") for t in (losses, weights))
    mean = Tensor((), "float32", lambda body, i: f"{total.at(body, ())} / {count.at(body, ())}")
    return [mean if mode == 1 else total, count]


def _class(body: Body, target: str, classes: int, i: Indices) -> AffineIndex:
    """A target as an index; one that is out of range (ignored) as 0."""
    safe = body.name(f"tl.where(({target} >= 0) & ({target} < {classes}), {target}, 0)")
    return body.variable(safe, classes, i[0].axes)


def _nll_backward(view: OpView) -> Made:
    grad, target, total = view.tensor("grad_output"), view.tensor("target"), view.tensor("total_weight")
    source, weight = view.tensor("self"), view.find("weight")
    ignored, mode = view.number("ignore_index", -100), view.number("reduction", 1)
    if len(source.shape) != 2:
        raise NotGenerated("the loss of one row")

    def rule(body: Body, i: Indices) -> str:
        t = target.at(body, i[:1])
        text = f"-{grad.at(body, i[:1] if grad.shape else ())}"
        if weight is not None:
            text += f" * {weight.at(body, (_class(body, t, source.shape[1], i),))}"
        if mode == 1:
            text += f" / {total.at(body, ())}"
        hit = f"({t} == {i[1].text}) & ({t} != {ignored})"
        return f"tl.where({hit}, {body.home(i[0].axes).name(text)}, 0.0)"

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


def _loss(element: str) -> OpRule:
    def rule(view: OpView) -> Made:
        source, target = view.tensor("self"), view.tensor("target")
        mode = view.number("reduction", 1)
        if view.find("weight") is not None or view.find("pos_weight") is not None:
            raise NotGenerated(f"{view.packet} with weights")

        def at(body: Body, i: Indices) -> str:
            return element.format(x=source.at(body, i), t=target.at(body, broadcast(target, i)))

        if mode == 0:
            return [Tensor(source.shape, view.spec.dtype, at)]
        losses = Tensor(source.shape, "float32", at)
        if mode == 1:
            return _mean(view, losses)
        return [mapped(_over(view, losses, tuple(range(len(source.shape)))), "{} * 1.0", view.spec.dtype)]

    return rule


#: packet -> rule
RULES = rules({
    _reduced("sum"): "sum",
    _mean: "mean",
    _reduced("max"): "amax",
    _reduced("min"): "amin",
    _softmax(False): "_softmax",
    _softmax(False, safe=True): "_safe_softmax",
    _softmax(True): "_log_softmax",
    _softmax_backward(False): "_softmax_backward_data",
    _softmax_backward(True): "_log_softmax_backward_data",
    _nll: "nll_loss_forward",
    _nll_backward: "nll_loss_backward",
    _loss("({x} - {t}) * ({x} - {t})"): "mse_loss",
    _loss("(1.0 - {t}) * {x} + tl.maximum(-{x}, 0.0) + " + log1p("tl.exp(-tl.abs({x}))")):
        "binary_cross_entropy_with_logits",
})  # fmt: skip
