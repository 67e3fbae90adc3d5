"""Modules as a flame graph and as a treemap, by time, by bytes and by the memory that is alive at the peak.

Trees of several policies share a scale: a fused step is as much shorter, or smaller, as it is faster. In a flame graph
a module's width is what it costs, and what is inside it hangs below; in a treemap its area is. Colours are of the
wall that most of a module's time stands under; memory has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from memwall.analysis.modules import ITSELF, WHOLE, ModuleRow
from memwall.analysis.table import share
from memwall.core.units import duration, percent, size
from memwall.report.document import clean
from memwall.report.figures.colors import SIGN_COLORS, WALL_COLORS
from memwall.report.figures.labels import Box
from memwall.report.figures.scene import Chart, Rect, Scene

#: pixels of a row of a flame graph, of the head of a treemap's module, and the least that a module must have
_ROW, _HEAD, _LEAST = 19.0, 15.0, 1.0
#: pixels between two treemaps, and across one at least
_BETWEEN, _SMALLEST = 16.0, 310.0
#: share of the whole from which on a module is drawn
_NOTABLE = 1e-3


class Metric(NamedTuple):
    """What a module's width or area shows."""

    title: str
    of: Callable[[ModuleRow], float]
    text: Callable[[float], str]


METRICS: Mapping[str, Metric] = {
    "time": Metric("modeled time", lambda row: row.time_s, duration),
    "bytes": Metric("DRAM bytes", lambda row: row.bytes, size),
    "memory": Metric("memory alive at the peak", lambda row: row.memory_bytes or 0, size),
}

Trees = Sequence[tuple[str, ModuleRow]]


def flame_chart(title: str, trees: Trees, metric: str) -> Chart:
    """One flame graph below the other, from labelled trees."""

    def draw(scene: Scene) -> float:
        chosen = METRICS[metric]
        y, start = scene.title(f"{title}: modules by {chosen.title}"), len(scene.marks)
        whole = max((chosen.of(tree) for _, tree in trees), default=0.0)
        for number, (label, tree) in enumerate(trees):
            value = chosen.of(tree)
            scene.text(0, y + 11, f"{label}: {chosen.text(value)}")
            y += 17
            width = scene.width * share(value, whole)
            painter = _Painter(scene, chosen, number, value, _walled(metric))
            y = painter.flame(tree, 0.0, y, width, "") + 12
        return _legend(scene, y - 4, metric, start)

    return draw


#: of a module's time, what it changes to be drawn as changed
_CHANGED = 0.01


def difference_chart(title: str, before: ModuleRow, after: ModuleRow, metric: str) -> Chart:
    """A differential flame graph: the modules as they are, as wide as what they cost now, in the colours of what costs
    more and what costs less than before."""
    known = dict(_by_path(before, ""))
    chosen = METRICS[metric]

    def changed(row: ModuleRow, path: str) -> tuple[str, str]:
        old, new = (chosen.of(known[path, row.key]) if (path, row.key) in known else 0.0), chosen.of(row)
        change = new - old
        told = f", {'+' if change > 0 else '-'}{chosen.text(abs(change))}" if change else ", as before"
        if abs(change) <= _CHANGED * max(old, new):
            return "pale", told
        return SIGN_COLORS["worse" if change > 0 else "better"], told

    def draw(scene: Scene) -> float:
        value = chosen.of(after)
        y = scene.title(f"{title}: {chosen.title} of modules, compared with the baseline")
        scene.text(0, y + 11, f"{chosen.text(value)}, before {chosen.text(chosen.of(before))}")
        painter = _Painter(scene, chosen, 0, value, changed)
        y = painter.flame(after, 0.0, y + 17, scene.width, "") + 8
        entries = [("more", SIGN_COLORS["worse"], "square"), ("less", SIGN_COLORS["better"], "square")]
        return y + scene.legend(y, [*entries, ("as before", "pale", "square")])

    return draw


def _by_path(row: ModuleRow, path: str) -> Iterator[tuple[tuple[str, str], ModuleRow]]:
    """A module and all inside it, by where it is and its name."""
    yield (path, row.key), row
    for child in row.children:
        yield from _by_path(child, _inside(path, child))


