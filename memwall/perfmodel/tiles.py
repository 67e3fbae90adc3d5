"""The arithmetic of matmuls that a library's convolutions run in tiles of one block."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from memwall.core.graph import Pipe
from memwall.hardware.constants import ConvolutionConstants
from memwall.hardware.lookup import Gpu

#: m n / (m + n) of the tile for which the plateau is stated
_FULL_REUSE = 64
#: most that convolutions reach relative to what long matmuls sustain: T4, 0.65 over 0.416 of its float32 peak. Only a
#: GPU that is as power-limited is affected
_OVER_SUSTAINED = 1.55


class TiledProduct(NamedTuple):
    """``batch`` matmuls of [m, k] with [k, n]."""

    batch: int
    m: int
    n: int
    k: float


def tiled(
    product: TiledProduct,
    gpu: Gpu,
    pipe: Pipe,
    known: ConvolutionConstants,
    fraction: float,
    tiles_of: tuple[tuple[int, int], ...],
) -> tuple[float, dict[str, Any]]:
    """Seconds of arithmetic of the best tile; and what it is.

    Multiprocessors take tiles in waves. A step of k takes the time of its multiply-adds, but no less than in the
    tile that fills a multiprocessor by itself: the lanes that a smaller one leaves idle cost as much.
    """
    fraction, rate = rate_of(gpu, pipe, known, fraction)
    best, facts = math.inf, dict[str, Any]()
    for rows, columns in tiles_of:
        tiles = product.batch * math.ceil(product.m / rows) * math.ceil(product.n / columns)
        rounds = math.ceil(tiles / gpu.sm_count)
        reuse = (rows * columns / (rows + columns) / _FULL_REUSE) ** known.reuse
        elements = rounds * rows * columns / reuse
        clocks = max(elements, known.lone_tile) / rate
        if clocks < best:
            best = clocks
            facts = {"tile": (rows, columns), "tiles": tiles, "rounds": rounds, "small": elements < known.lone_tile}
    step_s = (product.k + known.ramp) / gpu.boost_clock_hz
    return best * step_s, facts | {"plateau": fraction}


def rate_of(gpu: Gpu, pipe: Pipe, known: ConvolutionConstants, fraction: float) -> tuple[float, float]:
    """``fraction`` of the peak as far as the power lasts, and the multiply-adds of a multiprocessor per clock."""
    fraction *= min(_OVER_SUSTAINED * gpu.achievable_fraction(pipe) / known.plateau, 1.0)
    return fraction, fraction * gpu.peak(pipe) / (2 * gpu.sm_count * gpu.boost_clock_hz)
