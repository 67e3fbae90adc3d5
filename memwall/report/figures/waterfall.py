"""From the eager time to that of a policy, saving by saving: on matplotlib axes, and as bars for a page.

Rows run from top to bottom, so that names have room: the eager time, the largest savings, each beginning where the last
one ended, all the others, the policy's time. The time that ideal takes is a dashed line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import memwall.report.columns as col
from memwall.analysis.savings import LEAST_STEP, PolicySet, Waterfall, waterfall
from memwall.report.document import clean
from memwall.report.figures.picture import class_color, cut, patches, time_unit
from memwall.simulate.schedule import Schedule

#: savings that have a bar of their own
MAX_STEPS = 9
#: characters of a name
LONGEST_NAME = 44
COLORS = {"total": "#445566", "others": "#bbbbbb", "worse": "#cc3311"}
WORDS = {"others": "all others", "worse": "slower"}
IDEAL_COLOR = "#228833"
#: the axis begins at zero unless all that happens lies above this share of the eager time
ZERO_BELOW = 0.35
#: what is left free below the smallest time, as a share of the whole fall
MARGIN = 0.12


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: from ``start_s`` to ``end_s``; ``kind`` is ``total``, ``others``, ``worse`` or an op class."""

    name: str
    where: str
    start_s: float
    end_s: float
    kind: str

    @property
    def color(self) -> str:
        """Its colour."""
        return COLORS.get(self.kind) or class_color(self.kind)

    @property
    def value_s(self) -> float:
        """The value next to it: a time, or how much less (negative) or more."""
        return self.end_s - self.start_s


def bars(fall: Waterfall, policy: str) -> tuple[Bar, ...]:
    """The rows of a waterfall, top to bottom."""
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
    text = col.number(abs(bar.value_s) / scale, 2 if whole / scale >= 10 else 3)
    return text if bar.kind == "total" else f"{'−' if bar.value_s < 0 else '+'}{text}"


def axis_start_s(fall: Waterfall) -> float:
    """Where the time axis begins."""
    least = min(fall.time_s, fall.ideal_s)
    start = least - MARGIN * (fall.eager_s - least)
    return start if start > ZERO_BELOW * fall.eager_s else 0.0


def height(rows: int) -> float:
    """Inches of a picture of so many rows."""
    return 1.25 + 0.36 * rows


def fall_and_bars(policies: PolicySet, schedule: Schedule) -> tuple[Waterfall, tuple[Bar, ...]]:
    """The waterfall of a policy and its rows."""
    fall = waterfall(policies, schedule, top=MAX_STEPS)
    return fall, bars(fall, schedule.policy)


def draw_waterfall(axes: Any, fall: Waterfall, rows: tuple[Bar, ...]) -> None:
    """Draw it."""
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
    _draw_legend(axes, rows)


def _draw_legend(axes: Any, rows: tuple[Bar, ...]) -> None:
    kinds = {WORDS.get(bar.kind, bar.kind): bar.color for bar in rows if bar.kind != "total"}
    axes.legend(
        patches(kinds.values()), kinds, title="saves", loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False,
        fontsize=8, title_fontsize=8, alignment="left",
    )  # fmt: skip
