"""The pictures of a server: throughput against speed for a user, and latency against load; a line for each engine.

Objectives on what a panel shows are dashed lines, with what keeps them shaded; hollow points miss one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from memwall.analysis.quantities import SERVED
from memwall.core.units import duration
from memwall.report.figures.axes import PlotAxis, draw_frame, draw_x, draw_y, engineering, plain
from memwall.report.figures.colors import SIGN_COLORS, series_color
from memwall.report.figures.labels import Box
from memwall.report.figures.scene import FONT, Chart, Scene, side_by_side, stacked
from memwall.serving.saved import SavedObjective, SavedPoint, SavedServing

#: of lines, by how many GPUs share the model
_DASHES: tuple[tuple[float, ...], ...] = ((), (6, 3), (2, 2), (6, 2, 1, 2))
#: of points, by GPU
_SHAPES = ("circle", "square", "triangle", "diamond", "down", "pentagon")
#: pixels of a panel at least, and down
_LEAST, _HIGH = 300.0, 230.0


class _EngineLook(NamedTuple):
    """Of an engine's line and points."""

    color: str
    dash: tuple[float, ...]
    shape: str


class _Panel(NamedTuple):
    """What a panel shows: names of quantities of a server, or the load; ``scale`` of the latter's unit; ``ends`` are
    the axis of an interval and its two ends."""

    title: str
    x: Callable[[SavedPoint], float | None]
    y: str
    y_label: str
    scale: float = 1.0
    ends: tuple[str, Callable[[SavedPoint], float | None], Callable[[SavedPoint], float | None]] | None = None


def _load(point: SavedPoint) -> float | None:
    return point.concurrency or point.rate_per_s


def _of(name: str) -> Callable[[SavedPoint], float | None]:
    return lambda point: point.figure(name)


def _rate(name: str) -> Callable[[SavedPoint], float | None]:
    return lambda point: 1 / seconds if (seconds := point.figure(name)) else None


_PANELS = (
    _Panel("Throughput against speed", _of("tokens_per_s_per_user"), "tokens_per_s_per_gpu", "tokens/s of a GPU",
           ends=("x", _rate("tpot_high_s"), _rate("tpot_low_s"))),
    _Panel("Time to first token", _load, "ttft_s", "ms", 1e-3, ("y", _of("ttft_low_s"), _of("ttft_high_s"))),
    _Panel("Time per output token", _load, "tpot_s", "ms", 1e-3, ("y", _of("tpot_low_s"), _of("tpot_high_s"))),
)  # fmt: skip


_SHADED = "shaded: what keeps the objectives; dashed: where one ends, unless that is outside of the axes"


def serving_chart(found: SavedServing) -> Chart:
    """Three panels, of the points that run; requests of a trace have no load to draw against."""
    engines: dict[str, list[SavedPoint]] = {}
    for point in found.ran:
        engines.setdefault(point.name, []).append(point)
    gpus = list(dict.fromkeys(points[0].gpu for points in engines.values()))
    shares = list(dict.fromkeys(points[0].tp for points in engines.values()))
    looks = {name: _look(gpus.index(points[0].gpu), shares.index(points[0].tp)) for name, points in engines.items()}
    best = {each.best for each in found.choices if each.best}
    panels = [_drawn(panel, engines, looks, found.objectives, best) for panel in _PANELS if _known(panel, found.ran)]
    legend = [(gpu, _look(i, 0).color, _look(i, 0).shape) for i, gpu in enumerate(gpus)]
    if any(point.misses for point in found.ran):
        legend.append(("hollow: misses an objective", "ink", "hollow"))
    dashes = [f"{count} GPU{'s' * (count > 1)} to a model" for count in shares]
    heading = "dashes, from none: " + ", ".join(dashes) if len(shares) > 1 else ""
    notes = ["bands: 80 % range"] if any(_spread(panel, found.ran) for panel in _PANELS) else []
    notes += [_SHADED] if found.objectives else []
    notes += ["ringed: the cheapest that keeps all"] if best else []

    drawn = [side_by_side(panels, _LEAST, 20), lambda scene: scene.legend(0, legend, heading)]
    return stacked([*drawn, lambda scene: scene.note(-4, "; ".join(notes), FONT)] if notes else drawn, gap=14)


class _Place(NamedTuple):
    """A point on a panel."""

    x: float
    y: float
    misses: bool
    title: str
    name: str


def _known(panel: _Panel, points: Sequence[SavedPoint]) -> list[_Place]:
    """The places of points on a panel."""
    return [
        _Place(a, b / panel.scale, bool(point.misses), _told(point), f"{point.name}, {point.load}")
        for point in points
        if (a := panel.x(point)) and (b := point.figure(panel.y))
    ]


