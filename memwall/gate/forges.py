"""The gate's result as forges and dashboards read it: GitHub's annotations, GitLab's code quality, JUnit, SARIF 2.1.0.

No kind drops a failure: what does not fit a forge's limits is counted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree

from memwall.analysis.quantities import LIMITS
from memwall.gate import wording as say
from memwall.gate.diff import Cause
from memwall.gate.result import Check, GateResult
from memwall.gate.wording import NAME, Finding, name
from memwall.report.document import clean, plain

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
    """GitHub's workflow commands: the worst findings, a line each, all of one workload and one place in the
    source in one; and a notice that counts all."""
    findings = say.findings_of(result)
    groups: dict[object, list[Finding]] = {}
    for number, found in enumerate(findings):
        same = (found.verdict, found.workload, place_of(found, folder))
        groups.setdefault(same if found.causes else number, []).append(found)
    shown = [
        group
        for verdict in _LEVELS
        for group in [each for each in groups.values() if each[0].verdict == verdict][:SHOWN]
    ]
    lines = [_annotation(_LEVELS[group[0].verdict], group, top, folder) for group in shown]
    left_out = len(findings) - sum(map(len, shown))
    rest = f"; {left_out:,} more not shown here" if left_out else ""
    text = "\n".join([f"{say.counts(result)}{rest}; {say.compared_with(result)}", *say.notes(result)])
    return "\n".join([*lines, _command("notice", text, title=f"{NAME}: {result.verdict}")]) + "\n"


def _annotation(level: str, group: Sequence[Finding], top: int, folder: str) -> str:
    finding, *others = group
    place = place_of(finding, folder)
    at = {"file": place.path, "line": str(place.line)} if place else {}
    if others:
        checks = [each.check for each in group if each.check]
        causes = [f"{label}: {text}".lstrip(": ") for label, text in say.moved_lines(say.moved_by(checks), top)]
        more = f"and {len(others):,} more: {say.places(checks[1:])}"
        text = "\n".join([finding.message, more, *causes])
    else:
        text = "\n".join([finding.message, *say.cause_lines(finding.causes, top)])
    return _command(level, text, **at, title=f"{NAME}: {finding.title}".rstrip(": "))


def _command(level: str, message: str, **properties: str) -> str:
    """``::error file=model.py,line=42,title=...::message``, escaped as the runner undoes it."""
    text = ",".join(f"{key}={value.translate(_PROPERTY)}" for key, value in properties.items() if value)
    return f"::{level} {text}::{plain(message).translate(_DATA)}"


# -- GitLab ------------------------------------------------------------------------------------------------------------


def gate_code_quality(result: GateResult, folder: str, config: str) -> str:
    """GitLab's code quality report: a JSON array, empty where all pass.

    GitLab shows what a merge request adds and fixes by comparing fingerprints, so these contain no value and no line.
    """
    findings = say.findings_of(result)
    rows = []
    for finding, fingerprint in zip(findings, fingerprints(findings), strict=True):
        place = place_of(finding, folder, config) or FilePlace(CONFIG, 1)
        failed = "blocker" if finding.rule == "gate" else "major"
        rows.append(
            {
                "description": "; ".join([finding.message, *map(say.cause_line, finding.causes[:1])]),
                "check_name": f"memwall/{finding.rule}",
                "fingerprint": fingerprint,
                "severity": failed if finding.verdict == "fail" else "minor",
                "location": {"path": place.path, "lines": {"begin": place.line}},
            }
        )
    return json.dumps(rows, indent=1) + "\n"


# -- JUnit -------------------------------------------------------------------------------------------------------------

_ELEMENTS = {"fail": "failure", "inconclusive": "error"}


def gate_junit(result: GateResult, top: int) -> str:
    """JUnit XML: a suite per workload, a case per check, every time 0; a run that checked nothing holds a case that
    failed.

    An inconclusive check is an ``error``, not ``skipped``: dashboards show skipped cases as green, and a gate that
    could not judge must not look like one that passed.
    """
    root = ElementTree.Element("testsuites", {"name": NAME})
    problems: dict[str, list[Finding]] = {}
    for finding in say.findings_of(result):
        if finding.rule == "gate":
            problems.setdefault(finding.workload, []).append(finding)
    checks = say.by_workload(result)
    for workload in dict.fromkeys((*problems, *checks)):
        _suite(root, workload, problems.get(workload, []), checks.get(workload, []), top)
    _count_cases(root, root.findall("testsuite/testcase"))
    ElementTree.indent(root, " ")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(
    root: ElementTree.Element, workload: str, problems: Sequence[Finding], checks: Sequence[Check], top: int
) -> None:
    label = name(workload) or NAME
    suite = _child(root, "testsuite", {"name": label})
    for i, problem in enumerate(problems, 1):
        case = _child(suite, "testcase", {"classname": label, "name": f"problem {i}", "time": "0"})
        _fault(case, problem, 0)
    for check in checks:
        where = ".".join(part for part in (label, name(check.gpu), name(check.policy)) if part)
        limit = f"{say.subject(check)} {name(check.limit)}"
        case = _child(suite, "testcase", {"classname": where, "name": limit, "time": "0"})
        if check.verdict in _ELEMENTS:
            _fault(case, say.finding_of(check), top)
        _child(case, "system-out", {}, say.sentence(check))
    _count_cases(suite, suite.findall("testcase"))


def _fault(case: ElementTree.Element, finding: Finding, top: int) -> None:
    """The causes are in the element's text, since some dashboards show nothing else of a case."""
    text = "\n".join([finding.message, *say.cause_lines(finding.causes, top)])
    _child(case, _ELEMENTS[finding.verdict], {"type": finding.verdict, "message": finding.message}, text)


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
    findings = say.findings_of(result)
    rules = list(dict.fromkeys(finding.rule for finding in findings))
    rows = []
    for finding, fingerprint in zip(findings, fingerprints(findings), strict=True):
        place = place_of(finding, folder, config) or FilePlace(CONFIG, 1)
        text = "\n".join([finding.message, *say.cause_lines(finding.causes, top)])
        rows.append(
            {
                "ruleId": finding.rule,
                "ruleIndex": rules.index(finding.rule),
                "level": _LEVELS[finding.verdict],
                "message": _sarif_message(text),
                "locations": [{"physicalLocation": _physical(place)}],
                "relatedLocations": _related(finding.causes[:top], folder),
                "partialFingerprints": {FINGERPRINT: fingerprint},
            }
        )
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


