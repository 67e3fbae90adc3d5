"""How a library's convolutions use a GPU.

The library has two algorithms and takes the faster; so does :func:`predict`:

- the implicit GEMM, ``[images x places, channels x window] x [channels x window, channels]``, in tiles of one block;
- Winograd F(4 x 4, r x r) in stages (Lavin and Gray 2015): input and weights are transformed, (4 + r - 1)^2 small
  products make 4 x 4 outputs each, and those are transformed back. For r = 3 that is a quarter of the multiplies, but
  36/16 of each tensor is written and read between the stages.

Winograd serves ungrouped square windows of 3 and 5 at unit stride on vector engines; every fp16 row of DeepBench on
tensor cores is an implicit GEMM. A depthwise convolution is not a product: PyTorch's kernels loop over its window with
one thread per output (DepthwiseConv2d.cu); cuDNN's, for narrower types and channels last, reach a fraction of the peak.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from memwall.core.graph import Pipe
from memwall.core.units import duration, percent
from memwall.hardware.chips import chip_of
from memwall.hardware.constants import ConvolutionConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.launches import Convolution
from memwall.perfmodel.base import Terms, constants, traffic_s

#: tiles (m, n) of a block, by engine. Tensor cores: no row of DeepBench with 16 or 32 output channels is faster than a
#: tile 64 wide would be
_TILES = {
    "vector": ((128, 128), (128, 64), (128, 32), (128, 16), (128, 8), (128, 1), (64, 64), (64, 32)),
    "tensor": ((256, 128), (128, 128), (128, 64), (64, 64)),
}
#: m n / (m + n) of the tile for which the plateau is stated
_FULL_REUSE = 64
#: side of the tiles of a product split along k
_SPLIT_TILE = 64
#: most that convolutions reach relative to what long products sustain: T4, 0.65 over 0.416 of its float32 peak. Only a
#: GPU that is as power-limited is affected
_OVER_SUSTAINED = 1.55
#: steps of k in the shortest part of a weight's gradient, whose k is long: fits DeepBench's 1 x 1 windows best
_WEIGHT_PART_STEPS = 512
#: side of the squares of outputs that Winograd makes, and the windows that it serves
_SQUARE, _WINDOWS = 4, ((3, 3), (5, 5))
#: channels of 16 bytes
_ALIGNED = 8.0
_FLOAT32 = Pipe("vector", "float32")
#: clocks of a thread of PyTorch's depthwise kernels for each tap of its output's window, mostly latency: 3 x 3
#: windows on a Titan Xp (2048 threads, 16.4e9 outputs/s) and an RTX 2080 Ti (1024, 22.4e9) take 600 and 540 (PyTorch
#: issue 18631); 5 x 5 on a newer GPU 600 if that is an A100, 900 if an H100 (pull request 125362)
_TAP_CLK = 590


class _Product(NamedTuple):
    """``batch`` products of [m, k] with [k, n]."""

    batch: int
    m: int
    n: int
    k: float


def predict(launch: Convolution, gpu: Gpu, known: ConvolutionConstants, resident_bytes: int = 0) -> Terms:
    """The terms of the fastest algorithm with the constants given; ``resident_bytes`` of its reads are in L2."""
    resident = min(resident_bytes, launch.read_bytes)
    if launch.depthwise:
        return _depthwise(launch, gpu, known, resident)
    pipe = gpu.ceiling_pipe(launch.pipe)
    known = _of_pipe(launch, gpu, pipe, known)
    ways = [_implicit_gemm(launch, gpu, pipe, known, resident)]
    is_square = launch.kernel in _WINDOWS and all(step == 1 for step in launch.stride)
    if is_square and launch.groups == 1 and pipe.engine == "vector" and pipe.dtype != "float64":
        ways.append(_winograd(launch, gpu, pipe, known, resident))
    if pipe.engine == "tensor" and launch.groups > 1:  # narrow groups waste most of a tensor core's tile
        plain = _of_pipe(launch, gpu, _FLOAT32, known)
        ways.append(_implicit_gemm(launch, gpu, _FLOAT32, plain, resident))
    return min(ways, key=lambda terms: terms.time_s)


def _of_pipe(launch: Convolution, gpu: Gpu, pipe: Pipe, known: ConvolutionConstants) -> ConvolutionConstants:
    """The constants given, or those of float32 where narrower types run on its pipe: TF32 on a V100 is float32."""
    plain = pipe == _FLOAT32 and launch.variant != "float32"
    return constants(ConvolutionConstants, gpu, "float32") if plain else known


def _implicit_gemm(launch: Convolution, gpu: Gpu, pipe: Pipe, known: ConvolutionConstants, resident: int) -> Terms:
    relative = {"forward": 1.0, "input": known.backward_input, "weight": known.backward_weight}[launch.role]
    channel_slice = 1.0  # channels along k come in multiples of this
    if pipe.engine == "tensor":
        channel_slice = known.channel_slice if chip_of(gpu).sliced_channels else _ALIGNED
    m, n, k = _dimensions(launch, channel_slice)
    parts = _parts(launch, gpu, known, m, n, k)
    product = _Product(launch.groups * parts, m, n, k / parts)
    compute_s, facts = _tiled(product, gpu, pipe, known, known.plateau * relative)
    sums_s = relayout_s = 0.0
    if parts > 1:  # partial sums in float32 are written, then added up by another kernel
        sums_s = traffic_s(gpu, 0, 2 * 4 * product.batch * m * n) + gpu.launch_overhead_s
    if pipe.engine == "tensor" and not launch.channels_last:
        relayout_s = traffic_s(gpu, 2 * known.relayout * launch.bytes)
    facts |= {"way": "implicit GEMM", "pipe": pipe, "m": m, "n": n, "k": k, "parts": parts}
    moved_s = traffic_s(gpu, launch.bytes - resident, resident)
    body_s = max(compute_s, moved_s)
    peak_s = sum(launch.pipe_flops.values()) / gpu.peak(pipe)
    return Terms(compute_s, moved_s + relayout_s, sums_s, body_s, sums_s + relayout_s, facts, peak_s)


def _dimensions(launch: Convolution, channel_slice: float) -> tuple[int, int, float]:
    """m, n and k of a group's product; the channels at each window position are padded to whole slices."""
    window, places = math.prod(launch.kernel), launch.images * math.prod(launch.places_out)
    padded_in = math.ceil(launch.channels_in / channel_slice) * channel_slice
    if launch.role == "forward":
        return places, launch.channels_out, padded_in * window
    if launch.role == "weight":
        return launch.channels_out, int(padded_in * window), float(places)
    # an input position contributes to window / stride outputs; positions that the stride skips are not computed
    met = window / math.prod(launch.stride)
    padded_out = math.ceil(launch.channels_out / channel_slice) * channel_slice
    rows = launch.images * math.prod(launch.places_in) * min(met, 1.0)
    return math.ceil(rows), launch.channels_in, padded_out * max(met, 1.0)


