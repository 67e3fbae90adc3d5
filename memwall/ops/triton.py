"""A launch of the user's own Triton kernel, ``triton.NAME``, whose cost :mod:`memwall.frontend.triton` reads of it.

- FLOPs are of elements that were loaded: what a mask leaves out is no work. A launch does the FLOPs of whole blocks.
- Bytes are the different ones that all programs together read and write, each once. What several operations read of one
  tensor are further passes: passes over what a program cannot hold are traffic, where L2 does not hold it. An atomic
  operation takes L2 as long as one of PyTorch's scatters does.
- A kernel whose products outweigh all else is priced as a matmul in tiles of its own; two products with an exponential
  between them, as fused attention; any other, as one generated kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from memwall.core.graph import Pipe
from memwall.ops import loops
from memwall.ops.base import Call, Cost
from memwall.ops.contraction import FOUR_BITS
from memwall.ops.indexing import ATOMIC_BYTES
from memwall.ops.launches import ROW_BYTES_ON_CHIP, Launch, Stream
from memwall.ops.product_launches import FusedAttention, Gemm, QuantisedGemm, TiledGemm, VectorGemm
from memwall.ops.quantised import kernels_of
from memwall.ops.registry import formula

#: name of the attribute of an op that holds its :class:`KernelWork`
WORK = "work"
#: sectors beyond what the elements fill, from which on they are counted
_SCATTERED = 1.25


@dataclass(frozen=True, slots=True)
class MemoryOperation:
    """One load, store or atomic operation of a kernel, over all programs: ``what`` is ``read``, ``write`` or
    ``atomic``, ``argument`` empty where the kernel loads the address. ``asked_bytes`` are of all programs,
    ``touched_bytes`` the different ones, ``sector_share`` the part of the sectors of L2 that a program asks for which
    it uses. ``by_data``: which elements it touches depends on data. ``itemsize``: bytes of an element."""

    argument: str
    what: str
    place: str
    asked_bytes: int
    touched_bytes: int
    sector_share: float = 1.0
    by_data: bool = False
    itemsize: float = 4


@dataclass(frozen=True, slots=True)
class BlockProduct:
    """One product of blocks, [m, k] with [k, n]: how often it runs over all programs, and multiply-adds of what was
    loaded."""

    m: int
    n: int
    k: int
    pipe: str
    itemsize: float
    runs: int
    multiply_adds: int


@dataclass(frozen=True, slots=True)
class KernelWork:
    """What a launch does, as its IR says.

    Attributes:
        grid: programs along x, y and z.
        ir: the name under which the kernel's IR is kept (:func:`memwall.frontend.triton.kept_ir`).
        flops: kind of work, pipe, FLOPs; the kinds are ``dot``, ``arithmetic``, ``transcendental``, ``reduction``,
            ``scan`` and ``atomic``.
        block_flops: pipe, FLOPs of whole blocks, masked elements included.
        instructions: integer operations on data.
        read_bytes, write_bytes: different ones, of all tensors.
        again_bytes: of what is read, bytes that another operation of the kernel reads too.
        trips: iterations of its loops, over all programs.
        notes: what was assumed.
        options: what else the launch tells the compiler, such as ``maxnreg``.
    """

    grid: tuple[int, int, int]
    num_warps: int
    num_stages: int
    num_ctas: int
    ir: str
    op_class: str
    flops: tuple[tuple[str, str, int], ...] = ()
    block_flops: tuple[tuple[str, int], ...] = ()
    instructions: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    again_bytes: int = 0
    accesses: tuple[MemoryOperation, ...] = ()
    products: tuple[BlockProduct, ...] = ()
    trips: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def programs(self) -> int:
        x, y, z = self.grid
        return x * y * z

    @property
    def pipes(self) -> Mapping[Pipe, int]:
        """FLOPs by pipe."""
        total: dict[Pipe, int] = {}
        for _, pipe, count in self.flops:
            total[Pipe.parse(pipe)] = total.get(Pipe.parse(pipe), 0) + count
        return total

    def attribute(self) -> tuple[tuple[str, Any], ...]:
        """As an op's attribute: names and values, tuples of what JSON holds."""
        return tuple((item.name, _plain(getattr(self, item.name))) for item in fields(self))


