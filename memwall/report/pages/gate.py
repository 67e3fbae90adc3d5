"""The gate's result for a terminal: the verdict, then workload by workload what fails and why, what passes last."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import memwall.report.columns as col
from memwall.analysis.diff import Cause
from memwall.gate.result import Check, GateResult
from memwall.report.document import Block, Column, Document, Facts, Section, Sentence, Table
from memwall.report.gate.comment import gate_comment, gate_summary
from memwall.report.gate.forges import CONFIG, gate_code_quality, gate_commands, gate_junit, gate_sarif
from memwall.report.gate.wording import (
    NAME,
    TOP,
    baseline_notes,
    by_causes,
    by_workload,
    cause_label,
    cause_text,
    compared_with,
    counts,
    explained,
    figures,
    name,
    problem_sentence,
    raised,
    rest_line,
    subject,
)
from memwall.report.kinds import Report

#: A workload with at most so many checks that pass shows them, one a line; with more they are counted.
SHOWN = 12

_WORD = {"pass": "pass", "fail": "FAIL", "inconclusive": "inconclusive"}

#: What a runner of GitHub takes for a command: ``::`` at the start of a line, ``##[`` anywhere.
_COMMAND = re.compile(r"(?m)(^(?:\s|\x1b\[[\d;]*m)*:)(?=:)|(##)(?=\[)")


@dataclass(frozen=True, slots=True)
class GateReport(Report):
    """A gate's result for people, for forges and for test dashboards; the same result always gives the same text.

    ``top`` causes are shown under each check. ``folder`` is where the gate ran, as seen from the root of the repository
    (empty: at its root), and ``config`` the file with the limits, seen from that folder: the place of a finding that
    has no other.
    """

    noun = "a gate"
    kinds = ("text", "md", "summary", "github", "junit", "gitlab", "sarif", "json")
    own = MappingProxyType({
        "md": lambda r: gate_comment(r.result, r.top),
        "summary": lambda r: gate_summary(r.result, r.top),
        "github": lambda r: gate_commands(r.result, r.top, r.folder),
        "junit": lambda r: gate_junit(r.result, r.top),
        "gitlab": lambda r: gate_code_quality(r.result, r.folder, r.config),
        "sarif": lambda r: gate_sarif(r.result, r.top, r.folder, r.config),
    })  # fmt: skip

    result: GateResult
    top: int = TOP
    folder: str = ""
    config: str = CONFIG

    def document(self, kind: str) -> Document:
        """The verdict, then workload by workload what fails and why, what passes last."""
        return gate_document(self.result, self.top)

    def text(self, *, width: int | None, color: bool) -> str:
        """The page for a terminal; no name in it can act as a command of a CI's log."""
        return _COMMAND.sub(lambda m: f"{m[0]} ", Report.text(self, width=width, color=color))

    def record(self) -> str:
        """``memwall.gate/1``."""
        return self.result.to_json()


def gate_document(result: GateResult, top: int) -> Document:
    """The page for a terminal."""
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
    return Document(f"{NAME}: {result.verdict.upper()}", tuple(sections))


def _workload_section(heading: str, checks: Sequence[Check], top: int) -> Section:
    bad = raised(checks)
    good = [check for check in checks if check.verdict == "pass"]
    shown = [*bad, *(good if len(good) <= SHOWN else [])]
    blocks: list[Block] = [checks_table(shown)] if shown else []
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
        col.text("", [_WORD[check.verdict] for check in checks]),
        col.names("check", [subject(check) for check in checks]),
        col.names("GPU", [name(check.gpu) for check in checks]),
        col.names("policy", [name(check.policy) for check in checks]),
        _numbers("baseline", [row.baseline for row in numbers]),
        _numbers("value", [row.value for row in numbers]),
        _numbers("change", [row.change for row in numbers]),
        _numbers("limit", [name(check.limit, 24) for check in checks]),
    ]
    return col.table("", [column for column in columns if any(column[1])])


def causes_block(causes: Sequence[Cause], top: int = TOP) -> Facts:
    """A fact per cause; what is not shown is summed in the last."""
    rows = [(cause_label(cause), cause_text(cause)) for cause in causes[:top]]
    return Facts((*rows, ("", rest_line(causes[top:]))) if len(causes) > top else tuple(rows))


def _numbers(heading: str, cells: Sequence[str]) -> tuple[Column, list[str]]:
    """Finished numbers, aligned to the right."""
    return Column(heading), list(cells)
