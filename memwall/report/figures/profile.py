"""The pictures of a profile: rooflines, what policies save, shares of the op classes, modules, memory over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isclose

import memwall.report.columns as col
from memwall.analysis.modules import ModuleRow, module_tree
from memwall.analysis.pipes import mfu_base
from memwall.analysis.savings import LEAST_STEP, PolicySet, Waterfall, by_gpu, policy_sets, waterfall
from memwall.analysis.table import KernelRow, class_rows, group_by, join, kernel_rows, rows_and_kernels
from memwall.analysis.validation import MeasuredPoint, measured_points
from memwall.core.errors import UsageError, unknown
from memwall.core.graph import Pipe
from memwall.core.units import bandwidth, duration, flop_rate, percent
from memwall.ops.lowering import kernels_said
from memwall.perfmodel.roofline import Estimate
from memwall.record.kernels import NO_MODULE, schedule_label, short_name, wall_shares
from memwall.record.profile import Profile
from memwall.report.document import clean
from memwall.report.figures.bars import Bar, Piece, bars_chart
from memwall.report.figures.colors import SIGN_COLORS, WALL_COLORS, class_color, series_color
from memwall.report.figures.memory import memory_chart
from memwall.report.figures.modules import METRICS, Trees, flame_chart, treemap_chart
from memwall.report.figures.picture import cut, time_unit
from memwall.report.figures.roofline import MAX_POINTS, Roof, Roofline, Spot, roofline_charts
from memwall.report.figures.scene import Chart, side_by_side, stacked
from memwall.report.pages.fusion import explained, is_several
from memwall.simulate.schedule import Schedule

#: executor -> the mark of what it took
MARKS = {"eager": "square", "inductor": "triangle", "generated": "diamond"}
#: what an arrow is drawn for: a group of at least this share of the time, and so many of them
_LEAST_ARROW, _MOST_ARROWS = 2e-3, 40
#: of its FLOP/s, what a kernel moves between two profiles for an arrow
_MOVED = 0.02


def context(profile: Profile, *more: str) -> str:
    """What a title begins with: model, mode, dtype and batch, then what else is said."""
    return ", ".join((clean(profile.workload.name), profile.workload.configuration, *more))


# -- rooflines ---------------------------------------------------------------------------------------------------------

#: drawn for context even where the workload does not use them
CONTEXT = (Pipe("tensor", "float16"), Pipe("vector", "float32"))


def compute_roofs(profile: Profile, schedule: Schedule) -> tuple[Roof, ...]:
    """One roof per pipe that the workload runs on here, and the roofs of ``CONTEXT``; the highest first."""
    gpu = schedule.gpu
    flops = {frozenset(cost.flops) for cost in profile.costs[schedule.graph]}
    used = {gpu.ceiling_pipe(pipe) for pipes in flops for pipe in pipes}
    whole = {gpu.ceiling_pipe(pipe) for pipe in CONTEXT} | used
    roofs = []
    for rate in sorted({gpu.peak_flop_per_s[pipe] for pipe in whole}, reverse=True):
        alike = [pipe for pipe in sorted(whole) if gpu.peak_flop_per_s[pipe] == rate]
        pipes = [pipe for pipe in alike if pipe in used] or alike[:1]
        name = " = ".join(map(str, pipes))
        roofs.append(Roof(name, f"{name}  {flop_rate(rate, pipes[0])}", rate, pipes[0] in used))
    return tuple(roofs)


def memory_roofs(schedule: Schedule) -> tuple[Roof, ...]:
    """DRAM, and L2 where the GPU has one."""
    gpu = schedule.gpu
    roofs = [Roof("DRAM", f"DRAM  {bandwidth(gpu.dram_bytes_per_s)}", gpu.dram_bytes_per_s, True)]
    if gpu.l2_bytes and gpu.l2_bytes_per_s > gpu.dram_bytes_per_s:
        roofs.append(Roof("L2", f"L2  {bandwidth(gpu.l2_bytes_per_s)}", gpu.l2_bytes_per_s, False))
    return tuple(roofs)


def schedule_roofline(
    profile: Profile, schedule: Schedule, policies: PolicySet | None = None, *, brief: bool = False
) -> Roofline:
    """Every kernel of a schedule. With ``policies``, an arrow from where the ops of each fused group ran eagerly.
    ``brief``: the title names only the GPU and the policy."""
    pairs = rows_and_kernels(profile, schedule)
    keys = {id(row): str(number) for number, (row, _) in enumerate(pairs)}
    pairs.sort(key=lambda pair: _longest_first(pair[0]))
    fused = policies if policies and policies.shares_ops(schedule) and schedule.policy != "eager" else None
    spots = [
        _spot(row, keys[id(row)], _eager_place(fused, row, kernels) if fused and i < _MOST_ARROWS else None)
        for i, (row, kernels) in enumerate(pairs)
        if _has_place(row)
    ]
    bare = [_spot(row, keys[id(row)]) for row, _ in pairs if row.time_s > 0 and not _has_place(row)]
    measured = measured_points(profile, schedule)[:MAX_POINTS]
    label = clean(schedule_label(profile, schedule))
    subject = label if brief else context(profile, label)
    base = mfu_base(profile, schedule)
    mfu = f", MFU {percent(schedule.totals.mfu)} of {base}" if base else ""
    title = f"{subject}: {duration(schedule.totals.time_s)}{mfu}"
    legend = _class_legend(profile, schedule)
    if any(spot.tail for spot in spots):
        legend.append(("its ops run eagerly, → fused", "dim", "hollow"))
    executors = [name for name in MARKS if any(point.executor == name for point in measured)]
    legend += [(f"measured, {name}", "dim", MARKS[name]) for name in executors]
    note = f"kernels without FLOPs: {percent(sum(spot.share for spot in bare))} of the time" if bare else ""
    return Roofline(
        title,
        compute_roofs(profile, schedule),
        memory_roofs(schedule),
        [*spots[:MAX_POINTS], *map(_measured_spot, measured)],
        "modeled FLOP/s",
        legend=legend,
        bare=bare,
        note=note,
    )


def _eager_place(policies: PolicySet, row: KernelRow, kernels: Sequence[Estimate]) -> tuple[float, float] | None:
    """Where the ops of a fused group run eagerly, all of them together: FLOP per byte and FLOP/s. None for a kernel of
    one op, and for one of hardly any time."""
    eager = [kernel for fused in kernels for kernel in policies.replaced(fused)]
    flops, moved, eager_s = (sum(getattr(k, name) for k in eager) for name in ("flops", "bytes", "time_s"))
    if len(kernels[0].op_ids) < 2 or row.time_share < _LEAST_ARROW or not (flops and moved and eager_s):
        return None
    return flops / moved, flops / eager_s


def roofline_since(before: Profile, old: Schedule, after: Profile, new: Schedule) -> Chart:
    """The kernels of a simulation, with arrows from where each was in another one."""
    sides = (before, old), (after, new)
    was, now = ([row for row, _ in rows_and_kernels(*side) if _has_place(row)] for side in sides)
    moved = sorted(zip(now, earlier_rows(was, now), strict=True), key=lambda pair: _longest_first(pair[0]))
    shown = schedule_roofline(after, new)
    spots = list(shown.spots)
    for i, (row, earlier) in enumerate(moved[: min(_MOST_ARROWS, MAX_POINTS)]):
        if earlier and not isclose(earlier.attained_flop_per_s, row.attained_flop_per_s, rel_tol=_MOVED):
            spots[i] = spots[i]._replace(tail=(earlier.arithmetic_intensity, earlier.attained_flop_per_s))
    legend = [*shown.legend, (f"baseline, {duration(old.totals.time_s)}, → now", "dim", "hollow")]
    return roofline_charts([replace(shown, spots=spots, legend=legend)])[0]


def earlier_rows(was: Sequence[KernelRow], now: Sequence[KernelRow]) -> list[KernelRow | None]:
    """What each row was in another simulation, both in the order of their first launches: of the rows of its name,
    module and phase the one in its place, as both gradients of a product share these. None: there are more of them now,
    or fewer."""
    groups = [group_by(rows, [(row.name, row.module, row.phase) for row in rows]) for rows in (was, now)]
    found = {
        id(row): old
        for _, olds, rows in join(*groups)
        if olds and rows and len(olds) == len(rows)
        for old, row in zip(olds, rows, strict=True)
    }
    return [found.get(id(row)) for row in now]


def _has_place(row: KernelRow) -> bool:
    return bool(row.flops and row.bytes and row.time_s)


def _longest_first(row: KernelRow) -> tuple[float, str]:
    return -row.time_s, row.name


def _spot(row: KernelRow, key: str = "", tail: tuple[float, float] | None = None) -> Spot:
    rate = row.attained_flop_per_s
    repeats = f" x{row.count}" if row.count > 1 else ""
    name = clean(short_name(row.name))
    title = f"{name}{repeats}, {clean(row.module) or NO_MODULE}: {duration(row.time_s)}, {percent(row.time_share)}"
    return Spot(row.arithmetic_intensity, rate, row.time_share, class_color(row.op_class), name, title, key, tail=tail)


def _measured_spot(point: MeasuredPoint) -> Spot:
    title = (
        f"{clean(short_name(point.name))}, {point.executor}: measured {duration(point.measured_s)},"
        f" modeled {duration(point.modeled_s)}"
    )
    return Spot(
        point.arithmetic_intensity,
        point.measured_flop_per_s,
        point.share,
        class_color(point.op_class),
        "",
        title,
        shape=MARKS[point.executor],
        edge="ink",
        hollow=False,
        tail=(point.arithmetic_intensity, point.modeled_flop_per_s),
    )


def _class_legend(profile: Profile, schedule: Schedule) -> list[tuple[str, str, str]]:
    """The classes, the longest first, with their shares as the table of them has these."""
    rows = class_rows(profile, schedule)
    return [
        (f"{clean(row.key)} {percent(row.time_share)}", class_color(row.key), "circle")
        for row in sorted(rows, key=lambda row: (-row.time_share, row.key))
        if row.time_share >= 5e-4
    ]


def overlaid(profile: Profile, schedules: Sequence[Schedule]) -> Roofline:
    """Several simulations on one roofline, each in its colour; a GPU's roofs once, in the colour of its first one."""
    roofs, slopes, spots, legend = [], [], [], []
    for number, schedule in enumerate(schedules):
        color, gpu = series_color(number), schedule.gpu.name
        name = clean(schedule_label(profile, schedule))
        if all(gpu != other.gpu.name for other in schedules[:number]):
            roofs += [
                roof._replace(color=color, label=f"{roof.label}, {clean(gpu)}")
                for roof in compute_roofs(profile, schedule)
                if roof.used
            ]
            slope = memory_roofs(schedule)[0]
            slopes.append(slope._replace(color=color, label=f"{slope.label}, {clean(gpu)}"))
        rows = [row for row in kernel_rows(profile, schedule) if _has_place(row)]
        spots += [
            spot._replace(color=color, name="" if number else spot.name, title=f"{name}: {spot.title}")
            for spot in map(_spot, rows)
        ]
        legend.append((f"{name} {duration(schedule.totals.time_s)}", color, "circle"))
    spots.sort(key=lambda spot: -spot.share)
    roofs.sort(key=lambda roof: -roof.rate)
    return Roofline(
        f"{context(profile)}: roofline",
        roofs,
        slopes,
        spots[:MAX_POINTS],
        "modeled FLOP/s",
        legend=legend,
        legend_heading="",
    )


