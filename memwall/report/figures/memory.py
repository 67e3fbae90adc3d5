"""Memory over the time of a step, stacked by role, with the op and the phase of the peak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memwall.core.units import size
from memwall.record.kernels import peak_place, schedule_label
from memwall.record.profile import Profile
from memwall.report.document import clean
from memwall.report.figures.axes import PlotAxis, draw_frame, draw_x, draw_y
from memwall.report.figures.colors import MEMORY_COLORS
from memwall.report.figures.labels import Box
from memwall.report.figures.picture import time_unit
from memwall.report.figures.scene import Chart, Scene, fit, text_width
from memwall.report.trace_events import memory_line
from memwall.simulate.schedule import Schedule

Line = Sequence[tuple[int, Any]]


def memory_chart(profile: Profile, schedule: Schedule, title: str) -> Chart | None:
    """Bytes alive from the start of a step to its end; None where the plan of the schedule is not known."""
    line, end = memory_line(profile, schedule)
    if not line:
        return None
    peak_ns, peak = max(line, key=lambda point: point[1].total)
    label = f"peak {size(peak.total)} {clean(peak_place(profile, schedule))}".strip()
    heading = f"{title}, {clean(schedule_label(profile, schedule))}: memory alive over the step"
    return lambda scene: _draw(scene, heading, line, max(end, 1), (peak_ns, peak.total, label), schedule.gpu.dram_bytes)


def _thinned(line: Line, end: int, steps: int) -> Line:
    """At most so many steps of equal length, each as high as the highest level in it."""
    if len(line) <= steps:
        return line
    highest: dict[int, tuple[int, Any]] = {}
    for ns, alive in line:
        step = ns * steps // end
        if step not in highest or alive.total > highest[step][1].total:
            highest[step] = ns, alive
    return [(step * end // steps, alive) for step, (_, alive) in sorted(highest.items())]


def _draw(scene: Scene, title: str, line: Line, end: int, peak: tuple[int, int, str], held: int) -> float:
    upper = scene.title(title) + 26
    scale, unit = time_unit(end / 1e9)
    highest = peak[1]
    shows_held = held < 1.3 * highest
    frame = Box(58.0, upper, scene.width - 4, upper + (170.0 if scene.is_narrow else 220.0))
    x = PlotAxis(0.0, end / 1e9 / scale, frame.left, frame.right)
    y = PlotAxis(0.0, max(highest, held if shows_held else 0) * 1.12 or 1.0, frame.lower, frame.upper)
    draw_x(scene, frame, x, lambda v: f"{v:g}", f"time in the step, {unit}")
    draw_y(scene, frame, y, lambda v: size(v).replace(".00", ""))
    roles = [role for role in MEMORY_COLORS if any(getattr(alive, role, 0) for _, alive in line)]
    line = _thinned(line, end, 120 if scene.is_narrow else 240)
    times = [x(ns / 1e9 / scale) for ns, _ in line] + [frame.right]
    for count in range(len(roles), 0, -1):  # each down to the axis, the highest first: what lies below covers it
        tops = [sum(getattr(alive, role, 0) for role in roles[:count]) for _, alive in line]
        outline = [(times[0], frame.lower), *_steps(times, [y(v) for v in tops]), (times[-1], frame.lower)]
        scene.area(outline, MEMORY_COLORS[roles[count - 1]], roles[count - 1].replace("_", " "))
    draw_frame(scene, frame)
    if shows_held:
        scene.line((frame.left, y(held)), (frame.right, y(held)), width=1.3, dash=(5, 3))
    px, py = x(peak[0] / 1e9 / scale), y(highest)
    scene.dot(px, py, 3.5, "ink")
    text = fit(peak[2], scene.width - 4)
    scene.text(
        min(max(px, text_width(text) / 2), scene.width - text_width(text) / 2), frame.upper - 6, text, anchor="middle"
    )
    entries = [(role.replace("_", " "), MEMORY_COLORS[role], "square") for role in reversed(roles)]
    entries += [(f"memory of the GPU, {size(held)}", "ink", "dashed")] if shows_held else []
    return frame.lower + 36 + scene.legend(frame.lower + 36, entries)


def _steps(times: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """A line that keeps each value until the next begins."""
    return [place for a, b, v in zip(times, times[1:], values, strict=False) for place in ((a, v), (b, v))]
