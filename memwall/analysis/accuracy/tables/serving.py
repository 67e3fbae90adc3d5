"""aiconfigurator's tables of inference servers (ai-dynamo/aiconfigurator): mixtures of experts and latent attention.

``num_tokens`` of experts are those of all GPUs that share them, of which the one with most rows is timed; sizes are the
model's. The collector deals tokens to experts in turn, or by a power law drawn five times. SGLang's Triton and Marlin
kernels are timed with the tokens of that GPU alone, all whose choices elsewhere are made its first expert's; its Triton
kernels have no 4-bit weights, which are made bfloat16 before (they are read at the rate of bfloat16).
"""

from __future__ import annotations

from memwall.analysis.accuracy.tables.base import Call, Record, Table, gpu_named, known, size
from memwall.ops.experts import SCHEMES, Loads, cost_of_experts, loads_of

#: experts of two matrices, with a squared ReLU between them: (hidden, inter, experts) of NVIDIA's Nemotron 3
_PLAIN = {(2688, 1856, 128), (4096, 2688, 512), (1024, 2688, 512), (8192, 5120, 512), (2048, 5120, 512)}

_SIZES = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
#: routing -> exponent of its power law
_SKEWS = {"balanced": 0.0, "power_law_1.01": 1.01, "power_law_1.2": 1.2}


def _experts(record: Record) -> Call:
    gpu_named(record["gpu"])  # its skips come first
    dtype, engine, source = record["moe_dtype"], record["framework"], record["kernel_source"]
    sizes = tuple(size(record, name) for name in _SIZES)
    tokens, hidden, inter, top_k, experts, tp, ep = sizes
    if experts % ep or top_k > experts:
        raise ValueError(f"{top_k} of {experts} experts on {ep} GPUs do not divide")
    law = record["distribution"]
    skew = float(known(_SKEWS, law, "distribution"))
    loads = loads_of(tokens, experts, top_k, ep, skew=skew, even=not skew)
    own_tokens = engine == "sglang" and source.startswith(("sglang_fused_moe_triton", "sglang_marlin"))
    if own_tokens and ep > 1:
        loads = _with_others(loads, tokens, top_k)
    known(SCHEMES, dtype, "dtype")
    scheme = "bfloat16" if source.startswith("sglang_fused_moe_triton") and "mxfp4" in dtype else dtype
    gates = 1 if (hidden, inter, experts) in _PLAIN else 2
    cost = cost_of_experts(tokens, hidden, -(-inter // tp), loads, scheme, engine, gates=gates)
    shape = ",".join(map(str, (*sizes, law)))
    return Call(op_class="experts", dtype=dtype, shape=f"{engine} {source} {shape}", cost=cost, split=shape)


def _with_others(loads: Loads, tokens: int, top_k: int) -> Loads:
    """The loads with all choices of the GPU's tokens, those of experts elsewhere on its fullest one."""
    (most, experts), *others = loads
    rows = sum(count * each for count, each in loads)
    first = (most + min(tokens, rows) * top_k - rows, 1)
    return (first, *((most, experts - 1) for _ in range(experts > 1)), *others)


EXPERTS = Table(
    "aiconfigurator_moe", f"gpu framework kernel_source moe_dtype {' '.join(_SIZES)} distribution latency_ms", _experts
)
