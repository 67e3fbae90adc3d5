"""The picture of a history: a row of panels for each workload, a column for each quantity, a line for each GPU and
policy. Triangles are steps: red for the worse, green for the better.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import Any

from memwall.analysis.history import Row, Series, Step, commits, steps, trends
from memwall.analysis.numbers import apart, change_text
from memwall.analysis.quantities import LIMITS, Quantity
from memwall.report.document import clean
from memwall.report.figures.picture import Drawing, cut

#: inches of a panel, and rows that a picture has at most
_WIDE, _HIGH, _MOST_ROWS = 3.3, 1.9, 40
#: letters of a workload's name that fit next to a panel
_NAME = 22
#: commits whose points are drawn, labels below a panel, steps of a panel that get their change written, changes of
#: version that get theirs
_POINTS, _LABELS, _WRITTEN, _VERSIONS = 40, 5, 3, 4
_WORSE, _BETTER = "#cc3311", "#228833"
#: Paul Tol's bright scheme without its red and green, which mean something here
_COLORS = ("#4477aa", "#ee8833", "#66ccee", "#aa3377", "#ccbb44", "#777777", "#332288", "#44aa99", "#ddaa88")
#: a line of several GPUs
_SHARED = "#444b55"
_DASHES = {"eager": "-", "memwall": "--", "inductor": "-.", "ideal": ":"}
#: from where on an axis is logarithmic, and up to where a decade has three ticks
_DECADES, _FEW_DECADES = 8.0, 100.0

_Panel = dict[Series, tuple[Row, ...]]


def trend_drawing(rows: Sequence[Row], quantities: Sequence[str]) -> Drawing:
    places = {commit: i for i, commit in enumerate(commits(rows))}
    panels: dict[tuple[str, str], _Panel] = {}
    for series, trend in trends(rows).items():
        panels.setdefault((series.workload, series.mode), {})[series] = trend
    drawn = dict(list(panels.items())[:_MOST_ROWS])
    gpus = sorted({series.gpu for panel in drawn.values() for series in panel})
    policies = sorted({series.policy for panel in drawn.values() for series in panel})
    colors = {gpu: _COLORS[i % len(_COLORS)] for i, gpu in enumerate(gpus)}
    found = steps(rows, quantities)

    def build(figure: Any) -> None:
        axes = figure.subplots(len(drawn), len(quantities), squeeze=False, sharex=True)
        for line, panel in zip(axes, drawn.values(), strict=True):
            for axis, name in zip(line, quantities, strict=True):
                own = [step for step in found if step.quantity == name and step.row.series in panel]
                _draw(axis, panel, LIMITS[name], own, places, colors)
        for axis, name in zip(axes[0], quantities, strict=True):
            axis.set_title(LIMITS[name].title)
        for axis, (workload, mode) in zip(axes[:, 0], drawn, strict=True):
            axis.set_ylabel(f"{cut(clean(workload), _NAME)}\n{clean(mode)}")
        for axis in axes[-1]:
            _label_commits(axis, rows, places)
        _legend(figure, colors, policies, left_out=len(panels) - len(drawn))

    return (_WIDE * len(quantities) + 0.6, _HIGH * len(drawn) + 1.1), build


def _draw(
    axis: Any, panel: _Panel, quantity: Quantity, found: Sequence[Step], places: dict[str, int], colors: dict[str, str]
) -> None:
    values = []
    for color, series, known in _lines(panel, quantity.name, colors):
        values += [row.figures[quantity.name] for row in known]
        dashes = _DASHES.get(series.policy, "-")
        for _, part in groupby(known, key=lambda row: row.memwall_version):
            own = list(part)
            dot = "o" if len(places) <= _POINTS or len(own) == 1 else ""
            xs, ys = [places[row.commit] for row in own], [row.figures[quantity.name] for row in own]
            axis.plot(xs, ys, marker=dot, markersize=3, color=color, linestyle=dashes, linewidth=1.3)
    for step in found:
        axis.plot(
            places[step.row.commit], step.after, marker="^" if step.after > step.before else "v", markersize=6,
            color=_WORSE if step.worse else _BETTER, linestyle="", zorder=4)  # fmt: skip
    _write_changes(axis, found, places)
    versions = _versions(panel, places)
    faint = 1.0 if len(versions) <= _VERSIONS else 0.25
    for place, _ in versions:
        axis.axvline(place, color="#667080", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1, alpha=faint)
    for i, (place, version) in enumerate(versions[-_VERSIONS:]):
        late = place > 0.7 * (len(places) - 1)  # text to its right would leave the panel
        axis.annotate(
            f"memwall {clean(version)[:12]}", (place, 1.0), xycoords=("data", "axes fraction"),
            xytext=(-2 if late else 2, -2 - 8 * (i % 2)), textcoords="offset points", fontsize=6.5,
            color="#444b55", va="top", ha="right" if late else "left")  # fmt: skip
    _scale(axis, values, quantity.unit)
    axis.tick_params(axis="y", labelsize=7.5)
    axis.grid(True, axis="y")


def _lines(panel: _Panel, name: str, colors: dict[str, str]) -> Iterator[tuple[str, Series, list[Row]]]:
    """Colour, series and rows of each line; one grey line where GPUs have the same figures at all commits."""
    alike: dict[tuple[object, ...], list[Series]] = {}
    for series, trend in panel.items():
        known = tuple((row.commit, row.figures[name]) for row in trend if name in row.figures)
        alike.setdefault((series.policy, known), []).append(series)
    for group in alike.values():
        first = group[0]
        color = colors[first.gpu] if len(group) == 1 else _SHARED
        yield color, first, [row for row in panel[first] if name in row.figures]


def _write_changes(axis: Any, found: Sequence[Step], places: dict[str, int]) -> None:
    from matplotlib.patheffects import withStroke

    largest: dict[str, Step] = {}
    for step in sorted(found, key=lambda step: -abs(step.change or math.inf)):
        largest.setdefault(step.row.commit, step)
    for step in list(largest.values())[:_WRITTEN]:
        place = places[step.row.commit]
        late = place > 0.7 * (len(places) - 1)  # text to its right would leave the panel
        axis.annotate(
            change_text(step.change) or "new", (place, step.after), xytext=(-5 if late else 5, 3),
            textcoords="offset points", fontsize=7, color=_WORSE if step.worse else _BETTER,
            ha="right" if late else "left", path_effects=[withStroke(linewidth=2.5, foreground="white")], zorder=5,
        )  # fmt: skip


def _versions(panel: _Panel, places: dict[str, int]) -> list[tuple[float, str]]:
    """Where, between two commits, another version of memwall begins, and which."""
    pairs = (pair for trend in panel.values() for pair in pairwise(trend))
    found = {(places[b.commit] - 0.5, b.memwall_version) for a, b in pairs if a.memwall_version != b.memwall_version}
    return sorted(found)


def _scale(axis: Any, values: Sequence[float], unit: str) -> None:
    """Limits around the values, and ticks with distinct labels."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axis.margins(y=0.2)
    positive = [value for value in values if value > 0]
    if len(positive) == len(values) and values and max(values) > _DECADES * min(values):
        axis.set_yscale("log")
        parts = (1.0, 2.0, 5.0) if max(values) < _FEW_DECADES * min(values) else (1.0,)
        axis.yaxis.set_major_locator(LogLocator(subs=parts, numticks=5))
        axis.yaxis.set_minor_locator(NullLocator())
    else:
        if values and max(values) - min(values) <= 1e-9 * max(map(abs, values)):
            middle = max(values)
            axis.set_ylim(middle - (abs(middle) or 1.0) * 0.1, middle + (abs(middle) or 1.0) * 0.1)
        axis.yaxis.set_major_locator(MaxNLocator(4, integer=unit == "count"))
    axis.yaxis.set_major_formatter(FuncFormatter(partial(_tick, axis=axis, unit=unit)))


