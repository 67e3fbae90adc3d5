"""A history of figures as a trend: pictures with a mark at each step, and the steps as a table.

If the version of memwall changed, lines break at a dashed line: figures on its two sides are not comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import memwall.report.columns as col
from memwall.analysis.limits import find_quantity
from memwall.analysis.numbers import apart, change_text
from memwall.analysis.quantities import LIMITS
from memwall.core.errors import UsageError
from memwall.core.units import percent
from memwall.gate.figure import trend_chart
from memwall.gate.history import THRESHOLD, FigureStep, HistoryRow, commits, steps, trends
from memwall.report.document import Block, Column, Document, Facts, Picture, Section, Sentence, Table, known_facts
from memwall.report.figures.scene import Chart
from memwall.report.kinds import Report

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


@dataclass(frozen=True, slots=True)
class HistoryReport(Report):
    """A history: ``quantities`` are what is drawn and whose steps are listed; none named draws ``SHOWN`` and lists all
    steps.

    Raises:
        UsageError: there is no such quantity, or nothing to show.
    """

    noun = "a history"
    kinds = ("text", "md", "csv", "html", "png", "svg", "pdf")
    history: Sequence[HistoryRow]
    quantities: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.history:
            raise UsageError("the history is empty: there is no commit in it yet")
        names = tuple(dict.fromkeys(find_quantity(name, "--quantity").name for name in self.quantities))
        if missing := [name for name in names if all(name not in row.figures for row in self.history)]:
            raise UsageError(f"the history has no {missing[0]}; it has {', '.join(_known(self.history))}")
        object.__setattr__(self, "quantities", names)

    def document(self, kind: str) -> Document:
        """What the history spans, its steps, newest first, and the current value of each series; as HTML below the
        picture."""
        rows, found = self.history, steps(self.history, self.quantities)
        worse = sum(step.worse for step in found)
        text = f"No step: no figure changed by more than {_LEAST} under one version of memwall."
        if found:
            count = f"{len(found):,} step{'s' * (len(found) > 1)}"
            text = f"{count}: {worse:,} for the worse, {len(found) - worse:,} for the better."
        tables = [*([_step_table(rows, found)] if found else []), _latest_table(rows, self.quantities)]
        answer: list[Block] = [Sentence(text, strong=True)]
        if kind == "html":
            titles = ", ".join(LIMITS[name].title for name in self.quantities or SHOWN)
            answer.append(Picture(self.figure(), f"{titles} of each workload, commit by commit"))
        return Document("History", (Section("", [_facts(rows), *tables]),), answer)

    def rows(self) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        return CSV_COLUMNS, _csv_rows(self.history, self.quantities)

    def figure(self) -> Chart:
        return trend_chart(self.history, self.quantities or SHOWN)


def _csv_rows(rows: Sequence[HistoryRow], quantities: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    found = {(*step.row.key, step.quantity): step for step in steps(rows, quantities)}
    for row in rows:
        for name in quantities or _known(rows):
            if name in row.figures:
                step = found.get((*row.key, name))
                before = "" if step is None else step.before
                change = "" if step is None or step.change is None else step.change
                yield (
                    row.commit,
                    row.date,
                    row.memwall_version,
                    row.workload,
                    row.mode,
                    row.gpu,
                    row.policy,
                    name,
                    row.figures[name],
                    before,
                    change,
                )


def _known(rows: Sequence[HistoryRow]) -> list[str]:
    found = {name for row in rows for name in row.figures}
    return [name for name in LIMITS if name in found]


def _facts(rows: Sequence[HistoryRow]) -> Facts:
    first, last = rows[0], rows[-1]
    span = f"{_at(first)} to {_at(last)}" if first.commit != last.commit else _at(first)
    versions: dict[str, str] = {}
    for row in rows:
        versions.setdefault(row.memwall_version, _at(row))
    versions_from = [f"{version} from {at}" if len(versions) > 1 else version for version, at in versions.items()]
    return known_facts(
        ("commits", f"{len(commits(rows)):,}, {span}"),
        ("workloads", ", ".join(sorted({row.workload for row in rows}))),
        ("GPUs", ", ".join(sorted({row.gpu for row in rows}))),
        ("memwall", ", ".join(versions_from)),
    )


def _at(row: HistoryRow) -> str:
    """``4a53f27b1 (2026-11-22)``."""
    return f"{row.commit[:SHORT]} ({row.date[:10]})"


def _step_table(rows: Sequence[HistoryRow], found: Sequence[FigureStep]) -> Table:
    """Steps that differ in their GPU alone are one row."""
    groups: dict[tuple[object, ...], list[FigureStep]] = {}
    for step in found:
        row = step.row
        key = (row.commit, row.workload, row.mode, row.policy, step.quantity, step.before, step.after)
        groups.setdefault(key, []).append(step)
    gpus_of: dict[str, set[str]] = {}
    for row in rows:
        gpus_of.setdefault(row.workload, set()).add(row.gpu)
    merged = sorted(groups.values(), key=lambda group: group[0].row.date, reverse=True)
    shown = merged[:_MOST]
    named, table = _names(rows), []
    for group in shown:
        step, row = group[0], group[0].row
        before, after = apart([step.before, step.after], LIMITS[step.quantity].unit)
        table.append(
            (
                row.date[:10],
                row.commit[:SHORT],
                named(row),
                _together(group, gpus_of),
                row.policy,
                step.quantity,
                before,
                after,
                change_text(step.change) or "new",
                "worse" if step.worse else "better",
            )
        )
    specs = (
        "date: 0, commit: 1, workload: 2 name, GPU: 3 name, policy: 4, quantity: 5, from: 6 right, to: 7 right,"
        "change: 8 right, : 9"
    )
    rest = f"{len(merged) - len(shown):,} older rows are not shown; " if len(merged) > len(shown) else ""
    return col.listing("Steps, newest first", table, specs, rest + STEP_NOTE)


def _together(group: Sequence[FigureStep], gpus_of: Mapping[str, set[str]]) -> str:
    gpus = [step.row.gpu for step in group]
    whole = len(gpus) > 1 and set(gpus) == gpus_of[group[0].row.workload]
    return "all GPUs" if whole else ", ".join(gpus)


def _names(rows: Sequence[HistoryRow]) -> Callable[[HistoryRow], str]:
    """What a workload is called: its name, with the mode where it is followed in several."""
    modes: dict[str, set[str]] = {}
    for row in rows:
        modes.setdefault(row.workload, set()).add(row.mode)
    return lambda row: f"{row.workload}, {row.mode}" if len(modes[row.workload]) > 1 else row.workload


def _latest_table(rows: Sequence[HistoryRow], quantities: Sequence[str]) -> Table:
    named, last = _names(rows), [trend[-1] for trend in trends(rows).values()]
    shown = last[:_MOST]
    table = [(named(row), row.gpu, row.policy, row.commit[:SHORT]) for row in shown]
    columns = col.of(table, "workload: 0 name, GPU: 1 name, policy: 2, commit: 3")
    for name in quantities or SHOWN:
        quantity = LIMITS[name]
        cells = apart([row.figures.get(name) for row in shown], quantity.unit)
        columns.append((Column(quantity.title), [cell or "-" for cell in cells]))
    rest = f"{len(last) - len(shown):,} further series are not shown" if len(last) > len(shown) else ""
    return col.table("Now", columns, rest)
