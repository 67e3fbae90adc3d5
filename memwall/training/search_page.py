"""Search of layouts → Document: the fastest layouts of a training step, and why others were not simulated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import memwall.report.columns as col
from memwall.core.files import json_pieces
from memwall.core.units import counted, duration, percent, size
from memwall.report.document import Document, Section, Sentence
from memwall.report.kinds import Report
from memwall.training.page import PEAK

if TYPE_CHECKING:
    from memwall.training.search import Layouts

SCHEMA = "memwall.layouts/1"
_COLUMNS = ("layout", "batch", "time_s", "tokens_per_s_per_gpu", "mfu", "hfu", "bubble_s", "exposed_s", "tensor_s",
            "peak_bytes")  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayoutsReport(Report):
    """A search of layouts."""

    noun = "a search"
    kinds = ("text", "md", "html", "csv", "parquet", "json")
    found: Layouts

    def document(self, kind: str) -> Document:
        found, best = self.found, self.found.order[0]
        lines = [
            Sentence(f"The fastest: {best.layout}, microbatches of {counted(best.batch, 'sample')};"
                     f" {duration(best.step.time_s)} a step, {percent(best.step.mfu)} MFU.", strong=True),
            Sentence(f"{counted(found.count, 'layout')} of {counted(found.gpus, 'GPU')} and a global batch of"
                     f" {found.global_batch:,}, {found.simulated:,} of which were simulated;"
                     f" {counted(found.ranks, 'rank')} traced."),
        ]  # fmt: skip
        lines += [Sentence(f"Not simulated, {count:,}: {why}.") for why, count in _gathered(found.pruned)]
        title = f"{found.name}: layouts on {found.cluster.full_name or found.cluster.name}"
        sections = (Section("", tuple(lines)), Section("The fastest that fit", (self._table(),)))
        return Document(title, sections)

    def _table(self) -> Any:
        rows = [
            (str(each.layout), each.batch, duration(each.step.time_s), each.step.mfu, each.step.hfu,
             each.step.bubble_s / each.step.time_s,
             (each.step.exposed_s + each.step.tensor_s) / each.step.time_s, size(each.peak_bytes))
            for each in self.found.order
        ]  # fmt: skip
        specs = ("layout: 0, batch: 1, a step: 2 right, MFU: 3 %, HFU: 4 %, bubble: 5 %, messages: 6 %,"
                 " peak memory: 7 right")  # fmt: skip
        return col.listing("", rows, specs, f"batch: samples of a microbatch; peak memory: {PEAK}")

    def record(self) -> Iterable[str]:
        columns, rows = self.rows()
        return json_pieces({
            "schema": SCHEMA, "model": self.found.name, "cluster": self.found.cluster.name, "gpus": self.found.gpus,
            "global_batch": self.found.global_batch, "candidates": self.found.count, "pruned": dict(self.found.pruned),
            "layouts": (dict(zip(columns, row, strict=True)) for row in rows),
        })  # fmt: skip

    def rows(self) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        return _COLUMNS, (
            (str(each.layout), each.batch, each.step.time_s, each.tokens_per_s_per_gpu, each.step.mfu, each.step.hfu,
             each.step.bubble_s, each.step.exposed_s, each.step.tensor_s, each.peak_bytes)
            for each in self.found.order
        )  # fmt: skip


def _gathered(pruned: Mapping[str, int]) -> list[tuple[str, int]]:
    """Why candidates are out and how many, the most first; splits that fail for one reason stand together."""
    counts: Counter[str] = Counter()
    splits: dict[str, list[str]] = {}
    for why, count in pruned.items():
        split = named[0] if (named := re.match(r"tp=[^:\s]+", why)) else ""
        reason = why.removeprefix(split).lstrip(": ")
        counts[reason] += count
        splits.setdefault(reason, []).append(split)
    return [("; ".join(splits[reason]) + ": " * any(splits[reason]) + reason, n) for reason, n in counts.most_common()]
