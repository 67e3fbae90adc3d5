"""A picture as data: marks at places in pixels, x to the right and y downwards, in the order in which they are painted.

A :data:`Chart` draws on a :class:`Scene` of any width and says how high it got. One scene is painted as SVG
(:mod:`.svg`), for files and pages alike, and by matplotlib (:mod:`.canvas`) as PNG and PDF; so what a page shows and
what a file shows cannot differ. The widths of texts come from a table of DejaVu Sans, which is wider than what
browsers put in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from memwall.report.figures.colors import CLASS_SHAPES
from memwall.report.figures.labels import Box

Place = tuple[float, float]

#: advance widths of the characters from space to ``~`` in hundredths of the size, two hexadecimal digits each
_WIDTHS = (
    "20282e54405f4e1b272732542024202240404040404040404040222254545435644445464d3f3a4d4b1d1d4238564b4f"
    "3c4f453f3d494463453d452722275432323d3f373f3e233f3f1c1c3a1c613f3d3f3f2934273f3b523b3b3440224054"
)
FONT = 11.0


class Style(NamedTuple):
    """How a picture is drawn: pixels across (100 an inch), the font, and whether it has titles. With ``shapes`` a
    point's class shows in its shape as well, for grey print."""

    width: float = 1050
    font: str = "DejaVu Sans"
    titles: bool = True
    shapes: bool = False


#: name -> style, as ``--style`` takes them: ``paper`` is one column of two, in a serif font, only panels have titles
STYLES = {"screen": Style(), "paper": Style(width=350, font="STIXGeneral", titles=False, shapes=True)}


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text; ``y`` is its baseline. ``angle`` in degrees, counter-clockwise around the place."""

    x: float
    y: float
    text: str
    size: float = FONT
    anchor: str = "start"
    color: str = "ink"
    bold: bool = False
    angle: float = 0.0
    halo: bool = False

    @property
    def corners(self) -> tuple[Place, ...]:
        """The four corners of the box that it fills."""
        width = text_width(self.text, self.size, self.bold)
        left = {"start": 0.0, "middle": -width / 2, "end": -width}[self.anchor]
        sin, cos = math.sin(math.radians(-self.angle)), math.cos(math.radians(-self.angle))
        flat = [
            (left, -0.76 * self.size),
            (left + width, -0.76 * self.size),
            (left + width, 0.24 * self.size),
            (left, 0.24 * self.size),
        ]
        return tuple((self.x + x * cos - y * sin, self.y + x * sin + y * cos) for x, y in flat)

    @property
    def box(self) -> Box:
        """The upright box around it."""
        xs, ys = zip(*self.corners, strict=True)
        return Box(min(xs), min(ys), max(xs), max(ys))

    @property
    def boxes(self) -> list[Box]:
        """Small upright boxes along it that cover a slanted text closely."""
        if not self.angle % 90:
            return [self.box]
        (ax, ay), (bx, by), _, (dx, dy) = self.corners
        count = max(2, round(math.hypot(bx - ax, by - ay) / (0.8 * self.size)))
        found = []
        for i in range(count):
            x, y = (ax + dx) / 2 + (bx - ax) * (i + 0.5) / count, (ay + dy) / 2 + (by - ay) * (i + 0.5) / count
            half = 0.42 * self.size
            found.append(Box(x - half, y - half, x + half, y + half))
        return found


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line through some places."""

    places: Sequence[Place]
    color: str = "ink"
    width: float = 1.0
    dash: tuple[float, ...] = ()
    #: a gridline: labels may cross it
    faint: bool = False


