"""The tiles of a product, from the size of the matrices and what a multiprocessor holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memwall.codegen.kernel import NotGenerated
from memwall.codegen.occupancy import CHIPS, architecture_of
from memwall.codegen.product import Space
from memwall.core.errors import UsageError
from memwall.hardware.lookup import Gpu

#: rows, columns, depth (of 2-byte elements), warps
Shape = tuple[int, int, int, int]

#: from the largest
SHAPES = ((128, 128, 64, 8), (128, 64, 64, 4), (64, 64, 64, 4), (32, 64, 64, 4))
#: where rows start at odd addresses: elements are loaded one by one, and each in flight takes registers
SCALAR_SHAPES = ((128, 128, 32, 8), (64, 64, 32, 4), (32, 64, 32, 4))
#: beside random numbers, which take many registers for each element
RANDOM_SHAPES = ((128, 64, 64, 8), (64, 64, 64, 8))
#: for products without matrix units: the sums fill the registers sooner
VECTOR_SHAPES = ((64, 64, 32, 8), (32, 64, 32, 4))
_WITHOUT_MATRIX_UNITS = ("sm_60", "sm_61", "sm_70", "sm_75")
MAX_STAGES = 4


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows, columns and depth of a tile, warps, and loads in flight."""

    m: int
    n: int
    k: int
    warps: int
    stages: int

    def constants(self) -> dict[str, int]:
        """By the names in the file."""
        return {"BLOCK_M": self.m, "BLOCK_N": self.n, "BLOCK_K": self.k, "GROUP_M": 8, "STAGES": self.stages}


def tiles(space: Space, itemsize: int, shapes: Sequence[Shape], gpu: Gpu) -> tuple[Tile, ...]:
    """The tiles that are worth trying, the one chosen first: the largest that gives every multiprocessor one.

    Raises:
        NotGenerated: nothing is faster than the vendor's library there.
    """
    try:
        architecture = architecture_of(gpu)
    except UsageError:
        raise NotGenerated(f"Triton makes no code for {gpu.name}") from None
    if architecture in _WITHOUT_MATRIX_UNITS:
        raise NotGenerated("no tensor-core path below sm_80: the vendor's library keeps it")
    found = []
    for rows, columns, depth, warps in shapes:
        depth = depth * 2 // itemsize
        stages = min(MAX_STAGES, CHIPS[architecture].shared_block_bytes // ((rows + columns) * depth * itemsize))
        if architecture.startswith("gfx"):
            stages = 2  # loads go through registers there
        found.append(Tile(rows, columns, depth, warps, stages))
    filling = [t for t in found if space.batch * math.ceil(space.m / t.m) * math.ceil(space.n / t.n) >= gpu.sm_count]
    chosen = found.index(filling[0] if filling else found[-1])
    return (found[chosen], *found[chosen + 1 : chosen + 2], *found[max(chosen - 1, 0) : chosen])
