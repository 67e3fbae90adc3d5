"""Sums, extrema and softmax along axes, and their gradients."""

from __future__ import annotations

import math

from memwall.codegen.kernel import NotGenerated
from memwall.codegen.ops.base import (
    Made,
    OpRule,
    OpView,
    as_dtype,
    constant,
    mapped,
    product,
    reduction_result,
    reshaped,
    rules,
    without,
)
from memwall.codegen.tensors import Body, Indices, Reduction, Tensor


def _dims(view: OpView, source: Tensor) -> tuple[int, ...]:
    given = view.number("dim")
    rank = len(source.shape)
    if given is None or given in ((), []):
        return tuple(range(rank))
    listed = (given,) if isinstance(given, int) else given
    return tuple(sorted(d % rank for d in listed)) if rank else ()


def _sum(view: OpView) -> Made:
    source = view.tensor("self")
    return [summed(view, source, _dims(view, source))]


def summed(view: OpView, source: Tensor, dims: tuple[int, ...], kind: str = "sum") -> Tensor:
    dtype = view.spec.dtype
    if not dims or all(source.shape[d] == 1 for d in dims):
        return reshaped(as_dtype(source, dtype), view.spec.shape)
    return reduction_result(Reduction(kind, as_dtype(source, dtype), dims), 0, view.spec.shape, dtype)


def _mean(view: OpView) -> Made:
    source = view.tensor("self")
    dims = _dims(view, source)
    count = math.prod(source.shape[d] for d in dims)
    return [mapped(summed(view, source, dims), f"{{}} * {share_of(count)}", view.spec.dtype)]


def share_of(count: int) -> str:
    """What a sum of ``count`` numbers is multiplied by for their mean; that of none is no number."""
    return repr(1 / count) if count else 'float("nan")'


def _extremum(kind: str) -> OpRule:
    def rule(view: OpView) -> Made:
        source = view.tensor("self")
        if not source.dtype.startswith(("float", "bfloat")):
            raise NotGenerated(f"the extremum of {source.dtype}")
        return [summed(view, source, _dims(view, source), kind)]

    return rule


def _softmax(logarithmic: bool, safe: bool = False) -> OpRule:
    """``safe``: a row that is all minus infinity gives zeros."""

    def rule(view: OpView) -> Made:
        source = view.tensor("self")
        if not source.shape:
            return [constant((), view.spec.dtype, 0.0 if logarithmic else 1.0)]
        axis = view.number("dim", -1) % len(source.shape)
        reduction = Reduction("softmax", as_dtype(source, view.spec.dtype), (axis,))
        kept = without(source.shape, (axis,))
        most = reduction_result(reduction, 0, kept, view.spec.dtype)
        total = reduction_result(reduction, 1, kept, view.spec.dtype)

        def element(body: Body, indices: Indices) -> str:
            x = source.at(body, indices)
            row = tuple(i for n, i in enumerate(indices) if n != axis)
            m, s = most.at(body, row), total.at(body, row)
            if logarithmic:
                return f"{x} - {m} - tl.log({s})"
            share = f"tl.exp({x} - {m}) / {s}"
            return f'tl.where({m} == float("-inf"), 0.0, {share})' if safe else share

        return [Tensor(source.shape, view.spec.dtype, element)]

    return rule


def _softmax_backward(logarithmic: bool) -> OpRule:
    def rule(view: OpView) -> Made:
        grad, output = view.tensor("grad_output"), view.tensor("output")
        axis = view.number("dim", -1) % max(len(output.shape), 1)
        weighed = grad if logarithmic else product(grad, output)
        kept = without(output.shape, (axis,))
        total = reduction_result(Reduction("sum", as_dtype(weighed, "float32"), (axis,)), 0, kept, "float32")

        def element(body: Body, indices: Indices) -> str:
            g, y = grad.at(body, indices), output.at(body, indices)
            s = total.at(body, tuple(i for n, i in enumerate(indices) if n != axis))
            return f"{g} - tl.exp({y}) * {s}" if logarithmic else f"{y} * ({g} - {s})"

        return [Tensor(output.shape, view.spec.dtype, element)]

    return rule


#: packet -> rule
RULES = rules({
    _sum: "sum",
    _mean: "mean",
    _extremum("max"): "amax",
    _extremum("min"): "amin",
    _softmax(False): "_softmax",
    _softmax(False, safe=True): "_safe_softmax",
    _softmax(True): "_log_softmax",
    _softmax_backward(False): "_softmax_backward_data",
    _softmax_backward(True): "_log_softmax_backward_data",
})  # fmt: skip
