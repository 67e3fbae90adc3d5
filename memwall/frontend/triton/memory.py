"""Loads, stores and atomic operations: which elements they touch, counted for all programs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memwall.core.graph import Pipe
from memwall.frontend.triton.ir import Operation, Type
from memwall.frontend.triton.ledger import SECTOR_BYTES, Access
from memwall.frontend.triton.places import Touched, touched
from memwall.frontend.triton.reading import Reading
from memwall.frontend.triton.values import Apart, Array, Known, lifted

#: bytes of an element of the IR
ITEMSIZE = {"i1": 1.0, "i8": 1.0, "i16": 2.0, "i32": 4.0, "i64": 8.0, "f16": 2.0, "bf16": 2.0, "f32": 4.0, "f64": 8.0}


def itemsize_of(element: str) -> float:
    """Bytes of an element: ``f8E4M3FN`` has one, a pointer eight."""
    return ITEMSIZE.get(element, 8.0 if "ptr" in element else 1.0)


def load(reading: Reading, op: Operation) -> Sequence[Known]:
    """The elements at a block of pointers, where a mask holds; what the mask leaves out is no work for what reads it.
    An integer is known by where it was loaded: equal places hold equal numbers."""
    pointer, *rest = reading.operands(op)
    pointer = pointer.resolved()
    kind = Type(pointer.kind.shape, op.types[0].pointee)
    masked = bool(rest) and rest[0].kind.element == "i1"
    conditions, by_data = _mask(reading, rest[0]) if masked else ((), False)
    access(reading, op, "read", pointer, conditions, by_data)
    if kind.is_float:
        return [Known(kind, vague=True, live=conditions)]
    keys = tuple(part for part in pointer.parts if part.size > 1)
    if pointer.vague:
        return [Known(kind, vague=True, live=conditions)]
    return [Known(kind, keys=keys or (np.zeros((1,) * (reading.depth + len(kind.shape)), np.int64),), live=conditions)]


def store(reading: Reading, op: Operation) -> Sequence[Known]:
    """The elements at a block of pointers, where a mask holds."""
    pointer, _, *rest = reading.operands(op)
    conditions, by_data = _mask(reading, rest[0]) if rest else ((), False)
    access(reading, op, "write", pointer.resolved(), conditions, by_data)
    return ()


def atomic(reading: Reading, op: Operation) -> Sequence[Known]:
    """Elements that are read and written in L2; an add of floats is a FLOP for each."""
    pointer, value, *rest = reading.operands(op)
    masked = bool(rest) and rest[-1].kind.element == "i1" and op.name == "tt.atomic_rmw"
    conditions, by_data = _mask(reading, rest[-1]) if masked else ((), False)
    access(reading, op, "atomic", pointer.resolved(), conditions, by_data)
    if op.text.startswith("fadd"):
        pipe = Pipe("vector", "float64" if value.kind.element == "f64" else "float32")
        reading.spend("atomic", value.kind, 1, conditions, pipe)
    return [Known(value.kind, vague=True)] if op.results else ()


def _mask(reading: Reading, mask: Known) -> tuple[tuple[Array, ...], bool]:
    """The conditions of a mask, and whether there are some of data, which are taken to hold."""
    try:
        found = mask.resolved()
    except Apart:
        if not reading.rough:
            raise
        reading.note("a mask that is too large to write out is taken to hold")
        return (), True
    if not found.is_known:
        reading.note("a mask depends on data: it is taken to hold")
    if found.vague:
        return (), True
    return tuple(term for term in found.terms if not (term.size == 1 and term.all())), not found.is_known


def access(
    reading: Reading, op: Operation, what: str, pointer: Known, conditions: Sequence[Array], by_data: bool
) -> None:
    """Count an access of a block of pointers under some conditions, to which data may add others."""
    if not reading.counting:
        return
    shape, element = pointer.kind.shape, pointer.kind.pointee
    made = Access(pointer.base, what, itemsize_of(element), op.place)
    own = reading.ledger.accesses.setdefault((id(op), pointer.base), made)
    own.at_most |= by_data or reading.by_data
    elements = reading.times(conditions, shape)
    if not elements:
        return
    rank, depth = len(shape), reading.depth
    outer = [lifted(a, 0, depth).reshape(lifted(a, 0, depth).shape + (1,) * rank) for a in reading.active]
    found = _touched(reading, pointer, [*outer, *conditions], elements)
    own.add(found, elements)
    if pointer.is_known:
        programs = reading.sizes[0]
        looks = (_sectors(pointer, [*outer, *conditions], reading, own.itemsize, at) for at in (programs // 2, 0))
        own.sampled, own.sectors = next((look for look in looks if look[0]), (0, 0))
    elif not pointer.base:
        reading.note("an address is loaded: which tensor it is of is not known")
    if found.runs is None and pointer.base:
        name, why = pointer.base.lstrip("%"), "is not followed" if reading.rough else "depends on data"
        reading.note(f"which elements of {name} are touched {why}: as many as are asked for")


def _touched(reading: Reading, pointer: Known, conditions: Sequence[Array], elements: int) -> Touched:
    if pointer.vague:
        return Touched(None, elements)
    try:
        return touched(pointer.terms, pointer.keys, conditions, [*reading.sizes, *pointer.kind.shape])
    except Apart:
        if not reading.rough:
            raise
        return Touched(None, elements)


def _sectors(
    pointer: Known, conditions: Sequence[Array], reading: Reading, itemsize: float, program: int
) -> tuple[int, int]:
    """Elements that one of the programs asks for in its first iteration, and the sectors of L2 that they lie in."""
    depth, shape = reading.depth, pointer.kind.shape

    def here(array: Array) -> Array:
        first = (program, *(0,) * (depth - 1))
        place = tuple(min(at, size - 1) for at, size in zip(first, array.shape[:depth], strict=True))
        return np.broadcast_to(array[place], shape)

    places = sum((here(term) for term in pointer.terms), np.zeros(shape, np.int64))
    kept = np.ones(shape, bool)
    for condition in conditions:
        kept = kept & here(condition).astype(bool)
    found = places[kept]
    return int(found.size), len(np.unique(found * int(itemsize) // SECTOR_BYTES))
