"""Files of measured times → samples and modeled rows: a saved profile by its suffix, a table by its columns.

Lines that begin with ``#`` before the header are comments. A row that cannot be scored is counted by its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from memwall.analysis.validation import TimedRow, devices
from memwall.bench.accuracy.kinds import LAB, OWN, Skip, TableKind, Timed, kinds
from memwall.bench.accuracy.samples import halves
from memwall.core.errors import UsageError
from memwall.core.files import read_csv
from memwall.core.views import ShownResult
from memwall.record.profile import Profile

T = TypeVar("T")
S = TypeVar("S", bound=Timed)


@dataclass
class Measured:
    """What a file holds: samples by their class, rows that are already modeled, and what was left out."""

    samples: dict[type[Timed], list[Any]] = field(default_factory=dict)
    rows: list[TimedRow] = field(default_factory=list)
    #: reason -> rows
    skipped: Counter[str] = field(default_factory=Counter)

    def of(self, kind: type[S]) -> list[S]:
        """The samples of a class."""
        return self.samples.get(kind, [])

    def add(self, item: Timed | TimedRow) -> None:
        if isinstance(item, TimedRow):
            self.rows.append(item)
        else:
            self.samples.setdefault(type(item), []).append(item)


def read_measured(path: str | Path) -> Measured:
    """All of a saved profile with measurements (.json), or of a table (.csv). Raises UsageError: the file cannot be
    read, holds nothing to score, or is of no known kind; names the place."""
    source, found = Path(path), Measured()
    if source.suffix.lower() == ".json":
        _read_profile(source, found)
    elif source.suffix.lower() == ".csv":
        _read_table(source, found)
    else:
        raise UsageError(f"cannot score {source}: want a saved profile (.json) or a table (.csv)")
    if not (found.samples or found.rows):
        reason = f": {found.skipped.most_common(1)[0][0]}" if found.skipped else ""
        raise UsageError(f"{source} holds no measured kernel that was timed{reason}")
    return found


def _read_profile(source: Path, found: Measured) -> None:
    profile = Profile.load(source)
    if not profile.measurements:
        raise UsageError(f"{source} has no measurements; memwall measure makes them")
    pairs = [pair for device in devices(profile) for run in device.runs for pair in run.pairs]
    found.rows += [pair for pair in pairs if pair.timing]
    found.skipped.update(f"status {pair.kernel.status!r}" for pair in pairs if not pair.timing)


def _read_table(source: Path, found: Measured) -> None:
    kind = None
    for line, record in read_csv(source):
        kind = kind or _recognise(source, record)
        try:
            for item in kind.read(record, source):
                found.add(item)
        except Skip as reason:
            found.skipped[str(reason)] += 1
        except ValueError as error:
            raise UsageError(f"{source}:{line}: {error}") from None


def _recognise(source: Path, record: Mapping[str, str]) -> TableKind:
    known = kinds()
    for kind in known:
        if kind.columns <= record.keys():
            return kind
    nearest = min(known, key=lambda kind: len(kind.columns - record.keys()) / len(kind.columns))
    missing = sorted(nearest.columns - record.keys())
    named = f"the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
    others = f"; tables of other projects need {LAB} (pip install -e lab in a checkout)" if known == (OWN,) else ""
    raise UsageError(
        f"{source} is not a table of measured times: it lacks {named} of the nearest kind, {nearest.name}{others}"
    )


@dataclass(frozen=True)
class ScoreSplit:
    """The rows of shapes that constants may be fitted to, rows of held-out shapes, and all rows on held-out GPUs
    (their own constants removed)."""

    fit: list[TimedRow]
    held_out: list[TimedRow]
    left_out: list[TimedRow]


@dataclass(frozen=True, repr=False)
class Scored(ShownResult):
    """Rows with their predictions. ``skipped``: reason -> rows that could not be scored; ``split`` if asked for."""

    rows: list[TimedRow]
    skipped: Mapping[str, int] = field(default_factory=dict)
    split: ScoreSplit | None = None


def score_files(paths: Iterable[str | Path], *, split: bool = False, simulated: int = 0) -> Scored:
    """All rows of some files, but of samples that are simulated evenly spaced ones, about ``simulated`` of each file
    (0: all). Raises as :func:`read_measured`."""
    found = [read_measured(path) for path in paths]
    skipped: Counter[str] = sum((measured.skipped for measured in found), Counter())
    samples = _samples(found, simulated, skipped)
    rows = [row for measured in found for row in measured.rows] + _modeled(samples, skipped)
    if not split:
        return Scored(rows, skipped)
    parts: tuple[dict[type[Timed], list[Any]], ...] = ({}, {}, {})
    for kind, own in samples.items():
        for part, some in zip(parts, (*halves(own), [sample.left_out() for sample in own]), strict=True):
            part[kind] = some
    return Scored(rows, skipped, ScoreSplit(*(_modeled(part, Counter()) for part in parts)))


def held_out_rows(path: str | Path, *, simulated: int = 0) -> list[TimedRow]:
    """The rows of a file that no constant may be fitted to, of samples that are simulated about ``simulated`` (0: all);
    all rows of a file that has no other half. Raises as :func:`read_measured`."""
    measured = read_measured(path)
    samples = _samples([measured], simulated, Counter())
    to_score = {kind: halves(own)[1] for kind, own in samples.items()}
    return _modeled(to_score, Counter()) or [*measured.rows, *_modeled(samples, Counter())]


def _samples(found: Sequence[Measured], simulated: int, skipped: Counter[str]) -> dict[type[Timed], list[Any]]:
    """The samples of some tables by kind; what is left out of these that are simulated is counted in ``skipped``."""
    samples: dict[type[Timed], list[Any]] = {}
    for measured in found:
        for kind, all_of_kind in measured.samples.items():
            taken = thinned(all_of_kind, simulated) if kind.IS_SIMULATED else all_of_kind
            samples.setdefault(kind, []).extend(taken)
            if left := len(all_of_kind) - len(taken):
                skipped[f"{kind.__name__.lower()}s that --rows leaves out"] += left
    return samples


def thinned(samples: Sequence[T], most: int) -> Sequence[T]:
    """Evenly spaced ones, about so many; all if 0."""
    return samples[:: max(len(samples) // most, 1)] if most else samples


def _modeled(samples: Mapping[type[Timed], list[Any]], skipped: Counter[str]) -> list[TimedRow]:
    return [row for kind, own in samples.items() for row in kind.model(own, skipped)]
