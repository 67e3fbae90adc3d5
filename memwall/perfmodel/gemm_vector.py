"""How full-precision matmuls use a GPU: tiles of the result on vector lanes, without tensor cores.

A block makes one tile of the result in steps of 8 along k; ``ceil(tiles / SMs)`` of them run one after another on the
fullest multiprocessor. Partial tiles cost as much as whole ones. The library's tiles differ by GPU:
cuBLAS runs batched matmuls of any size in 128x128 tiles on an A100 (2048 clocks for 8 of k, whatever m and n), and
with 128 columns on Pascal (NeuSight bmm). Arithmetic and memory overlap by the hypotenuse: calls over 150 us on V100,
P100, A100 and T4 take 1.3 to 2.1 times the longer of the two where these are alike, else 1.02 to 1.07 (NeuSight).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, hypot
from typing import NamedTuple

from memwall.core.graph import Pipe
from memwall.core.units import counted, duration, percent
from memwall.hardware.chips import Tile, chip_of
from memwall.hardware.constants import VectorGemmConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.product_launches import Gemm, VectorGemm
from memwall.perfmodel.base import Terms, traffic_s

_STEP = 8
_LARGE: Tile = (128, 128)
#: results that the registers of a multiprocessor hold: two blocks of the largest tile
_RESIDENT_RESULTS = 2 * 128 * 128
#: parts that k may be split into where the tiles are less than a wave, the least k of a part, the most waves
_SPLITS, _LEAST_PART, _MOST_WAVES = (1, 2, 4, 8, 16, 32, 64), 64, 2
#: below this many large tiles of result, rocBLAS runs deep batched matmuls with other kernels: an MI210 does
#: 12 TFLOP/s of 96x384 by 384x384, and 22 of 384x96 by 96x384, which is as many multiply-adds (NeuSight bmm)
_FEW_TILES = 8
#: rate of matmuls of bfloat16 that becomes float32 in the inner loop, relative to float32's: cuBLAS does 9.6 TFLOP/s
#: of bfloat16 and 14.0 of float32 on a V100 (2048 rows, lablup/mlxcel pull request 1656), XLA half on a T4 (JAX issue
#: 21212). float16 takes no longer than float32 on a P100 (DeepBench, pseudo_fp16)
_CONVERTED = 9.6 / 14.0
#: rows of the operands that the blocks of a wave step along together, and the distance at which channels repeat
_ROWS_IN_FLIGHT, _CHANNEL_TURN_BYTES = 2048, 128 * 1024

#: FLOP per joule grow with 16 nm over the feature size to this power: 53 GFLOP on GPUs of 16 and 12 nm (T4,
#: P4: NeuSight), 128 on one of 5 nm (RTX 4090: gemm_peak_measured.csv), 131 on another (L4: NeuSight)
_REFERENCE_NM, _ENERGY_EXPONENT = 16, 0.75
#: tiles (rows, columns of the result) of a matmul alone
_LONE: tuple[Tile, ...] = (_LARGE, (128, 64), (64, 128), (64, 64), (128, 32), (32, 128))


def on_vector_units(launch: Gemm, pipe: Pipe) -> VectorGemm:
    """The same matmul where no tensor cores serve its dtype."""
    return VectorGemm(
        pipe=pipe,
        converts=launch.pipe.dtype == "bfloat16" and pipe.dtype == "float32",
        batch=launch.batch,
        m=launch.m,
        n=launch.n,
        k=launch.k,
        itemsize=launch.itemsize,
        read_bytes=launch.read_bytes,
        write_bytes=launch.write_bytes,
    )


class VectorPlan(NamedTuple):
    """One way to run a matmul, and its seconds without memory."""

    tile: Tile
    #: parts that k is split into
    splits: int
    blocks: int
    #: blocks that the fullest multiprocessor runs
    rounds: int
    compute_s: float
    #: the steps of a lone block, one after another
    steps_s: float
    #: to fill and store
    ends_s: float


class _OnGpu(NamedTuple):
    """What the plans of one matmul have in common on a GPU."""

    sm_count: int
    clock_hz: float
    #: of one multiprocessor at the GPU's peak, TLB misses of rows included
    multiply_add_s: float
    #: sustained fraction of the peak
    reached: float
    known: VectorGemmConstants


def predict(launch: VectorGemm, gpu: Gpu, known: VectorGemmConstants, resident_bytes: int = 0) -> Terms:
    """The terms of a launch with the constants given."""
    resident = min(resident_bytes, launch.read_bytes)
    resident += launch.write_bytes if resident else 0  # with its operands in L2, a launch leaves its results there
    memory_s = traffic_s(gpu, launch.bytes - resident, resident)
    rate = gpu.peak(launch.pipe) * _kernel(launch, known)
    multiply_add_s = 2 * gpu.sm_count / rate * _row_misses(launch, known)
    on = _OnGpu(gpu.sm_count, gpu.boost_clock_hz, multiply_add_s, sustained(gpu, launch.pipe, known), known)
    return min((_overlapped(plan, memory_s) for plan in _plans(launch, gpu, on)), key=lambda terms: terms.time_s)


def _overlapped(plan: VectorPlan, memory_s: float) -> Terms:
    body_s = hypot(max(plan.compute_s, plan.steps_s), memory_s)
    return Terms(plan.compute_s, memory_s, plan.steps_s + plan.ends_s, body_s, plan.ends_s, {"plan": plan})


def explain(launch: VectorGemm, gpu: Gpu, known: VectorGemmConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    plan: VectorPlan = terms.facts["plan"]
    times = f"{launch.batch} times " if launch.batch > 1 else ""
    spent = f"{duration(terms.compute_s)} of arithmetic against {duration(terms.memory_s)} of memory"
    if min(launch.m, launch.n) == 1:
        return f"{times}{launch.m}x{launch.n}x{launch.k}, a matrix times a vector, streams its operands once: {spent}."
    parts = f", k in {plan.splits} parts" if plan.splits > 1 else ""
    useful = launch.batch * launch.m * launch.n / (plan.blocks // plan.splits * plan.tile[0] * plan.tile[1])
    reached = sustained(gpu, launch.pipe, known)
    share = reached * _kernel(launch, known)
    limit = f", held by its power limit of {_power_w(gpu):.0f} W" if reached < known.plateau else ""
    if known.deep < 1 and _deep(launch):
        limit += f", {percent(known.deep, 0)} of the usual for so deep a matmul"
    if launch.converts:
        limit += f", {percent(_CONVERTED, 0)} of the usual for operands that are converted to float32"
    return (
        f"{times}{launch.m}x{launch.n}x{launch.k} in {plan.tile[0]}x{plan.tile[1]} tiles{parts}:"
        f" {counted(plan.blocks, 'block')} on {gpu.sm_count} SMs = {plan.blocks / gpu.sm_count:.2f} each,"
        f" run as {plan.rounds}; {percent(useful, 0)} of the tiles' area is needed;"
        f" large matmuls sustain {percent(share, 0)} of {gpu.peak(launch.pipe) / 1e12:.3g} TFLOP/s{limit};"
        f" {spent}; a block's steps wait {duration(plan.steps_s)}, {duration(plan.ends_s)} to fill and store."
    )


def sustained(gpu: Gpu, pipe: Pipe, known: VectorGemmConstants) -> float:
    """Fraction of the peak that the GPU sustains: limited by its clock or by its power."""
    shrink = _REFERENCE_NM / chip_of(gpu).energy_nm
    paid = known.flop_per_joule * shrink**_ENERGY_EXPONENT * _power_w(gpu) / gpu.peak(pipe)
    return min(known.plateau, paid) if gpu.tdp_w else known.plateau


def _power_w(gpu: Gpu) -> float:
    return gpu.tdp_w * gpu.sustained_power


def _kernel(launch: VectorGemm, known: VectorGemmConstants) -> float:
    """Rate of the kernel for this kind of matmul over that for a plain one."""
    rate = known.biased if launch.bias else 1.0
    if launch.converts:
        rate *= _CONVERTED
    if launch.batch > 1:
        rate *= known.batched * (known.deep if _deep(launch) else 1.0)
    return rate


def _deep(launch: VectorGemm) -> bool:
    """Whether it is batched with few tiles of result, though n and k exceed a tile's."""
    few = launch.m * launch.n < _FEW_TILES * _LARGE[0] * _LARGE[1]
    return launch.batch > 1 and few and min(launch.n, launch.k) > _LARGE[1]


