"""The picture of op counts by level of lowering, with what PyTorch announced."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from memwall.core.errors import UsageError
from memwall.fusing.op_counts import OpCounts
from memwall.report.document import clean
from memwall.report.figures.axes import PlotAxis, draw_frame, draw_y, plain
from memwall.report.figures.colors import series_color
from memwall.report.figures.labels import Box
from memwall.report.figures.picture import picture
from memwall.report.figures.scene import Chart, Scene, side_by_side, stacked

#: level -> operators that PyTorch announced
_MARKS = {"ATen": 2000, "prims": 250, "loop IR": 50}
#: shapes of the points of more workloads than there are colours
_SHAPES = ("circle", "square", "triangle", "diamond")


def funnel_figure(funnels: Mapping[str, OpCounts], fmt: str = "png") -> bytes:
    """Distinct ops and calls per level, one line per workload, with PyTorch's announced numbers.

    Raises:
        UsageError: no workload, or no such format.
    """
    if not funnels:
        raise UsageError("no op counts to draw")
    names = list(dict.fromkeys(level.name for funnel in funnels.values() for level in funnel.levels))
    distinct = {n: {v.name: v.distinct for v in f.levels} for n, f in funnels.items()}
    calls = {n: {v.name: v.calls for v in f.levels} for n, f in funnels.items()}
    panels = [_panel("distinct operators", names, distinct, _MARKS), _panel("calls per step", names, calls, {})]
    entries = [(clean(name), series_color(i), _shape(i)) for i, name in enumerate(funnels)]
    entries.append(("announced for all of PyTorch", "dim", "bar"))
    return picture(fmt, stacked([side_by_side(panels), lambda scene: scene.legend(0, entries)], gap=8))


def _shape(number: int) -> str:
    return _SHAPES[number // 6 % len(_SHAPES)]


def _panel(title: str, names: list[str], series: Mapping[str, Mapping[str, int]], marks: Mapping[str, int]) -> Chart:
    """One line per workload over the levels, log scale; the counts of a single one are written."""

    def draw(scene: Scene) -> float:
        upper = scene.title(title) + 4
        counted = [n for counts in (*series.values(), marks) for n in counts.values() if n]
        frame = Box(52.0, upper, scene.width - 8, upper + 330)
        x = PlotAxis(-0.4, len(names) - 0.6, frame.left, frame.right)
        low, high = (10.0 ** f(math.log10(v)) for f, v in ((math.floor, min(counted)), (math.ceil, 1.2 * max(counted))))
        y = PlotAxis(low, high, frame.lower, frame.upper, log=True)
        draw_y(scene, frame, y, plain)
        draw_frame(scene, frame)
        for at, name in enumerate(names):
            scene.text(x(at) + 6, frame.lower + 16, name, 10, "end", color="dim", angle=20)
        for number, counts in enumerate(series.values()):
            places = [(x(at), y(counts[name])) for at, name in enumerate(names) if counts.get(name)]
            for one, other in pairwise(places):
                scene.line(one, other, color=series_color(number), width=1.8)
            for px, py in places:
                scene.dot(px, py, 4, series_color(number), _shape(number))
        for at, name in enumerate(names):
            if name in marks:
                scene.dot(x(at), y(marks[name]), 12, "dim", "bar")
                scene.text(x(at), y(marks[name]) - 8, f"~{marks[name]:,}", 10, "middle", halo=True)
            if len(series) == 1 and (count := next(iter(series.values())).get(name)):
                scene.text(x(at), y(count) - 10, f"{count:,}", 10, "middle", halo=True)
        return frame.lower + 50

    return draw
