"""A user's own rows → his own GPU file: the board's, with constants fitted to what he measured."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from memwall.analysis.accuracy.boards import fit_board, tables_of
from memwall.analysis.accuracy.fit import Fit
from memwall.analysis.accuracy.reading import read_measured
from memwall.analysis.accuracy.samples import Sample
from memwall.analysis.accuracy.spec_text import renamed, with_tables
from memwall.analysis.accuracy.tables.own import profile_samples
from memwall.core.errors import UsageError
from memwall.hardware.gpu import shown
from memwall.hardware.lookup import gpu_names, spec_path
from memwall.record.profile import Profile


class Refit(NamedTuple):
    """What was found, and the file that says it."""

    fits: list[Fit]
    text: str


def refit(path: str | Path) -> Refit:
    """Fit to the rows of one board: a table that is known, or a saved profile with eager measurements.

    Raises:
        UsageError: the file cannot be read, its rows are of several boards, or too few for any fit.
        MissingError: scipy is not installed.
    """
    samples = _samples(Path(path))
    boards = sorted({sample.gpu.name for sample in samples})
    if len(boards) > 1:
        raise UsageError(f"{path} has rows of several GPUs: {', '.join(boards)}; keep those of one")
    if boards[0] not in gpu_names():
        raise UsageError(f"{path} has rows of the GPU {shown(boards[0])}, of which memwall has no file to go by")
    fits = fit_board(samples)
    if not fits:
        raise UsageError(f"{path} has too few rows to fit anything: {len(samples)}")
    text = spec_path(boards[0]).read_text(encoding="utf-8")
    return Refit(fits, with_tables(renamed(text, f"{boards[0]}-fitted"), tables_of(fits, Path(path).name)))


def _samples(path: Path) -> list[Sample]:
    if path.suffix.lower() == ".json":
        samples = profile_samples(Profile.load(path))
    else:
        samples = read_measured(path).samples
    if not samples:
        raise UsageError(
            f"{path} has no rows that say what ran: give the saved profile of memwall measure (.json),"
            " or a table of shapes"
        )
    return samples
