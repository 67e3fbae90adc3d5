"""The pictures of a comparison: bars of GPUs or profiles; for machines, how they grew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import memwall.report.columns as col
from memwall.analysis.machines import Machine
from memwall.core.units import percent
from memwall.report.document import clean
from memwall.report.figures.axes import PlotAxis, draw_frame, draw_x, draw_y
from memwall.report.figures.bars import Bar, Piece, bars_chart
from memwall.report.figures.colors import WALL_COLORS, series_color
from memwall.report.figures.labels import Box, LabelLine, Placer
from memwall.report.figures.picture import time_unit
from memwall.report.figures.scene import Chart, Scene, Text, side_by_side, stacked, text_width
from memwall.sweeping.comparison import Comparison, Entry

#: what grows -> key of ``Machine.growth``
_SERIES = {"fp16 FLOP/s": "float16", "DRAM bandwidth": "bandwidth", "DRAM capacity": "capacity"}


def comparison_chart(comparison: Comparison) -> Chart:
    """Times by wall, speed-ups, utilization and, with prices, cost; of machines, their growth."""
    if comparison.kind == "machines":
        return growth_chart(comparison.machines)
    charts = [times_chart(comparison), *(_plain_bars(comparison, figure) for figure in _FIGURES)]
    known = [chart for chart in charts if chart]
    return stacked([known[0], side_by_side(known[1:], least=300)])


def times_chart(comparison: Comparison) -> Chart:
    """The time of each entry, by wall."""
    entries = comparison.entries
    scale, unit = time_unit(max((entry.time_s for entry in entries), default=0.0))
    rows = [
        Bar(_label(e), [_wall(e, wall, scale) for wall in e.wall_shares], e.time_text, interval=_interval(e, scale))
        for e in entries
    ]
    title = f"{clean(comparison.subject)}: modeled time per step by wall"
    spread = " (line, and in brackets: 80 % range)" if any(row.interval for row in rows) else ""
    return bars_chart(title, rows, unit=f"time per step, {unit}{spread}")


def _interval(entry: Entry, scale: float) -> tuple[float, float] | None:
    return (entry.low_s / scale, entry.high_s / scale) if entry.low_s < entry.high_s else None


def _wall(entry: Entry, wall: str, scale: float) -> Piece:
    part = entry.wall_shares.get(wall, 0.0)
    text = percent(part) if part > 0.005 else ""
    return Piece(wall, part * entry.time_s / scale, WALL_COLORS[wall], text, f"{wall} {percent(part)}")


def _label(entry: Entry) -> str:
    return clean(entry.label) + ("" if entry.fits else " (does not fit)")


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


class _Figure(NamedTuple):
    """A bar for each entry: title, unit of the axis, value of an entry, its text and its 80 % interval."""

    title: str
    unit: str
    value: Callable[[Entry], float | None]
    text: Callable[[float], str]
    interval: Callable[[Entry], tuple[float, float] | None] = lambda entry: None


def _speedup_interval(entry: Entry) -> tuple[float, float] | None:
    low, high = entry.speedup_low, entry.speedup_high
    return None if low is None or high is None else (low, high)


_FIGURES = (
    _Figure("speed-up", "times as fast as {}", lambda e: e.speedup, col.times, _speedup_interval),
    _Figure("MFU", "% of the peak", lambda e: 100 * e.mfu, lambda v: f"{v:.1f} %"),
    _Figure("MBU", "% of the DRAM bandwidth", lambda e: 100 * e.mbu, lambda v: f"{v:.1f} %"),
    _Figure("cost of a million steps", "USD", lambda e: _times(e.usd_per_step, 1e6), lambda v: f"{v:,.3g} USD"),
    _Figure("cost of a million samples", "USD", lambda e: e.usd_per_million_samples, lambda v: f"{v:,.3g} USD"),
    _Figure("cost of a million tokens", "USD", lambda e: e.usd_per_million_tokens, lambda v: f"{v:,.3g} USD"),
)


def _plain_bars(comparison: Comparison, figure: _Figure) -> Chart | None:
    """One bar for each entry that has a value; None where none has."""
    known = [(entry, value) for entry in comparison.entries if (value := figure.value(entry)) is not None]
    rows = [
        Bar(clean(entry.label), (Piece("", value, "dim"),), figure.text(value), interval=figure.interval(entry))
        for entry, value in known
    ]
    unit = figure.unit.format(comparison.baseline) + " (line: 80 % range)" * any(row.interval for row in rows)
    return bars_chart(figure.title, rows, unit=unit) if rows else None


# -- machines ----------------------------------------------------------------------------------------------------------


def growth_chart(machines: Sequence[Machine]) -> Chart:
    """Growth of FLOP/s, bandwidth and capacity by release date, relative to the first machine, log scale."""
    return lambda scene: _draw_growth(scene, machines)


def _draw_growth(scene: Scene, machines: Sequence[Machine]) -> float:
    dates = [_date(machine) for machine in machines]
    upper = scene.title(f"The memory wall: growth over {clean(machines[0].name)}")
    ends = 0.0 if scene.is_narrow else 170.0
    frame = Box(44.0, upper, scene.width - ends - 8, upper + min(max(0.45 * scene.width, 280.0), 430.0))
    span = max(dates) - min(dates) or 1.0
    x = PlotAxis(min(dates) - 0.04 * span, max(dates) + 0.04 * span, frame.left, frame.right)
    growths = [1.0, *(g for m in machines for key in _SERIES.values() if (g := m.growth.get(key)))]
    y = PlotAxis(min(growths) * 0.8, max(growths) * 2.2, frame.lower, frame.upper, log=True)
    years = [float(year) for year in range(int(min(dates)), int(max(dates)) + 2) if x.low <= year <= x.high]
    draw_x(scene, frame, x, lambda v: f"{v:.0f}", "", years)
    top = int(y.high).bit_length()
    draw_y(scene, frame, y, lambda v: f"{v:g}x", ticks=[2.0**p for p in range(-6, top) if y.low <= 2.0**p <= y.high])
    draw_frame(scene, frame)
    placer = Placer(scene.moved(frame))
    lines: list[tuple[float, str, str]] = []
    for number, (name, key) in enumerate(_SERIES.items()):
        places = [
            (x(d), y(g))
            for d, m in sorted(zip(dates, machines, strict=True), key=lambda pair: pair[0])
            if (g := m.growth.get(key))
        ]
        if places:
            _curve(scene, placer, places, series_color(number))
            last = [
                g
                for d, m in sorted(zip(dates, machines, strict=True), key=lambda pair: pair[0])
                if (g := m.growth.get(key))
            ][-1]
            lines.append((last, f"{name} {col.times(last)}", series_color(number)))
    _name_machines(scene, placer, frame, x, machines, dates)
    if ends:
        _name_ends(scene, frame, y, lines)
        return frame.lower + 22
    return frame.lower + 22 + scene.legend(frame.lower + 22, [(text, color, "line") for _, text, color in lines])


def _date(machine: Machine) -> float:
    year, _, month = machine.release.partition("-")
    return int(year) + (int(month[:2] or 1) - 1) / 12 if year.isdigit() else 2016.0


def _curve(scene: Scene, placer: Placer, places: Sequence[tuple[float, float]], color: str) -> None:
    scene.line(*places, color=color, width=2)
    for (x0, y0), (x1, y1) in pairwise(places):
        placer.lines.append(LabelLine(x0 + scene.left, y0 + scene.top, x1 + scene.left, y1 + scene.top))
    placer.boxes += [scene.dot(px, py, 4, color).box for px, py in places]


def _name_ends(scene: Scene, frame: Box, y: PlotAxis, lines: Sequence[tuple[float, str, str]]) -> None:
    """Each line's name and last value in the right margin, at least one line of text apart."""
    last = -1e9
    for value, text, color in sorted(lines, reverse=True):
        last = max(y(value) + 4, last + 15)
        scene.line((frame.right + 8, last - 4), (frame.right + 18, last - 4), color=color, width=2)
        scene.text(frame.right + 22, last, text, 10)


#: pixels to a name's date, nearest first
_ASIDE = (-4, 12, -18, 26, -32, 40)


def _name_machines(
    scene: Scene, placer: Placer, frame: Box, x: PlotAxis, machines: Sequence[Machine], dates: Sequence[float]
) -> None:
    """Upright names, all of one date together, from the upper edge down as far as no line is in the way."""
    at: dict[float, list[str]] = {}
    for machine, date in zip(machines, dates, strict=True):
        at.setdefault(date, []).append(clean(machine.name))
    for date in sorted(at):
        name, px = ", ".join(at[date]), x(date)
        length = text_width(name, 10)
        for left, low in ((px + off, frame.upper + 4 + down + length) for off in _ASIDE for down in range(0, 260, 12)):
            text = Text(left + scene.left, low + scene.top, name, 10, color="dim", angle=90)
            if placer.is_free((text.box,)):
                placer.labels.append(text.box)
                scene.marks.append(text)
                break
