"""The pictures of a comparison: bars of GPUs or profiles; for machines, how they grew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import memwall.report.columns as col
from memwall.analysis.compare import Comparison, Entry, Machine
from memwall.core.units import duration
from memwall.record.kernels import WALLS
from memwall.report.document import clean
from memwall.report.figures.picture import WALL_COLORS, Drawing, time_unit

FONT = 8.0
#: what grows -> (key of Machine.growth, colour)
_SERIES = {"fp16 FLOP/s": ("float16", "#4477aa"), "DRAM bandwidth": ("bandwidth", "#ee6677"),
           "DRAM capacity": ("capacity", "#228833")}  # fmt: skip


def comparison_drawing(comparison: Comparison) -> Drawing:
    if comparison.kind == "machines":
        return (10.5, 6.0), lambda figure: _draw_growth(figure.add_subplot(), comparison.machines)
    entries = comparison.entries

    def build(figure: Any) -> None:
        time, speed, used = figure.subplots(1, 3, sharey=True, width_ratios=[2.2, 1, 1.2])
        _draw_times(time, entries)
        _draw_bars(speed, [("#4477aa", "{:.2f}x", [entry.speedup for entry in entries])], 0.66, 8)
        speed.set_title("speed-up")
        mfu, mbu = ([100 * getattr(entry, name) for entry in entries] for name in ("mfu", "mbu"))
        _draw_bars(used, [("#228833", "MFU {:.0f}", mfu), ("#ccaa22", "MBU {:.0f}", mbu)], 0.32, 7)
        used.set_title("MFU and MBU, %")
        time.invert_yaxis()
        figure.suptitle(f"compare: {clean(comparison.title)}", x=0.01, ha="left", fontsize=11, fontweight="bold")

    return (11.0, 1.9 + 0.42 * len(entries)), build


def _draw_times(axes: Any, entries: Sequence[Entry]) -> None:
    rows = range(len(entries))
    scale, unit = time_unit(max(entry.time_s for entry in entries))
    left = [0.0] * len(entries)
    for wall in WALLS:
        widths = [entry.wall_shares[wall] * entry.time_s / scale for entry in entries]
        axes.barh(rows, widths, left=left, color=WALL_COLORS[wall], height=0.66, label=wall)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for row, entry in enumerate(entries):
        axes.text(left[row], row, f" {duration(entry.time_s)}", va="center", fontsize=8)
    axes.set_xlim(0, max(left) * 1.2)
    axes.set_yticks(rows, [clean(entry.label) + ("" if entry.fits else "\n(does not fit)") for entry in entries])
    axes.set_title(f"time per step, {unit}, by wall")
    below = (0, -0.04 - 0.3 / len(entries))
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper left", bbox_to_anchor=below)


def _draw_bars(axes: Any, series: Sequence[tuple[str, str, Sequence[float]]], height: float, font: float) -> None:
    """Bars of colour, text and values, those of one row side by side."""
    for i, (color, text, values) in enumerate(series):
        rows = [row + 0.17 * (2 * i - len(series) + 1) for row in range(len(values))]
        axes.barh(rows, values, color=color, height=height)
        for row, value in zip(rows, values, strict=True):
            axes.text(value, row, " " + text.format(value), va="center", fontsize=font)
    axes.set_xlim(0, max(max(values) for _, _, values in series) * 1.35)


def _draw_growth(axes: Any, machines: Sequence[Machine]) -> None:
    """Growth of FLOP/s, bandwidth and capacity by release date, relative to the first machine, log scale."""
    released = [machine.release.partition("-") for machine in machines]
    dates = [int(year) + (int(month or 1) - 1) / 12 if year.isdigit() else 2016.0 for year, _, month in released]
    axes.set_yscale("log", base=2)
    ends: list[tuple[float, str, str]] = []
    for name, (key, color) in _SERIES.items():
        known = [(x, m.growth[key]) for x, m in zip(dates, machines, strict=True) if m.growth.get(key)]
        if known:
            axes.plot(*zip(*known, strict=True), marker="o", markersize=5, color=color, linewidth=1.8, zorder=3)
            ends.append((known[-1][1] or 1.0, name, color))
    growths = [1.0, *(g for m in machines for key, _ in _SERIES.values() if (g := m.growth.get(key)))]
    axes.set_ylim(min(growths) * 0.8, max(growths) * 2.8)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.grid(True, which="major", axis="y")
    span = max(dates) - min(dates) or 1.0
    axes.set_xlim(min(dates) - 0.04 * span, max(dates) + 0.02 * span)
    years = range(int(min(dates)), int(max(dates)) + 2)
    axes.set_xticks([y for y in years if min(dates) - 0.1 <= y <= max(dates) + 0.1])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.set_title(f"The memory wall: growth over {clean(machines[0].name)}")
    _name_ends(axes, ends)
    _name_machines(axes, machines, dates)


def _name_ends(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Each line's name and last value in the right margin, at least one line of text apart."""
    low, high = axes.get_ylim()
    step = (high / low) ** 0.075
    previous = float("inf")
    for value, name, color in sorted(ends, reverse=True):
        previous = min(value, previous / step)
        axes.annotate(f"{name}\n{col.times(value)}", (1.01, previous), xycoords=("axes fraction", "data"), va="center",
                      color=color, fontsize=FONT + 1, fontweight="bold", annotation_clip=False)  # fmt: skip


def _name_machines(axes: Any, machines: Sequence[Machine], dates: Sequence[float]) -> None:
    """Names above the axes, slanted; those of one date share a label."""
    at: dict[float, list[str]] = {}
    for machine, date in zip(machines, dates, strict=True):
        at.setdefault(date, []).append(clean(machine.name))
        axes.axvline(date, color="#e3e6ea", linewidth=0.7, zorder=1)
    span = axes.get_xlim()[1] - axes.get_xlim()[0]
    previous = -float("inf")
    for date in sorted(at):
        previous = max(date, previous + 0.022 * span)
        axes.annotate(", ".join(at[date]), (previous, 0.985), xycoords=("data", "axes fraction"), rotation=90, va="top",
                      ha="right", fontsize=FONT, color="#667080", annotation_clip=False)  # fmt: skip
