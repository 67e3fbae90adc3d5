"""Documents as HTML: one self-contained page that works offline, fetches nothing and escapes every name.

:func:`blocks_html` writes blocks alone, for the pages of others. What a reader sorts and filters is JSON in the page,
which ``report.js`` renders with ``textContent`` alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Any

from memwall.report.document import (
    Block,
    Document,
    Facts,
    Markup,
    Panel,
    Picture,
    PictureChoice,
    Section,
    Sentence,
    Table,
)
from memwall.report.figures.colors import variables
from memwall.report.figures.scene import drawn
from memwall.report.figures.svg import escape as escape
from memwall.report.figures.svg import to_svg

_DATA = '<script type="application/json" id="data">{data}</script>\n'


def to_html(document: Document) -> str:
    panels = [node for node in document.sections if isinstance(node, Panel)]
    parts = []
    for node in document.sections:
        if not isinstance(node, Panel):
            parts.append(section_html(node))
            continue
        if node is panels[0] and len(panels) > 1:
            tabs = (
                f'<button type="button" role="tab" data-sim="{i}">{escape(panel.label)}</button>\n'
                for i, panel in enumerate(panels)
            )
            parts.append(f'<nav id="tabs" role="tablist">\n{"".join(tabs)}</nav>')
        hidden = "" if node is panels[0] else " hidden"
        inside = "\n".join(map(section_html, node.sections))
        parts.append(f'<div class="panel" data-sim="{panels.index(node)}"{hidden}>\n{inside}</div>\n')
    css = resource("report.css").replace("/*light*/", variables(dark=False)).replace("/*dark*/", variables(dark=True))
    return (
        resource("page.html")
        .rstrip("\n")
        .format(
            title=escape(document.title),
            css=css,
            js=resource("report.js") + resource("tables.js"),
            body="\n".join(parts),
            data=_DATA.format(data=document.data) if document.data else "",
        )
    )


def embed(data: Any) -> str:
    """JSON escaped for a script element: no ``<`` can close it or open a comment."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def resource(name: str) -> str:
    """A style sheet or script of the pages."""
    return (files("memwall.report") / "templates" / name).read_text(encoding="utf-8")


def section_html(section: Section) -> str:
    """A section as a card."""
    look = f" {section.look}" if section.look else ""
    heading = f"<h2>{escape(section.heading)}</h2>" if section.heading else ""
    return f'<section class="card{look}">\n{heading}{blocks_html(section.blocks)}</section>\n'


def blocks_html(blocks: Iterable[Block]) -> str:
    """Blocks one below the other, each ending its line."""
    return "".join(f"{_BLOCKS[type(block)](block)}\n" for block in blocks)


def _facts(facts: Facts) -> str:
    rows = (f"<div><dt>{escape(label)}</dt><dd>{escape(text)}</dd></div>" for label, text in facts.items)
    return f"<dl>{''.join(rows)}</dl>"


def _sentence(sentence: Sentence) -> str:
    look = ' class="verdict"' if sentence.strong else ""
    return f"<p{look}>{escape(sentence.text)}</p>"


def _table(table: Table) -> str:
    sides = ["n" if column.numeric else "t" for column in table.columns]
    heads = (
        f'<th class="{side}">{escape(c.heading)}{f"<small>{escape(c.unit)}</small>" if c.unit else ""}</th>'
        for side, c in zip(sides, table.columns, strict=True)
    )
    cells = ("".join(map(_cell, sides, row)) for row in table.rows)
    rows = "".join(f"<tr>{row}</tr>\n" for row in cells)
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    head = f"<thead><tr>{''.join(heads)}</tr></thead>"
    return f'{title}<div class="scroll"><table>\n{head}\n<tbody>\n{rows}</tbody></table></div>\n{note}'


class HtmlCell(str):
    """A cell that is HTML already."""


def _cell(side: str, text: str) -> str:
    """A cell; on paper a text with a word of more than 14 letters may break anywhere."""
    long = " long" * any(len(word) > 14 for word in text.split())
    return f'<td class="{side}{long}">{text if isinstance(text, HtmlCell) else escape(text)}</td>'


#: pixels across of a picture on a wide page and on a phone
_WIDTHS = {"wide": 1000.0, "narrow": 380.0}


def _picture(picture: Picture) -> str:
    """The chart for a wide page and for a phone, of which the style sheet shows one."""
    drawings = "\n".join(
        to_svg(drawn(picture.chart, width=width), label=picture.label, themed=True, look=f"chart {look}")
        for look, width in _WIDTHS.items()
    )
    note = f'<p class="note">{escape(picture.note)}</p>\n' if picture.note else ""
    return f"{drawings}\n{note}"


def _choice(choice: PictureChoice) -> str:
    picks = "".join(
        f'<button type="button" data-pick="{i}">{escape(label)}</button>\n'
        for i, (label, _) in enumerate(choice.pictures)
    )
    shown = "".join(
        f'<div data-pick="{i}"{" hidden" if i else ""}>\n{_picture(picture)}</div>\n'
        for i, (_, picture) in enumerate(choice.pictures)
    )
    return f'<div class="choice"><p class="picks">{picks}</p>\n{shown}</div>'


_BLOCKS: dict[type, Callable[[Any], str]] = {
    Facts: _facts, Sentence: _sentence, Table: _table, Picture: _picture, PictureChoice: _choice,
    Markup: lambda markup: markup.html,
}  # fmt: skip
