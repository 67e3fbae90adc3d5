"""Columns of numbers under one unit, so that a reader can compare down the column. Used as ``columns as col``.

The unit is the one in which the largest number has one to four digits before the point; a number too small for it is
``<0.01``, never a false zero. Most tables are :func:`listing` of rows: headings, attributes and kinds as one text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import Any

from memwall.analysis.quantities import QUANTITIES, Quantity, columns_of, quantity_of
from memwall.core.units import PREFIXES, counted
from memwall.record.kernels import NO_MODULE, shown_name
from memwall.report.document import Column, Table, clean

_PREFIXES = (*PREFIXES, (1.0, ""))
SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))

CellColumn = tuple[Column, list[str]]
Numbers = Sequence[float | None]
NOTHING = "-"
#: heads the second of two columns: a figure before and after
AFTER = "→"


def table(title: str, columns: Sequence[CellColumn], note: str = "", *, left: int = 0) -> Table:
    """A table from its columns; ``left`` more rows, which are not shown, are counted before the note."""
    more = f"and {rows_left(left)}" if left > 0 else ""
    cells = [cells for _, cells in columns]
    text = "; ".join(part for part in (more, note) if part)
    return Table(title, tuple(column for column, _ in columns), tuple(zip(*cells, strict=True)), text)


def rows_left(count: int) -> str:
    return counted(count, "more row")


def text(heading: str, cells: Iterable[object], *, wraps: bool = False) -> CellColumn:
    return Column(heading, numeric=False, wraps=wraps), [clean(c) for c in cells]


def names(heading: str, cells: Iterable[object], *, tail: bool = False) -> CellColumn:
    """Names, which lose their end where the page is narrow; with ``tail`` their start, as paths of modules do."""
    return Column(heading, numeric=False, flexible=True, tail=tail), [clean(c) for c in cells]


def phrases(heading: str, cells: Iterable[object]) -> CellColumn:
    """Names of a few words, which go on in the line below where the page is narrow."""
    return Column(heading, numeric=False, flexible=True, wraps=True), [clean(c) for c in cells]


def repeats(counts: Iterable[int]) -> CellColumn:
    """``x12`` if a row represents several."""
    return text("", (f"x{count}" if count > 1 else "" for count in counts))


def optional(column: CellColumn) -> CellColumn:
    """The same column, to be left out where the page is narrow."""
    return replace(column[0], optional=True), column[1]


def known(columns: Iterable[CellColumn]) -> list[CellColumn]:
    return [column for column in columns if set(column[1]) != {NOTHING}]


def number(value: float, digits: int) -> str:
    """Fixed digits and thousands separators; ``<0.01`` for what would round to zero."""
    if value and abs(value) < 0.5 * 10**-digits:
        return f"<{10**-digits:.{digits}f}"
    return f"{value:,.{digits}f}"


def times(ratio: float) -> str:
    """``46.7x``, three digits or so."""
    return f"{ratio:,.{0 if ratio >= 100 else 1 if ratio >= 10 else 2}f}x"


def fixed(heading: str, unit: str, values: Numbers, scale: float, digits: int) -> CellColumn:
    """Numbers in a given unit of ``scale``, with fixed digits."""
    return Column(heading, unit), [NOTHING if v is None else number(v / scale, digits) for v in values]


def si(heading: str, unit: str, values: Numbers, *, like: Numbers = (), signed: bool = False) -> CellColumn:
    """``bytes, MB``: a quantity with a decimal prefix, as in the column ``like`` where given; a ``signed`` one is a
    difference."""
    scale, prefix = _scale(like or values, _PREFIXES)
    exact = scale == 1.0 and all(v is None or float(v).is_integer() for v in like or values)
    return _scaled(heading, prefix + unit, values, scale, 0 if exact else _digits(like or values, scale), signed)


def seconds(heading: str, values: Numbers, *, like: Numbers = (), signed: bool = False) -> CellColumn:
    """A time in s, ms or us, in the unit of the column ``like`` where given; a ``signed`` one is a difference."""
    scale, unit = _scale(like or values, SECONDS)
    return _scaled(heading, unit, values, scale, _digits(like or values, scale), signed)


def readable(values: Sequence[float]) -> list[float]:
    """The times that set the unit of a column of steps: all, or the least alone where they spread so far that it would
    lose its digits."""
    least = min((v for v in values if v), default=0.0)
    return [least] if max(values, default=0.0) > 50 * least else list(values)


def interval(intervals: Sequence[tuple[float, float]], like: Numbers) -> CellColumn:
    """``80 % range, ms``: from and to, in the unit of the times ``like``; a record of an older memwall has none."""
    column, starts = seconds("80 % range", [low for low, _ in intervals], like=like)
    _, ends = seconds("80 % range", [high for _, high in intervals], like=like)
    cells = zip(intervals, starts, ends, strict=True)
    return column, [NOTHING if low == high else f"{start}-{end}" for (low, high), start, end in cells]


def percent(heading: str, values: Numbers, digits: int = 1) -> CellColumn:
    return fixed(heading, "%", values, 0.01, digits)


def walls(rows: Sequence[Mapping[str, float]]) -> list[CellColumn]:
    """A column per wall."""
    names = dict.fromkeys(wall for row in rows for wall in row)
    return [percent(wall, [row.get(wall, 0.0) for row in rows]) for wall in names]


def error(heading: str, values: Numbers) -> CellColumn:
    """A signed fraction in percent: ``+3.1``, ``-12.0``."""
    return Column(heading, "%"), [NOTHING if v is None else f"{100 * v:+,.1f}" for v in values]


def plain(heading: str, values: Numbers, digits: int = 0, unit: str = "") -> CellColumn:
    return fixed(heading, unit, values, 1.0, digits)


def ratio(heading: str, values: Numbers, unit: str = "") -> CellColumn:
    return Column(heading, unit), [NOTHING if v is None else times(v) for v in values]


def rate(heading: str, values: Numbers) -> CellColumn:
    """``samples, /s``: never in thousands, so that a page has one unit of them, with three digits of the least."""
    least = min((v for v in values if v), default=1.0)
    return fixed(heading, "/s", values, 1.0, next((digits for digits in range(3) if least >= 10 ** (2 - digits)), 3))


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


def _digits(values: Numbers, scale: float) -> int:
    largest = max((abs(v) for v in values if v), default=0.0) / scale
    return 1 if largest >= 1000 else 2 if largest >= 10 else 3


def _scaled(heading: str, unit: str, values: Numbers, scale: float, digits: int, signed: bool) -> CellColumn:
    column, cells = fixed(heading, unit, values, scale, digits)
    if not signed:
        return column, cells
    return column, [f"+{cell}" if v and v > 0 else cell for v, cell in zip(values, cells, strict=True)]


def listing(title: str, rows: Sequence[Any], specs: str, note: str = "", *, left: int = 0) -> Table:
    return table(title, of(rows, specs), note, left=left)


def of(rows: Sequence[Any], specs: str) -> list[CellColumn]:
    """Columns of attributes: ``"policy, time_s, bound_s like time_s?, floor: floor_s s, saved: before_s>after_s s"``.

    Each has a heading (``n@other`` has a unit of its own), an attribute (of a tuple, its place) or two, before and
    after, and a kind: one of ``_KINDS`` or the unit of :func:`si`. An attribute without a kind has the kind of its
    quantity, if it is one (:mod:`memwall.analysis.quantities`), and without a heading also the quantity's; else its own
    name. A column takes the unit of the attribute after ``like``; one that ends in ``?`` goes where the page is narrow.
    """
    columns: list[CellColumn] = []
    for spec in specs.split(","):
        heading, named, rest = spec.strip().rstrip("?").rpartition(":")
        rest, _, like = rest.strip().partition(" like ")
        attribute, _, kind = rest.partition(" ")
        values = [_getter(name)(row) for name in attribute.split(">") for row in rows]
        shown = None if kind else quantity_of(re.split(r"[.>]", attribute)[-1])
        if shown is not None:
            kind = "%" if shown.unit == "fraction" else shown.unit
        heading, _, unit = heading.partition("@") if named else ((shown and shown.heading) or attribute, "", "")
        column, cells = _column(heading, kind, values, list(map(_getter(like), rows)) if like else ())
        made = [(replace(column, unit=unit or column.unit), cells[: len(rows)])]
        if ">" in attribute:
            made.append((Column(AFTER, column.unit), cells[len(rows) :]))
        columns += map(optional, made) if spec.endswith("?") else made
    return columns


def _getter(name: str) -> Callable[[Any], Any]:
    return itemgetter(int(name)) if name.isdigit() else attrgetter(name)


def quantities(table: str, rows: Sequence[Any], digits: Mapping[str, int] | None = None) -> list[CellColumn]:
    """The columns that a table has by :mod:`memwall.analysis.quantities`; ``digits`` of percentages, by quantity."""
    columns = []
    for shown in columns_of(table):
        values = [None if shown.needs_formula and not row.modeled else shown.of(row) for row in rows]
        like = [QUANTITIES[shown.like].of(row) for row in rows] if shown.like else ()
        kind = shown.unit
        if shown.unit == "fraction":
            kind = f"%{(digits or {}).get(shown.name, 1)}"
        column, cells = _column(shown.heading, kind, values, like)
        made = replace(column, unit=shown.unit_text or column.unit), cells
        columns.append(optional(made) if shown.appears(table).endswith("?") else made)
    return columns


def answer(names: str, values: Callable[[str], Sequence[Any]]) -> list[CellColumn]:
    """The columns of quantities in the order of their ``names``, without quantities that no row knows; what ends in
    ``?`` goes where the page is narrow. ``values`` has a name's value of each row; a time that is ``like`` another one
    takes its unit."""
    columns = []
    for name in names.split():
        shown = QUANTITIES[name.rstrip("?")]
        if shown.unit == "interval":
            ends = (shown.name.replace("interval", end) for end in ("low", "high"))
            cells: list[Any] = list(zip(*map(values, ends), strict=True))
        else:
            cells = [_known(value) for value in values(shown.name)]
        like = [_known(v) for v in values(shown.like or shown.name)] if shown.unit in _TIMES else []
        made = _answered(shown, cells, readable([v for v in like if v is not None]))
        columns.append(optional(made) if name.endswith("?") else made)
    return known(columns)


#: units whose columns take the unit of another one
_TIMES = ("s", "interval")


def _known(value: Any) -> Any:
    """None for what is not known."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _answered(shown: Quantity, cells: list[Any], like: Sequence[float]) -> CellColumn:
    heading, unit = shown.heading or shown.name, shown.unit_text or shown.unit
    if shown.unit == "per s":
        return fixed(heading, unit, cells, 1.0, 1) if shown.unit_text else rate(heading, cells)
    if shown.unit == "USD":
        return plain(heading, cells, _money_digits(cells), unit)
    if shown.unit in ("J", "g"):
        return si(heading, unit, cells)
    if shown.unit == "W":
        return fixed(heading, unit, cells, 1.0, 0)
    kinds = {"fraction": "%", "count": f"count{shown.digits}", "flag": "fits"}
    return _column(heading, kinds.get(shown.unit, shown.unit), cells, like)


