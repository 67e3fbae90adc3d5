"""The lowering funnel as text, Markdown and a picture, with what PyTorch announced beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from memwall.analysis.funnel import PUBLISHED, PUBLISHED_SOURCE, Funnel
from memwall.core.errors import UsageError
from memwall.report.columns import plain_column
from memwall.report.document import Document, Facts, Section, Sentence, Table, clean, table, text_column
from memwall.report.figures.palette import CLASS_COLORS
from memwall.report.figures.profile import picture
from memwall.report.markdown import to_markdown
from memwall.report.text import to_text

#: operators listed by name before the rest is counted
LISTED = 12
_FREE = "Free calls move nothing: views and allocations. Each other call counts once, in-place ones as functional."
_MARKS = {"ATen": 2000, "prims": 250, "loop IR": 50}


def funnel_text(name: str, funnel: Funnel, sets: Mapping[str, int] | None = None, *, width: int | None = None) -> str:
    """The funnel of one workload for a terminal; ``sets`` is what :func:`memwall.analysis.funnel.operator_sets`
    gives."""
    return to_text(funnel_document(name, funnel, sets), width=width)


def funnel_markdown(name: str, funnel: Funnel, sets: Mapping[str, int] | None = None) -> str:
    """The same as Markdown."""
    return to_markdown(funnel_document(name, funnel, sets))


def funnel_document(name: str, funnel: Funnel, sets: Mapping[str, int] | None = None) -> Document:
    """The levels as a table, what they call most, and what has no decomposition."""
    facts = [(level.name, _listed(level.ops)) for level in funnel.levels]
    blocks: list[Table | Facts | Sentence] = [_levels(funnel, sets), Sentence(f"Announced: {PUBLISHED_SOURCE}.")]
    kept = [("left as ATen at the level of prims", _listed(funnel.no_decomposition) or "none")]
    if funnel.fallbacks:
        kept.append(("called from a library by Inductor", clean(", ".join(funnel.fallbacks))))
    kept += [(f"could not be decomposed: {clean(op)}", clean(why)) for op, why in funnel.failed.items()]
    return Document(
        clean(f"lowering funnel: {name}"),
        (
            Section("", tuple(blocks)),
            Section("Most called", (Facts(tuple(facts)),)),
            Section("No decomposition", (Facts(tuple(kept)),)),
        ),
    )


def _levels(funnel: Funnel, sets: Mapping[str, int] | None) -> Table:
    levels = funnel.levels
    columns = [
        text_column("level", [level.name for level in levels]),
        plain_column("distinct ops", [level.distinct for level in levels]),
        plain_column("calls", [level.calls for level in levels]),
        plain_column("free calls", [level.free_calls or None for level in levels]),
    ]
    if sets is not None:
        columns.append(plain_column("this torch has", [sets.get(level.name) for level in levels]))
    columns.append(text_column("announced", [PUBLISHED.get(level.name, "-") for level in levels]))
    return table("", columns, _FREE)


def _listed(ops: Mapping[str, int]) -> str:
    """The operators called most, ``aten.mm 12``, and how many more there are."""
    names = [f"{op} {calls:,}" for op, calls in list(ops.items())[:LISTED]]
    if len(ops) > LISTED:
        names.append(f"and {len(ops) - LISTED} more")
    return clean(", ".join(names))


def funnel_figure(funnels: Mapping[str, Funnel], fmt: str = "png") -> bytes:
    """Distinct ops and calls per level, one line per workload, with PyTorch's announced numbers.

    Raises:
        UsageError: no workload, or no such format.
    """
    if not funnels:
        raise UsageError("no funnel to draw")
    names = list(dict.fromkeys(level.name for funnel in funnels.values() for level in funnel.levels))

    def build(figure: Any) -> None:
        distinct, calls = figure.subplots(1, 2)
        _draw_lines(distinct, names, {n: {v.name: v.distinct for v in f.levels} for n, f in funnels.items()})
        _draw_lines(calls, names, {n: {v.name: v.calls for v in f.levels} for n, f in funnels.items()})
        _draw_marks(distinct, names)
        distinct.set_title("distinct operators")
        calls.set_title("calls per step")
        figure.legend(*distinct.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)

    return picture(fmt, (10.5, 5.0 + 0.2 * (len(funnels) // 4)), build)


def _draw_lines(axes: Any, names: list[str], series: Mapping[str, Mapping[str, int]]) -> None:
    """One line per workload over the levels, log scale; counts are written at the first and the last."""
    colors = list(CLASS_COLORS.values())
    axes.set_yscale("log")
    for number, (label, counts) in enumerate(series.items()):
        points = [(names.index(name), count) for name, count in counts.items() if count]
        color = colors[number % len(colors)]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=5, linewidth=1.8, color=color, label=clean(label))
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
    axes.set_xlim(-0.4, len(names) - 0.6)
    axes.grid(True, which="major", axis="y")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    counted = [count for counts in series.values() for count in counts.values() if count]
    axes.set_ylim(10 ** math.floor(math.log10(min(counted))), 10 ** math.ceil(math.log10(1.2 * max(counted))))
    if len(series) == 1:
        _write_counts(axes, names, next(iter(series.values())))


def _write_counts(axes: Any, names: Iterable[str], counts: Mapping[str, int]) -> None:
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    for at, name in enumerate(names):
        if counts.get(name):
            axes.annotate(f"{counts[name]:,}", (at, counts[name]), (0, 8), textcoords="offset points", ha="center",
                          fontsize=8, bbox=paper, zorder=4)  # fmt: skip


def _draw_marks(axes: Any, names: list[str]) -> None:
    """Where PyTorch said that each of its levels stands, for all models together."""
    points = [(names.index(name), count) for name, count in _MARKS.items() if name in names]
    axes.plot(*zip(*points, strict=True), marker="_", markersize=22, markeredgewidth=2.5, linestyle="none",
              color="#444b55", label="announced for all of PyTorch")  # fmt: skip
    for at, count in points:
        axes.annotate(f"~{count:,}", (at, count), (0, 6), textcoords="offset points", ha="center", fontsize=8)
    axes.set_ylim(top=max(axes.get_ylim()[1], 2.0 * max(count for _, count in points)))
