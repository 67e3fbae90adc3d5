"""What a forge is to show: problems, and the checks that did not pass."""

from __future__ import annotations

from collections.abc import Iterable

from memwall.gate.result import Check, GateResult, Problem
from memwall.report.gate.wording import compared_with, counts, excess, explained, problem_sentence

#: Verdicts to show, the gravest first.
RAISED = ("fail", "inconclusive")


def findings_of(result: GateResult) -> list[Check | Problem]:
    """By verdict: problems, then checks, the worst first. That nothing was checked is a failed problem itself."""
    problems = list(result.problems)
    if not result.checks and all(problem.verdict != "fail" for problem in problems):
        problems.insert(0, Problem("", "", "fail", f"{counts(result)}; {compared_with(result)}"))
    findings: list[Check | Problem] = []
    for verdict in RAISED:
        findings += [problem for problem in problems if problem.verdict == verdict]
        findings += of_verdict(result.checks, verdict)
    return findings


def of_verdict(checks: Iterable[Check], verdict: str) -> list[Check]:
    """The checks with a verdict, the worst first, else as configured."""
    return sorted((check for check in checks if check.verdict == verdict), key=lambda check: -excess(check))


def raised(checks: Iterable[Check]) -> list[Check]:
    """The checks that failed, then those that are inconclusive."""
    rows = list(checks)
    return [check for verdict in RAISED for check in of_verdict(rows, verdict)]


def by_causes(checks: Iterable[Check]) -> list[list[Check]]:
    """Checks of one workload, GPU and policy that the same causes moved, together."""
    groups: dict[tuple[object, ...], list[Check]] = {}
    for check in checks:
        alone = () if check.causes else (len(groups),)
        groups.setdefault((check.workload, check.gpu, check.policy, check.causes, *alone), []).append(check)
    return list(groups.values())


def message_of(finding: Check | Problem) -> str:
    """The sentence of a finding, on one line."""
    return problem_sentence(finding) if isinstance(finding, Problem) else explained(finding)


def rule_of(finding: Check | Problem) -> str:
    """The quantity of a check; ``gate`` for a problem."""
    return "gate" if isinstance(finding, Problem) else finding.quantity
