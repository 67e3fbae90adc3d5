"""Rows of modeled and measured times → how good the model is, per data set, GPU, op class and dtype.

An absolute percentage error (APE) is ``|modeled - measured| / measured``; the bias is the mean of the same with its
sign, above 0 where the model is too slow. Each distinct kernel counts once, however often a step repeats it.

The regime of a row is ``overhead`` if the floor is more than half of its own time, else the larger datasheet term. The
floor is the shortest time of the op on that GPU (a class may hold ops whose calls take the host 27 and 58 us); if that
is far over the shortest of all classes, the op has no row at its floor, and the floor of all classes is used. Rows have
no regime if rounding hides whether they are overhead: in whole microseconds a floor of 1 may be 0.5 to 1.5, so a time
of 3 may be overhead or not. Cohen's kappa is the agreement of the model's own labels with the regimes, corrected for
chance.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

#: an error of at most this counts as close
CLOSE = 0.2
#: the floor is more than this of a time that is overhead
FLOOR_SHARE = 0.5
#: the shortest row of a class is at its floor if it takes up to this many times the shortest of all classes: a call of
#: several kernels takes up to seven
FLOOR_FACTOR = 8.0


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel. Seconds of one launch; what the data do not state is None or empty.

    ``bound_s`` is also None if a kernel touches no more than twice the L2: it may beat the bound.
    """

    dataset: str
    gpu: str
    op_class: str
    dtype: str
    modeled_s: float
    measured_s: float
    bound_s: float | None = None
    #: identifies it within its class: the op's name first, if the class has several, then its sizes
    shape: str = ""
    #: the 80 % interval
    low_s: float | None = None
    high_s: float | None = None
    #: the largest term of the prediction; the larger of compute and bandwidth by the datasheet
    limited_by: str = ""
    datasheet_limit: str = ""
    #: the datasheet's roofline, and the same at common efficiencies with a constant overhead
    r0_s: float | None = None
    r1_s: float | None = None
    #: whether the constants are the GPU's own: yes, by architecture, datasheet only
    calibrated: str = ""
    #: seconds to which the measured time is rounded
    resolution_s: float = 0.0

    @property
    def is_violation(self) -> bool:
        """Whether it was measured faster than the bound, by more than rounding: a model error."""
        return self.bound_s is not None and self.measured_s + self.resolution_s / 2 < self.bound_s

    @property
    def error(self) -> float:
        """Modeled over measured, less 1."""
        return self.modeled_s / self.measured_s - 1


@dataclass(frozen=True, slots=True)
class Cell:
    """The score of some rows. Fractions, not percent; ``spearman`` is None if ranks are meaningless."""

    dataset: str
    gpu: str
    op_class: str
    dtype: str
    n: int
    mape: float
    median_ape: float
    bias: float
    p90: float
    spearman: float | None
    within_20: float
    violations: int
    #: agreement of regimes, share of rows inside their interval, errors of the two rooflines; None: not known
    kappa: float | None = None
    coverage: float | None = None
    r0_mape: float | None = None
    r1_mape: float | None = None
    calibrated: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


# -- scoring -----------------------------------------------------------------------------------------------------------


def score(rows: Iterable[Row]) -> tuple[Cell, ...]:
    """One cell for each data set, GPU, op class and dtype, in alphabetical order."""
    return _cells(rows, lambda row: (row.dataset, row.gpu, row.op_class, row.dtype))


#: The label for all classes, or all dtypes, of a data set on a GPU.
ALL = "all"


def score_all(rows: Iterable[Row]) -> tuple[Cell, ...]:
    """One cell for each data set and GPU, over all op classes and dtypes."""
    return _cells(rows, lambda row: (row.dataset, row.gpu, ALL, ALL))


def _cells(rows: Iterable[Row], key: Callable[[Row], tuple[str, str, str, str]]) -> tuple[Cell, ...]:
    given = list(rows)
    floors = floors_s(given)
    found: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in given:
        found.setdefault(key(row), []).append(row)
    return tuple(cell(*names, found[names], floors) for names in sorted(found))


#: data set, GPU, op class, dtype, op
Place = tuple[str, str, str, str, str]


