"""The picture of op counts by level of lowering, with what PyTorch announced."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from memwall.analysis.op_counts import OpCounts
from memwall.core.errors import UsageError
from memwall.report.document import clean
from memwall.report.figures.picture import CLASS_COLORS, picture

#: level -> operators that PyTorch announced
_MARKS = {"ATen": 2000, "prims": 250, "loop IR": 50}


def funnel_figure(funnels: Mapping[str, OpCounts], fmt: str = "png") -> bytes:
    """Distinct ops and calls per level, one line per workload, with PyTorch's announced numbers.

    Raises:
        UsageError: no workload, or no such format.
    """
    if not funnels:
        raise UsageError("no op counts to draw")
    names = list(dict.fromkeys(level.name for funnel in funnels.values() for level in funnel.levels))

    def build(figure: Any) -> None:
        distinct, calls = figure.subplots(1, 2)
        _draw_lines(distinct, names, {n: {v.name: v.distinct for v in f.levels} for n, f in funnels.items()})
        _draw_lines(calls, names, {n: {v.name: v.calls for v in f.levels} for n, f in funnels.items()})
        _draw_marks(distinct, names)
        distinct.set_title("distinct operators")
        calls.set_title("calls per step")
        figure.legend(*distinct.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)

    return picture(fmt, (10.5, 5.0 + 0.2 * (len(funnels) // 4)), build)


def _draw_lines(axes: Any, names: list[str], series: Mapping[str, Mapping[str, int]]) -> None:
    """One line per workload over the levels, log scale; counts are written at the first and the last."""
    colors = list(CLASS_COLORS.values())
    axes.set_yscale("log")
    for number, (label, counts) in enumerate(series.items()):
        points = [(names.index(name), count) for name, count in counts.items() if count]
        color = colors[number % len(colors)]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=5, linewidth=1.8, color=color, label=clean(label))
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
    axes.set_xlim(-0.4, len(names) - 0.6)
    axes.grid(True, which="major", axis="y")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    counted = [count for counts in series.values() for count in counts.values() if count]
    axes.set_ylim(10 ** math.floor(math.log10(min(counted))), 10 ** math.ceil(math.log10(1.2 * max(counted))))
    if len(series) == 1:
        _write_counts(axes, names, next(iter(series.values())))


def _write_counts(axes: Any, names: Iterable[str], counts: Mapping[str, int]) -> None:
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    for at, name in enumerate(names):
        if counts.get(name):
            axes.annotate(f"{counts[name]:,}", (at, counts[name]), (0, 8), textcoords="offset points", ha="center",
                          fontsize=8, bbox=paper, zorder=4)  # fmt: skip


def _draw_marks(axes: Any, names: list[str]) -> None:
    """PyTorch's announced count of each of its levels, for all models together."""
    points = [(names.index(name), count) for name, count in _MARKS.items() if name in names]
    axes.plot(*zip(*points, strict=True), marker="_", markersize=22, markeredgewidth=2.5, linestyle="none",
              color="#444b55", label="announced for all of PyTorch")  # fmt: skip
    for at, count in points:
        axes.annotate(f"~{count:,}", (at, count), (0, 6), textcoords="offset points", ha="center", fontsize=8)
    axes.set_ylim(top=max(axes.get_ylim()[1], 2.0 * max(count for _, count in points)))
