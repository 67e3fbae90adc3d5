"""Files → what is to be reported: rows, what was left out, and the same rows on shapes and boards not fitted to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from memwall.analysis.accuracy.predict import model_rows
from memwall.analysis.accuracy.reading import read_measured
from memwall.analysis.accuracy.scores import Row
from memwall.analysis.accuracy.split import halves, left_out


@dataclass(frozen=True)
class Split:
    """The rows of shapes that constants may be fitted to, those of other shapes, and all of them on boards whose own
    constants were taken away."""

    fit: list[Row]
    held_out: list[Row]
    left_out: list[Row]


@dataclass(frozen=True)
class Scored:
    """Rows with their predictions. ``skipped``: reason -> rows that could not be scored; ``split`` where asked for."""

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
