"""What may not happen where a kernel writes over memory that it reads: programs and warps run in any order.

A write to a storage makes a new version of it (:mod:`memwall.core.flow`). Memory holds a version from the launch that
writes it until a later version is written over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memwall.codegen.kernel import NotGenerated
from memwall.codegen.writing import Function, Touch
from memwall.core.graph import Graph, Value


def refuse_hazards(graph: Graph, functions: Sequence[Function], names: Mapping[int, str]) -> None:
    """Every read finds the version that it asks for, whatever the order in which the programs of a launch run.

    Args:
        names: value → its pointer in the functions, which are in launch order.

    Raises:
        NotGenerated: it might find another.
    """
    values = graph.values
    before: list[Touch] = []
    for function in functions:
        for read in dict.fromkeys(function.reads):
            if any(_newer(values, write, read) for write in before):
                raise NotGenerated("a later launch reads what an earlier one has overwritten")
            for write in function.writes:
                if _newer(values, write, read) and not _is_same(values, write, read):
                    raise NotGenerated("a tensor is written over that is also read at other places")
                if _newer(values, write, read) and _reads_late(function, names[read.value_id], names[write.value_id]):
                    raise NotGenerated("a tensor is read again after it was written over")
        for write in function.writes:
            if any(_newer(values, other, write) for other in before):
                raise NotGenerated("a part of a tensor is written before the whole")
            if any(_newer(values, other, write) for other in function.writes):
                raise NotGenerated("a tensor is written twice in one launch")
        before += function.writes


def _newer(values: Sequence[Value], write: Touch, other: Touch) -> bool:
    """Whether a write puts a later version where the other finds or puts its own."""
    a, b = values[write.value_id], values[other.value_id]
    return a.storage == b.storage and write.version > other.version and _overlap(a, b)


def _is_same(values: Sequence[Value], write: Touch, read: Touch) -> bool:
    """Whether both mean the same element in each program."""
    a, b = values[write.value_id], values[read.value_id]
    return (a.spec.dtype, a.offset, write.place) == (b.spec.dtype, b.offset, read.place)


def _reads_late(function: Function, read: str, written: str) -> bool:
    """Whether a pointer is read after another has been written, in the order of the text."""
    loads = [n for n, line in enumerate(function.lines) if f"tl.load({read} + " in line]
    stores = [n for n, line in enumerate(function.lines) if line.lstrip().startswith(f"tl.store({written} + ")]
    return bool(loads and stores) and max(loads) > min(stores)


def _overlap(a: Value, b: Value) -> bool:
    """Whether two values of one storage may have an element in common."""
    (a_start, a_end), (b_start, b_end) = a.byte_range, b.byte_range
    return a_start < b_end and b_start < a_end
