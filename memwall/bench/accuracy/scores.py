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

from memwall.analysis.table import group_by
from memwall.analysis.validation import TimedRow

#: an error of at most this counts as close
CLOSE = 0.2
#: the floor is more than this of a time that is overhead
_FLOOR_SHARE = 0.5
#: the shortest row of a class is at its floor if it takes up to this many times the shortest of all classes: a call of
#: several kernels takes up to seven
_FLOOR_FACTOR = 8.0
#: The label for all classes, or all dtypes, of a data set on a GPU.
ALL = "all"

#: data set, GPU, op class, dtype, op
Place = tuple[str, str, str, str, str]


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
        return asdict(self)


def score(rows: Iterable[TimedRow]) -> tuple[Cell, ...]:
    """One cell for each data set, GPU, op class and dtype, in alphabetical order."""
    return _cells(list(rows), lambda row: (row.dataset, row.gpu, row.op_class, row.dtype))


def score_all(rows: Iterable[TimedRow]) -> tuple[Cell, ...]:
    """One cell for each data set and GPU, over all op classes and dtypes."""
    return _cells(list(rows), lambda row: (row.dataset, row.gpu, ALL, ALL))


def _cells(rows: Sequence[TimedRow], key: Callable[[TimedRow], tuple[str, str, str, str]]) -> tuple[Cell, ...]:
    floors, found = floors_s(rows), group_by(rows, map(key, rows))
    return tuple(cell(names, found[names], floors) for names in sorted(found))


def cell(names: tuple[str, str, str, str], rows: Sequence[TimedRow], floors: Mapping[Place, float]) -> Cell:
    """The score of some rows under their names; ``floors`` as from :func:`floors_s` for their whole data sets."""
    errors = [row.error for row in rows]
    sizes = [abs(error) for error in errors]
    held = [
        row.low_s <= row.measured_s <= row.high_s for row in rows if row.low_s is not None and row.high_s is not None
    ]
    known = ((row.limited_by, regime(row, floors)) for row in rows if row.limited_by and row.datasheet_limit)
    return Cell(
        *names,
        len(rows),
        fmean(sizes),
        median(sizes),
        fmean(errors),
        percentile(sizes, 0.9),
        spearman([row.modeled_s for row in rows], [row.measured_s for row in rows]),
        sum(size <= CLOSE for size in sizes) / len(sizes),
        sum(row.is_violation for row in rows),
        kappa([(modeled, measured) for modeled, measured in known if measured is not None]),
        _mean(held),
        _mean([abs(row.r0_s / row.measured_s - 1) for row in rows if row.r0_s is not None]),
        _mean([abs(row.r1_s / row.measured_s - 1) for row in rows if row.r1_s is not None]),
        " / ".join(sorted({row.calibrated for row in rows if row.calibrated}, reverse=True)),
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def floors_s(rows: Sequence[TimedRow]) -> dict[Place, float]:
    """The shortest measured time of each data set, GPU, op class, dtype and op, or of the data set and GPU."""
    times_s = [row.measured_s for row in rows]
    of_class = group_by(times_s, map(_place, rows))
    of_all = {at: min(own) for at, own in group_by(times_s, [(row.dataset, row.gpu) for row in rows]).items()}
    return {
        place: min(own) if min(own) <= _FLOOR_FACTOR * of_all[place[:2]] else of_all[place[:2]]
        for place, own in of_class.items()
    }


def _place(row: TimedRow) -> Place:
    first = row.shape.partition(" ")[0]
    return row.dataset, row.gpu, row.op_class, row.dtype, first if first.isidentifier() else ""


def regime(row: TimedRow, floors: Mapping[Place, float]) -> str | None:
    """What limits a row by its measured time; None where rounding hides it."""
    floor_s, half_s = floors[_place(row)], row.resolution_s / 2
    surely = floor_s - half_s > _FLOOR_SHARE * (row.measured_s + half_s)
    maybe = floor_s + half_s > _FLOOR_SHARE * (row.measured_s - half_s)
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
    return _at_rank(sorted(values), fraction * (len(values) - 1))


def next_percentile(values: Sequence[float], fraction: float) -> float:
    """The value below which the next one lies with that chance: n values make n + 1 gaps, each as likely as another."""
    return _at_rank(sorted(values), min(max(fraction * (len(values) + 1) - 1, 0.0), len(values) - 1.0))


def _at_rank(ordered: Sequence[float], rank: float) -> float:
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation, equal values sharing their mean rank; None if one side is all equal."""
    x, y = _ranks(first), _ranks(second)
    mean = (len(x) + 1) / 2
    spread = math.sqrt(sum((v - mean) ** 2 for v in x) * sum((v - mean) ** 2 for v in y))
    return sum((a - mean) * (b - mean) for a, b in zip(x, y, strict=True)) / spread if spread else None


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values have the mean of their places."""
    places = group_by(range(1, len(values) + 1), sorted(values))
    ranks = {value: (own[0] + own[-1]) / 2 for value, own in places.items()}
    return [ranks[value] for value in values]
