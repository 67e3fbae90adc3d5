"""A launch → what it does (:class:`memwall.ops.triton.KernelWork`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwall.core import compat
from memwall.core.cache import cache_folder, keep, kept
from memwall.core.errors import UsageError
from memwall.core.sources import source_hash
from memwall.frontend.triton.ir import read_kernel
from memwall.frontend.triton.launch import TritonCall, launch_of, target_of_gpu
from memwall.frontend.triton.ledger import SECTOR_BYTES, Access, Ledger
from memwall.frontend.triton.places import Runs, joined
from memwall.frontend.triton.reader import read
from memwall.frontend.triton.reading import LaunchRead
from memwall.frontend.triton.values import Array
from memwall.hardware.lookup import Gpu
from memwall.ops.triton import WORK, BlockProduct, KernelWork, MemoryOperation, work_of

#: threads of a warp, of NVIDIA's GPUs and of AMD's
_WARP_SIZES = (32, 64)
_READS, _WRITES = ("read", "atomic"), ("write", "atomic")


@dataclass(frozen=True, slots=True)
class Room:
    """What a tensor argument has: bytes of its elements and of its storage, and where it begins there. Arguments
    with the same number as ``storage`` share one; a negative one is shared by none."""

    nbytes: int
    stored_bytes: int
    offset_bytes: int = 0
    storage: int = -1


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
    made = [access for access in ledger.accesses.values() if access.elements]
    reads, writes = (_touched([each for each in made if each.what in whats], rooms) for whats in (_READS, _WRITES))
    accesses = tuple(_operation(access, rooms) for access in made)
    alone = sum(each.touched_bytes for each in accesses if each.what in _READS)
    for access in made:
        if beyond := _beyond(access, rooms):
            notes[f"{access.argument.lstrip('%')} is touched {beyond:,} bytes beyond its end"] = None
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
        read_bytes=reads,
        write_bytes=writes,
        again_bytes=max(alone - reads, 0),
        accesses=accesses,
        products=tuple(
            BlockProduct(each.m, each.n, each.k, str(each.pipe), each.itemsize, each.runs, each.multiply_adds)
            for each in ledger.dots.values()
            if each.runs
        ),
        trips=tuple(trips for trips, _ in ledger.trips.values()),
        notes=tuple(notes),
        options=launch.options,
    )


def rooms_of(tensors: Mapping[str, Any]) -> dict[str, Room]:
    """What each tensor has; storages are numbered as they appear."""
    numbers: dict[int, int] = {}
    found = {}
    for name, tensor in tensors.items():
        storage, size = tensor.untyped_storage(), tensor.element_size()
        number = numbers.setdefault(compat.cdata(storage), len(numbers))
        offset = int(tensor.storage_offset()) * size
        found[name] = Room(tensor.numel() * size, int(storage.nbytes()), offset, number)
    return found


def kernel_work(kernel: Any, grid: Any, *args: Any, gpu: Gpu | None = None, **options: Any) -> KernelWork:
    """What ``kernel[grid](*args, **options)`` does, without running it.

    Args:
        kernel: a function that ``@triton.jit`` decorates.
        grid: as in a launch.
        args, options: what it is called with; tensors may be on any device, meta too.
        gpu: for which Triton writes the IR; None: the default one.

    Raises:
        UsageError: Triton refuses the kernel or the launch.
        Unsupported: the kernel has what the reader does not know.
    """
    launch = launch_of(kernel, grid, args, options, target_of_gpu(gpu))
    given = {**dict(zip(kernel.arg_names, args, strict=False)), **options}
    bases = {name: getattr(value, "base", value) for name, value in given.items()}  # of descriptors of the host
    return work_of_launch(launch, rooms_of({name: each for name, each in bases.items() if hasattr(each, "numel")}))


def _room_of(access: Access, rooms: Mapping[str, Room]) -> Room | None:
    return rooms.get(access.argument.lstrip("%"))


def _touched(accesses: Sequence[Access], rooms: Mapping[str, Room]) -> int:
    """Different bytes that some operations touch; bytes of one storage count once."""
    memory: dict[object, list[Access]] = {}
    for access in accesses:
        room = _room_of(access, rooms)
        key = room.storage if room is not None and room.storage >= 0 else access.argument or id(access)
        memory.setdefault(key, []).append(access)
    return sum(_in_one(some, rooms) for some in memory.values())


def _in_one(accesses: Sequence[Access], rooms: Mapping[str, Room]) -> int:
    """Different bytes of one storage; where data decides which, as many as are asked for, and no more than it has."""
    known, by_data, most = 0, dict[str, int](), 0
    runs: list[Runs] = []
    for access in accesses:
        room, size = _room_of(access, rooms), int(access.itemsize)
        offset = room.offset_bytes if room is not None else 0
        runs += [_inside(access, room, starts * size + offset, ends * size + offset) for starts, ends in access.runs]
        asked = access.by_data * size if room is None else min(access.by_data * size, room.nbytes)
        by_data[access.argument] = max(by_data.get(access.argument, 0), asked)
        most = max(most, asked if room is None else room.stored_bytes)
    if runs:
        starts, ends = joined(runs)
        known = int((ends - starts).sum())
    return max(known, min(sum(by_data.values()), most))


def _inside(access: Access, room: Room | None, starts: Array, ends: Array) -> Runs:
    """Runs of bytes; of an access whose extent data decides, no more than the storage has."""
    if room is None or not access.at_most:
        return starts, ends
    kept = (starts < room.stored_bytes) & (ends > 0)
    return starts[kept].clip(min=0), ends[kept].clip(max=room.stored_bytes)


def _operation(access: Access, rooms: Mapping[str, Room]) -> MemoryOperation:
    sectors = access.sectors * SECTOR_BYTES
    return MemoryOperation(
        access.argument.lstrip("%"),
        access.what,
        access.place,
        int(access.elements * access.itemsize),
        _touched([access], rooms),
        min(access.sampled * access.itemsize / sectors, 1.0) if sectors else 1.0,
        bool(access.by_data),
        access.itemsize,
    )


def _beyond(access: Access, rooms: Mapping[str, Room]) -> int:
    """Bytes between the end of a tensor's storage and the last byte that is touched, or the first and its start."""
    room, most = _room_of(access, rooms), 0
    for starts, ends in access.runs if room is not None and not access.at_most else ():
        if room is not None and len(starts):
            first, last = (int(at * access.itemsize) + room.offset_bytes for at in (starts[0], ends[-1]))
            most = max(most, last - room.stored_bytes, -first)
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


def remember(name: str, work: KernelWork) -> None:
    """Keep what a kernel does under its name, grid and warps, by which a trace of a run knows it."""
    keep(_place(name, work.grid, work.num_warps), json.dumps(work.attribute()))


def remembered(name: str, grid: Sequence[int], threads: int) -> KernelWork | None:
    """What a kernel of this name, grid and threads of a block does, as last read here; None where none was."""
    x, y, z = (*grid, 1, 1, 1)[:3]
    for lanes in _WARP_SIZES:
        if name.isidentifier() and (found := kept(_place(name, (x, y, z), threads // lanes))) is not None:
            return work_of({WORK: json.loads(found)})
    return None


def _place(name: str, grid: tuple[int, int, int], warps: int) -> Path:
    return cache_folder() / "triton" / f"{'-'.join(map(str, (name, *grid, warps)))}.kept"


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
