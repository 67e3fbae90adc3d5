"""Fused library ops: each family's forms beside what the model does now. Every row is the whole step."""

from __future__ import annotations

from collections.abc import Sequence

import memwall.report.columns as col
from memwall.analysis.rewrites import Family
from memwall.report.document import Section, Table

NOTE = "each row is the whole step, its family in that form; → is the difference to what the model does now"


def rewrite_sections(families: Sequence[Family]) -> list[Section]:
    """A table for each GPU."""
    gpus = dict.fromkeys(family.gpu for family in families)
    return [
        Section(f"{gpu}: fused library ops", (rewrite_table([f for f in families if f.gpu == gpu]),)) for gpu in gpus
    ]


def rewrite_table(families: Sequence[Family]) -> Table:
    """The forms on one GPU; the first of each family is what the model does now."""
    rows = [(family, form) for family in families for form in (family.now, *family.others)]
    forms = [form for _, form in rows]

    def less(field: str) -> list[float | None]:
        return [None if f is family.now else getattr(f, field) - getattr(family.now, field) for family, f in rows]

    columns = [
        col.text("", [family.name if form is family.now else "" for family, form in rows]),
        col.text("form", [f"{f.name} (now)" if f is family.now else f.name for family, f in rows]),
        col.seconds("time", [f.time_s for f in forms]),
        col.seconds("→", less("time_s"), like=[f.time_s for f in forms], signed=True),
        col.si("DRAM bytes", "B", [f.dram_bytes for f in forms]),
        col.si("→", "B", less("dram_bytes"), like=[f.dram_bytes for f in forms], signed=True),
        col.si("peak", "B", [f.peak_memory_bytes for f in forms]),
        col.si("→", "B", less("peak_memory_bytes"), like=[f.peak_memory_bytes for f in forms], signed=True),
        col.plain("kernels", [f.kernels for f in forms]),
        col.text("note", [f.note for f in forms], wraps=True),
    ]
    return col.table("", columns, NOTE)
