"""What a gate found: checks with their verdicts and causes, ``memwall.gate/1``. The record that every output renders.

History of the format: 1 is the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memwall.analysis.quantities import LIMITS
from memwall.core.structure import write
from memwall.core.version import __version__
from memwall.core.views import ShownResult
from memwall.gate.diff import Cause

SCHEMA = "memwall.gate/1"


@dataclass(frozen=True, slots=True)
class Check:
    """One limit compared with one figure.

    ``quantity`` is a key of :data:`memwall.analysis.quantities.LIMITS`; ``value``, ``baseline`` and ``allowed`` (the
    worst value that passes) are in its base unit. ``module`` is the pattern that the check sums over, empty for the
    whole workload; ``gpu`` and ``policy`` are empty where the quantity has none. ``limit`` is what was written:
    ``3.2 ms``, ``+2%``. ``message`` adds why there is no verdict, or which part of a peak grew. ``measured`` checks
    were timed; all others are modeled. ``recorded_s``: what a recorded run of the same step took, None without one.
    """

    workload: str
    target: str
    gpu: str
    policy: str
    module: str
    quantity: str
    limit: str
    value: float | None
    baseline: float | None
    allowed: float | None
    verdict: str
    message: str
    causes: tuple[Cause, ...] = ()
    measured: bool = False
    recorded_s: float | None = None

    @property
    def change(self) -> float | None:
        """Head over base, less 1; None without a baseline or where that is 0."""
        return self.value / self.baseline - 1 if self.baseline and self.value is not None else None

    @property
    def where(self) -> str:
        """``bert · h100-sxm · eager · encoder.*``: what was checked, in words."""
        return " · ".join(part for part in (self.workload, self.gpu, self.policy, self.module) if part)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something could not be judged, or must not pass: no workload, no check, an op without a formula."""

    workload: str
    target: str
    verdict: str
    message: str


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the head was compared with: ``kind`` is ``file``, ``ref`` or ``none``; ``notes`` are what to know of it."""

    kind: str = "none"
    name: str = ""
    commit: str = ""
    memwall_version: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class GateResult(ShownResult):
    """All checks of one run, in the order of the configuration."""

    checks: tuple[Check, ...]
    problems: tuple[Problem, ...] = ()
    baseline: Baseline = Baseline()
    memwall_version: str = __version__
    #: workload -> how base and head were timed against each other, with all samples (``ABResult.to_dict``)
    contests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """``fail`` if anything fails or nothing was to be checked, else ``inconclusive`` if anything is, else
        ``pass``."""
        found = {*(check.verdict for check in self.checks), *(row.verdict for row in self.problems)}
        return next((verdict for verdict in ("fail", "inconclusive", "pass") if verdict in found), "fail")

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 4 inconclusive."""
        return {"pass": 0, "fail": 1, "inconclusive": 4}[self.verdict]

    @property
    def served(self) -> dict[tuple[str, str], dict[str, float]]:
        """The figures of servers, by workload and GPU, of the quantities that are limited."""
        found: dict[tuple[str, str], dict[str, float]] = {}
        for check in self.checks:
            if LIMITS[check.quantity].per == "server" and check.value is not None:
                found.setdefault((check.workload, check.gpu), {})[check.quantity] = check.value
        return found

    def count(self, verdict: str) -> int:
        """Checks with a verdict."""
        return sum(check.verdict == verdict for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON types, in a stable order."""
        found = write(self)
        rows = {key: found[key] for key in ("baseline", "checks", "problems", "contests")}
        return {"schema": SCHEMA, "memwall_version": self.memwall_version, "verdict": self.verdict, **rows}

    def to_json(self) -> str:
        """The record as text, byte-identical for equal results."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=True, allow_nan=False) + "\n"
