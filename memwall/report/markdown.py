"""Documents as GitHub-flavoured Markdown. Every cell is escaped: no name can end a table, open a tag or a link."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from memwall.analysis.compare import Comparison
from memwall.analysis.whatif import Outcome
from memwall.record.profile import Profile
from memwall.report.document import Column, Document, Facts, Sentence, Table, clean
from memwall.report.pages.comparison import comparison_document
from memwall.report.pages.explanation import Explained, explanation_sections
from memwall.report.pages.profile import profile_document

#: characters that start Markdown or HTML anywhere in a line; ``_`` and ``*`` within names among them
_SPECIAL = re.compile(r"([\\`*_\[\]|~$#])")
_AUTOLINK = re.compile(r"(?i)(https?|ftp|mailto)(:)|(www)(\.)|(@)")


def render_markdown(
    profile: Profile, *, by: str = "op", top: int = 15, sort: str = "time", what_ifs: Sequence[Outcome] = (),
    explained: Explained = (),
) -> str:  # fmt: skip
    """The report of a profile."""
    document = profile_document(profile, by=by, top=top, sort=sort, what_ifs=what_ifs)
    sections = (*document.sections, *explanation_sections(profile, explained))
    return to_markdown(Document(document.title, sections))


def comparison_markdown(comparison: Comparison) -> str:
    """The report of a comparison."""
    return to_markdown(comparison_document(comparison))


def to_markdown(document: Document) -> str:
    """A document as Markdown."""
    lines = [f"# {escape(document.title)}", ""]
    for section in document.sections:
        if section.heading:
            lines += [f"## {escape(section.heading)}", ""]
        for block in section.blocks:
            lines += [*_BLOCKS[type(block)](block), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def escape(text: str) -> str:
    """A string as plain Markdown text: HTML entities for ``& < >``, backslashes for the rest, no automatic links."""
    text = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _SPECIAL.sub(r"\\\1", text)
    return _AUTOLINK.sub(lambda m: "".join(f"{g}" if g.isalpha() else f"&#{ord(g)};" for g in m.groups() if g), text)


def _facts(facts: Facts) -> list[str]:
    return [f"- **{escape(label)}**: {escape(text)}" for label, text in facts.items]


def _sentence(sentence: Sentence) -> list[str]:
    return [f"> **{escape(sentence.text)}**" if sentence.strong else escape(sentence.text)]


def _table(table: Table) -> list[str]:
    lines = [f"### {escape(table.title)}", ""] if table.title else []
    lines.append(_row([_heading(column) for column in table.columns]))
    lines.append("|" + "|".join("---:" if column.numeric else ":---" for column in table.columns) + "|")
    lines += [_row([escape(cell) for cell in row]) for row in table.rows]
    return [*lines, "", f"<sub>{escape(table.note)}</sub>"] if table.note else lines


def _heading(column: Column) -> str:
    return escape(column.label)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


_BLOCKS: dict[type, Callable[[Any], list[str]]] = {Facts: _facts, Sentence: _sentence, Table: _table}
