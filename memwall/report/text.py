"""Documents as text for a terminal: rich tables, no wrapped numbers, no markup from names.

Only flexible columns give way when the width is short: kernel names lose their end, module paths their start. What is
still too wide goes on in a second table below.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from memwall.report.columns import AFTER
from memwall.report.document import OPTION, UNIT_BLANK, Document, Facts, Section, Sentence, ShellCommand, Table, clean

DEFAULT_WIDTH = 118
INDENT, GAP, NARROWEST, WIDEST_CUT = 2, 2, 12, 36
#: a number and its unit, an option and its value stay on one line: rich breaks at every blank, so theirs is another
#: character until the end
_JOINED = "\ue000"
_WALL_STYLE = {"compute": "green", "bandwidth": "yellow", "latency": "blue", "overhead": "magenta", "NO": "bold red",
               "FAIL": "bold red", "inconclusive": "bold yellow", "pass": "green"}  # fmt: skip


def to_text(document: Document, *, width: int | None = None, color: bool = False) -> str:
    """A document as text, lines at most ``width`` wide, no trailing blanks. Without a width nothing is cut or left out:
    tables are as wide as they need, and prose is ``DEFAULT_WIDTH`` wide."""
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width or DEFAULT_WIDTH,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    console.print(Text(document.title, style="bold"))
    first, *_ = document.whole or (None,)
    for section in document.whole:
        assert isinstance(section, Section)
        if section.heading:
            console.print()
            console.print(Text(f"── {section.heading} ", style="bold cyan"))
        for i, block in enumerate(section.blocks):
            if isinstance(block, Facts) and (i or (not section.heading and section is not first)):
                console.print()
            if isinstance(block, Table):
                _print_table(console, block, width)
            else:
                _PRINTERS[type(block)](console, block)
    return "\n".join(line.rstrip() for line in buffer.getvalue().replace(_JOINED, " ").splitlines()) + "\n"


def _joined(text: str) -> str:
    return OPTION.sub(lambda found: found[0].replace(" ", _JOINED), UNIT_BLANK.sub(_JOINED, text))


def _print_facts(console: Console, facts: Facts) -> None:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in facts.items:
        grid.add_row(Text(label), Text(_joined(text)))
    console.print(Padding(grid, (0, 0, 0, 2)))


def _print_sentence(console: Console, sentence: Sentence) -> None:
    console.print()
    console.print(Padding(Text(_joined(sentence.text), style="bold" if sentence.strong else ""), (0, 0, 0, 2)))


def _print_command(console: Console, command: ShellCommand) -> None:
    console.print()
    console.print(Padding(Text(f"{clean(command.label)}:"), (0, 0, 0, INDENT)))
    console.print(Text(f"{' ' * 2 * INDENT}{clean(command.text)}"), soft_wrap=True)


def _print_table(console: Console, table: Table, width: int | None) -> None:
    console.print()
    if table.title:
        console.print(Text(table.title, style="bold"))
    shown = fit(table, width and width - INDENT)
    for i, columns in enumerate(_stacked(table, shown, width and width - INDENT)):
        if i:
            console.print()
        _print_columns(console, table, columns)
    names = {table.columns[i].heading for i, _ in shown}
    if note := table.note_without({column.heading for column in table.columns} - names):
        console.print(Padding(Text(_joined(note), style="dim"), (0, 0, 0, INDENT)))


def _print_columns(console: Console, table: Table, columns: Sequence[tuple[int, int]]) -> None:
    grid = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for index, width in columns:
        column = table.columns[index]
        heading = Text(f"{column.heading}\n{column.unit}" if column.unit else column.heading)
        grid.add_column(
            heading,
            justify="right" if column.numeric else "left",
            width=width,
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
        )
    for row in table.rows:
        cells = ((cut(row[i], width) if table.columns[i].tail else row[i], row[i]) for i, width in columns)
        grid.add_row(*(Text(cell, style=_WALL_STYLE.get(whole, "")) for cell, whole in cells))
    usual = console.width
    console.width = max(usual, _width(columns) + INDENT)
    console.print(Padding(grid, (0, 0, 0, INDENT)))
    console.width = usual


def _width(columns: Sequence[tuple[int, int]]) -> int:
    return sum(width + GAP for _, width in columns) - GAP


def cut(path: str, width: int) -> str:
    """The end of a path of modules: ``…layers.3.linear1``, from after a dot if that costs few characters."""
    if cell_len(path) <= width:
        return path
    start = max(len(path) - width + 1, 0)
    while cell_len(path[start:]) >= width:  # some characters are two cells wide
        start += 1
    dot = path.find(".", start - 1, start + width // 4)
    return f"…{path[max(dot + 1, start) :]}"


def fit(table: Table, width: int | None) -> list[tuple[int, int]]:
    """Which columns to show and how wide, so that the table is at most ``width`` wide if it can be; without a width
    all, and only prose wraps.

    Flexible columns shrink first, as long as what differs still does; then optional ones go, the last first; then
    flexible ones shrink to ``NARROWEST``. Numbers are never cut. Where all that is not enough every column stays, for
    tables below each other.
    """
    cells = [[column.heading, column.unit, *(row[i] for row in table.rows)] for i, column in enumerate(table.columns)]
    natural = [max(map(cell_len, texts)) for texts in cells]
    if width is None:
        least = [min(n, 5 * NARROWEST) if c.wraps else n for n, c in zip(natural, table.columns, strict=True)]
        width = max(DEFAULT_WIDTH, _width([*enumerate(least)]))
    else:
        least = [
            _distinct(texts, n, tail=c.tail) if c.flexible else min(n, 2 * NARROWEST) if c.wraps else n
            for n, c, texts in zip(natural, table.columns, cells, strict=True)
        ]
    shown = list(range(len(natural)))
    words = [_longest_word(texts) if c.wraps else 0 for texts, c in zip(cells, table.columns, strict=True)]
    least = [max(n, word) for n, word in zip(least, words, strict=True)]
    narrowest = [
        max(min(n, NARROWEST), word) if c.flexible else n
        for n, word, c in zip(least, words, table.columns, strict=True)
    ]
    optional = [i for i in shown if table.columns[i].optional]
    if _width([(i, narrowest[i]) for i in shown if i not in optional]) > width:
        least, optional = narrowest, []
    while _width([(i, least[i]) for i in shown]) > width and optional:
        shown.remove(last := optional.pop())
        if table.columns[last].heading == AFTER and last - 1 in optional:  # a figure before and after go together
            shown.remove(optional.pop())
    if _width([(i, least[i]) for i in shown]) > width:
        least = narrowest
    spare = width - _width([(i, least[i]) for i in shown])
    widths = {i: least[i] for i in shown}
    while spare > 0 and (short := [i for i in shown if widths[i] < natural[i]]):
        thinnest = min(short, key=widths.__getitem__)
        widths[thinnest] += 1
        spare -= 1
    return list(widths.items())


def _longest_word(texts: Sequence[str]) -> int:
    """Cells of the longest word, up to ``WIDEST_CUT``: in fewer, prose would break within it."""
    return min(max((cell_len(word) for text in texts for word in text.split()), default=0), WIDEST_CUT)


def _distinct(texts: Sequence[str], natural: int, *, tail: bool) -> int:
    """The least width at which texts that differ still do, from ``NARROWEST`` to ``WIDEST_CUT``."""
    shorten = cut if tail else lambda text, width: text[: width - 1] if len(text) > width else text
    kinds = set(texts)
    widths = range(min(natural, NARROWEST), min(natural, WIDEST_CUT))
    return next((w for w in widths if len({shorten(text, w) for text in kinds}) == len(kinds)), widths.stop)


def _stacked(table: Table, columns: list[tuple[int, int]], width: int | None) -> Iterator[list[tuple[int, int]]]:
    """The columns in as many tables as the page is too narrow for, each of which begins with columns that say what a
    row is: the first ones that tell all rows apart, of the columns before the first figure with a unit; all before the
    first number where none do; or the first alone where the others leave no room."""
    kinds = [table.columns[i] for i, _ in columns]
    figure = next((n for n, kind in enumerate(kinds) if kind.numeric and kind.unit), len(kinds))
    number = max(next((n for n, kind in enumerate(kinds) if kind.numeric), len(kinds)), 1)
    named = [[row[i] for i, _ in columns[:figure]] for row in table.rows]
    apart = (n for n in range(1, figure + 1) if len({tuple(row[:n]) for row in named}) == len(named))
    keys = columns[: next(apart, number)]
    if width is not None and _width([*keys, *sorted(columns[len(keys) :], key=lambda each: -each[1])[:1]]) > width:
        keys = columns[:1]
    part, rest = [*keys], columns[len(keys) :]
    for column in rest:
        if width is not None and len(part) > len(keys) and _width([*part, column]) > width:
            yield part
            part = [*keys]
        part.append(column)
    yield part


_PRINTERS: dict[type, Callable[[Console, Any], None]] = {
    Facts: _print_facts, ShellCommand: _print_command, Sentence: _print_sentence,
}  # fmt: skip
