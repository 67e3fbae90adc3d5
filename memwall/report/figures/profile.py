"""Pictures as bytes: matplotlib without its global state, the same bytes for the same input.

Text from a model is drawn as it stands (``parse_math=False``), never as a formula.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from memwall.analysis.compare import Comparison, Machine, compare_gpus
from memwall.analysis.savings import PolicySet, by_gpu, policy_sets
from memwall.analysis.table import class_rows
from memwall.analysis.validation import measured_points
from memwall.core.errors import UsageError
from memwall.core.units import duration, percent
from memwall.hardware.lookup import Gpu
from memwall.record.kernels import WALLS, schedule_label
from memwall.record.profile import Profile
from memwall.report.columns import times
from memwall.report.document import clean
from memwall.report.figures.palette import WALL_COLORS, class_color
from memwall.report.figures.roofline import draw_roofline
from memwall.report.figures.waterfall import draw_waterfall, fall_and_bars, height
from memwall.report.pages.fusion import explained, is_several
from memwall.simulate.schedule import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
STYLE = {
    "svg.hashsalt": "memwall", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 9.0,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#667080", "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.titlesize": 10.5, "xtick.color": "#444b55", "ytick.color": "#444b55",
    "text.parse_math": False, "figure.facecolor": "white", "axes.axisbelow": True, "grid.color": "#e3e6ea",
    "grid.linewidth": 0.7,
}  # fmt: skip

#: the boards of the memory-wall picture unless others are named
FLAGSHIPS = ("p100-sxm2-16gb", "v100-sxm2-32gb", "a100-40gb-sxm", "a100-80gb-sxm", "h100-sxm", "h200", "b200")


def profile_png(profile: Profile) -> bytes:
    """Roofline and class shares of each simulation, one below the other; of several policies what they save."""
    return _profile_figure(profile, "png")


def profile_svg(profile: Profile) -> str:
    """The same as SVG."""
    return _profile_figure(profile, "svg").decode("utf-8")


def comparison_png(comparison: Comparison) -> bytes:
    """Bars of a comparison; the memory wall for machines."""
    return compare_figure(comparison, "png")


def comparison_svg(comparison: Comparison) -> str:
    """The same as SVG."""
    return compare_figure(comparison, "svg").decode("utf-8")


def roofline_figure(profile: Profile, gpu_name: str, fmt: str = "png", *, policy: str | None = None) -> bytes:
    """The roofline of one simulation.

    Raises:
        UsageError: the profile has none for that GPU, or no such format.
    """
    schedules = [s for s in profile.simulations if s.gpu.name == gpu_name and policy in (None, s.policy)]
    if not schedules:
        raise UsageError(f"the profile has no simulation on {gpu_name}; it has {_names(profile)}")
    return picture(fmt, (10.5, 6.2), lambda figure: roofline_panel(figure, profile, schedules[0]))


def class_shares_figure(profile: Profile, fmt: str = "png") -> bytes:
    """Shares of FLOPs and bytes, and of time on each GPU, by op class."""
    _need_simulation(profile)
    height = _shares_height(profile)
    return picture(fmt, (10.5, height), lambda figure: _shares_panel(figure.add_subplot(), profile))


def waterfall_figure(profile: Profile, gpu_name: str, policy: str, fmt: str = "png") -> bytes:
    """What each group of a policy saves, from the eager time down to its own.

    Raises:
        UsageError: the profile has no simulation of that policy on that GPU, or no such format.
    """
    for policies in policy_sets(profile):
        for schedule in policies.schedules:
            if (policies.gpu.name, schedule.policy) == (gpu_name, policy):
                inches, draw = _waterfall(policies, schedule)
                return picture(fmt, (10.5, inches), draw)
    raise UsageError(f"the profile has no simulation of {policy} on {gpu_name}; it has {_names(profile)}")


def _policies_figure(profile: Profile, fmt: str) -> bytes:
    """For each GPU the roofline of the first policy, those of others that were measured and the waterfalls, then the
    shares of all."""
    panels: list[tuple[float, Callable[[Any], None]]] = []
    for policies in policy_sets(profile):
        first, *others = policies.schedules
        drawn = [first, *(schedule for schedule in others if measured_points(profile, schedule))]
        panels += [(6.0, partial(roofline_panel, profile=profile, schedule=schedule)) for schedule in drawn]
        panels += [_waterfall(policies, schedule) for schedule in explained(policies)]
    panels.append((_shares_height(profile), lambda part: _shares_panel(part.add_subplot(), profile)))
    heights = [height for height, _ in panels]

    def build(figure: Figure) -> None:
        parts: Any = figure.subfigures(len(panels), 1, height_ratios=heights)
        for part, (_, draw) in zip(parts, panels, strict=True):
            draw(part)

    return picture(fmt, (10.5, sum(heights)), build)


def _profile_figure(profile: Profile, fmt: str) -> bytes:
    _need_simulation(profile)
    if is_several(profile):
        return _policies_figure(profile, fmt)
    count = len(profile.simulations)
    shares = _shares_height(profile)

    def build(figure: Figure) -> None:
        parts: Any = figure.subfigures(count + 1, 1, height_ratios=[6.0] * count + [shares])
        for part, schedule in zip(parts, profile.simulations, strict=False):
            roofline_panel(part, profile, schedule)
        _shares_panel(parts[-1].add_subplot(), profile)

    return picture(fmt, (10.5, 6.0 * count + shares), build)


def _shares_height(profile: Profile) -> float:
    """Inches for the bars of all graphs and simulations."""
    return 1.5 + 0.42 * (2 * len({s.graph for s in profile.simulations}) + len(profile.simulations))


def _need_simulation(profile: Profile) -> None:
    if not profile.simulations:
        raise UsageError("the profile has no simulation to draw; profile it on a GPU")


def _names(profile: Profile) -> str:
    return ", ".join(dict.fromkeys(s.gpu.name for s in profile.simulations)) or "none"


def picture(fmt: str, size: tuple[float, float], build: Callable[[Any], None]) -> bytes:
    """A figure of some size in inches, built and written in one style."""
    if fmt not in ("png", "svg"):
        raise UsageError(f"cannot draw {fmt!r}; choose png or svg")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    metadata: dict[str, Any] = {"Date": None, "Creator": None} if fmt == "svg" else {"Software": None}
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=size, dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        build(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=fmt, dpi=DPI, metadata=metadata)
    return buffer.getvalue()


def roofline_panel(figure: Any, profile: Profile, schedule: Schedule) -> None:
    axes = figure.add_subplot()
    label = clean(schedule_label(profile, schedule))
    axes.set_title(f"{clean(profile.workload.name)} on {label}: {duration(schedule.totals.time_s)}, "
                   f"MFU {percent(schedule.totals.mfu, 0)}")  # fmt: skip
    draw_roofline(axes, profile, schedule)


def _waterfall(policies: PolicySet, schedule: Schedule) -> tuple[float, Callable[[Any], None]]:
    """Height in inches of a policy's waterfall, and the function that draws it."""
    fall, rows = fall_and_bars(policies, schedule)
    row = policies.row(schedule)
    score = "" if row.time_score is None else f", {percent(row.time_score, 0)} of what ideal saves"
    title = f"{clean(policies.profile.workload.name)} on {policies.gpu.name}, {schedule.policy}: {times(row.speedup)}"

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        axes.set_title(f"{title} over eager{score}", pad=16)
        draw_waterfall(axes, fall, rows)

    return height(len(rows)), draw