def rooflines_chart(profile: Profile) -> Chart:
    """A roofline for each simulation, side by side on the same axes; of several policies, for each GPU the fused ones
    with their arrows, and others that were measured."""
    pairs: list[tuple[Schedule, PolicySet | None]] = [(schedule, None) for schedule in profile.simulations]
    if is_several(profile):
        pairs = [
            (schedule, policies)
            for policies in policy_sets(profile)
            for fused in (explained(policies) or policies.schedules[:1],)
            for schedule in policies.schedules
            if schedule in fused or measured_points(profile, schedule)
        ]
    if len(pairs) == 1:
        return roofline_charts([schedule_roofline(profile, *pairs[0])])[0]
    charts = roofline_charts([schedule_roofline(profile, *pair, brief=True) for pair in pairs])
    return side_by_side(charts, 440, title=f"{context(profile)}: rooflines")


# -- what fusion saves -------------------------------------------------------------------------------------------------

#: savings that have a bar of their own, and characters of a name
MAX_STEPS, LONGEST_NAME = 9, 44
#: kind of bar -> its colour and what the legend calls it; an op class has its own
_KINDS: Mapping[str, tuple[str, str]] = {
    "total": ("dim", ""), "others": ("pale", "all others"), "worse": (SIGN_COLORS["worse"], "slower"),
}  # fmt: skip


