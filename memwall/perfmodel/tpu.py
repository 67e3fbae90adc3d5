"""A kernel on a TPU: tiles of weights in the matrix units, ops of the vector unit, and traffic between HBM and VMEM.

A matrix unit holds ``matrix_side`` squared weights and streams rows of activations past them, each row in the time that
its share of the peak gives. Weights, and the axis that is summed over, are padded to whole tiles. Fewer rows than
``load_rows`` take as long as that many, because the next weights have to be loaded (JAX scaling book, "How to think
about TPUs", appendix B). XLA holds the operand of which fewer tiles pass. Windows of operands are copied to VMEM, and
windows of results back, while others are computed. A kernel takes the longer of both, and the first window::

    compute_s = the longer of tiles x rows over the rate of the matrix units, and ops over the rate of the vector unit
    memory_s  = bytes that are not in VMEM at the bandwidth of HBM, others at VMEM's
    ends_s    = the first windows, which nothing overlaps

Arrays are padded in HBM (:func:`padding`): the last two axes to tiles of 8 x 128 numbers of 32 bits, or more rows of
narrower ones. XLA chooses which axes these are; the pair with the least padding is taken. A transposition costs its
traffic, since the cross-lane unit does it on the way. Each look-up by an index is a request of its own, and a core
makes one in a clock (appendix C there); rows hide that time, single numbers do not (:func:`requests`). Scaled
dot-product attention is the kernel of Pallas, in blocks.

Ops that PyTorch would launch one by one are priced as XLA would compile each; none waits for a host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar

from memwall.core.graph import Graph, Pipe, TensorSpec
from memwall.core.units import bandwidth, counted, duration, flop_rate, percent, size
from memwall.hardware.constants import TpuConstants
from memwall.hardware.gpu import Gpu, Tpu
from memwall.ops import Cost
from memwall.ops.launches import Launch, Rows, Stream
from memwall.ops.product_launches import Convolution, FusedAttention, Gemm, Recurrent
from memwall.perfmodel.base import Terms, kept_share

#: bytes of the windows of two operands and a result, which fill the pipeline: libtpu 0.0.42 adds [4096, 4096] of
#: bfloat16 in windows of 32 x 4096
WINDOW_BYTES = 3 * 32 * 4096 * 2
#: ops of the vector unit for a score of attention, or an element of a row that is normalised: scale, mask, maximum,
#: subtraction, exponential, sum, product, conversion
ROW_OPS = 8
#: ops for a random number: 20 rounds of Threefry, an add, two shifts, an or and an exclusive or each, give two
DRAW_OPS = 50
#: queries and keys of a block of Pallas' attention (MaxText's base.yml, ``sa_block_q`` and ``sa_block_kv``)
BLOCK = 512
#: products of its backward over the products of one pass over the scores: the kernels of the queries' gradient and of
#: keys' and values' both compute scores and their gradients (``sa_use_fused_bwd_kernel: False``): 7 in place of 5
BACKWARD = 7 / 5

_VECTOR = Pipe("vector", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorCoreWork(Launch):
    """What a TPU does for a launch. ``rows``: rows of activations that pass tiles of weights, over all tiles, as many
    as ``pipe`` takes; ``parts``: pieces of that work that units may do at once; ``ops``: ops of the vector unit;
    ``steps``: ops of a loop, one after another."""

    FAMILY: ClassVar[str] = "tpu"
    kind: str
    pipe: Pipe = _VECTOR
    rows: int = 0
    parts: int = 0
    ops: int = 0
    steps: int = 0
    #: rows or numbers that are looked up by their index
    requests: int = 0
    #: bytes that it reads again, which VMEM holds where they fit
    second_pass_bytes: int = 0
    flops: Mapping[Pipe, int] = field(default_factory=dict, hash=False)
    again: Mapping[Pipe, int] = field(default_factory=dict, hash=False)

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        return self.flops

    @property
    def flops_again(self) -> Mapping[Pipe, int]:
        return self.again

    @property
    def variant(self) -> str:
        return self.kind


# -- launches as a TPU runs them ---------------------------------------------------------------------------------------


def on_tensor_core(launch: Launch, gpu: Gpu) -> TensorCoreWork:
    """What a TPU does for a launch that is described for GPUs."""
    assert gpu.tpu is not None
    work = next((made for kind, made in _WORKS.items() if isinstance(launch, kind)), _counted)
    fields: dict[str, Any] = {"kind": "vector", **work(launch, gpu, gpu.tpu)}
    return TensorCoreWork(
        read_bytes=launch.read_bytes,
        write_bytes=launch.write_bytes,
        count=launch.latencies,
        flops=launch.pipe_flops,
        again=launch.flops_again,
        second_pass_bytes=getattr(launch, "second_pass_bytes", 0),
        **fields,
    )


def _counted(launch: Launch, gpu: Gpu, tpu: Tpu) -> dict[str, Any]:
    """FLOPs without a shape."""
    rows = {pipe: count / (2 * tpu.matrix_side**2) for pipe, count in launch.pipe_flops.items() if _matrix(pipe, gpu)}
    ops = sum(count for pipe, count in launch.pipe_flops.items() if pipe not in rows)
    if not rows:
        return {"ops": ops}
    return {"kind": "matrix", "pipe": next(iter(rows)), "rows": math.ceil(sum(rows.values())), "ops": ops}


def _matrix(pipe: Pipe, gpu: Gpu) -> bool:
    return gpu.ceiling_pipe(pipe).engine == "tensor"


def _product(pipe: Pipe, gpu: Gpu, tpu: Tpu, sizes: tuple[int, int, int, int]) -> dict[str, Any]:
    """``batch`` products of [m, k] with [k, n] (``sizes``), by the side that is held; on the vector unit where no other
    has the pipe."""
    batch, m, n, k = sizes
    if not _matrix(pipe, gpu):
        return {"ops": 2 * batch * m * n * k}
    rows, parts = min(_held(batch, passing, held, k, tpu) for passing, held in ((m, n), (n, m)))
    return {"kind": "matrix", "pipe": pipe, "rows": rows, "parts": parts}


def _held(batch: int, passing: int, held: int, k: int, tpu: Tpu) -> tuple[int, int]:
    """Rows that pass all tiles, and pieces of that work, which are no shorter than the time to load weights."""
    tiles = batch * -(-held // tpu.matrix_side) * -(-k // tpu.matrix_side)
    rows = max(-(-passing // tpu.sublanes) * tpu.sublanes, tpu.load_rows)
    return tiles * rows, tiles * max(rows // tpu.load_rows, 1)


def _gemm(launch: Gemm, gpu: Gpu, tpu: Tpu) -> dict[str, Any]:
    found = _product(launch.pipe, gpu, tpu, (launch.batch, launch.m, launch.n, launch.k))
    if launch.rows and "rows" in found:  # products of a batch that differ in their rows
        found["rows"] = math.ceil(found["rows"] * launch.rows / (launch.batch * launch.m))
    return found


def _convolution(launch: Convolution, gpu: Gpu, tpu: Tpu) -> dict[str, Any]:
    """A product over places, taps and channels; each channel alone is the vector unit's."""
    if launch.depthwise:
        return {"ops": sum(launch.pipe_flops.values())}
    places, taps = launch.images * math.prod(launch.places_out), math.prod(launch.kernel)
    m, n, k = places, launch.channels_out, launch.channels_in * taps
    sizes = {"forward": (m, n, k), "input": (m, k, n), "weight": (k, n, m)}[launch.role]
    return _product(launch.pipe, gpu, tpu, (launch.groups, *sizes))


