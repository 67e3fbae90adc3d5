"""The content of a report, apart from its looks: a tree of facts, tables and sentences that each writer walks.

Headings, sentences, facts and cells pass :func:`clean`, so no writer meets a control character of a model's name; how
``<`` or ``|`` is escaped is the writer's own matter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from memwall.report.figures.scene import Chart

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
#: C0 and C1 controls, line and paragraph separators, bidirectional overrides, lone surrogates
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")

#: the same, but for the breaks of lines and the tabs of a file
_RAW = re.compile(rf"{_ANSI.pattern}|(?![\n\t]){_CONTROL.pattern.removesuffix('+')}")


#: the blank between a number and its unit, at which no line ends
UNIT_BLANK = re.compile(r"(?<=\d) (?=%|(?:[kMGTPE]?(?:B|FLOP)(?:/s)?|[mun]?s|W)\b)")
#: a bracket before an option of a command line, the option, and its value with the blank before it
OPTION = re.compile(r"(\(?)(?<![^\s(])(--?[A-Za-z][\w-]*)( (?!-)[^\s(]{1,40}(?!\S))?")


def plain(text: str) -> str:
    """A whole text without what a terminal would act on: every writer's last step, whatever its parts passed."""
    return _RAW.sub("", text)


def clean(text: object) -> str:
    """A name as one line of printable text: ANSI sequences go, control characters become a space."""
    return _CONTROL.sub(" ", _ANSI.sub("", str(text))).strip()


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and its unit. ``numeric`` columns are right-aligned.

    Where the page is narrow, ``flexible`` columns are cut first (at their start if they keep their ``tail``), then
    ``optional`` ones left out; no number is ever cut. Prose in a cell ``wraps``.
    """

    heading: str
    unit: str = ""
    numeric: bool = True
    flexible: bool = False
    tail: bool = False
    optional: bool = False
    wraps: bool = False

    @property
    def label(self) -> str:
        return f"{self.heading}, {self.unit}" if self.heading and self.unit else self.heading or self.unit


class Table(NamedTuple):
    """Rows of finished cells. ``note`` is below in small print, parts between semicolons: ``heading: what it is``
    explains a column, or several (``mean, median: ...``)."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def note_without(self, hidden: Set[str]) -> str:
        """The note without the explanations of columns that are not shown, given by their headings."""
        parts = (part for part in self.note.split("; ") if not {*part.partition(": ")[0].split(", ")} <= hidden)
        return "; ".join(parts)


class Facts(NamedTuple):
    items: Sequence[tuple[str, str]]


class ShellCommand(NamedTuple):
    """A command line to copy, under what it does: no line of it is broken."""

    label: str
    text: str


class Glance(NamedTuple):
    """What a reader asks a page first, side by side: a label, the answer in a word or two, what stands behind it. For
    HTML."""

    facts: Sequence[tuple[str, str, str]]


def known_facts(*items: tuple[str, str]) -> Facts:
    """Labels and texts as they came from a model; labels without text are left out."""
    return Facts([(label, clean(text)) for label, text in items if text])


@dataclass(frozen=True, slots=True)
class Sentence:
    """A paragraph. A ``strong`` one is the point of its section; what says how to use a page stands on ``screens``
    alone, not on paper."""

    text: str
    strong: bool = False
    screens: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", clean(self.text))


class Picture(NamedTuple):
    """A chart. For HTML; ``label`` is what a reader hears who cannot see it."""

    chart: Chart
    label: str
    note: str = ""


class PictureChoice(NamedTuple):
    """Pictures of which a page shows one at a time, the first at first. For HTML."""

    pictures: Sequence[tuple[str, Picture]]


class Markup(NamedTuple):
    """HTML that is escaped already, and a script of the package's that acts on it."""

    html: str
    script: str = ""


Block = Table | Facts | Glance | ShellCommand | Sentence | Picture | PictureChoice | Markup


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the content under it."""

    heading: str
    blocks: Sequence[Block]
    #: a class of the style sheet
    look: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "heading", clean(self.heading))


class Panel(NamedTuple):
    """Sections of which a page shows one panel's at a time, the first at first. For HTML alone."""

    label: str
    sections: Sequence[Section]


@dataclass(frozen=True, slots=True)
class Document:
    """A title, the answer and sections; the first section may have no heading. The ``answer`` comes first wherever it
    is written: a sentence, for HTML the facts at a glance, the levers with the command of each, for HTML a picture."""

    title: str
    sections: Sequence[Section | Panel]
    answer: Sequence[Block] = ()
    #: JSON for the script of an HTML page
    data: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", clean(self.title))

    @property
    def whole(self) -> Sequence[Section | Panel]:
        """The sections, the answer before them as one without a heading."""
        return (Section("", self.answer, "answer"), *self.sections) if self.answer else self.sections
