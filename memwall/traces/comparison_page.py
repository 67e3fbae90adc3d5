"""Traces next to each other, or a trace next to the model: what got slower, what is new, by op class and by op."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import memwall.report.columns as col
from memwall.core.units import counted, duration, percent
from memwall.report.document import Document, Picture, Section, Sentence, Table, known_facts
from memwall.report.figures.bars import Bar, Piece, bars_chart
from memwall.report.figures.colors import class_color
from memwall.report.figures.picture import cut, time_unit
from memwall.report.figures.scene import Chart
from memwall.report.kinds import Report
from memwall.traces.comparison import CHANGES, NOT_MODELED, OpChange, TraceComparison
from memwall.traces.page_names import short_name

_TEXT_ROWS, _HTML_ROWS, _LONGEST_SHAPES = 20, 200, 60


@dataclass(frozen=True, slots=True)
class TraceComparisonReport(Report):
    """Columns A, B, ... of time; ``top`` ops are listed, 20, on a page 200."""

    noun = "a comparison of traces"
    kinds = ("text", "md", "html", "json", "csv", "parquet", "png", "svg", "pdf")
    comparison: TraceComparison
    top: int | None = None

    def document(self, kind: str) -> Document:
        found = self.comparison
        top = self.top or (_HTML_ROWS if kind == "html" else _TEXT_ROWS)
        picture = (Picture(self.figure(), "time of each column by op class"),) if kind == "html" else ()
        sections = [
            Section("What is compared", (known_facts(*_facts(found)),)),
            Section("Op classes", (_classes(found),)),
            Section("Ops, the largest difference first", (_ops(found, top),)),
            *([Section("Notes", [Sentence(note) for note in found.notes])] if found.notes else []),
        ]
        names = dict.fromkeys(column.path_name for column in found.columns)
        return Document(" and ".join(names), sections, (Sentence(_summary(found), strong=True), *picture))

    def record(self) -> str:
        return json.dumps(self.comparison.to_dict(), indent=1, allow_nan=False) + "\n"

    def rows(self) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        labels = [column.label for column in self.comparison.columns]
        heads = [f"{what}_{label}" for what in ("count", "time_s", "kernel") for label in labels]
        rows = [
            (op.name, op.shapes, op.op_class, op.change, *op.counts, *op.times_s, *op.kernels)
            for op in self.comparison.ops
        ]
        return ("op", "shapes", "class", "change", *heads), rows

    def figure(self) -> Chart:
        found = self.comparison
        bars, (scale, unit) = [], time_unit(max(column.time_s for column in found.columns))
        for i, column in enumerate(found.columns):
            pieces = [
                Piece(name, times[i] / scale, class_color(name), "", f"{name} {duration(times[i])}", name)
                for name, times in found.classes.items()
                if times[i]
            ]
            bars.append(
                Bar(
                    f"{column.label} {column.what}",
                    pieces,
                    duration(column.time_s),
                    f"{column.gpu}, {column.path_name}",
                )
            )
        return bars_chart(f"GPU time{_each(found)} by op class", bars, unit=f"time, {unit}")


def _each(found: TraceComparison) -> str:
    return " per step" if found.per_step else ""


def _facts(found: TraceComparison) -> list[tuple[str, str]]:
    facts = []
    for column in found.columns:
        steps = f"{column.steps:,} steps" if column.steps > 1 else "1 step" if found.per_step else "no steps marked"
        kernels = f"{column.kernels:,.0f} kernels and copies{_each(found)}, " if column.what == "measured" else ""
        where = f"{column.what} on {column.gpu}"
        facts.append(
            (column.label, f"{column.path_name}, {where}: {kernels}{duration(column.time_s)}{_each(found)} ({steps})")
        )
    return facts


def _summary(found: TraceComparison) -> str:
    """The last column compared with the first, and what that is made of."""
    before, after = found.compared_s[0], found.compared_s[-1]
    last = found.columns[-1]
    word = "more" if after >= before else "less"
    text = f"{last.label} takes {duration(abs(after - before))} {word} than A"
    if before and after:
        ratio = f"{after / before:.3f}" if 0.1 < after / before < 10 else f"{after / before:.3g}"
        text += f" ({ratio} of its time)"
    parts = []
    for change in CHANGES[:4]:
        ops = [op for op in found.ops if op.change == change]
        if ops:
            parts.append(f"{_kinds(ops)} {change} ({_signed(sum(op.difference_s for op in ops))})")
    unknown = [op for op in found.ops if op.change == NOT_MODELED]
    if unknown:
        share = sum(op.times_s[0] or 0.0 for op in unknown) / (found.columns[0].time_s or 1.0)
        parts.append(f"without a model, and left out: {_kinds(unknown)}, {percent(share)} of A")
    return f"{text}: {', '.join(parts)}" if parts else f"{text}: no kind of op differs"


def _kinds(ops: Sequence[OpChange]) -> str:
    return f"{counted(len(ops), 'kind')} of op"


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{duration(abs(seconds))}"


def _classes(found: TraceComparison) -> Table:
    rows = []
    for name, times in found.classes.items():
        if name == NOT_MODELED:
            rows.append((name, *(time or None for time in times), None, None))
        else:
            rows.append((name, *times, times[-1] - times[0], times[-1] / times[0] if times[0] else None))
    return col.listing("", rows, f"class: 0 name, {_times(found, 1)}")


def _times(found: TraceComparison, first: int) -> str:
    """The specs of a column for each trace, which begin at a place, of the difference and of the ratio."""
    labels = [column.label for column in found.columns]
    count = len(labels)
    shown = [f"{label}: {first + i} s like {first}" for i, label in enumerate(labels)]
    last = labels[-1]
    return ", ".join(
        [*shown, f"{last} less A: {first + count} +s like {first}", f"{last}/A: {first + count + 1} ratio"]
    )


def _ops(found: TraceComparison, top: int) -> Table:
    shown = found.ops[:top]
    rows = [(*op.times_s, op.difference_s if op.change != NOT_MODELED else None, _ratio(op), op.change) for op in shown]
    count = len(found.columns)
    columns = [
        col.names("op", [short_name(op.name) for op in shown]),
        col.names("shapes", [cut(op.shapes, _LONGEST_SHAPES) for op in shown]),
        col.text("count", [_counts(op) for op in shown]),
        *col.of(rows, f"{_times(found, 0)}, change: {count + 2} word"),
        col.optional(col.names("kernel", [_kernels(op) for op in shown])),
    ]
    note = "change: the last column compared with A, of at least 2 % of the op and 0.01 % of all"
    return col.table("", columns, note, left=len(found.ops) - len(shown))


def _ratio(op: OpChange) -> float | None:
    before, after = op.times_s[0], op.times_s[-1]
    return after / before if before and after else None


def _counts(op: OpChange) -> str:
    """``12``, or ``12 → 24`` if they differ."""
    texts = [col.NOTHING if count is None else f"{count:,.2f}".rstrip("0").rstrip(".") for count in op.counts]
    return texts[0] if len(set(texts)) == 1 else " → ".join(texts)


def _kernels(op: OpChange) -> str:
    """The kernel that took most of the op's time, or how it changed."""
    names: Sequence[str] = list(dict.fromkeys(short_name(name) for name in op.kernels if name))
    return " → ".join(names)