def _attention(launch: FusedAttention, gpu: Gpu, tpu: Tpu) -> dict[str, Any]:
    """Scores by blocks of queries and keys: where a mask leaves out some, the blocks on its edge are whole."""
    masked = launch.pairs < launch.queries * launch.keys
    edge = launch.queries * min(BLOCK, launch.keys) // 2 if masked and not launch.whole_tiles else 0
    pairs = min(launch.pairs + edge, launch.queries * launch.keys)
    share = pairs / (launch.queries * launch.keys)
    heads, passes = launch.batch * launch.heads, BACKWARD if launch.backward else 1.0
    found = 0
    for width, products in zip(
        (launch.head_size, launch.value_size), (3, 2) if launch.backward else (1, 1), strict=True
    ):
        made = _product(launch.pipe, gpu, tpu, (heads, launch.queries, launch.keys, width))
        found += products * made.get("rows", 0)
    ops = ROW_OPS * heads * pairs * (2 if launch.backward else 1)
    return {"kind": "attention", "pipe": launch.pipe, "rows": math.ceil(found * share * passes), "ops": ops}


def _recurrent(launch: Recurrent, gpu: Gpu, tpu: Tpu) -> dict[str, Any]:
    """A loop over steps, in each of which the weights pass a step's rows."""
    loops = launch.steps * launch.layers * launch.directions
    rows, gates = max(launch.rows // launch.steps, 1), launch.gates * launch.hidden
    times = 1 + launch.of_weights
    made = _product(launch.pipe, gpu, tpu, (times * loops, rows, gates, launch.state + launch.inputs))
    return made | {"steps": loops}


def _stream(launch: Stream, gpu: Gpu, tpu: Tpu) -> dict[str, Any]:
    return {"ops": launch.flops + DRAW_OPS * launch.draws}


def _rows(launch: Rows, gpu: Gpu, tpu: Tpu) -> dict[str, Any]:
    return {"ops": ROW_OPS * launch.rows * -(-launch.columns // tpu.lanes) * tpu.lanes}


#: kind of launch → what of it a TPU does, as fields of :class:`TensorCoreWork`; others are counted FLOPs
_WORKS: Mapping[type[Launch], Callable[[Any, Gpu, Tpu], dict[str, Any]]] = {
    Gemm: _gemm, Convolution: _convolution, FusedAttention: _attention, Recurrent: _recurrent, Stream: _stream,
    Rows: _rows,
}  # fmt: skip


# -- the time ----------------------------------------------------------------------------------------------------------


def predict(launch: TensorCoreWork, gpu: Gpu, known: TpuConstants, resident_bytes: int = 0) -> Terms:
    """The terms of a launch with the constants given."""
    tpu = gpu.tpu
    assert tpu is not None
    units, peak = gpu.sm_count * tpu.matrix_units, gpu.peak(launch.pipe)
    matrix_s = launch.rows * 2 * tpu.matrix_side**2 / (peak * known.reached)
    if launch.parts:  # units that get less than others, or nothing
        matrix_s *= math.ceil(launch.parts / units) * units / launch.parts
    vector_s = launch.ops / gpu.peak(_VECTOR)
    again = launch.second_pass_bytes * kept_share(gpu, launch.bytes - launch.second_pass_bytes)
    resident = min(resident_bytes + again, launch.read_bytes)
    dram_bytes_per_s = gpu.dram_bytes_per_s * known.dram
    memory_s = (launch.bytes - resident) / dram_bytes_per_s + resident / gpu.l2_bytes_per_s
    compute_s = max(matrix_s, vector_s)
    fill_s = min(WINDOW_BYTES / dram_bytes_per_s, compute_s, memory_s)
    facts = {"matrix_s": matrix_s, "vector_s": vector_s, "memory_s": memory_s, "resident": resident, "fill_s": fill_s}
    asked_s = launch.requests / (gpu.sm_count * gpu.boost_clock_hz)
    return Terms.of(compute_s, memory_s, max(launch.steps * gpu.launch_overhead_s, asked_s), fill_s, facts)


def explain(launch: TensorCoreWork, gpu: Gpu, known: TpuConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    tpu, facts, said = gpu.tpu, terms.facts, []
    assert tpu is not None
    if launch.rows:
        of_peak = sum(launch.flops.values()) / (2 * launch.rows * tpu.matrix_side**2)
        said.append(
            f"matrix units {duration(facts['matrix_s'])} at {percent(known.reached, 0)} of"
            f" {flop_rate(gpu.peak(launch.pipe), launch.pipe)}, {percent(min(of_peak, 1.0), 0)} of it on numbers that"
            " are no padding"
        )
    if launch.ops:
        said.append(f"the vector unit {duration(facts['vector_s'])} for {launch.ops:.3g} ops")
    cached = f", {size(facts['resident'])} of them in VMEM," if facts["resident"] else ""
    if launch.requests:
        said.append(f"{counted(launch.requests, 'look-up')}, one in a clock of a core")
    said.append(
        f"{size(launch.bytes)}{cached} {duration(facts['memory_s'])} at {percent(known.dram, 0)} of"
        f" {bandwidth(gpu.dram_bytes_per_s)}"
    )
    return f"{'; '.join(said)}; the first windows {duration(facts['fill_s'])}."


# -- layouts -----------------------------------------------------------------------------------------------------------


def laid_out(cost: Cost, gpu: Gpu, more: float, asked: int = 0) -> Cost:
    """The cost of a kernel whose arrays take ``more`` times their bytes in memory, which its launches move, and that
    looks up so many rows or numbers, by its first launch."""
    launches = list(cost.launches)
    if more != 1.0:
        launches = [
            replace(each, read_bytes=round(each.read_bytes * more), write_bytes=round(each.write_bytes * more))
            for each in launches
        ]
    if asked and launches:
        launches[0] = replace(on_tensor_core(launches[0], gpu), requests=asked)
    return replace(cost, launches=tuple(launches))


#: how the names of ops begin that look up rows or numbers by an argument of integers, and how that is named
_INDEXED, _INDICES = ("index", "gather", "scatter", "embedding", "_embedding_bag", "take", "put"), ("index", "indices")


def requests(graph: Graph, op_ids: Sequence[int]) -> int:
    """Rows or numbers that ops look up; JAX's have vectors of indices in their last axis."""
    found = 0
    for op in (graph.ops[i] for i in op_ids):
        library, _, name = op.name.partition(".")
        if name.startswith(_INDEXED):
            axes = -1 if library == "lax" else None
            named = zip(op.arguments, op.inputs, strict=False)
            specs = [graph.values[i].spec for argument, i in named if argument in _INDICES]
            found += max((math.prod(spec.shape[:axes]) for spec in specs if "int" in spec.dtype), default=0)
    return found


def padding(arrays: Iterable[TensorSpec], gpu: Gpu) -> float:
    """Bytes of arrays in a TPU's memory over the bytes of their elements; 1 without any."""
    assert gpu.tpu is not None
    dense = padded = 0.0
    for spec in arrays:
        shape = tuple(size for size, stride in zip(spec.shape, spec.strides, strict=True) if size != 1 and stride)
        dense += math.prod(shape) * spec.itemsize
        padded += padded_elements(shape, gpu.tpu.tile(spec.itemsize)) * spec.itemsize
    return padded / dense if dense else 1.0


@lru_cache(maxsize=65536)
def padded_elements(shape: tuple[int, ...], tile: tuple[int, int]) -> int:
    """Elements of an array with its padding, in the layout that has the least: one axis fills lanes, another sublanes,
    in tiles of 1, 2, 4 or all of them."""
    rows, lanes = tile
    if len(shape) < 2:
        return -(-math.prod(shape) // lanes) * lanes if shape else 1
    count = math.prod(shape)
    if not count:
        return 0

    def padded(minor: int, second: int) -> int:
        height = min(rows, 1 << (second - 1).bit_length())
        return count // (minor * second) * -(-minor // lanes) * lanes * -(-second // height) * height

    pairs = ((shape[i], shape[j]) for i in range(len(shape)) for j in range(len(shape)) if i != j)
    return min(padded(*pair) for pair in pairs)
