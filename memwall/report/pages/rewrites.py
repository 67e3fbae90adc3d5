"""Fused library ops: each family's forms beside what the model does now. Every row is the whole step."""

from __future__ import annotations

from collections.abc import Sequence

from memwall.analysis.rewrites import Family
from memwall.report.columns import plain_column, seconds_column, si_column
from memwall.report.document import Document, Section, Sentence, Table, clean, table, text_column
from memwall.report.markdown import to_markdown
from memwall.report.text import to_text

NOTE = "each row is the whole step, its family in that form; → is the difference to what the model does now"
NOTHING = (
    "Nothing in this model has another form: no scaled_dot_product_attention, no optimizer of torch's, no norm that is"
    " spelled out, no linear layer under a cross entropy."
)


def alternatives_text(families: Sequence[Family], title: str, *, width: int | None = None, color: bool = False) -> str:
    """The forms as text."""
    return to_text(alternatives_document(families, title), width=width, color=color)


def alternatives_markdown(families: Sequence[Family], title: str) -> str:
    """The forms as Markdown."""
    return to_markdown(alternatives_document(families, title))


def alternatives_document(families: Sequence[Family], title: str) -> Document:
    """A table for each GPU."""
    gpus = dict.fromkeys(family.gpu for family in families)
    sections = [Section(gpu, (alternatives_table([f for f in families if f.gpu == gpu]),)) for gpu in gpus]
    return Document(clean(title), tuple(sections) or (Section("", (Sentence(NOTHING),)),))


def alternatives_table(families: Sequence[Family]) -> Table:
    """The forms on one GPU; the first of each family is what the model does now."""
    rows = [(family, form) for family in families for form in (family.now, *family.others)]
    forms = [form for _, form in rows]

    def less(field: str) -> list[float | None]:
        return [None if f is family.now else getattr(f, field) - getattr(family.now, field) for family, f in rows]

    columns = [
        text_column("", [family.name if form is family.now else "" for family, form in rows]),
        text_column("form", [f"{f.name} (now)" if f is family.now else f.name for family, f in rows]),
        seconds_column("time", [f.time_s for f in forms]),
        seconds_column("→", less("time_s"), like=[f.time_s for f in forms], signed=True),
        si_column("DRAM bytes", "B", [f.dram_bytes for f in forms]),
        si_column("→", "B", less("dram_bytes"), like=[f.dram_bytes for f in forms], signed=True),
        si_column("peak", "B", [f.peak_memory_bytes for f in forms]),
        si_column("→", "B", less("peak_memory_bytes"), like=[f.peak_memory_bytes for f in forms], signed=True),
        plain_column("kernels", [f.kernels for f in forms]),
        text_column("note", [f.note for f in forms], wraps=True),
    ]
    return table("", columns, NOTE)