def _shares_panel(axes: Any, profile: Profile) -> None:
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
    handles = [_patch(color) for color in seen.values()]
    axes.legend(handles, seen, loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False, fontsize=8)


def _patch(color: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=color)


# -- comparisons -------------------------------------------------------------------------------------------------------


def compare_figure(comparison: Comparison, fmt: str = "png") -> bytes:
    """Time per step by wall, speed-up, MFU and MBU as bars; for machines, their growth."""
    if comparison.kind == "machines":
        return _memory_wall(comparison.machines, fmt)
    entries = comparison.entries
    labels = [clean(entry.label) + ("" if entry.fits else "\n(does not fit)") for entry in entries]

    def build(figure: Any) -> None:
        time, speed, used = figure.subplots(1, 3, sharey=True, width_ratios=[2.2, 1, 1.2])
        rows = range(len(entries))
        scale, unit = _time_unit(max(entry.time_s for entry in entries))
        left = [0.0] * len(entries)
        for wall in WALLS:
            widths = [entry.wall_shares[wall] * entry.time_s / scale for entry in entries]
            time.barh(rows, widths, left=left, color=WALL_COLORS[wall], height=0.66, label=wall)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        for row, entry in enumerate(entries):
            time.text(left[row], row, f" {duration(entry.time_s)}", va="center", fontsize=8)
        time.set_xlim(0, max(left) * 1.2)
        time.set_yticks(rows, labels)
        time.set_title(f"time per step, {unit}, by wall")
        below = (0, -0.04 - 0.3 / len(entries))
        time.legend(frameon=False, fontsize=8, ncols=3, loc="upper left", bbox_to_anchor=below)
        _bars(speed, [entry.speedup for entry in entries], "{:.2f}x", "speed-up", "#4477aa")
        _pairs(used, [100 * e.mfu for e in entries], [100 * e.mbu for e in entries])
        time.invert_yaxis()
        figure.suptitle(f"compare: {clean(comparison.title)}", x=0.01, ha="left", fontsize=11, fontweight="bold")

    return picture(fmt, (11.0, 1.9 + 0.42 * len(entries)), build)


