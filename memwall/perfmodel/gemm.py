"""How matmuls use a GPU: the tile and the split along k that a library would choose, and what they cost.

A matmul is cut into tiles, one tile to an SM at a time, and may be split along k where it has few tiles. For each tile
and split of the menu, which has one where a kernel's tile is known::

    rounds   = waves of blocks over the SMs, a partial wave counted as a whole one by ``rounding``
    pipe_s   = rounds x (arithmetic of a block at ``plateau`` of an SM's peak + ``tile_clocks``)
    load_s   = rounds x (operands of a block at ``load`` bytes per clock + ``tile_clocks``)
    depth_s  = steps along k x ``depth_clocks``: the load latency of a lone tile
    stream_s = DRAM bytes at ``dram`` of the bandwidth, or results at ``store`` bytes per clock and SM
    time_s   = hypot(longest of pipe, load and depth; stream_s), at least the FLOPs at the rate that power allows,
               + ``split_s`` and the traffic of the partial sums where k is split + ``start_s``

and the shortest is taken. The hypotenuse models the poor overlap where both take equally long. ``pipe`` and the power
are arithmetic, DRAM bytes are traffic, and ``load``, ``depth``, ``store``, ``split`` and ``start`` are latency.

An operand whose rows do not begin at multiples of 16 bytes can be copied neither by TMA nor 16 bytes at a time:
``plateau`` falls to the share that the chip's other kernels reach (:mod:`memwall.hardware.chips`), as it does in TF32.

Quantised matmuls (:mod:`memwall.ops.quantised`) run so too, each kernel with constants of its own: bytes are of
the stored operands, scales included; ``plateau``, ``load`` and ``tile`` hold what dequantisation and scaling cost.
Matmuls of scaled operands are not split along k.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil, hypot, sqrt
from typing import NamedTuple

from memwall.core.graph import ITEMSIZE, Pipe
from memwall.core.units import bandwidth, counted, duration, flop_rate, percent, size
from memwall.hardware.chips import chip_of, halves_tensor_cores
from memwall.hardware.constants import GemmConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.product_launches import Gemm, QuantisedGemm, TiledGemm
from memwall.ops.quantised import SCHEMES, kernels_of
from memwall.perfmodel.base import Terms, kept_share, traffic_s

#: rows and columns of a block's result, the largest first; the shorter side goes along the shorter of m and n
_TILES = ((128, 256), (128, 128), (64, 128), (64, 64), (16, 128), (32, 64), (16, 64), (32, 32))
#: the pipe whose peak a GPU's power is compared with
_HALF = Pipe("tensor", "float16")
#: where a board halves the rate of tensor cores, loads and instructions hide behind arithmetic: the share of the peak
#: inside a tile, dtypes whose sums are float32, and how much more of the peak its power sustains. cuBLASLt's 179
#: TFLOP/s on an RTX 4090 are 1.0 of its peak at the clock that it runs at, where an L40S by its power would sustain
#: 0.94 of it (gemm_peak_measured.csv)
_HALVED_PLATEAU, _HALVED, _HALVED_POWER = 0.97, frozenset(("float16", "bfloat16", "tf32", "fp8")), 1.1
#: where two SMs hold one tile between them
_PAIRED_TILES = ((256, 256), *_TILES)
_AREA = 128 * 256
#: bytes per row of a block's step along k, and the fewest elements of k that a block has
_STEP_BYTES, _LEAST_DEPTH = 64, 128
#: waves from which on a smaller tile gains nothing, unless it fills the shorter side up to less, of a multiple of this
_ENOUGH_WAVES, _NARROW = 16, 32
#: bytes of a partial sum: written once, read once
_PARTIAL_BYTES = 8


class TileChoice(NamedTuple):
    """A tile and a split along k, and the seconds that they take; ``waves`` are blocks per SM, ``rounds`` as run."""

    total_s: float
    tile: tuple[int, int]
    split: int
    blocks: int
    waves: float
    rounds: float
    pipe_s: float
    load_s: float
    depth_s: float
    #: of the pass that adds the parts
    split_s: float


@lru_cache(maxsize=4096)
def predict(launch: Gemm, gpu: Gpu, known: GemmConstants, resident_bytes: int = 0) -> Terms:
    """The terms of a launch with the constants given."""
    # results stay in L2 where all that the matmul touches fits
    dram_bytes: float = launch.read_bytes - min(resident_bytes, launch.read_bytes)
    dram_bytes += launch.write_bytes * (1 - kept_share(gpu, launch.bytes))
    stored_s = launch.write_bytes / (known.store * gpu.boost_clock_hz * gpu.sm_count)
    moved_s = traffic_s(gpu, dram_bytes, 0, known.dram)
    stream_s = max(moved_s, stored_s)
    held_s = power_s(launch.flops, gpu, launch.pipe, known)
    best = _choose(launch, gpu, known, stream_s, held_s)
    facts = best._asdict() | {"held_s": held_s, "stored_s": stored_s, "dram_bytes": dram_bytes}
    latency_s = max(best.load_s, best.depth_s, stored_s) + best.split_s + known.start_s
    return Terms(max(best.pipe_s, held_s), moved_s, latency_s, best.total_s, known.start_s, facts)


def dequantised(launch: QuantisedGemm, gpu: Gpu) -> QuantisedGemm:
    """The matmul as the GPU runs it: without the scheme's pipe, of 16-bit activations and dequantised weights."""
    pipe = gpu.ceiling_pipe(launch.pipe)
    if pipe == launch.pipe:
        return launch
    kernel = kernels_of(SCHEMES[launch.scheme].dequantised).product
    return replace(launch, pipe=pipe, itemsize=ITEMSIZE["float16"], kernel=kernel)