def waterfall_chart(policies: PolicySet, schedule: Schedule) -> Chart:
    """What each group of a policy saves, from the eager time down to its own."""
    fall, row = waterfall(policies, schedule, top=MAX_STEPS), policies.row(schedule)
    score = "" if row.time_score is None else f", {percent(row.time_score)} of what ideal saves"
    subject = context(policies.profile, policies.gpu.name, schedule.policy)
    title = f"{subject}: {col.times(row.speedup)} over eager{score}"
    scale, unit = time_unit(fall.eager_s)
    ideal = (fall.ideal_s / scale, f"ideal {fall.ideal_s / scale:.2f} {unit}", "ink")
    return bars_chart(
        title, waterfall_bars(fall, schedule.policy), unit=f"time per step, {unit}", marks=(ideal,), connect=True
    )


def waterfall_bars(fall: Waterfall, policy: str) -> list[Bar]:
    """A bar for the eager time, for each saving, the others, and what is left; in the unit of the longest."""
    scale, _ = time_unit(fall.eager_s)

    def bar(name: str, kind: str, start_s: float, change_s: float, where: str = "") -> Bar:
        text = col.number(abs(change_s) / scale, 2 if fall.eager_s / scale >= 10 else 3)
        sign = "" if kind == "total" else "−" if change_s < 0 else "+"
        color, called = _KINDS.get(kind, (class_color(kind), kind))
        piece = Piece(called, change_s / scale, color, title=f"{name} {sign}{text}", start=start_s / scale)
        return Bar(name, (piece,), sign + text, where)

    rows, at = [bar("eager", "total", 0.0, fall.eager_s)], fall.eager_s
    for step in fall.steps:
        count = f" x{step.count}" if step.count > 1 else ""
        name = cut(clean(step.name), LONGEST_NAME - len(count)) + count
        rows.append(bar(name, step.op_class, at, -step.saved_s, clean(step.module or NO_MODULE)))
        at -= step.saved_s
    if abs(fall.others_s) > LEAST_STEP * fall.eager_s:
        rows.append(bar("all others", "others" if fall.others_s > 0 else "worse", at, -fall.others_s))
    return [*rows, bar(policy, "total", 0.0, fall.time_s)]