def _spread(panel: _Panel, points: Sequence[SavedPoint]) -> list[tuple[float, float]]:
    """The outline of the band of an interval: its low ends, then the high ones on the way back; none where points
    have no interval."""
    if panel.ends is None:
        return []
    axis, *ends = panel.ends
    sides: list[list[tuple[float, float]]] = []
    for end in ends:
        side = []
        for point in points:
            a, b, found = panel.x(point), point.figure(panel.y), end(point)
            if a and b and found:
                side.append((found, b / panel.scale) if axis == "x" else (a, found / panel.scale))
        sides.append(sorted(side, key=lambda place: place[1 if axis == "x" else 0]))
    low, high = sides
    return [*low, *reversed(high)] if len(low) == len(high) > 1 else []


def _told(point: SavedPoint) -> str:
    """What stands at a point: the engine, its load and its figures."""
    rows = [f"{point.name}, {point.load}"]
    for name, said in (("ttft_s", "TTFT"), ("tpot_s", "TPOT")):
        if (seconds := point.figure(name)) is not None:
            rows.append(f"{said} {duration(seconds)}")
    if (rate := point.figure("tokens_per_s_per_gpu")) is not None:
        rows.append(f"{rate:,.0f} tokens/s of a GPU")
    return ", ".join((*rows, *([f"misses {point.misses}"] if point.misses else [])))


def _drawn(
    panel: _Panel,
    engines: dict[str, list[SavedPoint]],
    looks: dict[str, _EngineLook],
    objectives: Sequence[SavedObjective],
    best: Set[str],
) -> Chart:
    lines = {name: _known(panel, points) for name, points in engines.items()}
    bands = {name: _spread(panel, points) for name, points in engines.items()}
    places = [place for line in lines.values() for place in line]
    ends = [place for band in bands.values() for place in band]
    rate = any(point.rate_per_s for points in engines.values() for point in points)
    x_label = "requests/s" if rate else "clients" if panel.x is _load else "tokens/s of a user"

    def draw(scene: Scene) -> float:
        scene.text(0, 12, panel.title, 12, bold=True)
        frame = Box(52.0, 38.0, scene.width - 8, 38.0 + _HIGH)
        x = fitted_axis([place.x for place in places] + [px for px, _ in ends], frame.left, frame.right)
        y = fitted_axis([place.y for place in places] + [py for _, py in ends], frame.lower, frame.upper)
        draw_x(scene, frame, x, engineering, x_label)
        draw_y(scene, frame, y, plain, panel.y_label)
        _limits(scene, panel, frame, x, y, objectives)
        draw_frame(scene, frame)
        for name, band in bands.items():
            if band:
                scene.area([(x(px), y(py)) for px, py in band], looks[name].color, opacity=0.13)
        for name, line in lines.items():
            own, look = sorted(line), looks[name]
            if len(own) > 1:
                scene.line(*((x(each.x), y(each.y)) for each in own), color=look.color, width=1.8, dash=look.dash)
            for each in own:
                if each.name in best:
                    scene.dot(x(each.x), y(each.y), 6.5, "ink", hollow=True)
                scene.dot(x(each.x), y(each.y), 3.6, look.color, look.shape, title=each.title, hollow=each.misses)
        return frame.lower + 34

    return draw


def _look(gpu: int, share: int) -> _EngineLook:
    return _EngineLook(series_color(gpu), _DASHES[share % len(_DASHES)], _SHAPES[gpu % len(_SHAPES)])


def _limits(
    scene: Scene, panel: _Panel, frame: Box, x: PlotAxis, y: PlotAxis, objectives: Sequence[SavedObjective]
) -> None:
    """A dashed line at each objective on what the panel shows, and what keeps all of them shaded."""
    left, right, upper, lower = frame.left, frame.right, frame.upper, frame.lower
    bounds, is_shown = [], False  # a limit beyond an axis has no line
    for limit in objectives:
        name, amount = limit.quantity, limit.amount
        if panel.x is not _load and name in ("tpot_s", "tokens_per_s_per_user"):
            value = amount if name != "tpot_s" else 1 / amount
            place = _within(x, value)
            left = max(left, place)
            if x.low < value < x.high:
                bounds.append(((place, frame.upper), (place, frame.lower)))
        elif name == panel.y:
            place = _within(y, amount / panel.scale)
            upper, lower = (max(upper, place), lower) if SERVED[name].lower else (upper, min(lower, place))
            if y.low < amount / panel.scale < y.high:
                bounds.append(((frame.left, place), (frame.right, place)))
        else:
            continue
        is_shown = True
    if is_shown and left < right and upper < lower:
        corners = ((left, upper), (right, upper), (right, lower), (left, lower))
        scene.area(corners, SIGN_COLORS["better"], "keeps the objectives", opacity=0.14)
    for ends in bounds:
        scene.line(*ends, color="ink", dash=(5, 4))


def _within(axis: PlotAxis, value: float) -> float:
    """The pixel of a value, at the end of the axis where it lies beyond."""
    return axis(min(max(value, axis.low), axis.high))


def fitted_axis(values: Sequence[float], start: float, end: float) -> PlotAxis:
    """Logarithmic where the values span some octaves."""
    low, high = min(values), max(values)
    if high > 6 * low:
        return PlotAxis(low / 1.25, high * 1.25, start, end, log=True)
    return PlotAxis(0.0, 1.1 * high, start, end)
