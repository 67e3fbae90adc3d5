"""How well each kind of kernel uses a GPU: the time of a launch from its geometry and the GPU's constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from memwall.core.units import bandwidth, flop_rate, flops, percent, size
from memwall.hardware.constants import CONSTANTS, PlainConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.launches import Conversion, Launch, Plain, Reduction
from memwall.ops.product_launches import Convolution, FusedAttention, Gemm, QuantisedGemm, Recurrent, VectorGemm
from memwall.ops.serving import ChosenLatent, ExpertsLaunch, LatentLaunch
from memwall.perfmodel import (
    attention,
    chosen,
    convolution,
    experts,
    gemm,
    gemm_vector,
    latent,
    recurrent,
    reduction,
    rows,
    stream,
    tpu,
    walk,
)
from memwall.perfmodel.base import CALIBRATED, Terms, calibrated, constants, interval, table_of, traffic_s

__all__ = [
    "CALIBRATED", "MODELS", "FamilyModel", "Terms", "as_run", "calibrated", "constants", "explain", "interval",
    "predict", "table_of",
]  # fmt: skip


#: Kinds of launches that have FLOPs.
MATRIX = (Gemm, Convolution, FusedAttention, LatentLaunch, ChosenLatent, Recurrent, ExpertsLaunch)


def _predict_plain(launch: Plain, gpu: Gpu, known: PlainConstants, resident_bytes: int = 0) -> Terms:
    """FLOPs at the fraction of the peak that large matmuls reach, bytes at a triad's share of the bandwidth."""
    compute_s = sum((n / (gpu.peak(p) * gpu.achievable_fraction(p)) for p, n in launch.flops.items()), 0.0)
    resident = min(resident_bytes, launch.read_bytes)
    return Terms.of(compute_s, traffic_s(gpu, launch.bytes - resident, resident), facts={"resident": resident})


def _explain_plain(launch: Plain, gpu: Gpu, known: PlainConstants, terms: Terms) -> str:
    rates = ", ".join(
        f"{flops(n)} at {percent(gpu.achievable_fraction(p), 0)} of {flop_rate(gpu.peak(p), p)}"
        for p, n in launch.flops.items()
    )
    cached = f", {size(terms.facts['resident'])} of them from L2" if terms.facts["resident"] else ""
    moved = f"{size(launch.bytes)} at {percent(gpu.achievable['dram'], 0)} of {bandwidth(gpu.dram_bytes_per_s)}{cached}"
    if launch.flops and not any(launch.flops.values()):
        return f"there is nothing to compute; {moved}."
    work_text = f"{rates}; {moved}" if rates else moved
    return f"no model of this kernel's shape, so the roofline at what is achievable: {work_text}."


class FamilyModel(NamedTuple):
    """A family: (launch, GPU, constants, bytes of its reads that are in L2) -> terms; and the sentence about them."""

    predict: Callable[[Any, Gpu, Any, int], Terms]
    explain: Callable[[Any, Gpu, Any, Terms], str]


MODELS: Mapping[str, FamilyModel] = {
    "gemm": FamilyModel(gemm.predict, gemm.explain),
    "convolution": FamilyModel(convolution.predict, convolution.explain),
    "attention": FamilyModel(attention.predict, attention.explain),
    "rows": FamilyModel(rows.predict, rows.explain),
    "stream": FamilyModel(stream.predict, stream.explain),
    "recurrent": FamilyModel(recurrent.predict, recurrent.explain),
    "latent": FamilyModel(latent.predict, latent.explain),
    "experts": FamilyModel(experts.predict, experts.explain),
    "walk": FamilyModel(walk.predict, walk.explain),
    "gemm_vector": FamilyModel(gemm_vector.predict, gemm_vector.explain),
    "plain": FamilyModel(_predict_plain, _explain_plain),
    "tpu": FamilyModel(tpu.predict, tpu.explain),
}


def predict(launch: Launch, gpu: Gpu, resident_bytes: int = 0) -> Terms:
    """The terms of a launch; ``resident_bytes`` of its reads are in L2 already."""
    return terms_of(as_run(launch, gpu), gpu, resident_bytes)


def terms_of(launch: Launch, gpu: Gpu, resident_bytes: int = 0) -> Terms:
    """The terms of a launch as the GPU runs it."""
    known = constants(CONSTANTS[launch.FAMILY], gpu, launch.variant)
    return MODELS[launch.FAMILY].predict(launch, gpu, known, resident_bytes)


def as_run(launch: Launch, gpu: Gpu) -> Launch:
    """The launch as a GPU runs it: a reduction in the blocks that it has there, a matmul on vector units where there
    are no tensor cores for the dtype, a quantised one with weights dequantised, and plain FLOPs and bytes where there
    is nothing to compute or no family describes the kernels; on a TPU as its units do it."""
    if isinstance(launch, (Plain, tpu.TensorCoreWork)):
        return launch
    is_empty = isinstance(launch, MATRIX) and not any(launch.pipe_flops.values())
    if is_empty or not (gpu.has_multiprocessors or gpu.tpu):
        flops = launch.pipe_flops
        return Plain(read_bytes=launch.read_bytes, write_bytes=launch.write_bytes, count=launch.latencies, flops=flops)
    if isinstance(launch, Conversion) and gpu.ceiling_pipe(launch.product) != launch.product:
        return Plain(count=0)
    if gpu.tpu is not None:
        return tpu.on_tensor_core(launch, gpu)
    if isinstance(launch, Reduction):
        return reduction.as_stream(launch, gpu)
    if isinstance(launch, ChosenLatent):
        return chosen.as_walk(launch, gpu)
    if isinstance(launch, Convolution):
        return replace(launch, pipe=gpu.ceiling_pipe(launch.pipe))
    if isinstance(launch, QuantisedGemm):
        launch = gemm.dequantised(launch, gpu)
    if isinstance(launch, VectorGemm) or not isinstance(launch, Gemm):
        return launch
    if (pipe := gpu.ceiling_pipe(launch.pipe)).engine == "vector":
        return gemm_vector.on_vector_units(launch, pipe)
    return launch


def explain(launch: Launch, gpu: Gpu, terms: Terms) -> str:
    """One sentence with numbers: why the launch takes its time."""
    launch = as_run(launch, gpu)
    known = constants(CONSTANTS[launch.FAMILY], gpu, launch.variant)
    return MODELS[launch.FAMILY].explain(launch, gpu, known, terms)