def _parts(launch: Convolution, gpu: Gpu, known: ConvolutionConstants, m: int, n: int, k: float) -> int:
    """The number of parts that k is split into so that few tiles still fill the GPU."""
    tiles = launch.groups * math.ceil(m / _SPLIT_TILE) * math.ceil(n / _SPLIT_TILE)
    wanted = gpu.sm_count * max(known.lone_tile / _SPLIT_TILE**2, 1.0)
    shortest = _WEIGHT_PART_STEPS if launch.role == "weight" else known.part_steps
    return max(min(int(wanted / max(tiles, 1)), int(k / shortest)), 1)


def _tiled(
    product: _Product, gpu: Gpu, pipe: Pipe, known: ConvolutionConstants, fraction: float
) -> tuple[float, dict[str, Any]]:
    """Seconds of arithmetic of the best tile; and what it is.

    Multiprocessors take tiles in waves. A step of k takes the time of its multiply-adds, but no less than in the
    tile that fills a multiprocessor by itself: the lanes that a smaller one leaves idle cost as much.
    """
    fraction *= min(_OVER_SUSTAINED * gpu.achievable_fraction(pipe) / known.plateau, 1.0)
    # multiply-adds of a multiprocessor per clock
    rate = fraction * gpu.peak(pipe) / (2 * gpu.sm_count * gpu.boost_clock_hz)
    best, facts = math.inf, dict[str, Any]()
    for rows, columns in _TILES[pipe.engine]:
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


