"""What a reading of a kernel has counted so far; readings of parts of the programs add up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from memwall.core.graph import Pipe
from memwall.frontend.triton.places import Runs, Touched

#: bytes that L2 moves at once (CUDA C++ Programming Guide, device memory accesses)
SECTOR_BYTES = 32


@dataclass
class Access:
    """One operation on memory, over all programs: ``what`` is ``read``, ``write`` or ``atomic``; ``argument`` is empty
    where the kernel loads the address. ``elements`` are all that are asked for, ``sectors`` are what each program
    touches each time, of the elements that were looked at (``sampled``). ``at_most``: data decides whether it touches
    all of ``runs``."""

    argument: str
    what: str
    itemsize: float
    place: str
    elements: int = 0
    runs: list[Runs] = field(default_factory=list)
    by_data: int = 0
    sampled: int = 0
    sectors: int = 0
    at_most: bool = False

    def add(self, touched: Touched, elements: int) -> None:
        """Count some programs' elements."""
        self.elements += elements
        if touched.runs is None:
            self.by_data += touched.count
        else:
            self.runs.append(touched.runs)


@dataclass
class DotCount:
    """One product of blocks, over all programs: how often it runs, and multiply-adds of what was loaded."""

    m: int
    n: int
    k: int
    pipe: Pipe
    itemsize: float
    runs: int = 0
    multiply_adds: int = 0


@dataclass
class Ledger:
    """FLOPs by kind and pipe, also of whole blocks; accesses by operation and argument, products by operation;
    notes."""

    flops: Counter[tuple[str, Pipe]] = field(default_factory=Counter)
    block_flops: Counter[Pipe] = field(default_factory=Counter)
    instructions: int = 0
    accesses: dict[tuple[int, str], Access] = field(default_factory=dict)
    dots: dict[int, DotCount] = field(default_factory=dict)
    #: operation → iterations of a loop, over all programs, and how often it is begun
    trips: dict[int, tuple[int, int]] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def merge(self, other: Ledger) -> None:
        """Add what other programs do."""
        self.flops += other.flops
        self.block_flops += other.block_flops
        self.instructions += other.instructions
        for place, access in other.accesses.items():
            own = self.accesses.setdefault(place, access)
            if own is not access:
                own.elements += access.elements
                own.runs += access.runs
                own.by_data += access.by_data
                own.sampled += access.sampled
                own.sectors += access.sectors
                own.at_most |= access.at_most
        for key, dot in other.dots.items():
            mine = self.dots.setdefault(key, dot)
            if mine is not dot:
                mine.runs += dot.runs
                mine.multiply_adds += dot.multiply_adds
        for key, (trips, begun) in other.trips.items():
            before = self.trips.get(key, (0, 0))
            self.trips[key] = before[0] + trips, before[1] + begun
        self.notes |= other.notes
