"""A step over time: the CPU's launches, each stream and each link as a lane, kernels in the colour of their class.

Kernels narrower than a mark can be share one, in the colour of the longest of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from memwall.analysis.table import rows_and_kernels
from memwall.core.units import duration
from memwall.record.kernels import NO_MODULE, schedule_label, short_name
from memwall.record.profile import Profile
from memwall.report.document import clean
from memwall.report.figures.axes import PlotAxis, draw_frame, draw_x
from memwall.report.figures.colors import CLASS_COLORS, class_color
from memwall.report.figures.labels import Box
from memwall.report.figures.picture import time_unit
from memwall.report.figures.scene import Chart, Scene, fit
from memwall.report.trace_events import Timeline, timeline
from memwall.simulate.schedule import Schedule

#: pixels of a lane, from lane to lane, and of a narrow mark at least
_LANE, _STEP, _LEAST = 22.0, 42.0, 2.0


class LaneMark(NamedTuple):
    """What runs from one nanosecond to another: its class, what is said of it, and what it is found by."""

    start_ns: int
    end_ns: int
    op_class: str
    title: str
    key: str


def timeline_chart(profile: Profile, schedule: Schedule, title: str) -> Chart | None:
    """The lanes of a schedule; None where nothing runs."""
    times = timeline(profile, schedule)
    lanes = dict(_lanes(profile, schedule, times))
    end_ns = max((run.end_ns for run in times.runs), default=0)
    if not end_ns:
        return None
    heading = f"{title}, {clean(schedule_label(profile, schedule))}: the step over time"
    return lambda scene: _draw(scene, heading, lanes, end_ns)


def _lanes(profile: Profile, schedule: Schedule, times: Timeline) -> Iterator[tuple[str, list[LaneMark]]]:
    """The lanes by name, phases first; none for a CPU that issues nothing."""
    ops = profile.graphs[schedule.graph].ops
    phases = [
        LaneMark(scope.span.start_ns, scope.span.end_ns, "", scope.name, "")
        for scope in times.scopes
        if not scope.depth
    ]
    if len(phases) > 1:
        yield "phases", phases
    pairs = enumerate(rows_and_kernels(profile, schedule))
    rows = {kernel.id: (row, str(number)) for number, (row, kernels) in pairs for kernel in kernels}
    launches: list[LaneMark] = []
    streams: dict[int, list[LaneMark]] = {}
    for kernel, launch, run in zip(schedule.kernels, times.launches, times.runs, strict=True):
        if not kernel.launches:
            continue
        row, key = rows[kernel.id]
        told = f"{clean(short_name(row.name))}, {clean(row.module) or NO_MODULE}"
        if launch.end_ns > launch.start_ns:
            said = f"launch of {told}: {duration((launch.end_ns - launch.start_ns) / 1e9)}"
            launches.append(LaneMark(launch.start_ns, launch.end_ns, "other", said, key))
        said = f"{told}: {duration((run.end_ns - run.start_ns) / 1e9)}"
        mark = LaneMark(run.start_ns, run.end_ns, kernel.op_class, said, key)
        streams.setdefault(ops[kernel.op_ids[0]].stream, []).append(mark)
    if launches:
        yield "CPU launches", launches
    for number, marks in sorted(streams.items()):
        yield f"stream {number}" if len(streams) > 1 else "GPU" if schedule.gpu.cpu is None else "kernels", marks


def _draw(scene: Scene, title: str, lanes: dict[str, list[LaneMark]], end_ns: int) -> float:
    upper = scene.title(title) + 4
    scale, unit = time_unit(end_ns / 1e9)
    lower = upper + _STEP * len(lanes)
    frame = Box(2.0, upper, scene.width - 4, lower)
    x = PlotAxis(0.0, end_ns / 1e9 / scale, frame.left, frame.right)
    draw_x(scene, frame, x, lambda v: f"{v:g}", f"time in the step, {unit}")
    for number, (name, marks) in enumerate(lanes.items()):
        y = upper + number * _STEP
        scene.text(frame.left + 2, y + 13, name, 10.0, color="dim")
        _lane(scene, x, marks, y + 18, scale * 1e9)
    draw_frame(scene, frame)
    shown = {mark.op_class for marks in lanes.values() for mark in marks}
    entries = [(name, color, "square") for name, color in CLASS_COLORS.items() if name in shown and name != "other"]
    return lower + 36 + scene.legend(lower + 36, entries)


def _lane(scene: Scene, x: PlotAxis, marks: Sequence[LaneMark], y: float, ns: float) -> None:
    for left, right, mark in _merged((x(m.start_ns / ns), x(m.end_ns / ns), m) for m in marks):
        wide = right - left
        color = class_color(mark.op_class) if mark.op_class else "pale"
        label = mark.title if not mark.op_class and fit(mark.title, wide - 8) == mark.title else ""
        scene.rect(left, y, wide, _LANE - 4, color, title=mark.title, key=mark.key, label=label, edge=not mark.op_class)


def _merged(marks: Iterable[tuple[float, float, LaneMark]]) -> Iterator[tuple[float, float, LaneMark]]:
    """Wide marks as they are; of narrow ones within ``_LEAST`` pixels the widest, so wide."""
    open_: tuple[float, float, LaneMark] | None = None
    widest = 0.0
    for left, right, mark in marks:
        if open_ is not None and (right - left >= _LEAST or left - open_[0] >= _LEAST):
            yield open_
            open_ = None
        if right - left >= _LEAST:
            yield left, right - 0.3 * (right - left > 2), mark
        elif open_ is None:
            open_, widest = (left, left + _LEAST, mark), right - left
        elif right - left > widest:
            open_, widest = (open_[0], open_[1], mark), right - left
    if open_ is not None:
        yield open_
