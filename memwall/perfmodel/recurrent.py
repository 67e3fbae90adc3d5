"""How a library runs recurrent layers: a chain of waves on the GPU, against the host that launches its kernels.

cuDNN's standard algorithm multiplies the inputs of a layer for all steps at once; each step is then a recurrent matmul
and the cell. A step waits for the step before it and for the layer below, so that layers of one direction overlap::

    waves   = steps + layers - 1; with two directions, each layer needs both ends of the one below: steps x layers
    wave_s  = matmuls of all layers and directions at work + cells at L2's rate + a launch latency for each kernel
    chain_s = matmuls for all steps + waves x wave_s
    feed_s  = kernels x library_launch_s of the host, whose thread launches one after another
    time_s  = max(chain_s, feed_s)

6 layers of 256 over 512 steps of 10 rows take 5.1 us per step, layer and direction on an L40S, 7 to 12 on cloud
machines with A100, A10G and T4, whatever the cell and the number of directions: that is the host (KernelBench).

Persistent kernels keep the recurrent weights on chip; a step is then their matmul, and a barrier. PyTorch asks for
them under the conditions of ``aten/src/ATen/native/cudnn/RNN.cpp``, ``get_algo`` (:func:`persistent`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from memwall.core.units import counted, duration, size
from memwall.hardware.chips import target_of
from memwall.hardware.constants import GemmConstants, RecurrentConstants, VectorGemmConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.product_launches import Gemm, Recurrent
from memwall.perfmodel import gemm, gemm_vector
from memwall.perfmodel.base import Terms, constants, kept_share, traffic_s

#: elements of the cell's states and results that it moves, apart from two matmuls for each gate
_STATES = 4
#: multiprocessors from which PyTorch takes persistent kernels on compute capability 8.0 and later (RNN.cpp)
_LEAST_SM_COUNT = 98


@dataclass(frozen=True, slots=True)
class _Wave:
    """What runs side by side, and its seconds."""

    count: int
    #: steps of layers and directions at work, on average
    side: int
    product: Terms
    time_s: float


def predict(launch: Recurrent, gpu: Gpu, known: RecurrentConstants, resident_bytes: int = 0) -> Terms:
    """The terms of a launch with the constants given."""
    why = persistent(launch, gpu)
    whole = [_product(gpu, one, 0) for one in _whole(launch)]
    wave = _persistent_wave(launch, gpu, known) if why else _wave(launch, gpu)
    dropout_s = traffic_s(gpu, 2 * (launch.layers - 1) * launch.dropout * _row_bytes(launch))
    whole_s = sum(terms.time_s for terms in whole) + dropout_s
    chain_s = whole_s + wave.count * wave.time_s
    feed_s = _kernels(launch, gpu) * gpu.host.library_launch_s
    compute_s = sum(terms.compute_s for terms in whole) + wave.count * wave.product.compute_s
    memory_s = sum(terms.memory_s for terms in whole) + dropout_s + wave.count * wave.product.memory_s
    latency_s = max(feed_s, wave.count * (wave.time_s - max(wave.product.compute_s, wave.product.memory_s)))
    facts = {"why": why, "wave": wave, "whole_s": whole_s, "chain_s": chain_s, "feed_s": feed_s}
    return Terms(compute_s, memory_s, latency_s, max(chain_s, feed_s), 0.0, facts)


def persistent(launch: Recurrent, gpu: Gpu) -> str:
    """Why PyTorch asks for a persistent kernel, in words; empty for the standard algorithm."""
    if not target_of(gpu).startswith("sm_"):
        return ""
    if launch.is_small:
        return f"a hidden size of {launch.hidden} is small"
    alone = launch.layers == launch.directions == 1 and not (launch.packed or launch.is_projected)
    even = launch.hidden <= 1024 and launch.hidden % 128 == 0 and launch.inputs % 128 == 0
    if launch.dtype == "float16" and alone and even and _serves_batch(launch, gpu):
        return "it is float16, has one layer and direction, and its features are multiples of 128"
    return ""


def _serves_batch(launch: Recurrent, gpu: Gpu) -> bool:
    """``use_persist_device_heuristics``, by compute capability and batch."""
    target, batch = target_of(gpu), _batch(launch)
    if target == "sm_70":
        longest = 32 if launch.steps < 20 else 96 if launch.steps < 40 else 128
        whole = batch == 8 or (batch % 16 == 0 and batch not in (80, 112))
        return whole and launch.steps >= 10 and batch <= longest
    if not gpu.compute_capability or float(gpu.compute_capability) < 8 or target == "sm_86":
        return False
    fits = batch % 8 == 0 and batch <= 128 and gpu.sm_count >= _LEAST_SM_COUNT
    if launch.cell in ("lstm", "gru"):
        return fits and launch.cell == "lstm"
    return fits and (batch < 96 or launch.hidden < 896)


def _kernels(launch: Recurrent, gpu: Gpu) -> int:
    """Launches that the host makes: a persistent kernel of a layer runs all of its steps."""
    return 2 * launch.layers * launch.directions if persistent(launch, gpu) else launch.count


def _batch(launch: Recurrent) -> int:
    return math.ceil(launch.rows / launch.steps)


def _row_bytes(launch: Recurrent) -> int:
    """Of a layer's results."""
    return launch.rows * launch.directions * launch.state * launch.itemsize


