"""More tables of the wheel ``aisimulate`` (NVIDIA): linear attention, state spaces, sparse attention, casts.

The kernels are replayed in CUDA graphs on the same inputs, which L2 holds where they fit. What the collectors of its
source (ai-dynamo/aiconfigurator) time is not what the columns say everywhere:

- rows of Gated DeltaNet of TensorRT-LLM, and of SGLang 0.5.10, convolve the keys alone, begin without a state, and
  leave a float32 one of a bfloat16 one; others convolve queries, keys and values
- top-k rows are of scores that are all equal (``flat``) or of clear winners (``top_last``)
- the rows of a paged index share one cache: its tokens follow each other whatever the batch
- ``compute_scale`` is a difference of two times: a cast with its own scale, and one with a known scale
"""

from __future__ import annotations

from dataclasses import replace

from memwall.bench.accuracy.kinds import Record, Skip
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost, served_calls
from memwall.ops import linear_attention as linear
from memwall.ops import sparse_attention as sparse
from memwall.ops.product_launches import QuantisedGemm
from memwall.ops.quantised import product_of_stored
from memwall.perfmodel.base import kept_share
from memwall_lab.tables.base import Call, Table, count, gpu_named, known, positive, size


def _sizes(record: Record, *names: str) -> list[int]:
    return [size(record, name) for name in names]


def _call(kind: str, dtype: str, shape: str, cost: Cost) -> Call:
    return Call(op_class=kind, dtype=dtype, shape=f"{kind},{shape}", cost=cost)


# -- linear attention --------------------------------------------------------------------------------------------------


#: version of SGLang whose rows are as TensorRT-LLM's
_KEYS_ALONE = "0.5.10"


def _delta(record: Record) -> Call:
    batch, tokens, keys, values, k, v = _sizes(
        record, "batch_size", "seq_len", "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim"
    )
    heads, source = linear.Heads(keys, values, k, v), record["kernel_source"]
    alone = record["framework"] == "TRTLLM" or record["version"] == _KEYS_ALONE
    shape = f"b={batch},s={tokens},k={keys}x{k},v={values}x{v}"
    if source.startswith("causal_conv1d"):
        channels = keys * k if alone else heads.channels
        if source.endswith("_fn"):
            cost = linear.causal_conv(batch, tokens, channels, rows=alone)
        else:
            cost = linear.conv_update(batch, channels, rows=alone)
        return _call("causal convolution" + " rows" * alone, "bfloat16", f"b={batch},s={tokens},c={channels}", cost)
    if source.startswith("chunk"):
        fused = source.endswith("flashinfer")
        dtype = "bfloat16" if record["framework"] == "vLLM" else "float32"
        cost = linear.delta_prefill(batch, tokens, heads, state_dtype=dtype, given=not alone, fused=fused)
        return _call("delta rule prefill" + " fused" * fused, "bfloat16", shape, cost)
    fused = source.startswith("flashinfer")
    dtypes = ("bfloat16", "float32") if alone else ("bfloat16", "bfloat16") if fused else ("float32", "float32")
    cost = linear.delta_decode(batch, heads, state_dtypes=dtypes, fused=fused)
    found = _call("delta rule decode" + " fused" * fused, "bfloat16", f"{shape},{dtypes[0]},{dtypes[1]}", cost)
    return found if alone else _in_place(found, gpu_named(record["system"]))


def _in_place(found: Call, gpu: Gpu) -> Call:
    """The call with a state that it updates where it is: its footprint is what it reads."""
    state = found.cost.read_bytes
    return replace(found, warm=int(state * kept_share(gpu, state)), drawn=state <= 2 * gpu.l2_bytes)


DELTA = Table(
    "aic_gated_delta",
    "system framework version kernel_source batch_size seq_len num_k_heads head_k_dim num_v_heads head_v_dim latency",
    _delta, gpu="system", time="latency",
)  # fmt: skip


def _mamba(record: Record) -> Call:
    batch, tokens, heads, width, state, groups, chunk = _sizes(
        record, "batch_size", "seq_len", "nheads", "head_dim", "d_state", "n_groups", "chunk_size"
    )
    space = linear.StateSpace(heads, width, state, groups, chunk)
    shape = f"b={batch},s={tokens},h={heads}x{width},n={state},g={groups}"
    source = record["kernel_source"]
    if source == "mamba_chunk_scan_combined":
        return _call("scan prefill", "bfloat16", f"{shape},c={chunk}", linear.scan_prefill(batch, tokens, space))
    if source == "selective_state_update":
        return _call("scan decode", "bfloat16", shape, linear.scan_decode(batch, space, state_dtype="bfloat16"))
    costs = {
        "causal_conv1d_fn": lambda: linear.causal_conv(batch, tokens, space.channels, rows=True),
        "causal_conv1d_update": lambda: linear.conv_update(batch, space.channels, rows=True),
    }
    cost = known(costs, source, "kernel")()
    return _call("causal convolution rows", "bfloat16", f"b={batch},s={tokens},c={space.channels}", cost)


