"""Rows of modeled and measured times → how good the model is, per data set, GPU, op class and dtype.

An absolute percentage error (APE) is ``|modeled - measured| / measured``; the bias is the mean of the same with its
sign, above 0 where the model is too slow. Each distinct kernel counts once, however often a step repeats it.

Files are told apart by what they hold: a saved profile by its suffix, a table by its columns (:data:`RECOGNISERS`).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from memwall.closing import COLUMNS, rows
from memwall.errors import UsageError
from memwall.profile import Profile

#: an error of at most this counts as close
CLOSE = 0.2
#: no kernel is measured in less, none modeled to take more
SHORTEST_S, LONGEST_S = 1e-12, 1e12


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel. Seconds of one launch; ``bound_s`` is None where the data have none."""

    dataset: str
    gpu: str
    op_class: str
    dtype: str
    modeled_s: float
    measured_s: float
    bound_s: float | None = None

    @property
    def error(self) -> float:
        """Modeled over measured, less 1."""
        return self.modeled_s / self.measured_s - 1


@dataclass(frozen=True, slots=True)
class Cell:
    """The score of some rows. Fractions, not percent; ``spearman`` is None where ranks say nothing."""

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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


# -- scoring -----------------------------------------------------------------------------------------------------------


def score(rows: Iterable[Row]) -> tuple[Cell, ...]:
    """One cell for each data set, GPU, op class and dtype, in alphabetical order."""
    return _cells(rows, lambda row: (row.dataset, row.gpu, row.op_class, row.dtype))


#: What stands for all classes, or all dtypes, of a data set on a GPU.
ALL = "all"


def score_all(rows: Iterable[Row]) -> tuple[Cell, ...]:
    """One cell for each data set and GPU, over all op classes and dtypes."""
    return _cells(rows, lambda row: (row.dataset, row.gpu, ALL, ALL))


def _cells(rows: Iterable[Row], key: Callable[[Row], tuple[str, str, str, str]]) -> tuple[Cell, ...]:
    found: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return tuple(_cell(*names, found[names]) for names in sorted(found))


def _cell(dataset: str, gpu: str, op_class: str, dtype: str, rows: Sequence[Row]) -> Cell:
    errors = [row.error for row in rows]
    sizes = [abs(error) for error in errors]
    return Cell(
        dataset, gpu, op_class, dtype, len(rows), fmean(sizes), median(sizes), fmean(errors), percentile(sizes, 0.9),
        spearman([row.modeled_s for row in rows], [row.measured_s for row in rows]),
        sum(size <= CLOSE for size in sizes) / len(sizes),
        sum(row.bound_s is not None and row.measured_s < row.bound_s for row in rows),
    )  # fmt: skip


def percentile(values: Sequence[float], fraction: float) -> float:
    """The value below which a fraction lies, on the line between the two nearest ranks."""
    ordered = sorted(values)
    at = fraction * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation, equal values sharing their mean rank; None where one side is all equal."""
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


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recogniser:
    """A kind of table: the columns that tell it, and how a row of it is read. ``read`` gives None for a row that holds
    no time, and raises ValueError, which says what is wrong."""

    name: str
    columns: frozenset[str]
    read: Callable[[Mapping[str, Any]], Row | None]


def _own_row(record: Mapping[str, Any]) -> Row | None:
    """A row of ``memwall.closing.COLUMNS``: what ``memwall measure -o rows.csv`` writes."""
    if record["status"] != "ok":
        return None
    return Row(
        f"memwall {record['executor']}", record["gpu"], record["class"], record["dtype"], _seconds(record, "modeled_s"),
        _seconds(record, "measured_s", least=SHORTEST_S), _seconds(record, "bound_s"),
    )  # fmt: skip


def _seconds(record: Mapping[str, Any], name: str, *, least: float = 0.0) -> float:
    value = record[name]
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a number") from None
    if not least <= number <= LONGEST_S:
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a time")
    return number


_OWN = Recogniser(
    "measured kernels as memwall writes them",
    frozenset(("gpu", "executor", "class", "dtype", "modeled_s", "measured_s", "bound_s", "status")),
    _own_row,
)
assert _OWN.columns <= set(COLUMNS)

#: Kinds of tables, the first that fits is taken.
RECOGNISERS: tuple[Recogniser, ...] = (_OWN,)


def read_rows(path: str | Path) -> list[Row]:
    """The rows of a saved profile with measurements (.json), or of a table (.csv).

    Raises:
        UsageError: the file cannot be read, holds no measurements, or is of no kind that is known; names the place.
    """
    source = Path(path)
    read = _READERS.get(source.suffix.lower())
    if read is None:
        raise UsageError(f"cannot score {source}: want a saved profile (.json) or a table (.csv)")
    found = read(source)
    if not found:
        raise UsageError(f"{source} holds no measured kernel that was timed")
    return found


def _profile_rows(source: Path) -> list[Row]:
    profile = Profile.load(source)
    if not profile.measurements:
        raise UsageError(f"{source} has no measurements; memwall measure makes them")
    return [row for record in rows(profile) if (row := _own_row(record)) is not None]


def _table_rows(source: Path) -> list[Row]:
    found = []
    kind: Recogniser | None = None
    for line, record in _records(source):
        kind = kind or _recognise(source, record)
        try:
            row = kind.read(record)
        except ValueError as error:
            raise UsageError(f"{source}:{line}: {error}") from None
        if row is not None:
            found.append(row)
    return found


def _recognise(source: Path, record: Mapping[str, Any]) -> Recogniser:
    for kind in RECOGNISERS:
        if kind.columns <= record.keys():
            return kind
    nearest = min(RECOGNISERS, key=lambda kind: len(kind.columns - record.keys()))
    missing = ", ".join(sorted(nearest.columns - record.keys()))
    raise UsageError(f"{source} is no table that can be scored: {nearest.name} also have {missing}")


def _records(source: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file with the number of their line.

    Raises:
        UsageError: it cannot be read, or a row has more or fewer cells than the header.
    """
    try:
        with source.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, None)
            if not header:
                raise UsageError(f"{source} is empty")
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise UsageError(
                        f"{source}:{reader.line_num}: {len(cells)} cells where the header has {len(header)}"
                    )
                yield reader.line_num, dict(zip(header, cells, strict=True))
    except FileNotFoundError:
        raise UsageError(f"no such file: {source}") from None
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 text (byte {error.start})") from None
    except csv.Error as error:
        raise UsageError(f"{source} is not CSV: {error}") from None


_READERS: Mapping[str, Callable[[Path], list[Row]]] = {".json": _profile_rows, ".csv": _table_rows}
