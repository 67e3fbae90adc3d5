"""How many thread blocks of a kernel fit on one multiprocessor at once, from the compiler's resource report.

The arithmetic is as in NVIDIA's ``cuda_occupancy.h`` and of LLVM's ``GCNSubtarget`` for AMD: the fewest blocks that
the limits on warps, blocks, registers and shared memory allow. Registers are handed out a warp at a time from the file
of one of the multiprocessor's partitions. AMD's scalar registers are left out: they rarely limit.
The table of chips is :mod:`memwall.hardware.chips`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from memwall.core.errors import UsageError, suggest
from memwall.hardware.chips import CHIPS, target_of
from memwall.hardware.lookup import Gpu, gpu_names, load_gpu


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
    of_a_warp = _round_up(max(registers, 1) * chip.warp_size, chip.register_unit)
    resident = chip.registers // chip.partitions // of_a_warp * chip.partitions
    limits = {"warps": chip.warps // num_warps, "registers": resident // num_warps}
    if chip.warp_size == 32 or num_warps > 1:
        limits["blocks"] = chip.blocks
    if shared_bytes:
        taken = _round_up(shared_bytes + chip.shared_reserved_bytes, chip.shared_unit_bytes)
        limits["shared memory"] = chip.shared_bytes // taken if shared_bytes <= chip.shared_block_bytes else 0
    name = min(limits, key=limits.__getitem__)
    blocks = limits[name]
    return Occupancy(blocks, blocks * num_warps, blocks * num_warps / chip.warps, name)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


# -- architectures by name ---------------------------------------------------------------------------------------------


def architecture_of(gpu: Gpu) -> str:
    """``sm_90``, ``gfx942``: the architecture that code for a GPU is compiled for.

    Raises:
        UsageError: Triton makes no code for the GPU.
    """
    name = target_of(gpu)
    if name not in CHIPS:
        raise UsageError(f"no kernel can be compiled for {gpu.name}; there is {', '.join(CHIPS)}")
    return name


def is_architecture(text: str) -> bool:
    """Whether a word has the form of an architecture (``sm_90``, ``gfx942``), existing or not, and is not a GPU."""
    return re.fullmatch(r"sm_?[0-9]\w*|gfx\w*", text.lower()) is not None


def find_target(text: str) -> tuple[str, Gpu | None]:
    """An architecture, and the GPU if one was named, from a name such as ``h100``, ``sm_90`` or ``gfx942``.

    Raises:
        UsageError: there is no such GPU or architecture; suggests similar names.
    """
    if not is_architecture(text):
        gpu = load_gpu(text)
        return architecture_of(gpu), gpu
    name = re.sub(r"^sm_?", "sm_", text.lower())
    if name in CHIPS:
        return name, None
    offer = suggest(name, [*CHIPS, *gpu_names()], 3, listed=CHIPS)
    raise UsageError(f"no architecture named {text[:60]!r}; {offer}")
