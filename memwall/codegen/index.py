"""Integer index arithmetic for generated kernels: sums of digits of loop variables, kept in lowest terms.

A *digit* is ``variable // divisor % modulus``. Unravelling an index into a shape takes digits, ravelling it again sums
them up; both cancel as in arithmetic, so that a view of a view is ``x`` and not five divisions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memwall.core.graph import contiguous


@dataclass(frozen=True, slots=True)
class Variable:
    """A number 0 <= n < ``size`` known by its text; ``axes`` are the axes of the tile along which it varies."""

    text: str
    size: int
    axes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Digit:
    """``variable // divisor % modulus``; modulus 0 where it would change nothing."""

    variable: Variable
    divisor: int = 1
    modulus: int = 0

    @property
    def size(self) -> int:
        """One more than the largest value."""
        return self.modulus or -(-self.variable.size // self.divisor)

    @property
    def text(self) -> str:
        text = self.variable.text
        if self.divisor > 1:
            text = f"{text} // {self.divisor}"
        if self.modulus:
            text = f"{text} % {self.modulus}"
        return f"({text})" if " " in text else text

    def split(self, low: int) -> tuple[Digit, Digit] | None:
        """Quotient and remainder by ``low``, both digits; None where they are not digits."""
        if self.modulus and self.modulus % low:
            return None
        high = Digit(self.variable, self.divisor * low, self.modulus // low)
        return high, Digit(self.variable, self.divisor, low)


@dataclass(frozen=True, slots=True)
class AffineIndex:
    """``constant + sum of coefficient * digit``, in lowest terms."""

    terms: tuple[tuple[Digit, int], ...] = ()
    constant: int = 0

    @staticmethod
    def of(variable: Variable) -> AffineIndex:
        """A variable; one that can only be 0 is the number 0."""
        return AffineIndex(((Digit(variable), 1),)) if variable.size > 1 else AffineIndex()

    @property
    def low(self) -> int:
        """Smallest value."""
        return self.constant + sum(c * (d.size - 1) for d, c in self.terms if c < 0)

    @property
    def high(self) -> int:
        """Largest value."""
        return self.constant + sum(c * (d.size - 1) for d, c in self.terms if c > 0)

    @property
    def axes(self) -> frozenset[str]:
        """Axes of the tile along which it varies."""
        return frozenset().union(*(digit.variable.axes for digit, _ in self.terms))

    @property
    def text(self) -> str:
        """The index as an expression."""
        parts = [digit.text if factor == 1 else f"{factor} * {digit.text}" for digit, factor in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")

    def __add__(self, other: AffineIndex | int) -> AffineIndex:
        if isinstance(other, int):
            return AffineIndex(self.terms, self.constant + other)
        return AffineIndex(_merged((*self.terms, *other.terms)), self.constant + other.constant)

    def __mul__(self, factor: int) -> AffineIndex:
        if factor == 0:
            return AffineIndex()
        return AffineIndex(tuple((d, c * factor) for d, c in self.terms), self.constant * factor)

    def divmod(self, divisor: int) -> tuple[AffineIndex, AffineIndex]:
        """Quotient and remainder by a positive number; the index must not be negative."""
        if divisor == 1:
            return self, AffineIndex()
        if self.low >= 0 and self.high < divisor:
            return AffineIndex(), self
        quotient: list[tuple[Digit, int]] = []
        remainder: list[tuple[Digit, int]] = []
        for digit, coefficient in self.terms:
            if coefficient % divisor == 0:
                quotient.append((digit, coefficient // divisor))
                continue
            parts = None
            if divisor % coefficient == 0 and digit.size > divisor // coefficient > 0:
                parts = digit.split(divisor // coefficient)
            if parts is None:
                remainder.append((digit, coefficient))
            else:
                quotient.append((parts[0], 1))
                remainder.append((parts[1], coefficient))
        rest = AffineIndex(_merged(remainder), self.constant % divisor)
        if rest.low >= 0 and rest.high < divisor:
            return AffineIndex(_merged(quotient), self.constant // divisor), rest
        whole = Variable(f"({self.text})", self.high + 1, self.axes)
        return AffineIndex(((Digit(whole, divisor), 1),)), AffineIndex(((Digit(whole, 1, divisor), 1),))


def _merged(terms: Iterable[tuple[Digit, int]]) -> tuple[tuple[Digit, int], ...]:
    """Equal digits added up; two that are the low and the high part of one number put together."""
    sums: dict[Digit, int] = {}
    for digit, coefficient in terms:
        sums[digit] = sums.get(digit, 0) + coefficient
    found = sorted(
        ((d, c) for d, c in sums.items() if c),
        key=lambda term: (term[0].variable.text, term[0].divisor, term[0].modulus),
    )
    joined: list[tuple[Digit, int]] = []
    for digit, coefficient in found:
        while joined:
            low, factor = joined[-1]
            fits = low.variable == digit.variable and low.modulus
            if not fits or low.divisor * low.modulus != digit.divisor or coefficient != factor * low.modulus:
                break
            joined.pop()
            modulus = low.modulus * digit.modulus
            digit, coefficient = Digit(low.variable, low.divisor, modulus), factor
        joined.append((digit, coefficient))
    return tuple((_plain(d), c) for d, c in joined)


def _plain(digit: Digit) -> Digit:
    """Without a modulus that changes nothing."""
    if digit.modulus and digit.modulus >= -(-digit.variable.size // digit.divisor):
        return Digit(digit.variable, digit.divisor)
    return digit


def unravel(index: AffineIndex, shape: Sequence[int]) -> tuple[AffineIndex, ...]:
    """A position in row-major order as an index for each axis of a shape."""
    found: list[AffineIndex] = []
    if 0 in shape:  # no element, no place
        return (AffineIndex(),) * len(shape)
    for place, size in reversed(list(enumerate(shape))):
        if place == 0 or math.prod(shape[:place]) == 1:
            found.append(index if size != 1 else AffineIndex())
            found += [AffineIndex()] * place
            break
        index, digit = index.divmod(size)
        found.append(digit)
    return tuple(reversed(found))


def ravel(indices: Sequence[AffineIndex], shape: Sequence[int]) -> AffineIndex:
    """The position in row-major order."""
    return offset(indices, contiguous(shape, "bool").strides)


def offset(indices: Sequence[AffineIndex], strides: Sequence[int]) -> AffineIndex:
    """Offset of the element in a strided tensor, in elements."""
    total = AffineIndex()
    for index, stride in zip(indices, strides, strict=True):
        total += index * stride
    return total
