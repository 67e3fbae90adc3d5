"""The gate's result as forges and dashboards read it: GitHub's annotations, GitLab's code quality, JUnit, SARIF 2.1.0.

No kind drops a failure: what does not fit a forge's limits is counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from memwall.analysis.quantities import LIMITS
from memwall.gate.result import Check, GateResult, Problem
from memwall.report.gate.places import Place, fingerprints, place_of, source_place
from memwall.report.gate.wording import (
    NAME,
    baseline_notes,
    by_workload,
    cause_line,
    cause_lines,
    compared_with,
    counts,
    explained,
    findings_of,
    message_of,
    name,
    problem_sentence,
    rule_of,
    sentence,
    subject,
    title,
)

#: Entries of GitLab and SARIF need a file: the one with the limits where no better is known.
CONFIG = "pyproject.toml"

#: Annotations of one level that GitHub shows for one step; it silently drops the rest.
SHOWN = 10

#: verdict -> its level for GitHub and SARIF
_LEVELS = {"fail": "error", "inconclusive": "warning"}


# -- GitHub ------------------------------------------------------------------------------------------------------------

_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})


def gate_commands(result: GateResult, top: int, folder: str) -> str:
    """GitHub's workflow commands: the worst findings, a line each, and a notice that counts all."""
    findings = findings_of(result)
    lines = []
    for verdict, level in _LEVELS.items():
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


# -- GitLab ------------------------------------------------------------------------------------------------------------

_SEVERITY = {("problem", "fail"): "blocker", ("check", "fail"): "major"}


def gate_code_quality(result: GateResult, folder: str, config: str) -> str:
    """GitLab's code quality report: a JSON array, empty where all pass.

    GitLab shows what a merge request adds and fixes by comparing fingerprints, so these contain no value and no line.
    """
    findings = findings_of(result)
    rows = [
        _entry(finding, fingerprint, place_of(finding, folder, config) or Place(CONFIG, 1))
        for finding, fingerprint in zip(findings, fingerprints(findings), strict=True)
    ]
    return json.dumps(rows, indent=1) + "\n"


def _entry(finding: Check | Problem, fingerprint: str, place: Place) -> dict[str, Any]:
    kind = "problem" if isinstance(finding, Problem) else "check"
    causes = finding.causes[:1] if isinstance(finding, Check) else ()
    return {
        "description": "; ".join([message_of(finding), *(cause_line(cause) for cause in causes)]),
        "check_name": f"memwall/{rule_of(finding)}",
        "fingerprint": fingerprint,
        "severity": _SEVERITY.get((kind, finding.verdict), "minor"),
        "location": {"path": place.path, "lines": {"begin": place.line}},
    }


# -- JUnit -------------------------------------------------------------------------------------------------------------

_ELEMENTS = {"fail": "failure", "inconclusive": "error"}


def gate_junit(result: GateResult, top: int) -> str:
    """JUnit XML: a suite per workload, a case per check, every time 0; a run that checked nothing holds a case that
    failed.

    An inconclusive check is an ``error``, not ``skipped``: dashboards show skipped cases as green, and a gate that
    could not judge must not look like one that passed.
    """
    root = ElementTree.Element("testsuites", {"name": NAME})
    problems: dict[str, list[Problem]] = {}
    for finding in findings_of(result):
        if isinstance(finding, Problem):
            problems.setdefault(finding.workload, []).append(finding)
    checks = by_workload(result)
    for workload in dict.fromkeys((*problems, *checks)):
        _suite(root, workload, problems.get(workload, []), checks.get(workload, []), top)
    _count_cases(root, root.findall("testsuite/testcase"))
    ElementTree.indent(root, " ")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(
    root: ElementTree.Element, workload: str, problems: Sequence[Problem], checks: Sequence[Check], top: int
) -> None:
    label = name(workload) or NAME
    suite = _child(root, "testsuite", {"name": label})
    for i, problem in enumerate(problems, 1):
        case = _case(suite, label, f"problem {i}")
        _fault(case, problem.verdict, problem_sentence(problem), [])
    for check in checks:
        parts = (label, name(check.gpu), name(check.policy))
        case = _case(suite, ".".join(part for part in parts if part), f"{subject(check)} {name(check.limit)}")
        if check.verdict in _ELEMENTS:
            _fault(case, check.verdict, explained(check), cause_lines(check, top))
        _child(case, "system-out", {}, sentence(check))
    _count_cases(suite, suite.findall("testcase"))