def _winograd(launch: Convolution, gpu: Gpu, pipe: Pipe, known: ConvolutionConstants, resident: int) -> Terms:
    points = (_SQUARE + launch.kernel[0] - 1) ** 2
    places = launch.places_in if launch.role == "input" else launch.places_out
    squares = launch.images * math.prod(math.ceil(size / _SQUARE) for size in places)
    m, n, k = {
        "forward": (squares, launch.channels_out, launch.channels_in),
        "input": (squares, launch.channels_in, launch.channels_out),
        "weight": (launch.channels_out, launch.channels_in, squares),
    }[launch.role]
    compute_s, facts = _tiled(_Product(points, m, n, k), gpu, pipe, known, known.winograd)
    between = 2 * points * launch.itemsize * (m * k + k * n + m * n)
    transforms_s = traffic_s(gpu, launch.bytes - resident + between, resident, known.winograd_traffic)
    facts |= {"way": "Winograd", "pipe": pipe, "m": m, "n": n, "k": k, "points": points, "between": between,
              "transforms_s": transforms_s}  # fmt: skip
    # the stages run one after another: no stage hides another's time
    memory_s = max(transforms_s, traffic_s(gpu, launch.bytes - resident, resident))
    body_s, ends_s = max(compute_s + transforms_s, memory_s), known.winograd_stages_s
    peak_s = 2 * points * m * n * k / gpu.peak(pipe)
    return Terms(compute_s, memory_s, ends_s, body_s, ends_s, facts, peak_s)


def _depthwise(launch: Convolution, gpu: Gpu, known: ConvolutionConstants, resident: int) -> Terms:
    window = math.prod(launch.kernel)
    taps = launch.images * launch.groups * launch.channels_out * math.prod(launch.places_out) * window
    memory_s = traffic_s(gpu, launch.bytes - resident, resident)
    if launch.role == "weight":  # one block per window position reads both tensors
        memory_s += traffic_s(gpu, 0, (window - 1) * launch.read_bytes)
    facts: dict[str, Any] = {"way": "depthwise", "window": window}
    if launch.itemsize < 4 or launch.channels_last or launch.role == "weight":  # cuDNN, or a sum over the positions
        facts["rate"] = f"{percent(known.depthwise, 0)} of {gpu.peak(launch.pipe) / 1e12:.3g} TFLOP/s"
        return Terms.of(2 * taps / (gpu.peak(launch.pipe) * known.depthwise), memory_s, facts=facts)
    threads = chip_of(gpu).threads
    facts["rate"] = f"{_TAP_CLK} clocks for {threads} threads of each of {gpu.sm_count} SMs"
    waits_s = taps * _TAP_CLK / (threads * gpu.sm_count * gpu.boost_clock_hz)
    return Terms.of(2 * taps / gpu.peak(launch.pipe), memory_s, waits_s, facts=facts)


def explain(launch: Convolution, gpu: Gpu, known: ConvolutionConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    facts = terms.facts
    if facts["way"] == "depthwise":
        return (
            f"depthwise: {launch.groups} channels apart, {facts['window']} taps for each output at {facts['rate']}; "
            f"{_walls(launch, terms)}."
        )
    (rows, columns), tiles, rounds = facts["tile"], facts["tiles"], facts["rounds"]
    waves, waiting = tiles / gpu.sm_count, " and too small to fill a multiprocessor" if facts["small"] else ""
    run = (
        f"{facts['m']}x{facts['n']}x{facts['k']:.0f} in {tiles} tiles of {rows}x{columns} on {gpu.sm_count} SMs = "
        f"{waves:.3g} waves, run as {rounds} ({percent(waves / max(rounds, 1), 0)}){waiting}; "
        f"the plateau is {percent(facts['plateau'], 0)} of {gpu.peak(facts['pipe']) / 1e12:.3g} TFLOP/s"
    )
    if facts["way"] == "Winograd":
        return (
            f"Winograd, {facts['points']} products {run}; {duration(terms.compute_s)} of products, then "
            f"{duration(facts['transforms_s'])} for the tensors and {facts['between'] / 1e6:.3g} MB between the stages."
        )
    split = f" with k split in {facts['parts']}" if facts["parts"] > 1 else ""
    return f"implicit GEMM{split}: {run}; {_walls(launch, terms)}."


def _walls(launch: Convolution, terms: Terms) -> str:
    text = (
        f"{duration(terms.compute_s)} of arithmetic against {duration(terms.memory_s)} for {launch.bytes / 1e6:.3g} MB"
    )
    return f"{text} and {duration(terms.latency_s)} of latency" if terms.latency_s else text
