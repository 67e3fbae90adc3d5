"""How well each kind of kernel uses a GPU: the time of a launch from its geometry and the GPU's constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from memwall.hardware.constants import CONSTANTS
from memwall.hardware.lookup import Gpu
from memwall.ops.launches import Attention, Convolution, Gemm, Launch, Plain, VectorGemm
from memwall.perfmodel import attention, convolution, gemm, gemm_vector, plain, rows, stream
from memwall.perfmodel.base import CALIBRATED, Terms, calibrated, constants, interval, table_of

__all__ = [
    "CALIBRATED", "MODELS", "Model", "Terms", "as_run", "calibrated", "constants", "explain", "interval",
    "predict", "table_of",
]  # fmt: skip


#: Kinds of work that have FLOPs, if any at all.
MATRIX = (Gemm, Convolution, Attention)


class Model(NamedTuple):
    """A family: (work, GPU, constants, bytes of its reads that lie in L2) -> terms; and the sentence about them."""

    predict: Callable[[Any, Gpu, Any, int], Terms]
    explain: Callable[[Any, Gpu, Any, Terms], str]


MODELS: Mapping[str, Model] = {
    "gemm": Model(gemm.predict, gemm.explain),
    "convolution": Model(convolution.predict, convolution.explain),
    "attention": Model(attention.predict, attention.explain),
    "rows": Model(rows.predict, rows.explain),
    "stream": Model(stream.predict, stream.explain),
    "gemm_vector": Model(gemm_vector.predict, gemm_vector.explain),
    "plain": Model(plain.predict, plain.explain),
}


def predict(work: Launch, gpu: Gpu, resident_bytes: int = 0) -> Terms:
    """The terms of a launch; ``resident_bytes`` of what it reads lie in L2 already."""
    work = as_run(work, gpu)
    known = constants(CONSTANTS[work.FAMILY], gpu, work.variant)
    return MODELS[work.FAMILY].predict(work, gpu, known, resident_bytes)


def as_run(work: Launch, gpu: Gpu) -> Launch:
    """The launch as a GPU runs it: a product on vector units where it has no tensor cores for the dtype; and no more
    than FLOPs and bytes where there is nothing to compute, or other kernels run than those that the families describe.
    """
    if isinstance(work, Plain):
        return work
    if gpu.has_multiprocessors and not (isinstance(work, MATRIX) and not any(work.pipe_flops.values())):
        if type(work) is Gemm and (pipe := gpu.ceiling_pipe(work.pipe)).engine == "vector":
            shape = {name: getattr(work, name) for name in ("batch", "m", "n", "k", "itemsize")}
            return VectorGemm(pipe=pipe, read_bytes=work.read_bytes, write_bytes=work.write_bytes, **shape)
        return work
    return Plain(read_bytes=work.read_bytes, write_bytes=work.write_bytes, flops=work.pipe_flops)


def explain(work: Launch, gpu: Gpu, terms: Terms) -> str:
    """One sentence: why the launch takes its time, with the numbers."""
    work = as_run(work, gpu)
    known = constants(CONSTANTS[work.FAMILY], gpu, work.variant)
    return MODELS[work.FAMILY].explain(work, gpu, known, terms)
