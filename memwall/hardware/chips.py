"""What a multiprocessor of each compute capability holds, and how kernels use it. A new one is one row.

Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; granularities and partitions:
``cuda_occupancy.h``; AMD: LLVM's ``AMDGPUBaseInfo.cpp`` and the CDNA instruction set manuals. What libraries and
compilers make of a chip has its source with the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from memwall.core.graph import Pipe
from memwall.hardware.gpu import Gpu

KIB = 1024

#: rows and columns of what a block holds
Tile = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One multiprocessor (AMD: compute unit)."""

    #: as GPU files name it
    architecture: str
    warp_size: int = 32
    #: warps (AMD: waves) and blocks that may be resident
    warps: int = 64
    blocks: int = 32
    #: 32-bit registers, and the unit in which a warp gets them
    registers: int = 64 * KIB
    register_unit: int = 256
    #: parts with a warp scheduler and a register file of their own
    partitions: int = 4
    #: shared memory (AMD: LDS) of all blocks and the most that one may have; its allocation unit; what the driver
    #: reserves in each block
    shared_bytes: int
    shared_block_bytes: int
    shared_unit_bytes: int = 256
    shared_reserved_bytes: int = 0
    #: feature size that sets a FLOP's energy; GPUs of 12 nm, and AMD's, were fitted as 16
    energy_nm: float = 16.0
    #: SDPA backend of its own that PyTorch takes first (sdp_utils.cpp)
    attention: str = "flash"
    #: whether a torch that prefers cuDNN's attention does so here: compute capability 9.0 and 10.x
    cudnn_first: bool = False
    #: queries and keys of a server's attention tile (what fits the rows of short sequences best)
    serving_tile: Tile = (128, 64)
    #: TensorRT-LLM decodes groups of query heads by its XQA kernels (decoderXQARunner.cpp), not by trtllm-gen's
    xqa: bool = True
    #: two multiprocessors share one tile of a library's product
    paired_tiles: bool = False
    #: tiles of a batch of products on vector units, which fit NeuSight's bmm best on P100, P4, V100, T4 and A100; up to
    #: sm_89 the kernels of the A100. cuBLAS of CUDA 13 has smaller ones on an H200: 2048 products of 27x128x27 take
    #: 30 us, a sixth of what tiles of 128 x 128 take and as much as tiles of 64 x 32. Empty: the tiles of a product
    #: alone
    batched_tiles: tuple[Tile, ...] = ()
    #: rate on tensor cores of products whose rows do not begin at multiples of 16 bytes over the rate of others.
    #: Kernels that load element by element: bfloat16 matrices of 2055 to 2073 on an RTX 4090 reach 107 to 116 TFLOP/s
    #: in tiles of 128 x 128, of 2040 156 (PyTorch issue 181718). On an H100 the peak needs instructions of a warp
    #: group, which a smaller alignment deselects (cuBLASDx's guide); a warp's reach 62.9 % of an H800's peak, the mean
    #: of all types (arXiv 2501.12084, section 6.2 and table 7, the second paper of the authors of 2402.13499).
    #: Blackwell's data centre chips, which are not published, are taken to do the same; of AMD's nothing is known
    unaligned: float = 1.0
    #: share of its peak that a multiprocessor reaches in TF32 over the share in 16 bits: half of an A100's BERTs
    #: in TF32 (fastertransformer.csv, dle_pytorch.csv) ask for 0.75 to 0.95; of other chips nothing is known
    tf32: float = 1.0
    #: by which instructions tensor cores multiply: of a warp, of a warp group, of a block with its own memory. A chip
    #: with other ones runs other kernels
    products: str = "mma"
    #: FLOP per clock of a multiprocessor's tensor cores in half precision with float32 sums, where some boards have
    #: half of it; 0: none has
    tensor_flop_clk: int = 0
    #: tensor cores take channels in the slices that were fitted; later kernels need only 16 bytes of them
    #: (NVIDIA's guide to the performance of convolutional layers)
    sliced_channels: bool = False
    #: Triton compiles atomic additions, whose memory orders PTX has from 7.0 on, and products on tensor cores
    triton_atomics: bool = True
    triton_products: bool = True

    @property
    def threads(self) -> int:
        """Threads that may be resident."""
        return self.warps * self.warp_size


_LARGE = (128, 128)
#: factors of ``unaligned``
_UNALIGNED, _BY_WARP = 0.71, 0.629


def _early(
    architecture: str,
    shared_kib: int,
    block_kib: int,
    batched_tiles: tuple[Tile, ...] = ((128, 128), (64, 128), (64, 64)),
    **more: int | bool,
) -> Chip:
    """Before Ampere: no products in Triton, no flash attention."""
    return Chip(
        architecture=architecture,
        shared_bytes=shared_kib * KIB,
        shared_block_bytes=block_kib * KIB,
        attention="efficient",
        batched_tiles=batched_tiles,
        triton_products=False,
        unaligned=_UNALIGNED,
        **more,  # type: ignore[arg-type]
    )


def _nvidia(
    architecture: str,
    warps: int,
    blocks: int,
    shared_kib: int,
    energy_nm: float,
    batched_tiles: tuple[Tile, ...] = (_LARGE,),
    **more: Tile | bool | float | str,
) -> Chip:
    """From Ampere on; the driver takes 1 KiB of each block's shared memory."""
    return Chip(
        architecture=architecture,
        warps=warps,
        blocks=blocks,
        shared_bytes=shared_kib * KIB,
        energy_nm=energy_nm,
        shared_block_bytes=(shared_kib - 1) * KIB,
        shared_unit_bytes=128,
        shared_reserved_bytes=KIB,
        batched_tiles=batched_tiles,
        **{"unaligned": _UNALIGNED, **more},  # type: ignore[arg-type]
    )