def _related(causes: Iterable[Cause], folder: str) -> list[dict[str, Any]]:
    rows: dict[FilePlace, str] = {}
    for cause in causes:
        place = source_place(cause.source, folder) if cause.kind != "vanished" else None
        if place:
            rows.setdefault(place, say.cause_line(cause))
    return [
        {"id": i, "physicalLocation": _physical(place), "message": _sarif_message(text)}
        for i, (place, text) in enumerate(rows.items(), 1)
    ]


def _sarif_message(text: str) -> dict[str, str]:
    """Plain text. ``[...](...)`` would be a link: a space parts the brackets."""
    return {"text": text.replace("](", "] (")}


def _physical(place: FilePlace) -> dict[str, Any]:
    uri = quote(place.path, safe="/", errors="replace")
    return {"artifactLocation": {"uri": uri}, "region": {"startLine": place.line}}


# -- a finding's place in the repository, and its name across runs -----------------------------------------------------

#: Ends of a target that is a file.
_FILES = (".py", ".json", ".json.gz", ".toml")
_LINE = re.compile("[0-9]{1,9}")
_GLOB = re.compile(r"[*?\[]")


class FilePlace(NamedTuple):
    """A file, relative to the root of the repository, and a line from 1."""

    path: str
    line: int


def place_of(finding: Finding, folder: str = "", config: str = "") -> FilePlace | None:
    """The first cause's source in the head, else line 1 of the target's file, else of ``config``, else None.

    ``folder`` is where the gate ran, seen from the root of the repository. A path outside the repository is ignored,
    and so is what vanished, which has no source in the head.
    """
    sources = (cause.source for cause in finding.causes if cause.kind != "vanished")
    found = next(filter(None, (source_place(source, folder) for source in sources)), None)
    return found or target_place(finding.target, folder) or _inside(config, 1, folder)


def source_place(source: str, folder: str = "") -> FilePlace | None:
    """``model.py:42`` as a place."""
    path, _, line = source.rpartition(":")
    return _inside(path, int(line), folder) if _LINE.fullmatch(line) else None


def target_place(target: str, folder: str = "") -> FilePlace | None:
    """``model.py``, ``model.py:name`` and ``hf:config.json`` as a place; None for a dotted name or a folder."""
    target = target.removeprefix("hf:")
    for path in (target, target.rpartition(":")[0]):
        if path.endswith(_FILES) and not _GLOB.search(path):
            return _inside(path, 1, folder)
    return None


def _inside(path: str, line: int, folder: str) -> FilePlace | None:
    if not path or path != clean(path) or line < 1:
        return None
    parts: list[str] = []
    for part in PurePosixPath(folder, path).parts:
        if part == "..":
            if not parts:
                return None
            parts.pop()
        else:
            parts.append(part)
    whole = "/".join(parts)
    absolute = whole.startswith(("/", "\\")) or ":/" in path or ":\\" in path
    return FilePlace(whole, line) if parts and not absolute else None


def fingerprints(findings: Iterable[Finding]) -> list[str]:
    """A name for each finding, equal from run to run whatever its value and its line; no two share one."""
    seen: Counter[tuple[str, ...]] = Counter()
    names = []
    for finding in findings:
        seen[finding.identity] += 1
        key = "\0".join((*finding.identity, str(seen[finding.identity])))
        names.append(hashlib.sha256(key.encode(errors="backslashreplace")).hexdigest()[:40])
    return names
