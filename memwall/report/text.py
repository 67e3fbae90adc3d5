"""Documents as text for a terminal: rich tables, no wrapped numbers, no markup from names.

Only flexible columns give way when the width is short: kernel names lose their end, module paths too.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from memwall.report.document import Document, Facts, Section, Sentence, Table

DEFAULT_WIDTH = 118
INDENT, GAP, NARROWEST = 2, 2, 12
_WALL_STYLE = {"compute": "green", "bandwidth": "yellow", "overhead": "magenta", "NO": "bold red",
               "FAIL": "bold red", "inconclusive": "bold yellow", "pass": "green"}  # fmt: skip


def to_text(document: Document, *, width: int | None = None, color: bool = False) -> str:
    """A document as text, lines at most ``width`` wide, no trailing blanks."""
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=width or DEFAULT_WIDTH, force_terminal=color, color_system="standard" if color else None,
        highlight=False, markup=False, emoji=False, legacy_windows=False, _environ={})  # fmt: skip
    console.print(Text(document.title, style="bold"))
    for section in document.sections:
        assert isinstance(section, Section)
        if section.heading:
            console.print()
            console.print(Text(f"── {section.heading} ", style="bold cyan"))
        for i, block in enumerate(section.blocks):
            if i and isinstance(block, Facts):
                console.print()
            _PRINTERS[type(block)](console, block)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _print_facts(console: Console, facts: Facts) -> None:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in facts.items:
        grid.add_row(Text(label), Text(text))
    console.print(Padding(grid, (0, 0, 0, 2)))


def _print_sentence(console: Console, sentence: Sentence) -> None:
    console.print()
    console.print(Padding(Text(sentence.text, style="bold" if sentence.strong else ""), (0, 0, 0, 2)))


def _print_table(console: Console, table: Table) -> None:
    console.print()
    if table.title:
        console.print(Text(table.title, style="bold"))
    grid = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    columns = fit(table, console.width - INDENT)
    for index, width in columns:
        column = table.columns[index]
        heading = Text(f"{column.heading}\n{column.unit}" if column.unit else column.heading)
        grid.add_column(
            heading, justify="right" if column.numeric else "left", width=width,
            no_wrap=not column.wraps, overflow="fold" if column.wraps else "ellipsis")  # fmt: skip
    for row in table.rows:
        grid.add_row(*(Text(row[i], style=_WALL_STYLE.get(row[i], "")) for i, _ in columns))
    usual = console.width
    console.width = max(usual, sum(width + GAP for _, width in columns) + INDENT)
    console.print(Padding(grid, (0, 0, 0, INDENT)))
    console.width = usual
    if table.note:
        console.print(Padding(Text(table.note, style="dim"), (0, 0, 0, INDENT)))


def fit(table: Table, width: int) -> list[tuple[int, int]]:
    """Which columns to show and how wide, so that the table is at most ``width`` wide if it can be.

    Flexible columns shrink to ``NARROWEST`` first; then optional ones go, the last first. Numbers are never cut.
    """
    natural = [
        max(cell_len(text) for text in (column.heading, column.unit, *(row[i] for row in table.rows)))
        for i, column in enumerate(table.columns)
    ]
    shown = list(range(len(natural)))
    least = [
        min(n, NARROWEST) if c.flexible else min(n, 2 * NARROWEST) if c.wraps else n
        for n, c in zip(natural, table.columns, strict=True)
    ]
    for index in [i for i in reversed(shown) if table.columns[i].optional]:
        if sum(least[i] + GAP for i in shown) - GAP > width:
            shown.remove(index)
    spare = width - (sum(least[i] + GAP for i in shown) - GAP)
    widths = {i: least[i] for i in shown}
    while spare > 0 and (short := [i for i in shown if widths[i] < natural[i]]):
        thinnest = min(short, key=widths.__getitem__)
        widths[thinnest] += 1
        spare -= 1
    return list(widths.items())


_PRINTERS: dict[type, Callable[[Console, Any], None]] = {
    Facts: _print_facts, Sentence: _print_sentence, Table: _print_table,
}  # fmt: skip
