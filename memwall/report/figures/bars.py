"""Bars from zero: stacked shares, times by wall, memory by role; the only bars that there are.

Each bar has its name before it, on a narrow sheet above it, and a text behind it. Every axis begins at zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from memwall.report.figures.axes import PlotAxis, draw_x
from memwall.report.figures.labels import Box
from memwall.report.figures.scene import FONT, Chart, Scene, fit, text_width


class Piece(NamedTuple):
    """A part of a bar, one behind the other; ``start`` sets another place than the end of the one before."""

    name: str
    value: float
    color: str
    text: str = ""
    title: str = ""
    key: str = ""
    start: float | None = None


class Bar(NamedTuple):
    label: str
    pieces: Sequence[Piece]
    text: str = ""
    #: small print under the label
    where: str = ""
    #: an interval around the end of the bar
    interval: tuple[float, float] | None = None


#: pixels of a bar, and between two
_HEIGHT, _GAP, _SMALL = 20.0, 8.0, 9.5


def bars_chart(
    title: str,
    rows: Sequence[Bar],
    *,
    unit: str = "",
    most: float = 0.0,
    marks: Sequence[tuple[float, str, str]] = (),
    connect: bool = False,
) -> Chart:
    """Bars below each other, and below them the colour of each name of their pieces.

    Args:
        unit: what the axis below says; none draws no axis.
        most: where the axis ends at least.
        marks: places with a dashed line through all bars: value, text, colour.
        connect: join the end of each bar to the next one (a waterfall).
    """

    def draw(scene: Scene) -> float:
        y = scene.title(title) + (20 if marks else 0)
        above = scene.is_narrow
        labels = max((text_width(row.label, FONT) for row in rows), default=0.0)
        smalls = max((text_width(row.where, _SMALL) for row in rows), default=0.0)
        left = 0.0 if above else min(max(labels, smalls), 0.34 * scene.width) + 10
        after = max((text_width(row.text, FONT) for row in rows), default=0.0) + 8
        ends = [_end(row) for row in rows] + [row.interval[1] for row in rows if row.interval]
        highest = max([most, *ends, *(value for value, _, _ in marks)]) or 1.0
        axis = PlotAxis(0.0, highest, left, scene.width - after)
        places = _places(rows, y, above)
        last = (places[-1] if places else y) + _HEIGHT
        if unit:
            draw_x(scene, Box(left, y, scene.width, last + 6), axis, lambda v: f"{v:g}", unit)
        for row, at in zip(rows, places, strict=True):
            _bar(scene, row, at, axis, left, above)
        for value, text, color in marks:
            spans = [(at, at + _HEIGHT) for at in places] if above else [(y - 4, last + 4)]
            for start, end in spans:  # on a narrow sheet names stand between the bars
                scene.line((axis(value), start), (axis(value), end), color=color, width=1.4, dash=(5, 3))
            anchor = "start" if axis(value) + text_width(text) < scene.width else "end"
            scene.text(axis(value), y - 8, text, anchor=anchor, color=color)
        if connect:
            for row, at, below in zip(rows, places, places[1:], strict=False):
                scene.line((axis(_end(row)), at + _HEIGHT), (axis(_end(row)), below), color="dim", width=0.8)
        height = last + (42 if unit else 6)
        entries = _entries(rows, axis)
        return height + scene.legend(height, entries) if entries else height

    return draw


def _end(row: Bar) -> float:
    """Where a bar ends: the last piece's far side."""
    end = 0.0
    for piece in row.pieces:
        end = (end if piece.start is None else piece.start) + piece.value
    return end


def _places(rows: Sequence[Bar], y: float, above: bool) -> list[float]:
    """The upper edge of each bar."""
    places = []
    for row in rows:
        two = bool(row.where)
        y += (15 + 12 * two) if above else 4 * two
        places.append(y)
        y += _HEIGHT + _GAP + (0 if above else 4 * two)
    return places


def _bar(scene: Scene, row: Bar, y: float, axis: PlotAxis, left: float, above: bool) -> None:
    if above:
        scene.text(0, y - 4 - 12 * bool(row.where), fit(row.label, scene.width), halo=True)
        if row.where:
            scene.text(0, y - 4, fit(row.where, scene.width, _SMALL), _SMALL, color="dim")
    else:
        scene.text(left - 10, y + (9 if row.where else 14), fit(row.label, left - 10), anchor="end")
        if row.where:
            scene.text(left - 10, y + 20, fit(row.where, left - 10, _SMALL), _SMALL, "end", color="dim")
    at = far = 0.0
    room = axis(row.interval[0]) if row.interval else math.inf  # no label under the line of the interval
    for piece in row.pieces:
        at = at if piece.start is None else piece.start
        x0, x1 = sorted((axis(at), axis(at + piece.value)))
        fits = x0 + 6 + text_width(piece.text) < room and text_width(piece.text, 10.0) <= x1 - x0 - 6
        label = piece.text if fits else ""  # a number that is cut is another number
        scene.rect(
            x0,
            y,
            max(x1 - x0, 0.6 if piece.value else 0.0),
            _HEIGHT,
            piece.color,
            label=label,
            title=piece.title or f"{piece.name} {piece.text}".strip(),
            key=piece.key,
        )
        if x0 > axis(0) + 1 and piece.start is None:
            scene.line((x0, y), (x0, y + _HEIGHT), color="card", width=0.8)
        at += piece.value
        far = max(far, x1)
    if row.interval:
        low, high = map(axis, row.interval)
        middle = y + _HEIGHT / 2
        for color, width in (("card", 3.6), ("ink", 1.2)):
            scene.line((low, middle), (high, middle), color=color, width=width)
            for x in (low, high):
                scene.line((x, middle - 5), (x, middle + 5), color=color, width=width)
        far = max(far, high + 2)
    scene.text(far + 6, y + 14, row.text, halo=True)


def _entries(rows: Iterable[Bar], axis: PlotAxis) -> list[tuple[str, str, str]]:
    """Of the pieces that can be seen: half a pixel or more."""
    colors = {
        piece.name: piece.color
        for row in rows
        for piece in row.pieces
        if piece.name and abs(axis(piece.value) - axis(0)) >= 0.5
    }
    return [(name, color, "square") for name, color in colors.items()]
