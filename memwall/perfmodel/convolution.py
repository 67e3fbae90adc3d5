"""How a library's convolutions use a GPU.

The library has several engines and a heuristic that takes a fast one; :func:`predict` takes the fastest of the engines
that serve the launch (:data:`_ENGINES`):

- The implicit GEMM, ``[images x places, channels x window] x [channels x window, channels]``, in tiles of one block.
- Winograd in stages (Lavin and Gray 2015). Input and weights are transformed, matmuls over the points of the
  transformed squares make 4 x 4 outputs each (5 x 5 for windows of 5), and the outputs are transformed back. For
  windows of 3 it needs a quarter of the multiplies, but writes and reads 36/16 of each tensor between the stages.
- Winograd F(2 x 2, 3 x 3) in one kernel. A block transforms what it loads and keeps it, 32 squares for 32 channels. It
  spares only 5 of 9 multiplies, but moves no more than an implicit GEMM, and serves few channels well.
- The direct kernel, an implicit GEMM that computes every operand's address and loads it when it needs it. It serves
  three dimensions without tensor cores, except for data gradients of many channels at unit stride. It also serves data
  gradients with a stride of few channels.

Tensor cores want channels last; kernels for vector units want NCHW, up to TF32. A tensor in the other layout is copied
before, and the result is copied back, except for windows of one place. torch.compile lays tensors out for tensor cores.
The copies lower the median error of half of KernelBench's modules with convolutions on a T4 from 27 % to 15 %.

Winograd serves ungrouped square windows of 3 and 5 at unit stride on vector engines. Its one kernel serves windows of
3, forward and where the library searched the input's gradient. Every fp16 row of DeepBench on tensor cores is an
implicit GEMM. A transposed convolution is the data gradient of another.

With a stride in two dimensions the heuristic's float32 kernels run over all taps of the window, of which 1 in
``stride`` along each axis meets an output: such gradients take ``stride^2`` times as long on a T4 (KernelBench). A
search, as DeepBench's, finds kernels in which each phase of the stride has its own taps, but none in float16 on vector
units. Tensor cores and three dimensions have such kernels too. Places that the stride leaves without any tap are zeroed
before. Depthwise convolutions are no matmuls: :mod:`memwall.perfmodel.depthwise`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from memwall.core.graph import Pipe
from memwall.core.units import counted, duration, flop_rate, percent, size
from memwall.hardware.chips import chip_of
from memwall.hardware.constants import ConvolutionConstants, GemmConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.product_launches import Convolution, Gemm
from memwall.perfmodel import depthwise, gemm, winograd
from memwall.perfmodel.base import Terms, constants, traffic_s
from memwall.perfmodel.tiles import TiledProduct, tiled

#: tiles (m, n) of a block, by engine. Tensor cores: no row of DeepBench with 16 or 32 output channels is faster than a
#: tile 64 wide would be
_TILES = {
    "vector": ((128, 128), (128, 64), (128, 32), (128, 16), (128, 8), (128, 1), (64, 64), (64, 32)),
    "tensor": ((256, 128), (128, 128), (128, 64), (64, 64)),
}
#: tiles of tensor cores in three dimensions besides: KernelBench's 16 output channels take an A100 half of 64's time
_VOLUME_TILES = ((128, 32),)
#: side of the tiles of a matmul split along k
_SPLIT_TILE = 64
#: steps of k in the shortest part of a weight's gradient, whose k is long: fits DeepBench's float32 rows best
_WEIGHT_PART_STEPS = 256
#: steps of k for which half of the shorter of arithmetic and traffic is not hidden: a tile gathers its window,
#: multiplies and stores one after another (KernelBench's convolutions of images with 3 channels; windows of one tap
#: need no gathering, and a search finds kernels that hide it: DeepBench's rows have none of it)
_EXPOSED_STEPS = 64.0
#: bytes that tensor cores load at once: channels are filled up to them; in three dimensions to two of them (3 channels
#: of KernelBench's images take an A100 the time of 8 there, and of 4 in two dimensions)
_ALIGNED_BYTES, _VOLUME_ALIGNED_BYTES = 16, 32
_FLOAT32, _TF32 = Pipe("vector", "float32"), Pipe("tensor", "tf32")


class _Direct(NamedTuple):
    """A direct kernel: multiply-adds of a multiprocessor per clock, columns of its tiles, steps of k that a tile costs
    besides, channels that a tap is filled up to, and multiply-adds that share an operand that L2 serves; 0: none is."""

    fma_clk: float
    columns: int
    ramp: int
    filled_to: int = 1
    shared: int = 0


#: forward and data gradients without a stride, with the kernels from before TF32 and since: KernelBench's 3-D
#: modules on T4, A10G and L40S, whose lanes and clocks differ, agree on the rate
_EARLY, _LATER = _Direct(17.0, 16, ramp=85), _Direct(17.0, 16, ramp=0)
#: data gradients with a stride, in one or two dimensions and in three; there 3, 8 and 32 channels along k take the same
#: time (the same modules, and an A100's)
_FLAT_STRIDED, _STRIDED = _Direct(8.0, 32, ramp=25, filled_to=8), _Direct(36.0, 16, ramp=230, filled_to=32, shared=32)
#: channels of the images from which TF32's tensor cores serve forward convolutions in three dimensions where
#: multiprocessors have little shared memory
_TENSOR_CHANNELS = 8
#: channels from which implicit GEMMs serve float32 data gradients (KernelBench): channels along k, of which 3, 8 and 16
#: are too few. In three dimensions, with a stride on tensor cores, channels of the result: 32 are enough with 16 along
#: k, and 16 are not; without a stride on vector units both: 32 and 64 are enough, 16 and 32 are not
_GRADIENT_CHANNELS = 32
#: share of the copies that windows of one place need with the kernels that came with TF32: they are matmuls of
#: matrices as they lie, and kernels named nhwckrsc_nchw have one of the two tensors channels last alone
_ONE_SIDE = 0.5


Facts = Mapping[str, Any]


def predict(launch: Convolution, gpu: Gpu, known: ConvolutionConstants, resident_bytes: int = 0) -> Terms:
    """The terms of the fastest engine that serves the launch, with the constants given; ``resident_bytes`` of its reads
    are in L2."""
    resident = min(resident_bytes, launch.read_bytes)
    if launch.depthwise:
        return depthwise.predict(launch, gpu, known, resident)
    pipe = gpu.ceiling_pipe(launch.pipe)
    runs = [(pipe, known)]
    if pipe.engine == "tensor" and (launch.groups > 1 or pipe.dtype == "tf32"):
        # narrow groups waste most of a tensor core's tile, and with TF32 float32 kernels serve the launch too
        runs.append((_FLOAT32, constants(ConvolutionConstants, gpu, "float32")))
    ways = [
        _in_layout(engine.predict(launch, gpu, each, its, resident), launch, gpu, each, its)
        for each, its in runs
        for engine in _ENGINES
        if engine.serves(launch, gpu, each)
    ]
    return min(ways, key=lambda terms: terms.time_s)


def _in_layout(terms: Terms, launch: Convolution, gpu: Gpu, pipe: Pipe, known: ConvolutionConstants) -> Terms:
    """The terms with copies to the layout that the kernels want, and back, a launch each."""
    # with channels last a window of one place is a matmul of matrices as they lie; TF32 came with kernels for the rest
    is_later = _has_tf32(gpu)
    if launch.channels_last and (math.prod(launch.kernel) == 1 or is_later or pipe.engine == "tensor"):
        return terms
    if not launch.channels_last and pipe.engine == "vector":
        return terms
    share, kernels = (1.0 if launch.channels_last else known.relayout), known.copy_launches
    is_product = math.prod(launch.kernel) == math.prod(launch.stride) == 1
    if is_product and not launch.channels_last and is_later:
        share, kernels = share * _ONE_SIDE, kernels * _ONE_SIDE
    copies_s, starts_s = traffic_s(gpu, 2 * share * launch.bytes), kernels * gpu.launch_overhead_s
    return replace(
        terms,
        memory_s=terms.memory_s + copies_s,
        latency_s=terms.latency_s + starts_s,
        ends_s=terms.ends_s + copies_s + starts_s,
        facts={**terms.facts, "copies_s": copies_s},
    )


def _has_tf32(gpu: Gpu) -> bool:
    """Whether the library's kernels are the ones that came with TF32."""
    return gpu.ceiling_pipe(_TF32).engine == "tensor"