# -- matmuls ----------------------------------------------------------------------------------------------------------


def _whole(launch: Recurrent) -> Iterator[Gemm]:
    """The matmuls over all steps: of the inputs, or the gradients of inputs and weights."""
    gates, rows = launch.gates * launch.hidden, launch.rows
    for layer in range(launch.layers):
        inputs = launch.directions * launch.state if layer else launch.inputs
        for _ in range(launch.directions):
            if not launch.backward:
                yield _gemm(launch, rows, gates, inputs)
                continue
            yield _gemm(launch, rows, inputs, gates)
            if launch.of_weights:
                yield _gemm(launch, gates, inputs, rows)
                yield _gemm(launch, gates, launch.state, rows)
                if launch.is_projected:
                    yield _gemm(launch, launch.state, launch.hidden, rows)


def _steps(launch: Recurrent, side: int) -> Iterator[Gemm]:
    """The matmuls of ``side`` steps at once, as one of so many times the columns: independent matmuls fill the
    multiprocessors together."""
    gates, backward = launch.gates * launch.hidden, launch.backward
    pairs = [(gates, launch.state)] + [(launch.state, launch.hidden)] * launch.is_projected
    for columns, depth in ((k, n) if backward else (n, k) for n, k in pairs):
        yield _gemm(launch, _batch(launch), side * columns, depth, side)


def _gemm(launch: Recurrent, m: int, n: int, k: int, lefts: int = 1) -> Gemm:
    read, written = lefts * m * k + k * n, m * n
    return Gemm(
        pipe=launch.pipe,
        batch=1,
        m=m,
        n=n,
        k=k,
        itemsize=launch.itemsize,
        read_bytes=launch.itemsize * read,
        write_bytes=launch.itemsize * written,
    )


def _product(gpu: Gpu, launch: Gemm, resident_bytes: int) -> Terms:
    pipe = gpu.ceiling_pipe(launch.pipe)
    if pipe.engine == "tensor" and pipe.dtype not in ("float32", "float64"):
        return gemm.predict(launch, gpu, constants(GemmConstants, gpu, launch.variant), resident_bytes)
    vector = gemm_vector.on_vector_units(launch, pipe)
    return gemm_vector.predict(vector, gpu, constants(VectorGemmConstants, gpu, vector.variant), resident_bytes)


# -- waves -------------------------------------------------------------------------------------------------------------


def _waves(launch: Recurrent) -> tuple[int, int]:
    """Waves, and the steps of layers and directions that a wave runs."""
    if launch.directions > 1:
        return launch.steps * launch.layers, launch.directions
    waves = launch.steps + launch.layers - 1
    return waves, max(round(launch.steps * launch.layers / waves), 1)


