"""The roofline of one schedule on matplotlib axes: roofs, every kernel a point, labels that do not overlap.

A kernel that was measured has an outlined mark at its measured FLOP/s, joined by a line to where the model put it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from memwall.analysis.table import KernelRow, kernel_rows
from memwall.analysis.validation import Point, measured_points
from memwall.core.graph import Pipe
from memwall.core.units import bandwidth, flop_rate
from memwall.record.kernels import short_name
from memwall.record.profile import Profile
from memwall.report.document import clean
from memwall.report.figures.labels import Box, Line, Placer
from memwall.report.figures.picture import DIM, INK, PALE, class_color, cut, dots, log_axes, note
from memwall.simulate.schedule import Schedule

MAX_LABELS, LONGEST_LABEL, FONT = 12, 30, 7.5
#: a kernel of less than this share of the time does not stretch the axes
NOTABLE = 1e-3
#: executor -> the mark of what it took
MARKS = {"eager": "s", "inductor": "^", "generated": "D"}

Range = tuple[float, float]


def draw_roofline(axes: Any, profile: Profile, schedule: Schedule) -> None:
    """Draw it. Kernels without FLOPs have no place on it; a line of text says how much time they take."""
    rows = [row for row in kernel_rows(profile, schedule) if row.time_s > 0]
    points = [row for row in rows if row.flops and row.bytes]
    measured = measured_points(profile, schedule)
    roofs, slopes = compute_roofs(profile, schedule), memory_roofs(schedule)
    x_range, y_range = _ranges(points, measured, roofs, slopes)
    log_axes(axes, x_range, y_range, "arithmetic intensity, FLOP per DRAM byte", "attained FLOP/s")
    _draw_roofs(axes, roofs, slopes, x_range, y_range)
    for row in sorted(points, key=lambda row: -row.time_share):
        axes.scatter(
            *position(row.arithmetic_intensity, row.attained_flop_per_s, x_range, y_range),
            s=area(row.time_share), color=class_color(row.op_class), alpha=0.75, edgecolor="white", linewidth=0.6,
            zorder=3, clip_on=False)  # fmt: skip
    _draw_measured(axes, measured, x_range, y_range)
    bare = [row for row in rows if not (row.flops and row.bytes)]
    if share := sum(row.time_share for row in bare):
        kinds = "1 kind of kernel does" if len(bare) == 1 else f"{len(bare)} kinds of kernel do"
        note(axes, f"{kinds} no FLOP: {100 * share:.1f} % of the time", (1, 0), (-4, 5), xycoords="axes fraction",
             ha="right")  # fmt: skip
    _draw_legend(axes, rows)
    _draw_labels(axes, points, measured, roofs, slopes, x_range, y_range)


def position(x: float, y: float, x_range: Range, y_range: Range) -> tuple[float, float]:
    """The position of a kernel; on the edge if it is off the axes."""
    return max(x, x_range[0] * 1.03), max(y, y_range[0] * 1.1)


def area(share: float) -> float:
    """Area of a point in square points: in proportion to its share of the time, above a visible least."""
    return 9 + 1500 * share


def _ranges(
    points: Sequence[KernelRow], measured: Sequence[Point], roofs: Sequence[Roof], slopes: Sequence[Roof]
) -> tuple[Range, Range]:
    top, ridge = roofs[0].rate, roofs[0].rate / slopes[0].rate
    notable = [row for row in points if row.time_share > NOTABLE]
    x = [row.arithmetic_intensity for row in notable]
    y = [row.attained_flop_per_s for row in notable]
    y += [point.measured_flop_per_s for point in measured if point.share > NOTABLE]
    x_range = min([0.1, *(v / 2 for v in x)]), max([ridge * 4, *(v * 2 for v in x)])
    return (max(x_range[0], 1e-3), x_range[1]), (max(min([top / 1e3, *(v / 2 for v in y)]), top / 1e8), top * 1.9)


def _draw_roofs(axes: Any, roofs: Sequence[Roof], slopes: Sequence[Roof], x_range: Range, y_range: Range) -> None:
    """Horizontal roofs, named in the right margin; sloped ones, named along the line at its lower end."""
    fastest = max(slope.rate for slope in slopes)
    previous, decades = math.inf, math.log(y_range[1] / y_range[0])
    for roof in roofs:
        axes.plot([roof.rate / fastest, x_range[1]], [roof.rate, roof.rate], zorder=2, **_style(roof))
        previous = min(math.log(roof.rate), previous - 0.075 * decades)
        at = math.log(math.exp(previous) / y_range[0]) / decades
        axes.annotate(
            roof.label.replace("  ", "\n"), (x_range[1], roof.rate), (1.015, at), textcoords="axes fraction",
            va="center", fontsize=FONT, color=INK if roof.used else DIM, annotation_clip=False, linespacing=1.15,
            arrowprops={"arrowstyle": "-", "color": PALE, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 0})  # fmt: skip
    for slope in slopes:
        low = max(x_range[0], y_range[0] / slope.rate)
        high = roofs[0].rate / slope.rate
        axes.plot([low, high], [low * slope.rate, high * slope.rate], zorder=2, **_style(slope))
        note(axes, slope.label, (low * 1.15, low * 1.15 * slope.rate), (0, 4), color=INK if slope.used else DIM,
             rotation=45, rotation_mode="anchor", transform_rotates_text=True, va="bottom", ha="left")  # fmt: skip


def _style(roof: Roof) -> dict[str, Any]:
    """Solid for what the workload uses, dashed for context."""
    return {"color": INK, "linewidth": 1.2} if roof.used else {"color": PALE, "linewidth": 0.9, "ls": "--"}


def mark_area(point: Point) -> float:
    """Area of the mark of a measured kernel in square points: that of its circle within limits."""
    return min(max(area(point.share), 10.0), 30.0)


def _draw_measured(axes: Any, points: Sequence[Point], x_range: Range, y_range: Range) -> None:
    for point in points:
        x, y = position(point.arithmetic_intensity, point.measured_flop_per_s, x_range, y_range)
        _, start = position(x, point.modeled_flop_per_s, x_range, y_range)
        axes.plot([x, x], [start, y], color=INK, linewidth=0.9, zorder=4, clip_on=False)
        axes.scatter(
            x, y, s=mark_area(point), marker=MARKS[point.executor], facecolor=class_color(point.op_class),
            edgecolor=INK, linewidth=0.9, zorder=4.5, clip_on=False)  # fmt: skip
    executors = [name for name in MARKS if any(point.executor == name for point in points)]
    if executors:
        handles = dots(["#b0b6be"], markersize=5.5)
        for name in executors:
            handles += dots(["#b0b6be"], markersize=5.5, marker=MARKS[name], markeredgecolor=INK)
        names = ["modeled", *(f"measured, {name}" for name in executors)]
        axes.add_artist(axes.legend(handles, names, loc="upper left", frameon=False, fontsize=FONT))


def _draw_legend(axes: Any, rows: Sequence[KernelRow]) -> None:
    total: dict[str, float] = {}
    for row in rows:
        total[row.op_class] = total.get(row.op_class, 0.0) + row.time_share
    order = sorted(total, key=lambda name: (-total[name], name))
    names = [f"{clean(name)}  {100 * total[name]:.1f} %" for name in order]
    axes.legend(
        dots(map(class_color, order)), names, title="share of time", loc="lower left", bbox_to_anchor=(1.005, 0.0),
        frameon=False, fontsize=FONT, title_fontsize=FONT, alignment="left", borderaxespad=0.0)  # fmt: skip


def _draw_labels(
    axes: Any, points: Sequence[KernelRow], measured: Sequence[Point], roofs: Sequence[Roof], slopes: Sequence[Roof],
    x_range: Range, y_range: Range,
) -> None:  # fmt: skip
    """Names of the longest kernels, one per name and class, with a thin line if the label is apart from its point."""
    figure = axes.get_figure(root=True)
    figure.draw_without_rendering()  # lays the axes out, so that pixels are final
    to_pixels, scale = axes.transData.transform, figure.dpi / 72

    def circle(row: KernelRow) -> tuple[float, float, float]:
        x, y = to_pixels(position(row.arithmetic_intensity, row.attained_flop_per_s, x_range, y_range))
        return float(x), float(y), math.sqrt(area(row.time_share) / math.pi) * scale

    placer = _placer(axes, scale, [circle(row) for row in points], measured, roofs, slopes, (x_range, y_range))
    inverse = axes.transData.inverted().transform
    seen: set[tuple[str, str]] = set()
    for row in points:
        name = cut(clean(short_name(row.name)), LONGEST_LABEL)
        if len(seen) >= MAX_LABELS or row.time_share < 0.01:
            break
        if (name, row.op_class) in seen:
            continue
        text = axes.text(x_range[0], y_range[0], name, ha="center", va="center", fontsize=FONT, zorder=5)
        size = text.get_window_extent()
        placed = placer.place(*circle(row), size.width + 8, size.height + 3)
        if placed is None:
            text.remove()
            continue
        seen.add((name, row.op_class))
        box, leader = placed
        text.set_position(inverse(((box.left + box.right) / 2, (box.bottom + box.top) / 2)))
        if leader:
            ends = inverse([(leader.x0, leader.y0), (leader.x1, leader.y1)])
            axes.plot(ends[:, 0], ends[:, 1], color=DIM, linewidth=0.6, zorder=4)


def _placer(
    axes: Any, scale: float, circles: Iterable[tuple[float, float, float]], measured: Sequence[Point],
    roofs: Sequence[Roof], slopes: Sequence[Roof], ranges: tuple[Range, Range],
) -> Placer:  # fmt: skip
    """Keeps labels off points, marks, texts, legends but the axes' own, and roofs; all in pixels."""
    from matplotlib.legend import Legend

    to_pixels, low = axes.transData.transform, ranges[0][0]
    taken = [(x, y, radius * 0.9) for x, y, radius in circles]  # labels may come near the corners of a circle's box
    for point in measured:
        x, y = to_pixels(position(point.arithmetic_intensity, point.measured_flop_per_s, *ranges))
        taken.append((float(x), float(y), math.sqrt(mark_area(point)) / 2 * scale))
    legends = [one for one in axes.get_children() if isinstance(one, Legend) and one is not axes.get_legend()]
    extents = [one.get_window_extent() for one in (axes, *axes.texts, *legends)]
    frame, *texts = [Box(e.x0, e.y0, e.x1, e.y1) for e in extents]
    ends = [((low, roof.rate), (ranges[0][1], roof.rate)) for roof in roofs]
    ends += [((low, low * slope.rate), (roofs[0].rate / slope.rate, roofs[0].rate)) for slope in slopes]
    lines = [Line(*map(float, (*to_pixels(start), *to_pixels(end)))) for start, end in ends]
    return Placer(frame, [*(Box(x - r, y - r, x + r, y + r) for x, y, r in taken), *texts], lines)