@dataclass(frozen=True, slots=True)
class Area:
    """A filled polygon. ``title`` is what a reader sees who points at it; ``key``, the number of its row in the page's
    table of kernels."""

    places: Sequence[Place]
    color: str
    title: str = ""
    key: str = ""
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled rectangle, its label inside where there is room for some of it."""

    x: float
    y: float
    width: float
    height: float
    color: str
    title: str = ""
    key: str = ""
    label: str = ""
    size: float = 10.0
    #: pixels from the upper edge that the label stands in; 0: all
    head: float = 0.0
    #: whether it has a thin edge in the colour of the sheet
    edge: bool = False

    @property
    def text(self) -> Text | None:
        """As much of the label as fits; None where that is less than a few letters."""
        shown = fit(self.label, self.width - 6, self.size) if self.height >= self.size else ""
        if not shown:
            return None
        middle = self.y + (self.head or self.height) / 2 + self.size * 0.36
        return Text(self.x + 4, middle, shown, self.size, color=f"on {self.color}")


@dataclass(frozen=True, slots=True)
class Dot:
    """A point: a circle of radius ``r``, or another shape as large."""

    x: float
    y: float
    r: float
    color: str
    shape: str = "circle"
    title: str = ""
    key: str = ""
    hollow: bool = False
    edge: str = "card"

    @property
    def outline(self) -> list[Place]:
        """The corners of a shape that is no circle."""
        return [(self.x + dx * self.r, self.y + dy * self.r) for dx, dy in SHAPES[self.shape]]

    @property
    def box(self) -> Box:
        return Box(self.x - self.r, self.y - self.r, self.x + self.r, self.y + self.r)


@dataclass(frozen=True, slots=True)
class Dust:
    """Many small points of one colour, too many for a mark each."""

    places: Sequence[Place]
    color: str
    r: float = 1.3


#: name -> corners on the unit circle or near it
SHAPES: dict[str, tuple[Place, ...]] = {
    "circle": (),
    "square": ((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)),
    "triangle": ((0, -1), (1, 0.9), (-1, 0.9)),
    "diamond": ((0, -1.1), (1.1, 0), (0, 1.1), (-1.1, 0)),
    "down": ((-1, -0.8), (1, -0.8), (0, 1)),
    "left": ((0.8, -1), (0.8, 1), (-1, 0)),
    "right": ((-0.8, -1), (-0.8, 1), (1, 0)),
    "up": ((0, -1), (1, 0.8), (-1, 0.8)),
    "pentagon": ((0, -1), (0.95, -0.31), (0.59, 0.81), (-0.59, 0.81), (-0.95, -0.31)),
    "star": tuple((s * math.sin(a * math.pi / 5), -s * math.cos(a * math.pi / 5))
                  for a, s in zip(range(10), (1.2, 0.5) * 5, strict=True)),
    "cross": ((-0.35, -1), (0.35, -1), (0.35, -0.35), (1, -0.35), (1, 0.35), (0.35, 0.35), (0.35, 1), (-0.35, 1),
              (-0.35, 0.35), (-1, 0.35), (-1, -0.35), (-0.35, -0.35)),
    "bar": ((-1.1, -0.35), (1.1, -0.35), (1.1, 0.35), (-1.1, 0.35)),
    "post": ((-0.35, -1.1), (0.35, -1.1), (0.35, 1.1), (-0.35, 1.1)),
    "hexagon": tuple((math.cos(a * math.pi / 3), math.sin(a * math.pi / 3)) for a in range(6)),
}  # fmt: skip

Mark = Text | Stroke | Area | Rect | Dot | Dust


class Frame(NamedTuple):
    """Where on the sheet values stand: the box of the axes, the values at its edges (left, right and lower, upper),
    both on log scales, and what the axes say."""

    box: Box
    x: tuple[float, float]
    y: tuple[float, float]
    x_label: str
    y_label: str
    title: str


@dataclass
class Scene:
    """Marks on a sheet that is ``width`` pixels wide. A part of a scene draws on the same sheet, from its own corner;
    what is added to it is in its own pixels."""

    width: float
    style: Style = STYLES["screen"]
    marks: list[Mark] = field(default_factory=list)
    #: axes whose values a reader may want to add to
    frames: list[Frame] = field(default_factory=list)
    height: float = 0.0
    left: float = 0.0
    top: float = 0.0
    #: one of several, so that no style leaves its title out
    is_panel: bool = False

    @property
    def is_narrow(self) -> bool:
        """A phone, or one column of a paper."""
        return self.width < 600

    def part(self, x: float, y: float, width: float, *, panel: bool = False) -> Scene:
        left, top = self.left + x, self.top + y
        return Scene(width, self.style, self.marks, self.frames, 0.0, left, top, self.is_panel or panel)

    def text(self, x: float, y: float, text: str, size: float = FONT, anchor: str = "start", **look: object) -> Text:
        mark = Text(self.left + x, self.top + y, text, size, anchor, **look)  # type: ignore[arg-type]
        self.marks.append(mark)
        return mark

    def line(
        self, *places: Place, color: str = "ink", width: float = 1.0, dash: tuple[float, ...] = (), faint: bool = False
    ) -> None:
        self.marks.append(Stroke(self._moved(places), color, width, dash, faint))

    def area(self, places: Iterable[Place], color: str, title: str = "", key: str = "", opacity: float = 1.0) -> None:
        self.marks.append(Area(self._moved(places), color, title, key, opacity))

    def rect(self, x: float, y: float, width: float, height: float, color: str, **more: object) -> None:
        self.marks.append(Rect(self.left + x, self.top + y, width, height, color, **more))  # type: ignore[arg-type]

    def dot(self, x: float, y: float, r: float, color: str, shape: str = "circle", **more: object) -> Dot:
        if self.style.shapes and shape == "circle":
            shape = CLASS_SHAPES.get(color, shape)
        mark = Dot(self.left + x, self.top + y, r, color, shape, **more)  # type: ignore[arg-type]
        self.marks.append(mark)
        return mark

    def dust(self, places: Iterable[Place], color: str, r: float = 1.3) -> None:
        self.marks.append(Dust(self._moved(places), color, r))

    def arrow(self, tail: Place, head: Place, color: str = "ink", width: float = 1.0) -> None:
        """A line that ends in a small triangle."""
        (x0, y0), (x1, y1) = tail, head
        length = math.hypot(x1 - x0, y1 - y0)
        if length < 2:
            return
        ux, uy, size = (x1 - x0) / length, (y1 - y0) / length, min(7.0, length)
        foot = x1 - ux * size, y1 - uy * size
        self.line(tail, foot, color=color, width=width)
        side = size * 0.4
        self.area([head, (foot[0] - uy * side, foot[1] + ux * side), (foot[0] + uy * side, foot[1] - ux * side)], color)

    def _moved(self, places: Iterable[Place]) -> list[Place]:
        return [(self.left + x, self.top + y) for x, y in places]

    def moved(self, box: Box) -> Box:
        """A box of this part on the sheet."""
        return Box(box.left + self.left, box.upper + self.top, box.right + self.left, box.lower + self.top)

    # -- what charts share

    def title(self, text: str) -> float:
        """A bold title over as many lines as it needs, at the top; its height, 0 in a style without titles, which has
        only titles of panels."""
        if not (self.style.titles or self.is_panel):
            return 0.0
        size = 12.0 if self.is_narrow else 13.0
        y = 0.0
        for line in wrapped(text, self.width, size, bold=True):
            y += size * 1.35
            self.text(0, y, line, size, bold=True)
        return y + 8

    def note(self, y: float, text: str, size: float = 10.0) -> float:
        """Small print over as many lines as it needs; their height."""
        lines = wrapped(text, self.width, size)
        for number, line in enumerate(lines):
            self.text(0, y + 12 + 14 * number, line, size, color="dim")
        return 14.0 * len(lines) + 2

    def legend(self, y: float, entries: Sequence[tuple[str, str, str]], heading: str = "") -> float:
        """Entries of text, colour and shape (``line`` and ``dashed`` too), as many in a row as fit; their height."""
        x, row = 0.0, y + 11
        if heading:
            x = text_width(heading, FONT) + 14
            self.text(0, row, heading, color="dim")
        for text, color, shape in entries:
            wide = 16 + text_width(text, FONT) + 16
            if x and x + wide - 16 > self.width:
                x, row = 0.0, row + 17
            if shape in ("line", "dashed"):
                self.line(
                    (x, row - 4), (x + 12, row - 4), color=color, width=2, dash=(4, 3) if shape == "dashed" else ()
                )
            elif shape == "hollow":
                self.dot(x + 5, row - 4, 4.5, color, hollow=True)
            else:
                self.dot(x + 5, row - 4, 5, color, shape)
            self.text(x + 16, row, fit(text, self.width - 16, FONT) or text[:1])
            x += wide
        return row + 7 - y


#: draws on a scene and returns the height of what it drew
Chart = Callable[[Scene], float]


def drawn(chart: Chart, style: Style = STYLES["screen"], width: float | None = None) -> Scene:
    scene = Scene(width or style.width, style)
    scene.height = chart(scene)
    return scene


def stacked(charts: Sequence[Chart], gap: float = 26.0) -> Chart:
    """Charts one below the other."""
    return side_by_side(charts, math.inf, gap)


def side_by_side(charts: Sequence[Chart], least: float = 480.0, gap: float = 26.0, title: str = "") -> Chart:
    """Charts in rows of as many as are ``least`` pixels wide or wider, below a title."""

    def draw(scene: Scene) -> float:
        across = max(1, min(len(charts), int((scene.width + gap) // (least + gap))))
        wide, y = (scene.width - gap * (across - 1)) / across, scene.title(title) + 8 if title else 0.0
        for start in range(0, len(charts), across):
            row = charts[start : start + across]
            parts = [scene.part(i * (wide + gap), y, wide, panel=len(charts) > 1) for i in range(len(row))]
            y += max(chart(part) for chart, part in zip(row, parts, strict=True)) + gap
        return max(0.0, y - gap)

    return draw


# -- widths of texts ---------------------------------------------------------------------------------------------------


def text_width(text: str, size: float = FONT, bold: bool = False) -> float:
    """Pixels across, at most."""
    hundredths = sum(_width(char) for char in text)
    return hundredths * size * (1.13 if bold else 1.0) / 100


def _width(char: str) -> int:
    place = 2 * (ord(char) - 32)
    if 0 <= place < len(_WIDTHS):
        return int(_WIDTHS[place : place + 2], 16)
    return 64 if ord(char) < 0x250 else 100


def fit(text: str, width: float, size: float = FONT, end: int = 0) -> str:
    """A text cut before its last ``end`` letters to so many pixels; nothing where that leaves under three more."""
    if text_width(text, size) <= width:
        return text
    rest = f"…{text[len(text) - end :]}"
    room = width - text_width(rest, size)
    count = next((i for i in range(len(text)) if text_width(text[: i + 1], size) > room), 0)
    return f"{text[:count]}{rest}" if count >= 3 else ""


def wrapped(text: str, width: float, size: float = FONT, bold: bool = False) -> list[str]:
    """Lines of whole words, none wider than so many pixels where words allow."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, size, bold) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
