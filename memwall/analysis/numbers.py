"""Figures shown side by side: one scale for all of like size, and enough digits to distinguish unequal ones.

A value a hair above its limit must not read as the limit itself, so digits are added until it does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from memwall.analysis.quantities import LIMITS
from memwall.core.units import PREFIXES

#: unit -> its scales with the suffix of the number, the largest first
_SCALES = {
    "B": tuple((scale, f" {prefix}B") for scale, prefix in (*PREFIXES, (1.0, ""))),
    "FLOP": tuple((scale, f" {prefix}FLOP") for scale, prefix in (*PREFIXES, (1.0, ""))),
    "s": ((1.0, " s"), (1e-3, " ms"), (1e-6, " us"), (1e-9, " ns")),
    "fraction": ((0.01, " %"),),
    "count": ((1.0, ""),),
    "per s": ((1.0, "/s"),),
    "USD": ((1.0, " USD"),),
    "J": ((1.0, " J"),),
    "W": ((1.0, " W"),),
    "g": ((1.0, " g"),),
}

#: unit -> digits after the point to begin with; 2 elsewhere
_FIRST = {"fraction": 1, "count": 1}

#: A double has no more to say.
_MOST_DIGITS = 15

#: Numbers farther apart than this get scales of their own.
_SPREAD = 1000.0

#: The text of no change.
NO_CHANGE = "0 %"

#: unit -> nearer than this, as a fraction, two numbers differ by rounding alone; whole numbers are exact
_ROUNDING = {"s": 1e-9, "fraction": 1e-9}
_NO_ROUNDING = 1e-12


def unit_of(quantity: str) -> str:
    """The base unit of a quantity; a plain number for one that this memwall does not know."""
    row = LIMITS.get(quantity)
    return row.unit if row else "count"


def apart(values: Sequence[float | None], unit: str) -> list[str]:
    """Numbers in ``unit`` as text, unequal ones unequal; empty for None. ``apart([402653000, 402650000], "B")`` is
    ``["402.653 MB", "402.650 MB"]``. Whole counts, bytes and FLOPs below a thousand are exact."""
    texts: dict[float, str] = {}
    rest = sorted({v for v in values if v is not None}, key=abs)
    while rest:
        largest = abs(rest[-1])
        alike = [v for v in rest if abs(v) * _SPREAD >= largest]
        texts.update(_alike(alike, unit))
        rest = [v for v in rest if v not in texts]
    return ["" if v is None else texts[v] for v in values]


def _alike(values: Sequence[float], unit: str) -> dict[float, str]:
    scales = _SCALES[unit]
    largest = max(abs(v) for v in values)
    scale, behind = next((row for row in scales if largest >= row[0]), scales[-1])
    texts: dict[float, str] = {}
    # what rounding alone can change does not distinguish two
    unequal = len({float(f"{v:.9e}") if unit in _ROUNDING else round(v, 3) for v in values})
    for digits in range(_FIRST.get(unit, 2), _MOST_DIGITS + 1):
        for v in values:
            exact = v == 0 or (unit != "s" and scale == 1.0 and float(v).is_integer())
            texts[v] = f"{v / scale:,.{0 if exact else digits}f}{behind}"
        if len(set(texts.values())) >= unequal:
            break
    return texts


def change_text(change: float | None, allowed: float | None = None, unit: str = "") -> str:
    """``+1.7 %``, with enough digits to distinguish it from 0 and from the allowed change; empty for None."""
    if change is None:
        return ""
    rounding = _ROUNDING.get(unit, _NO_ROUNDING)
    if math.isclose(change, 0.0, abs_tol=rounding):
        return NO_CHANGE
    others = [0.0] if allowed is None or math.isclose(change, allowed, abs_tol=rounding) else [0.0, allowed]
    percent = 100 * change
    for digits in range(1, _MOST_DIGITS):
        shown = round(percent, digits)
        if abs(shown - percent) < abs(percent) / 20 and all(shown != round(100 * o, digits) for o in others):
            break
    return f"{percent:+,.{digits}f} %"


def signed(value: float, unit: str) -> str:
    """A difference: ``+20.45 MB``."""
    return f"{'+' if value > 0 else ''}{apart([value], unit)[0]}"