#: drawn for context even where the workload does not use them
CONTEXT = (Pipe("tensor", "float16"), Pipe("vector", "float32"))


class Roof(NamedTuple):
    """A horizontal ceiling (FLOP/s) or a sloped one (B/s)."""

    name: str
    label: str
    rate: float
    used: bool


def compute_roofs(profile: Profile, schedule: Schedule) -> tuple[Roof, ...]:
    """One roof per pipe that the workload runs on here, and those of ``CONTEXT``; the highest first."""
    gpu = schedule.gpu
    flops = {frozenset(cost.flops) for cost in profile.costs[schedule.graph]}
    used = {gpu.ceiling_pipe(pipe) for pipes in flops for pipe in pipes}
    context = {gpu.ceiling_pipe(pipe) for pipe in CONTEXT}
    roofs = []
    for rate in sorted({gpu.peak_flop_per_s[pipe] for pipe in used | context}, reverse=True):
        alike = [pipe for pipe in sorted(used | context) if gpu.peak_flop_per_s[pipe] == rate]
        pipes = [pipe for pipe in alike if pipe in used] or alike[:1]
        name = " = ".join(map(str, pipes))
        roofs.append(Roof(name, f"{name}  {flop_rate(rate)}", rate, pipes[0] in used))
    return tuple(roofs)


def memory_roofs(schedule: Schedule) -> tuple[Roof, ...]:
    """DRAM, and L2 where the GPU has one."""
    gpu = schedule.gpu
    roofs = [Roof("DRAM", f"DRAM  {bandwidth(gpu.dram_bytes_per_s)}", gpu.dram_bytes_per_s, True)]
    if gpu.l2_bytes and gpu.l2_bytes_per_s > gpu.dram_bytes_per_s:
        roofs.append(Roof("L2", f"L2  {bandwidth(gpu.l2_bytes_per_s)}", gpu.l2_bytes_per_s, False))
    return tuple(roofs)