MAMBA = Table(
    "aic_mamba2",
    "system kernel_source batch_size seq_len nheads head_dim d_state n_groups chunk_size latency",
    _mamba, gpu="system", time="latency",
)  # fmt: skip

# -- sparse attention --------------------------------------------------------------------------------------------------

#: the configurations of GLM-5 and DeepSeek-V4: heads of the index, tokens that it chooses, tokens of the window
_INDEX_HEADS = {"glm5": 32, "dsv4": 64}
_CHOSEN, _WINDOW, _ENTRY = 2048, 128, 4


def _sparse(record: Record) -> Call:
    batch, new, before = size(record, "batch_size"), size(record, "isl"), count(record, "step")
    rows, keys, heads = batch * new, before + new, size(record, "num_heads")
    shape = f"b={batch},q={new},k={keys}"
    match record["op_name"]:
        case "glm5_mqa_logits_module":
            return _call("index", "fp8", shape, sparse.index_scores(batch, _INDEX_HEADS["glm5"], new, keys))
        case "dsv4_paged_mqa_logits_module":
            keys = before + rows
            pairs = sum(max((before + i) // _ENTRY, 1) for i in range(1, rows + 1))
            held = max(keys // _ENTRY, 1)
            cost = sparse.index_scores_paged(pairs, rows, held, _INDEX_HEADS["dsv4"])
            return _call("index paged", "fp8", f"q={rows},k={keys}", cost)
        case "glm5_topk_module":
            flat = record["score_mode"] == "flat"
            cost = sparse.choice(rows, before + 1, keys, _CHOSEN, flat=flat)
            return _call("top-k" + " flat" * flat, "float32", f"m={rows},k={keys}", cost)
        case "glm5_dsa_attn_module":
            cost = served_calls.latent_chosen(batch, new, heads, keys, _CHOSEN)
            return _call("sparse attention", "bfloat16", f"{shape},h={heads}", cost)
        case "dsv4_hca_attn_module":
            entries = keys // size(record, "compress_ratio")
            cost = sparse.sparse_window(batch, heads, new, keys, entries, window=_WINDOW)
            kind = "window attention" + " decode" * (new == 1)
            return _call(kind, "fp8", f"{shape},h={heads}", cost)
    raise Skip(f"kernel {record['op_name'][:40]!r} is not known")


SPARSE = Table(
    "aic_sparse_kernels",
    "system op_name kernel_source num_heads batch_size isl step compress_ratio score_mode latency",
    _sparse, gpu="system", time="latency",
)  # fmt: skip

# -- casts -------------------------------------------------------------------------------------------------------------

_CASTS = {"torch_ops": "cast", "sglang": "cast_eager", "static_scaled_fp8_quant": "cast_rows"}


def _cast(record: Record) -> Call:
    rows, columns = _sizes(record, "m", "k")
    shape = f"m={rows},k={columns}"
    if record["op_name"] == "scale_matrix":
        kind = known(_CASTS, record["kernel_source"], "kernel")
        return _call(kind.replace("_", " "), "fp8", shape, sparse.cast_fp8(rows, columns, kind=kind))
    if record["kernel_source"] == "sglang":
        raise Skip("a difference of a short kernel and of four others, below 0 for most shapes")
    by_row = record["kernel_source"] != "torch_ops"
    found = _call("amax" + " rows" * by_row, "fp8", shape, sparse.amax(rows, columns, by_row=by_row))
    return replace(found, drawn=True)  # a difference has no bound


CASTS = Table(
    "aic_quantize",
    "system framework op_name kernel_source m k quant_dtype latency",
    _cast,
    gpu="system",
    time="latency",
)


# -- block-scaled products ---------------------------------------------------------------------------------------------


def _deepgemm(record: Record) -> Call:
    """``groups`` products of fp8 blocks, whose activations are quantised already; L2 is flushed before each."""
    groups, rows, n, k = _sizes(record, "groups", "m_per_group", "n", "k")
    one = product_of_stored(rows, n, k, "fp8_block", engine="sglang")
    (work,) = one.launches
    assert isinstance(work, QuantisedGemm)
    read, write = groups * work.read_bytes, groups * work.write_bytes
    launch = replace(work, batch=groups, read_bytes=read, write_bytes=write)
    cost = Cost({work.pipe: groups * one.total_flops}, read, write, launches=(launch,))
    shape = f"g={groups},m={rows},n={n},k={k}"
    return Call(op_class="block-scaled product", dtype="fp8", shape=shape, cost=cost, warm=0, measured_s=_us(record))


def _us(record: Record) -> float:
    return positive(record, "us") * 1e-6


DEEPGEMM = Table("deepgemm_h800", "commit kind gpu groups m_per_group n k tflops us", _deepgemm, gpu="gpu")
