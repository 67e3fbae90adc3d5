"""What is covered for each op, from its row: ``memwall ops``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from memwall.codegen import covers
from memwall.core.errors import UsageError
from memwall.ops.loops import is_fused
from memwall.ops.registry import OP_CLASSES, Row, rows
from memwall.report.document import Column, Document, Section, table, text_column
from memwall.traces.schemas import schemas_of

STAGES = ("cost", "fusion", "codegen", "traces")


class Coverage(NamedTuple):
    """An op, its family, and the stages that know it."""

    name: str
    family: str
    cost: bool
    fusion: bool
    codegen: bool
    traces: bool


def coverage(families: Sequence[str] = ()) -> list[Coverage]:
    """The ops of some families, or of all; a form that writes over its argument counts as the op itself.

    Raises:
        UsageError: no such family.
    """
    unknown = [name for name in families if name not in OP_CLASSES]
    if unknown:
        raise UsageError(f"no family of ops named {unknown[0]!r}; one of {', '.join(OP_CLASSES)}")
    known = dict(rows())
    found = [
        Coverage(name.removeprefix("aten."), row.op_class, row.cost is not None, is_fused(row), covers(name),
                 _is_read(name, row))
        for name, row in known.items()
        if row.cost is not None and not (name.endswith("_") and name[:-1] in known)
    ]  # fmt: skip
    wanted = families or OP_CLASSES
    return sorted((op for op in found if op.family in wanted), key=lambda op: (OP_CLASSES.index(op.family), op.name))


def _is_read(name: str, row: Row) -> bool:
    """Whether the results of a recorded call are known: by a rule, or as what it writes."""
    library, _, packet = name.partition(".")
    writes = packet.endswith("_") or packet.startswith("_foreach_")
    return (writes or row.results is not None) and bool(schemas_of(f"{library}::{packet.partition('.')[0]}"))


def families_document(found: Sequence[Coverage]) -> Document:
    """One row for each family: how many of its ops each stage knows."""
    families = [name for name in OP_CLASSES if any(op.family == name for op in found)]
    of = {name: [op for op in found if op.family == name] for name in families}
    columns = [text_column("family", families), (Column("ops"), [str(len(of[name])) for name in families])]
    columns += [
        (Column(stage), [str(sum(getattr(op, stage) for op in of[name])) for name in families]) for stage in STAGES
    ]
    note = (
        "ops with a formula for FLOPs and bytes (cost), a loop nest for the planner (fusion), a generated kernel "
        "(codegen), results derived from a recorded call (traces); each op of one family: memwall ops FAMILY"
    )
    return Document("Ops", (Section("", (table("", columns, note),)),))


def family_document(found: Sequence[Coverage]) -> Document:
    """One row for each op."""
    columns = [text_column("op", [op.name for op in found]), text_column("family", [op.family for op in found])]
    columns += [text_column(stage, ["yes" if getattr(op, stage) else "-" for op in found]) for stage in STAGES]
    return Document("Ops", (Section("", (table("", columns),)),))
