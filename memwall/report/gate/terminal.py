"""The gate's result for a terminal: the verdict, then workload by workload what fails and why, what passes last."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memwall.gate.result import Cause, Check, GateResult
from memwall.report.document import Column, Document, Facts, Section, Sentence, Table, table, text_column
from memwall.report.gate.findings import by_causes, raised
from memwall.report.gate.wording import (
    NAME,
    TOP,
    baseline_notes,
    by_workload,
    cause_label,
    cause_text,
    compared_with,
    counts,
    explained,
    figures,
    name,
    problem_sentence,
    rest_line,
    subject,
)
from memwall.report.text import to_text

#: A workload with at most so many checks that pass shows them, one a line; with more they are counted.
SHOWN = 12

_WORD = {"pass": "pass", "fail": "FAIL", "inconclusive": "inconclusive"}

#: What a runner of GitHub takes for a command: ``::`` at the start of a line, ``##[`` anywhere.
_COMMAND = re.compile(r"(?m)(^(?:\s|\x1b\[[\d;]*m)*:)(?=:)|(##)(?=\[)")


def gate_text(result: GateResult, *, top: int = TOP, width: int | None = None, color: bool = False) -> str:
    """The result for people; no name in it can act as a command of a CI's log."""
    lines = [f"{counts(result)}; {compared_with(result)}", *baseline_notes(result)]
    sections = [Section("", tuple(Sentence(line) for line in lines))]
    if result.problems:
        rows = tuple(
            Sentence(f"{_WORD[row.verdict]}  {problem_sentence(row)}", strong=row.verdict == "fail")
            for row in result.problems
        )
        sections.append(Section("problems", rows))
    for workload, checks in by_workload(result).items():
        sections.append(_workload_section(name(workload) or "(unnamed)", checks, top))
    document = Document(f"{NAME}: {result.verdict.upper()}", tuple(sections))
    return _COMMAND.sub(lambda m: f"{m[0]} ", to_text(document, width=width, color=color))


def _workload_section(heading: str, checks: Sequence[Check], top: int) -> Section:
    bad = raised(checks)
    good = [check for check in checks if check.verdict == "pass"]
    shown = [*bad, *(good if len(good) <= SHOWN else [])]
    blocks: list[Table | Sentence | Facts] = [checks_table(shown)] if shown else []
    if len(good) > SHOWN:
        blocks.append(Sentence(f"{len(good):,} checks pass"))
    for group in by_causes(bad):
        causes = group[0].causes
        blocks += [Sentence(explained(check), strong=True) for check in group if check.message or causes]
        if causes:
            blocks.append(causes_block(causes, top))
    return Section(heading, tuple(blocks))


def checks_table(checks: Sequence[Check]) -> Table:
    """A line per check: the verdict, what was checked, the figures."""
    numbers = [figures(check) for check in checks]
    columns = [
        text_column("", [_WORD[check.verdict] for check in checks]),
        text_column("check", [subject(check) for check in checks], flexible=True),
        text_column("GPU", [name(check.gpu) for check in checks], flexible=True),
        text_column("policy", [name(check.policy) for check in checks], flexible=True),
        _numbers("baseline", [row.baseline for row in numbers]),
        _numbers("value", [row.value for row in numbers]),
        _numbers("change", [row.change for row in numbers]),
        _numbers("limit", [name(check.limit, 24) for check in checks]),
    ]
    return table("", [column for column in columns if any(column[1])])


def causes_block(causes: Sequence[Cause], top: int = TOP) -> Facts:
    """A fact per cause; what is not shown is summed in the last."""
    rows = [(cause_label(cause), cause_text(cause)) for cause in causes[:top]]
    return Facts((*rows, ("", rest_line(causes[top:]))) if len(causes) > top else tuple(rows))


def _numbers(heading: str, cells: Sequence[str]) -> tuple[Column, list[str]]:
    """Finished numbers, aligned to the right."""
    return Column(heading), list(cells)
