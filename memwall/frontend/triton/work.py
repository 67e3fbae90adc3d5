"""A launch → what it does (:class:`memwall.ops.triton.KernelWork`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memwall.core.cache import cache_folder, keep, kept
from memwall.core.errors import UsageError
from memwall.core.sources import source_hash
from memwall.frontend.triton.ir import read_kernel
from memwall.frontend.triton.launch import TritonCall
from memwall.frontend.triton.ledger import SECTOR_BYTES, Access, Ledger
from memwall.frontend.triton.reader import read
from memwall.frontend.triton.reading import LaunchRead
from memwall.ops.triton import BlockProduct, KernelWork, MemoryOperation

_READS, _WRITES = ("read", "atomic"), ("write", "atomic")


@dataclass(frozen=True, slots=True)
class Room:
    """What a tensor argument has: bytes of its elements, and bytes from its first element to its storage's end."""

    nbytes: int
    reach_bytes: int


def work_of_launch(launch: TritonCall, rooms: Mapping[str, Room], trips: int = 1) -> KernelWork:
    """What a launch does.

    Args:
        rooms: argument → what the tensor has that it is given; of others nothing is known.
        trips: iterations of a loop whose number depends on data.

    Raises:
        Unsupported: the kernel has what the reader does not know.
    """
    ledger = read(LaunchRead(read_kernel(launch.read), launch.arguments, launch.grid, trips))
    notes = dict.fromkeys(ledger.notes)
    names = dict.fromkeys(access.argument for access in ledger.accesses.values())
    reads, writes = ({name: _bytes(ledger, name, whats, rooms) for name in names} for whats in (_READS, _WRITES))
    accesses = tuple(_operation(access, rooms) for access in ledger.accesses.values() if access.elements)
    alone = sum(each.touched_bytes for each in accesses if each.what in _READS)
    for name in names:
        if beyond := _beyond(ledger, name, rooms):
            notes[f"{name.lstrip('%')} is touched {beyond:,} bytes beyond its end"] = None
    return KernelWork(
        grid=launch.grid,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        num_ctas=launch.num_ctas,
        ir=keep_ir(launch.ir),
        op_class=_class_of(ledger),
        flops=tuple((kind, str(pipe), count) for (kind, pipe), count in ledger.flops.items() if count),
        block_flops=tuple((str(pipe), count) for pipe, count in ledger.block_flops.items() if count),
        instructions=ledger.instructions,
        read_bytes=sum(reads.values()),
        write_bytes=sum(writes.values()),
        again_bytes=max(alone - sum(reads.values()), 0),
        accesses=accesses,
        products=tuple(
            BlockProduct(each.m, each.n, each.k, str(each.pipe), each.itemsize, each.runs, each.multiply_adds)
            for each in ledger.dots.values()
            if each.runs
        ),
        trips=tuple(trips for trips, _ in ledger.trips.values()),
        notes=tuple(notes),
    )


def _bytes(ledger: Ledger, name: str, whats: tuple[str, ...], rooms: Mapping[str, Room]) -> int:
    """Different bytes of an argument; where data decides which, no more than it has."""
    touched, by_data = ledger.touched(name, whats)
    room = rooms.get(name.lstrip("%"))
    return int(min(touched, room.nbytes) if by_data and room else touched)


def _operation(access: Access, rooms: Mapping[str, Room]) -> MemoryOperation:
    alone = Ledger(accesses={0: access})
    sectors = access.sectors * SECTOR_BYTES
    return MemoryOperation(
        access.argument.lstrip("%"),
        access.what,
        access.place,
        int(access.elements * access.itemsize),
        _bytes(alone, access.argument, (access.what,), rooms),
        min(access.sampled * access.itemsize / sectors, 1.0) if sectors else 1.0,
        bool(access.by_data),
    )


def _beyond(ledger: Ledger, name: str, rooms: Mapping[str, Room]) -> int:
    """Bytes between the end of a tensor's storage and the last byte that is touched; those before its start too."""
    room = rooms.get(name.lstrip("%"))
    if room is None:
        return 0
    most = 0
    for access in ledger.accesses.values():
        for starts, ends in access.runs if access.argument == name else ():
            if len(starts):
                last, first = int(ends[-1] * access.itemsize), int(starts[0] * access.itemsize)
                most = max(most, last - room.reach_bytes, -first)
    return most


def _class_of(ledger: Ledger) -> str:
    """The class of the op by what outweighs: products, rows that are summed, arithmetic; else it moves data."""
    kinds = {kind for (kind, _), count in ledger.flops.items() if count}
    products = [each for each in ledger.dots.values() if each.runs]
    if "dot" in kinds:
        fits = len(products) == 2 and (products[0].m, products[0].n) == (products[1].m, products[1].k)
        return "attention" if fits and "transcendental" in kinds else "contraction"
    if kinds & {"reduction", "scan"}:
        return "reduction"
    return "elementwise" if kinds & {"arithmetic", "transcendental"} else "movement"


def keep_ir(text: str) -> str:
    """Keep the IR of a kernel in the cache; the name under which it lies there."""
    name = source_hash(text)
    path = cache_folder() / "triton" / f"{name}.kept"
    if kept(path) is None:
        keep(path, text)
    return name


def kept_ir(name: str) -> str:
    """The IR of a kernel.

    Raises:
        UsageError: the cache no longer has it.
    """
    found = kept(cache_folder() / "triton" / f"{name}.kept")
    if found is None:
        raise UsageError("the cache no longer has the kernel's IR: profile its model again")
    return found
