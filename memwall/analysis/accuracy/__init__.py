"""The model scored against measured times."""

from pathlib import Path

from memwall.analysis.accuracy.predict import model_rows
from memwall.analysis.accuracy.reading import Measured, read_measured, read_samples
from memwall.analysis.accuracy.samples import Sample
from memwall.analysis.accuracy.scores import (  # fmt: skip
    ALL,
    CLOSE,
    Cell,
    Row,
    cell,
    floors_s,
    kappa,
    percentile,
    score,
    score_all,
    spearman,
)
from memwall.analysis.accuracy.scoring import Scored, Split, score_files
from memwall.analysis.accuracy.tables import TABLES, Skip, Table

__all__ = [
    "ALL",
    "CLOSE",
    "TABLES",
    "Cell",
    "Measured",
    "Row",
    "Sample",
    "Scored",
    "Skip",
    "Split",
    "Table",
    "cell",
    "floors_s",
    "kappa",
    "model_rows",
    "percentile",
    "read_measured",
    "read_rows",
    "read_samples",
    "score",
    "score_all",
    "score_files",
    "spearman",
]  # fmt: skip


def read_rows(path: str | Path) -> list[Row]:
    """The rows of a file, its samples modeled.

    Raises:
        UsageError: as :func:`read_measured`.
    """
    return score_files([path]).rows