def _implicit_gemm(launch: Convolution, gpu: Gpu, pipe: Pipe, known: ConvolutionConstants, resident: int) -> Terms:
    relative = {"forward": 1.0, "input": known.backward_input, "weight": known.backward_weight}[launch.role]
    channel_slice, is_volume = 1.0, len(launch.kernel) > 2  # channels along k come in multiples of the slice
    if pipe.engine == "tensor":
        aligned_bytes = _VOLUME_ALIGNED_BYTES if is_volume else _ALIGNED_BYTES
        channel_slice = known.channel_slice if chip_of(gpu).sliced_channels else aligned_bytes / launch.itemsize
    m, n, k = _dimensions(launch, channel_slice, phased=_phased(launch, pipe))
    parts = _parts(launch, gpu, known, m, n, k)
    product = TiledProduct(launch.groups * parts, m, n, k / parts)
    reached = gemm.unhalved(known.plateau, gpu, pipe) if pipe.engine == "tensor" else known.plateau
    tiles = _TILES[pipe.engine] + (_VOLUME_TILES if is_volume and pipe.engine == "tensor" else ())
    compute_s, facts = tiled(product, gpu, pipe, known, reached * relative, tiles)
    flops, sums_s = sum(launch.pipe_flops.values()), 0.0
    if pipe.engine == "tensor":  # a FLOP draws what it draws in a matmul
        compute_s = max(compute_s, gemm.power_s(flops, gpu, pipe, constants(GemmConstants, gpu, pipe.dtype)))
    if parts > 1:  # partial sums in float32 are written, then added up by another kernel
        sums_s = traffic_s(gpu, 0, 2 * 4 * product.batch * m * n) + gpu.launch_overhead_s
    facts |= {"way": "implicit GEMM", "pipe": pipe, "m": m, "n": n, "k": k, "parts": parts}
    moved_s = traffic_s(gpu, launch.bytes - resident, resident)
    sums_s += _zeroed_s(launch, gpu)
    body_s = max(compute_s, moved_s) + _exposed(launch, k) * min(compute_s, moved_s)
    return Terms(compute_s, moved_s, sums_s, body_s, sums_s, facts, flops / gpu.peak(pipe))