def floors_s(rows: Iterable[Row]) -> dict[Place, float]:
    """The shortest measured time of each data set, GPU, op class, dtype and op, and of each data set and GPU."""
    of_all: dict[tuple[str, str], float] = {}
    of_class: dict[Place, float] = {}
    for row in rows:
        at, place = (row.dataset, row.gpu), _place(row)
        of_all[at] = min(of_all.get(at, row.measured_s), row.measured_s)
        of_class[place] = min(of_class.get(place, row.measured_s), row.measured_s)
    return {
        place: time_s if time_s <= FLOOR_FACTOR * of_all[place[:2]] else of_all[place[:2]]
        for place, time_s in of_class.items()
    }


def _place(row: Row) -> Place:
    first = row.shape.partition(" ")[0]
    return row.dataset, row.gpu, row.op_class, row.dtype, first if first.isidentifier() else ""


def cell(
    dataset: str, gpu: str, op_class: str, dtype: str, rows: Sequence[Row], floors: Mapping[Place, float]
) -> Cell:  # fmt: skip
    """The score of some rows; ``floors`` as from :func:`floors_s` for their whole data sets."""
    errors = [row.error for row in rows]
    sizes = [abs(error) for error in errors]
    held = [
        row.low_s <= row.measured_s <= row.high_s for row in rows if row.low_s is not None and row.high_s is not None
    ]
    known = ((row.limited_by, regime(row, floors)) for row in rows if row.limited_by and row.datasheet_limit)
    labels = [(modeled, measured) for modeled, measured in known if measured is not None]
    return Cell(
        dataset, gpu, op_class, dtype, len(rows), fmean(sizes), median(sizes), fmean(errors), percentile(sizes, 0.9),
        spearman([row.modeled_s for row in rows], [row.measured_s for row in rows]),
        sum(size <= CLOSE for size in sizes) / len(sizes),
        sum(row.is_violation for row in rows),
        kappa(labels), fmean(held) if held else None,
        _mape((row.r0_s, row.measured_s) for row in rows), _mape((row.r1_s, row.measured_s) for row in rows),
        " / ".join(sorted({row.calibrated for row in rows if row.calibrated}, reverse=True)),
    )  # fmt: skip


def _mape(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    sizes = [abs(modeled / measured - 1) for modeled, measured in pairs if modeled is not None]
    return fmean(sizes) if sizes else None


def regime(row: Row, floors: Mapping[Place, float]) -> str | None:
    """What limits a row by its measured time; None where rounding hides it."""
    floor_s, half_s = floors[_place(row)], row.resolution_s / 2
    surely = floor_s - half_s > FLOOR_SHARE * (row.measured_s + half_s)
    maybe = floor_s + half_s > FLOOR_SHARE * (row.measured_s - half_s)
    if surely != maybe:
        return None
    return "overhead" if surely else row.datasheet_limit


def kappa(labels: Sequence[tuple[str, str]]) -> float | None:
    """Cohen's kappa of pairs of labels: 1 if all agree, 0 if no more than by chance; None if both sides have only one
    label, the same."""
    if not labels:
        return None
    first, second = (Counter(pair[side] for pair in labels) for side in (0, 1))
    n = len(labels)
    agreed = sum(a == b for a, b in labels) / n
    chance = sum(first[name] * second[name] for name in first) / n**2
    return (agreed - chance) / (1 - chance) if chance < 1 else None


def percentile(values: Sequence[float], fraction: float) -> float:
    """The value below which a fraction lies, interpolated between the two nearest ranks."""
    ordered = sorted(values)
    at = fraction * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation, equal values sharing their mean rank; None if one side is all equal."""
    x, y = _ranks(first), _ranks(second)
    mean = (len(x) + 1) / 2
    spread = math.sqrt(sum((v - mean) ** 2 for v in x) * sum((v - mean) ** 2 for v in y))
    if not spread:
        return None
    return sum((a - mean) * (b - mean) for a, b in zip(x, y, strict=True)) / spread


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or values[order[end]] != values[order[start]]:
            for index in order[start:end]:
                ranks[index] = (start + 1 + end) / 2
            start = end
    return ranks
