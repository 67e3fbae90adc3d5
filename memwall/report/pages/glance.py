"""The facts that a page of a step shows at a glance: what binds it, what to do first, whether its memory holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from memwall.analysis.levers import HOST, NOTABLE, Lever, bound_by, by_kind
from memwall.core.units import percent, size
from memwall.report.document import Glance
from memwall.simulate.schedule import Schedule


class HeldBytes(NamedTuple):
    """Bytes that a GPU must hold and those that it has."""

    needed_bytes: float
    dram_bytes: float


def held_of(schedule: Schedule) -> HeldBytes:
    """Of a step: its peak, with what is assumed for the context and the allocator."""
    return HeldBytes(schedule.totals.peak_memory_bytes + schedule.reserved_bytes, schedule.gpu.dram_bytes)


def glance(binds: tuple[str, str], first: tuple[str, str], memory: HeldBytes, of: str = "") -> Glance:
    """The three facts, each a word and what stands behind it, ``of`` one of several."""
    labels = (f"{of}: {label}" if of else label for label in ("what binds", "do first", "memory"))
    fits = memory.needed_bytes <= memory.dram_bytes
    if not fits:
        first = "make it fit", f"a smaller batch, or more than the {size(memory.dram_bytes)} of this GPU"
    held = "fits" if fits else "DOES NOT FIT", f"{size(memory.needed_bytes)} of {size(memory.dram_bytes)}"
    return Glance([(label, *fact) for label, fact in zip(labels, (binds, first, held), strict=True)])


def binding_fact(found: Sequence[Lever], shares: Mapping[str, float], time_s: float) -> tuple[str, str]:
    """The wall whose number saves most of a step, and the wall of most of the time where that is another one; without
    such a number the wall of most of the time."""
    wall = max(shares, key=lambda name: shares[name], default="")
    most = f"{percent(shares[wall])} of the time is at the {wall} wall" if wall else ""
    binding = bound_by(found, shares, time_s)
    if binding is None:
        return wall, most
    saves = f"{binding.name} would save {percent(binding.share)}"
    word = "the CPU (host)" if binding.wall == HOST else binding.wall
    return word, saves if wall in ("", binding.wall) else f"{saves}; {most}"


def first_fact(found: Sequence[Lever], of: str = "") -> tuple[str, str]:
    """The first lever that is worth a row, by kind, and the option that shows it."""
    if not found:
        return "profile it again", "levers are not known of this record"
    for lever in by_kind(found):
        if lever.share >= NOTABLE:
            bound = ", which no compiler reaches" if lever.kind == "bound" else ""
            return lever.name, f"saves {percent(lever.share)}{of}{bound}: {lever.options}"
    return "nothing known", f"no change that memwall knows saves {percent(NOTABLE, 0)}"