def _warp_gemm(launch: Convolution, gpu: Gpu, pipe: Pipe, known: ConvolutionConstants, resident: int) -> Terms:
    """An implicit GEMM in the main loop of a matmul: tiles, waves and splits along k are as of matmuls, and so are
    the constants."""
    relative = {"forward": 1.0, "input": known.backward_input, "weight": known.backward_weight}[launch.role]
    m, n, k = _dimensions(launch, _ALIGNED_BYTES / launch.itemsize)
    sums_s = _zeroed_s(launch, gpu)
    of_matmuls = constants(GemmConstants, gpu, pipe.dtype)
    of_matmuls = replace(of_matmuls, plateau=of_matmuls.plateau * relative)
    product = Gemm(
        read_bytes=launch.read_bytes, write_bytes=launch.write_bytes, pipe=pipe, batch=launch.groups, m=m, n=n,
        k=math.ceil(k), itemsize=launch.itemsize,
    )  # fmt: skip
    terms = gemm.predict(product, gpu, of_matmuls, resident)
    exposed_s = _exposed(launch, k) * min(terms.compute_s, terms.memory_s)
    facts = {**terms.facts, "way": "implicit GEMM", "pipe": pipe, "m": m, "n": n, "k": k}
    facts |= {"tiles": facts["blocks"], "parts": facts["split"], "plateau": gemm.plateau(product, gpu, of_matmuls)}
    return replace(
        terms, body_s=terms.body_s + exposed_s, latency_s=terms.latency_s + sums_s,
        ends_s=terms.ends_s + sums_s, facts=facts, peak_s=sum(launch.pipe_flops.values()) / gpu.peak(pipe),
    )  # fmt: skip


def _zeroed_s(launch: Convolution, gpu: Gpu) -> float:
    """Seconds of the pass that zeroes a data gradient's places that meet no output."""
    if launch.role != "input" or not _skips(launch):
        return 0.0
    return traffic_s(gpu, launch.write_bytes) + gpu.launch_overhead_s


