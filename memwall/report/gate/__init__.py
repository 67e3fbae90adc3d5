"""``render_gate(result, kind)``: what a gate found, as text for people, for forges and for test dashboards. No I/O.

Each kind has its file. What all of them share is in :mod:`wording` (numbers and sentences) and :mod:`places` (source
locations and fingerprints). No kind drops a failure: what does not fit a forge's limits is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from memwall.core.errors import UsageError
from memwall.gate.result import GateResult

__all__ = ["GATE_KINDS", "GATE_SUFFIXES", "render_gate"]

#: kind -> (module, function, options it takes)
_KINDS = {
    "text": ("terminal", "gate_text", ("top", "width", "color")),
    "md": ("comment", "gate_comment", ("top",)),
    "summary": ("comment", "gate_summary", ("top",)),
    "github": ("github", "gate_commands", ("top", "folder")),
    "junit": ("junit", "gate_junit", ("top",)),
    "gitlab": ("gitlab", "gate_code_quality", ("folder", "config")),
    "sarif": ("sarif", "gate_sarif", ("top", "folder", "config")),
    "json": ("record", "gate_json", ()),
}

GATE_KINDS = tuple(_KINDS)

#: end of a file's name -> kind; the longest wins, and so stands first
GATE_SUFFIXES = {
    "gl-code-quality-report.json": "gitlab", ".gitlab.json": "gitlab", ".sarif.json": "sarif", ".sarif": "sarif",
    ".json": "json", ".xml": "junit", ".txt": "text", ".md": "md",
}  # fmt: skip

_OPTIONS = frozenset(option for row in _KINDS.values() for option in row[2])


def render_gate(result: GateResult, kind: str, **options: Any) -> str:
    """A gate's result as one of ``GATE_KINDS``; the same result always gives the same text.

    Options, ignored by kinds that have no use for them: ``top`` causes under each check; ``width`` and ``color`` of
    the terminal; ``folder``, where the gate ran, as seen from the root of the repository (empty: at its root), and
    ``config``, the file with the limits, seen from that folder: the place of a finding that has no other.

    Raises:
        UsageError: no such kind.
        TypeError: an option that no kind takes.
    """
    if unknown := sorted(set(options) - _OPTIONS):
        raise TypeError(f"render_gate() takes no option {', '.join(unknown)}")
    if kind not in _KINDS:
        raise UsageError(f"a gate has no {kind!r} form; there is {', '.join(_KINDS)}")
    module, function, takes = _KINDS[kind]
    renderer: Callable[..., str] = getattr(import_module(f"memwall.report.gate.{module}"), function)
    return renderer(result, **{name: value for name, value in options.items() if name in takes})
