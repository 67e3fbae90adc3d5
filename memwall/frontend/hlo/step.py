"""One instruction within a kernel, as its rule sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memwall.frontend.hlo.module import HloArray, HloInstruction, HloShape, arrays
from memwall.frontend.hlo.names import COMBINED, extreme_of
from memwall.frontend.hlo.sheet import HloConstant, Node, Sheet, values_of


@dataclass(frozen=True)
class HloStep:
    """One instruction within a kernel: what is written to, its operands with their shapes, and whether what it updates
    is written in place."""

    to: Sheet
    one: HloInstruction
    operands: Sequence[Node]
    shapes: Sequence[HloShape]
    in_place: bool

    @property
    def results(self) -> list[HloArray]:
        """The arrays that it yields."""
        return [*arrays(self.one.shape)]

    def value(self, number: int) -> int:
        """An operand as a value."""
        return self.to.value(self.operands[number], self.array(number))

    def array(self, number: int) -> HloArray:
        """The array of an operand."""
        shape = self.shapes[number]
        assert isinstance(shape, HloArray), f"{self.one.name}: operand {number} is a tuple"
        return shape

    def values(self, numbers: Sequence[int] | None = None) -> list[int]:
        """All operands as values, constants left out; or some of them, constants written."""
        if numbers is None:
            return [value for node in self.operands for value in values_of(node)]
        return [self.value(number) for number in numbers]

    def write(
        self,
        name: str,
        inputs: Sequence[int],
        arguments: Sequence[str] = (),
        attributes: Mapping[str, Any] | None = None,
        results: Sequence[HloArray] | None = None,
    ) -> Node:
        """The results of an op."""
        wanted = self.results if results is None else results
        made = [self.to.new(array) for array in wanted]
        self.to.op(f"lax.{name}", inputs, made, arguments=arguments, attributes=attributes)
        return _shaped(self.one.shape, made) if results is None else made[0]

    def number(self, number: int) -> float | None:
        """What a scalar operand is, where it is known."""
        node = self.operands[number]
        if isinstance(node, HloConstant):
            return node.number
        return self.to.numbers.get(node) if isinstance(node, int) else None

    def combined(self) -> str:
        """The operation on two elements, such as ``add``; empty where it has no name here."""
        return next((COMBINED[inner.opcode] for inner in self._called if inner.opcode in COMBINED), "")

    def extreme(self) -> str:
        """``argmax`` or ``argmin``, where it reduces elements and their places to an extreme and its place."""
        directions = [inner.attributes["direction"] for inner in self._called if inner.opcode == "compare"]
        return extreme_of([inner.opcode for inner in self._called], directions)

    @property
    def _called(self) -> list[HloInstruction]:
        """The instructions of the computations that it names."""
        return [each for name in self.one.called for each in self.to.program.computations[name].instructions]


def _shaped(shape: HloShape, made: Sequence[int]) -> Node:
    left = list(made)

    def take(part: HloShape) -> Node:
        return left.pop(0) if isinstance(part, HloArray) else tuple(map(take, part))

    return take(shape)
