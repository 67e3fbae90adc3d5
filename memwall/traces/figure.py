"""The pictures of a trace: where its GPU time went, by op class, and the roofline of every kind of op as measured."""

from __future__ import annotations

from collections.abc import Sequence

from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.core.units import bandwidth, duration, flop_rate, percent
from memwall.report.document import clean
from memwall.report.figures.bars import Bar, Piece, bars_chart
from memwall.report.figures.colors import class_color
from memwall.report.figures.roofline import MAX_POINTS, Roof, Roofline, Spot, roofline_charts
from memwall.report.figures.scene import Chart, stacked
from memwall.traces.analysis import RowGroup, TraceAnalysis
from memwall.traces.page_names import short_name

#: drawn besides the pipes that the trace uses
_ROOF = Pipe("vector", "float32")


def trace_chart(analysis: TraceAnalysis) -> Chart:
    """The GPU time by op class, and the roofline of the ops that have FLOPs and bytes.

    Raises:
        UsageError: the trace has no GPU time.
    """
    if not analysis.measured_s:
        raise UsageError("nothing to draw: the trace has no GPU time")
    points = [group for group in analysis.groups("op") if group.known("flops") and group.known("bytes")]
    charts = [classes_chart(analysis)]
    if points:
        charts += roofline_charts([trace_roofline(analysis, points)])
    return stacked(charts)


def classes_chart(analysis: TraceAnalysis) -> Chart:
    """One bar, all of the GPU time."""
    whole = analysis.measured_s
    groups = sorted(analysis.groups("class"), key=lambda group: -group.measured_s)
    pieces = []
    for group in groups:
        name, part = clean(group.key), group.measured_s / whole
        title = f"{name} {duration(group.measured_s)}, {percent(part)}"
        pieces.append(Piece(name, 100 * part, class_color(group.key), percent(part), title, name))
    title = f"{clean(analysis.trace.path_name)} on {analysis.gpu.name}: {duration(whole)} of GPU time by op class, %"
    return bars_chart(title, [Bar("GPU time", pieces)], most=100.0)


def trace_roofline(analysis: TraceAnalysis, points: Sequence[RowGroup]) -> Roofline:
    """Every kind of op with FLOPs and bytes where it was measured; the legend has the classes that are drawn, the note
    what share of the time that is."""
    gpu, whole = analysis.gpu, analysis.measured_s
    rates = {gpu.peak(pipe): gpu.ceiling_pipe(pipe) for pipe in (_ROOF, *analysis.pipes())}
    used = {gpu.peak(pipe) for pipe in analysis.pipes()}
    roofs = [
        Roof(str(rates[rate]), f"{rates[rate]}  {flop_rate(rate, rates[rate])}", rate, rate in used)
        for rate in sorted(rates, reverse=True)
    ]
    dram = gpu.dram_bytes_per_s
    spots = sorted((_spot(group, whole) for group in points), key=lambda spot: -spot.share)[:MAX_POINTS]
    drawn: dict[str, float] = {}
    for group in points:
        drawn[group.first.op_class] = drawn.get(group.first.op_class, 0.0) + group.measured_s / whole
    legend = [
        (f"{clean(name)} {percent(part)}", class_color(name), "circle")
        for name, part in sorted(drawn.items(), key=lambda item: -item[1])
    ]
    return Roofline(
        f"{clean(analysis.trace.path_name)} on {gpu.name}, measured",
        roofs,
        [Roof("DRAM", f"DRAM  {bandwidth(dram)}", dram, True)],
        spots,
        "measured FLOP/s",
        "arithmetic intensity, FLOP per compulsory byte",
        legend,
        "share of GPU time",
        note=f"drawn: {percent(sum(drawn.values()))} of the GPU time, the ops with known FLOPs and bytes; a point above"
        " its roof: an algorithm with fewer FLOPs (Winograd), or operands in L2",
    )


def _spot(group: RowGroup, whole: float) -> Spot:
    """Intensity and measured FLOP/s of a kind of op."""
    known = group.rows.timed().where(lambda kind: bool(kind.flops and kind.bytes))
    flops, moved = sum(known.values("flops")), sum(known.values("bytes"))
    x, y = (flops / moved, flops / known.measured_s) if known else (1.0, 1.0)
    name = clean(short_name(group.key))
    title = f"{name} x{len(group.rows)}: {duration(group.measured_s)}, {percent(group.measured_s / whole)}"
    return Spot(x, y, group.measured_s / whole, class_color(group.first.op_class), name, title, name)