# -- shares ------------------------------------------------------------------------------------------------------------


def shares_chart(profile: Profile, schedules: Sequence[Schedule]) -> Chart:
    """Stacked bars: FLOPs and bytes of each graph (named where there are several), time of each simulation."""
    graphs = {s.graph: s for s in reversed(schedules)}
    rows = []
    for name, field in (("FLOPs", "flop_share"), ("bytes", "byte_share")):
        for graph in sorted(graphs):
            run = profile.graphs[graph]
            of = f", {kernels_said(run.backends or (run.attention,))}" if len(graphs) > 1 else ""
            rows.append(_shares(profile, graphs[graph], name + of, field))
    several = len(schedules) > 1
    rows += [
        _shares(profile, s, f"time, {clean(schedule_label(profile, s))}" if several else "time", "time_share")
        for s in schedules
    ]
    return bars_chart(f"{context(profile)}: shares by op class, %", rows, most=100.0)


def _shares(profile: Profile, schedule: Schedule, label: str, field: str) -> Bar:
    rows = class_rows(profile, schedule)
    return Bar(label, [_share(row.key, getattr(row, field), class_color(row.key)) for row in rows])


def _share(name: str, part: float, color: str) -> Piece:
    return Piece(clean(name), 100 * part, color, f"{100 * part:.1f}", f"{clean(name)} {percent(part)}")


