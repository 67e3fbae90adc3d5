"""The gate's result as workflow commands: annotations in the files of a pull request.

GitHub shows the first 10 errors and the first 10 warnings of a step and drops the rest in silence, so the worst come
first, no more are written, and a notice at the end counts all.
"""

from __future__ import annotations

from memwall.gate.result import Check, GateResult, Problem
from memwall.report.gate.findings import findings_of, message_of
from memwall.report.gate.places import place_of
from memwall.report.gate.wording import NAME, TOP, baseline_notes, cause_lines, compared_with, counts, name, title

#: Annotations of one level that GitHub shows for one step.
SHOWN = 10

_COMMANDS = {"fail": "error", "inconclusive": "warning"}

_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})


def gate_commands(result: GateResult, *, top: int = TOP, folder: str = "") -> str:
    """A line per finding and one that counts them."""
    findings = findings_of(result)
    lines = []
    for verdict, level in _COMMANDS.items():
        lines += [_finding(level, f, top, folder) for f in findings if f.verdict == verdict][:SHOWN]
    left_out = len(findings) - len(lines)
    rest = f"; {left_out:,} more not shown here" if left_out else ""
    text = "\n".join([f"{counts(result)}{rest}; {compared_with(result)}", *baseline_notes(result)])
    return "\n".join([*lines, command("notice", text, title=f"{NAME}: {result.verdict}")]) + "\n"


def _finding(level: str, finding: Check | Problem, top: int, folder: str) -> str:
    place = place_of(finding, folder)
    at = {"file": place.path, "line": str(place.line)} if place else {}
    if isinstance(finding, Problem):
        return command(level, message_of(finding), **at, title=f"{NAME}: {name(finding.workload)}".rstrip(": "))
    return command(
        level, "\n".join([message_of(finding), *cause_lines(finding, top)]), **at, title=f"{NAME}: {title(finding)}"
    )


def command(level: str, message: str, **properties: str) -> str:
    """``::error file=model.py,line=42,title=...::message``, escaped as the runner undoes it."""
    text = ",".join(f"{key}={value.translate(_PROPERTY)}" for key, value in properties.items() if value)
    return f"::{level} {text}::{message.translate(_DATA)}"