def treemap_chart(title: str, trees: Trees, metric: str) -> Chart:
    """Treemaps side by side, from labelled trees; on a narrow sheet below each other."""

    def draw(scene: Scene) -> float:
        chosen = METRICS[metric]
        top, start = scene.title(f"{title}: modules by {chosen.title}"), len(scene.marks)
        across = max(1, min(len(trees), int((scene.width + _BETWEEN) // (_SMALLEST + _BETWEEN))))
        wide = (scene.width - _BETWEEN * (across - 1)) / across
        high = min(0.62 * wide, 440.0)
        whole = max((chosen.of(tree) for _, tree in trees), default=0.0)
        bottom = y = top
        for number, (label, tree) in enumerate(trees):
            x = number % across * (wide + _BETWEEN)
            y = y if number % across else bottom
            part = share(chosen.of(tree), whole) ** 0.5
            scene.text(x, y + 11, f"{label}: {chosen.text(chosen.of(tree))}")
            painter = _Painter(scene, chosen, number, chosen.of(tree), _walled(metric))
            painter.treemap(tree, Box(x, y + 17, x + wide * part, y + 17 + high * part), "")
            bottom = max(bottom, y + 17 + high * part + 12)
        return _legend(scene, bottom - 4, metric, start)

    return draw


def _legend(scene: Scene, y: float, metric: str, start: int) -> float:
    """The walls of the marks since some number; memory has no colours."""
    if metric == "memory":
        return y
    colors = {mark.color for mark in scene.marks[start:] if isinstance(mark, Rect)}
    entries = [(wall, color, "square") for wall, color in WALL_COLORS.items() if color in colors]
    return y + scene.legend(y, entries, "most of its time under")


#: a module and its path → its colour, and what else is said of it
_ModuleLook = Callable[[ModuleRow, str], tuple[str, str]]


def _walled(metric: str) -> _ModuleLook:
    """The colour of the wall that most of a module's time stands under; memory has none."""
    return lambda row, _: ("pale" if metric == "memory" else WALL_COLORS.get(row.limited_by, "pale"), "")


class _Painter:
    """Draws one tree."""

    def __init__(self, scene: Scene, metric: Metric, number: int, whole: float, look: _ModuleLook) -> None:
        self.scene, self.metric, self.number, self.whole, self.look = scene, metric, number, whole, look

    def flame(self, row: ModuleRow, x: float, y: float, width: float, path: str) -> float:
        """A module and below it what is inside; returns the lower edge."""
        self._rect(row, Box(x, y, x + width - 0.7, y + _ROW - 1), path)
        lower, value = y + _ROW, self.metric.of(row)
        for child in self._children(row):
            own = width * share(self.metric.of(child), value)
            if own >= _LEAST:
                lower = max(lower, self.flame(child, x, y + _ROW, own, _inside(path, child)))
            x += own
        return lower

    def treemap(self, row: ModuleRow, box: Box, path: str) -> None:
        """A module, its name at its head, and what is inside it."""
        self._rect(row, box, path)
        children = self._children(row)
        inner = Box(box.left + 2, box.upper + _HEAD, box.right - 2, box.lower - 2)
        if children and inner.right - inner.left > 12 and inner.lower - inner.upper > 8:
            areas = [share(self.metric.of(child), self.metric.of(row)) for child in children]
            for child, place in zip(children, squarified(areas, inner), strict=True):
                if place.right - place.left >= _LEAST and place.lower - place.upper >= _LEAST:
                    self.treemap(child, place, _inside(path, child))

    def _children(self, row: ModuleRow) -> list[ModuleRow]:
        found = [child for child in row.children if self.metric.of(child) > _NOTABLE * self.whole]
        return sorted(found, key=self.metric.of, reverse=True)

    def _rect(self, row: ModuleRow, box: Box, path: str) -> None:
        value = self.metric.of(row)
        count = f" x{row.count}" if row.count > 1 else ""
        name = clean(row.key) + count
        color, more = self.look(row, path)
        text = f"{name}: {self.metric.text(value)}{more}, {percent(share(value, self.whole))}"
        high = box.lower - box.upper
        self.scene.rect(
            box.left,
            box.upper,
            box.right - box.left,
            high,
            color,
            title=text,
            label=name,
            key=f"zoom:{self.number}:{clean(path)}",
            head=min(high, 18.0),
            edge=True,
        )


def _inside(path: str, child: ModuleRow) -> str:
    """The path of a module as the table of kernels has it."""
    return path if child.key in (WHOLE, ITSELF) else f"{path}.{child.key}".strip(".")


def squarified(areas: Sequence[float], box: Box) -> list[Box]:
    """Rectangles of these areas, largest first, that fill a box and are as square as may be (Bruls, Huizing, van Wijk
    2000)."""
    width, height = box.right - box.left, box.lower - box.upper
    scale = share(width * height, sum(areas))
    rest, places = [area * scale for area in areas], []
    while rest:
        width, height = box.right - box.left, box.lower - box.upper
        side, count = min(width, height), 1
        while count < len(rest) and _worst(rest[: count + 1], side) <= _worst(rest[:count], side):
            count += 1
        row, rest = rest[:count], rest[count:]
        thick, at = share(sum(row), side), 0.0
        for area in row:
            long = share(area, thick)
            places.append(
                Box(box.left, box.upper + at, box.left + thick, box.upper + at + long)
                if width >= height
                else Box(box.left + at, box.upper, box.left + at + long, box.upper + thick)
            )
            at += long
        box = box._replace(left=box.left + thick) if width >= height else box._replace(upper=box.upper + thick)
    return places


def _worst(row: Sequence[float], side: float) -> float:
    """The longest side over the shortest one of the rectangles of a row along a side."""
    total = sum(row)
    return max(max(side**2 * area / total**2, total**2 / (side**2 * area)) for area in row) if side and total else 0.0
