"""What a program of a kernel knows of a value: integers and pointers exactly, over all programs at once; of what it
loads only what decides it.

Arrays have an axis for the programs, one for each loop around, and then the block's axes, each of its full size or 1.
An integer is a sum of such arrays, its terms, which stay apart: ``pid * 128 + arange(128)`` of a thousand programs is
an array of as many numbers and one of 128, and the address of an element of a matrix an array for each axis. A
condition is a product of arrays, all of which must hold. What depends on data has ``keys`` instead: equal keys mean an
equal value, which is how rows that an index names are told apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from memwall.frontend.triton.ir import Type

#: numbers that are written out for one value
LIMIT = 1 << 22
#: different remainders of programs that are looked at apart at most
REMAINDERS = 64
#: numbers of a condition that is written out before it is known whether anything needs it
EAGER = 1 << 16

Array = np.ndarray[Any, np.dtype[Any]]


class Apart(Exception):
    """A value is too large for so many programs at once: ``parts`` are indices of programs to look at apart. They are
    ``pieces`` where all of the value has to be written out in each; else programs of a part are alike."""

    def __init__(self, parts: Sequence[Array], *, pieces: bool = False) -> None:
        super().__init__("programs are looked at apart")
        self.parts, self.pieces = parts, pieces


@dataclass(frozen=True, slots=True)
class Known:
    """A value of a kernel. ``terms`` sum to an integer or to a pointer's distance from ``base``, an argument, in
    elements; of a condition all must hold. ``keys`` decide what depends on data; ``vague``: nothing tells what it is.
    ``live`` are the conditions under which its elements were loaded. ``late`` makes the value when it is needed."""

    kind: Type
    terms: tuple[Array, ...] = ()
    keys: tuple[Array, ...] = ()
    vague: bool = False
    live: tuple[Array, ...] = ()
    base: str = ""
    late: Callable[[], Known] | None = None
    _made: list[Known] = field(default_factory=list, compare=False, repr=False)

    @property
    def is_known(self) -> bool:
        return not (self.keys or self.vague)

    @property
    def is_condition(self) -> bool:
        return self.kind.element == "i1"

    @property
    def parts(self) -> tuple[Array, ...]:
        """All that it depends on."""
        return (*self.terms, *self.keys)

    def resolved(self) -> Known:
        """The value itself, where it was put off."""
        if self.late is None:
            return self
        if not self._made:
            self._made.append(self.late().resolved())
        return self._made[0]

    def shaped(self, kind: Type, change: Callable[[Array], Array]) -> Known:
        """The value with each of its arrays changed."""
        if self.late is not None:
            return Known(kind, late=lambda: self.resolved().shaped(kind, change))
        each = lambda arrays: tuple(change(array) for array in arrays)  # noqa: E731
        return replace(self, kind=kind, terms=each(self.terms), keys=each(self.keys), live=each(self.live), _made=[])


def lifted(array: Array, rank: int, depth: int) -> Array:
    """An array with axes of size 1 for the loops that it does not know."""
    known = array.ndim - rank
    return array.reshape(array.shape[:known] + (1,) * (depth - known) + array.shape[known:])


def at_depth(value: Known, depth: int) -> Known:
    """A value as it is seen inside of so many axes of programs and loops."""
    rank = len(value.kind.shape)
    if value.late is None and all(array.ndim - rank == depth for array in (*value.parts, *value.live)):
        return value
    return value.shaped(value.kind, lambda array: lifted(array, rank, depth))


def number(kind: Type, value: float, depth: int) -> Known:
    """The same number everywhere."""
    return Known(kind, (np.full((1,) * (depth + len(kind.shape)), int(value), np.int64),))


def size_of(arrays: Iterable[Array]) -> int:
    """Numbers of the arrays written out together."""
    return math.prod(np.broadcast_shapes(*(array.shape for array in arrays)) or (1,))


def summed(terms: Iterable[Array]) -> tuple[Array, ...]:
    """Terms, where terms of equal shape are added."""
    found: dict[tuple[int, ...], Array] = {}
    for term in terms:
        found[term.shape] = found[term.shape] + term if term.shape in found else term
    return tuple(term for term in found.values() if term.size > 1 or len(found) == 1 or term.any())


def span(terms: Sequence[Array]) -> tuple[int, int]:
    """Lower and upper bound of a sum of terms."""
    if any(not term.size for term in terms):
        return 0, 0
    return sum(int(term.min()) for term in terms), sum(int(term.max()) for term in terms)


def whole(terms: Sequence[Array]) -> Array:
    """The terms added, in one array.

    Raises:
        Apart: it is too large for all programs at once.
    """
    size = size_of(terms)
    if size > LIMIT:
        programs = max(term.shape[0] for term in terms)
        few = LIMIT // (size // programs)
        starts = range(0, programs, few) if few else range(0)
        raise Apart([np.arange(at, min(at + few, programs)) for at in starts], pieces=True)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def held(terms: Sequence[Array]) -> Array:
    """Conditions that must all hold, in one array. Raises ``Apart`` as :func:`whole` does."""
    return whole([np.logical_not(term) for term in terms]) == 0 if len(terms) > 1 else terms[0].astype(bool)


def add(kind: Type, a: Known, b: Known, sign: int = 1) -> Known:
    """``a + b`` or ``a - b``, of integers or of a pointer and a distance."""
    others = b.terms if sign > 0 else tuple(-term for term in b.terms)
    return Known(kind, summed((*a.terms, *others)), (*a.keys, *b.keys), a.vague or b.vague, base=a.base or b.base)


def multiply(kind: Type, a: Known, b: Known) -> Known:
    """``a * b``: each term of the one with each of the other."""
    if not (a.is_known and b.is_known):
        return depending(kind, (a, b))
    if any(size_of((x, y)) > LIMIT for x in a.terms for y in b.terms):
        return Known(kind, terms=(whole([whole(a.terms), whole(b.terms)]),))
    return Known(kind, summed(x * y for x in a.terms for y in b.terms))


def depending(kind: Type, values: Sequence[Known]) -> Known:
    """What some values decide, in a way that is not followed further."""
    if any(value.vague or value.kind.is_float for value in values):
        return Known(kind, vague=True)
    parts = [part for value in values for part in value.parts]
    keys = [part for part in parts if part.size > 1] or parts[:1]
    return Known(kind, keys=tuple(keys), vague=not keys)


def divide(kind: Type, a: Known, b: Known, *, remainder: bool) -> Known:
    """``a // b`` or ``a % b``, by one number: terms that step by multiples of it go their own way, and a term that is
    smaller than what divides all others stays in its own.

    Raises:
        Apart: it is too large to write out for programs whose terms leave different remainders.
    """
    by = int(b.terms[0].flat[0]) if b.is_known and size_of(b.terms) == 1 else 0
    if by <= 0 or not a.is_known or span(a.terms)[0] < 0:
        return _divided(kind, a, b, remainder)
    if span(a.terms)[1] < by:
        return replace(a, kind=kind) if remainder else Known(kind, (np.zeros((1,) * a.terms[0].ndim, np.int64),))
    apart = [term for term in a.terms if not ((term - term.min()) % by).any()]
    rest = [term for term in a.terms if not any(term is other for other in apart)]
    out = [] if remainder else [(term - term.min()) // by for term in apart]
    if begin := sum(int(term.min()) for term in apart):
        rest.append(np.full((1,) * a.terms[0].ndim, begin))
    if size_of(rest) > LIMIT:
        _part_by_remainder(rest, by)
    if len(rest) > 1:
        small = min(rest, key=lambda term: int(term.max()))
        others = [term for term in rest if term is not small]
        unit = math.gcd(by, *(int(np.gcd.reduce(term, axis=None)) for term in others))
        if small.min() >= 0 and small.max() < unit:
            rest, out = others, [*out, small] if remainder else out
    if rest:
        total = rest[0] if len(rest) == 1 else whole(rest)
        out.append(total % by if remainder else total // by)
    return Known(kind, summed(out) if out else (np.zeros((1,) * a.terms[0].ndim, np.int64),))


def _part_by_remainder(terms: Sequence[Array], by: int) -> None:
    """Look at programs apart that leave different remainders, where these are few."""
    for term in terms:
        kinds, places = np.unique((term % by).reshape(-1), return_inverse=True)
        if term.size == term.shape[0] and 1 < len(kinds) <= REMAINDERS:
            raise Apart([np.flatnonzero(places == number) for number in range(len(kinds))])


def part_by(condition: Array) -> None:
    """Look at programs apart for which a condition of theirs alone holds, and for which not."""
    holds = condition.reshape(-1).astype(bool)
    if condition.size == condition.shape[0] and holds.any() and not holds.all():
        raise Apart([np.flatnonzero(holds), np.flatnonzero(~holds)])


def same_base(a: Known, b: Known) -> str:
    """The argument that two pointers point into; empty where they do not point into the same."""
    return a.base if a.base == b.base else ""


def _divided(kind: Type, a: Known, b: Known, remainder: bool) -> Known:
    """As in C: towards zero."""
    if not (a.is_known and b.is_known):
        return depending(kind, (a, b))
    size_of((*a.terms, *b.terms)) > LIMIT and whole((*a.terms, *b.terms))
    x, y = whole(a.terms), whole(b.terms)
    y = np.where(y == 0, 1, y)
    quotient = np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))
    return Known(kind, (x - quotient * y if remainder else quotient,))


_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


def compare(kind: Type, how: str, a: Known, b: Known) -> Known:
    """``a < b`` and the like; ``how`` is MLIR's ``slt``, ``uge``, ``eq``. A large one is written out when needed."""
    if not (a.is_known and b.is_known):
        return depending(kind, (a, b))
    less = summed((*a.terms, *(-term for term in b.terms)))
    test, (low, high) = _COMPARED[how[-2:]], span(less)
    if low == high or (test(low, 0) == test(high, 0) and (how[-2:] not in ("eq", "ne") or low > 0 or high < 0)):
        return Known(kind, (np.full((1,) * less[0].ndim, bool(test(low, 0))),))
    if size_of(less) <= EAGER:
        return Known(kind, (test(whole(less), 0),))
    return Known(kind, late=lambda: _compared(kind, how, less))


