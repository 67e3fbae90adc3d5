"""Search → Document: what is best, the candidates next to it, and why others were not simulated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memwall.core.files import json_pieces
from memwall.report.document import Document, Glance, Picture, Section, Sentence, ShellCommand, Table
from memwall.report.figures.scene import Chart
from memwall.report.kinds import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchReport(Report):
    """A search, of which a wing says the ``best`` in a sentence, what was counted in another, and the rows. ``head``
    is the record without its rows, which it has by the name of ``listed``; ``commands`` start what is best, each under
    the name of what it starts."""

    noun = "a search"
    kinds = ("text", "md", "html", "csv", "parquet", "json")
    title: str
    best: str
    counted: str
    pruned: Mapping[str, int]
    heading: str
    table: Callable[[], Table]
    head: Mapping[str, Any]
    listed: str
    columns: Sequence[str]
    values: Sequence[tuple[Any, ...]]
    commands: Mapping[str, str] = field(default_factory=dict)
    #: the facts of the best, for HTML
    glance: Glance | None = None
    #: what else is said of the best
    figures: str = ""
    #: the candidates as a picture, and what it is called
    picture: tuple[Chart, str] | None = None

    def document(self, kind: str) -> Document:
        lines = [Sentence(self.counted)]
        lines += [Sentence(f"Not simulated, {count:,}: {why}.") for why, count in gathered(self.pruned)]
        sections = [Section(self.heading, (self.table(),)), Section("What was searched", tuple(lines))]
        if self.commands:
            commands = [ShellCommand(*each) for each in self.commands.items()]
            sections.insert(0, Section("Command lines that start the best", commands))
        said = (Sentence(self.figures),) if self.figures else ()
        drawn = (Picture(*self.picture),) if self.picture and kind == "html" else ()
        seen = (self.glance,) if self.glance and kind == "html" else ()
        return Document(self.title, tuple(sections), (Sentence(self.best, strong=True), *seen, *said, *drawn))

    def record(self) -> Iterable[str]:
        rows = (dict(zip(self.columns, row, strict=True)) for row in self.values)
        return json_pieces({**self.head, "pruned": dict(self.pruned), self.listed: rows})

    def rows(self) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        return tuple(self.columns), self.values


def gathered(pruned: Mapping[str, int]) -> list[tuple[str, int]]:
    """Why candidates are out and how many, the most first; splits that fail for one reason stand together."""
    counts: Counter[str] = Counter()
    splits: dict[str, list[str]] = {}
    for why, count in pruned.items():
        split = named[0] if (named := re.match(r"tp=[^:\s]+", why)) else ""
        reason = why.removeprefix(split).lstrip(": ")
        counts[reason] += count
        splits.setdefault(reason, []).append(split)
    return [("; ".join(splits[reason]) + ": " * any(splits[reason]) + reason, n) for reason, n in counts.most_common()]
