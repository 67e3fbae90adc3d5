"""How PyTorch's general reduction (Reduce.cuh, ``setReduceConfig``) spreads over a GPU: threads along the axis whose
neighbours are adjacent, blocks for each output, and several blocks for one output where there would be too few."""

from __future__ import annotations

from dataclasses import fields
from math import ceil
from typing import Any, NamedTuple

from memwall.core.units import counted
from memwall.hardware.chips import chip_of
from memwall.hardware.lookup import Gpu
from memwall.ops.launches import Reduction, Stream
from memwall.perfmodel.stream import ROUND_TRIP_CLK

#: most threads of a block, elements that a thread has in flight, elements of a vector (Reduce.cuh)
_THREADS, _UNROLLED, _VECTOR = 512, 4, 4
#: elements of a thread from which a block, and from which the whole GPU, shares an output
_BLOCK_SHARES, _GRID_SHARES = 16, 256
#: dependent memory round trips to join blocks: partial results out, a counter, the last block reads them
_MEETING = 3


class Grid(NamedTuple):
    """The blocks of a reduction, their threads, how many share an output, and the turns of a thread's loop."""

    blocks: int
    threads: int
    parts: int
    turns: int
    #: elements that a thread combines in a turn
    combined: int


def grid(launch: Reduction, gpu: Gpu) -> Grid:
    """As ``setReduceConfig`` finds it."""
    along = launch.inner == 1  # neighbours go to one output
    vector = 1 if along else next(n for n in (4, 2, 1) if launch.inner % n == 0)
    wide = _VECTOR if along and launch.outputs == 1 and launch.reduced >= 128 else 1  # of the input
    x, y = (ceil(launch.reduced / wide), launch.outputs) if along else (ceil(launch.outputs / vector), launch.reduced)
    chip = chip_of(gpu)
    width, height = _block(x, y, _THREADS // vector, chip.warp_size)
    elements, outputs = launch.reduced, 1
    if along:
        elements = ceil(elements / width)
    else:
        outputs *= width * vector
    shares = elements >= min(height * _BLOCK_SHARES, _GRID_SHARES)
    if shares:
        elements = ceil(elements / height)
    else:
        outputs *= height
    blocks, parts = ceil(launch.outputs / outputs), 1
    slots = gpu.sm_count * (chip.threads // (width * height))
    if shares and elements >= _GRID_SHARES and blocks <= slots:
        parts = max(min(ceil(slots / blocks), ceil(elements / _BLOCK_SHARES)), ceil(elements / _GRID_SHARES))
        elements = ceil(elements / parts)
    return Grid(blocks * parts, width * height, parts, ceil(elements / _UNROLLED), _UNROLLED * vector)


def _block(x: int, y: int, most: int, warp: int) -> tuple[int, int]:
    """Threads of a block along both axes: ``set_block_dimension``."""
    width = min(_last_power(x), warp)
    height = min(_last_power(y), most // width)
    return min(_last_power(x), most // height), height


def _last_power(number: int) -> int:
    """The largest power of two that is no larger."""
    return 1 << (max(number, 1).bit_length() - 1)


def as_stream(launch: Reduction, gpu: Gpu) -> Stream:
    """The reduction as the blocks and loops that it is on this GPU."""
    blocks, threads, parts, turns, combined = grid(launch, gpu)
    along = "adjacent elements" if launch.inner == 1 else f"elements {launch.inner} or more apart"
    shared = f", {counted(parts, 'block')} for each, which meet in memory" if parts > 1 else ""
    given: dict[str, Any] = {item.name: getattr(launch, item.name) for item in fields(Stream)} | {
        "steps": turns * (1 + combined * launch.combine_clk / ROUND_TRIP_CLK),
        "blocks": blocks,
        "block_threads": threads,
        "round_trips": launch.round_trips + _MEETING * (parts > 1),
        "about": f"a reduction of {launch.reduced} {along} for each of {counted(launch.outputs, 'output')}{shared}",
    }
    return Stream(**given)