def _compared(kind: Type, how: str, less: tuple[Array, ...]) -> Known:
    test = _COMPARED[how[-2:]]
    if size_of(less) <= LIMIT:
        return Known(kind, (test(whole(less), 0),))
    parts = _alike(how, less)
    if parts is None:
        whole(less)  # raises Apart
    raise Apart(parts or [])


def _alike(how: str, less: tuple[Array, ...]) -> list[Array] | None:
    """Programs for which all that they compare comes out alike, one way or the other, and the programs for which
    not."""
    if how[-2:] in ("eq", "ne"):
        return None
    own = [term for term in less if term.shape[0] > 1 and term.size == term.shape[0]]
    rest = [term for term in less if term.shape[0] == 1]
    if len(own) + len(rest) < len(less) or not own:
        return None
    (low, high), test = span(rest), _COMPARED[how[-2:]]
    total = whole(own).reshape(-1)
    ends = test(total + low, 0).astype(int) + test(total + high, 0)
    parts = [np.flatnonzero(ends == count) for count in (0, 1, 2)]
    found = [part for part in parts if len(part)]
    return found if len(found) > 1 else None


def both(kind: Type, a: Known, b: Known) -> Known:
    """``a and b``."""
    if a.late is not None or b.late is not None:
        return Known(kind, late=lambda: both(kind, a.resolved(), b.resolved()))
    return Known(kind, (*a.terms, *b.terms), (*a.keys, *b.keys), a.vague or b.vague)


def pointwise(kind: Type, function: Callable[..., Array], values: Sequence[Known]) -> Known:
    """A function of known values, written out; small ones at once, a condition when it is needed."""

    def made() -> Known:
        found = [value.resolved() for value in values]
        if not all(value.is_known for value in found):
            return depending(kind, found)
        joined = [held(value.terms) if value.is_condition else whole(value.terms) for value in found]
        if size_of(joined) > LIMIT:
            whole(joined)
        return Known(kind, (function(*joined),))

    known = [value for value in values if value.late is None]
    if len(known) == len(values) and size_of([part for value in known for part in value.parts] or [_ONE]) <= EAGER:
        return made()
    return Known(kind, late=made)


_ONE = np.ones((1,), np.int64)
