"""The rows of an analysed trace: what one execution of an op launched, with its time and what it attained of a GPU.

A row is 12 bytes in columns, and the number of its kind: what equal launches share (the op, its module and shapes, its
FLOPs and bytes, its bound) is kept once, however often they ran. :class:`TraceRows` sums and groups by kind, row by row
in the order of the trace; a :class:`TraceRow` is built when it is asked for.
"""

from __future__ import annotations

import copy
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, compress
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

from memwall.core.graph import Pipe
from memwall.traces.records import ColumnTable, Key, Numbered, TracedKernel
from memwall.traces.rows import KernelRows

V = TypeVar("V")
_US = 1e-6


@dataclass(frozen=True, slots=True)
class RowKind:
    """What rows of one kind share. Seconds and bytes; None: not known."""

    name: str = field(metadata={"key": "op"})
    op_class: str = field(metadata={"key": "class"})
    phase: str
    module: str
    source: str
    shapes: str
    device: int
    #: the launch is in some op (:meth:`Ops.linked`), and it (or the copy, the collective) recorded its sizes
    matched: bool
    shaped: bool
    flops: int | None
    #: what most of the FLOPs run on
    pipe: Pipe | None
    read_bytes: int | None
    write_bytes: int | None
    #: bytes that cross the link to the host or to other GPUs
    link_bytes: int | None
    bound_s: float | None
    modeled_s: float | None
    wall: str
    #: how the trace was read if the plain reading is impossible (:mod:`memwall.traces.costs`)
    assumed: str
    reason: str
    notes: tuple[str, ...]

    @property
    def bytes(self) -> int | None:
        """Compulsory bytes, read and written."""
        return None if self.read_bytes is None or self.write_bytes is None else self.read_bytes + self.write_bytes

    @property
    def moved_bytes(self) -> int | None:
        """Compulsory bytes, also over the link."""
        return None if self.bytes is None else self.bytes + (self.link_bytes or 0)

    @property
    def key(self) -> tuple[str, str]:
        """The key that rows of one op and its shapes share."""
        return self.name, self.shapes


@dataclass(frozen=True, slots=True)
class TraceRow(RowKind):
    """What one op execution launched, or a kernel without a known op."""

    OMIT_DEFAULTS: ClassVar = True
    SAVED: ClassVar = (
        "id",
        "name",
        "op_class",
        "phase",
        "module",
        "source",
        "shapes",
        "device",
        "start_s",
        "measured_s",
        "flops",
        "read_bytes",
        "write_bytes",
        "link_bytes",
        "bound_s",
        "of_roof",
        "modeled_s",
        "wall",
        "assumed",
        "reason",
        "notes",
        "kernels",
        "dram_bytes",
    )

    id: int
    start_s: float
    kernels: tuple[TracedKernel, ...]
    measured_s: float
    #: the time compared with the roof: ``measured_s`` plus what its kernels' durations may have lost by truncation
    longest_s: float
    #: by Nsight Compute, all kernels of the row together
    dram_bytes: int | None = field(default=None, metadata={"key": "measured_dram_bytes"})

    @property
    def of_roof(self) -> float | None:
        """Speed of light over measured time."""
        return self.bound_s / self.longest_s if self.bound_s is not None and self.longest_s > 0 else None


_shared = attrgetter(*(field.name for field in fields(RowKind)))