def _exposed(launch: Convolution, k: float) -> float:
    """Share of the shorter of arithmetic and traffic that is not hidden."""
    if launch.searched or math.prod(launch.kernel) == 1:
        return 0.0
    return _EXPOSED_STEPS / (_EXPOSED_STEPS + k)


def _dimensions(launch: Convolution, channel_slice: float, *, phased: bool = True) -> tuple[int, int, float]:
    """m, n and k of a group's matmul; the channels at each window position are padded to whole slices."""
    window, places = math.prod(launch.kernel), launch.images * math.prod(launch.places_out)
    padded_in = _filled(launch.channels_in, channel_slice)
    if launch.role == "forward":
        return places, launch.channels_out, padded_in * window
    if launch.role == "weight":
        return int(padded_in * window), launch.channels_out, float(places)
    rows, taps = _met(launch, phased=phased)
    padded_out = _filled(launch.channels_out, channel_slice)
    return math.ceil(launch.images * rows), launch.channels_in, padded_out * taps


def _filled(channels: int, piece: float) -> float:
    """Channels filled up to whole pieces."""
    return math.ceil(channels / piece) * piece


def _phased(launch: Convolution, pipe: Pipe) -> bool:
    """Whether each phase of a data gradient's stride is a matmul of its own."""
    if len(launch.kernel) > 2 or pipe.engine == "tensor":
        return True
    return launch.searched if launch.itemsize == 4 else launch.itemsize > 4


def _skips(launch: Convolution) -> bool:
    """Whether the windows leave places of the input between them."""
    return any(step > size for step, size in zip(launch.stride, launch.kernel, strict=True))


def _met(launch: Convolution, *, phased: bool) -> tuple[float, float]:
    """Of a data gradient: the places of an image that are computed, and the taps of each. A place contributes to window
    / stride outputs; places that the stride skips are not computed, and taps that meet no output only where each phase
    of the stride is a matmul of its own."""
    places, window, phases = math.prod(launch.places_in), math.prod(launch.kernel), math.prod(launch.stride)
    if phased or _skips(launch):
        return places * min(window / phases, 1.0), max(window / phases, 1.0)
    return places, window


def _parts(launch: Convolution, gpu: Gpu, known: ConvolutionConstants, m: int, n: int, k: float) -> int:
    """The number of parts that k is split into so that few tiles still fill the GPU."""
    tiles = launch.groups * math.ceil(m / _SPLIT_TILE) * math.ceil(n / _SPLIT_TILE)
    if launch.role == "forward" and len(launch.kernel) > 2:
        return 1
    wanted = gpu.sm_count * max(known.lone_tile / _SPLIT_TILE**2, 1.0)
    shortest = _WEIGHT_PART_STEPS if launch.role == "weight" else known.part_steps
    return max(min(int(wanted / max(tiles, 1)), int(k / shortest)), 1)


def _direct(launch: Convolution, gpu: Gpu, pipe: Pipe, known: ConvolutionConstants, resident: int) -> Terms:
    m, n, k = _dimensions(launch, 1.0)
    kernel = _LATER if _has_tf32(gpu) else _EARLY
    if _is_strided_gradient(launch):
        kernel = _FLAT_STRIDED if len(launch.kernel) < 3 else _STRIDED
        rows, taps = _met(launch, phased=True)
        m, k = math.ceil(launch.images * rows), _filled(launch.channels_out, kernel.filled_to) * taps
    steps = launch.groups * m * _filled(n, kernel.columns) * (k + kernel.ramp)
    peak_s = sum(launch.pipe_flops.values()) / gpu.peak(pipe)
    loads_s = traffic_s(gpu, 0, steps * launch.itemsize / kernel.shared) if kernel.shared else 0.0
    issue_s = max(steps / (kernel.fma_clk * gpu.sm_count * gpu.boost_clock_hz) + loads_s, peak_s)
    memory_s = traffic_s(gpu, launch.bytes - resident, resident)
    facts = {"way": "direct", "pipe": pipe, "m": m, "n": n, "k": k, "columns": kernel.columns, "rate": kernel.fma_clk}
    return Terms(peak_s, memory_s, issue_s, issue_s + memory_s, 0.0, facts, peak_s)


