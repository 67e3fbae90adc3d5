"""Documents as HTML: one self-contained page that works offline, fetches nothing and escapes every name.

:func:`blocks_html` writes blocks alone, for the pages of others. What a reader sorts and filters is JSON in the page,
which ``report.js`` renders with ``textContent`` alone.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from memwall.report.document import (
    OPTION,
    UNIT_BLANK,
    Block,
    Document,
    Facts,
    Glance,
    Markup,
    Panel,
    Picture,
    PictureChoice,
    Section,
    Sentence,
    ShellCommand,
    Table,
    clean,
)
from memwall.report.figures.colors import variables
from memwall.report.figures.scene import drawn
from memwall.report.figures.svg import escape as escape
from memwall.report.figures.svg import to_svg

_DATA = '<script type="application/json" id="data">{data}</script>\n'


def to_html(document: Document) -> str:
    nodes, contents, parts = document.whole, list[str](), list[str]()
    panels = [node for node in nodes if isinstance(node, Panel)]
    for node in nodes:
        if not isinstance(node, Panel):
            parts.append(_linked(node, contents))
            continue
        if node is panels[0] and len(panels) > 1:
            tabs = (
                f'<button type="button" role="tab" data-sim="{i}">{escape(panel.label)}</button>\n'
                for i, panel in enumerate(panels)
            )
            parts.append(f'<nav id="tabs" role="tablist" aria-label="GPUs and policies">\n{"".join(tabs)}</nav>')
        where = f' data-sim="{panels.index(node)}"' + ("" if node is panels[0] else " hidden")
        inside = "\n".join(_linked(section, contents, where) for section in node.sections)
        parts.append(f'<div class="panel"{where}>\n{inside}</div>\n')
    if len(contents) > 2:
        parts.insert(bool(document.answer), f'<nav id="contents" aria-label="contents">\n{"".join(contents)}</nav>')
    css = resource("report.css").replace("/*light*/", variables(dark=False)).replace("/*dark*/", variables(dark=True))
    js, body = "".join(map(resource, ("pictures.js", "report.js", "tables.js"))), "\n".join(parts)
    scripts = [js, *(text for node in nodes for text in _scripts(node))]
    return (
        resource("page.html")
        .rstrip("\n")
        .format(
            title=escape(document.title),
            style_hashes=_hashed([css]),
            script_hashes=_hashed(scripts),
            css=css,
            js=js,
            body=body,
            data=_DATA.format(data=document.data) if document.data else "",
        )
    )


def _scripts(node: Section | Panel) -> Iterator[str]:
    """The scripts that markup brings, which are the package's own."""
    for section in (node,) if isinstance(node, Section) else node.sections:
        yield from (block.script for block in section.blocks if isinstance(block, Markup) and block.script)