def _time_unit(longest_s: float) -> tuple[float, str]:
    return next(((scale, unit) for scale, unit in ((1.0, "s"), (1e-3, "ms")) if longest_s >= scale), (1e-6, "us"))


def _bars(axes: Any, values: Sequence[float], form: str, title: str, color: str) -> None:
    axes.barh(range(len(values)), values, color=color, height=0.66)
    for row, value in enumerate(values):
        axes.text(value, row, " " + form.format(value), va="center", fontsize=8)
    axes.set_xlim(0, max(values) * 1.35)
    axes.set_title(title)


def _pairs(axes: Any, mfu: Sequence[float], mbu: Sequence[float]) -> None:
    rows = range(len(mfu))
    for offset, values, name, color in ((-0.17, mfu, "MFU", "#228833"), (0.17, mbu, "MBU", "#ccaa22")):
        axes.barh([row + offset for row in rows], values, height=0.32, color=color)
        for row, value in enumerate(values):
            axes.text(value, row + offset, f" {name} {value:.0f}", va="center", fontsize=7)
    axes.set_xlim(0, max(*mfu, *mbu) * 1.35)
    axes.set_title("MFU and MBU, %")


# -- the memory wall ---------------------------------------------------------------------------------------------------

#: what grows -> (key of Machine.growth, colour)
_SERIES = {
    "fp16 FLOP/s": ("float16", "#4477aa"),
    "DRAM bandwidth": ("bandwidth", "#ee6677"),
    "DRAM capacity": ("capacity", "#228833"),
}


def memory_wall_figure(gpus: Sequence[Gpu], fmt: str = "png") -> bytes:
    """Growth of FLOP/s, bandwidth and capacity by release date, relative to the oldest, log scale."""
    return _memory_wall(compare_gpus(sorted(gpus, key=lambda gpu: (gpu.release, gpu.name))).machines, fmt)


def _memory_wall(machines: Sequence[Machine], fmt: str) -> bytes:
    from memwall.report.figures.growth import draw_growth

    def build(figure: Any) -> None:
        draw_growth(figure.add_subplot(), machines, _SERIES)

    return picture(fmt, (10.5, 6.0), build)
