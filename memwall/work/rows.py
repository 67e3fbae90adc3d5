"""Kernels that go over rows: normalisations and softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memwall.work.base import Constants, Work, constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Work):
    """``rows`` rows of ``columns`` adjacent elements, each held by one warp or block.

    ``kind`` is the kernel: ``softmax_warp`` (PersistentSoftmax.cuh: up to 1024 columns in a warp's registers),
    ``softmax_block`` (SoftMax.cu: blocks of up to 1024 threads), ``layer_norm`` (layer_norm_kernel.cu: 128 threads,
    two passes) or ``block_norm`` (vLLM's layernorm_kernels.cu: up to 1024 threads, an element each, two passes).
    """

    FAMILY: ClassVar[str] = "rows"
    kind: str
    rows: int
    columns: int
    itemsize: int
    #: bytes that a row's second and third pass read again, over all rows; they come from L2 where it holds what moves
    #: meanwhile
    again_bytes: int = 0
    #: rows that a multiprocessor works on at once
    rows_per_sm: int = 16

    @property
    def variant(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class RowsConstants(Constants):
    """How row kernels use a GPU. Clocks are a multiprocessor's of four warp schedulers: of the boost clock, all its
    threads at work. The bandwidth is a share of a triad's, so that both hold on boards of other sizes too."""

    FAMILY: ClassVar[str] = "rows"
    VARIANTS: ClassVar[tuple[str, ...]] = ("softmax_block", "softmax_warp", "layer_norm", "block_norm")
    FOREIGN: ClassVar[tuple[float, float]] = (0.81, 1.19)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.79, 1.69)
    plateau: float = constant(0.85, 0.3, 1.2, "share of the bandwidth of a triad that large inputs reach")
    row_clk: float = constant(150.0, 0.0, 4000.0, "clocks of a multiprocessor for a row: its start and its joins")
    column_clk: float = constant(0.5, 0.0, 3.0, "clocks of a multiprocessor for an element of a row")
    cold_clk: float = constant(
        0.0, 0.0, 2.0, "clocks more for an element that comes from DRAM: waits that nothing hides"
    )
    unaligned: float = constant(1.0, 1.0, 2.5, "column_clk's factor where rows do not begin at whole 16 bytes")
    latency_s: float = constant(2e-6, 0.0, 2e-5, "seconds from a kernel's start to its first full wave and back")
    step_s: float = constant(0.0, 0.0, 2e-6, "seconds more for each 1024 columns of a row, one after another")
