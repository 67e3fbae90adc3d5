"""What the rules of ops share: an op as a rule sees it, and tensors made from others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from memwall.codegen.index import AffineIndex, ravel, unravel
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.tensors import (
    Body,
    Indices,
    Scatter,
    Tensor,
    TensorReduction,
    axes_of,
    cast,
    compute_dtype,
    triton_dtype,
)
from memwall.core.graph import Op, TensorSpec
from memwall.ops.expressions import literal


class Waiting(Exception):
    """The tensor to read does not exist yet: another function has to scatter it first."""


@dataclass
class OpView:
    """An op as its rule sees it."""

    op: Op
    packet: str
    inputs: tuple[tuple[str, Tensor], ...]
    outputs: tuple[TensorSpec, ...]
    position: int
    #: what the op writes that the trace does not say: argument -> new value
    updates: dict[str, Tensor] = field(default_factory=dict)

    def find(self, name: str) -> Tensor | None:
        """The tensor passed as an argument, or None."""
        return next((tensor for argument, tensor in self.inputs if argument == name), None)

    def tensor(self, name: str) -> Tensor:
        """The tensor passed as an argument."""
        found = self.find(name)
        if found is None:
            raise NotGenerated(f"{self.packet} without {name}")
        return found

    def tensors(self, name: str) -> list[Tensor]:
        """The tensors of a list argument."""
        return [tensor for argument, tensor in self.inputs if argument == name]

    def number(self, name: str, default: Any = None) -> Any:
        """An argument that is not a tensor."""
        value = (self.op.attributes or {}).get(name, default)
        return default if value is None else value

    @property
    def spec(self) -> TensorSpec:
        """The first output."""
        return self.outputs[0]


T = TypeVar("T")
Made = Sequence[Tensor | Scatter]
OpRule = Callable[[OpView], Made]


def broadcast(tensor: Tensor, indices: Indices) -> Indices:
    """Indices of a result as indices of an argument that is broadcast to it."""
    last = indices[len(indices) - len(tensor.shape) :]
    return tuple(AffineIndex() if size == 1 else index for size, index in zip(tensor.shape, last, strict=True))


#: pairs of dtypes of which neither can hold the other's numbers
_WIDER = {frozenset(("uint8", "int8")): "int16", frozenset(("float16", "bfloat16")): "float32"}


def promoted(dtypes: Sequence[str]) -> str:
    """The widest of some dtypes, floats before whole numbers."""
    order = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
    widest = max(dtypes, key=order.index, default="float32")
    return _WIDER.get(frozenset((widest, order[order.index(widest) - 1])) & {*dtypes}, widest)


def constant(shape: tuple[int, ...], dtype: str, value: Any) -> Tensor:
    """A tensor of one number."""
    computed = compute_dtype(dtype)
    text = f"tl.full([1], {literal(value, computed)}, {triton_dtype(computed)})"
    return Tensor(shape, dtype, lambda body, indices: body.name(text))


Part = tuple[int, int, Callable[[Body, AffineIndex], str]]


def choose(body: Body, dtype: str, place: AffineIndex, parts: Sequence[Part]) -> str:
    """The part of a concatenation along an axis that contains an index."""
    live = [part for part in parts if part[0] <= place.high and part[1] > place.low]
    covered = all(before[1] == after[0] for before, after in pairwise(parts))  # then the last needs no test
    text = literal(0, compute_dtype(dtype))
    for number, (start, stop, element) in enumerate(reversed(live)):
        tests = tests_between(place, start, stop)
        if not tests:
            return element(body, place + -start)
        condition = body.name(" & ".join(tests))
        with body.where(condition, place.axes):
            found = body.name(element(body, place + -start))
        is_rest = number == 0 and len(live) > 1 and covered
        text = body.name(found if is_rest else f"tl.where({condition}, {found}, {text})")
    return text


def tests_between(place: AffineIndex, start: int, stop: int) -> list[str]:
    """What must hold for an index to be in a range, without what always does."""
    tests = [f"({place.text} >= {start})"] if start > place.low else []
    return tests + ([f"({place.text} < {stop})"] if stop <= place.high else [])


def found_index(body: Body, tensor: Tensor, indices: Indices, size: int, wraps: bool = False) -> AffineIndex:
    """An element of an index tensor as an index into an axis of a size."""
    text = tensor.at(body, indices)
    if tensor.dtype != "int64":  # multiplied by a stride it may need more
        text = body.name(f"{text}.to(tl.int64)")
    if wraps:
        text = body.name(f"tl.where({text} < 0, {text} + {size}, {text})")
    return body.variable(text, size, axes_of(indices))


def reduction_result(reduction: TensorReduction, component: int, shape: Sequence[int], dtype: str) -> Tensor:
    """A component of a reduction as a tensor over the axes that remain (those reduced may stand as 1)."""

    def rule(body: Body, indices: Indices) -> str:
        return body.writer.reduced(body, reduction, ravel(indices, shape), component)

    return Tensor(tuple(shape), dtype, rule)


def as_dtype(tensor: Tensor, dtype: str) -> Tensor:
    """A tensor computed in another dtype."""
    return Tensor(tensor.shape, dtype, lambda body, i: cast(tensor.at(body, i), tensor.dtype, dtype))


def mapped(tensor: Tensor, text: str, dtype: str = "float32") -> Tensor:
    """A tensor of the elements' ``text``, which says ``{}`` for one."""
    return Tensor(tensor.shape, dtype, lambda body, i: text.format(tensor.at(body, i)))


def without(items: Sequence[T], dims: Sequence[int]) -> tuple[T, ...]:
    """Sizes or indices, without some axes."""
    return tuple(item for i, item in enumerate(items) if i not in dims)


def product(*tensors: Tensor) -> Tensor:
    """Elementwise product of tensors of one shape."""

    def rule(body: Body, indices: Indices) -> str:
        return " * ".join(t.at(body, indices) for t in tensors)

    return Tensor(tensors[0].shape, "float32", rule)


def reshaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same elements in row-major order in another shape."""
    if tensor.shape == shape:
        return tensor
    return Tensor(shape, tensor.dtype, lambda body, i: tensor.at(body, unravel(ravel(i, shape), tensor.shape)))


def flat(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else reshaped(tensor, (tensor.numel,))


def rules(table: Mapping[OpRule, str]) -> dict[str, OpRule]:
    """Rule → packets, turned round."""
    return {name: rule for rule, names in table.items() for name in names.split()}
