"""A roofline: roofs, every kernel a point, and arrows from where a group's ops ran eagerly to the fused kernel.

What is drawn is a :class:`Roofline`, whatever it was made from: schedules (:mod:`.profile`) or a trace (:mod:`.trace`).
A point's area grows with its share of the time. Labels stand along
their roof at its slope on the sheet, and next to their points, off everything else; a roof whose label has no room is
named in the legend.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from memwall.report.figures.axes import PlotAxis, draw_frame, draw_x, draw_y, engineering, plain
from memwall.report.figures.labels import Box, LabelLine, Placer
from memwall.report.figures.scene import Chart, Dot, Frame, Place, Scene, Text, fit, text_width

#: labels of points, pixels of one, and the least share of the time that gets one
MAX_LABELS, LONGEST_LABEL, NAMED = 12, 190.0, 0.01
#: a kernel of less than this share of the time does not stretch the axes
NOTABLE = 4e-3
#: points with a title of their own; the others, of less time, are dots of their colour
MAX_POINTS = 400
_FONT = 10.0

Range = tuple[float, float]


class Roof(NamedTuple):
    """A horizontal ceiling (FLOP/s) or a sloped one (B/s); dashed where the workload does not use it."""

    name: str
    label: str
    rate: float
    used: bool
    color: str = "ink"


class Spot(NamedTuple):
    """A kernel on a roofline: FLOP per byte, FLOP/s, its share of the time. ``tail``: where its arrow begins."""

    x: float
    y: float
    share: float
    color: str
    name: str = ""
    title: str = ""
    key: str = ""
    shape: str = "circle"
    edge: str = "card"
    tail: Place | None = None
    #: what stands at the tail: a hollow point (the ops before fusion), or nothing (where the model put a measured one)
    hollow: bool = True


@dataclass(frozen=True)
class Roofline:
    title: str
    roofs: Sequence[Roof]
    slopes: Sequence[Roof]
    spots: Sequence[Spot]
    y_label: str
    x_label: str = "arithmetic intensity, FLOP per DRAM byte"
    #: text, colour and shape
    legend: Sequence[tuple[str, str, str]] = ()
    legend_heading: str = "share of time"
    #: kernels without FLOPs: they stand in a row of their own
    bare: Sequence[Spot] = ()
    note: str = ""


def roofline_charts(rooflines: Sequence[Roofline]) -> list[Chart]:
    """A chart for each, all with the same axes, so that they can be compared."""
    ranges = _ranges(rooflines)
    longest = max((spot.share for roofline in rooflines for spot in roofline.bare), default=0.0)

    def chart(roofline: Roofline) -> Chart:
        return lambda scene: _draw(scene, roofline, *ranges, longest)

    return [chart(roofline) for roofline in rooflines]


def radius(share: float, narrow: bool = False) -> float:
    """Pixels; the area grows in proportion to the share above a visible least."""
    return math.sqrt(8 + 750 * share) * (0.8 if narrow else 1.0)


def _places(spots: Iterable[Spot]) -> Iterator[tuple[float, float, float]]:
    """Intensity, rate and radius of all that the axes must hold."""
    for spot in spots:
        if spot.share > NOTABLE:
            yield spot.x, spot.y, radius(spot.share)
            if spot.tail:
                yield *spot.tail, 5.0


def _ranges(rooflines: Sequence[Roofline]) -> tuple[Range, Range]:
    """Whole circles and all roofs fit; a pixel is taken as a 300th of an axis, as on the smallest sheet."""
    places = [*_places(chain.from_iterable(roofline.spots for roofline in rooflines))]
    tops = [roofline.roofs[0].rate for roofline in rooflines]
    ridges = [roof.rate / slope.rate for line in rooflines for roof in line.roofs for slope in line.slopes]
    x0 = max(min([0.1, *(x for x, _, _ in places)]), 1e-3)
    x1 = max([*(4 * ridge for ridge in ridges), *(x for x, _, _ in places)])
    y1 = max([*(3.0 * top for top in tops), *(y for _, y, _ in places)])
    y0 = max(min([max(tops) / 1e3, *(y for _, y, _ in places)]), max(tops) / 1e8)
    for _ in range(2):
        pixel_x, pixel_y = (x1 / x0) ** (1 / 240), (y1 / y0) ** (1 / 240)
        x0 = min([x0, *(x / pixel_x ** (r + 3) for x, _, r in places)])
        x1 = max([x1, *(x * pixel_x ** (r + 3) for x, _, r in places)])
        y0 = min([y0, *(y / pixel_y ** (r + 3) for _, y, r in places)])
        y1 = max([y1, *(y * pixel_y ** (r + 3) for _, y, r in places)])
    return (x0, x1), (y0, y1)


def _draw(scene: Scene, roofline: Roofline, x_range: Range, y_range: Range, longest: float) -> float:
    upper = scene.title(roofline.title)
    upper += _bare_row(scene, roofline.bare, upper + 6, longest) + 22
    left = 8 + max(text_width(engineering(10.0**p), _FONT) for p in range(3, 16))
    lower = upper + min(max(scene.width * 0.5, 290.0), 470.0)
    frame = Box(left, upper, scene.width - 2, lower)
    x = PlotAxis(*x_range, frame.left, frame.right, log=True)
    y = PlotAxis(*y_range, frame.lower, frame.upper, log=True)
    draw_x(scene, frame, x, plain, "" if scene.is_narrow else roofline.x_label)
    draw_y(scene, frame, y, engineering, roofline.y_label)
    draw_frame(scene, frame)
    box = scene.moved(frame)
    scene.frames.append(Frame(box, x_range, y_range, roofline.x_label, roofline.y_label, roofline.title))
    placer = Placer(box)
    pen = _Pen(scene, frame, x, y, placer)
    pen.roofs(roofline)
    dots = [pen.spot(spot) for spot in roofline.spots]
    unnamed = pen.name_roofs(roofline)
    pen.name_spots(zip(roofline.spots, dots, strict=True))
    height = lower + 36
    if scene.is_narrow:
        scene.text(scene.width / 2, lower + 30, fit(roofline.x_label, scene.width), anchor="middle")
    entries = [*roofline.legend, *unnamed, *pen.outside]
    height += scene.legend(height + 4, entries, roofline.legend_heading) + 4
    if roofline.note:
        height += scene.note(height, roofline.note)
    return height


#: what the row of kernels without FLOPs is called, on a wide sheet and on a phone
_BARE = ("kernels without FLOPs, the longest first", "no FLOPs")


def _bare_row(scene: Scene, spots: Sequence[Spot], upper: float, longest: float) -> float:
    """Kernels without FLOPs, which have no place on axes of FLOP/s: a row of their own above them, the longest first,
    those without room counted. Its height, as high as the share of the ``longest`` of all charts needs."""
    if not longest:
        return 0.0
    height = 2 * radius(longest, scene.is_narrow) + 4
    if not spots:
        return height + 4
    middle, label = upper + height / 2, _BARE[scene.is_narrow]
    scene.text(0, middle + 3.5, label, _FONT, color="dim")
    x, end = text_width(label, _FONT) + 10, scene.width - text_width(f"and {len(spots):,} more", _FONT) - 8
    for number, spot in enumerate(spots):
        r = radius(spot.share, scene.is_narrow)
        if x + 2 * r > end:
            scene.text(x + 4, middle + 3.5, f"and {len(spots) - number:,} more", _FONT, color="dim")
            break
        scene.dot(x + r, middle, r, spot.color, spot.shape, title=spot.title, key=spot.key)
        x += 2 * r + 2
    return height + 4


class _Pen:
    """Draws on one frame and remembers what labels must keep off."""

    def __init__(self, scene: Scene, frame: Box, x: PlotAxis, y: PlotAxis, placer: Placer) -> None:
        self.scene, self.frame, self.x, self.y, self.placer = scene, frame, x, y, placer
        self.sides: set[str] = set()

    @property
    def outside(self) -> list[tuple[str, str, str]]:
        """Entries of a legend for points beyond the axes."""
        where = {
            "left": "left of the axes",
            "right": "right of the axes",
            "down": "below the axes",
            "up": "above the axes",
        }
        return [(text, "dim", side) for side, text in where.items() if side in self.sides]

    def roofs(self, roofline: Roofline) -> None:
        for roof in roofline.roofs:
            fastest = max(slope.rate for slope in roofline.slopes if slope.color == roof.color)
            start = max(roof.rate / fastest, self.x.low)
            self._roof(roof, (start, roof.rate), (self.x.high, roof.rate))
        for slope in roofline.slopes:
            top = max(roof.rate for roof in roofline.roofs if roof.color == slope.color)
            low = max(self.x.low, self.y.low / slope.rate)
            self._roof(slope, (low, low * slope.rate), (top / slope.rate, top))

    def _roof(self, roof: Roof, start: Place, end: Place) -> None:
        places = [(self.x(a), self.y(b)) for a, b in (start, end)]
        look = {"width": 1.3} if roof.used else {"width": 1.0, "dash": (5.0, 4.0)}
        self.scene.line(*places, color=self._color(roof), **look)
        (x0, y0), (x1, y1) = places
        self.placer.lines.append(
            LabelLine(x0 + self.scene.left, y0 + self.scene.top, x1 + self.scene.left, y1 + self.scene.top)
        )

    @staticmethod
    def _color(roof: Roof) -> str:
        return roof.color if roof.used or roof.color != "ink" else "pale"

    def name_roofs(self, roofline: Roofline) -> list[tuple[str, str, str]]:
        """Put each roof's label along it, where there is room; legend entries of the others."""
        left_over = []
        for roof in (*roofline.roofs, *roofline.slopes):
            slope = roof in roofline.slopes
            placed = next((text for text in (self._along(roof, slope, roofline)) if self._keep(text)), None)
            if placed is None:
                left_over.append((roof.label, self._color(roof), "line" if roof.used else "dashed"))
        return left_over

    def _keep(self, text: Text) -> bool:
        if not self.placer.is_free(text.boxes):
            return False
        self.placer.labels += text.boxes
        self.scene.marks.append(text)
        return True

    def _along(self, roof: Roof, slope: bool, roofline: Roofline) -> Iterator[Text]:
        """Where a roof's label may stand, best first: above it, below it, sliding along."""
        color = "ink" if roof.used else "dim"
        width = text_width(roof.label, _FONT) + 4
        origin = self.scene.left, self.scene.top
        if slope:
            top = max(other.rate for other in roofline.roofs if other.color == roof.color)
            low = max(self.x.low, self.y.low / roof.rate)
            start, end = (self.x(low), self.y(low * roof.rate)), (self.x(top / roof.rate), self.y(top))
        else:
            fastest = max(other.rate for other in roofline.slopes if other.color == roof.color)
            start = (self.x(max(roof.rate / fastest, self.x.low)), self.y(roof.rate))
            end = (self.x.end, self.y(roof.rate))
        length = math.hypot(end[0] - start[0], end[1] - start[1])
        angle = math.atan2(start[1] - end[1], end[0] - start[0])
        steps = [i * 8 + 6.0 for i in range(max(1, int((length - width) / 8)))] if length > width else []
        for off in (5.0, -12.5):
            for at in steps if slope else reversed(steps):
                x = start[0] + at * math.cos(angle) - off * math.sin(angle)
                y = start[1] - at * math.sin(angle) - off * math.cos(angle)
                yield Text(x + origin[0], y + origin[1], roof.label, _FONT, color=color, angle=math.degrees(angle))

    def spot(self, spot: Spot) -> Dot:
        """Draw one; beyond the axes, as an arrowhead at the edge."""
        r = radius(spot.share, self.scene.is_narrow)
        if spot.shape != "circle":
            r = min(max(r, 3.2), 6.5)
        x, y, side = self._inside(spot.x, spot.y)
        if side:
            self.sides.add(side)
            spot, r = spot._replace(shape=side, tail=None), 3.5
        if spot.tail:
            tx, ty, _ = self._inside(*spot.tail)
            reach = math.hypot(x - tx, y - ty) or 1.0
            head = x + (tx - x) * min(1.0, r / reach), y + (ty - y) * min(1.0, r / reach)
            if spot.hollow:
                self.scene.dot(tx, ty, 4, spot.color, hollow=True)
                self.scene.arrow(
                    (tx + (x - tx) * min(1.0, 4 / reach), ty + (y - ty) * min(1.0, 4 / reach)), head, spot.color, 1.4
                )
            else:
                self.scene.line((tx, ty), head, width=0.9)
            line = LabelLine(tx + self.scene.left, ty + self.scene.top, x + self.scene.left, y + self.scene.top)
            self.placer.lines.append(line)
        dot = self.scene.dot(x, y, r, spot.color, spot.shape, title=spot.title, key=spot.key, edge=spot.edge)
        self.placer.boxes.append(dot.box)
        return dot

    def _inside(self, x: float, y: float) -> tuple[float, float, str]:
        """Pixels of a point, at the edge where it lies beyond the axes, and the side of the edge."""
        side = ""
        if not self.x.low <= x <= self.x.high:
            side = "left" if x < self.x.low else "right"
        if not self.y.low <= y <= self.y.high:
            side = "down" if y < self.y.low else "up"
        px = min(max(self.x(max(x, 1e-300)), self.x.start + 4), self.x.end - 4)
        py = min(max(self.y(max(y, 1e-300)), self.frame.upper + 4), self.frame.lower - 4)
        return px, py, side

    def name_spots(self, pairs: Iterable[tuple[Spot, Dot]]) -> None:
        """Names of the longest kernels, each once per colour, with a thin line where the label is apart from it."""
        seen: set[tuple[str, str]] = set()
        most = 6 if self.scene.is_narrow else MAX_LABELS
        for spot, dot in pairs:
            key = spot.name, spot.color
            if len(seen) >= most or not spot.name or spot.share < NAMED or key in seen or dot.shape in self.sides:
                continue
            name = fit(spot.name, LONGEST_LABEL, _FONT, end=len("_backward"))
            placed = self.placer.place(dot.x, dot.y, dot.r, text_width(name, _FONT) + 4, _FONT + 3)
            if placed is None:
                continue
            seen.add(key)
            box, leader = placed
            text = Text((box.left + box.right) / 2, box.lower - 4, name, _FONT, "middle", halo=True)
            self.scene.marks.append(text)
            if leader:
                ends = ((leader.x0, leader.y0), (leader.x1, leader.y1))
                self.scene.line(*((x - self.scene.left, y - self.scene.top) for x, y in ends), color="dim", width=0.7)
