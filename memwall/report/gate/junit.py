"""The gate's result as JUnit XML: a suite per workload, a case per check. No clock: every time is 0.

An inconclusive check is an ``error``, not ``skipped``: dashboards show skipped cases as green, and a gate that could
not judge must not look like one that passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from memwall.gate.result import Check, GateResult, Problem
from memwall.report.gate.findings import findings_of
from memwall.report.gate.wording import (
    NAME,
    TOP,
    by_workload,
    cause_lines,
    explained,
    name,
    problem_sentence,
    sentence,
    subject,
)

_ELEMENTS = {"fail": "failure", "inconclusive": "error"}


def gate_junit(result: GateResult, *, top: int = TOP) -> str:
    """The result as a ``testsuites`` document; a run that checked nothing holds a case that failed."""
    root = ElementTree.Element("testsuites", {"name": NAME})
    problems: dict[str, list[Problem]] = {}
    for finding in findings_of(result):
        if isinstance(finding, Problem):
            problems.setdefault(finding.workload, []).append(finding)
    checks = by_workload(result)
    for workload in dict.fromkeys((*problems, *checks)):
        _suite(root, workload, problems.get(workload, []), checks.get(workload, []), top)
    _count(root, root.findall("testsuite/testcase"))
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
    _count(suite, suite.findall("testcase"))


def _case(suite: ElementTree.Element, classname: str, label: str) -> ElementTree.Element:
    return _child(suite, "testcase", {"classname": classname, "name": label, "time": "0"})


def _fault(case: ElementTree.Element, verdict: str, message: str, causes: Sequence[str]) -> None:
    """The causes stand in the element's text, since some dashboards show nothing else of a case."""
    _child(case, _ELEMENTS[verdict], {"type": verdict, "message": message}, "\n".join([message, *causes]))


def _count(element: ElementTree.Element, cases: Sequence[ElementTree.Element]) -> None:
    element.set("tests", str(len(cases)))
    element.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    element.set("errors", str(sum(case.find("error") is not None for case in cases)))
    element.set("time", "0")


def _child(parent: ElementTree.Element, tag: str, attributes: Mapping[str, str], text: str = "") -> ElementTree.Element:
    child = ElementTree.SubElement(parent, tag, dict(attributes))
    child.text = text or None
    return child
