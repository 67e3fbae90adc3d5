"""``memwall drift`` as a page: what drifted, since when and what changed; then its kernels, longest first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import memwall.report.columns as col
from memwall.bench.drift.finding import Departure, Drift, KernelDrift
from memwall.core.structure import write
from memwall.core.units import counted, few
from memwall.record.kernels import NO_MODULE
from memwall.report.document import Block, Document, Section, Sentence, Table
from memwall.report.kinds import Report
from memwall.report.pages.fusion import cut_name

NOTE = (
    "xN: so many equal kernels in a step; usual: median of the runs before it drifted, now: of the latest run, of one"
    " launch; 80 % range: modeled for the latest run; left: the scatter of the runs before (their intervals do not"
    " meet), or the modeled range; since: the first run from which on it lies outside; changed: between the run before"
    " and that one"
)
#: conditions that the first sentence names
_NAMED = 4
#: rows of the table
_MOST = 40

#: what a row of CSV has of a kernel, and of each way to drift
_PLAIN = tuple(f.name for f in fields(KernelDrift) if f.name not in ("left_scatter", "outside_range"))
_WAYS = ("way", "first", "commit", "torch", "before", "changed")
CSV_COLUMNS = (*_PLAIN, "change", *(f"{way}_{name}" for way in ("scatter", "range") for name in _WAYS))


@dataclass(frozen=True, slots=True)
class DriftReport(Report):
    """What drifted: text, Markdown and HTML list the kernels that did, CSV and Parquet have all."""

    noun = "a report of drift"
    kinds = ("text", "md", "html", "csv", "parquet", "json")
    drift: Drift

    def document(self, kind: str) -> Document:
        drift, drifted = self.drift, self.drift.drifted
        blocks: list[Block] = []
        if outside := drift.always_outside:
            names = few(dict.fromkeys(cut_name(kernel.kernel) for kernel in outside))
            text = f"{counted(len(outside), 'kernel')} lay outside of the modeled range in every run, an error of the"
            blocks.append(Sentence(f"{text} model and no drift: {names}."))
        if drift.gone:
            names = few(dict.fromkeys(map(cut_name, drift.gone)))
            text = (
                f"The latest run has no time of {counted(len(drift.gone), 'kernel')} that the run before has: {names}."
            )
            blocks.append(Sentence(text))
        if drifted:
            blocks.append(_table(drifted))
        answer = (Sentence(sentence(drift), strong=True),)
        return Document(f"Drift, {_span(drift)}", (Section("", blocks),) if blocks else (), answer)

    def record(self) -> str:
        """``memwall.drift/1``."""
        found = write(self.drift)
        head = {key: found.pop(key) for key in ("schema", "memwall_version")}
        return json.dumps({**head, **found}, indent=1, allow_nan=False) + "\n"

    def rows(self) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        return CSV_COLUMNS, map(_cells, self.drift.kernels)


def sentence(drift: Drift) -> str:
    """What drifted, since when and what changed then, of the kernel that takes longest; or that nothing did."""
    drifted, total = drift.drifted, counted(len(drift.kernels), "kernel")
    since = f" since {drift.since}" if drift.since else ""
    if not drifted:
        alone = sum(kernel.runs < 2 for kernel in drift.kernels)
        few_runs = f"; {alone:,} of them have one run, which nothing is compared with" if alone else ""
        return f"None of {total} drifted{since}{few_runs}."
    first = drifted[0]
    way = first.drifted
    assert way is not None
    if first.change is not None:
        how = f"takes {col.times(first.change + 1)} its usual time"
    else:
        how = f"is {way.way} than its modeled range"
    where = f"{cut_name(first.kernel)} of {first.workload} on {first.device}"
    head = f"{len(drifted):,} of {total} drifted{since}"
    return f"{head}; the longest, {where}, {how} since the run of {_run(way)}; changed there: {_changed(way, _NAMED)}."


def _span(drift: Drift) -> str:
    days = list(dict.fromkeys((drift.first[:10], drift.last[:10])))
    return f"{counted(drift.runs, 'run')}, {' to '.join(days)}"


def _run(way: Departure) -> str:
    """``2026-11-22 05:24 at 1a2b3c4d5 with torch 2.11.0``."""
    at = f" at {way.commit}" if way.commit else ""
    return f"{way.first[:16].replace('T', ' ')}{at}" + (f" with torch {way.torch}" if way.torch else "")


def _changed(way: Departure, most: int) -> str:
    return few(way.changed, most) or "nothing that is recorded"


def _left(kernel: KernelDrift) -> str:
    ways = {"scatter": kernel.left_scatter, "range": kernel.outside_range}
    return ", ".join(f"{name} ({way.way})" for name, way in ways.items() if way and way.before)


def _table(drifted: Sequence[KernelDrift]) -> Table:
    shown = drifted[:_MOST]
    ways = [way for kernel in shown if (way := kernel.drifted)]
    ranges = [(k.modeled_low_s or 0.0, k.modeled_high_s or 0.0) for k in shown]
    columns = [
        col.names("kernel", [cut_name(kernel.kernel) for kernel in shown]),
        *col.of(shown, ": repeats repeats"),
        col.optional(col.names("module", [kernel.module or NO_MODULE for kernel in shown], tail=True)),
        *_told_apart(shown),
        *col.of(shown, "usual: usual_s s like median_s, now: median_s s, change error"),
        col.interval(ranges, [kernel.median_s for kernel in shown]),
        col.text("left", map(_left, shown)),
        col.text("since", [_run(way) for way in ways], wraps=True),
        col.text("changed", [_changed(way, len(way.changed)) for way in ways], wraps=True),
    ]
    return col.table("Kernels that drift, longest first", col.known(columns), NOTE, left=len(drifted) - len(shown))


def _told_apart(shown: Sequence[KernelDrift]) -> list[col.CellColumn]:
    """Columns of what not all kernels share; the workload always."""
    specs = {"configuration": "configuration", "GPU": "device name", "executor": "executor"}
    several = [
        f"{heading}: {spec}" for heading, spec in specs.items() if len({getattr(k, spec.split()[0]) for k in shown}) > 1
    ]
    return col.of(shown, ", ".join(("workload: workload name", *several)))


def _cells(kernel: KernelDrift) -> tuple[Any, ...]:
    ways = (kernel.left_scatter, kernel.outside_range)
    own = [getattr(kernel, name) for name in _PLAIN]
    return (*own, kernel.change, *(_cell(way, name) for way in ways for name in _WAYS))


def _cell(way: Departure | None, name: str) -> str:
    value = getattr(way, name) if way else ""
    return value if isinstance(value, str) else "; ".join(value)
