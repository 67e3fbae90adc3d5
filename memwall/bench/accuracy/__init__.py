"""The model scored against measured times, and its constants fitted to them.

In: files of measured times (``reading``): saved profiles, memwall's own tables, and the tables of other projects where
the repository's ``memwall_lab`` is installed (``kinds``). A row of a table becomes a sample and the model's prediction
for it a row (``samples``), as rows of :mod:`memwall.analysis.validation` are. Out: scores of rows (``scores``), fitted
constants (``fit``), and the file of a GPU that states them (``refit``). Start with :func:`score_files`.
"""

from memwall.analysis.validation import TimedRow
from memwall.bench.accuracy.kinds import Skip, TableKind, Timed, kinds
from memwall.bench.accuracy.reading import Measured, Scored, ScoreSplit, held_out_rows, read_measured, score_files
from memwall.bench.accuracy.samples import Sample
from memwall.bench.accuracy.scores import ALL, CLOSE, Cell, score, score_all

__all__ = [
    "ALL",
    "CLOSE",
    "Cell",
    "Measured",
    "Sample",
    "ScoreSplit",
    "Scored",
    "Skip",
    "TableKind",
    "Timed",
    "TimedRow",
    "held_out_rows",
    "kinds",
    "read_measured",
    "score",
    "score_all",
    "score_files",
]
