"""Fused attention as a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from memwall.graph import Pipe
from memwall.work.base import Constants, Work, constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Work):
    """Forward or backward of a fused kernel; ``pairs`` (query, key) pairs of one head have to be met.

    ``kernel`` is ``flash``, ``efficient`` or ``cudnn`` of PyTorch, or ``serving``: the op of an inference server,
    which first turns the queries and keys by their places and stores keys and values in its cache.
    """

    FAMILY: ClassVar[str] = "attention"
    pipe: Pipe
    kernel: str
    backward: bool
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_size: int
    value_size: int
    pairs: int
    itemsize: int

    @property
    def variant(self) -> str:
        if self.backward:
            return f"{self.kernel}_backward"
        if self.is_decode:
            return "decode"
        return "prefill" if self.kernel == "serving" else self.kernel

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        return {self.pipe: self.batch * self.heads * self.pairs * self.flops_per_pair}

    @property
    def is_decode(self) -> bool:
        """One new token against the keys before it, by a kernel that splits long sequences over blocks."""
        return self.queries == 1 < self.keys and self.kernel != "efficient" and not self.backward

    @property
    def query_bytes(self) -> int:
        """Bytes of the queries; what else is read are keys and values."""
        return self.batch * self.heads * self.queries * self.head_size * self.itemsize

    @property
    def flops_per_pair(self) -> int:
        """FLOPs of a (query, key) pair: two products, or five in the backward, which makes the scores again."""
        if self.backward:
            return 2 * (3 * self.head_size + 2 * self.value_size)
        return 2 * (self.head_size + self.value_size)


@dataclass(frozen=True, slots=True)
class AttentionConstants(Constants):
    """How fused attention kernels use a GPU. Clocks are those of one multiprocessor at the boost clock."""

    FAMILY: ClassVar[str] = "attention"
    VARIANTS: ClassVar[tuple[str, ...]] = (
        "flash", "prefill", "cudnn", "efficient", "flash_backward", "cudnn_backward", "efficient_backward", "decode",
    )  # fmt: skip
    FOREIGN: ClassVar[tuple[float, float]] = (0.78, 1.21)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.78, 2.34)
    # the loop over a tile's keys
    plateau: float = constant(0.6, 0.05, 1.5, "rate of a tile's products over that of large GEMMs")
    softmax_instructions: float = constant(6.0, 0.0, 40.0, "float32 instructions per score, not hidden by products")
    # around it
    block_clocks: float = constant(0.0, 0.0, 1e5, "clocks of a block before and after its loop")
    latency_s: float = constant(2e-6, 0.0, 1e-4, "seconds of dependent steps beyond the launch floor")
    stream: float = constant(0.85, 0.1, 1.0, "fraction of the DRAM bandwidth that large inputs reach")
    prepare_bytes_per_clock: float = constant(
        8.0, 0.1, 100.0, "bytes per clock that a multiprocessor moves in a server's pass before the kernel"
    )
    # decode: a block for each key head and its group of query heads, or one for each query head
    sm_bytes_per_clock: float = constant(24.0, 0.5, 100.0, "bytes per clock that a multiprocessor streams for groups")
    row_clocks: float = constant(1.5, 0.0, 100.0, "clocks per element of a block's query rows, filled up to 8")
    head_block_clocks: float = constant(2400.0, 0.0, 1e5, "block_clocks, a block for each query head")
    head_bytes_per_clock: float = constant(25.0, 0.5, 100.0, "sm_bytes_per_clock, a block for each query head")
    join_s: float = constant(5e-6, 0.0, 1e-4, "seconds to join the parts of a sequence that several blocks read")
