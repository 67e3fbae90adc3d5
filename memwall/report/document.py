"""What a report says, apart from how it looks: a tree of facts, tables and sentences that each renderer walks.

Every string that came from a model passes :func:`clean` on its way in, so no renderer meets a control character; how
``<`` or ``|`` is escaped is the renderer's own matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
#: C0 and C1 controls, line and paragraph separators, bidirectional overrides, lone surrogates
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


def clean(text: object) -> str:
    """A name as one line of printable text: ANSI sequences go, control characters become a space."""
    return _CONTROL.sub(" ", _ANSI.sub("", str(text))).strip()


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and its unit. ``numeric`` columns are right-aligned.

    Where the page is narrow, ``flexible`` columns are cut first, then ``optional`` ones left out; no number is ever
    cut. Prose in a cell ``wraps``.
    """

    heading: str
    unit: str = ""
    numeric: bool = True
    flexible: bool = False
    optional: bool = False
    wraps: bool = False

    @property
    def label(self) -> str:
        """Heading and unit on one line."""
        return f"{self.heading}, {self.unit}" if self.heading and self.unit else self.heading or self.unit


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of finished cells. ``note`` stands below in small print."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels and what they are."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A paragraph. A ``strong`` one is the point of its section."""

    text: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    heading: str
    blocks: tuple[Table | Facts | Sentence, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A title and sections; the first section may have no heading."""

    title: str
    sections: tuple[Section, ...]


def text_column(
    heading: str, cells: Iterable[object], *, flexible: bool = False, optional: bool = False, wraps: bool = False
) -> tuple[Column, list[str]]:
    """A left-aligned column."""
    column = Column(heading, numeric=False, flexible=flexible, optional=optional, wraps=wraps)
    return column, [clean(cell) for cell in cells]


def optional(column: tuple[Column, list[str]]) -> tuple[Column, list[str]]:
    """The same column, to be left out where the page is narrow."""
    return replace(column[0], optional=True), column[1]


def table(title: str, columns: Sequence[tuple[Column, Sequence[str]]], note: str = "") -> Table:
    """A table from its columns."""
    cells = [list(column_cells) for _, column_cells in columns]
    return Table(title, tuple(column for column, _ in columns), tuple(zip(*cells, strict=True)), note)