def _is_strided_gradient(launch: Convolution) -> bool:
    return launch.role == "input" and max(launch.stride) > 1 and not _skips(launch)


def _has_matmuls_loop(launch: Convolution, gpu: Gpu, pipe: Pipe) -> bool:
    """Whether the library's implicit GEMMs are its matmuls with another way to load: of two bytes an element on Ampere
    and Ada (CUTLASS's, named sm80_xmma_fprop). Hopper's and Blackwell's matmuls multiply by instructions that these
    have not: with their constants six modules of an H200 are 57 % too fast in the mean, with the constants of implicit
    GEMMs 44 (profiles/measured/h200/families_times.csv)."""
    chip = chip_of(gpu)
    return pipe.engine == "tensor" and launch.itemsize == 2 and not chip.sliced_channels and chip.products == "mma"


class _Engine(NamedTuple):
    """Which launches it serves on which pipe, and its terms."""

    serves: Callable[[Convolution, Gpu, Pipe], bool]
    predict: Callable[[Convolution, Gpu, Pipe, ConvolutionConstants, int], Terms]


def _serves_gemm(launch: Convolution, gpu: Gpu, pipe: Pipe) -> bool:
    if _has_matmuls_loop(launch, gpu, pipe):
        return False
    is_flat, is_strided = len(launch.kernel) < 3, _is_strided_gradient(launch)
    if launch.groups > 1 and not is_flat:  # 64 channels in 4 groups take the direct kernel's time on an H200
        return False
    if pipe.engine == "tensor" and pipe.dtype != "tf32":
        return True
    wide_k, wide = launch.channels_out >= _GRADIENT_CHANNELS, launch.channels_in >= _GRADIENT_CHANNELS
    if launch.searched or launch.itemsize != 4:
        wide_k = wide = True
    if pipe.engine == "vector":
        return (wide_k or not is_strided) if is_flat else launch.role == "input" and wide and wide_k and not is_strided
    if launch.role == "input":
        return wide if is_strided and not is_flat else wide_k
    return is_flat or launch.channels_in >= _TENSOR_CHANNELS or chip_of(gpu).shared_bytes > depthwise.LARGE_SHARED


def _serves_direct(launch: Convolution, gpu: Gpu, pipe: Pipe) -> bool:
    return pipe.engine == "vector" and (len(launch.kernel) > 2 or _is_strided_gradient(launch))


_ENGINES = (
    _Engine(_serves_gemm, _implicit_gemm), _Engine(_has_matmuls_loop, _warp_gemm),
    _Engine(winograd.serves_staged, winograd.staged), _Engine(winograd.serves_fused, winograd.fused),
    _Engine(_serves_direct, _direct),
)  # fmt: skip