def _plain(value: Any) -> Any:
    if isinstance(value, (MemoryOperation, BlockProduct)):
        return tuple(getattr(value, item.name) for item in fields(value))
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def work_of(attributes: Mapping[str, Any]) -> KernelWork | None:
    """What a launch does, from an op's attributes; None where it could not be read."""
    said = attributes.get(WORK)
    if not said:
        return None
    found = {name: _tuples(value) for name, value in said}
    found["accesses"] = tuple(MemoryOperation(*each) for each in found["accesses"])
    found["products"] = tuple(BlockProduct(*each) for each in found["products"])
    return KernelWork(**found)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


@formula("other", "triton::*", loop=loops.opaque)
def launched_kernel(call: Call) -> Cost:
    """The work that was read; a kernel that could not be read is left unmodeled."""
    work = work_of(call.attributes)
    if work is None:
        raise LookupError("the kernel was not read")
    cost = call.cost(work.pipes, read_bytes=work.read_bytes, write_bytes=work.write_bytes)
    return call.cost(
        work.pipes, read_bytes=cost.read_bytes, write_bytes=cost.write_bytes, launches=(_launch(work, cost),)
    )


def _launch(work: KernelWork, cost: Cost) -> Launch:
    dots = sum(count for kind, _, count in work.flops if kind == "dot")
    if not dots or not work.products:
        return _stream(work, cost)
    if work.op_class == "attention":
        return _attention(work, cost)
    return _matmul(work, cost)


def _stream(work: KernelWork, cost: Cost) -> Stream:
    pipe = max(cost.flops, key=lambda each: cost.flops[each], default=None)
    reads = [each for each in work.accesses if each.what == "read" and not each.by_data]
    sectors = sum(int(each.asked_bytes / each.sector_share) for each in reads if each.sector_share)
    asked = sum(each.asked_bytes for each in reads)
    row_bytes = max((each.asked_bytes for each in reads), default=0) / max(work.programs, 1)
    again_bytes = work.again_bytes if row_bytes > ROW_BYTES_ON_CHIP else 0
    atomics = sum(each.asked_bytes / each.itemsize for each in work.accesses if each.what == "atomic")
    slower_bytes = max(int(ATOMIC_BYTES * atomics) - cost.read_bytes - cost.write_bytes, 0)
    return Stream(
        kind="generated",
        read_bytes=cost.read_bytes + again_bytes + slower_bytes,
        write_bytes=cost.write_bytes,
        second_pass_bytes=again_bytes,
        flops=sum(count for _, count in work.block_flops),
        pipe=pipe,
        instructions=work.instructions,
        thread_blocks=work.programs,
        sector_bytes=sectors if sectors > _SCATTERED * asked else 0,
    )


def _matmul(work: KernelWork, cost: Cost) -> Gemm:
    """A product of the kernel's own tiles in a column, each as deep as its loop."""
    widest = max(work.products, key=lambda each: each.runs * each.m * each.n * each.k)
    done = sum(each.runs * each.m * each.n * each.k for each in work.products)
    tiles = max(min(work.programs, widest.runs), 1)
    deep = max(round(done / (tiles * widest.m * widest.n)), 1)
    pipe = Pipe.parse(widest.pipe)
    said: dict[str, Any] = {
        "pipe": pipe, "batch": 1, "m": tiles * widest.m, "n": widest.n, "k": deep, "itemsize": widest.itemsize,
        "read_bytes": cost.read_bytes, "write_bytes": cost.write_bytes,
    }  # fmt: skip
    if pipe.engine == "vector":
        return VectorGemm(**said)
    if pipe.dtype == "fp4":
        return QuantisedGemm(
            **said, weight_itemsize=widest.itemsize, scheme=FOUR_BITS, kernel=kernels_of(FOUR_BITS).product
        )
    return TiledGemm(**said, tile=(widest.m, widest.n))


def _attention(work: KernelWork, cost: Cost) -> FusedAttention:
    """Scores and their sums of values, a program for each block of queries."""
    scores, values = work.products[:2]
    programs, pairs = max(work.programs, 1), scores.multiply_adds // scores.k
    return FusedAttention(
        pipe=Pipe.parse(scores.pipe),
        kernel="triton",
        backward=False,
        batch=1,
        heads=programs,
        kv_heads=programs,
        queries=scores.m,
        keys=max(scores.runs * scores.n // programs, 1),
        head_size=scores.k,
        value_size=values.n,
        pairs=max(pairs // programs, 1),
        itemsize=max(int(scores.itemsize), 1),
        read_bytes=cost.read_bytes,
        write_bytes=cost.write_bytes,
    )
