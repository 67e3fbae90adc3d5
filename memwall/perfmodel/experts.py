"""How the experts of a mixture use a GPU: two grouped matmuls in one launch each, and what moves rows around them.

An expert's rows are cut into blocks, the last one filled up; with few rows for each expert most of a block is filling.
For each height of the menu, and each of the two matmuls::

    rounds   = waves of tiles over the multiprocessors, half of a partial wave's idle time lost
    pipe_s   = rounds x (arithmetic of a tile at ``plateau`` of a multiprocessor's peak + ``tile_clocks``)
    load_s   = rounds x (operands of a tile at ``load`` bytes per clock + ``tile_clocks``)
    stream_s = weights of the experts that have rows, at ``dram`` of the bandwidth
    time_s   = hypot(longer of pipe and load; stream_s)

and the shortest is taken. Rows are sorted, activated and summed at ``stream`` of the bandwidth before, between and
after the matmuls, and ``start_s`` is what the shortest layer takes.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, hypot
from typing import NamedTuple

from memwall.core.units import bandwidth, duration, flop_rate, percent, size
from memwall.hardware.constants import ExpertsConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.serving import ExpertsLaunch
from memwall.perfmodel.base import Terms, traffic_s

#: rows of a block, the fewest that tensor cores multiply, and columns
_ROWS, _LEAST_ROWS, _COLUMNS = (8, 16, 32, 64, 128), 16, 128
#: share of a partial wave's idle time that is lost
_ROUNDING = 0.5
#: bytes of a number of a row outside of the matmuls
_ITEMSIZE = 2


class _GroupedProduct(NamedTuple):
    """One grouped matmul: its seconds, and its terms each alone."""

    total_s: float
    pipe_s: float
    load_s: float
    stream_s: float
    rows: int
    tiles: int


@lru_cache(maxsize=4096)
def predict(launch: ExpertsLaunch, gpu: Gpu, known: ExpertsConstants, resident_bytes: int = 0) -> Terms:
    """The terms of a launch with the constants given."""
    warm = min(resident_bytes / max(launch.read_bytes, 1), 1.0)
    products = [_product(launch, gpu, known, n, k, warm) for n, k in launch.products]
    around_s = traffic_s(gpu, _around_bytes(launch), 0, known.stream)
    facts = {"products": products, "around_s": around_s}
    return Terms(
        sum(one.pipe_s for one in products),
        sum(one.stream_s for one in products) + around_s,
        sum(one.load_s for one in products) + known.start_s,
        sum(one.total_s for one in products) + around_s,
        known.start_s,
        facts,
    )


def _around_bytes(launch: ExpertsLaunch) -> int:
    """Bytes of rows that are gathered, activated and summed, each read and written once."""
    per_row = 4 * launch.hidden + (launch.gates + 1) * launch.inter
    return _ITEMSIZE * (launch.moved_rows * per_row + 2 * launch.tokens * launch.hidden)


def _product(launch: ExpertsLaunch, gpu: Gpu, known: ExpertsConstants, n: int, k: int, warm: float) -> _GroupedProduct:
    """The grouped matmul in blocks of the height that takes least."""
    weight_bytes, clock = launch.expert_bytes / sum(n * k for n, k in launch.products), gpu.boost_clock_hz
    weights = launch.active * n * k * weight_bytes
    stream_s = traffic_s(gpu, weights * (1 - warm), weights * warm, known.dram)
    math_s = 2 * gpu.sm_count / (gpu.peak(launch.pipe) * known.plateau)  # of a multiply-add in one multiprocessor
    found = []
    for rows, blocks in zip(_ROWS, launch.blocks(*_ROWS), strict=True):
        tiles = blocks * ceil(n / _COLUMNS)
        waves = max(tiles / gpu.sm_count, 1.0)
        rounds = _ROUNDING * ceil(waves) + (1 - _ROUNDING) * waves
        operands = k * (rows * launch.itemsize + _COLUMNS * weight_bytes)
        pipe_s = rounds * (k * max(rows, _LEAST_ROWS) * _COLUMNS * math_s + known.tile_clocks / clock)
        load_s = rounds * (operands / known.load + known.tile_clocks) / clock
        found.append(_GroupedProduct(hypot(max(pipe_s, load_s), stream_s), pipe_s, load_s, stream_s, rows, tiles))
    return min(found)


def explain(launch: ExpertsLaunch, gpu: Gpu, known: ExpertsConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    first, second = terms.facts["products"]
    (blocks,) = launch.blocks(first.rows)
    filled = launch.rows / max(blocks * first.rows, 1)
    weights = launch.active * launch.expert_bytes
    return (
        f"{launch.rows} rows of {launch.tokens} tokens for {launch.active} experts in blocks of {first.rows} and "
        f"{second.rows} rows, {percent(filled, 0)} of the former are needed: {first.tiles} and {second.tiles} tiles on "
        f"{gpu.sm_count} SMs take {duration(terms.compute_s)} at {percent(known.plateau, 0)} of "
        f"{flop_rate(gpu.peak(launch.pipe), launch.pipe)}, their operands {duration(first.load_s + second.load_s)}, "
        f"the {size(weights)} of the experts' weights {duration(first.stream_s + second.stream_s)} at "
        f"{percent(known.dram, 0)} of {bandwidth(gpu.dram_bytes_per_s)}; moving rows takes "
        f"{duration(terms.facts['around_s'])}, the start {duration(known.start_s)}."
    )
