"""The pictures of a profile: rooflines, what policies save, shares of the op classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import memwall.report.columns as col
from memwall.analysis.savings import PolicySet, by_gpu, policy_sets
from memwall.analysis.table import class_rows
from memwall.analysis.validation import measured_points
from memwall.core.errors import UsageError
from memwall.core.units import duration, percent
from memwall.record.kernels import schedule_label
from memwall.record.profile import Profile
from memwall.report.document import clean
from memwall.report.figures.picture import Drawing, class_color, patches
from memwall.report.figures.roofline import draw_roofline
from memwall.report.figures.waterfall import draw_waterfall, fall_and_bars, height
from memwall.report.pages.fusion import explained, is_several
from memwall.simulate.schedule import Schedule

_WIDTH = 10.5

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
            panels += [_roofline(profile, schedule) for schedule in shown]
            panels += [waterfall_panel(policies, schedule) for schedule in explained(policies)]
    else:
        panels += [_roofline(profile, schedule) for schedule in profile.simulations]
    panels.append((_shares_height(profile), lambda part: _draw_shares(part.add_subplot(), profile)))
    heights = [height for height, _ in panels]

    def build(figure: Any) -> None:
        parts: Any = figure.subfigures(len(panels), 1, height_ratios=heights)
        for part, (_, draw) in zip(parts, panels, strict=True):
            draw(part)

    return (_WIDTH, sum(heights)), build


def roofline_panel(figure: Any, profile: Profile, schedule: Schedule) -> None:
    """The roofline of one simulation, under a title."""
    axes = figure.add_subplot()
    label = clean(schedule_label(profile, schedule))
    mfu = percent(schedule.totals.mfu, 0)
    axes.set_title(f"{clean(profile.workload.name)} on {label}: {duration(schedule.totals.time_s)}, MFU {mfu}")
    draw_roofline(axes, profile, schedule)


def _roofline(profile: Profile, schedule: Schedule) -> Panel:
    return 6.0, partial(roofline_panel, profile=profile, schedule=schedule)


def waterfall_drawing(profile: Profile, gpu_name: str, policy: str) -> Drawing:
    """What each group of a policy saves, from the eager time down to its own.

    Raises:
        UsageError: the profile has no simulation of that policy on that GPU.
    """
    for policies in policy_sets(profile):
        for schedule in policies.schedules:
            if (policies.gpu.name, schedule.policy) == (gpu_name, policy):
                inches, draw = waterfall_panel(policies, schedule)
                return (_WIDTH, inches), draw
    known = ", ".join(dict.fromkeys(s.gpu.name for s in profile.simulations)) or "none"
    raise UsageError(f"the profile has no simulation of {policy} on {gpu_name}; it has {known}")


def waterfall_panel(policies: PolicySet, schedule: Schedule) -> Panel:
    """The waterfall of a policy, under a title."""
    fall, rows = fall_and_bars(policies, schedule)
    row = policies.row(schedule)
    score = "" if row.time_score is None else f", {percent(row.time_score, 0)} of what ideal saves"
    title = f"{clean(policies.profile.workload.name)} on {policies.gpu.name}, {schedule.policy}"

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        axes.set_title(f"{title}: {col.times(row.speedup)} over eager{score}", pad=16)
        draw_waterfall(axes, fall, rows)

    return height(len(rows)), draw


def _shares_height(profile: Profile) -> float:
    """Inches for the bars of all graphs and simulations."""
    return 1.5 + 0.42 * (2 * len({s.graph for s in profile.simulations}) + len(profile.simulations))


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
    axes.set_xlim(0, 100)
    axes.set_xlabel("%")
    axes.set_title("Shares by op class")
    axes.legend(patches(seen.values()), seen, loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False, fontsize=8)
