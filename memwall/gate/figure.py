"""The picture of a history: a row of panels for each workload, a column for each quantity, a line for each GPU and
policy. Triangles are steps: red for the worse, green for the better.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from memwall.analysis.numbers import apart, change_text
from memwall.analysis.quantities import LIMITS, Quantity
from memwall.gate.history import FigureStep, HistoryRow, TrendSeries, commits, steps, trends
from memwall.report.document import clean
from memwall.report.figures.axes import PlotAxis, draw_frame, draw_y
from memwall.report.figures.colors import SIGN_COLORS, series_color
from memwall.report.figures.labels import Box, LabelLine, Placer
from memwall.report.figures.scene import Chart, Scene, fit, side_by_side, stacked, text_width

#: pixels of a panel at least, pixels down, and rows that a picture has at most
_LEAST, _HIGH, _MOST_ROWS = 230.0, 150.0, 40
#: commits whose points are drawn, labels below a panel, steps of a panel that get their change written, changes of
#: version that get theirs
_POINTS, _LABELS, _WRITTEN, _VERSIONS = 40, 4, 3, 4
#: policy -> dashes
_DASHES: Mapping[str, tuple[float, ...]] = {"eager": (), "memwall": (6, 3), "inductor": (6, 2, 1, 2), "ideal": (2, 2)}
#: from where on an axis is logarithmic
_DECADES = 8.0
_SMALL = 9.0

_Panel = dict[TrendSeries, tuple[HistoryRow, ...]]


@dataclass(frozen=True)
class _TrendLook:
    """What all panels share: the place of each commit, its date, the colour of each GPU."""

    places: Mapping[str, int]
    dates: Mapping[str, str]
    colors: Mapping[str, str]


def trend_chart(rows: Sequence[HistoryRow], quantities: Sequence[str]) -> Chart:
    panels: dict[tuple[str, str], _Panel] = {}
    for series, trend in trends(rows).items():
        panels.setdefault((series.workload, series.mode), {})[series] = trend
    drawn = dict([*panels.items()][:_MOST_ROWS])
    gpus = sorted({series.gpu for panel in drawn.values() for series in panel})
    policies = sorted({series.policy for panel in drawn.values() for series in panel})
    colors = {gpu: series_color(i) for i, gpu in enumerate(gpus)}
    look = _TrendLook(
        {commit: i for i, commit in enumerate(commits(rows))}, {row.commit: row.date for row in rows}, colors
    )
    found = steps(rows, quantities)
    charts: list[Chart] = []
    for (workload, mode), panel in drawn.items():
        row = [
            _panel(panel, LIMITS[name], [s for s in found if s.quantity == name and s.row.series in panel], look)
            for name in quantities
        ]
        charts.append(_headed(f"{clean(workload)}, {clean(mode)}", side_by_side(row, _LEAST, 14)))
    return stacked([*charts, _legend(colors, policies, len(panels) - len(drawn))], gap=14)


def _headed(title: str, chart: Chart) -> Chart:
    def draw(scene: Scene) -> float:
        scene.text(0, 12, fit(title, scene.width, 12), 12, bold=True)
        return 20 + chart(scene.part(0, 20, scene.width))

    return draw


def _panel(panel: _Panel, quantity: Quantity, found: Sequence[FigureStep], look: _TrendLook) -> Chart:
    def draw(scene: Scene) -> float:
        lines = [*_lines(panel, quantity.name, look.colors)]
        values = [row.figures[quantity.name] for _, _, known in lines for row in known]
        scene.text(0, 11, fit(quantity.title, scene.width, 10), 10, color="dim")
        ticks, y = _scale(values, quantity)
        texts = apart(ticks, quantity.unit)
        left = max(map(text_width, texts), default=20.0) + 8
        frame = Box(left, 20.0, scene.width - 4, 20.0 + _HIGH)
        y = PlotAxis(y.low, y.high, frame.lower, frame.upper, y.log)
        x = PlotAxis(-0.6, len(look.places) - 0.4, frame.left, frame.right)
        names = dict(zip(ticks, texts, strict=True))
        draw_y(scene, frame, y, names.__getitem__, ticks=ticks)
        draw_frame(scene, frame)
        placer = Placer(scene.moved(frame))
        _versions(scene, frame, x, panel, look, placer)
        for color, series, known in lines:
            _line(
                scene,
                placer,
                [(x(look.places[r.commit]), y(r.figures[quantity.name]), r) for r in known],
                color,
                _DASHES.get(series.policy, ()),
                dots=len(look.places) <= _POINTS,
            )
        _steps(scene, placer, found, x, y, look)
        _commits(scene, frame, x, look)
        return frame.lower + 30

    return draw


def _lines(panel: _Panel, name: str, colors: Mapping[str, str]) -> Iterator[tuple[str, TrendSeries, list[HistoryRow]]]:
    """Colour, series and rows of each line; one grey line where GPUs have the same figures at all commits."""
    alike: dict[tuple[object, ...], list[TrendSeries]] = {}
    for series, trend in panel.items():
        known = tuple((row.commit, row.figures[name]) for row in trend if name in row.figures)
        alike.setdefault((series.policy, known), []).append(series)
    for group in alike.values():
        color = colors[group[0].gpu] if len(group) == 1 else "dim"
        yield color, group[0], [row for row in panel[group[0]] if name in row.figures]


def _line(
    scene: Scene,
    placer: Placer,
    points: Sequence[tuple[float, float, HistoryRow]],
    color: str,
    dash: tuple[float, ...],
    *,
    dots: bool,
) -> None:
    """A line that breaks where the version of memwall changed."""
    for _, part in groupby(points, key=lambda point: point[2].memwall_version):
        own = [(x, y) for x, y, _ in part]
        if len(own) > 1:
            scene.line(*own, color=color, width=1.6, dash=dash)
        placer.lines += [
            LabelLine(a + scene.left, b + scene.top, c + scene.left, d + scene.top) for (a, b), (c, d) in pairwise(own)
        ]
        for px, py in own if dots or len(own) == 1 else ():
            placer.boxes.append(scene.dot(px, py, 2.4, color).box)


def _steps(
    scene: Scene, placer: Placer, found: Sequence[FigureStep], x: PlotAxis, y: PlotAxis, look: _TrendLook
) -> None:
    """A triangle at each step; the change is written at the largest of a few commits, where there is room."""
    marks = []
    for step in found:
        color = SIGN_COLORS["worse" if step.worse else "better"]
        shape = "up" if step.after > step.before else "down"
        mark = scene.dot(x(look.places[step.row.commit]), y(step.after), 4.5, color, shape)
        placer.boxes.append(mark.box)
        marks.append((step, mark))
    written: set[str] = set()
    for step, mark in sorted(marks, key=lambda pair: -abs(pair[0].change or math.inf)):
        if step.row.commit in written or len(written) >= _WRITTEN:
            continue
        written.add(step.row.commit)
        text = change_text(step.change) or "new"
        placed = placer.place(mark.x, mark.y, mark.r, text_width(text, _SMALL) + 2, _SMALL + 2)
        if placed:
            box = placed[0]
            scene.text(box.left + 1 - scene.left, box.lower - 3 - scene.top, text, _SMALL, color=mark.color, halo=True)


def _versions(scene: Scene, frame: Box, x: PlotAxis, panel: _Panel, look: _TrendLook, placer: Placer) -> None:
    """A dashed line where, between two commits, another version of memwall begins; the last few are named."""
    pairs = (pair for trend in panel.values() for pair in pairwise(trend))
    found = sorted(
        {(look.places[b.commit] - 0.5, b.memwall_version) for a, b in pairs if a.memwall_version != b.memwall_version}
    )
    for place, version in found:
        px = x(place)
        scene.line((px, frame.upper), (px, frame.lower), color="pale", width=0.9, dash=(4, 3))
        placer.lines.append(
            LabelLine(px + scene.left, frame.upper + scene.top, px + scene.left, frame.lower + scene.top)
        )
        text = f"memwall {clean(version)[:12]}"
        if (place, version) in found[-_VERSIONS:]:
            wide = text_width(text, _SMALL) + 2
            placed = placer.place(px + scene.left, frame.lower - 10 + scene.top, 0, wide, _SMALL + 2)
            if placed:
                scene.text(placed[0].left + 1 - scene.left, placed[0].lower - 3 - scene.top, text, _SMALL, color="dim")


def _scale(values: Sequence[float], quantity: Quantity) -> tuple[list[float], PlotAxis]:
    """Ticks with distinct labels, and limits some way around the values; over some decades logarithmic."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low > 0 and high > _DECADES * low:
        room = (high / low) ** 0.15
        axis = PlotAxis(low / room, high * room, 0, 1, log=True)
        return axis.ticks(4), axis
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        low, high = high - (abs(high) or 1.0) * 0.1, high + (abs(high) or 1.0) * 0.1
    axis = PlotAxis(low - 0.2 * (high - low), high + 0.2 * (high - low), 0, 1)
    ticks = axis.ticks(4)
    return ([tick for tick in ticks if tick == int(tick)] or ticks) if quantity.unit == "count" else ticks, axis


