"""The gate's result as GitLab's code quality report: what fails or is inconclusive, one entry each.

GitLab shows what a merge request adds and mends by comparing fingerprints, so these hold no value and no line.
"""

from __future__ import annotations

import json
from typing import Any

from memwall.gate.result import Check, GateResult, Problem
from memwall.report.gate.findings import findings_of, message_of, rule_of
from memwall.report.gate.places import Place, fingerprints, place_of
from memwall.report.gate.wording import cause_line

#: Every entry needs a file: the one with the limits where no better is known.
CONFIG = "pyproject.toml"

_SEVERITY = {("problem", "fail"): "blocker", ("check", "fail"): "major"}


def gate_code_quality(result: GateResult, *, folder: str = "", config: str = CONFIG) -> str:
    """A JSON array; empty where all pass."""
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
