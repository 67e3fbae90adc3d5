"""The user's own Triton kernels in a step, as compiled for a GPU, and what in them costs time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from memwall.core.errors import MemwallError
from memwall.core.graph import Graph
from memwall.core.units import counted, percent, size
from memwall.hardware.lookup import Gpu
from memwall.ops.triton import KernelWork, work_of
from memwall.wings import part

#: share of the bytes of L2's sectors from which on a kernel is said to use them, and how often it may ask for a byte
_COALESCED, _AGAIN = 0.75, 1.5
#: share of a GPU's resident programs that a grid has to have to fill it, and bytes that a thread loads at most at once
_FULL, _WIDEST = 1.0, 16


@dataclass(frozen=True, slots=True)
class OwnKernel:
    """A launch as compiled for a GPU. ``registers`` and ``spilled_bytes`` are of a thread, ``shared_bytes`` of a
    program; ``occupancy`` is the share of the warps that a multiprocessor can hold, ``limited_by`` what limits it,
    ``waves`` the programs over all that run at once. ``tensor_instruction`` is the instruction of tensor cores, empty
    without. ``sector_share``: the part of L2's sectors that its reads use. ``hints`` are what costs time."""

    name: str
    programs: int
    num_warps: int
    num_stages: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    occupancy: float
    limited_by: str
    waves: float
    tensor_instruction: str
    load_bytes: tuple[int, ...]
    copies: str
    sector_share: float
    hints: tuple[str, ...] = ()


def own_kernels(graph: Graph, gpu: Gpu) -> tuple[tuple[OwnKernel, ...], tuple[str, ...]]:
    """The distinct launches of Triton kernels in a graph, compiled for a GPU; and why some are not."""
    found, notes, seen = [], [], set[KernelWork]()
    for op in graph.ops:
        work = work_of(op.attributes or {})
        if work is None or work in seen:
            continue
        seen.add(work)
        try:
            found.append(_own(op.name.removeprefix("triton."), work, gpu))
        except MemwallError as error:
            notes.append(f"{op.name} is not compiled: {error}")
    return tuple(found), tuple(dict.fromkeys(notes))


def _own(name: str, work: KernelWork, gpu: Gpu) -> OwnKernel:
    built = part("codegen.built_kernel")(work, gpu)
    reads = [each for each in work.accesses if each.what == "read" and not each.by_data]
    asked = sum(each.asked_bytes for each in reads)
    moved = sum(each.asked_bytes / each.sector_share for each in reads if each.sector_share)
    facts = {
        field: getattr(built, field)
        for field in ("registers", "spilled_bytes", "shared_bytes", "occupancy", "limited_by", "waves",
                      "tensor_instruction", "load_bytes", "copies", "num_warps")
    }  # fmt: skip
    share = asked / moved if moved else 1.0
    own = OwnKernel(name=name, programs=work.programs, num_stages=work.num_stages, sector_share=share, **facts)
    return replace(own, hints=tuple(_hints(own, work)))


def _hints(own: OwnKernel, work: KernelWork) -> Iterator[str]:
    """What costs time, each with the number that says so."""
    if own.spilled_bytes:
        yield f"each thread spills {size(own.spilled_bytes)} of registers: smaller blocks or more warps"
    if work.products and not own.tensor_instruction:
        yield "its products run without tensor cores"
    elif work.products and not own.copies and 0 < max(own.load_bytes, default=0) < _WIDEST:
        widest = max(own.load_bytes)
        yield f"a thread loads {widest} of {_WIDEST} bytes at once: Triton has to know that strides are multiples of 16"
    if own.sector_share < _COALESCED:
        used = percent(own.sector_share, 0)
        yield f"its reads use {used} of the sectors of L2 that they ask for: let neighbours load neighbours"
    if own.waves < _FULL:
        yield f"its {counted(own.programs, 'program')} fill {percent(own.waves, 0)} of the GPU once"
    done, blocks = sum(work.pipes.values()), sum(count for _, count in work.block_flops)
    if done and blocks > _AGAIN * done:
        yield f"{percent(1 - done / blocks, 0)} of its arithmetic is on elements that masks leave out"
