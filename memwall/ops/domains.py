"""What the inputs of an op must contain for a meaningful result: indices within their tables, positive numbers
under a logarithm. A numerics check fills them so; any other tensor gets normal numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memwall.core.graph import Graph, Op

#: parameters are this large next to the steps of an optimizer, so that a step shows in all dtypes
WEIGHT_SCALE = 1e-3
#: second moments after the first steps of Adam with unit gradients: 1 - beta2 of them, about
SECOND_MOMENT = 2e-3


@dataclass(frozen=True)
class Domain:
    """A way to fill a tensor (a key of the table in :mod:`memwall.bench.kernels.fill`) and the numbers of that way."""

    kind: str
    high: int = 0
    scale: float = 1.0
    dim: int = -1
    window: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Use:
    """The ``position``-th tensor that an op takes as one of its arguments."""

    graph: Graph
    op: Op
    argument: str
    position: int

    def shape(self, argument: str) -> tuple[int, ...]:
        """Shape of the first tensor passed as an argument."""
        found = self.op.inputs[self.op.arguments.index(argument)]
        return self.graph.values[found].spec.shape

    def size(self, argument: str, dim: int) -> int:
        """Its length along an axis."""
        shape = self.shape(argument)
        return shape[dim] if shape else 1


DomainRule = Callable[[Use], Domain | None]


def always(kind: str, **numbers: float) -> DomainRule:
    """The same domain for any other arguments."""
    domain = Domain(kind, **numbers)  # type: ignore[arg-type]
    return lambda use: domain


POSITIVE = always("positive")
MEAN = always("normal", scale=0.1)


def along_dim(kind: str) -> DomainRule:
    """Filled along the axis that the op reduces."""
    return lambda use: Domain(kind, dim=use.op.attributes["dim"])


def rows_of(argument: str) -> DomainRule:
    """Numbers of rows of an argument."""
    return lambda use: Domain("index", high=use.size(argument, 0))


def rows_counted(use: Use) -> Domain:
    """Numbers of rows of a table of stated length."""
    return Domain("index", high=use.op.attributes["num_weights"])


def sparse_rows(use: Use) -> Domain | None:
    """The first tensor of a sparse one are its indices, the second its values."""
    return Domain("normal") if use.position else Domain("index", high=use.size("self", 0))


def ascending_to(argument: str) -> DomainRule:
    """Numbers of rows of an argument, none smaller than the one before."""
    return lambda use: Domain("ascending", high=use.size(argument, 0))


def places(distinct: bool) -> DomainRule:
    """Positions along the op's axis; ``distinct``: writes must not collide."""

    def rule(use: Use) -> Domain:
        dim = use.op.attributes["dim"]
        high = use.size("self", dim)
        return Domain("places", high=high, dim=dim) if distinct else Domain("index", high=high)

    return rule


def nth_index(use: Use) -> Domain:
    """The n-th index of x[i, :, j]; where writes must not collide, the first index is never twice the same."""
    count = use.op.arguments.count("indices")
    given = use.op.attributes.get("indices_given") or (True,) * count
    axis = [n for n, there in enumerate(given) if there][use.position]
    high = use.size("self", axis)
    collides = "index_put" in use.op.name and not use.op.attributes.get("accumulate")
    return Domain("places" if collides and not use.position else "index", high=high)


def class_number(use: Use) -> Domain:
    """Targets of a loss over classes, a few of them ignored."""
    shape = use.shape("self")
    return Domain("target", high=shape[1 if len(shape) > 1 else 0], dim=use.op.attributes["ignore_index"])


def counted_targets(use: Use) -> Domain:
    """The sum of the weights of so many rows."""
    shape = use.shape("self")
    return Domain("positive", scale=shape[0] if len(shape) > 1 else 1)


def pooled_places(use: Use) -> Domain:
    """The places of the maxima of a pooling."""
    given = use.op.attributes
    window = (use.shape("self"), *(tuple(given[name]) for name in ("kernel_size", "stride", "padding", "dilation")))
    return Domain("pooled", high=int(given.get("ceil_mode", False)), window=window)
