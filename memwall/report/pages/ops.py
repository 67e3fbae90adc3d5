"""What is covered for each op, from its row (``memwall ops``), and how it is counted (``memwall profile --rules``)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import memwall.report.columns as col
from memwall.core.errors import UsageError
from memwall.ops.loops import is_fused
from memwall.ops.registry import OP_CLASSES, OpRow, rows
from memwall.report.document import Column, Document, Facts, Section, Sentence
from memwall.report.html import resource
from memwall.report.kinds import Report
from memwall.wings import part

STAGES = ("cost", "fusion", "codegen", "traces")


class OpCoverage(NamedTuple):
    """An op, its family, and the stages that know it."""

    name: str
    family: str
    cost: bool
    fusion: bool
    codegen: bool
    traces: bool


def coverage(families: Sequence[str] = ()) -> list[OpCoverage]:
    """The ops of some families, or of all; a form that writes over its argument counts as the op itself.

    Raises:
        UsageError: no such family.
    """
    unknown = [name for name in families if name not in OP_CLASSES]
    if unknown:
        raise UsageError(f"no family of ops named {unknown[0]!r}; one of {', '.join(OP_CLASSES)}")
    known = dict(rows())
    covered = part("codegen.covers")
    found = [
        OpCoverage(
            name.removeprefix("aten."),
            row.op_class,
            row.cost is not None,
            is_fused(row),
            covered(name),
            _is_read(name, row),
        )
        for name, row in known.items()
        if row.cost is not None and not (name.endswith("_") and name[:-1] in known)
    ]
    wanted = families or OP_CLASSES
    return sorted((op for op in found if op.family in wanted), key=lambda op: (OP_CLASSES.index(op.family), op.name))


def _is_read(name: str, row: OpRow) -> bool:
    """Whether the results of a recorded call are known: by a rule, or as what it writes."""
    library, _, packet = name.partition(".")
    writes = packet.endswith("_") or packet.startswith("_foreach_")
    return (writes or row.results is not None) and bool(
        part("traces.schemas_of")(f"{library}::{packet.partition('.')[0]}")
    )


@dataclass(frozen=True, slots=True)
class OpsReport(Report):
    """Coverage by family or, where families were asked for, by op."""

    noun = "the coverage of ops"
    kinds = ("text", "json")
    ops: Sequence[OpCoverage]
    by_family: bool

    def document(self, kind: str) -> Document:
        if self.by_family:
            of = {name: [op for op in self.ops if op.family == name] for name in OP_CLASSES}
            columns = [col.text("family", of), (Column("ops"), [str(len(ops)) for ops in of.values()])]
            columns += [
                (Column(stage), [str(sum(getattr(op, stage) for op in ops)) for ops in of.values()]) for stage in STAGES
            ]
            table = col.table("", columns, _NOTE)
        else:
            columns = col.of(self.ops, "op: name, family")
            columns += [col.text(stage, ["yes" if getattr(op, stage) else "-" for op in self.ops]) for stage in STAGES]
            table = col.table("", columns)
        return Document("Ops", (Section("", (table,)),))

    def record(self) -> str:
        return json.dumps([op._asdict() for op in self.ops], indent=2)


_NOTE = (
    "ops with a formula for FLOPs and bytes (cost), a loop nest for the planner (fusion), a generated kernel (codegen),"
    " results derived from a recorded call (traces); each op of one family: memwall ops FAMILY"
)


@dataclass(frozen=True, slots=True)
class RulesReport(Report):
    """All counting rules."""

    noun = "the list of rules"
    kinds = ("text",)

    def document(self, kind: str) -> Document:
        rules = tomllib.loads(resource("rules.toml"))
        opening = Section("", (Sentence("What memwall counts, and how it turns counts into seconds."),))
        return Document("Counting rules", (opening, *(Section(h, (Facts([*r.items()]),)) for h, r in rules.items())))
