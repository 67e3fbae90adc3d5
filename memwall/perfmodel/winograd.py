"""Winograd's convolutions: fewer multiplies for transforms of input, weights and output.

In stages it serves ungrouped square windows of 3 and 5 at unit stride on vector engines; in one kernel windows of 3
alone, no weight's gradient, and an input's only where the library searched (KernelBench's transposed convolution
level1_57 takes twice as long).
"""

from __future__ import annotations

import math

from memwall.core.graph import Pipe
from memwall.hardware.constants import ConvolutionConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.product_launches import Convolution
from memwall.perfmodel.base import Terms, traffic_s
from memwall.perfmodel.tiles import TiledProduct, rate_of, tiled

#: windows that Winograd in stages serves -> side of the squares of outputs that it makes: cuDNN's kernels are named
#: winogradForwardData4x4 and, for windows of 5, winogradForwardData9x9_5x5, from 9 x 9 inputs
_SQUARES = {(3, 3): 4, (5, 5): 5}
#: and the tiles of its matmuls
_STAGED_TILES = ((128, 128), (128, 64), (128, 32), (64, 64), (64, 32))
#: its kernels besides the matmuls: two transforms before, one after
_STAGES = 3
#: side of the squares of outputs of Winograd in one kernel, squares and channels of a block (Lavin and Gray's; float32
#: convolutions of NeuSight to 3 to 64 channels take the time of whole 32), channels that it loads at once
_FUSED_SQUARE, FUSED_BLOCK, _FUSED_SLICE = 2, 32, 8


def _product_of(launch: Convolution, side: int) -> TiledProduct:
    """What Winograd multiplies where it makes squares of outputs of that side."""
    places = launch.places_in if launch.role == "input" else launch.places_out
    squares = launch.images * math.prod(math.ceil(size / side) for size in places)
    m, n, k = {
        "forward": (squares, launch.channels_out, launch.channels_in),
        "input": (squares, launch.channels_in, launch.channels_out),
        "weight": (launch.channels_out, launch.channels_in, squares),
    }[launch.role]
    return TiledProduct((side + launch.kernel[0] - 1) ** 2, m, n, k)


def staged(launch: Convolution, gpu: Gpu, pipe: Pipe, known: ConvolutionConstants, resident: int) -> Terms:
    product = _product_of(launch, _SQUARES[launch.kernel[0], launch.kernel[0]])
    points, m, n, k = product
    compute_s, facts = tiled(product, gpu, pipe, known, known.winograd, _STAGED_TILES)
    between = 2 * points * launch.itemsize * (m * k + k * n + m * n)
    transforms_s = traffic_s(gpu, launch.bytes - resident + between, resident, known.winograd_traffic)
    facts |= {
        "way": "Winograd",
        "pipe": pipe,
        "m": m,
        "n": n,
        "k": k,
        "points": points,
        "between": between,
        "transforms_s": transforms_s,
    }
    # the stages run one after another: no stage hides another's time
    memory_s = max(transforms_s, traffic_s(gpu, launch.bytes - resident, resident))
    body_s, ends_s = max(compute_s + transforms_s, memory_s), _STAGES * gpu.launch_overhead_s
    peak_s = 2 * points * m * n * k / gpu.peak(pipe)
    return Terms(compute_s, memory_s, ends_s, body_s, ends_s, facts, peak_s)


def fused(launch: Convolution, gpu: Gpu, pipe: Pipe, known: ConvolutionConstants, resident: int) -> Terms:
    points, m, n, k = _product_of(launch, _FUSED_SQUARE)
    fraction, rate = rate_of(gpu, pipe, known, known.winograd_fused)
    blocks = math.ceil(m / FUSED_BLOCK) * math.ceil(n / FUSED_BLOCK)
    rounds = math.ceil(blocks / gpu.sm_count)
    elements = max(rounds * points * FUSED_BLOCK**2, known.lone_tile)
    compute_s = elements / rate * (k + _FUSED_SLICE) / gpu.boost_clock_hz
    moved_s = traffic_s(gpu, launch.bytes - resident, resident)
    # another kernel transforms the weights before
    weight_bytes = (math.prod(launch.kernel) + points) * k * n * launch.itemsize
    ends_s = traffic_s(gpu, weight_bytes) + gpu.launch_overhead_s
    facts = {
        "way": "fused Winograd",
        "pipe": pipe,
        "m": m,
        "n": n,
        "k": k,
        "blocks": blocks,
        "rounds": rounds,
        "plateau": fraction,
    }
    peak_s = 2 * points * m * n * k / gpu.peak(pipe)
    return Terms(compute_s, moved_s, ends_s, max(compute_s, moved_s), ends_s, facts, peak_s)


def serves_staged(launch: Convolution, gpu: Gpu, pipe: Pipe) -> bool:
    is_square = launch.kernel in _SQUARES and all(step == 1 for step in (*launch.stride, *launch.dilation))
    return is_square and launch.groups == 1 and pipe.engine == "vector" and pipe.dtype != "float64"


def serves_fused(launch: Convolution, gpu: Gpu, pipe: Pipe) -> bool:
    wanted = launch.role == "forward" or (launch.role == "input" and launch.searched)
    return wanted and launch.kernel == (3, 3) and serves_staged(launch, gpu, pipe)
