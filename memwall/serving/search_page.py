"""Search → Document: the cheapest engines that keep the objectives, those next to them, and why others are out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import memwall.report.columns as col
from memwall.analysis.quantities import QUANTITIES, SERVED
from memwall.core.files import json_pieces
from memwall.core.units import counted
from memwall.report.document import Document, Section, Sentence, Table
from memwall.report.kinds import Report
from memwall.serving.candidates import objective_text

if TYPE_CHECKING:
    from memwall.serving.search import EngineChoice, Found

SCHEMA = "memwall.search/1"
_FIGURES = "ttft_s ttft_p99_s tpot_s tokens_per_s_per_user tokens_per_s_per_gpu"
_OPTIONS = ("gpu", "weights", "kv", "tp", "ep", "dp", "pp")


@dataclass(frozen=True, slots=True)
class SearchReport(Report):
    """A search; ``top`` are the candidates that are listed."""

    noun = "a search"
    kinds = ("text", "md", "html", "csv", "parquet", "json")
    found: Found
    target: str
    top: int = 10

    def document(self, kind: str) -> Document:
        found = self.found
        wanted = ", ".join(map(objective_text, found.objectives))
        lines = [
            Sentence(f"The cheapest{f' that keeps {wanted}' if wanted else ''}: {_text(found.best)}.", strong=True)
        ]
        simulated = found.count - sum(found.pruned.values())
        missed = simulated - len(found.simulated)
        said = f", and {missed:,} of these miss an objective" if missed else ""
        lines.append(Sentence(f"{counted(found.count, 'candidate')}, {simulated:,} of which were simulated{said}."))
        lines += [Sentence(f"Not simulated, {count:,}: {why}.") for why, count in found.pruned.items()]
        shown = found.simulated[: self.top]
        table = self._table(shown, len(found.simulated) - len(shown))
        title = "The cheapest that keep all objectives" if found.objectives else "The cheapest"
        return Document(f"{self.target}: search", (Section("", tuple(lines)), Section(title, (table,))))

    def _table(self, shown: Sequence[EngineChoice], left: int) -> Table:
        columns = [col.names(name, [each.options[name] for each in shown]) for name in _OPTIONS[:3]]
        columns += [col.plain(name, [each.options[name] for each in shown]) for name in _OPTIONS[3:]]
        columns += [col.plain("engines", [each.engines for each in shown]), col.plain("GPUs", [e.gpus for e in shown])]
        read = lambda name: [QUANTITIES[name].read("serve", each.candidate) for each in shown]  # noqa: E731
        columns += col.answer(_FIGURES, read)
        priced = self.found.best.candidate.usd_per_gpu_hour is not None
        heading, unit = ("1 M tokens", "USD") if priced else ("a token", "GPU s")
        columns.append(col.fixed(heading, unit, [each.usd_per_million for each in shown], 1.0, 3 if priced else 6))
        return col.table("", columns, left=left)

    def record(self) -> Iterable[str]:
        columns, rows = self.rows()
        return json_pieces({
            "schema": SCHEMA, "target": self.target, "objectives": [limit.text for limit in self.found.objectives],
            "candidates": self.found.count, "pruned": dict(self.found.pruned),
            "simulated": (dict(zip(columns, row, strict=True)) for row in rows),
        })  # fmt: skip

    def rows(self) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        columns = (*_OPTIONS, "engines", "gpus", "cost", *SERVED)
        return columns, (
            (*(each.options[name] for name in _OPTIONS), each.engines, each.gpus, each.usd_per_million,
             *(row.read("serve", each.candidate) for row in SERVED.values()))
            for each in self.found.simulated
        )  # fmt: skip


def _text(choice: EngineChoice) -> str:
    """``2 engines of 4 h100-sxm: tp 4, weights fp8``."""
    options = choice.options
    layout = [f"{name} {options[name]}" for name in ("tp", "ep", "dp", "pp") if options[name] > 1]
    stored = [f"{name} {options[name]}" for name in ("weights", "kv") if options[name] != "model"]
    how = ", ".join((*layout, *stored))
    each = f"{counted(choice.engines, 'engine')} of {choice.candidate.gpus} {options['gpu']}"
    return f"{each}: {how}" if how else each
