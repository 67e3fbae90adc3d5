"""What the time of a launch depends on, apart from the GPU: geometry by kernel family.

A family's constants are numbers of a GPU (:mod:`memwall.hardware.constants`), its model is in :mod:`memwall.perfmodel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from memwall.core.graph import Pipe
from memwall.hardware.constants import NO_ROWS

#: load latencies of a thread's turn that takes one load and updates running moments: the division by the count and the
#: two products that wait for it add half a latency (moments of 128 groups on A100, A10 and L40S: 1000 to 1140 clocks)
WELFORD_STEPS = 1.5
#: bytes of one row that a thread block holds between two passes: half of a multiprocessor's 256 KiB of registers, so
#: that two blocks can run at once
ROW_BYTES_ON_CHIP = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch. The bytes are what this kernel requests, including its second passes."""

    FAMILY: ClassVar[str] = ""
    read_bytes: int = 0
    write_bytes: int = 0
    #: consecutive kernels that do this work together; 0: it is part of the launch before it
    count: int = 1
    #: most thread blocks of the work; None: as many as the GPU can use
    thread_blocks: int | None = None

    @property
    def latencies(self) -> int:
        """Launch latencies that follow one another; the others are in the launch's own model."""
        return self.count

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        """FLOPs by the pipe that executes them; empty where bytes are all that counts."""
        return {}

    @property
    def spared_flops(self) -> int:
        """FLOPs that the fastest known algorithm saves."""
        return 0

    @property
    def flops_again(self) -> Mapping[Pipe, int]:
        """Of these, FLOPs of forward that backward does again: no work of the model."""
        return {}

    @property
    def variant(self) -> str:
        """Which of its family's tables of constants applies: a dtype or a kind."""
        raise NotImplementedError

    @property
    def shown_by(self) -> str:
        """The variant whose rows show kernels like it, and so tell the interval."""
        return self.variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Launch):
    """``rows`` rows of ``columns`` adjacent elements, each held by one warp or block. ``kind`` is the kernel:
    ``softmax_warp`` (PersistentSoftmax.cuh: up to 1024 columns in a warp's registers), ``softmax_block`` (SoftMax.cu:
    blocks of up to 1024 threads), ``layer_norm`` (layer_norm_kernel.cu: 128 threads, two passes) or ``block_norm``
    (vLLM's layernorm_kernels.cu: up to 1024 threads, an element each, two passes)."""

    FAMILY: ClassVar[str] = "rows"
    kind: str
    rows: int
    columns: int
    itemsize: int
    #: bytes that a row's second and third pass read again, over all rows; they come from L2 where it holds what moves
    #: meanwhile
    second_pass_bytes: int = 0
    #: rows that a multiprocessor has in flight
    rows_per_sm: int = 16

    @property
    def variant(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream(Launch):
    """``elements`` results, each computed from what is read at its position."""

    FAMILY: ClassVar[str] = "stream"
    #: what it does, where the model depends on it
    kind: str = ""
    elements: int = 0
    #: arithmetic, and the pipe that does it
    flops: int = 0
    pipe: Pipe | None = None
    #: integer instructions of the threads, summed over the elements: places of strided operands, conversions
    instructions: int = 0
    #: bytes of L2's sectors that it reads where neighbours of a result are apart in an operand; 0: whole sectors
    sector_bytes: int = 0
    #: random numbers that it draws, whose instructions are among these
    draws: int = 0
    #: dependent memory round trips of a thread that nothing hides
    round_trips: int = 0
    #: of ``read_bytes``, bytes that it read or wrote before: L2 serves them where it holds all that the kernel touches
    second_pass_bytes: int = 0
    #: load latencies, one after another, of a block's loop, which others' loops hide; the blocks, and their threads
    steps: float = 0
    blocks: int = 0
    block_threads: int = 512
    #: threads of it that the registers of a multiprocessor hold; 0: as many as the chip runs
    resident_threads: int = 0
    #: elements that a thread takes between two barriers of its block, in a grid that fills the GPU once; 0: no barriers
    barrier_elements: int = 0
    #: how the kernel goes over its data, in words
    about: str = ""
    #: whether kernels like it were measured on some GPU
    measured: bool = True

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        return {self.pipe: self.flops} if self.pipe is not None and self.flops else {}

    @property
    def variant(self) -> str:
        if not self.measured:
            return NO_ROWS
        # of servers' kernels and lookups of rows, which are not said to loop over their data, a GPU's own rows tell
        return "looped" if self.steps and self.about else "elementwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion(Stream):
    """Activations quantised for a product on the pipe ``product``; a GPU without it runs none."""

    product: Pipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction(Stream):
    """``outputs`` results of ``reduced`` elements each, by PyTorch's general kernel (Reduce.cuh): how many blocks share
    an output depends on the GPU."""

    outputs: int
    reduced: int
    #: neighbouring elements that go to as many outputs; 1: neighbours go to one output
    inner: int
    #: clocks of a thread to combine an element, where they are more than the few of an add
    combine_clk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk(Launch):
    """``blocks`` thread blocks that walk along a sequence, each step after the one before it. ``kind`` is the kernel
    (:class:`memwall.hardware.constants.WalkConstants`); its launch latencies are in its model."""

    FAMILY: ClassVar[str] = "walk"
    kind: str
    blocks: int
    #: steps of the longest block, and on average; the latter as the former where it is 0
    steps: float = 1
    mean_steps: float = 0
    #: blocks that a multiprocessor runs at once
    per_sm: int = 1
    #: passes that share the blocks and follow each other
    passes: int = 1
    #: neighbouring blocks that are one where two multiprocessors share a tile
    paired: int = 1
    #: matmuls of its blocks, padding included, and the pipe that does them
    flops: int = 0
    pipe: Pipe | None = None

    @property
    def latencies(self) -> int:
        return 0

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        return {self.pipe: self.flops} if self.pipe is not None and self.flops else {}

    @property
    def variant(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain(Launch):
    """FLOPs by pipe and bytes, without a shape."""

    FAMILY: ClassVar[str] = "plain"
    flops: Mapping[Pipe, int] = field(default_factory=dict, hash=False)
    spared_flops: int = 0

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        return self.flops

    @property
    def variant(self) -> str:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Plain):
    """A collective library's kernel: ``op`` of :data:`memwall.perfmodel.collective_algorithms.OPS` on ``nbytes``, as
    nccl-tests define the size, between the ranks of ``group`` (:mod:`memwall.core.ranks`)."""

    op: str
    nbytes: int
    group: str
