"""A calibrated engine → its page, and its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import memwall.report.columns as col
from memwall.core.units import counted, percent
from memwall.report.document import Document, Section, Sentence, Table
from memwall.report.kinds import Report
from memwall.serving.calibration.fitting import FittedEngine, FittedRun, FittedTerm

_RUN_NOTE = (
    "before, after: with the engine as it is known, and as fitted, in % of what was measured; others: with a fit to the"
    " other runs alone, which is near what an unknown load will have"
)
_FIGURES = ("TTFT", "TPOT")


@dataclass(frozen=True, slots=True)
class CalibrationReport(Report):
    """What was fitted, and to which runs; ``toml`` is the file that ``--engine`` takes."""

    noun = "a calibration"
    kinds = ("text", "md", "toml")
    own = MappingProxyType({"toml": lambda report: report.found.text})
    found: FittedEngine

    def document(self, kind: str) -> Document:
        found = self.found
        lines = [Sentence(_error_text(found, figure), strong=True) for figure in range(2)]
        lines += [Sentence(f"Left out, {source}: {why}.") for source, why in found.left_out]
        lines += [Sentence(f"{note[0].upper()}{note[1:]}.") for note in found.notes]
        title = f"{found.engine.title} {found.engine.version} as measured: {found.model} on {found.server}"
        return Document(title, (Section("", (*lines, _terms(found.terms), _runs(found.runs))),))


def _error_text(found: FittedEngine, figure: int) -> str:
    before, after, others = (found.error(when, figure) for when in ("before", "after", "others"))
    assert before is not None and after is not None
    text = f"{_FIGURES[figure]} is off by {percent(after)} in the mean, {percent(before)} before."
    return text if others is None else f"{text} A run that is left out of the fit is off by {percent(others)}."


def _terms(terms: Sequence[FittedTerm]) -> Table:
    columns = [
        col.text("number", [each.term.name for each in terms]),
        col.text("before", [f"{each.before:.4g}" for each in terms]),
        col.text("after", [f"{each.after:.4g}" for each in terms]),
        col.text("what it is", [each.term.about for each in terms], wraps=True),
        col.text("", [each.said for each in terms], wraps=True),
    ]
    return col.table("What was fitted", columns)


def _runs(runs: Sequence[FittedRun]) -> Table:
    loads = [each.run.load for each in runs]
    said = [counted(n.concurrency, "client") if n.concurrency else f"{n.rate_per_s:g} requests/s" for n in loads]
    columns = [
        col.names("run", [each.run.source for each in runs], tail=True),
        col.text("load", said),
        col.plain("in", [load.prompt.nominal for load in loads]),
        col.plain("out", [load.generate.nominal for load in loads]),
    ]
    for figure, name in enumerate(_FIGURES):
        columns.append(col.seconds(name, [each.measured[figure] for each in runs]))
        for when in ("before", "after", "others"):
            values = [getattr(each, when) for each in runs]
            errors = [v and v[figure] / each.measured[figure] - 1 for v, each in zip(values, runs, strict=True)]
            columns.append(col.error(when, errors))
    return col.table("Runs", col.known(columns), _RUN_NOTE)