def power_s(flops: float, gpu: Gpu, pipe: Pipe, known: GemmConstants) -> float:
    """Seconds of so many FLOPs on tensor cores for which the GPU's power lasts."""
    return flops / (gpu.peak(pipe) * _sustained(gpu, known))


def _sustained(gpu: Gpu, known: GemmConstants) -> float:
    """Fraction of the peak that the GPU's power sustains on all SMs. A FLOP's energy grows with the voltage squared, so
    about with the square of the rate: the rate grows with the square root of the power."""
    peak = gpu.peak(_HALF)
    watts = gpu.tdp_w / (peak / 1e12) if gpu.tdp_w else 1.0
    return min(known.sustained * (_HALVED_POWER if halves_tensor_cores(gpu) else 1.0) * sqrt(watts), 1.0)


def unhalved(reached: float, gpu: Gpu, pipe: Pipe) -> float:
    """The share of its peak that a multiprocessor reaches where one with whole tensor cores reaches ``reached``."""
    return min(2 * reached, _HALVED_PLATEAU) if halves_tensor_cores(gpu) and pipe.dtype in _HALVED else reached


def plateau(launch: Gemm, gpu: Gpu, known: GemmConstants) -> float:
    """Share of its peak that a multiprocessor reaches inside a tile."""
    chip, reached = chip_of(gpu), unhalved(known.plateau, gpu, launch.pipe)
    return reached * (1.0 if launch.aligned else chip.unaligned) * (chip.tf32 if launch.pipe.dtype == "tf32" else 1.0)


