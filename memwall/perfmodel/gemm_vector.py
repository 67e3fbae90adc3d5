"""How products in full precision use a GPU: tiles of the result on threads that multiply and add, no tensor cores.

A block makes one tile of the result in steps of 8 along k; ``ceil(tiles / SMs)`` of them follow each other on the
fullest multiprocessor. What is not of a tile's size is computed all the same. Which tiles the library has differs:
cuBLAS runs batched products of any size in 128x128 tiles on an A100 (2048 clocks for 8 of k, whatever m and n), and
with 128 columns on Pascal (NeuSight bmm).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

from memwall.core.graph import Pipe
from memwall.core.units import duration
from memwall.hardware.chips import Tile, chip_of
from memwall.hardware.constants import VectorGemmConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.launches import VectorGemm
from memwall.perfmodel.base import Terms
from memwall.perfmodel.memory import traffic_s

_STEP = 8
_LARGE: Tile = (128, 128)
#: results that the registers of a multiprocessor hold: two blocks of the largest tile
_RESIDENT_RESULTS = 2 * 128 * 128
#: parts that k may be split into where the tiles are less than a wave, the least k of a part, and the most waves then
_SPLITS, _LEAST_PART, _MOST_WAVES = (1, 2, 4, 8, 16, 32, 64), 64, 2
#: below so many large tiles of result, rocBLAS runs deep products of a batch with other kernels: an MI210 does
#: 12 TFLOP/s of 96x384 by 384x384, and 22 of 384x96 by 96x384, which is as many multiply-adds (NeuSight bmm)
_FEW_TILES = 8
#: rows of the operands that the blocks of a wave step along together, and the distance at which channels repeat
_ROWS_IN_FLIGHT, _CHANNEL_TURN_BYTES = 2048, 128 * 1024

#: what a joule pays for grows with 16 nm over the feature size to this power: 53 GFLOP on boards of 16 and 12 nm (T4,
#: P4: NeuSight), 128 on one of 5 nm (RTX 4090: gemm_peak_measured.csv), 131 on another (L4: NeuSight)
_REFERENCE_NM, _ENERGY_EXPONENT = 16, 0.75
#: tiles (rows, columns of the result) of a product alone
_LONE: tuple[Tile, ...] = (_LARGE, (128, 64), (64, 128), (64, 64), (128, 32), (32, 128))


class Plan(NamedTuple):
    """One way to run a product, and its seconds without memory."""

    tile: Tile
    #: parts that k falls into
    splits: int
    blocks: int
    #: blocks that the fullest multiprocessor runs
    rounds: int
    compute_s: float
    latency_s: float


class _Board(NamedTuple):
    """What the plans of one product have in common on a GPU."""

    sm_count: int
    clock_hz: float
    #: of one multiprocessor at the board's peak, misses of rows included
    multiply_add_s: float
    #: fraction of the peak that lasts
    reached: float
    known: VectorGemmConstants


def predict(work: VectorGemm, gpu: Gpu, known: VectorGemmConstants, resident_bytes: int = 0) -> Terms:
    """The terms of a launch with the constants given."""
    resident = min(resident_bytes, work.read_bytes)
    resident += work.write_bytes if resident else 0  # what finds its operands in L2 leaves its results there
    memory_s = traffic_s(gpu, work.bytes - resident, resident, known.dram)
    rate = gpu.peak(work.pipe) * _kernel(work, known)
    multiply_add_s = 2 * gpu.sm_count / rate * _row_misses(work, known)
    board = _Board(gpu.sm_count, gpu.boost_clock_hz, multiply_add_s, sustained(gpu, work.pipe, known), known)
    plans = _plans(work, gpu, board) if _tiled(work) else (_untiled(work, board),)
    plan = min(plans, key=lambda plan: max(plan.compute_s, memory_s) + plan.latency_s)
    return Terms(plan.compute_s, memory_s, plan.latency_s, {"plan": plan})


def explain(work: VectorGemm, gpu: Gpu, known: VectorGemmConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    plan: Plan = terms.facts["plan"]
    times = f"{work.batch} times " if work.batch > 1 else ""
    spent = f"{duration(terms.compute_s)} of arithmetic against {duration(terms.memory_s)} of memory"
    if min(work.m, work.n) == 1:
        return f"{times}{work.m}x{work.n}x{work.k}, a matrix times a vector, streams its operands once: {spent}."
    parts = f", k in {plan.splits} parts" if plan.splits > 1 else ""
    useful = work.batch * work.m * work.n / (plan.blocks // plan.splits * plan.tile[0] * plan.tile[1])
    reached = sustained(gpu, work.pipe, known)
    share = reached * _kernel(work, known)
    limit = f" ({gpu.tdp_w:.0f} W)" if reached < known.plateau else ""
    if known.deep < 1 and _deep(work):
        limit += f", {known.deep:.0%} of the usual for so deep a product"
    return (
        f"{times}{work.m}x{work.n}x{work.k} in {plan.tile[0]}x{plan.tile[1]} tiles{parts}: {plan.blocks} blocks on "
        f"{gpu.sm_count} SMs = {plan.blocks / gpu.sm_count:.2f} each, run as {plan.rounds}; {useful:.0%} of the tiles' "
        f"area is result; large products sustain {share:.0%} of {gpu.peak(work.pipe) / 1e12:.3g} TFLOP/s{limit}; "
        f"{spent}, {duration(terms.latency_s)} to fill and store."
    )


def sustained(gpu: Gpu, pipe: Pipe, known: VectorGemmConstants) -> float:
    """Fraction of the peak that the board holds for long: what its clock gives, or what its power pays for."""
    shrink = _REFERENCE_NM / chip_of(gpu).energy_nm
    paid = known.flop_per_joule * shrink**_ENERGY_EXPONENT * gpu.tdp_w / gpu.peak(pipe)
    return min(known.plateau, paid) if gpu.tdp_w else known.plateau


def _kernel(work: VectorGemm, known: VectorGemmConstants) -> float:
    """Rate of the kernel for this kind of product over that for a plain one."""
    rate = known.biased if work.bias else 1.0
    if work.batch > 1:
        rate *= known.batched * (known.deep if _deep(work) else 1.0)
    return rate


def _deep(work: VectorGemm) -> bool:
    """One of a batch with few tiles of result, though n and k are more than a tile's."""
    few = work.m * work.n < _FEW_TILES * _LARGE[0] * _LARGE[1]
    return work.batch > 1 and few and min(work.n, work.k) > _LARGE[1]