def _commits(scene: Scene, frame: Box, x: PlotAxis, look: _TrendLook) -> None:
    """Commit and date of a few commits, the last one among them."""
    every = -(-len(look.places) // _LABELS)
    for commit, place in look.places.items():
        if (len(look.places) - 1 - place) % every == 0:
            half = text_width("0000000", _SMALL) / 2
            px = min(max(x(place), half), scene.width - half)
            scene.text(px, frame.lower + 12, commit[:7], _SMALL, "middle", color="dim")
            scene.text(px, frame.lower + 23, look.dates[commit][2:10], _SMALL, "middle", color="dim")


def _legend(colors: Mapping[str, str], policies: Sequence[str], left_out: int) -> Chart:
    entries = [(clean(gpu), color, "line") for gpu, color in colors.items()]
    if len(colors) > 1:
        entries.append(("several GPUs, equal", "dim", "line"))
    if policies != ["eager"]:
        entries += [(clean(policy), "pale", "dashed" if _DASHES.get(policy) else "line") for policy in policies]
    entries += [
        (f"step for the {sign}", color, shape)
        for (sign, color), shape in zip(SIGN_COLORS.items(), ("up", "down"), strict=True)
    ]
    heading = f"{left_out} further workloads are not drawn" if left_out else ""
    return lambda scene: scene.legend(0, entries, heading)
