"""Kernels that stream: elementwise ops, copies, gathers, reductions, and whatever has no family of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from memwall.graph import Pipe
from memwall.work.base import Constants, Work, constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream(Work):
    """``elements`` results, each made of what is read at its place."""

    FAMILY: ClassVar[str] = "stream"
    #: what it does, where something goes by it
    kind: str = ""
    elements: int = 0
    #: arithmetic, and the pipe that does it
    flops: int = 0
    pipe: Pipe | None = None
    #: integer instructions of the threads, summed over the elements: places of strided operands, conversions
    instructions: int = 0
    #: memory round trips that a thread makes one after another with no others to hide them
    round_trips: int = 0
    #: turns of a block's loop, each of which waits for what it loads while other blocks' turns go on, and the blocks
    steps: int = 0
    blocks: int = 0
    #: thread blocks that the work falls into at most; None: as many as the GPU can use
    programs: int | None = None

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        return {self.pipe: self.flops} if self.pipe is not None and self.flops else {}

    @property
    def variant(self) -> str:
        return "elementwise"


@dataclass(frozen=True, slots=True)
class StreamConstants(Constants):
    """How streaming kernels use a GPU: the fractions of the DRAM bandwidth that large inputs reach, by what share of
    the bytes is written, and what a small input waits for."""

    FAMILY: ClassVar[str] = "stream"
    VARIANTS: ClassVar[tuple[str, ...]] = ("elementwise",)
    FOREIGN: ClassVar[tuple[float, float]] = (0.89, 1.2)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.88, 1.2)
    read: float = constant(0.92, 0.3, 0.98, "fraction of the DRAM bandwidth where all is read")
    triad: float = constant(0.85, 0.3, 0.98, "fraction of the DRAM bandwidth where a third is written")
    copy: float = constant(0.85, 0.3, 0.98, "fraction of the DRAM bandwidth where half or more is written")
    latency_s: float = constant(0.5e-6, 0.0, 1e-5, "seconds from the start of a kernel to the plateau and back")
