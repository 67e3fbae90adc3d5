"""How well each kind of kernel uses a GPU: the time of a launch from its geometry and the GPU's constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from memwall.hardware import Gpu
from memwall.utilization import attention, convolution, gemm, gemm_vector, plain, rows, stream
from memwall.utilization.base import CALIBRATED, Terms, calibrated, constants, interval, table_of
from memwall.work import CONSTANTS, Plain, Work

__all__ = [
    "CALIBRATED", "MODELS", "Model", "Terms", "as_run", "calibrated", "constants", "explain", "interval",
    "predict", "table_of",
]  # fmt: skip


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


def predict(work: Work, gpu: Gpu, resident_bytes: int = 0) -> Terms:
    """The terms of a launch; ``resident_bytes`` of what it reads lie in L2 already."""
    work = as_run(work, gpu)
    known = constants(CONSTANTS[work.FAMILY], gpu, work.variant)
    return MODELS[work.FAMILY].predict(work, gpu, known, resident_bytes)


def as_run(work: Work, gpu: Gpu) -> Work:
    """The launch as a GPU's model knows it: no more than its FLOPs and bytes where other kernels run than ours."""
    if gpu.has_multiprocessors or isinstance(work, Plain):
        return work
    return Plain(read_bytes=work.read_bytes, write_bytes=work.write_bytes, flops=work.pipe_flops)


def explain(work: Work, gpu: Gpu, terms: Terms) -> str:
    """One sentence: why the launch takes its time, with the numbers."""
    work = as_run(work, gpu)
    known = constants(CONSTANTS[work.FAMILY], gpu, work.variant)
    return MODELS[work.FAMILY].explain(work, gpu, known, terms)
