"""Which kernel of an inference server attends to the latents that an index chose, on a GPU.

Sources: vLLM's ``flashmla_sparse.py`` (an fp8 cache is attended to by the decode kernel, prompts with fewer than 32
heads too; a bfloat16 cache and other prompts by the prefill kernel) and ``_get_backend_priorities`` of its
``platforms/cuda.py`` (compute capability 10: FlashInfer's kernels, which are TensorRT-LLM's, for fp8 caches and up to
16 heads, else FlashMLA's); TensorRT-LLM's ``forward_sparse_mla_kvcache_bf16`` (Hopper: one kernel for prompts and
decodes) and its own kernels on Blackwell; SGLang's names of kernels in its rows (aic_dsa_modules: ``flashmla_sparse``,
``flashmla_kv``, ``trtllm``, ``fa3``).
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from memwall.core.graph import Pipe
from memwall.hardware.chips import chip_of
from memwall.hardware.gpu import Gpu
from memwall.ops.launches import Launch, Walk
from memwall.ops.serving import ChosenLatent
from memwall.ops.sparse_attention import SPARSE_HEADS, SPARSE_KEYS

#: heads on a GPU from which vLLM casts an fp8 cache of prompts back, and up to which it takes FlashInfer's kernels
_CAST_BACK, _FEW = 32, 16


class SparseKernel(NamedTuple):
    """``kind``: its constants. ``shared``: steps of all blocks are shared evenly among the multiprocessors.
    ``all_places``: it walks along places that none fills, too."""

    kind: str
    shared: bool
    all_places: bool


FLASHMLA = SparseKernel("sparse_prefill", shared=False, all_places=True)
FLASHMLA_FILLED = SparseKernel("sparse_prefill", shared=False, all_places=False)
FLASHMLA_FP8 = SparseKernel("sparse_decode", shared=True, all_places=True)
TRTLLM_HOPPER = SparseKernel("sparse_rows", shared=False, all_places=True)
TRTLLM = {"bfloat16": SparseKernel("sparse_gen", True, False), "fp8": SparseKernel("sparse_gen_fp8", True, False)}


def kernel_of(launch: ChosenLatent, gpu: Gpu) -> SparseKernel | None:
    """The kernel of a launch; None: of a short cache, whose latents are all attended to."""
    blackwell = chip_of(gpu).products == "tcgen05"
    is_fp8, is_decode = launch.cache == "fp8", launch.dense is not None
    gen = TRTLLM["fp8" if is_fp8 else "bfloat16"]
    match launch.engine:
        case "vllm" if blackwell and (is_fp8 or launch.heads <= _FEW):
            return None if is_decode else gen
        case "vllm" if is_fp8 and (is_decode or launch.heads < _CAST_BACK):
            return FLASHMLA_FP8
        case "vllm":
            return FLASHMLA_FILLED
        case "trtllm" if not blackwell:
            return TRTLLM_HOPPER
        case "trtllm":
            return None if is_decode else gen
        case _ if is_fp8 and not blackwell:
            return FLASHMLA_FP8
        case _ if is_decode:
            return None
        case _:
            return gen if is_fp8 else FLASHMLA


def as_walk(launch: ChosenLatent, gpu: Gpu) -> Launch:
    """The launch as the kernel of a GPU runs it."""
    kernel = kernel_of(launch, gpu)
    if kernel is None:
        assert launch.dense is not None
        return launch.dense
    filled = launch.pairs / launch.rows
    steps = ceil((launch.chosen if kernel.all_places else filled) / SPARSE_KEYS)
    blocks = launch.rows * ceil(launch.heads / SPARSE_HEADS)
    flops = 2 * blocks * steps * SPARSE_HEADS * SPARSE_KEYS * (launch.size + launch.value)
    return Walk(
        kind=kernel.kind,
        blocks=blocks * steps if kernel.shared else blocks,
        steps=1 if kernel.shared else steps,
        paired=ceil(launch.heads / SPARSE_HEADS),
        pipe=Pipe("tensor", "fp8" if kernel.kind == "sparse_gen_fp8" else "bfloat16"),
        flops=flops,
        read_bytes=launch.read_bytes,
        write_bytes=launch.write_bytes,
    )
