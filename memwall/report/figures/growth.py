"""How machines grew, on matplotlib axes: one line per quantity, one point per machine, log scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memwall.analysis.compare import Machine
from memwall.report.columns import times
from memwall.report.document import clean

FONT = 8.0


def draw_growth(axes: Any, machines: Sequence[Machine], series: Mapping[str, tuple[str, str]]) -> None:
    """Draw it; the x axis is the release date, machines are named along it."""
    dates = [_year(machine) for machine in machines]
    axes.set_yscale("log", base=2)
    ends: list[tuple[float, str, str]] = []
    highest = 1.0
    for name, (key, color) in series.items():
        known = [(x, m.growth[key]) for x, m in zip(dates, machines, strict=True) if m.growth.get(key)]
        if not known:
            continue
        axes.plot(*zip(*known, strict=True), marker="o", markersize=5, color=color, linewidth=1.8, zorder=3)
        highest = max(highest, *(growth or 0.0 for _, growth in known))
        ends.append((known[-1][1] or 1.0, name, color))
    least = min([1.0, *(g for m in machines for key, _ in series.values() if (g := m.growth.get(key)))])
    axes.set_ylim(least * 0.8, highest * 2.8)
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


def _year(machine: Machine) -> float:
    year, _, month = machine.release.partition("-")
    return int(year) + (int(month or 1) - 1) / 12 if year.isdigit() else 2016.0


def _name_ends(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Each line's name and last value in the right margin, at least one line of text apart."""
    low, high = axes.get_ylim()
    step = (high / low) ** 0.075
    previous = float("inf")
    for value, name, color in sorted(ends, reverse=True):
        at = min(value, previous / step)
        previous = at
        axes.annotate(f"{name}\n{times(value)}", (1.01, at), xycoords=("axes fraction", "data"), va="center",
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
        x = max(date, previous + 0.022 * span)
        previous = x
        axes.annotate(", ".join(at[date]), (x, 0.985), xycoords=("data", "axes fraction"), rotation=90, va="top",
                      ha="right", fontsize=FONT, color="#667080", annotation_clip=False)  # fmt: skip