def walls_chart(profile: Profile, schedules: Sequence[Schedule]) -> Chart:
    """The share of each simulation's time under each wall."""
    rows = [
        Bar(
            clean(schedule_label(profile, s)),
            [_share(wall, part, WALL_COLORS[wall]) for wall, part in wall_shares(s).items()],
        )
        for s in schedules
    ]
    return bars_chart(f"{context(profile)}: share of the time under each wall, %", rows, most=100.0)


# -- all of them -------------------------------------------------------------------------------------------------------

#: a picture of a profile; None where it has nothing to draw
_Kind = Callable[[Profile], Chart | None]


def _waterfalls(profile: Profile) -> Chart | None:
    if not is_several(profile):
        return None
    charts = [waterfall_chart(policies, s) for policies in policy_sets(profile) for s in explained(policies)]
    return stacked(charts) if charts else None


def module_trees(profile: Profile, schedules: Sequence[Schedule]) -> list[tuple[str, ModuleRow]]:
    """The tree of modules of each schedule, labelled."""
    return [(clean(schedule_label(profile, schedule)), module_tree(profile, schedule)) for schedule in schedules]


def _modules(profile: Profile, draw: Callable[[str, Trees, str], Chart]) -> Chart:
    trees = module_trees(profile, by_gpu(profile))
    return stacked([draw(context(profile), trees, metric) for metric in METRICS])


def _memories(profile: Profile) -> Chart | None:
    charts = [memory_chart(profile, schedule, context(profile)) for schedule in by_gpu(profile)]
    known = [chart for chart in charts if chart]
    return stacked(known) if known else None


#: what ``--figure`` chooses from
FIGURES: Mapping[str, _Kind] = {
    "roofline": rooflines_chart,
    "overlay": lambda profile: roofline_charts([overlaid(profile, profile.simulations)])[0],
    "waterfall": _waterfalls,
    "flame": lambda profile: _modules(profile, flame_chart),
    "treemap": lambda profile: _modules(profile, treemap_chart),
    "memory": _memories,
    "shares": lambda profile: shares_chart(profile, by_gpu(profile)),
    "walls": lambda profile: walls_chart(profile, by_gpu(profile)),
}


#: figure -> what to do where a profile has nothing for it
_MISSING = {
    "waterfall": "simulate a second policy, as in --policy eager memwall",
    "memory": "its plans are not known; profile the model again",
}


def profile_chart(profile: Profile, figure: str = "") -> Chart:
    """One of ``FIGURES``; none named: rooflines, waterfalls, shares and walls, one below the other.

    Raises:
        UsageError: no such figure, the profile has no simulation, or nothing of what the figure shows.
    """
    if not profile.simulations:
        raise UsageError("the profile has no simulation to draw; profile it on a GPU")
    if not figure:
        charts = (FIGURES[name](profile) for name in ("roofline", "waterfall", "shares", "walls"))
        return stacked([chart for chart in charts if chart])
    if figure not in FIGURES:
        raise unknown("figure named", figure, FIGURES)
    chart = FIGURES[figure](profile)
    if chart is None:
        raise UsageError(f"the profile has no {figure} to draw: {_MISSING[figure]}")
    return chart
