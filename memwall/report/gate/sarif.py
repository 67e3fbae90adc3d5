"""The gate's result as SARIF 2.1.0, for code scanning: what fails is an error, what is inconclusive a warning.

The fingerprint has a key of its own. ``primaryLocationLineHash`` is left to the upload, which works it out from the
file and warns about any other value.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from memwall.analysis.quantities import LIMITS
from memwall.gate.result import Check, GateResult, Problem
from memwall.report.gate.findings import findings_of, message_of, rule_of
from memwall.report.gate.gitlab import CONFIG
from memwall.report.gate.places import Place, fingerprints, place_of, source_place
from memwall.report.gate.wording import TOP, cause_line, cause_lines, name

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FINGERPRINT = "memwallGate/v1"

_LEVELS = {"fail": "error", "inconclusive": "warning"}


def gate_sarif(result: GateResult, *, top: int = TOP, folder: str = "", config: str = CONFIG) -> str:
    """One run, a rule per quantity, a result per finding; no results where all pass."""
    findings = findings_of(result)
    rules = list(dict.fromkeys(rule_of(finding) for finding in findings))
    rows = []
    for finding, fingerprint in zip(findings, fingerprints(findings), strict=True):
        place = place_of(finding, folder, config) or Place(CONFIG, 1)
        rows.append({
            "ruleId": rule_of(finding),
            "ruleIndex": rules.index(rule_of(finding)),
            "level": _LEVELS[finding.verdict],
            "message": _message("\n".join([message_of(finding), *_causes(finding, top)])),
            "locations": [{"physicalLocation": _physical(place)}],
            "relatedLocations": _related(finding, top, folder),
            "partialFingerprints": {FINGERPRINT: fingerprint},
        })  # fmt: skip
    driver = {"name": "memwall", "version": result.memwall_version, "rules": [_rule(rule) for rule in rules]}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": rows}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(rule: str) -> dict[str, Any]:
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


def _causes(finding: Check | Problem, top: int) -> list[str]:
    return [] if isinstance(finding, Problem) else cause_lines(finding, top)


def _related(finding: Check | Problem, top: int, folder: str) -> list[dict[str, Any]]:
    """The source lines of the causes, each once."""
    rows: dict[Place, str] = {}
    for cause in () if isinstance(finding, Problem) else finding.causes[:top]:
        place = source_place(cause.source, folder) if cause.kind != "vanished" else None
        if place:
            rows.setdefault(place, cause_line(cause))
    return [
        {"id": i, "physicalLocation": _physical(place), "message": _message(text)}
        for i, (place, text) in enumerate(rows.items(), 1)
    ]


def _message(text: str) -> dict[str, str]:
    """Plain text. ``[...](...)`` would be a link: a space parts the brackets."""
    return {"text": text.replace("](", "] (")}


def _physical(place: Place) -> dict[str, Any]:
    uri = quote(place.path, safe="/", errors="replace")
    return {"artifactLocation": {"uri": uri}, "region": {"startLine": place.line}}
