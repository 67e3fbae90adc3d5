"""The record itself, as JSON."""

from __future__ import annotations

from memwall.gate.result import GateResult


def gate_json(result: GateResult) -> str:
    """``memwall.gate/1``."""
    return result.to_json()
