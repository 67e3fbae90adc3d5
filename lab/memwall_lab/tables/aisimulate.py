"""Tables of the wheel ``aisimulate`` (NVIDIA): kernels of inference servers, replayed in CUDA graphs, inputs warm."""

from __future__ import annotations

from memwall.bench.accuracy.kinds import Record, Skip
from memwall.ops import table_calls as calls
from memwall_lab.tables.base import Call, Table, gpu_named, known, size

#: kernel_source of the table → kernel of :class:`memwall.ops.product_launches.FusedAttention`
_ENCODERS = {
    "flash_attention_v3": "flash3", "vllm_vit_flash_attn_fa3": "flash3",
    "flash_attention_v4": "flash4", "vllm_vit_flash_attn_fa4": "flash4",
    "vllm_vit_flash_attn_fa2": "flash", "triton": "triton", "torch_flow": "trtllm",
}  # fmt: skip


def _encoder(record: Record) -> Call:
    batch, length, heads, width = (size(record, name) for name in ("batch_size", "isl", "num_heads", "head_dim"))
    kernel = known(_ENCODERS, record["kernel_source"], "kernel")
    if kernel == "trtllm" and width % 16 and gpu_named(record["system"]).architecture == "blackwell":
        raise Skip("heads for which TensorRT-LLM has no fused kernel on Blackwell: 4 times as slow")
    cost = calls.fused_attention(
        kernel, batch, (heads, heads), (length, length), (width, width), record["attn_dtype"], causal=False
    )
    warm = cost.read_bytes if cost.bytes <= gpu_named(record["system"]).l2_bytes else 0
    shape = f"b={batch},h={heads},s={length},d={width}"
    return Call(op_class=f"attention {kernel}", dtype=record["attn_dtype"], shape=shape, cost=cost, warm=warm)


ENCODERS = Table(
    "aic_encoder_attention",
    "system framework kernel_source batch_size isl num_heads head_dim attn_dtype latency",
    _encoder, gpu="system", time="latency",
)  # fmt: skip
