"""Modeled vs. measured time, a panel for each GPU: the diagonal, the band of 20 %, a colour for each op class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from memwall.analysis.accuracy import CLOSE, Row
from memwall.core.errors import UsageError
from memwall.report.columns import SECONDS
from memwall.report.document import clean
from memwall.report.figures.picture import Drawing, dots

#: panels side by side, inches of one, and points that one draws at most
_ACROSS, _INCHES, _POINTS = 4, 3.1, 4000
#: rows that are too few for a panel of their own
_FEW = 50
#: Paul Tol's bright, muted and light schemes, for classes in alphabetical order
_COLORS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8833", "#332288", "#44aa99", "#882255",
    "#999933", "#777777", "#77aadd", "#ffaabb", "#99ddff", "#aaaa00", "#dd77bb", "#5566aa", "#bbcc33", "#555555",
)  # fmt: skip


def scatter_drawing(rows: Sequence[Row]) -> Drawing:
    """The picture.

    Raises:
        UsageError: there is nothing to draw.
    """
    if not rows:
        raise UsageError("there is no row to draw")
    gpus = _panels(rows)
    classes = sorted({row.op_class for row in rows})
    colors = {name: _COLORS[i % len(_COLORS)] for i, name in enumerate(classes)}
    across = min(_ACROSS, len(gpus))
    down = -(-len(gpus) // across)
    legend_rows = -(-len(classes) // (2 * across))

    def build(figure: Any) -> None:
        panels = figure.subplots(down, across, squeeze=False)
        for axes in panels.flat[len(gpus) :]:
            axes.set_axis_off()
        for axes, (gpu, shown) in zip(panels.flat, gpus.items(), strict=False):
            _panel(axes, gpu, shown, colors)
        for axes in panels[:, 0]:
            axes.set_ylabel("modeled")
        for axes in panels.flat[max(0, len(gpus) - across) : len(gpus)]:
            axes.set_xlabel("measured")
        figure.legend(
            dots(colors.values(), markersize=5), map(clean, colors), loc="outside lower center", ncols=2 * across,
            frameon=False, fontsize=8)  # fmt: skip

    return (_INCHES * across + 0.4, _INCHES * down + 0.25 * legend_rows + 0.3), build


def _panels(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each GPU; where some have many, those with few share the last panel."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.gpu.lower()):
        found.setdefault(row.gpu, []).append(row)
    few = [gpu for gpu, own in found.items() if len(own) < _FEW]
    if len(few) in (0, 1, len(found)):
        return found
    others = [row for gpu in few for row in found.pop(gpu)]
    return {**found, f"{len(few)} others": others}


def _tick(value: float, at: int | None = None) -> str:
    scale, unit = next((unit for unit in SECONDS if value >= unit[0] * 0.999), (1e-9, "ns"))
    return f"{value / scale:.0f} {unit}"


def _panel(axes: Any, gpu: str, rows: Sequence[Row], colors: dict[str, str]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    times = [time for row in rows for time in (row.measured_s, row.modeled_s) if time > 0]
    low = 10 ** math.floor(math.log10(min(times)))
    high = 10 ** math.ceil(math.log10(max(times) * 1.01))
    axes.fill_between(
        [low, high], [low * (1 - CLOSE), high * (1 - CLOSE)], [low * (1 + CLOSE), high * (1 + CLOSE)],
        color="#dde2e8", linewidth=0, zorder=1)  # fmt: skip
    axes.plot([low, high], [low, high], color="#444b55", linewidth=0.8, zorder=3)
    step = -(-len(rows) // _POINTS)
    drawn = rows[::step]
    axes.scatter(
        [row.measured_s for row in drawn], [row.modeled_s for row in drawn], c=[colors[row.op_class] for row in drawn],
        s=5, alpha=0.45, linewidths=0, zorder=2, rasterized=True)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=5))
        axis.set_major_formatter(_tick)
        axis.set_minor_locator(NullLocator())
    axes.grid(True)
    close = sum(abs(row.error) <= CLOSE for row in rows) / len(rows)
    axes.set_title(clean(gpu)[:32], fontsize=9)
    axes.text(
        0.04, 0.96, f"{len(rows):,} rows, {close:.0%} within {CLOSE:.0%}", transform=axes.transAxes, va="top",
        fontsize=7.5, color="#444b55")  # fmt: skip