class TraceRows(ColumnTable[TraceRow]):
    """Rows of a trace: all of them, or some that share the columns.

    Args:
        launches: the kernels of each row.
        resolution_s: how much longer each kernel may have run than its duration says.
        dram_bytes: what Nsight Compute measured, by row.
    """

    def __init__(self, launches: KernelRows, resolution_s: float, dram_bytes: Mapping[int, int]) -> None:
        self.launches, self.resolution_s, self._dram_bytes = launches, resolution_s, dram_bytes
        #: ids of the rows, in order
        self.numbers: Sequence[int] = range(len(launches))
        self._kinds: Numbered[RowKind] = Numbered()
        self._kind, self._measured_s = array("i"), array("d")

    def add(self, kind: int, measured_s: float) -> None:
        """The next row: the number of its kind, and its time."""
        self._kind.append(kind)
        self._measured_s.append(measured_s)

    def kind_number(self, kind: RowKind) -> int:
        """The number of a kind, for :meth:`add`."""
        return self._kinds.number(kind)

    def longest_of(self, number: int, measured_s: float) -> float:
        """The time of the row of an id that is compared with the roof."""
        return measured_s + self.resolution_s * self.launches.count(number)

    def __len__(self) -> int:
        return len(self.numbers)

    def row(self, number: int) -> TraceRow:
        found = self.numbers[number]
        kind, measured_s = self._kinds.values[self._kind[found]], self._measured_s[found]
        kernels = tuple(map(self.launches.trace.kernels.row, self.launches.kernels(found)))
        own: dict[str, Any] = {
            "id": found,
            "start_s": kernels[0].start_us * _US,
            "kernels": kernels,
            "measured_s": measured_s,
            "longest_s": self.longest_of(found, measured_s),
            "dram_bytes": self._dram_bytes.get(found),
        }
        return TraceRow(*_shared(kind), **own)

    def of(self, numbers: Sequence[int]) -> TraceRows:
        """The rows of these ids."""
        found = copy.copy(self)
        found.numbers = numbers
        return found

    def groups(self, key: Callable[[RowKind], Key]) -> dict[Key, TraceRows]:
        """The rows of each key, keys in order of first appearance."""
        keys = _Memo(self._kinds.values, key)
        found: dict[Key, array[int]] = {}
        for number in self.numbers:
            found.setdefault(keys[self._kind[number]], array("i")).append(number)
        return {key: self.of(numbers) for key, numbers in found.items()}

    def where(self, holds: Callable[[RowKind], bool]) -> TraceRows:
        """The rows for whose kind something holds."""
        flags = [holds(kind) for kind in self._kinds.values]
        kinds = map(self._kind.__getitem__, self.numbers)
        return self.of(array("i", compress(self.numbers, map(flags.__getitem__, kinds))))

    def timed(self) -> TraceRows:
        """The rows whose duration is not 0."""
        return self.of(array("i", (number for number in self.numbers if self._measured_s[number] > 0)))

    def values(self, field: str) -> Iterator[Any]:
        """What is known of a field of a kind, or of ``dram_bytes``, row by row."""
        if field == "dram_bytes":
            return (self._dram_bytes[number] for number in self.numbers if number in self._dram_bytes)
        memo = _Memo(self._kinds.values, attrgetter(field))
        return (value for number in self.numbers if (value := memo[self._kind[number]]) is not None)

    def counts(self) -> Iterator[tuple[RowKind, int]]:
        """Each kind and how many rows it has, in order of first appearance."""
        found = Counter(map(self._kind.__getitem__, self.numbers))
        return ((self._kinds.values[kind], count) for kind, count in found.items())

    def kernels(self) -> Iterator[int]:
        """The numbers of their kernels."""
        return chain.from_iterable(map(self.launches.kernels, self.numbers))

    @property
    def measured_s(self) -> float:
        """The time of their kernels together."""
        return sum(map(self._measured_s.__getitem__, self.numbers))

    @property
    def longest_s(self) -> float:
        """The time that is compared with the roof, of all together."""
        return self.measured_s + self.resolution_s * sum(map(self.launches.count, self.numbers))

    def over_roof(self) -> TraceRows:
        """The rows faster than the bound, the worst first."""
        over: dict[int, float] = {}
        for number in self.where(lambda kind: kind.bound_s is not None).numbers:
            bound_s = self._kinds.values[self._kind[number]].bound_s
            longest_s = self.longest_of(number, self._measured_s[number])
            if bound_s is not None and bound_s > longest_s > 0:
                over[number] = -bound_s / longest_s
        return self.of(array("i", sorted(over, key=over.__getitem__)))


class _Memo(dict[int, V]):
    """What a function says of a kind, by the kind's number."""

    def __init__(self, kinds: Sequence[RowKind], function: Callable[[RowKind], V]) -> None:
        super().__init__()
        self._kinds, self._function = kinds, function

    def __missing__(self, number: int) -> V:
        value = self[number] = self._function(self._kinds[number])
        return value