def _choose(launch: Gemm, gpu: Gpu, known: GemmConstants, stream_s: float, held_s: float) -> TileChoice:
    """The shortest of the menu."""
    short, long = min(launch.m, launch.n), max(launch.m, launch.n)
    results, k, sms, clock = launch.batch * launch.m * launch.n, launch.k, gpu.sm_count, gpu.boost_clock_hz
    math_s = 2 * sms / (gpu.peak(launch.pipe) * plateau(launch, gpu, known))  # of a multiply-add in one SM
    byte_s = 1 / (known.load * clock)
    step = max(int(_STEP_BYTES // launch.itemsize), 1)
    short_bytes, long_bytes = launch.side_itemsizes
    step_s = known.depth_clocks * launch.itemsize / 2 / clock
    partial_s = _PARTIAL_BYTES * results / gpu.l2_bytes_per_s
    balance = sqrt(step_s * k / partial_s)  # the split whose wait along k equals its time for partial sums
    least_short = ceil(short / _NARROW) * _NARROW
    best: TileChoice | None = None
    for tile in _menu(launch, gpu):
        rows, columns = tile
        tiles = ceil(short / rows) * ceil(long / columns) * launch.batch
        ends_s = known.tile_clocks * sqrt(rows * columns / _AREA) / clock
        fill = int(min(sms / tiles, balance, k / _LEAST_DEPTH))
        for split in {1, 2, 4, fill} if launch.splits else (1,):
            if split < 1 or (split > 1 and k < split * _LEAST_DEPTH):
                continue
            blocks, depth = tiles * split, ceil(k / split / step) * step
            waves = blocks / sms
            rounds = known.rounding * ceil(waves) + (1 - known.rounding) * max(waves, 1.0)
            pipe_s = rounds * (depth * rows * columns * math_s + ends_s)
            load_s = rounds * (depth * (rows * short_bytes + columns * long_bytes) * byte_s + ends_s)
            depth_s = depth * step_s
            total_s = max(hypot(max(pipe_s, load_s, depth_s), stream_s), held_s)
            split_s = known.split_s + split * partial_s if split > 1 else 0.0
            total_s += split_s
            if best is None or total_s < best.total_s:
                best = TileChoice(total_s, tile, split, blocks, waves, rounds, pipe_s, load_s, depth_s, split_s)
        if tiles > _ENOUGH_WAVES * sms and ceil(short / rows) * rows == least_short:
            break
    assert best is not None
    return best


def _menu(launch: Gemm, gpu: Gpu) -> tuple[tuple[int, int], ...]:
    """The tiles that a kernel may have, their first side along the shorter of m and n."""
    if isinstance(launch, TiledGemm):
        rows, columns = launch.tile
        return ((rows, columns) if launch.m <= launch.n else (columns, rows),)
    return _PAIRED_TILES if chip_of(gpu).paired_tiles else _TILES


def explain(launch: Gemm, gpu: Gpu, known: GemmConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    facts = terms.facts
    name = "x".join(map(str, (launch.m, launch.n, launch.k)))
    if launch.batch > 1:
        name = f"{launch.batch} times {name}"
    if not facts:
        return f"{name}: {duration(terms.compute_s)} of arithmetic against {duration(terms.memory_s)} of memory."
    rows, columns = launch.tile if isinstance(launch, TiledGemm) else facts["tile"]
    blocks = f"{name} in {rows}x{columns} tiles"
    if facts["split"] > 1:
        blocks += f", k split in {facts['split']}"
    used = launch.flops / (2 * facts["blocks"] * rows * columns * _depth(launch, facts["split"]))
    waves = (
        f"{counted(facts['blocks'], 'block')} on {gpu.sm_count} SMs = {facts['waves']:.3g} waves, "
        f"run as {facts['rounds']:.3g}, {percent(used, 0)} of the tiles' FLOPs are needed"
    )
    return f"{blocks}: {waves}; {_wall(launch, gpu, known, terms)}{_as_stored(launch, gpu)}."


def _as_stored(launch: Gemm, gpu: Gpu) -> str:
    """What becomes of weights that are narrower than the arithmetic."""
    if not isinstance(launch, QuantisedGemm) or launch.weight_itemsize >= launch.itemsize:
        return ""
    text = f"; weights of {8 * launch.weight_itemsize:.0f} bits are dequantised in the kernel, for {launch.pipe}"
    asked = SCHEMES[launch.scheme].pipe
    return text if asked == launch.pipe.dtype else f"{text}, as {gpu.name} has no {asked} tensor cores"


_UNALIGNED = ", since rows of an operand do not begin at multiples of 16 bytes"


def _depth(launch: Gemm, split: int) -> int:
    """Elements of k that a block multiplies, its last step full."""
    step = max(int(_STEP_BYTES // launch.itemsize), 1)
    return ceil(launch.k / split / step) * step


def _wall(launch: Gemm, gpu: Gpu, known: GemmConstants, terms: Terms) -> str:
    """What limits the launch, and what arithmetic, memory and latency would take."""
    facts = terms.facts
    peak = flop_rate(gpu.peak(launch.pipe), launch.pipe)
    ends = f"{duration(known.start_s)} to start"
    if facts["split_s"]:
        ends += f" and {duration(facts['split_s'])} to add the parts of k"
    walls = {
        "compute": {
            "held_s": f"its power limit of {gpu.tdp_w:.0f} W holds the chip at {percent(_sustained(gpu, known), 0)} of "
            f"{peak}",
            "pipe_s": f"inside a tile an SM reaches {percent(plateau(launch, gpu, known), 0)} of its share of {peak}"
            f"{_UNALIGNED if not launch.aligned else ''}",
        },
        "bandwidth": {
            "dram_bytes": f"{size(facts['dram_bytes'])} go through DRAM at {percent(known.dram, 0)} of "
            f"{bandwidth(gpu.dram_bytes_per_s)}"
        },
        "latency": {
            "load_s": f"an SM loads {known.load:.3g} bytes of operands a clock, {ends}",
            "depth_s": f"a tile alone on its SM waits {known.depth_clocks:.3g} clocks for 2 bytes of each row, {ends}",
            "stored_s": f"an SM stores {known.store:.3g} bytes of results a clock, {ends}",
        },
    }[terms.wall]
    wall = walls[max(walls, key=lambda key: float(facts[key]))]
    arithmetic, memory = duration(terms.compute_s), duration(terms.memory_s)
    return f"{wall}; {arithmetic} of arithmetic against {memory} of memory and {duration(terms.latency_s)} of latency"
