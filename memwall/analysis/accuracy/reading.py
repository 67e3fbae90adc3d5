"""Files of measured times → samples and modeled rows: a saved profile by its suffix, a table by its columns.

Lines that begin with ``#`` before the header are comments. A row that cannot be scored is counted by its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memwall.analysis.accuracy.collectives import CollectiveSample
from memwall.analysis.accuracy.deployments import Deployment, Engines, Traced, deployment_rows
from memwall.analysis.accuracy.modules import ModuleSample
from memwall.analysis.accuracy.samples import Sample, halves, left_out, model_rows
from memwall.analysis.accuracy.tables import TABLES, Kind, Skip
from memwall.analysis.accuracy.training import TrainingSample
from memwall.analysis.validation import Row, devices
from memwall.core.errors import UsageError
from memwall.core.files import read_csv
from memwall.record.profile import Profile


@dataclass
class Measured:
    """What a file holds: samples to be modeled, rows that are already modeled, and what was left out."""

    samples: list[Sample] = field(default_factory=list)
    modules: list[ModuleSample] = field(default_factory=list)
    collectives: list[CollectiveSample] = field(default_factory=list)
    steps: list[TrainingSample] = field(default_factory=list)
    deployments: list[Deployment] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    #: reason -> rows
    skipped: Counter[str] = field(default_factory=Counter)


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
    if not (found.samples or found.modules or found.collectives or found.steps or found.deployments or found.rows):
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
    into: dict[type, list[Any]] = {
        Sample: found.samples, ModuleSample: found.modules, CollectiveSample: found.collectives,
        TrainingSample: found.steps, Deployment: found.deployments, Row: found.rows,
    }  # fmt: skip
    for line, record in read_csv(source):
        kind = kind or _recognise(source, record)
        try:
            for item in kind.read(record, source):
                into[type(item)].append(item)
        except Skip as reason:
            found.skipped[str(reason)] += 1
        except ValueError as error:
            raise UsageError(f"{source}:{line}: {error}") from None


def _recognise(source: Path, record: Mapping[str, str]) -> Kind:
    for kind in TABLES:
        if kind.columns <= record.keys():
            return kind
    nearest = min(TABLES, key=lambda kind: len(kind.columns - record.keys()) / len(kind.columns))
    missing = sorted(nearest.columns - record.keys())
    named = f"the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
    raise UsageError(f"{source} is not a table of measured times: it lacks {named} of the nearest kind, {nearest.name}")


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


def score_files(
    paths: Iterable[str | Path], *, split: bool = False, deployments: int = 0,
    read_model: Callable[[str], Traced] | None = None,
) -> Scored:  # fmt: skip
    """All rows of some files, but of deployments, which are simulated, evenly spaced ones, about so many of each file
    (0: all); ``read_model`` reads their models. Raises as :func:`read_measured`."""
    found = [read_measured(path) for path in paths]
    engines = read_model and Engines(read_model)
    samples = [sample for measured in found for sample in measured.samples]
    modules = [module for measured in found for module in measured.modules]
    collectives = [each for measured in found for each in measured.collectives]
    steps = [step for measured in found for step in measured.steps]
    asked = [each for measured in found for each in thinned(measured.deployments, deployments)]
    skipped: Counter[str] = sum((measured.skipped for measured in found), Counter())
    if left := sum(len(measured.deployments) for measured in found) - len(asked):
        skipped["deployments that --rows leaves out"] = left
    rows = [row for measured in found for row in measured.rows] + _modeled(samples, modules, collectives, steps)
    rows += deployment_rows(asked, engines, skipped)
    if not split:
        return Scored(rows, skipped)
    parts = zip(
        (*halves(samples), left_out(samples)),
        (*halves(modules), left_out(modules)),
        (*halves(collectives), [each.left_out() for each in collectives]),
        (*halves(steps), [step.left_out() for step in steps]),
        (*halves(asked), [each.left_out() for each in asked]),
        strict=True,
    )
    return Scored(rows, skipped, Split(*(_modeled(*part[:4]) + deployment_rows(part[4], engines) for part in parts)))


def thinned(samples: Sequence[Deployment], most: int) -> Sequence[Deployment]:
    """Evenly spaced ones, about so many; all if 0."""
    return samples[:: max(len(samples) // most, 1)] if most else samples


def _modeled(
    samples: Iterable[Sample],
    modules: Iterable[ModuleSample],
    collectives: Iterable[CollectiveSample],
    steps: Iterable[TrainingSample],
) -> list[Row]:
    others: list[ModuleSample | CollectiveSample | TrainingSample] = [*modules, *collectives, *steps]
    return model_rows(samples) + [sample.row() for sample in others]
