"""A history of figures as a trend: pictures with a mark at each step, and the steps as a table.

Where the version of memwall changed, lines break and a dashed one stands: figures on its two sides are not comparable.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence

from memwall.analysis.history import THRESHOLD, Row, Step, commits, steps, trends
from memwall.analysis.numbers import apart, change_text
from memwall.analysis.quantities import LIMITS
from memwall.core.errors import UsageError
from memwall.core.units import percent
from memwall.gate.limits import find_quantity
from memwall.report.columns import CellColumn
from memwall.report.document import Column, Document, Facts, Section, Sentence, Table, clean, table, text_column
from memwall.report.figures.trend import trend_figure
from memwall.report.html import environment
from memwall.report.markdown import to_markdown
from memwall.report.tables import csv_text
from memwall.report.text import to_text

#: what is drawn and listed unless quantities are named
SHOWN = ("time_s", "dram_bytes", "kernels", "peak_memory")

#: steps and series that a table lists
_MOST = 40

#: hexadecimal digits of a commit, as git shortens it
SHORT = 9

CSV_COLUMNS = (
    "commit", "date", "memwall_version", "workload", "mode", "gpu", "policy", "quantity", "value", "before", "change",
)  # fmt: skip

_LEAST = percent(THRESHOLD)

STEP_NOTE = (
    f"modeled figures have no noise, so any change by more than {_LEAST} is a step; GPUs with the same change are one"
    " row; none is counted where the version of memwall changed: figures of two versions are not comparable"
)


def render_history(
    rows: Sequence[Row], kind: str, quantities: Sequence[str] = (), *, width: int | None = None, color: bool = False
) -> str | bytes:
    """A history as one of ``HISTORY_KINDS``: tables of the steps, every figure (csv), or a picture.

    ``quantities`` are what is drawn and whose steps are listed; none named draws ``SHOWN`` and lists all steps.

    Raises:
        UsageError: there is no such kind or quantity, or nothing to show.
    """
    if kind not in _KINDS:
        raise UsageError(f"a history has no {kind!r} form; there is {', '.join(_KINDS)}")
    if not rows:
        raise UsageError("the history is empty: there is no commit in it yet")
    names = tuple(dict.fromkeys(find_quantity(name, "--quantity").name for name in quantities))
    if missing := [name for name in names if all(name not in row.figures for row in rows)]:
        raise UsageError(f"the history has no {missing[0]}; it has {', '.join(_known(rows))}")
    if kind == "text":
        return to_text(history_document(rows, names), width=width, color=color)
    return _KINDS[kind](rows, names)


def _known(rows: Sequence[Row]) -> list[str]:
    found = {name for row in rows for name in row.figures}
    return [name for name in LIMITS if name in found]


# -- tables ------------------------------------------------------------------------------------------------------------


def history_document(rows: Sequence[Row], quantities: Sequence[str] = ()) -> Document:
    """What the history spans, its steps, newest first, and where each series stands now."""
    found = steps(rows, quantities)
    blocks: list[Facts | Sentence | Table] = [Facts(_facts(rows)), Sentence(_sentence(found), strong=True)]
    if found:
        blocks.append(_step_table(rows, found))
    blocks.append(_latest_table(rows, quantities))
    return Document("History", (Section("", tuple(blocks)),))


def _facts(rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    first, last = rows[0], rows[-1]
    span = f"{_at(first)} to {_at(last)}" if first.commit != last.commit else _at(first)
    facts = [
        ("commits", f"{len(commits(rows)):,}, {span}"),
        ("workloads", clean(", ".join(sorted({row.workload for row in rows})))),
        ("GPUs", clean(", ".join(sorted({row.gpu for row in rows})))),
    ]
    versions: dict[str, str] = {}
    for row in rows:
        versions.setdefault(row.memwall_version, _at(row))
    told = [f"{version} from {at}" if len(versions) > 1 else version for version, at in versions.items()]
    return (*facts, ("memwall", clean(", ".join(told))))


def _at(row: Row) -> str:
    """``4a53f27b1 (2026-11-22)``."""
    return f"{row.commit[:SHORT]} ({row.date[:10]})"


def _sentence(found: Sequence[Step]) -> str:
    if not found:
        return f"No step: no figure changed by more than {_LEAST} under one version of memwall."
    worse = sum(step.worse for step in found)
    count = f"{len(found):,} step{'s' * (len(found) > 1)}"
    return f"{count}: {worse:,} for the worse, {len(found) - worse:,} for the better."


def _step_table(rows: Sequence[Row], found: Sequence[Step]) -> Table:
    named, boards = _names(rows), _boards(rows)
    merged = sorted(_by_change(found), key=lambda group: group[0].row.date, reverse=True)
    shown = merged[:_MOST]
    first = [group[0] for group in shown]
    pairs = [apart([step.before, step.after], LIMITS[step.quantity].unit) for step in first]
    columns: list[CellColumn] = [
        text_column("date", [step.row.date[:10] for step in first]),
        text_column("commit", [step.row.commit[:SHORT] for step in first]),
        text_column("workload", [named(step.row) for step in first], flexible=True),
        text_column("GPU", [_together(group, boards) for group in shown], flexible=True),
        text_column("policy", [step.row.policy for step in first]),
        text_column("quantity", [step.quantity for step in first]),
        (Column("from"), [before for before, _ in pairs]),
        (Column("to"), [after for _, after in pairs]),
        (Column("change"), [change_text(step.change) or "new" for step in first]),
        text_column("", ["worse" if step.worse else "better" for step in first]),
    ]
    rest = f"{len(merged) - len(shown):,} older rows are not shown; " if len(merged) > len(shown) else ""
    return table("Steps, newest first", columns, rest + STEP_NOTE)


def _by_change(found: Sequence[Step]) -> list[list[Step]]:
    """Steps together that differ in their GPU alone."""
    groups: dict[tuple[object, ...], list[Step]] = {}
    for step in found:
        row = step.row
        key = (row.commit, row.workload, row.mode, row.policy, step.quantity, step.before, step.after)
        groups.setdefault(key, []).append(step)
    return list(groups.values())


def _together(group: Sequence[Step], boards: Mapping[str, set[str]]) -> str:
    """The GPUs of a step; ``all GPUs`` for all of several that the workload has."""
    gpus = [step.row.gpu for step in group]
    whole = len(gpus) > 1 and set(gpus) == boards[group[0].row.workload]
    return "all GPUs" if whole else ", ".join(gpus)


def _boards(rows: Sequence[Row]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row.workload, set()).add(row.gpu)
    return found


def _names(rows: Sequence[Row]) -> Callable[[Row], str]:
    """What a workload is called: its name, with the mode where it is followed in several."""
    modes: dict[str, set[str]] = {}
    for row in rows:
        modes.setdefault(row.workload, set()).add(row.mode)
    return lambda row: f"{row.workload}, {row.mode}" if len(modes[row.workload]) > 1 else row.workload


def _latest_table(rows: Sequence[Row], quantities: Sequence[str]) -> Table:
    named, last = _names(rows), [trend[-1] for trend in trends(rows).values()]
    shown = last[:_MOST]
    columns: list[CellColumn] = [
        text_column("workload", [named(row) for row in shown], flexible=True),
        text_column("GPU", [row.gpu for row in shown], flexible=True),
        text_column("policy", [row.policy for row in shown]),
        text_column("commit", [row.commit[:SHORT] for row in shown]),
    ]
    for name in quantities or SHOWN:
        quantity = LIMITS[name]
        cells = apart([row.figures.get(name) for row in shown], quantity.unit)
        columns.append((Column(quantity.title), [cell or "-" for cell in cells]))
    rest = f"{len(last) - len(shown):,} further series are not shown" if len(last) > len(shown) else ""
    return table("Now", columns, rest)


# -- files -------------------------------------------------------------------------------------------------------------


def history_csv(rows: Sequence[Row], quantities: Sequence[str]) -> str:
    """One row for each figure; ``before`` and ``change`` where it is a step."""
    found = {(*step.row.key, step.quantity): step for step in steps(rows, quantities)}
    lines = []
    for row in rows:
        for name in quantities or _known(rows):
            if name in row.figures:
                step = found.get((*row.key, name))
                lines.append((
                    row.commit, row.date, row.memwall_version, row.workload, row.mode, row.gpu, row.policy, name,
                    row.figures[name], "" if step is None else step.before,
                    "" if step is None or step.change is None else step.change,
                ))  # fmt: skip
    return csv_text(CSV_COLUMNS, lines)


def _html(rows: Sequence[Row], quantities: Sequence[str]) -> str:
    names = quantities or SHOWN
    return (
        environment()
        .get_template("trend.html.j2")
        .render(
            document=history_document(rows, quantities),
            picture=base64.b64encode(trend_figure(rows, names, "svg")).decode("ascii"),
            alt=f"{', '.join(LIMITS[name].title for name in names)} of each workload, commit by commit",
        )
    )


_KINDS: Mapping[str, Callable[[Sequence[Row], Sequence[str]], str | bytes]] = {
    "text": lambda rows, names: to_text(history_document(rows, names)),
    "md": lambda rows, names: to_markdown(history_document(rows, names)),
    "csv": history_csv,
    "html": _html,
    "png": lambda rows, names: trend_figure(rows, names or SHOWN, "png"),
    "svg": lambda rows, names: trend_figure(rows, names or SHOWN, "svg"),
}

HISTORY_KINDS = tuple(_KINDS)
