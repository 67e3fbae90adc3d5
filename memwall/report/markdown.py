"""Documents as GitHub-flavoured Markdown. Every cell is escaped: no name can end a table, open a tag or a link."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from memwall.report.document import Document, Facts, Section, Sentence, ShellCommand, Table, clean

#: characters that start Markdown or HTML anywhere in a line; ``_`` and ``*`` within names among them
_SPECIAL = re.compile(r"([\\`*_\[\]|~$#])")
_AUTOLINK = re.compile(r"(?i)(https?|ftp|mailto)(:)|(www)(\.)|(@)")


def to_markdown(document: Document) -> str:
    lines = [f"# {escape(document.title)}", ""]
    for section in document.whole:
        assert isinstance(section, Section)
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


def row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _facts(facts: Facts) -> list[str]:
    return [f"- **{escape(label)}**: {escape(text)}" for label, text in facts.items]


def _command(command: ShellCommand) -> list[str]:
    return [f"{escape(command.label)}:", "", f"    {clean(command.text)}"]


def _sentence(sentence: Sentence) -> list[str]:
    return [f"> **{escape(sentence.text)}**" if sentence.strong else escape(sentence.text)]


def _table(table: Table) -> list[str]:
    lines = [f"### {escape(table.title)}", ""] if table.title else []
    lines.append(row(escape(column.label) for column in table.columns))
    lines.append("|" + "|".join("---:" if column.numeric else ":---" for column in table.columns) + "|")
    lines += [row(map(escape, cells)) for cells in table.rows]
    return [*lines, "", f"<sub>{escape(table.note)}</sub>"] if table.note else lines


_BLOCKS: dict[type, Callable[[Any], list[str]]] = {
    Facts: _facts, ShellCommand: _command, Sentence: _sentence, Table: _table,
}  # fmt: skip
