"""A matrix product as a tensor that is known only at the position of the current tile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memwall.codegen.index import Index, Variable, unravel
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.lowering import Lowering, packet_of
from memwall.codegen.ops.base import broadcast
from memwall.codegen.tensors import Body, Indices, Tensor
from memwall.core.flow import Flow
from memwall.core.graph import Graph, Op, TensorSpec

#: op → its left and right operand
PRODUCTS: Mapping[str, tuple[str, str]] = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "linear": ("input", "weight"),
}
#: op → the tensor that is added
_ADDENDS = {"addmm": "self", "baddbmm": "self", "linear": "bias"}


class Misplaced(NotGenerated):
    """The product is needed at another position than the current tile's."""


@dataclass(frozen=True)
class Space:
    """The sizes of a product, and the variables of a tile of it. ``k`` runs along the left operand's columns and, under
    another name, along the right one's rows."""

    batch: int
    m: int
    n: int
    k: int
    #: sizes of the left operand's leading axes where ``m`` is several
    lead: tuple[int, ...]
    has_batch: bool

    @property
    def row(self) -> Index:
        return Index.of(Variable("m", self.m, frozenset("m")))

    @property
    def column(self) -> Index:
        return Index.of(Variable("n", self.n, frozenset("n")))

    @property
    def matrix(self) -> Indices:
        """Index of the matrix of a batch; empty where there is only one."""
        return (Index.of(Variable("batch", self.batch, frozenset())),) if self.has_batch else ()

    @property
    def place(self) -> Indices:
        """Indices of a tile's elements in the result."""
        return (*self.matrix, *unravel(self.row, self.lead), self.column)

    @property
    def flat(self) -> Index:
        """The same as a position in row-major order."""
        total = self.row * self.n + self.column
        return total + self.matrix[0] * (self.m * self.n) if self.has_batch else total

    def depth(self, name: str) -> Index:
        """The index that is summed over."""
        return Index.of(Variable(name, self.k, frozenset((name,))))


class Product(Lowering):
    """Lowers a group whose product is known only at the position of the current tile."""

    def __init__(self, graph: Graph, flow: Flow, op_ids: Sequence[int], product: Op) -> None:
        self.product = product
        self.views: set[TensorSpec] = set()
        super().__init__(graph, flow, op_ids)

    def _op(self, op: Op, inside: frozenset[int], position: int) -> None:
        if op.id != self.product.id:
            super()._op(op, inside, position)
            return
        given = {}
        for argument, (value_id, version) in zip(op.arguments, self.flow.reads[op.id], strict=True):
            made = self.flow.writer[version] in inside
            given[argument] = self.view(value_id, version) if made else self.load(value_id, version)
        packet = packet_of(op.name)
        self.left, self.right = (given[name] for name in PRODUCTS[packet])
        self.is_linear = packet == "linear"
        self.space = self._space()
        addend = given.get(_ADDENDS.get(packet, ""))
        spec = self.graph.values[op.outputs[0]].spec
        ((value_id, version),) = self.flow.writes[op.id]
        tensor = Tensor(spec.shape, spec.dtype, lambda body, i: self._element(body, i, addend))
        self.made[version] = (tensor, value_id)

    def view(self, value_id: int, version: int) -> Tensor:
        if self.flow.writer[version] == self.product.id:
            self.views.add(self.graph.values[value_id].spec)
        return super().view(value_id, version)

    def _space(self) -> Space:
        left, right = self.left.shape, self.right.shape
        n, k = (right[0], right[1]) if self.is_linear else (right[-1], right[-2])
        if self.is_linear:
            return Space(1, math.prod(left[:-1]), n, k, left[:-1], False)
        has_batch = len(left) == 3
        return Space(left[0] if has_batch else 1, left[-2], n, k, (left[-2],), has_batch)

    def _element(self, body: Body, indices: Indices, addend: Tensor | None) -> str:
        """The sum over the depth, and what the op adds to it."""
        if tuple(indices) != self.space.place:
            raise Misplaced("the product is read in another order than its tiles have")
        attributes = self.product.attributes
        alpha, beta = float(attributes.get("alpha", 1)), float(attributes.get("beta", 1))
        text = "total" if alpha == 1 else f"{alpha!r} * total"
        if addend is None or beta == 0:
            return text
        added = addend.at(body, broadcast(addend, indices))
        return f"{text} + {added}" if beta == 1 else f"{text} + {beta!r} * {added}"

    def operands(self) -> tuple[tuple[Tensor, Indices], tuple[Tensor, Indices]]:
        """Both operands with the position of their tile."""
        space = self.space
        left = (*space.matrix, *unravel(space.row, space.lead), space.depth("k_left"))
        right = (*space.matrix, space.depth("k_right"), space.column)
        if self.is_linear:
            right = (space.column, space.depth("k_right"))
        return (self.left, left), (self.right, right)
