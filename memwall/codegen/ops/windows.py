"""Ops over windows of an image: pooling, magnification, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from memwall.codegen.index import AffineIndex
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.ops.base import Made, OpView, rules, tests_between
from memwall.codegen.tensors import Body, Indices, Tensor

#: elements up to which a window is unrolled
MAX_WINDOW = 64

Pair = tuple[int, int]


def _pair(value: Any, default: Pair) -> Pair:
    listed = [value] if isinstance(value, int) else list(value or ())
    return (listed[0], listed[-1]) if listed else default


@dataclass(frozen=True)
class _Window:
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    image: Pair

    @classmethod
    def of(cls, view: OpView, image: Sequence[int], kernel: Pair = (0, 0)) -> _Window:
        """The window that an op's arguments give, or of a given size with equal steps."""
        kernel = kernel if any(kernel) else _pair(view.number("kernel_size"), (1, 1))
        if math.prod(kernel) > MAX_WINDOW:
            raise NotGenerated(f"a window of {kernel[0]} × {kernel[1]}")
        return cls(
            kernel,
            _pair(view.number("stride"), kernel),
            _pair(view.number("padding"), (0, 0)),
            _pair(view.number("dilation"), (1, 1)),
            (image[-2], image[-1]),
        )

    def places(self, i: Indices) -> Iterator[tuple[AffineIndex, AffineIndex, list[str]]]:
        """Row and column of every element of the window of an output, and what must hold for it to exist."""
        for a in range(self.kernel[0]):
            for b in range(self.kernel[1]):
                y = i[-2] * self.stride[0] + (a * self.dilation[0] - self.padding[0])
                x = i[-1] * self.stride[1] + (b * self.dilation[1] - self.padding[1])
                yield y, x, tests_between(y, 0, self.image[0]) + tests_between(x, 0, self.image[1])

    def holding(self, place: AffineIndex, axis: int, count: int) -> list[tuple[AffineIndex, list[str]]]:
        """The windows along an axis that may hold a place: the last that starts at or before it, and the ones
        before."""
        stride = self.stride[axis]
        last, _ = (place + self.padding[axis]).divmod(stride)
        starts = [last + -back for back in range(-(-self.kernel[axis] // stride))]
        return [(start, tests_between(start, 0, count)) for start in starts]


@contextmanager
def _tested(body: Body, tests: list[str], axes: frozenset[str]) -> Iterator[str]:
    """Evaluate under tests, if there are any; gives the name of the condition or an empty text."""
    if not tests:
        yield ""
        return
    condition = body.name(" & ".join(tests))
    with body.where(condition, axes):
        yield condition


def _max_pool(view: OpView) -> Made:
    source = view.tensor("self")
    window = _Window.of(view, source.shape)

    def both(body: Body, i: Indices) -> tuple[str, str]:
        key = ("max_pool", id(view), *(n.text for n in i))
        if body.find((*key, 0)) is None:
            best, where, starts_outside = "", "", False
            for y, x, tests in window.places(i):
                with _tested(body, tests, y.axes | x.axes) as condition:
                    value = source.at(body, (*i[:-2], y, x))
                place = f"({(y * window.image[1] + x).text})"
                if condition:
                    value = body.name(f'tl.where({condition}, {value}, float("-inf"))')
                if not best:
                    best, where, starts_outside = value, place, bool(condition)
                    if condition:  # -1: nothing yet
                        where = body.name(f"tl.where({condition}, {place}, -1)")
                    continue
                better = f"({value} > {best}) | ({value} != {value})"
                if starts_outside:  # the first valid element counts even if it is minus infinity
                    better += f" | (({where} < 0)" + (f" & {condition})" if condition else ")")
                better = body.name(better)
                best = body.name(f"tl.where({better}, {value}, {best})")
                where = body.name(f"tl.where({better}, {place}, {where})")
            body.known[(*key, 0)], body.known[(*key, 1)] = best, body.name(f"{where}.to(tl.int64)")
        return body.find((*key, 0)) or "", body.find((*key, 1)) or ""

    values = Tensor(view.spec.shape, view.spec.dtype, lambda body, i: both(body, i)[0])
    places = Tensor(view.spec.shape, "int64", lambda body, i: both(body, i)[1])
    return [values, places][: len(view.outputs)]


def _max_pool_backward(view: OpView) -> Made:
    """Each input gathers, from the windows that hold it, the windows whose maximum it was."""
    grad, where = view.tensor("grad_output"), view.tensor("indices")
    image = view.spec.shape
    window = _Window.of(view, image)
    if window.dilation != (1, 1):
        raise NotGenerated("the gradient of a dilated window")

    def rule(body: Body, i: Indices) -> str:
        own = f"({(i[-2] * image[-1] + i[-1]).text})"
        terms = []
        for y, y_tests in window.holding(i[-2], 0, grad.shape[-2]):
            for x, x_tests in window.holding(i[-1], 1, grad.shape[-1]):
                at = (*i[:-2], y, x)
                with _tested(body, [*y_tests, *x_tests], y.axes | x.axes) as condition:
                    hit = f"({where.at(body, at)} == {own})" + (f" & {condition}" if condition else "")
                    terms.append(body.name(f"tl.where({hit}, {grad.at(body, at)}, 0.0)"))
        return " + ".join(terms)

    return [Tensor(image, view.spec.dtype, rule)]


def _average_pool(view: OpView) -> Made:
    source = view.tensor("self")
    if view.packet == "_adaptive_avg_pool2d":
        (height, width), (rows, columns) = source.shape[-2:], view.spec.shape[-2:]
        if height % rows or width % columns:
            raise NotGenerated("windows of unequal sizes")
        window = _Window.of(view, source.shape, (height // rows, width // columns))
    else:
        window = _Window.of(view, source.shape)
        if window.padding != (0, 0) or view.number("ceil_mode", False) or view.number("divisor_override"):
            raise NotGenerated("an average over windows that reach over the border")
    share = 1 / math.prod(window.kernel)

    def rule(body: Body, i: Indices) -> str:
        terms = [source.at(body, (*i[:-2], y, x)) for y, x, _ in window.places(i)]
        return f"({' + '.join(terms)}) * {share!r}"

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


def _upsample(view: OpView) -> Made:
    source = view.tensor("self")
    factors = _whole_factors(view, view.spec.shape, source.shape)

    def rule(body: Body, i: Indices) -> str:
        return source.at(body, (*i[:2], *(n.divmod(f)[0] for n, f in zip(i[2:], factors, strict=True))))

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


def _upsample_backward(view: OpView) -> Made:
    grad = view.tensor("grad_output")
    factors = _whole_factors(view, grad.shape, view.spec.shape)
    if math.prod(factors) > MAX_WINDOW:
        raise NotGenerated("the gradient of a large magnification")

    def rule(body: Body, i: Indices) -> str:
        places: list[Indices] = [i[:2]]
        for n, factor in zip(i[2:], factors, strict=True):
            places = [(*p, n * factor + k) for p in places for k in range(factor)]
        return " + ".join(grad.at(body, p) for p in places)

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


def _whole_factors(view: OpView, large: Sequence[int], small: Sequence[int]) -> list[int]:
    """How many pixels one becomes along each axis; places are found by the scales where they are given."""
    sizes = list(zip(large[2:], small[2:], strict=True))
    scales = [view.number(name, a / max(b, 1)) for name, (a, b) in zip(("scales_h", "scales_w"), sizes, strict=True)]
    if any(not b or a != scale * b or a % b for (a, b), scale in zip(sizes, scales, strict=True)):
        raise NotGenerated("a magnification that is no whole number")
    return [a // b for a, b in sizes]


#: packet -> rule
RULES = rules({
    _max_pool: "max_pool2d_with_indices max_pool2d",
    _max_pool_backward: "max_pool2d_with_indices_backward",
    _average_pool: "avg_pool2d _adaptive_avg_pool2d",
    _upsample: "upsample_nearest2d",
    _upsample_backward: "upsample_nearest2d_backward",
})  # fmt: skip