def _tick(value: float, _at: int | None, *, axis: Any, unit: str) -> str:
    shown = [float(tick) for tick in axis.get_yticks()]
    texts = dict(zip(shown, apart(shown, unit), strict=True))
    return texts.get(float(value)) or apart([value], unit)[0]


def _label_commits(axis: Any, rows: Sequence[Row], places: dict[str, int]) -> None:
    dates = {row.commit: row.date[:10] for row in rows}
    every = -(-len(places) // _LABELS)
    shown = [commit for commit, place in places.items() if (len(places) - 1 - place) % every == 0]
    axis.set_xticks(
        [places[commit] for commit in shown], [f"{commit[:7]}\n{dates[commit][2:]}" for commit in shown], fontsize=6.5
    )
    axis.set_xlim(-0.6, len(places) - 0.4)


def _legend(figure: Any, colors: dict[str, str], policies: Sequence[str], *, left_out: int) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=color, label=clean(gpu)) for gpu, color in colors.items()]
    if len(colors) > 1:
        handles.append(Line2D([], [], color=_SHARED, linewidth=2, label="several GPUs, equal"))
    if policies != ["eager"]:
        dashes = {clean(policy): _DASHES.get(policy, "-") for policy in policies}
        handles += [Line2D([], [], color="#a0a6ad", linestyle=dash, label=name) for name, dash in dashes.items()]
    for mark, color, text in (("^", _WORSE, "step for the worse"), ("v", _BETTER, "step for the better")):
        handles.append(Line2D([], [], marker=mark, color=color, linestyle="", label=text))
    title = f"{left_out} further workloads are not drawn" if left_out else None
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(6, len(handles)), frameon=False, fontsize=8, title=title
    )