def _money_digits(values: Numbers) -> int:
    """Enough digits for two significant ones of the smallest."""
    least = min((v for v in values if v), default=1.0)
    return next((digits for digits in range(2, 12) if least * 10**digits >= 10), 12)


def _column(heading: str, kind: str, values: list[Any], like: Sequence[Any]) -> CellColumn:
    """A column of values of a kind, of which digits at the end say how many stand behind the point."""
    name = kind.rstrip("0123456789")
    if name in _KINDS:
        return _KINDS[name](heading, values, like, *map(int, kind[len(name) :]))
    return si(heading, kind, values, like=like)


#: kind -> what makes its column of heading, values, values of the same unit, and digits
_KINDS: dict[str, Callable[..., CellColumn]] = {
    "": lambda heading, values, like: text(heading, values),
    "word": lambda heading, values, like: text(heading, values),
    "name": lambda heading, values, like: names(heading, values),
    "op": lambda heading, values, like: names(heading, map(shown_name, values)),
    "phrase": lambda heading, values, like: phrases(heading, values),
    "right": lambda heading, values, like: (Column(heading), values),
    "prose": lambda heading, values, like: text(heading, values, wraps=True),
    "module": lambda heading, values, like: names(heading, (v or NO_MODULE for v in values), tail=True),
    "repeats": lambda heading, values, like: repeats(values),
    "fits": lambda heading, values, like: text(heading, ["yes" if value else "NO" for value in values]),
    "count": lambda heading, values, like, digits=0: plain(heading, values, digits),
    "%": lambda heading, values, like, digits=1: percent(heading, values, digits),
    "error": lambda heading, values, like: error(heading, values),
    "ratio": lambda heading, values, like: ratio(heading, values),
    "/s": lambda heading, values, like: rate(heading, values),
    "FLOP/B": lambda heading, values, like: fixed(heading, "FLOP/B", values, 1.0, 1),
    "TFLOP/s": lambda heading, values, like, digits: fixed(heading, "TFLOP/s", values, 1e12, digits),
    "GB/s": lambda heading, values, like, digits: fixed(heading, "GB/s", values, 1e9, digits),
    "GB": lambda heading, values, like, digits: fixed(heading, "GB", values, 1e9, digits),
    "MB": lambda heading, values, like, digits: fixed(heading, "MB", values, 1e6, digits),
    "s": lambda heading, values, like: seconds(heading, values, like=like),
    "+s": lambda heading, values, like: seconds(heading, values, like=like, signed=True),
    "interval": lambda heading, values, like: interval(values, like),
}