def _hashed(texts: Sequence[str]) -> str:
    """What a Content-Security-Policy calls these texts: nothing else on the page is run, or styles it."""
    digests = (b64encode(sha256(each.encode()).digest()).decode() for each in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def policy_of(page: str) -> str:
    """The Content-Security-Policy that a page states of itself: what allows nothing where it states none."""
    stated = _POLICY.search(page)
    return stated[1] if stated else "default-src 'none'"


def embed(data: Any) -> str:
    """JSON escaped for a script element: no ``<`` can close it or open a comment."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def resource(name: str) -> str:
    """A style sheet or script of the pages."""
    return (files("memwall.report") / "templates" / name).read_text(encoding="utf-8")


def section_html(section: Section, name: str = "") -> str:
    """A section as a card, which ``name`` links to."""
    look = f" {section.look}" if section.look else ""
    heading = f"<h2>{escape(section.heading)}</h2>" if section.heading else ""
    own = f' id="{name}"' if name else ""
    return f'<section class="card{look}"{own}>\n{heading}{blocks_html(section.blocks)}</section>\n'


def _linked(section: Section, contents: list[str], where: str = "") -> str:
    """A section, and its line among the contents if it has a heading; ``where`` is its panel's."""
    if not section.heading:
        return section_html(section)
    name = f"part-{len(contents) + 1}"
    short = re.sub(r" \([^()]*\)", "", section.heading, count=1)  # a GPU's name and policy, without its datasheet
    contents.append(f'<a href="#{name}"{where}>{escape(short)}</a>\n')
    return section_html(section, name)


def blocks_html(blocks: Iterable[Block]) -> str:
    """Blocks one below the other, each ending its line."""
    return "".join(f"{_BLOCKS[type(block)](block)}\n" for block in blocks)


_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')


def _prose(text: str) -> str:
    """A text with its options as code; no line ends between an option or a number and what belongs to it."""
    return OPTION.sub(_kept, UNIT_BLANK.sub("\N{NO-BREAK SPACE}", escape(text)))


def _kept(found: re.Match[str]) -> str:
    before, option, value = found.groups("")
    code = f"{before}<code>{option}</code>{value}"
    return f'<span class="kept">{code}</span>' if before or value else code


#: letters of a fact that has a line of its own
_LONG_FACT = 100


def _facts(facts: Facts) -> str:
    looks = (' class="long"' if len(text) > _LONG_FACT else "" for _, text in facts.items)
    rows = (
        f"<div{look}><dt>{escape(label)}</dt><dd>{_prose(text)}</dd></div>"
        for look, (label, text) in zip(looks, facts.items, strict=True)
    )
    return f"<dl>{''.join(rows)}</dl>"


def _glance(glance: Glance) -> str:
    cells = (
        f"<div><dt>{escape(label)}</dt><dd><b>{_prose(word)}</b></dd><dd>{_prose(behind)}</dd></div>"
        for label, word, behind in (map(clean, fact) for fact in glance.facts)
    )
    return f'<dl class="glance">{"".join(cells)}</dl>'


def _command(command: ShellCommand) -> str:
    text = escape(clean(command.text))
    return f'<p>{escape(clean(command.label))}:</p><pre class="command"><code>{text}</code></pre>'


def _sentence(sentence: Sentence) -> str:
    look = ' class="verdict"' if sentence.strong else ' class="note hint"' if sentence.screens else ""
    return f"<p{look}>{_prose(sentence.text)}</p>"


def _table(table: Table) -> str:
    sides = ["n" if column.numeric else "t" for column in table.columns]
    heads = (
        f'<th class="{side}">{escape(c.heading)}{f"<small>{escape(c.unit)}</small>" if c.unit else ""}</th>'
        for side, c in zip(sides, table.columns, strict=True)
    )
    cells = ("".join(map(_cell, sides, row)) for row in table.rows)
    rows = "".join(f"<tr>{row}</tr>\n" for row in cells)
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    note = f'<p class="note">{_prose(table.note)}</p>' if table.note else ""
    head = f"<thead><tr>{''.join(heads)}</tr></thead>"
    return f'{title}<div class="scroll"><table>\n{head}\n<tbody>\n{rows}</tbody></table></div>\n{note}'


class HtmlCell(str):
    """A cell that is HTML already."""


def _cell(side: str, text: str) -> str:
    """A cell; on paper a text of more than 14 letters may take several lines, and a word of more than 20 may break."""
    look = f"{side}{' wraps' * (len(text) > 14)}{' long' * any(len(word) > 20 for word in text.split())}"
    return f'<td class="{look}">{text if isinstance(text, HtmlCell) else _prose(text)}</td>'


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
    alone = " hidden" if len(choice.pictures) == 1 else ""
    return f'<div class="choice"><p class="picks"{alone}>{picks}</p>\n{shown}</div>'


_BLOCKS: dict[type, Callable[[Any], str]] = {
    Facts: _facts, Glance: _glance, ShellCommand: _command, Sentence: _sentence, Table: _table, Picture: _picture,
    PictureChoice: _choice,
    Markup: lambda markup: markup.html + (f"<script>{markup.script}</script>" if markup.script else ""),
}  # fmt: skip
