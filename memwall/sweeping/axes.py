"""Axes → points: lists of values as people write them, products of axes, and pairs.

``1,2,4..256`` is a list. ``a..b`` goes on as the list began: by doubling if ``a`` is twice the number before it, else
by the distance from the number before it, and by one at the start of a list. So ``1,2,4..16`` is 1, 2, 4, 8, 16;
``8,16,24..48`` goes by eights; ``1..4`` counts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memwall.core.errors import UsageError

_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_COMMA = re.compile(r",(?![^\[]*\])")  # not the commas of a shape, f32[8,3,224,224]
#: values of one axis at most
MOST_VALUES = 1_000_000


@dataclass(frozen=True, slots=True)
class Axis:
    """Options that change together, one as a rule, and the values that they take in turn: a tuple for each step."""

    names: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, name: str, values: Sequence[Any]) -> Axis:
        """The axis of one option; equal values once."""
        return cls((name,), tuple((value,) for value in dict.fromkeys(values)))


@dataclass(frozen=True, slots=True)
class Space:
    """All points of one workload: the product of its axes."""

    target: str
    axes: tuple[Axis, ...]

    def __len__(self) -> int:
        return math.prod(len(axis.values) for axis in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        """The options that vary or are set, in the order given."""
        return tuple(name for axis in self.axes for name in axis.names)

    def points(self) -> Iterator[dict[str, Any]]:
        """Every point, the last axis fastest."""
        names = self.names
        for steps in itertools.product(*(axis.values for axis in self.axes)):
            yield dict(zip(names, itertools.chain.from_iterable(steps), strict=True))

    def point(self, place: int) -> dict[str, Any]:
        """The point at a place of that order."""
        found: dict[str, Any] = {}
        for axis in reversed(self.axes):
            place, step = divmod(place, len(axis.values))
            found |= zip(axis.names, axis.values[step], strict=True)
        return {name: found[name] for name in self.names}


def expand(text: str) -> list[str]:
    """The values of a list as written. Raises ``UsageError``: it is empty, or a range ends before it begins or has too
    many values."""
    found: list[str] = []
    for part in map(str.strip, _COMMA.split(text)):
        if not part:
            raise UsageError(f"{text[:60]!r} has an empty value; want a list such as 1,2,4..256")
        ends = _RANGE.fullmatch(part)
        found += _range(int(ends[1]), int(ends[2]), found, part) if ends else [part]
    return list(dict.fromkeys(found))


def _range(first: int, last: int, before: Sequence[str], text: str) -> list[str]:
    """``first`` to ``last``, as the numbers before them go on."""
    previous = int(before[-1]) if before and before[-1].isdecimal() else None
    if last < first:
        raise UsageError(f"the range {text} ends before it begins")
    if previous and first == 2 * previous:
        return [str(first << i) for i in range((last // first).bit_length())]
    step = 1 if previous is None else first - previous
    if step < 1:
        raise UsageError(f"the range {text} begins below the number before it, {previous}")
    if (last - first) // step >= MOST_VALUES:
        raise UsageError(f"the range {text} has {(last - first) // step + 1:,} values; {MOST_VALUES:,} is the most")
    return list(map(str, range(first, last + 1, step)))


def split_axis(text: str) -> dict[str, list[str]]:
    """``batch=1,2`` as an option and its values; of ``zip: gpu=a100,h100 tp=4,8`` several, all as long. Raises
    ``UsageError``: it reads as neither."""
    words = text.removeprefix("zip:").split() if text.startswith("zip:") else [text]
    found: dict[str, list[str]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals or not name.strip() or not values.strip():
            raise UsageError(f"cannot read the axis {word[:60]!r}; want NAME=VALUES, such as batch=1,2,4..256")
        found[name.strip().lstrip("-").replace("-", "_")] = expand(values)
    if len({len(values) for values in found.values()}) != 1:
        lengths = ", ".join(f"{name} has {len(values)}" for name, values in found.items()) or "it has none"
        raise UsageError(f"options in zip: go step by step and have as many values: {lengths}")
    return found


def axes_of(vary: Mapping[str | tuple[str, ...], Any]) -> tuple[Axis, ...]:
    """Axes from values as Python has them: ``{"batch": [1, 2], ("gpu", "tp"): [("a100", 4), ("h100", 8)]}``. Raises
    ``UsageError``: an axis has no value, a step is not as long as its names, or an option is on two axes."""
    found: list[Axis] = []
    for names, values in vary.items():
        listed = [values] if isinstance(values, str) or not hasattr(values, "__iter__") else list(values)
        if not listed:
            raise UsageError(f"the axis {names} has no value")
        if isinstance(names, str):
            found.append(Axis.of(names, listed))
            continue
        if any(not isinstance(step, (tuple, list)) or len(step) != len(names) for step in listed):
            raise UsageError(f"each step of {', '.join(names)} is a tuple of {len(names)} values")
        found.append(Axis(tuple(names), tuple(map(tuple, listed))))
    check_apart(found)
    return tuple(found)


def check_apart(axes: Sequence[Axis]) -> None:
    """Raises ``UsageError``: two axes have the same option."""
    named = [name for axis in axes for name in axis.names]
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is on two axes; give all its values to one")
