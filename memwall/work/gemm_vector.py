"""Matrix products in full precision: float32 and float64, which NVIDIA's libraries run outside the tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memwall.work.base import Constants, constant
from memwall.work.gemm import Gemm


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorGemm(Gemm):
    """``batch`` products of [m, k] with [k, n] by multiply-adds of single threads, or on AMD's matrix cores."""

    FAMILY: ClassVar[str] = "gemm_vector"
    #: a bias is added in the same launch
    bias: bool = False


@dataclass(frozen=True, slots=True)
class VectorGemmConstants(Constants):
    """How a library's float32 and float64 products use a GPU."""

    FAMILY: ClassVar[str] = "gemm_vector"
    VARIANTS: ClassVar[tuple[str, ...]] = ("float32", "float64")
    FOREIGN: ClassVar[tuple[float, float]] = (0.84, 1.55)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.74, 2.03)
    plateau: float = constant(0.92, 0.2, 1.05, "fraction of the peak of 128x128 tiles at the boost clock")
    flop_per_joule: float = constant(5.3e10, 1e10, 1e12, "FLOP that a joule pays for on a chip of 16 nm")
    burst_s: float = constant(5e-4, 0.0, 1e-1, "seconds until it does")
    batched: float = constant(1.0, 0.5, 1.3, "rate of a batch over that of a product alone")
    biased: float = constant(1.0, 0.5, 1.3, "rate with a bias added (cuBLASLt) over that without")
    operand_load: float = constant(5.0, 0.0, 40.0, "multiply-adds that loading an operand's element takes")
    step_clocks: float = constant(450.0, 50.0, 4000.0, "clocks of a lone block's step of 8 in k")
    tile_clocks: float = constant(2500.0, 0.0, 20000.0, "clocks to fill a wave and store its results")
    split_s: float = constant(4e-6, 0.0, 2e-5, "seconds to add the parts of a product whose k is split")
    dram: float = constant(0.6, 0.2, 1.0, "fraction of the DRAM bandwidth that operands and results reach")
    reach_bytes: float = constant(9e7, 1e6, 1e10, "operand rows in flight, end to end, that the TLB reaches")
    walk: float = constant(0.0, 0.0, 10.0, "how much longer a step takes where every row misses the TLB")
    conflict: float = constant(0.0, 0.0, 10.0, "how much longer where rows lie a multiple of 128 KiB apart")
    deep: float = constant(1.0, 0.2, 1.2, "rate of a batch of deep products with small results, over others")