def _tiled(work: VectorGemm) -> bool:
    """Not a matrix times a vector, which has a kernel of its own."""
    return min(work.m, work.n) > 1


def _untiled(work: VectorGemm, board: _Board) -> Plan:
    results = work.batch * work.m * work.n
    peak_s = results * work.k * board.multiply_add_s / board.sm_count
    return Plan((1, 1), 1, results, 1, _arithmetic_s(peak_s, board), 0.0)


def _plans(work: VectorGemm, gpu: Gpu, board: _Board) -> Iterator[Plan]:
    for tile in (work.batch > 1 and chip_of(gpu).batched_tiles) or _LONE:
        results = work.batch * ceil(work.m / tile[0]) * ceil(work.n / tile[1])
        waiting = board.sm_count * (_RESIDENT_RESULTS // (tile[0] * tile[1]))
        for splits in _SPLITS:
            few = work.batch == 1 and results <= waiting and results * splits <= _MOST_WAVES * waiting
            if splits > 1 and (not few or work.k < splits * _LEAST_PART):
                break
            yield _plan(work, gpu, board, tile, splits, results * splits, ceil(results * splits / waiting))


def _plan(work: VectorGemm, gpu: Gpu, board: _Board, tile: Tile, splits: int, blocks: int, waves: int) -> Plan:
    known = board.known
    loads = 1 + known.operand_load * (1 / tile[0] + 1 / tile[1] - 1 / 64)
    step_s = tile[0] * tile[1] * _STEP * board.multiply_add_s * loads
    steps, rounds = ceil(work.k / splits / _STEP), ceil(blocks / board.sm_count)
    compute_s = max(rounds * steps * step_s, waves * steps * known.step_clocks / board.clock_hz)
    latency_s = waves * known.tile_clocks / board.clock_hz
    if splits > 1:
        latency_s += known.split_s + traffic_s(gpu, 0, 2 * splits * work.m * work.n * work.itemsize)
    return Plan(tile, splits, blocks, rounds, _arithmetic_s(compute_s, board), latency_s)


def _arithmetic_s(peak_s: float, board: _Board) -> float:
    """Seconds of what would take ``peak_s`` at the peak: at the boost clock first, then as power allows."""
    known = board.known
    early_s = min(peak_s / known.plateau, known.burst_s)
    return early_s + (peak_s - early_s * known.plateau) / board.reached


def _row_misses(work: VectorGemm, known: VectorGemmConstants) -> float:
    """How much longer a step takes: each operand's rows lie k apart, a page or a whole turn of the channels."""
    row_bytes = work.k * work.itemsize
    span = min(work.m + work.n, _ROWS_IN_FLIGHT) * row_bytes
    longer = 1 + known.walk * max(0.0, 1 - known.reach_bytes / span)
    return longer + known.conflict if row_bytes % _CHANNEL_TURN_BYTES == 0 else longer
