"""Which elements an access touches, over all programs: counted, and as runs of neighbours.

An address is a sum of terms, and what they do not share is apart: the elements of a matrix are the sums of a set of
rows and a set of columns. A set is a list of runs, and a sum of sets the runs of all pairs, joined where they meet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memwall.frontend.triton.values import LIMIT, Apart, Array, held, size_of, whole

#: places that are written out without a look at whether only programs at the edges need it
QUICK = 1 << 17
#: places that numbers span for each of them, up to which they are marked instead of sorted
_CLOSE = 8

#: starts and ends of runs of elements, sorted, none of which meet
Runs = tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class Touched:
    """Elements that an access touches: ``runs``, or where data decides, ``count`` different ones at most."""

    runs: Runs | None
    count: int


def counted(terms: Sequence[Array], sizes: Sequence[int]) -> int:
    """How many points of a box with sides ``sizes`` fulfil all conditions, each an array over some of its axes.

    Raises:
        Apart: programs have to be looked at apart.
    """
    total, left = 1, set(range(len(sizes)))
    for axes, some in _apart(terms):
        total *= int(np.count_nonzero(held(some)))
        left -= axes
    return total * math.prod(sizes[axis] for axis in left)


def touched(
    terms: Sequence[Array], keys: Sequence[Array], conditions: Sequence[Array], sizes: Sequence[int]
) -> Touched:
    """The elements at ``sum(terms)`` where all conditions hold; where there are ``keys`` too, as many as there are
    different pairs of these and terms. ``sizes`` are the sizes of the axes.

    Raises:
        Apart: programs have to be looked at apart.
    """
    runs: Runs = (np.zeros(1, np.int64), np.ones(1, np.int64))
    count, by_data = 1, bool(keys)
    found: list[tuple[Array, int]] = []
    for _, some in _apart([*terms, *keys, *conditions]):
        rows = [_of(some, group) for group in (terms, keys, conditions)]
        values, different = _different(rows[0], rows[1], rows[2])
        if not different:
            return Touched((np.zeros(0, np.int64), np.zeros(0, np.int64)), 0)
        count *= different
        if values is not None:
            found.append((values, different))
    if by_data:
        return Touched(None, count)
    for values, _ in sorted(found, key=lambda one: int(one[0][-1] - one[0][0])):
        together = _pairs(runs, _runs(values))
        if together is None:
            return Touched(None, count)
        runs = together
    return Touched(runs, int((runs[1] - runs[0]).sum()))


def joined(several: Sequence[Runs]) -> Runs:
    """The runs of all of them."""
    starts, ends = (np.concatenate([runs[side] for runs in several]) for side in (0, 1))
    return _merged(starts, ends)


def _of(some: Sequence[Array], group: Sequence[Array]) -> list[Array]:
    own = {id(array) for array in group}
    return [array for array in some if id(array) in own]


def _apart(arrays: Sequence[Array]) -> list[tuple[set[int], list[Array]]]:
    """The arrays in groups that share no axis, each with its axes; arrays of one number are in groups of their own."""
    groups: list[tuple[set[int], list[Array]]] = []
    for array in arrays:
        axes, some = {axis for axis, size in enumerate(array.shape) if size > 1}, [array]
        others = []
        for group in groups:
            if group[0] & axes:
                axes, some = axes | group[0], [*group[1], *some]
            else:
                others.append(group)
        groups = [*others, (axes, some)]
    return groups


def _different(terms: list[Array], keys: list[Array], conditions: list[Array]) -> tuple[Array | None, int]:
    """The sorted different sums of terms where the conditions hold, and how many different ones there are, keys
    counted too; no sums where there are no terms."""
    everything = [*terms, *keys, *conditions]
    if size_of(everything) > QUICK:
        _part_from_edges(conditions)
    size_of(everything) > LIMIT and whole(everything)
    shape = np.broadcast_shapes(*(array.shape for array in everything))
    rows: list[Any] = [whole(terms)] if terms else []
    rows += keys
    if conditions:
        mask = np.broadcast_to(held(conditions), shape)
        if not rows:
            return None, int(mask.any())
        flat = [np.broadcast_to(row, shape)[mask] for row in rows]
    else:
        flat = [np.asarray(row).reshape(-1) if len(rows) == 1 else np.broadcast_to(row, shape).ravel() for row in rows]
    if not len(flat[0]):
        return None, 0
    values = _sorted(flat[0]) if terms else None
    if len(flat) == 1:
        return values, len(values if values is not None else _sorted(flat[0]))
    numbers = np.zeros(len(flat[0]), np.int64)
    for row in flat:
        kinds, places = np.unique(row, return_inverse=True)
        numbers = np.unique(numbers * len(kinds) + places.reshape(-1), return_inverse=True)[1].reshape(-1)
    return values, int(numbers.max()) + 1


def _sorted(numbers: Array) -> Array:
    """The different numbers, sorted: by marks where they lie close, which takes less than to sort them."""
    low, high = int(numbers.min()), int(numbers.max())
    if high - low > _CLOSE * len(numbers) + QUICK:
        return np.unique(numbers)
    marks = np.zeros(high - low + 1, bool)
    marks[numbers - low] = True
    return np.flatnonzero(marks) + low


def _part_from_edges(conditions: list[Array]) -> None:
    """Look at programs apart for which some condition does not hold everywhere: programs at the edges of a tensor."""
    inside: Array = np.ones(1, bool)
    for condition in conditions:
        inside = inside & condition.reshape(condition.shape[0], -1).astype(bool).all(axis=1)
    if 0 < np.count_nonzero(inside) < len(inside):
        raise Apart([np.flatnonzero(inside), np.flatnonzero(~inside)])


def _runs(values: Array) -> Runs:
    """Runs of neighbours among sorted numbers."""
    breaks = np.flatnonzero(np.diff(values) > 1)
    return values[np.concatenate(([0], breaks + 1))], values[np.concatenate((breaks, [len(values) - 1]))] + 1


def _pairs(a: Runs, b: Runs) -> Runs | None:
    """The sums of a number of the one and one of the other; None: too many to write out."""
    if len(a[0]) * len(b[0]) > LIMIT:
        return None
    return _merged((a[0][:, None] + b[0]).reshape(-1), (a[1][:, None] + b[1] - 1).reshape(-1))


def _merged(starts: Array, ends: Array) -> Runs:
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate(([True], starts[1:] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return starts[first], ends[last]
