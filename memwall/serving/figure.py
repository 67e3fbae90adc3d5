"""The pictures of a server: throughput against speed for a user, and latency against load; a line for each engine.

Objectives on what a panel shows are dashed lines, with what keeps them shaded; hollow points miss one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from memwall.analysis.quantities import SERVED
from memwall.report.figures.axes import PlotAxis, draw_frame, draw_x, draw_y, engineering, plain
from memwall.report.figures.colors import SIGN_COLORS, series_color
from memwall.report.figures.labels import Box
from memwall.report.figures.scene import Chart, Scene, side_by_side, stacked
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
    """What a panel shows: names of quantities of a server, or the load; ``scale`` of the latter's unit."""

    title: str
    x: Callable[[SavedPoint], float | None]
    y: str
    y_label: str
    scale: float = 1.0


def _load(point: SavedPoint) -> float | None:
    return point.concurrency or point.rate_per_s


def _of(name: str) -> Callable[[SavedPoint], float | None]:
    return lambda point: point.figure(name)


_PANELS = (
    _Panel("Throughput against speed", _of("tokens_per_s_per_user"), "tokens_per_s_per_gpu", "tokens/s of a GPU"),
    _Panel("Time to first token", _load, "ttft_s", "ms", 1e-3),
    _Panel("Time per output token", _load, "tpot_s", "ms", 1e-3),
)  # fmt: skip


def serving_chart(found: SavedServing) -> Chart:
    """Three panels, of the points that run; requests of a trace have no load to draw against."""
    engines: dict[str, list[SavedPoint]] = {}
    for point in found.ran:
        engines.setdefault(point.name, []).append(point)
    gpus = list(dict.fromkeys(points[0].gpu for points in engines.values()))
    shares = list(dict.fromkeys(points[0].tp for points in engines.values()))
    looks = {name: _look(gpus.index(points[0].gpu), shares.index(points[0].tp)) for name, points in engines.items()}
    panels = [_drawn(panel, engines, looks, found.objectives) for panel in _PANELS if _known(panel, found.ran)]
    legend = [(gpu, _look(i, 0).color, _look(i, 0).shape) for i, gpu in enumerate(gpus)]
    if found.objectives:
        legend += [("misses an objective", "ink", "hollow"), ("objective", "ink", "dashed")]
    dashes = [f"{count} GPU{'s' * (count > 1)} to a model" for count in shares]
    heading = "dashes, from none: " + ", ".join(dashes) if len(shares) > 1 else ""
    return stacked([side_by_side(panels, _LEAST, 20), lambda scene: scene.legend(0, legend, heading)], gap=14)


def _known(panel: _Panel, points: Sequence[SavedPoint]) -> list[tuple[float, float, bool]]:
    """The places of points on a panel, and whether each misses an objective."""
    return [
        (a, b / panel.scale, bool(point.misses))
        for point in points
        if (a := panel.x(point)) and (b := point.figure(panel.y))
    ]


def _drawn(
    panel: _Panel,
    engines: dict[str, list[SavedPoint]],
    looks: dict[str, _EngineLook],
    objectives: Sequence[SavedObjective],
) -> Chart:
    lines = {name: _known(panel, points) for name, points in engines.items()}
    places = [place for line in lines.values() for place in line]
    rate = any(point.rate_per_s for points in engines.values() for point in points)
    x_label = "requests/s" if rate else "clients" if panel.x is _load else "tokens/s of a user"

    def draw(scene: Scene) -> float:
        scene.text(0, 12, panel.title, 12, bold=True)
        frame = Box(52.0, 38.0, scene.width - 8, 38.0 + _HIGH)
        x = _axis([place[0] for place in places], frame.left, frame.right)
        y = _axis([place[1] for place in places], frame.lower, frame.upper)
        draw_x(scene, frame, x, engineering, x_label)
        draw_y(scene, frame, y, plain, panel.y_label)
        _limits(scene, panel, frame, x, y, objectives)
        draw_frame(scene, frame)
        for name, line in lines.items():
            own, look = sorted((x(a), y(b), misses) for a, b, misses in line), looks[name]
            if len(own) > 1:
                scene.line(*((px, py) for px, py, _ in own), color=look.color, width=1.8, dash=look.dash)
            for px, py, misses in own:
                scene.dot(px, py, 3.6, look.color, look.shape, title=name, hollow=misses)
        return frame.lower + 34

    return draw


def _look(gpu: int, share: int) -> _EngineLook:
    return _EngineLook(series_color(gpu), _DASHES[share % len(_DASHES)], _SHAPES[gpu % len(_SHAPES)])


def _limits(
    scene: Scene, panel: _Panel, frame: Box, x: PlotAxis, y: PlotAxis, objectives: Sequence[SavedObjective]
) -> None:
    """A dashed line at each objective on what the panel shows, and what keeps all of them shaded."""
    left, right, upper, lower = frame.left, frame.right, frame.upper, frame.lower
    bounds = []
    for limit in objectives:
        name, amount = limit.quantity, limit.amount
        if panel.x is not _load and name in ("tpot_s", "tokens_per_s_per_user"):
            place = _within(x, amount if name != "tpot_s" else 1 / amount)
            left = max(left, place)
            bounds.append(((place, frame.upper), (place, frame.lower)))
        elif name == panel.y:
            place = _within(y, amount / panel.scale)
            upper, lower = (max(upper, place), lower) if SERVED[name].lower else (upper, min(lower, place))
            bounds.append(((frame.left, place), (frame.right, place)))
    if bounds and left < right and upper < lower:
        corners = ((left, upper), (right, upper), (right, lower), (left, lower))
        scene.area(corners, SIGN_COLORS["better"], "keeps the objectives", opacity=0.14)
    for ends in bounds:
        scene.line(*ends, color="ink", dash=(5, 4))


def _within(axis: PlotAxis, value: float) -> float:
    """The pixel of a value, at the end of the axis where it lies beyond."""
    return axis(min(max(value, axis.low), axis.high))


def _axis(values: Sequence[float], start: float, end: float) -> PlotAxis:
    """Logarithmic where the values span some octaves."""
    low, high = min(values), max(values)
    if high > 6 * low:
        return PlotAxis(low / 1.25, high * 1.25, start, end, log=True)
    return PlotAxis(0.0, 1.1 * high, start, end)
