"""Ops of inference and attention libraries that torch has no counterpart of: what each must do.

Their arguments' names stand in ``library_schemas.txt``. Where contexts lie in a paged cache, a trace does not tell
their lengths: counted is the least, each query with one key and no cached byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from memwall.core.graph import TensorSpec
from memwall.ops import Call, Cost, cost_of
from memwall.ops.contraction import product_pipe
from memwall.ops.elementwise import streamed, vector_flops
from memwall.ops.launches import Gemm, Stream
from memwall.ops.recorded import Recorded, UnknownCall
from memwall.ops.results import attributes_of
from memwall.ops.results.products import attention, attention_backward

PAGED = "the lengths of cached contexts were not recorded: each query counted with one key"


@dataclass(frozen=True, slots=True)
class LibraryCost:
    """What such an op must do, its class, and what was not recorded."""

    cost: Cost
    op_class: str
    note: str = ""


Rule = Callable[[Recorded], LibraryCost]


def library_rule(name: str) -> Rule | None:
    """The rule of an op, as a trace names it; None where there is none."""
    return _RULES.get(name)


def _moves(reads: str, writes: str, op_class: str, per_element: int = 0) -> Rule:
    """What reads and writes whole tensors, those that were given."""

    def rule(call: Recorded) -> LibraryCost:
        read = [spec for name in reads.split() if (spec := call.tensor(name)) is not None]
        written = [spec for name in writes.split() if (spec := call.tensor(name)) is not None]
        if not written:
            raise UnknownCall("the shape of the result was not recorded")
        first = written[0]
        flops = vector_flops(first, per_element * sum(spec.numel for spec in written))
        cost = Cost(flops, sum(s.nbytes for s in read), sum(s.nbytes for s in written))
        return LibraryCost(streamed(cost, first.numel), op_class)

    return rule


def _cache_write(call: Recorded) -> LibraryCost:
    """Keys and values to their places in the cache, in the cache's dtype."""
    read, write = 0, 0
    for new, cache in (("key", "key_cache"), ("value", "value_cache")):
        tensor, store = call.need(new), call.need(cache)
        read, write = read + tensor.nbytes, write + tensor.distinct_elements * store.itemsize
    return LibraryCost(streamed(Cost({}, read, write), write), "movement")


def _cache_write_latent(call: Recorded) -> LibraryCost:
    """The latent of keys and values, and the part of the keys that is rotated, one after the other."""
    parts, cache = (call.need("kv_c"), call.need("k_pe")), call.need("kv_cache")
    read = sum(part.nbytes for part in parts)
    write = min(sum(part.distinct_elements for part in parts) * cache.itemsize, read)
    return LibraryCost(streamed(Cost({}, read, write), write), "movement")


def _attention(call: Recorded) -> LibraryCost:
    """Attention on contexts of unknown length."""
    query = call.need("query")
    key = call.tensor("key")
    paged = key is None or call.tensor("block_table") is not None or call.packet.startswith("unified")
    if not paged and key is not None and len(key.shape) == len(query.shape):
        return _dense_attention(call)
    out = call.tensor("out") or query
    pipe = product_pipe(query.dtype, {}, allow_tf32=True)
    cost = Cost({pipe: 2 * (query.numel + out.numel)}, query.nbytes, out.nbytes)
    return LibraryCost(streamed(cost, query.numel), "attention", PAGED)


def _dense_attention(call: Recorded) -> LibraryCost:
    """Attention without a cache, as :mod:`memwall.ops.attention` counts it."""
    inputs = _operands(call)
    return _counted(call, "aten._flash_attention_forward.default", inputs, attention(call))


def _flash_backward(call: Recorded) -> LibraryCost:
    """The gradient of attention, whose autograd node recorded that of the result alone: the rest is its forward's."""
    before = call.forward
    if before is None:
        raise UnknownCall("its forward op is not in the trace")
    out, sums = attention(before)
    inputs = [("grad_out", call.need("grad_out")), *_operands(before), ("out", out), ("logsumexp", sums)]
    return _counted(before, "aten._flash_attention_backward.default", inputs, attention_backward(before))


def _operands(call: Recorded) -> list[tuple[str, TensorSpec]]:
    names = ("query", "key", "value", "cum_seq_q", "cum_seq_k")
    return [(name, spec) for name in names if (spec := call.tensor(name)) is not None]


def _counted(
    call: Recorded, name: str, inputs: list[tuple[str, TensorSpec]], outputs: tuple[TensorSpec, ...]
) -> LibraryCost:
    specs = tuple(spec for _, spec in inputs)
    found = cost_of(Call(
        name, specs, tuple(argument for argument, _ in inputs), outputs,
        attributes_of(call), sum(s.nbytes for s in specs), sum(s.nbytes for s in outputs),
    ))  # fmt: skip
    return LibraryCost(found, "attention", "; ".join(call.notes))