def _plans(launch: VectorGemm, gpu: Gpu, on: _OnGpu) -> Iterator[VectorPlan]:
    if min(launch.m, launch.n) == 1:  # a matrix times a vector has its own kernel
        results = launch.batch * launch.m * launch.n
        peak_s = results * launch.k * on.multiply_add_s / on.sm_count
        yield VectorPlan((1, 1), 1, results, 1, _arithmetic_s(peak_s, on), 0.0, 0.0)
        return
    for tile in (launch.batch > 1 and chip_of(gpu).batched_tiles) or _LONE:
        results = launch.batch * ceil(launch.m / tile[0]) * ceil(launch.n / tile[1])
        waiting = _resident_blocks(on, tile)
        for splits in _SPLITS:
            few = launch.batch == 1 and results <= waiting and results * splits <= _MOST_WAVES * waiting
            if splits > 1 and (not few or launch.k < splits * _LEAST_PART):
                break
            yield _plan(launch, gpu, on, tile, splits, results * splits)


def _resident_blocks(on: _OnGpu, tile: Tile) -> int:
    """Blocks of a tile that run at once."""
    return on.sm_count * (_RESIDENT_RESULTS // (tile[0] * tile[1]))


def _plan(launch: VectorGemm, gpu: Gpu, on: _OnGpu, tile: Tile, splits: int, blocks: int) -> VectorPlan:
    known, waves = on.known, ceil(blocks / _resident_blocks(on, tile))
    loads = 1 + known.operand_load * (1 / tile[0] + 1 / tile[1] - 1 / 64)
    step_s = tile[0] * tile[1] * _STEP * on.multiply_add_s * loads
    steps, rounds = ceil(launch.k / splits / _STEP), ceil(blocks / on.sm_count)
    alone_s = waves * steps * known.step_clocks / on.clock_hz
    ends_s = waves * known.tile_clocks / on.clock_hz
    if splits > 1:
        ends_s += known.split_s + traffic_s(gpu, 0, 2 * splits * launch.m * launch.n * launch.itemsize)
    compute_s, steps_s = _arithmetic_s(rounds * steps * step_s, on), _arithmetic_s(alone_s, on)
    return VectorPlan(tile, splits, blocks, rounds, compute_s, steps_s, ends_s)


def _arithmetic_s(peak_s: float, on: _OnGpu) -> float:
    """Seconds of arithmetic that takes ``peak_s`` at the peak: at the boost clock first, then as power allows."""
    known = on.known
    early_s = min(peak_s / known.plateau, known.burst_s)
    return early_s + (peak_s - early_s * known.plateau) / on.reached


def _row_misses(launch: VectorGemm, known: VectorGemmConstants) -> float:
    """How much longer a step takes: each operand's rows lie k apart, a page or a whole turn of the channels."""
    row_bytes = launch.k * launch.itemsize
    span = min(launch.m + launch.n, _ROWS_IN_FLIGHT) * row_bytes
    longer = 1 + known.walk * max(0.0, 1 - known.reach_bytes / span)
    return longer + known.conflict if row_bytes % _CHANNEL_TURN_BYTES == 0 else longer