def _case(suite: ElementTree.Element, classname: str, label: str) -> ElementTree.Element:
    return _child(suite, "testcase", {"classname": classname, "name": label, "time": "0"})


def _fault(case: ElementTree.Element, verdict: str, message: str, causes: Sequence[str]) -> None:
    """The causes are in the element's text, since some dashboards show nothing else of a case."""
    _child(case, _ELEMENTS[verdict], {"type": verdict, "message": message}, "\n".join([message, *causes]))


def _count_cases(element: ElementTree.Element, cases: Sequence[ElementTree.Element]) -> None:
    element.set("tests", str(len(cases)))
    element.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    element.set("errors", str(sum(case.find("error") is not None for case in cases)))
    element.set("time", "0")


def _child(parent: ElementTree.Element, tag: str, attributes: Mapping[str, str], text: str = "") -> ElementTree.Element:
    child = ElementTree.SubElement(parent, tag, dict(attributes))
    child.text = text or None
    return child


# -- SARIF -------------------------------------------------------------------------------------------------------------

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FINGERPRINT = "memwallGate/v1"


def gate_sarif(result: GateResult, top: int, folder: str, config: str) -> str:
    """SARIF for code scanning: one run, a rule per quantity, a result per finding; no results where all pass.

    The fingerprint has a key of its own. ``primaryLocationLineHash`` is left to the upload, which works it out from the
    file and warns about any other value.
    """
    findings = findings_of(result)
    rules = list(dict.fromkeys(rule_of(finding) for finding in findings))
    rows = []
    for finding, fingerprint in zip(findings, fingerprints(findings), strict=True):
        place = place_of(finding, folder, config) or Place(CONFIG, 1)
        rows.append({
            "ruleId": rule_of(finding),
            "ruleIndex": rules.index(rule_of(finding)),
            "level": _LEVELS[finding.verdict],
            "message": _sarif_message("\n".join([message_of(finding), *_sarif_causes(finding, top)])),
            "locations": [{"physicalLocation": _physical(place)}],
            "relatedLocations": _related(finding, top, folder),
            "partialFingerprints": {FINGERPRINT: fingerprint},
        })  # fmt: skip
    driver = {"name": "memwall", "version": result.memwall_version, "rules": [_sarif_rule(rule) for rule in rules]}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": rows}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _sarif_rule(rule: str) -> dict[str, Any]:
    row = LIMITS.get(rule)
    title = row.title if row else "what could not be judged" if rule == "gate" else name(rule)
    if rule == "gate":
        help_text = "Something could not be judged, and so it does not pass. The message says what."
    else:
        better = "lower" if row is None or row.lower else "higher"
        help_text = f"A limit on this figure does not hold; {better} is better. The message names the causes."
    return {
        "id": rule,
        "shortDescription": {"text": f"memwall gate: {title}"},
        "fullDescription": {"text": f"memwall gate: {title}. {help_text}"},
        "help": {"text": help_text},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["performance"]},
    }


def _sarif_causes(finding: Check | Problem, top: int) -> list[str]:
    return [] if isinstance(finding, Problem) else cause_lines(finding, top)


def _related(finding: Check | Problem, top: int, folder: str) -> list[dict[str, Any]]:
    """The source lines of the causes, each once."""
    rows: dict[Place, str] = {}
    for cause in () if isinstance(finding, Problem) else finding.causes[:top]:
        place = source_place(cause.source, folder) if cause.kind != "vanished" else None
        if place:
            rows.setdefault(place, cause_line(cause))
    return [
        {"id": i, "physicalLocation": _physical(place), "message": _sarif_message(text)}
        for i, (place, text) in enumerate(rows.items(), 1)
    ]


def _sarif_message(text: str) -> dict[str, str]:
    """Plain text. ``[...](...)`` would be a link: a space parts the brackets."""
    return {"text": text.replace("](", "] (")}


def _physical(place: Place) -> dict[str, Any]:
    uri = quote(place.path, safe="/", errors="replace")
    return {"artifactLocation": {"uri": uri}, "region": {"startLine": place.line}}
