"""aiconfigurator's tables of inference servers (ai-dynamo/aiconfigurator): mixtures of experts and latent attention.

``num_tokens`` of experts are the tokens of all GPUs that share them, of which the one with most rows is timed; sizes
are the model's. The collector deals tokens to experts in turn, or by a power law drawn five times. SGLang's Triton and
Marlin kernels are timed with the tokens of that GPU alone, all whose choices elsewhere are made its first expert's; its
Triton kernels have no 4-bit weights, which are made bfloat16 before (they are read at the rate of bfloat16).
"""

from __future__ import annotations

from dataclasses import replace

from memwall.bench.accuracy.kinds import Record, Skip
from memwall.ops import served_calls
from memwall.ops.experts import SCHEMES, cost_of_experts
from memwall.ops.routing import IN_TURN, ExpertRouting, Loads, loads_of
from memwall_lab.tables.base import Call, Table, count, gpu_named, known, size

#: experts of two matrices, with a squared ReLU between them: (hidden, inter, experts) of NVIDIA's Nemotron 3
_PLAIN = {(2688, 1856, 128), (4096, 2688, 512), (1024, 2688, 512), (8192, 5120, 512), (2048, 5120, 512)}

_SIZES = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
#: vLLM's kernels that skip the choices of experts elsewhere only in the products
_ALL_ROWS = ("triton_tritonexperts", "marlin", "fused_moe")
#: DeepSeek-V3: hidden, experts
_GROUPED = (7168, 256)
_ROUTINGS = {"balanced": IN_TURN, "power_law_1.01": ExpertRouting(skew=1.01), "power_law_1.2": ExpertRouting(skew=1.2)}
_LATENT_DTYPES = {"bfloat16": "bfloat16", "fp8": "fp8"}
_LATENT_PRODUCTS = {"mla_gen_pre": "mla_gen_pre", "mla_gen_post": "mla_gen_post"}
#: SGLang's kernels that attend to latents in prefill too: their longest rows take the FLOPs of 1088 numbers a pair at
#: the rate at which others' take the FLOPs of 320
_ABSORBED = ("flash_attention", "triton")
#: servers whose attention is timed in eager calls: none of their rows is shorter than 0.1 ms
_EAGER = ("vllm",)


def _experts(record: Record) -> Call:
    gpu_named(record["gpu"])  # its skips come first
    dtype, engine, source = record["moe_dtype"], record["framework"], record["kernel_source"]
    sizes = tuple(size(record, name) for name in _SIZES)
    tokens, hidden, inter, top_k, experts, tp, ep = sizes
    if experts % ep or top_k > experts:
        raise ValueError(f"{top_k} of {experts} experts on {ep} GPUs do not divide")
    law = record["distribution"]
    if law == "balanced" and "flashinfer_trtllm" in source and (hidden, experts) == _GROUPED:
        raise Skip("DeepSeek-V3's kernels route within groups of experts, not as the table says")
    routing = known(_ROUTINGS, law, "distribution")
    loads = loads_of(tokens, experts, top_k, ep, routing)
    known(SCHEMES, dtype, "dtype")
    scheme = "bfloat16" if source.startswith("sglang_fused_moe_triton") and "mxfp4" in dtype else dtype
    gates = 1 if (hidden, inter, experts) in _PLAIN else 2
    moved = tokens * top_k if source.startswith("vllm") and any(name in source for name in _ALL_ROWS) else 0
    cost = cost_of_experts(tokens, hidden, -(-inter // tp), loads, scheme, engine, gates=gates, moved_rows=moved)
    if ep > 1 and source.startswith(("sglang_fused_moe_triton", "sglang_marlin")):
        loads = _with_others(loads, tokens, top_k)
        more = cost_of_experts(tokens, hidden, -(-inter // tp), loads, scheme, engine, gates=gates)
        cost = replace(cost, launches=more.launches)
    shape = ",".join(map(str, (*sizes, law)))
    named = f"{engine} {source} {shape}"
    return Call(op_class="experts", dtype=dtype, shape=named, cost=cost, split=shape, drawn=routing.skew > 0)


def _with_others(loads: Loads, tokens: int, top_k: int) -> Loads:
    """The loads with all choices of the GPU's tokens, the choices of experts elsewhere on its fullest one."""
    (most, experts), *others = loads
    rows = sum(count * each for count, each in loads)
    first = (most + min(tokens, rows) * top_k - rows, 1)
    return (first, *((most, experts - 1) for _ in range(experts > 1)), *others)


def _latent(record: Record) -> Call:
    gpu_named(record["gpu"])
    kind, engine, heads = record["kind"], record["framework"], size(record, "num_heads")
    if kind == "mla_bmm":
        source, tokens, name = record["kernel_source"], size(record, "num_tokens"), record["op_name"]
        dtype = "bfloat16" if "dequant_bf16" in source else known(_LATENT_DTYPES, record["bmm_dtype"], "dtype")
        cost = served_calls.latent_product(tokens, heads, known(_LATENT_PRODUCTS, name, "product"), dtype)
        shape = f"{name},{heads},{tokens}"
        return Call(op_class="latent product", dtype=dtype, shape=f"{engine} {source} {shape}", cost=cost, split=shape)
    batch, cache = size(record, "batch_size"), known(_LATENT_DTYPES, record["kv_cache_dtype"], "dtype")
    known({"bfloat16": 2}, record["mla_dtype"], "dtype")
    if kind == "generation_mla":
        keys = count(record, "step") + size(record, "isl")
        cost = served_calls.latent_decode(batch, heads, keys, cache, engine=engine, eager=engine in _EAGER)
        op_class, shape = "latent decode", f"decode b={batch},h={heads},k={keys}"
    else:
        queries, prefix = size(record, "isl"), count(record, "step")
        absorbed = engine == "sglang" and record["kernel_source"] in _ABSORBED
        cost = served_calls.latent_prefill(
            batch, heads, queries, queries + prefix, cache, engine=engine, absorbed=absorbed, eager=engine in _EAGER
        )  # fmt: skip
        op_class, shape = "latent prefill", f"prefill b={batch},h={heads},q={queries},k={queries + prefix}"
    return Call(op_class=op_class, dtype=cache, shape=f"{engine} {shape}", cost=cost, split=shape)


EXPERTS = Table(
    "aiconfigurator_moe", f"gpu framework kernel_source moe_dtype {' '.join(_SIZES)} distribution latency_ms", _experts
)
LATENT = Table(
    "aiconfigurator_mla", "gpu framework kind op_name kernel_source mla_dtype kv_cache_dtype bmm_dtype num_heads "
    "batch_size isl step num_tokens latency_ms", _latent,
)  # fmt: skip
