"""The facts that a page of a step shows at a glance: what limits it, what to do first, whether its memory holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from memwall.analysis.levers import NOTABLE, Lever, bound_by, by_kind
from memwall.core.units import percent, size
from memwall.report.document import Glance
from memwall.simulate.schedule import Schedule


class MemoryFact(NamedTuple):
    """Whether the memory holds it, and what it holds."""

    fits: bool
    text: str


def memory_fact(needed_bytes: float, dram_bytes: float) -> MemoryFact:
    """Of the bytes that a GPU must hold and the bytes that it has."""
    return MemoryFact(needed_bytes <= dram_bytes, f"{size(needed_bytes)} of {size(dram_bytes)}")


def held_bytes(schedule: Schedule) -> int:
    """Of a step: its peak, with what is assumed for the context and the allocator."""
    return schedule.totals.peak_memory_bytes + schedule.reserved_bytes


def glance(
    limit: tuple[str, str], first: tuple[str, str], memory: MemoryFact, of: str | tuple[str, str, str] = ""
) -> Glance:
    """The three facts, each a word and what stands behind it; ``of`` says of which of several they are, all or each."""
    if not memory.fits:
        first = "make it fit", "a smaller batch, or a GPU of more memory"
    held = "fits" if memory.fits else "DOES NOT FIT", memory.text
    names = (of,) * 3 if isinstance(of, str) else of
    rows = zip(names, ("limited by", "do first", "memory"), (limit, first, held), strict=True)
    return Glance([(f"{name}: {label}" if name else label, *fact) for name, label, fact in rows])


def limit_fact(found: Sequence[Lever], shares: Mapping[str, float], time_s: float) -> tuple[str, str]:
    """The wall of most of the time, as tables have it, and the change of the hardware that would save most."""
    wall = max(shares, key=lambda name: shares[name])
    most, binding = f"{percent(shares[wall])} of the time", bound_by(found, shares, time_s)
    if binding is None:
        return wall, most
    return wall, f"{most}; of the hardware {binding.name} would save most, {percent(binding.share)}"


def first_fact(found: Sequence[Lever], of: str = "") -> tuple[str, str]:
    """The first lever that is worth a row, by kind, and the option that shows it."""
    if not found:
        return "profile it again", "levers are not known of this record"
    for lever in by_kind(found):
        if lever.share >= NOTABLE:
            bound = ", which no compiler reaches" if lever.kind == "bound" else ""
            return lever.name, f"saves {percent(lever.share)}{of}{bound}: {lever.options}"
    return "nothing known", f"no change that memwall knows saves {percent(NOTABLE, 0)}"
