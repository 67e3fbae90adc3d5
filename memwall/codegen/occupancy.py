"""How many thread blocks of a kernel fit on one multiprocessor at once, from what the compiler says that it takes.

The arithmetic is that of NVIDIA's ``cuda_occupancy.h`` and of LLVM's ``GCNSubtarget`` for AMD: the fewest blocks that
the limits on warps, blocks, registers and shared memory allow. Registers are handed out a warp at a time from the file
of one of the multiprocessor's partitions. AMD's scalar registers are left out: they seldom limit.

Sources of the table: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; granularities and
partitions: ``cuda_occupancy.h``; AMD: LLVM's ``AMDGPUBaseInfo.cpp`` and the CDNA instruction set manuals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from memwall.core.errors import UsageError, suggest
from memwall.hardware.lookup import Gpu, gpu_names, load_gpu

KIB = 1024


@dataclass(frozen=True, slots=True)
class Chip:
    """One multiprocessor (AMD: compute unit) of an architecture."""

    warp_size: int
    # Warps (AMD: waves) and blocks that may be resident.
    warps: int
    blocks: int
    # 32-bit registers, and how many of them a warp gets at least and in steps of.
    registers: int
    register_unit: int
    partitions: int
    # Shared memory (AMD: LDS) of all blocks and the most that one may have; the step in which it is given; what the
    # driver takes for itself in each block.
    shared_bytes: int
    shared_block_bytes: int
    shared_unit_bytes: int
    shared_reserved_bytes: int = 0


def _pascal(shared_kib: int, partitions: int) -> Chip:
    return Chip(32, 64, 32, 64 * KIB, 256, partitions, shared_kib * KIB, 48 * KIB, 256)


def _nvidia(warps: int, blocks: int, shared_kib: int, unit_bytes: int, reserved: int) -> Chip:
    shared = shared_kib * KIB
    return Chip(32, warps, blocks, 64 * KIB, 256, 4, shared, shared - reserved, unit_bytes, reserved)


def _cdna(vector_registers: int, unit: int, waves: int, shared_kib: int = 64, unit_bytes: int = 512) -> Chip:
    """Four SIMDs of 64 lanes. A block of several waves takes one of 16 barriers."""
    shared = shared_kib * KIB
    return Chip(64, 4 * waves, 16, 4 * 64 * vector_registers, 64 * unit, 4, shared, shared, unit_bytes)


#: architecture -> one multiprocessor of it
CHIPS: Mapping[str, Chip] = {
    "sm_60": _pascal(64, partitions=2),
    "sm_61": _pascal(96, partitions=4),
    "sm_70": _nvidia(64, 32, 96, 256, 0),
    "sm_75": _nvidia(32, 16, 64, 256, 0),
    "sm_80": _nvidia(64, 32, 164, 128, KIB),
    "sm_86": _nvidia(48, 16, 100, 128, KIB),
    "sm_89": _nvidia(48, 24, 100, 128, KIB),
    "sm_90": _nvidia(64, 32, 228, 128, KIB),
    "sm_100": _nvidia(64, 32, 228, 128, KIB),
    "sm_103": _nvidia(64, 32, 228, 128, KIB),
    "sm_120": _nvidia(48, 24, 100, 128, KIB),
    "gfx908": _cdna(256, 4, 10),
    "gfx90a": _cdna(512, 8, 8),
    "gfx942": _cdna(512, 8, 8),
    "gfx950": _cdna(512, 8, 8, 160, 1280),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks and warps that are resident together, their share of what the hardware holds, and what sets the limit:
    ``warps``, ``blocks``, ``registers`` or ``shared memory``. No blocks: the kernel cannot be launched."""

    blocks: int
    warps: int
    share: float
    limited_by: str


def occupancy(architecture: str, num_warps: int, registers: int, shared_bytes: int) -> Occupancy:
    """The occupancy of a kernel.

    Args:
        num_warps: warps of one block.
        registers: 32-bit registers of one thread.
        shared_bytes: shared memory of one block.
    """
    chip = CHIPS[architecture]
    limits = {"warps": chip.warps // num_warps, "registers": _by_registers(chip, num_warps, registers)}
    if chip.warp_size == 32 or num_warps > 1:
        limits["blocks"] = chip.blocks
    if shared_bytes:
        taken = _round_up(shared_bytes + chip.shared_reserved_bytes, chip.shared_unit_bytes)
        limits["shared memory"] = chip.shared_bytes // taken
        if shared_bytes > chip.shared_block_bytes:
            limits["shared memory"] = 0
    name = min(limits, key=limits.__getitem__)
    blocks = limits[name]
    return Occupancy(blocks, blocks * num_warps, blocks * num_warps / chip.warps, name)


def _by_registers(chip: Chip, num_warps: int, registers: int) -> int:
    taken = _round_up(max(registers, 1) * chip.warp_size, chip.register_unit)
    return chip.registers // chip.partitions // taken * chip.partitions // num_warps


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


# -- architectures by name ---------------------------------------------------------------------------------------------


def architecture_of(gpu: Gpu) -> str:
    """``sm_90``, ``gfx942``: the architecture that code for a GPU is compiled for.

    Raises:
        UsageError: Triton makes no code for the GPU.
    """
    known = gpu.compute_capability or ""
    name = known if known.startswith("gfx") else f"sm_{known.replace('.', '')}"
    if name not in CHIPS:
        raise UsageError(f"no kernel can be compiled for {gpu.name}; there is {', '.join(CHIPS)}")
    return name


def is_architecture(text: str) -> bool:
    """Whether a word names an architecture (``sm_90``, ``gfx942``), be there one or not, and no board."""
    return re.fullmatch(r"sm_?[0-9]\w*|gfx\w*", text.lower()) is not None


def find_target(text: str) -> tuple[str, Gpu | None]:
    """An architecture, and the board where one was named, from a name such as ``h100``, ``sm_90`` or ``gfx942``.

    Raises:
        UsageError: there is no such board or architecture; says which are near.
    """
    if not is_architecture(text):
        gpu = load_gpu(text)
        return architecture_of(gpu), gpu
    name = re.sub(r"^sm_?", "sm_", text.lower())
    if name in CHIPS:
        return name, None
    offer = suggest(name, [*CHIPS, *gpu_names()], 3, listed=CHIPS)
    raise UsageError(f"no architecture named {text[:60]!r}; {offer}")
