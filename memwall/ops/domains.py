"""What the inputs of an op must contain for a meaningful result: indices within their tables, positive numbers
under a logarithm. A numerics check fills them so; any other tensor gets normal numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memwall.ops.base import Call

#: parameters are this large next to the steps of an optimizer, so that a step shows in all dtypes
WEIGHT_SCALE = 1e-3
#: second moments after the first steps of Adam with unit gradients: 1 - beta2 of them, about
SECOND_MOMENT = 2e-3


@dataclass(frozen=True)
class Domain:
    """A way to fill a tensor (a key of the table in :mod:`memwall.bench.kernels.arena`) and the numbers of that way."""

    kind: str
    high: int = 0
    scale: float = 1.0
    dim: int = -1
    window: tuple[tuple[int, ...], ...] = ()


#: the domain of the ``position``-th tensor that a call takes as one of its arguments
DomainRule = Callable[[Call, int], Domain | None]


def always(kind: str, **numbers: float) -> DomainRule:
    """The same domain for any other arguments."""
    domain = Domain(kind, **numbers)  # type: ignore[arg-type]
    return lambda call, position: domain


POSITIVE = always("positive")
MEAN = always("normal", scale=0.1)


def along_dim(kind: str) -> DomainRule:
    """Filled along the axis that the op reduces."""
    return lambda call, position: Domain(kind, dim=call.attributes["dim"])


def rows_of(argument: str, kind: str = "index") -> DomainRule:
    """Numbers of rows of an argument."""
    return lambda call, position: Domain(kind, high=_size(call, argument, 0))


def ascending_to(argument: str) -> DomainRule:
    """Numbers of rows of an argument, none smaller than the one before."""
    return rows_of(argument, "ascending")


def group_ends(call: Call, position: int) -> Domain:
    """Where each group of a grouped product ends, on the axis that is split: equal groups."""
    left, right = call.need("self"), call.need("mat2")
    split = right.shape[-1] if len(left.shape) == 3 else left.shape[-1] if len(right.shape) == 2 else left.shape[0]
    return Domain("ends", high=split)


def rows_counted(call: Call, position: int) -> Domain:
    """Numbers of rows of a table of stated length."""
    return Domain("index", high=call.attributes["num_weights"])


def sparse_rows(call: Call, position: int) -> Domain:
    """The first tensor of a sparse one are its indices, the second its values."""
    return Domain("normal") if position else Domain("index", high=_size(call, "self", 0))


def places(distinct: bool) -> DomainRule:
    """Positions along the op's axis; ``distinct``: writes must not collide."""

    def rule(call: Call, position: int) -> Domain:
        dim = call.attributes["dim"]
        high = _size(call, "self", dim)
        return Domain("places", high=high, dim=dim) if distinct else Domain("index", high=high)

    return rule


def _size(call: Call, argument: str, dim: int) -> int:
    shape = call.need(argument).shape
    return shape[dim] if shape else 1


def nth_index(call: Call, position: int) -> Domain:
    """The n-th index of x[i, :, j]; where writes must not collide, the first index is never twice the same."""
    given = call.attributes.get("indices_given") or (True,) * len(call.args("indices"))
    axis = [n for n, there in enumerate(given) if there][position]
    collides = "index_put" in call.name and not call.attributes.get("accumulate")
    return Domain("places" if collides and not position else "index", high=_size(call, "self", axis))


def class_number(call: Call, position: int) -> Domain:
    """Targets of a loss over classes, a few of them ignored."""
    shape = call.need("self").shape
    return Domain("target", high=shape[1 if len(shape) > 1 else 0], dim=call.attributes["ignore_index"])


def counted_targets(call: Call, position: int) -> Domain:
    """The sum of the weights of so many rows."""
    shape = call.need("self").shape
    return Domain("positive", scale=shape[0] if len(shape) > 1 else 1)


def pooled_places(call: Call, position: int) -> Domain:
    """The places of the maxima of a pooling."""
    given = call.attributes
    window = tuple(tuple(given[name]) for name in ("kernel_size", "stride", "padding", "dilation"))
    return Domain("pooled", high=int(given.get("ceil_mode", False)), window=(call.need("self").shape, *window))
