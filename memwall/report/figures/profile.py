"""The pictures of a profile: rooflines, what policies save, shares of the op classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import memwall.report.columns as col
from memwall.analysis.savings import LEAST_STEP, PolicySet, Waterfall, by_gpu, policy_sets, waterfall
from memwall.analysis.table import class_rows
from memwall.analysis.validation import measured_points
from memwall.core.errors import UsageError
from memwall.core.units import duration, percent
from memwall.record.kernels import schedule_label
from memwall.record.profile import Profile
from memwall.report.document import clean
from memwall.report.figures.picture import Drawing, class_color, cut, patches, time_unit
from memwall.report.figures.roofline import draw_roofline
from memwall.report.pages.fusion import explained, is_several
from memwall.simulate.schedule import Schedule

#: inches across
WIDTH = 10.5
#: inches down, and what draws on a figure or a part of one
Panel = tuple[float, Callable[[Any], None]]


def profile_drawing(profile: Profile) -> Drawing:
    """Roofline and class shares of each simulation, one below the other. Of several policies, for each GPU the roofline
    of the first, those of others that were measured, and the waterfalls.

    Raises:
        UsageError: the profile has no simulation.
    """
    if not profile.simulations:
        raise UsageError("the profile has no simulation to draw; profile it on a GPU")
    panels: list[Panel] = []
    if is_several(profile):
        for policies in policy_sets(profile):
            first, *others = policies.schedules
            shown = [first, *(schedule for schedule in others if measured_points(profile, schedule))]
            panels += [(6.0, partial(roofline_panel, profile=profile, schedule=schedule)) for schedule in shown]
            panels += [waterfall_panel(policies, schedule) for schedule in explained(policies)]
    else:
        panels += [(6.0, partial(roofline_panel, profile=profile, schedule=s)) for s in profile.simulations]
    bars = 2 * len({s.graph for s in profile.simulations}) + len(profile.simulations)
    panels.append((1.5 + 0.42 * bars, lambda part: _draw_shares(part.add_subplot(), profile)))
    heights = [height for height, _ in panels]

    def build(figure: Any) -> None:
        parts: Any = figure.subfigures(len(panels), 1, height_ratios=heights)
        for part, (_, draw) in zip(parts, panels, strict=True):
            draw(part)

    return (WIDTH, sum(heights)), build


def roofline_panel(figure: Any, profile: Profile, schedule: Schedule) -> None:
    axes = figure.add_subplot()
    label = clean(schedule_label(profile, schedule))
    mfu = percent(schedule.totals.mfu, 0)
    axes.set_title(f"{clean(profile.workload.name)} on {label}: {duration(schedule.totals.time_s)}, MFU {mfu}")
    draw_roofline(axes, profile, schedule)


def waterfall_panel(policies: PolicySet, schedule: Schedule) -> Panel:
    """What each group of a policy saves, from the eager time down to its own."""
    fall, rows = fall_and_bars(policies, schedule)
    row = policies.row(schedule)
    score = "" if row.time_score is None else f", {percent(row.time_score, 0)} of what ideal saves"
    title = f"{clean(policies.profile.workload.name)} on {policies.gpu.name}, {schedule.policy}"

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        axes.set_title(f"{title}: {col.times(row.speedup)} over eager{score}", pad=16)
        _draw_waterfall(axes, fall, rows)

    return 1.25 + 0.36 * len(rows), draw


def _draw_shares(axes: Any, profile: Profile) -> None:
    """Stacked bars: FLOPs and bytes of each graph (named where there are several), time of each simulation."""
    graphs = {s.graph: s for s in reversed(profile.simulations)}
    bars = []
    for name, field in (("FLOPs", "flop_share"), ("bytes", "byte_share")):
        for graph in sorted(graphs):
            of = f", {profile.graphs[graph].attention} attention" if len(graphs) > 1 else ""
            bars.append((name + of, graphs[graph], field))
    bars += [(f"time, {clean(schedule_label(profile, s))}", s, "time_share") for s in by_gpu(profile)]
    seen: dict[str, str] = {}
    for row, (_, schedule, field) in enumerate(bars):
        left = 0.0
        for entry in class_rows(profile, schedule):
            share = 100 * getattr(entry, field)
            color = class_color(entry.key)
            seen.setdefault(clean(entry.key), color)
            axes.barh(row, share, left=left, color=color, height=0.66)
            if share >= 5:
                axes.text(left + share / 2, row, f"{share:.1f}", ha="center", va="center", color="white", fontsize=8)
            left += share
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    axes.invert_yaxis()
    axes.set(xlim=(0, 100), xlabel="%")
    axes.set_title("Shares by op class")
    axes.legend(patches(seen.values()), seen, loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False, fontsize=8)


#: savings that have a bar of their own, and characters of a name
MAX_STEPS, LONGEST_NAME = 9, 44
COLORS = {"total": "#445566", "others": "#bbbbbb", "worse": "#cc3311"}
IDEAL_COLOR = "#228833"


class Bar(NamedTuple):
    """One row: from ``start_s`` to ``end_s``; ``kind`` is ``total``, ``others``, ``worse`` or an op class."""

    name: str
    where: str
    start_s: float
    end_s: float
    kind: str

    @property
    def color(self) -> str:
        return COLORS.get(self.kind) or class_color(self.kind)


def bars(fall: Waterfall, policy: str) -> tuple[Bar, ...]:
    rows = [Bar("eager", "", 0.0, fall.eager_s, "total")]
    at = fall.eager_s
    for step in fall.steps:
        count = f" x{step.count}" if step.count > 1 else ""
        name = cut(clean(step.name), LONGEST_NAME - len(count)) + count
        rows.append(Bar(name, clean(step.module or "(top)"), at, at - step.saved_s, step.op_class))
        at -= step.saved_s
    if abs(fall.others_s) > LEAST_STEP * fall.eager_s:
        rows.append(Bar("all others", "", at, at - fall.others_s, "others" if fall.others_s > 0 else "worse"))
    return (*rows, Bar(policy, "", 0.0, fall.time_s, "total"))


def label(bar: Bar, scale: float, whole: float) -> str:
    """A time, or a signed difference, in the unit of the axis."""
    text = col.number(abs(bar.end_s - bar.start_s) / scale, 2 if whole / scale >= 10 else 3)
    return text if bar.kind == "total" else f"{'−' if bar.end_s < bar.start_s else '+'}{text}"


def axis_start_s(fall: Waterfall) -> float:
    """Where the axis begins: some way below the smallest time; at zero where that is not far from it."""
    least = min(fall.time_s, fall.ideal_s)
    start = least - 0.12 * (fall.eager_s - least)
    return start if start > 0.35 * fall.eager_s else 0.0


def fall_and_bars(policies: PolicySet, schedule: Schedule) -> tuple[Waterfall, tuple[Bar, ...]]:
    fall = waterfall(policies, schedule, top=MAX_STEPS)
    return fall, bars(fall, schedule.policy)


def _draw_waterfall(axes: Any, fall: Waterfall, rows: tuple[Bar, ...]) -> None:
    start, (scale, unit) = axis_start_s(fall), time_unit(fall.eager_s)
    most = max(max(bar.start_s, bar.end_s) for bar in rows)
    axes.set_xlim(start / scale, (most + 0.09 * (most - start)) / scale)
    for row, bar in enumerate(rows):
        left, right = sorted((max(bar.start_s, start), max(bar.end_s, start)))
        axes.barh(row, (right - left) / scale, left=left / scale, color=bar.color, height=0.62, zorder=2)
        axes.text(right / scale, row, f"  {label(bar, scale, fall.eager_s)}", va="center", fontsize=8, zorder=4)
        if row + 1 < len(rows):
            axes.plot([bar.end_s / scale] * 2, [row + 0.31, row + 0.69], color="#667080", linewidth=0.8, zorder=1)
    axes.axvline(fall.ideal_s / scale, color=IDEAL_COLOR, linestyle="--", linewidth=1.2, zorder=3)
    axes.text(fall.ideal_s / scale, -0.66, f"ideal {fall.ideal_s / scale:.2f}", color=IDEAL_COLOR, fontsize=8,
              va="bottom")  # fmt: skip
    names = [f"{bar.name}\n{bar.where}" if bar.where else bar.name for bar in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.65)
    axes.grid(True, axis="x")
    axes.set_xlabel(f"time per step, {unit}" + (f"; the axis begins at {start / scale:.2f}" if start else ""))
    words = {"others": "all others", "worse": "slower"}
    kinds = {words.get(bar.kind, bar.kind): bar.color for bar in rows if bar.kind != "total"}
    axes.legend(
        patches(kinds.values()), kinds, title="saves", loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False,
        fontsize=8, title_fontsize=8, alignment="left")  # fmt: skip
