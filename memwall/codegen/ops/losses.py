"""Losses over rows or elements, and their gradients."""

from __future__ import annotations

from memwall.codegen.kernel import NotGenerated
from memwall.codegen.ops.base import Made, OpRule, OpView, broadcast, mapped, reduction_result, rules
from memwall.codegen.ops.reductions import share_of, summed
from memwall.codegen.tensors import Body, Indices, Reduction, Tensor
from memwall.ops.expressions import log1p


def _nll(view: OpView) -> Made:
    """Mean or sum of ``-w[t] x[row, t]`` over the rows whose target counts, and the sum of the weights."""
    source, target, weight = view.tensor("self"), view.tensor("target"), view.find("weight")
    ignored, mode = view.number("ignore_index", -100), view.number("reduction", 1)
    if len(source.shape) != 2 or mode == 0:
        raise NotGenerated("a loss of one row, or of each row")
    classes = source.shape[1]

    def weighed(body: Body, i: Indices) -> str:
        t = target.at(body, i)
        w = "1.0" if weight is None else weight.at(body, (body.variable(_safe(body, t, classes), classes, i[0].axes),))
        return f"tl.where({t} == {ignored}, 0.0, {w})"

    weights = Tensor(target.shape, "float32", weighed)

    def loss(body: Body, i: Indices) -> str:
        t = target.at(body, i)
        x = source.at(body, (i[0], body.variable(_safe(body, t, classes), classes, i[0].axes)))
        return f"tl.where({t} == {ignored}, 0.0, -{weights.at(body, i)} * {x})"

    losses = Tensor(target.shape, "float32", loss)
    total = reduction_result(Reduction("sum", losses, (0,)), 0, (), "float32")
    count = reduction_result(Reduction("sum", weights, (0,)), 0, (), "float32")
    mean = Tensor((), "float32", lambda body, i: f"{total.at(body, ())} / {count.at(body, ())}")
    return [mean if mode == 1 else total, count]


def _safe(body: Body, target: str, classes: int) -> str:
    """A target that may be out of range (ignored) as a place that can be read."""
    return body.name(f"tl.where(({target} >= 0) & ({target} < {classes}), {target}, 0)")


def _nll_backward(view: OpView) -> Made:
    grad, target, total = view.tensor("grad_output"), view.tensor("target"), view.tensor("total_weight")
    source, weight = view.tensor("self"), view.find("weight")
    ignored, mode = view.number("ignore_index", -100), view.number("reduction", 1)
    if len(source.shape) != 2:
        raise NotGenerated("the loss of one row")
    classes = source.shape[1]

    def rule(body: Body, i: Indices) -> str:
        t = target.at(body, i[:1])
        g = grad.at(body, i[:1] if grad.shape else ())
        text = f"-{g}"
        if weight is not None:
            text += f" * {weight.at(body, (body.variable(_safe(body, t, classes), classes, i[0].axes),))}"
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

        def rule(body: Body, i: Indices) -> str:
            return element.format(x=source.at(body, i), t=target.at(body, broadcast(target, i)))

        losses = Tensor(source.shape, "float32", rule)
        if mode == 0:
            return [Tensor(source.shape, view.spec.dtype, rule)]
        dims = tuple(range(len(source.shape)))
        total = summed(view, losses, dims)
        return [mapped(total, f"{{}} * {share_of(source.numel) if mode == 1 else 1.0}", view.spec.dtype)]

    return rule


#: packet -> rule
RULES = rules({
    _nll: "nll_loss_forward",
    _nll_backward: "nll_loss_backward",
    _loss("({x} - {t}) * ({x} - {t})"): "mse_loss",
    _loss("(1.0 - {t}) * {x} + tl.maximum(-{x}, 0.0) + " + log1p("tl.exp(-tl.abs({x}))")):
        "binary_cross_entropy_with_logits",
})  # fmt: skip
