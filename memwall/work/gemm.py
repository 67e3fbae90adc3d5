"""Matrix products as a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from memwall.graph import Pipe
from memwall.work.base import Constants, Work, constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(Work):
    """``batch`` products of [m, k] with [k, n] on one pipe; ``itemsize`` bytes per element of an operand."""

    FAMILY: ClassVar[str] = "gemm"
    pipe: Pipe
    batch: int
    m: int
    n: int
    k: int
    itemsize: int

    @property
    def variant(self) -> str:
        return self.pipe.dtype

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        return {self.pipe: self.flops}

    @property
    def flops(self) -> int:
        """FLOPs, 2 for each multiply-add."""
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class GemmConstants(Constants):
    """How a library's matrix kernels use a GPU; clocks at the boost clock, bytes per clock of one SM."""

    FAMILY: ClassVar[str] = "gemm"
    VARIANTS: ClassVar[tuple[str, ...]] = ("bfloat16", "float16", "tf32", "fp8", "int8", "float32", "float64")
    FOREIGN: ClassVar[tuple[float, float]] = (0.84, 1.25)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.75, 1.26)
    plateau: float = constant(0.9, 0.3, 1.1, "fraction of its peak that an SM reaches inside a tile")
    sustained: float = constant(0.65, 0.2, 2.0, "fraction of the peak that 1 W per TFLOP/s of float16 allows")
    load: float = constant(45.0, 4.0, 400.0, "bytes of operands that an SM loads in a clock")
    depth_clocks: float = constant(6.0, 0.0, 30.0, "clocks that a lone tile takes for 2 bytes of a row")
    rounding: float = constant(0.7, 0.0, 1.0, "share of a partial wave's idle time that is lost")
    tile_clocks: float = constant(2500.0, 0.0, 9000.0, "clocks to begin and to end a tile of 128 x 256")
    store: float = constant(10.0, 1.0, 64.0, "bytes of results that an SM writes in a clock")
    dram: float = constant(0.85, 0.4, 1.0, "fraction of the DRAM bandwidth that operands stream at")
    split_s: float = constant(2.5e-6, 0.0, 2e-5, "seconds to add the parts of a product split along k")
    start_s: float = constant(0.0, 0.0, 2e-5, "seconds of the shortest product beyond an empty kernel")