def _amd(architecture: str, registers: int, unit: int, waves: int, shared_kib: int = 64, **more: int | str) -> Chip:
    """Four SIMDs of 64 lanes. A block of several waves takes one of 16 barriers."""
    return Chip(
        architecture=architecture,
        warp_size=64,
        warps=4 * waves,
        blocks=16,
        registers=4 * 64 * registers,
        register_unit=64 * unit,
        shared_bytes=shared_kib * KIB,
        shared_block_bytes=shared_kib * KIB,
        **{"shared_unit_bytes": 512, **more},  # type: ignore[arg-type]
    )


_PASCAL = ((128, 128), (64, 128))
_SHORT = (64, 32)
_SMALLER = (_LARGE, (64, 64), (64, 32))

#: Blackwell of data centers: B200 and B300 differ in nothing that is modeled of a chip
_TCGEN05 = _nvidia(
    "blackwell",
    64,
    32,
    228,
    5,
    _SMALLER,
    cudnn_first=True,
    products="tcgen05",
    paired_tiles=True,
    xqa=False,
    unaligned=_UNALIGNED * _BY_WARP,
)
#: compile target -> one multiprocessor of it; NVIDIA's from the oldest
CHIPS: Mapping[str, Chip] = {
    "sm_60": _early("pascal", 64, 48, _PASCAL, partitions=2, triton_atomics=False),
    "sm_61": _early("pascal", 96, 48, _PASCAL, triton_atomics=False),
    "sm_70": _early("volta", 96, 96, sliced_channels=True),
    "sm_75": _early("turing", 64, 64, warps=32, blocks=16, sliced_channels=True, tensor_flop_clk=1024),
    "sm_80": _nvidia("ampere", 64, 32, 164, 7, serving_tile=_SHORT, tf32=0.88),
    "sm_86": _nvidia("ampere", 48, 16, 100, 7, serving_tile=_SHORT, tensor_flop_clk=1024),
    "sm_89": _nvidia("ada", 48, 24, 100, 5, serving_tile=_SHORT, tensor_flop_clk=1024),
    "sm_90": _nvidia(
        "hopper", 64, 32, 228, 5, _SMALLER, cudnn_first=True, products="wgmma", unaligned=_UNALIGNED * _BY_WARP
    ),
    "sm_100": _TCGEN05,
    "sm_103": _TCGEN05,
    "sm_120": _nvidia("blackwell", 48, 24, 100, 5, _SMALLER, serving_tile=_SHORT, tensor_flop_clk=1024),
    "gfx908": _amd("cdna", 256, 4, 10, attention="math"),
    "gfx90a": _amd("cdna2", 512, 8, 8),
    "gfx942": _amd("cdna3", 512, 8, 8),
    "gfx950": _amd("cdna4", 512, 8, 8, 160, shared_unit_bytes=1280),
    # two SIMDs of 32 lanes, 16 waves and 1,536 registers a lane each; a workgroup processor has 128 KiB of LDS, half of
    # it a unit's
    "gfx1100": Chip(
        architecture="rdna3",
        warps=32,
        blocks=16,
        registers=2 * 32 * 1536,
        register_unit=32 * 24,
        partitions=2,
        shared_bytes=64 * KIB,
        shared_block_bytes=64 * KIB,
        shared_unit_bytes=1024,
        attention="math",
    ),
}
#: assumed for a machine without a compute capability
_UNKNOWN = Chip(architecture="", shared_bytes=64 * KIB, shared_block_bytes=48 * KIB)
#: share of a chip's rate below which a board's is halved
_HALVED_BELOW = 0.75
#: NVIDIA's architectures, the oldest first
GENERATIONS = tuple(dict.fromkeys(chip.architecture for name, chip in CHIPS.items() if name.startswith("sm_")))


def halves_tensor_cores(gpu: Gpu) -> bool:
    """Whether the board has half the rate of its chip's tensor cores with float32 sums, as GeForce boards do."""
    known, pipe = chip_of(gpu).tensor_flop_clk, Pipe("tensor", "float16")
    own = gpu.peak_flop_per_s.get(pipe, 0.0) / (gpu.sm_count * gpu.boost_clock_hz)
    return 0 < own < _HALVED_BELOW * known


def target_of(gpu: Gpu) -> str:
    """The compile target of a GPU (``sm_90``, ``gfx942``), whether or not it is a row of :data:`CHIPS`."""
    return _target(gpu.compute_capability)


def _target(capability: str | None) -> str:
    known = capability or ""
    return known if known.startswith("gfx") else f"sm_{known.replace('.', '')}"


def chip_of(gpu: Gpu) -> Chip:
    """The chip of a GPU: the row of its compute capability, else of the nearest lower one."""
    return _chip(gpu.compute_capability)


@lru_cache(maxsize=256)
def _chip(capability: str | None) -> Chip:
    target = _target(capability)
    number = target.removeprefix("sm_")
    if target in CHIPS or not number.isdecimal():
        return CHIPS.get(target, _UNKNOWN)
    lower = [name for name in CHIPS if name.startswith("sm_") and int(name[3:]) <= int(number)]
    return CHIPS[lower[-1]] if lower else CHIPS["sm_60"]