def explain(launch: Convolution, gpu: Gpu, known: ConvolutionConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    facts, copies = terms.facts, ""
    if facts.get("copies_s"):
        layout = "NCHW" if launch.channels_last else "channels last"
        copies = f"; {duration(facts['copies_s'])} of the traffic copies to {layout} and back"
    said = _SAID[facts["way"]](launch, gpu, facts)
    if made := _MADE.get((launch.role, launch.transposed)):
        said = f"{made}: {said[0].lower() if said.startswith('A') else said[0]}{said[1:]}"
    return f"{said}; {_walls(launch, terms)}{copies}."


#: (role of a launch, whether the layer is transposed) -> what it makes, where that is not a convolution's result
_MADE = {
    ("input", False): "Data gradient",
    ("weight", False): "Weight gradient",
    ("input", True): "Transposed convolution, run as the data gradient of a convolution",
    ("forward", True): "Data gradient of a transposed convolution, which is a convolution of the gradient",
    ("weight", True): "Weight gradient of a transposed convolution, with data and gradient in each other's place",
}


def _say_direct(launch: Convolution, gpu: Gpu, facts: Facts) -> str:
    return (
        f"A direct kernel ({_why_direct(launch, gpu)}) runs {_sizes(facts)} in tiles"
        f" {facts['columns']} wide at {facts['rate']:.0f} multiply-adds per clock of each of {gpu.sm_count} SMs,"
        " since each multiply-add loads its operand"
    )


def _say_fused(launch: Convolution, gpu: Gpu, facts: Facts) -> str:
    return (
        f"Winograd in one kernel, which transforms the weights too: 16 matmuls {_sizes(facts)} in {facts['blocks']}"
        f" blocks of {winograd.FUSED_BLOCK} squares by {winograd.FUSED_BLOCK} channels on {gpu.sm_count} SMs ="
        f" {facts['blocks'] / gpu.sm_count:.3g} waves, run as {facts['rounds']}; {_plateau(gpu, facts)}"
    )


def _say_staged(launch: Convolution, gpu: Gpu, facts: Facts) -> str:
    return (
        f"Winograd, {facts['points']} matmuls {_tiles(gpu, facts)}; the transforms before and after them take"
        f" {duration(facts['transforms_s'])}, with {size(facts['between'])} between the stages"
    )


def _say_gemm(launch: Convolution, gpu: Gpu, facts: Facts) -> str:
    split = f" with k split in {facts['parts']}" if facts["parts"] > 1 else ""
    pipe, asked = facts["pipe"], gpu.ceiling_pipe(launch.pipe)
    units = "tensor cores" if pipe.engine == "tensor" else "vector units"
    quicker = ", which takes less time here than tensor cores would" if pipe.engine != asked.engine else ""
    gaps = _gaps(launch, pipe)
    return f"An implicit GEMM on {units} ({pipe.dtype}{quicker}){split}: {_tiles(gpu, facts)}{gaps}"


#: way of a launch -> what it does, in words
_SAID: Mapping[str, Callable[[Convolution, Gpu, Facts], str]] = {
    "depthwise": depthwise.say, "direct": _say_direct, "fused Winograd": _say_fused, "Winograd": _say_staged,
    "implicit GEMM": _say_gemm,
}  # fmt: skip


def _sizes(facts: Facts) -> str:
    return f"{facts['m']}x{facts['n']}x{facts['k']:.0f}"


def _tiles(gpu: Gpu, facts: Facts) -> str:
    (rows, columns), waves, rounds = facts["tile"], facts["tiles"] / gpu.sm_count, facts["rounds"]
    waiting = ", too few to fill the multiprocessors" if facts.get("small") else ""
    return (
        f"{_sizes(facts)} in {counted(facts['tiles'], 'tile')} of {rows}x{columns} on {gpu.sm_count} SMs ="
        f" {waves:.3g} waves, run as {rounds:.3g} ({percent(waves / max(rounds, 1), 0)}){waiting};"
        f" {_plateau(gpu, facts)}"
    )


def _plateau(gpu: Gpu, facts: Facts) -> str:
    return f"the plateau is {percent(facts['plateau'], 0)} of {flop_rate(gpu.peak(facts['pipe']), facts['pipe'])}"


def _why_direct(launch: Convolution, gpu: Gpu) -> str:
    """Why a launch is given to a direct kernel."""
    if len(launch.kernel) < 3:
        return "a data gradient with a stride and few channels"
    pipe = gpu.ceiling_pipe(launch.pipe)
    if launch.groups > 1:
        return "three dimensions in groups"
    if pipe.engine == "vector":
        return f"three dimensions, and no tensor cores for {launch.pipe.dtype}"
    if _serves_gemm(launch, gpu, pipe):
        return "three dimensions; it takes less time than tensor cores would"
    return "three dimensions, and too few channels to be given to tensor cores"


def _gaps(launch: Convolution, pipe: Pipe) -> str:
    """What the stride of a data gradient costs."""
    if launch.role != "input":
        return ""
    if _skips(launch):
        return "; the places that the stride skips are zeroed before"
    gaps = math.prod(launch.stride)
    runs_over = gaps > 1 and not _phased(launch, pipe)
    return f"; 1 in {gaps} taps meets an output, since the kernel runs over the gaps of the stride" if runs_over else ""


def _walls(launch: Convolution, terms: Terms) -> str:
    text = f"{duration(terms.compute_s)} of arithmetic against {duration(terms.memory_s)} for {size(launch.bytes)}"
    return f"{text} and {duration(terms.latency_s)} of latency" if terms.latency_s else text
