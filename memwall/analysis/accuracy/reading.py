"""Files of measured times → samples and modeled rows: a saved profile by its suffix, a table by its columns.

Lines that begin with ``#`` before the header are comments. A row that cannot be scored is counted by its reason.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from memwall.analysis.accuracy.predict import model_rows
from memwall.analysis.accuracy.samples import Sample, halves, left_out
from memwall.analysis.accuracy.scores import Row
from memwall.analysis.accuracy.tables import TABLES, Skip, Table
from memwall.analysis.accuracy.tables.own import OWN
from memwall.analysis.validation import rows
from memwall.core.errors import UsageError
from memwall.record.profile import Profile


@dataclass
class Measured:
    """What a file holds: samples to be modeled, rows that are already modeled, and what was left out."""

    samples: list[Sample] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    #: reason -> rows
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, item: Sample | Row) -> None:
        """Add a sample or a row."""
        if isinstance(item, Row):
            self.rows.append(item)
        else:
            self.samples.append(item)


def read_measured(path: str | Path) -> Measured:
    """All of a saved profile with measurements (.json), or of a table (.csv).

    Raises:
        UsageError: the file cannot be read, holds nothing to score, or is of no known kind; names the place.
    """
    source = Path(path)
    read = _READERS.get(source.suffix.lower())
    if read is None:
        raise UsageError(f"cannot score {source}: want a saved profile (.json) or a table (.csv)")
    found = read(source)
    if not found.samples and not found.rows:
        reason = f": {found.skipped.most_common(1)[0][0]}" if found.skipped else ""
        raise UsageError(f"{source} holds no measured kernel that was timed{reason}")
    return found


def _profile(source: Path) -> Measured:
    profile = Profile.load(source)
    if not profile.measurements:
        raise UsageError(f"{source} has no measurements; memwall measure makes them")
    return _collect(source, OWN, ((0, record) for record in rows(profile)))


def _table(source: Path) -> Measured:
    records = _records(source)
    first = next(records, None)
    if first is None:
        return Measured()
    kind = _recognise(source, first[1])
    return _collect(source, kind, chain([first], records))


def _collect(source: Path, kind: Table, records: Iterable[tuple[int, Mapping[str, Any]]]) -> Measured:
    found = Measured()
    for line, record in records:
        try:
            for item in kind.read(record):
                found.add(item)
        except Skip as reason:
            found.skipped[str(reason)] += 1
        except ValueError as error:
            raise UsageError(f"{source}:{line}: {error}") from None
    return found


def _recognise(source: Path, record: Mapping[str, str]) -> Table:
    for kind in TABLES:
        if kind.columns <= record.keys():
            return kind
    nearest = min(TABLES, key=lambda kind: len(kind.columns - record.keys()) / len(kind.columns))
    missing = ", ".join(sorted(nearest.columns - record.keys()))
    raise UsageError(f"{source} is no table that can be scored: {nearest.name} also have {missing}")


def _records(source: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The rows of a CSV file with the number of their line.

    Raises:
        UsageError: it cannot be read, or a row has more or fewer cells than the header.
    """
    try:
        with source.open(encoding="utf-8-sig", newline="") as file:
            comments, at = 0, file.tell()
            while (line := file.readline()).startswith("#"):
                comments, at = comments + 1, file.tell()
            if not line:
                raise UsageError(f"{source} is empty")
            file.seek(at)
            reader = csv.reader(file, strict=True)
            header = next(reader, None)
            if not header:
                raise UsageError(f"{source} is empty")
            for cells in reader:
                if not cells:
                    continue
                number = comments + reader.line_num
                if len(cells) != len(header):
                    raise UsageError(f"{source}:{number}: {len(cells)} cells where the header has {len(header)}")
                yield number, dict(zip(header, cells, strict=True))
    except FileNotFoundError:
        raise UsageError(f"no such file: {source}") from None
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 text (byte {error.start})") from None
    except csv.Error as error:
        raise UsageError(f"{source} is not CSV: {error}") from None


_READERS: Mapping[str, Callable[[Path], Measured]] = {".json": _profile, ".csv": _table}


# -- what is to be reported --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """The rows of shapes that constants may be fitted to, those of held-out shapes, and all rows on held-out GPUs
    (their own constants removed)."""

    fit: list[Row]
    held_out: list[Row]
    left_out: list[Row]


@dataclass(frozen=True)
class Scored:
    """Rows with their predictions. ``skipped``: reason -> rows that could not be scored; ``split`` if asked for."""

    rows: list[Row]
    skipped: Mapping[str, int] = field(default_factory=dict)
    split: Split | None = None


def score_files(paths: Iterable[str | Path], *, split: bool = False) -> Scored:
    """All rows of some files.

    Raises:
        UsageError: as :func:`memwall.analysis.accuracy.read_measured`.
    """
    found = [read_measured(path) for path in paths]
    samples = [sample for measured in found for sample in measured.samples]
    skipped: Counter[str] = sum((measured.skipped for measured in found), Counter())
    rows = [row for measured in found for row in measured.rows] + model_rows(samples)
    if not split:
        return Scored(rows, skipped)
    to_fit, to_score = halves(samples)
    parts = Split(model_rows(to_fit), model_rows(to_score), model_rows(left_out(samples)))
    return Scored(rows, skipped, parts)
