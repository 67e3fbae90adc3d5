"""What a value of a hardware file may be: numbers in base SI, lines of text."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

from memwall.core.structure import BadRecord, shown

#: numbers between which no rate overflows
_LEAST, _MOST = 1e-15, 1e25


def numbers(wanted: str, fits: Callable[[float], bool], kind: type[float] = float) -> Callable[[Any], Any]:
    """The check of a number in base SI: finite, and neither absurdly large nor small, so that no rate overflows."""

    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadRecord(f"must be {wanted}, not {shown(value)}")
        if not abs(value) < math.inf or not fits(value):
            raise BadRecord(f"must be {wanted} in base SI units, not {shown(value)}")
        if not (value == 0 or _LEAST <= abs(value) <= _MOST):
            raise BadRecord(f"must be {wanted} from {_LEAST:g} to {_MOST:g} in base SI units, not {shown(value)}")
        return kind(value)

    return check


positive = numbers("a positive number", lambda number: number > 0)
whole = numbers("a positive whole number", lambda number: number > 0 and number % 1 == 0, int)
fraction = numbers("a fraction above 0 and at most 1", lambda number: 0 < number <= 1)
Positive = Annotated[float, positive]
Whole = Annotated[int, whole]
not_negative = numbers("a number of 0 or more", lambda number: number >= 0)
NotNegative = Annotated[float, not_negative]
Size = Annotated[int, numbers("a whole number, 0 or more,", lambda number: number >= 0 and number % 1 == 0, int)]


def line(value: Any) -> str:
    """A line of text."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise BadRecord(f"must be a line of text, not {shown(value)}")
    return value


Line = Annotated[str, line]
