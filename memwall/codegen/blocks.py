"""Block sizes and warps from a GPU's numbers: enough bytes in flight, few enough registers.

A multiprocessor keeps DRAM busy while ``bandwidth × latency`` bytes are in flight on the chip (Little's law); its
threads hold the elements that they work on in registers, of which there are 64 Ki of 32 bits (CUDA C++ programming
guide, all of compute capability 5.0 to 12.0). A product's tiles come from the size of its matrices and from what a
multiprocessor's shared memory holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memwall.codegen.kernel import NotGenerated
from memwall.codegen.occupancy import architecture_of
from memwall.core.errors import UsageError
from memwall.hardware.chips import CHIPS
from memwall.hardware.lookup import Gpu

#: 32-bit registers of a multiprocessor
REGISTERS = 64 * 1024
#: from a load's issue to its data, all caches missed (about 600-800 ns on V100 to H100 under load)
LATENCY_S = 700e-9
#: bytes of one load instruction of a thread
VECTOR_BYTES = 16
WARP = 32
#: registers of a thread that hold no elements: addresses, masks, loop counters
OTHER_REGISTERS = 28
MAX_WARPS = 16


@dataclass(frozen=True)
class RowBlocks:
    """Tile of a row kernel: rows and columns at a time, warps; ``persistent`` where a row fits in one tile."""

    rows: int
    cols: int
    warps: int
    persistent: bool


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def bytes_in_flight(gpu: Gpu) -> float:
    """Bytes that each multiprocessor must have in flight."""
    return gpu.dram_bytes_per_s * LATENCY_S / max(gpu.sm_count, 1)


def pointwise_block(numel: int, itemsize: int, loads: int, gpu: Gpu) -> tuple[int, int]:
    """Elements and warps of a block: each thread loads one vector of the widest tensor, or two where few are loaded."""
    per_thread = max(VECTOR_BYTES // max(itemsize, 1), 1)
    threads_per_sm = 1536
    in_flight = threads_per_sm * per_thread * itemsize * max(loads, 1)
    if in_flight < bytes_in_flight(gpu) and per_thread * 2 <= 16:
        per_thread *= 2
    warps = 4 if loads < 6 else 8
    block = per_thread * warps * WARP
    thread_blocks = -(-numel // block)
    while thread_blocks < 2 * gpu.sm_count and warps > 1:
        warps //= 2
        block //= 2
        thread_blocks = -(-numel // block)
    return max(block, 1), warps


def row_blocks(rows: int, cols: int, live: int, gpu: Gpu) -> RowBlocks:
    """The tile of a row kernel that holds ``live`` elements of each position at once.

    A row stays on chip if its live elements fill at most half of the register file, so that two blocks can run.
    """
    width = next_power_of_2(cols)
    if width * live <= REGISTERS // 2:
        height = max(1, min(1024 // width, next_power_of_2(rows // (4 * gpu.sm_count))))
        return RowBlocks(height, width, _warps(width * height, live), True)
    width = 2048 if live <= 8 else 1024
    return RowBlocks(1, width, 8 if live <= 8 else 16, False)


def _warps(elements: int, live: int) -> int:
    """Warps for a tile: at most 16 elements in a thread, and registers for all that are live."""
    warps = 1
    while warps < MAX_WARPS:
        per_thread = elements / (warps * WARP)
        registers = min(255, REGISTERS // (warps * WARP))
        if per_thread <= 8 and per_thread * live + OTHER_REGISTERS <= registers // 2 + OTHER_REGISTERS:
            break
        warps *= 2
    return warps


def column_blocks(kept: int, reduced: int, live: int, kept_is_contiguous: bool, gpu: Gpu) -> tuple[int, int, int, int]:
    """(kept, reduced, stripes, warps) of a tile that sums over an axis, and how many thread blocks share the axis."""
    budget = max(1024, min(4096, REGISTERS // (8 * max(live, 1))))
    budget = 1 << (budget.bit_length() - 1)
    if kept_is_contiguous:
        across = min(next_power_of_2(kept), 64)
        down = max(1, min(budget // across, next_power_of_2(reduced)))
    else:
        down = min(next_power_of_2(reduced), budget)
        across = max(1, min(next_power_of_2(kept), budget // down))
    columns = -(-kept // across)
    wanted = -(-4 * gpu.sm_count // columns)
    stripes = max(1, min(wanted, -(-reduced // (4 * down)) if reduced else 1))
    return across, down, stripes, 4 if across * down <= 2048 else 8


# -- products ---------------------------------------------------------------------------------------------------------

#: rows, columns, depth (of 2-byte elements), warps
Shape = tuple[int, int, int, int]

#: from the largest
SHAPES = ((128, 256, 64, 8), (128, 128, 64, 8), (128, 64, 64, 4), (64, 64, 64, 4), (32, 64, 64, 4))
#: where rows are unaligned: elements are loaded one by one, and each in flight takes registers
SCALAR_SHAPES = ((128, 128, 32, 8), (64, 64, 32, 4), (32, 64, 32, 4))
#: next to random numbers, which take many registers per element
RANDOM_SHAPES = ((128, 64, 64, 8), (64, 64, 64, 8))
#: for products without matrix units: the accumulators fill the registers sooner
VECTOR_SHAPES = ((64, 64, 32, 8), (32, 64, 32, 4))
MAX_STAGES = 4
#: results of a tile whose epilogue has registers left; a larger one is tried, where shared memory holds all stages
LARGEST_FIRST = 128 * 128


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows, columns and depth of a tile, warps, and loads in flight."""

    m: int
    n: int
    k: int
    warps: int
    stages: int

    def constants(self) -> dict[str, int]:
        """Values by the constants' names in the file."""
        return {"BLOCK_M": self.m, "BLOCK_N": self.n, "BLOCK_K": self.k, "GROUP_M": 8, "STAGES": self.stages}


def tiles(sizes: tuple[int, int, int], itemsize: int, shapes: Sequence[Shape], gpu: Gpu) -> tuple[Tile, ...]:
    """The tiles worth trying, the chosen one first: the largest that gives every multiprocessor one. Tiles at least
    twice as wide or as high as the result are left out.

    Args:
        sizes: matrices, rows and columns of the product.

    Raises:
        NotGenerated: nothing is faster than the vendor's library there.
    """
    try:
        architecture = architecture_of(gpu)
    except UsageError:
        raise NotGenerated(f"Triton makes no code for {gpu.name}") from None
    if not CHIPS[architecture].triton_products:
        raise NotGenerated("no tensor-core path below sm_80: the vendor's library keeps it")
    found = []
    for rows, columns, depth, warps in shapes:
        depth = depth * 2 // itemsize
        stages = min(MAX_STAGES, CHIPS[architecture].shared_block_bytes // ((rows + columns) * depth * itemsize))
        if rows * columns > LARGEST_FIRST and stages < MAX_STAGES:
            continue
        if architecture.startswith("gfx"):
            stages = 2  # loads go through registers there
        found.append(Tile(rows, columns, depth, warps, stages))
    batch, m, n = sizes
    found = [t for t in found if t.m < 2 * m and t.n < 2 * n] or found[-1:]
    able = [t for t in found if t.m * t.n <= LARGEST_FIRST]
    filling = [t for t in able if batch * math.ceil(m / t.m) * math.ceil(n / t.n) >= gpu.sm_count]
    chosen = found.index(filling[0] if filling else found[-1])
    return (*found[chosen : chosen + 3], *found[max(chosen - 1, 0) : chosen])