def _wave(launch: Recurrent, gpu: Gpu) -> _Wave:
    """A wave of the standard algorithm; L2 keeps states and, where they fit, the weights that are at work."""
    count, side = _waves(launch)
    products = list(_steps(launch, side))
    at_work = min(side, launch.layers * launch.directions)
    kept = kept_share(gpu, at_work * launch.gates * launch.hidden * launch.state * launch.itemsize)
    terms = [_product(gpu, one, int(one.read_bytes * kept)) for one in products]
    cell_bytes = side * _batch(launch) * launch.hidden * (2 * launch.gates + _STATES) * launch.itemsize
    time_s = sum(each.time_s for each in terms) + traffic_s(gpu, 0, cell_bytes)
    time_s += (len(products) + 1) * gpu.launch_overhead_s
    whole = Terms.of(sum(each.compute_s for each in terms), sum(each.memory_s for each in terms))
    return _Wave(count, side, whole, time_s)


def _persistent_wave(launch: Recurrent, gpu: Gpu, known: RecurrentConstants) -> _Wave:
    """A step of a persistent kernel: layers run one after another, directions side by side."""
    flops = sum(one.flops for one in _steps(launch, launch.directions))
    compute_s = flops / (gpu.peak(launch.pipe) * gpu.achievable_fraction(launch.pipe))
    time_s = compute_s + known.step_clk / gpu.boost_clock_hz
    return _Wave(launch.steps * launch.layers, launch.directions, Terms.of(compute_s, 0.0), time_s)


# -- in words ----------------------------------------------------------------------------------------------------------


def explain(launch: Recurrent, gpu: Gpu, known: RecurrentConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    facts, wave = terms.facts, terms.facts["wave"]
    layers = counted(launch.layers, "layer") + (" in two directions" if launch.directions > 1 else "")
    name = {"lstm": "an LSTM", "gru": "a GRU"}.get(launch.cell, "an RNN")
    name = f"The gradient of {name}" if launch.backward else f"A{name[1:]}"
    work = f"{name} of {layers}, {counted(launch.steps, 'step')} of {counted(_batch(launch), 'row')}"
    of_all = "gradients of inputs and weights" if launch.backward else "matmuls of the inputs"
    before = f"{of_all} over all steps take {duration(facts['whole_s'])}"
    if facts["why"]:
        return (
            f"{work}, by a persistent kernel, since {facts['why']}: the recurrent weights stay on chip; {before}, then"
            f" {counted(wave.count, 'step')} of {duration(wave.time_s)} each follow one another: the matmul and"
            f" {known.step_clk:.0f} clocks until all blocks have the new state."
        )
    product = next(_steps(launch, 1))
    weights = launch.gates * launch.hidden * launch.state * launch.itemsize
    longer = "longer than" if facts["feed_s"] > facts["chain_s"] else "less than"
    fed = (
        f"the host needs {duration(facts['feed_s'])} to launch {counted(launch.count, 'kernel')} at"
        f" {duration(gpu.host.library_launch_s)}, {longer} the {duration(facts['chain_s'])} of the GPU"
    )
    if not facts["feed_s"]:
        fed = f"{duration(facts['chain_s'])} in all, since no host launches them one by one"
    return (
        f"{work}, by {_library(gpu)} ({_refused(launch, gpu)}): {before}, then {wave.count:,} waves of"
        f" {counted(wave.side, 'step')}{' side by side' * (wave.side > 1)} take {duration(wave.time_s)} each, a matmul"
        f" {product.m}x{product.n}x{product.k} with {size(weights)} of weights, the cell"
        f"{', the projection' * launch.is_projected} and {counted(3 if launch.is_projected else 2, 'launch')} at"
        f" {duration(gpu.launch_overhead_s)}; {fed}."
    )


def _library(gpu: Gpu) -> str:
    cudnn = "cuDNN's standard algorithm"
    return cudnn if target_of(gpu).startswith("sm_") else f"MIOpen, taken to run as {cudnn} does"


def _refused(launch: Recurrent, gpu: Gpu) -> str:
    """Why no persistent kernel runs."""
    if not target_of(gpu).startswith("sm_"):
        return f"no persistent kernel is known for {gpu.name}"
    if launch.is_projected:
        return "projections have no persistent kernel"
    if launch.packed:
        return "sequences of different lengths have no persistent kernel"
    if launch.dtype != "float16":
        return f"{launch.dtype} with a hidden size of {launch.hidden} has no persistent kernel"
    return f"PyTorch takes no persistent kernel for this shape on {gpu.name}"
