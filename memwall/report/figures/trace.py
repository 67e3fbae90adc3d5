"""The roofline of a trace: the roofs of the GPU, and every kind of op where it was measured.

A circle's area is its share of the GPU time; its colour is the op's class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.core.units import bandwidth, flop_rate
from memwall.report.document import clean
from memwall.report.figures.picture import INK, Drawing, class_color, dots, log_axes, note
from memwall.report.figures.roofline import area
from memwall.report.pages.trace_names import short_name
from memwall.traces.analysis import RowGroup, TraceAnalysis

#: kinds of op that are named, and the share of the time from which on
_NAMED, _NOTABLE = 8, 0.01
#: drawn besides those that the trace uses
_ROOF = Pipe("vector", "float32")


def trace_drawing(analysis: TraceAnalysis) -> Drawing:
    """The roofline of a trace.

    Raises:
        UsageError: nothing in the trace has FLOPs and bytes.
    """
    points = [group for group in analysis.groups("op") if group.known("flops") and group.known("bytes")]
    if not points:
        raise UsageError("nothing to draw: no op of the trace has known FLOPs and bytes")
    return (10.5, 6.2), lambda figure: _build(figure, analysis, points)


def _build(figure: Any, analysis: TraceAnalysis, points: list[RowGroup]) -> None:
    axes = figure.add_subplot()
    places = [_place(group) for group in points]
    gpu, whole = analysis.gpu, analysis.measured_s or 1.0
    dram = gpu.dram_bytes_per_s
    roofs = {gpu.peak(pipe): gpu.ceiling_pipe(pipe) for pipe in (_ROOF, *analysis.pipes())}
    top = max(roofs)
    low = max(min(0.1, *(x / 2 for x, _ in places)), 1e-3)
    high = max(top / dram * 4, *(x * 2 for x, _ in places))
    notable = [y for group, (_, y) in zip(points, places, strict=True) if group.measured_s / whole > 1e-3]
    bottom = max(min([top / 1e3, *(y / 2 for y in notable)]), top / 1e8)
    label = "arithmetic intensity, FLOP per compulsory byte"
    log_axes(axes, (low, high), (bottom, top * 2), label, "measured FLOP/s")
    axes.set_title(f"{clean(analysis.trace.path_name)[:60]} on {gpu.name}")
    for rate in sorted(roofs, reverse=True):
        axes.plot([rate / dram, high], [rate, rate], color=INK, linewidth=1.1, zorder=2)
        note(axes, f"{roofs[rate]}\n{flop_rate(rate)}", (high, rate), (4, 0), va="center", annotation_clip=False)
    axes.plot([low, top / dram], [low * dram, top], color=INK, linewidth=1.1, zorder=2)
    at = max(low, bottom / dram) * 1.3
    note(axes, f"DRAM  {bandwidth(dram)}", (at, at * dram), (0, 4), rotation=45, rotation_mode="anchor",
         transform_rotates_text=True)  # fmt: skip
    places = [(x, max(y, bottom * 1.1)) for x, y in places]
    for group, (x, y) in zip(points, places, strict=True):
        axes.scatter(x, y, s=area(group.measured_s / whole), alpha=0.7, zorder=3,
                     color=class_color(group.first.op_class), edgecolor="white", linewidth=0.6)  # fmt: skip
    _names(axes, points, places, whole)
    text = "a point above its roof: an algorithm with fewer FLOPs (Winograd), or operands in L2"
    note(axes, text, (0, 0), (0, -42), xycoords="axes fraction")
    groups = analysis.groups("class")
    names = [f"{clean(group.key)}  {100 * group.measured_s / whole:.1f} %" for group in groups]
    axes.legend(dots(class_color(group.key) for group in groups), names, title="share of GPU time", loc="lower right",
                frameon=False, fontsize=7.5, title_fontsize=7.5)  # fmt: skip


def _names(axes: Any, points: Sequence[RowGroup], places: Sequence[tuple[float, float]], whole: float) -> None:
    """The longest kinds of op by name, each name once and none over another."""
    taken: dict[str, tuple[float, float]] = {}
    for group, (x, y) in zip(points, places, strict=True):
        name = short_name(group.key)[:28]
        at = math.log10(x), math.log10(y)
        near = any(abs(at[0] - u) < 1.0 and abs(at[1] - v) < 0.2 for u, v in taken.values())
        if group.measured_s / whole < _NOTABLE or name in taken or near or len(taken) >= _NAMED:
            continue
        taken[name] = at
        reach = math.sqrt(area(group.measured_s / whole) / math.pi)
        left = at[0] > math.log10(axes.get_xlim()[1]) - 1.2
        note(axes, name, (x, y), (-reach - 2 if left else reach + 2, 0), va="center", ha="right" if left else "left",
             color=INK, zorder=4)  # fmt: skip


def _place(group: RowGroup) -> tuple[float, float]:
    """Intensity and measured FLOP/s of a kind of op."""
    known = [row for row in group.rows if row.flops and row.bytes and row.measured_s > 0]
    flops, moved = sum(row.flops or 0 for row in known), sum(row.bytes or 0 for row in known)
    seconds = sum(row.measured_s for row in known)
    return (flops / moved, flops / seconds) if known else (1.0, 1.0)
