"""Totals before and after what-ifs, as a section of a page."""

from __future__ import annotations

from collections.abc import Sequence

import memwall.report.columns as col
from memwall.analysis.whatif import Outcome
from memwall.report.document import Block, Section, Sentence, clean

NOTE = "change, ±: after less before; fuse: a module as one kernel that keeps all that lies between its ops on chip"
#: Notes that are listed before the rest is counted.
MAX_NOTES = 8


def what_if_section(outcomes: Sequence[Outcome]) -> Section:
    """Totals before and after each what-if, GPU by GPU and policy by policy."""
    before, after = [o.before for o in outcomes], [o.after for o in outcomes]
    several = len({o.gpu for o in outcomes}) > 1
    change_s = [a.time_s - b.time_s for a, b in zip(after, before, strict=True)]
    change_bytes = [a.dram_bytes - b.dram_bytes for a, b in zip(after, before, strict=True)]
    columns = [
        col.text("what if", _once([o.label for o in outcomes]), wraps=True),
        *([col.text("GPU", [o.gpu for o in outcomes])] if several else []),
        col.text("policy", [o.policy for o in outcomes]),
        col.seconds("before", [t.time_s for t in before]),
        col.seconds("after", [t.time_s for t in after], like=[t.time_s for t in before]),
        col.seconds("change", change_s, like=[t.time_s for t in before], signed=True),
        col.ratio("speed-up", [o.speedup for o in outcomes]),
        col.si("bytes", "B", [t.dram_bytes for t in before]),
        col.si("± bytes", "B", change_bytes),
        col.optional(col.plain("kernels", [t.kernels for t in before])),
        col.plain("± kernels", [a.kernels - b.kernels for a, b in zip(after, before, strict=True)]),
    ]
    notes = dict.fromkeys(note for o in outcomes for note in o.notes)
    blocks: list[Block] = [col.table("", columns, NOTE)]
    if notes:
        more = f", and {len(notes) - MAX_NOTES} more" if len(notes) > MAX_NOTES else ""
        blocks.append(Sentence(clean(f"Not changed: {'; '.join([*notes][:MAX_NOTES])}{more}.")))
    return Section("What if", tuple(blocks))


def _once(texts: Sequence[str]) -> list[str]:
    """Repeats of the line above left empty."""
    return [text if i == 0 or texts[i - 1] != text else "" for i, text in enumerate(texts)]
