"""A saved fusion report, ``memwall.fusion/1``, as a page: what ``memwall fuse -o FILE.json`` wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import memwall.report.columns as col
from memwall.core.errors import UsageError
from memwall.core.files import read_json
from memwall.core.structure import BadRecord, check_schema, read
from memwall.fusing.capture_page import MAX_BREAKS
from memwall.fusing.page import refusal_table
from memwall.fusing.run import SCHEMA, SavedFusion, SavedGpu
from memwall.record.capture import Capture
from memwall.report.document import Block, Document, Section, Sentence, Table, known_facts
from memwall.report.kinds import Report
from memwall.report.pages import fusion


@dataclass(frozen=True, slots=True)
class FusionRecordReport(Report):
    """The page of a saved fusion report; ``top`` groups of each policy."""

    noun = "a saved fusion report"
    kinds = ("text", "md", "html", "json")
    saved: SavedFusion
    raw: Mapping[str, Any]
    top: int = 15

    @classmethod
    def load(cls, path: str, **options: Any) -> Self:
        """Read a record. Raises ``UsageError``: not a fusion record, or a damaged one; says which key."""
        raw = read_json(Path(path))
        family, _, version = SCHEMA.partition("/")
        check_schema(raw, family, int(version), path)
        try:
            return cls(read(SavedFusion, raw, "record"), raw, **options)
        except BadRecord as error:
            raise UsageError(f"{path}: {error}") from None

    def document(self, kind: str) -> Document:
        saved, name = self.saved, self.saved.workload.get("name", "")
        facts = known_facts(("workload", ", ".join(saved.workload.values())), *(("note", note) for note in saved.notes))
        sections = [Section("", (facts,))]
        for row in saved.gpus:
            sections.append(Section(row.gpu, (fusion.policies_table(row.policies), *self._tables(row))))
        if saved.capture is not None:
            sections.append(Section("Capture by TorchDynamo", _capture(saved.capture)))
        return Document(f"{name}: what fusion wins", sections, self._answer())

    def _answer(self) -> list[Block]:
        """What the best policy wins, of all GPUs."""
        eager = {row.gpu: next((p for p in row.policies if p.policy == "eager"), None) for row in self.saved.gpus}
        found = [(row.gpu, p) for row in self.saved.gpus for p in row.policies if p.policy not in ("eager", "ideal")]
        gpu, best = max(found, key=lambda each: each[1].speedup, default=("", None))
        if best is None or (before := eager[gpu]) is None:
            return []
        where = f"{gpu}: " if len(self.saved.gpus) > 1 else ""
        return [Sentence(where + fusion.row_sentence(gpu, best, before), strong=True)]

    def record(self) -> str:
        return json.dumps(self.raw, indent=1) + "\n"

    def _tables(self, row: SavedGpu) -> list[Table]:
        tables: list[Table] = []
        for policy in (p.policy for p in row.policies if p.policy not in ("eager", "ideal")):
            own: list[Table] = []
            if groups := sorted(row.groups.get(policy, ()), key=lambda group: -abs(group.saved_s)):
                own.append(fusion.group_table(groups, self.top))
            if refused := row.refused.get(policy):
                own.append(refusal_table(refused))
            if missed := row.missed.get(policy):
                own.append(fusion.missed_table(missed[: fusion.MAX_MISSED]))
            tables += [table._replace(title=f"{table.title}: {policy}") for table in own]
        return tables


def _capture(capture: Capture) -> list[Block]:
    guards = sum(capture.guard_kinds.values())
    facts = known_facts(
        ("not captured", capture.failure or ""),
        ("graphs", f"{len(capture.graphs)} run, {capture.captures} captured"),
        ("guards", f"{guards:,}"),
    )
    rows = [(f"{b.file}:{b.line}", b.count, b.reason) for b in capture.breaks[:MAX_BREAKS]]
    left = len(capture.breaks) - len(rows)
    table = col.listing("Graph breaks", rows, "at: 0, : 1 repeats, why: 2 prose", left=left)
    return [facts, table] if rows else [facts]