def _experts(call: Recorded) -> LibraryCost:
    """A mixture's two products for each token and expert that it was sent to; at least as many experts' weights are
    read as one token has. Where a map tells that others of the experts lie on other GPUs, these have their share."""
    hidden, first, second = (call.need(name) for name in ("hidden", "w1", "w2"))
    chosen = call.tensor("topk_ids") or call.need("topk_weights")  # of one shape
    if len(first.shape) != 3 or not first.shape[0] or not chosen.shape:
        raise UnknownCall("not the weights of a mixture of experts")
    count, everywhere = first.shape[0], _experts_everywhere(call, first.shape[0])
    per_token = min(chosen.shape[-1], count) if everywhere == count else 0
    weights = (first.nbytes + second.nbytes) // count * per_token
    pipe = product_pipe(first.dtype, {})
    cost = Cost(
        {pipe: 2 * chosen.numel * (first.numel + second.numel) // everywhere},
        hidden.nbytes + weights + chosen.nbytes,
        hidden.nbytes,
        kernels=2,
    )
    note = "which experts were chosen was not recorded: the fewest are read"
    if everywhere > count:
        note += f", and {count} of {everywhere} are taken to have had their share of the tokens"
    return LibraryCost(cost, "contraction", note)


def _experts_everywhere(call: Recorded, here: int) -> int:
    """How many experts there are on all GPUs: the longest map, one whole number for each, that the op was given."""
    sizes = [spec.numel for spec in call.beyond if len(spec.shape) == 1 and spec.dtype == "int32"]
    return max([here, *sizes])


def _product(call: Recorded) -> LibraryCost:
    """``[m, k] x [n, k]`` or ``[m, k] x [k, n]``: whichever the shapes are."""
    left, right = call.need("left"), call.need("right")
    if len(right.shape) != 2 or not left.shape:
        raise UnknownCall("not a product of two matrices")
    depth = left.shape[-1]
    if depth not in right.shape:
        raise UnknownCall("the shapes make no product")
    m, n = left.numel // max(depth, 1), right.numel // max(depth, 1)
    itemsize = left.itemsize if left.itemsize > 1 else 2
    pipe = product_pipe(left.dtype, {})
    read, write = left.nbytes + right.nbytes, m * n * itemsize
    work = Gemm(pipe=pipe, batch=1, m=m, n=n, k=depth, itemsize=left.itemsize, read_bytes=read, write_bytes=write)
    return LibraryCost(Cost({pipe: 2 * m * n * depth}, read, write, works=(work,)), "contraction")


def _packed_product(call: Recorded) -> LibraryCost:
    """A product with weights of 4 or 8 bits, packed in a layout of the library's own: the scales have a column for
    each of the result, and the arithmetic is in the dtype of the activations."""
    left, packed, scales = (call.need(name) for name in ("left", "packed", "scales"))
    if not left.shape or len(scales.shape) != 2:
        raise UnknownCall("not a product with packed weights")
    depth, n = left.shape[-1], scales.shape[-1]
    m = left.numel // max(depth, 1)
    read = left.nbytes + packed.nbytes + scales.nbytes
    cost = Cost({product_pipe(left.dtype, {}): 2 * m * n * depth}, read, m * n * left.itemsize)
    return LibraryCost(cost, "contraction")


def _sorted_experts(call: Recorded) -> LibraryCost:
    ids = call.need("topk_ids")
    return LibraryCost(Cost({}, ids.nbytes, ids.nbytes, works=(Stream(read_bytes=ids.nbytes, write_bytes=ids.nbytes,
                                                                      elements=ids.numel),)), "movement")  # fmt: skip


_QUANTIZED = _moves("input", "out scale", "elementwise", 2)
#: ``residual`` is updated in place
_NORMED = _moves("input weight residual", "out residual", "normalization", 4)
_MERGED = _moves("prefix prefix_lse suffix suffix_lse", "out output_lse", "elementwise", 5)

_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("_C::static_scaled_int8_quant", "_C::silu_and_mul_quant"),
                    _moves("input", "out", "elementwise", 2)),
    **dict.fromkeys(("_C::dynamic_scaled_int8_quant", "_C::per_token_group_fp8_quant",
                     "_C::silu_and_mul_per_block_quant", "sgl_kernel::sgl_per_token_group_quant_fp8",
                     "sgl_kernel::sgl_per_token_group_quant_8bit", "sgl_kernel::sgl_per_token_group_quant_int8",
                     "sgl_kernel::sgl_per_tensor_quant_fp8", "sgl_kernel::sgl_per_token_quant_fp8"), _QUANTIZED),
    **dict.fromkeys(("_C::rms_norm_static_fp8_quant", "_C::fused_add_rms_norm_static_fp8_quant",
                     "_C::rms_norm_dynamic_per_token_quant", "_C::rms_norm_per_block_quant", "aiter::rms_norm_cu",
                     "aiter::rmsnorm2d_fwd_with_dynamicquant"), _NORMED),
    **dict.fromkeys(("aiter::rmsnorm2d_fwd_with_add", "aiter::rmsnorm2d_fwd_with_add_dynamicquant"),
                    _moves("input residual_in weight", "out residual", "normalization", 4)),
    "aiter::fused_add_rms_norm_cu": _moves("input residual weight", "input residual", "normalization", 4),
    "_C::fused_qk_norm_rope": _moves("qkv", "qkv", "normalization", 7),
    **dict.fromkeys(("_C::merge_attn_states", "sgl_kernel::merge_state", "sgl_kernel::merge_state_v2"), _MERGED),
    **dict.fromkeys(("FusedLayerNormAffineFunction", "FusedRMSNormAffineFunction"),
                    _moves("input weight bias", "input", "normalization", 5)),
    **dict.fromkeys(("FusedLayerNormAffineFunctionBackward", "FusedRMSNormAffineFunctionBackward"),
                    _moves("grad grad", "grad", "normalization", 8)),
    **dict.fromkeys(("_C::awq_gemm", "_C::gptq_gemm", "_C::marlin_gemm", "_C::gptq_marlin_gemm",
                     "sgl_kernel::gptq_gemm", "sgl_kernel::gptq_marlin_gemm"), _packed_product),
    **dict.fromkeys(("_C::paged_attention_v1", "_C::paged_attention_v2", "_rocm_C::paged_attention",
                     "vllm::unified_mla_attention_with_output", "sgl_kernel::cutlass_mla_decode",
                     "_C::sm100_cutlass_mla_decode"), _attention),
    "_C_cache_ops::concat_and_cache_mla": _cache_write_latent,
    "_C::rotary_embedding": _moves("positions query key", "query key", "elementwise", 3),
    "sgl_kernel::apply_rope_pos_ids_cos_sin_cache": _moves("positions query key", "q_rope k_rope", "elementwise", 3),
    **dict.fromkeys(("_C_cache_ops::reshape_and_cache_flash", "_C_cache_ops::reshape_and_cache"), _cache_write),
    **dict.fromkeys(("_moe_C::topk_softmax", "sgl_kernel::topk_softmax"),
                    _moves("gating_output", "topk_weights topk_indices", "normalization")),
    "_moe_C::moe_sum": _moves("input", "output", "reduction", 1),
    **dict.fromkeys(("_moe_C::moe_align_block_size", "_moe_C::sgl_moe_align_block_size",
                     "sgl_kernel::moe_align_block_size"), _sorted_experts),
    **dict.fromkeys(("vllm::unified_attention_with_output", "vllm::unified_attention", "_vllm_fa2_C::varlen_fwd",
                     "flash_attn_3::fwd", "_vllm_fa3_C::fwd", "sgl_kernel::fwd",
                     "flash_attn::_flash_attn_varlen_forward", "aiter::mha_varlen_fwd", "aiter::fmha_v3_varlen_fwd",
                     "FlashAttnFunc", "FlashAttnVarlenFunc"), _attention),
    **dict.fromkeys(("FlashAttnFuncBackward", "FlashAttnVarlenFuncBackward"), _flash_backward),
    **{f"{library}::{kind}place_fused_experts": _experts for library in ("vllm", "sglang") for kind in ("in", "out")},
    **dict.fromkeys(("vllm::rocm_aiter_fused_moe", "vllm::rocm_aiter_asm_moe_tkw1", "aiter::fused_moe_"), _experts),
    **dict.fromkeys(("_rocm_C::LLMM1", "_rocm_C::wvSplitK", "_rocm_C::wvSplitKrc", "_rocm_C::wvSplitKQ",
                     "_C::dsv3_fused_a_gemm", "sgl_kernel::dsv3_fused_a_gemm", "sgl_kernel::dsv3_router_gemm",
                     "sgl_kernel::int8_scaled_mm", "sgl_kernel::fp8_blockwise_scaled_mm",
                     "bitsandbytes::int8_linear_matmul", "bitsandbytes::int8_scaled_mm", "aiter::gemm_a8w8",
                     "aiter::gemm_a8w8_CK",
                     "aiter::gemm_a8w8_bpreshuffle", "aiter::gemm_a8w8_blockscale", "aiter::gemm_a16w16",
                     "aiter::hipb_mm"), _product),
}  # fmt: skip
