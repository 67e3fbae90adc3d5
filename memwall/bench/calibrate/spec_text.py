"""Lines of a spec: ``key = value  # how it was measured``, aligned within a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memwall.bench.calibrate.sampling import WIDE, Quantity


@dataclass(frozen=True, slots=True)
class Line:
    """``key = value  # comment``; the value is TOML already."""

    key: str
    value: str
    comment: str = ""

    @property
    def assignment(self) -> str:
        """Without the comment."""
        return f"{self.key} = {self.value}"


def document(tables: Mapping[str, Sequence[Line]]) -> str:
    """A TOML document of tables by dotted name, the unnamed first; empty ones are left out."""
    return "\n".join(_table(name, lines) for name, lines in tables.items() if lines)


def _table(name: str, lines: Sequence[Line]) -> str:
    width = max(len(line.assignment) for line in lines)
    body = [f"{line.assignment:{width}}  # {line.comment}" if line.comment else line.assignment for line in lines]
    return "\n".join(([f"[{name}]"] if name else []) + body) + "\n"


def quoted(text: str) -> str:
    """A TOML string; what cannot stand in one is dropped."""
    return '"' + "".join(char for char in text if char.isprintable() and char not in '"\\') + '"'


def number(value: float) -> str:
    """Four digits."""
    return f"{value:.3e}"


def note(quantity: Quantity, what: str) -> str:
    """How a number was measured, and how far its samples lie apart."""
    wide = ": uncertain" if quantity.spread > WIDE else ""
    dropped = f", {quantity.rejected} dropped" if quantity.rejected else ""
    return f"{what}; {quantity.samples} samples{dropped} within {quantity.spread:.1%}{wide}"
