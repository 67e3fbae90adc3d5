"""The picture of a training step on more and more GPUs: how much faster tokens are, next to what is ideal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from memwall.core.units import duration
from memwall.report.figures.axes import PlotAxis, draw_frame, draw_x, draw_y, plain
from memwall.report.figures.bars import Bar, Piece, bars_chart
from memwall.report.figures.colors import series_color
from memwall.report.figures.labels import Box
from memwall.report.figures.picture import time_unit
from memwall.report.figures.scene import Chart, Scene

if TYPE_CHECKING:
    from memwall.training.run import Scaled

#: pixels down
_HIGH = 220.0
_NAMES = ("weak scaling", "strong scaling")


def parts_chart(parts: Mapping[str, float]) -> Chart:
    """The parts of a step in seconds, a bar each."""
    scale, unit = time_unit(max(parts.values(), default=0.0))
    rows = [
        Bar(
            name, (Piece("", seconds / scale, series_color(0), title=f"{name} {duration(seconds)}"),), duration(seconds)
        )
        for name, seconds in parts.items()
    ]
    return bars_chart("Where the time of a step goes", rows, unit=f"time, {unit}")


def scaling_chart(scaled: Sequence[Scaled]) -> Chart:
    """A line for each way to scale, and a dashed one for GPUs that add up."""

    def draw(scene: Scene) -> float:
        first = scaled[0].weak
        most = scaled[-1].weak.layout.world / first.layout.world
        top = scene.title("Speed by GPUs")
        frame = Box(58.0, top + 22, scene.width - 12, top + 22 + _HIGH)
        x = PlotAxis(first.layout.world / 1.1, first.layout.world * most * 1.1, frame.left, frame.right, log=True)
        y = PlotAxis(1 / 1.1, most * 1.2, frame.lower, frame.upper, log=True)
        draw_x(scene, frame, x, plain, "GPUs", [each.weak.layout.world for each in scaled])
        draw_y(scene, frame, y, plain, "times as fast")
        draw_frame(scene, frame)
        ends = [(x(first.layout.world * n), y(n)) for n in (1.0, most)]
        scene.line(*ends, color="dim", dash=(4, 3))
        for number, line in enumerate(_lines(scaled)):
            places = [(x(world), y(speed)) for world, speed in line]
            scene.line(*places, color=series_color(number), width=1.8)
            for (px, py), (world, speed) in zip(places, line, strict=True):
                scene.dot(px, py, 3.4, series_color(number), title=f"{world:,} GPUs: {speed:.2f}x")
        entries = [(name, series_color(i), "circle") for i, name in enumerate(_NAMES)]
        return frame.lower + 42 + scene.legend(frame.lower + 42, [*entries, ("ideal", "dim", "dashed")])

    return draw


def _lines(scaled: Sequence[Scaled]) -> list[list[tuple[int, float]]]:
    """GPUs and how much faster work is done than on the fewest."""
    first = scaled[0].weak
    weak = [
        (each.weak.layout.world, each.weak.layout.world / first.layout.world * first.time_s / each.weak.time_s)
        for each in scaled
    ]
    strong = [(each.strong.layout.world, first.time_s / each.strong.time_s) for each in scaled if each.strong]
    return [weak, strong]
