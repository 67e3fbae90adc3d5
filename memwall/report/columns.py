"""Columns of numbers under one unit, so that a reader can compare down the column.

The unit is the one in which the largest number has one to four digits before the point; a number too small for it is
``<0.01``, never a false zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memwall.analysis.quantities import QUANTITIES, Quantity, columns_of
from memwall.report.document import Column, optional, text_column

_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))

CellColumn = tuple[Column, list[str]]
Numbers = Sequence[float | None]
NOTHING = "-"


def _scale(values: Numbers, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The unit for a column: a thousand times finer where the numbers spread over more than three decades."""
    sizes = sorted(abs(v) for v in values if v)
    if not sizes:
        return units[-1]
    largest, middle = sizes[-1], sizes[len(sizes) // 2]
    at = next((i for i, (scale, _) in enumerate(units) if largest >= scale), len(units) - 1)
    if middle < units[at][0] / 50 and at + 1 < len(units) and largest < units[at][0] * 10:
        at += 1
    return units[at]


def number(value: float, digits: int) -> str:
    """Fixed digits and thousands separators; ``<0.01`` for what would round to zero."""
    if value and abs(value) < 0.5 * 10**-digits:
        return f"<{10**-digits:.{digits}f}"
    return f"{value:,.{digits}f}"


def _digits(largest: float) -> int:
    return 1 if largest >= 1000 else 2 if largest >= 10 else 3


def _column(heading: str, unit: str, values: Numbers, scale: float, digits: int) -> CellColumn:
    return Column(heading, unit), [NOTHING if v is None else number(v / scale, digits) for v in values]


def si_column(heading: str, unit: str, values: Numbers, *, like: Numbers = (), signed: bool = False) -> CellColumn:
    """``bytes, MB``: a quantity with a decimal prefix, that of the column ``like`` where given; a ``signed`` one is a
    difference."""
    known = like or values
    scale, prefix = _scale(known, _PREFIXES)
    largest = max((abs(v) for v in known if v), default=0.0) / scale
    exact = scale == 1.0 and all(v is None or float(v).is_integer() for v in known)
    column, cells = _column(heading, prefix + unit, values, scale, 0 if exact else _digits(largest))
    return column, _signed(values, cells) if signed else cells


def _signed(values: Numbers, cells: list[str]) -> list[str]:
    return [f"+{cell}" if v and v > 0 else cell for v, cell in zip(values, cells, strict=True)]


def seconds_column(heading: str, values: Numbers, *, like: Numbers = (), signed: bool = False) -> CellColumn:
    """A time in s, ms or us, in the unit of the column ``like`` where given; a ``signed`` one is a difference."""
    scale, unit = _scale(like or values, _SECONDS)
    largest = max((abs(v) for v in like or values if v), default=0.0) / scale
    column, cells = _column(heading, unit, values, scale, _digits(largest))
    return column, _signed(values, cells) if signed else cells


def interval_column(intervals: Sequence[tuple[float, float]], like: Numbers) -> CellColumn:
    """``8 in 10, ms``: from and to, in the unit of the times ``like``; a record of an older memwall has none."""
    lows, highs = [low for low, _ in intervals], [high for _, high in intervals]
    column, starts = seconds_column("8 in 10", lows, like=like)
    _, ends = seconds_column("8 in 10", highs, like=like)
    cells = [
        NOTHING if low == high else f"{start}-{end}"
        for low, high, start, end in zip(lows, highs, starts, ends, strict=True)
    ]
    return column, cells


def percent_column(heading: str, values: Numbers, digits: int = 1) -> CellColumn:
    """A fraction in percent."""
    return _column(heading, "%", values, 0.01, digits)


def plain_column(heading: str, values: Numbers, digits: int = 0, unit: str = "") -> CellColumn:
    """A number as it is."""
    return _column(heading, unit, values, 1.0, digits)


def intensity_column(values: Numbers, heading: str = "intensity") -> CellColumn:
    """Arithmetic intensity."""
    return _column(heading, "FLOP/B", values, 1.0, 1)


def times_column(heading: str, values: Numbers, unit: str = "") -> CellColumn:
    """A ratio: ``46.7x``."""
    return Column(heading, unit), [NOTHING if v is None else times(v) for v in values]


def before_after_columns(
    heading: str, before: Numbers, after: Numbers, make: Callable[[str, Numbers], CellColumn]
) -> tuple[CellColumn, CellColumn]:
    """Two columns of one quantity under one unit: ``bytes, GB`` and what they became, ``→``."""
    column, cells = make(heading, [*before, *after])
    return (column, cells[: len(before)]), (Column("→", column.unit), cells[len(before) :])


def times(ratio: float) -> str:
    """``46.7x``, three digits or so."""
    return f"{ratio:,.{0 if ratio >= 100 else 1 if ratio >= 10 else 2}f}x"


# -- quantities --------------------------------------------------------------------------------------------------------


def quantity_columns(table: str, rows: Sequence[Any], digits: Mapping[str, int] | None = None) -> list[CellColumn]:
    """The columns that a table has by :mod:`memwall.analysis.quantities`; ``digits`` of percentages, by quantity."""
    columns = []
    for quantity in columns_of(table):
        column = quantity_column(quantity, rows, (digits or {}).get(quantity.name, 1))
        columns.append(optional(column) if quantity.appears(table).endswith("?") else column)
    return columns


def quantity_column(quantity: Quantity, rows: Sequence[Any], digits: int = 1) -> CellColumn:
    """One quantity of some rows under its heading, in its unit."""
    heading, unit = quantity.heading, quantity.unit
    hidden = quantity.needs_formula
    values: list[Any] = [None if hidden and not row.modeled else quantity.of(row) for row in rows]
    like = [QUANTITIES[quantity.like].of(row) for row in rows] if quantity.like else ()
    if unit == "s":
        return seconds_column(heading, values, like=like)
    if unit == "interval":
        return interval_column(values, like)
    if unit == "fraction":
        return percent_column(heading, values, digits)
    if unit == "FLOP/B":
        return intensity_column(values, heading)
    if unit == "ratio":
        return times_column(heading, values, quantity.unit_text)
    if unit == "word":
        return text_column(heading, values)
    return plain_column(heading, values) if unit == "count" else si_column(heading, unit, values)
