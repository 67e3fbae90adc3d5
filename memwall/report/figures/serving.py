"""The pictures of a server: throughput against speed for a user, and latency against load; a line for each engine.

Objectives on the speed or the latency are dashed lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from memwall.analysis.quantities import SERVED
from memwall.report.figures.axes import Axis, draw_frame, draw_x, draw_y, engineering, plain
from memwall.report.figures.colors import series_color
from memwall.report.figures.labels import Box
from memwall.report.figures.scene import Chart, Scene, side_by_side, stacked

if TYPE_CHECKING:
    from memwall.serving import Point, Serving

#: of lines, by how many GPUs share the model
_DASHES: tuple[tuple[float, ...], ...] = ((), (6, 3), (2, 2), (6, 2, 1, 2))
#: pixels of a panel at least, and down
_LEAST, _HIGH = 300.0, 230.0


class _Panel(NamedTuple):
    """What a panel shows: names of quantities of a server, or the load; ``scale`` of the latter's unit."""

    title: str
    x: Callable[[Point], float | None]
    x_label: str
    y: str
    y_label: str
    scale: float = 1.0


def _load(point: Point) -> float | None:
    return point.workload.concurrency or point.workload.rate_per_s


def _of(name: str) -> Callable[[Point], float | None]:
    read = SERVED[name].serve
    return lambda point: read(point.candidate) if read is not None and point.candidate is not None else None


_PANELS = (
    _Panel("Throughput against speed", _of("tokens_per_s_per_user"), "tokens/s of a user", "tokens_per_s_per_gpu",
           "tokens/s of a GPU"),
    _Panel("Time to first token", _load, "clients, or requests/s", "ttft_s", "ms", 1e-3),
    _Panel("Time per output token", _load, "clients, or requests/s", "tpot_s", "ms", 1e-3),
)  # fmt: skip


def serving_chart(found: Serving) -> Chart:
    """Three panels, of the points that run."""
    engines: dict[str, list[Point]] = {}
    for point in found.points:
        if point.candidate is not None:
            engines.setdefault(point.name, []).append(point)
    gpus = list(dict.fromkeys(points[0].gpu.name for points in engines.values()))
    shares = list(dict.fromkeys(points[0].layout.tp for points in engines.values()))
    looks = {
        name: (series_color(gpus.index(points[0].gpu.name)), _DASHES[shares.index(points[0].layout.tp) % len(_DASHES)])
        for name, points in engines.items()
    }
    limits = {limit.quantity.name: limit.amount for limit in found.objectives}
    panels = [_drawn(panel, engines, looks, limits) for panel in _PANELS]
    legend = [(gpu, series_color(i), "line") for i, gpu in enumerate(gpus)]
    dashes = [f"{count} GPU{'s' * (count > 1)} to a model" for count in shares]
    heading = "dashes, from none: " + ", ".join(dashes) if len(shares) > 1 else ""
    return stacked([side_by_side(panels, _LEAST, 20), lambda scene: scene.legend(0, legend, heading)], gap=14)


def _drawn(
    panel: _Panel, engines: dict[str, list[Point]], looks: dict[str, tuple[str, tuple[float, ...]]],
    limits: dict[str, float],
) -> Chart:  # fmt: skip
    read = _of(panel.y)
    lines = {
        name: [(a, b / panel.scale) for p in points if (a := panel.x(p)) and (b := read(p))]
        for name, points in engines.items()
    }
    places = [place for line in lines.values() for place in line]

    def draw(scene: Scene) -> float:
        scene.text(0, 12, panel.title, 12, bold=True)
        frame = Box(52.0, 38.0, scene.width - 8, 38.0 + _HIGH)
        x = _axis([place[0] for place in places], frame.left, frame.right)
        y = _axis([place[1] for place in places], frame.lower, frame.upper)
        draw_x(scene, frame, x, engineering, panel.x_label)
        draw_y(scene, frame, y, plain, panel.y_label)
        draw_frame(scene, frame)
        for name, line in lines.items():
            own, (color, dash) = sorted((x(a), y(b)) for a, b in line), looks[name]
            if len(own) > 1:
                scene.line(*own, color=color, width=1.8, dash=dash)
            for px, py in own:
                scene.dot(px, py, 3.0, color, title=name)
        _limits(scene, panel, frame, x, y, limits)
        return frame.lower + 34

    return draw


def _limits(scene: Scene, panel: _Panel, frame: Box, x: Axis, y: Axis, limits: dict[str, float]) -> None:
    """A dashed line at each objective on what the panel shows."""
    bound = next((limits[name] for name in limits if name.startswith(panel.y.removesuffix("_s"))), None)
    if bound is not None and y.low < bound / panel.scale < y.high:
        place = y(bound / panel.scale)
        scene.line((frame.left, place), (frame.right, place), color="ink", dash=(5, 4))
    speed = limits.get("tokens_per_s_per_user") or (1 / limits["tpot_s"] if "tpot_s" in limits else None)
    if panel is _PANELS[0] and speed and x.low < speed < x.high:
        scene.line((x(speed), frame.upper), (x(speed), frame.lower), color="ink", dash=(5, 4))


def _axis(values: Sequence[float], start: float, end: float) -> Axis:
    """Logarithmic where the values span some octaves."""
    low, high = min(values), max(values)
    if high > 6 * low:
        return Axis(low / 1.25, high * 1.25, start, end, log=True)
    return Axis(0.0, 1.1 * high, start, end)
