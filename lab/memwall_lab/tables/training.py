"""Tables of training steps of language models on many GPUs.

- vTrain (VIA-Research/vTrain): GPTs by Megatron-DeepSpeed in float16, all activations recomputed, gradients summed
  after the last backward pass.
- Megatron-LM's published runs: full recomputation until 2021; in 2024 none, with sequence parallelism, gradients summed
  in 16 bits next to backward.
- Korthikanti et al., 2022 (calculon-ai/calculon): with and without selective recomputation. Rows of memory are not
  steps: ``tests/unit/training/test_training.py`` has the formulas.
- NVIDIA's recipes (NeMo, Megatron-Bridge): kernels of TransformerEngine and cuDNN, products of layers in fp8 (the
  scales of MXFP8, a byte for 32 numbers, are left out), gradients summed in 16 bits next to backward, sequence
  parallelism and overlapped exchanges with ``tp``; the loss is one kernel since 2025. Layers of dense models are
  computed again where activations do not fit; of mixtures the recipes compute at most norms, activations and products
  of latents again. How tokens get to experts is in :data:`_DISPATCHES`. Each expert's products are launched by
  themselves, and GPT-OSS's experts clamp and add biases by PyTorch's own ops, but for MXFP8 since 26.06, where one
  kernel has all of it (``cutedsl_fused_grouped_mlp``) and a CUDA graph the whole step. Elsewhere Megatron's Python
  takes as long between kernels of a mixture as in vTrain's runs.
- MaxText on TPUs (Google): decoders of its scripts (src/maxtext/configs/tpu), layers computed again, weights
  and gradients of 16 bits sharded over a slice (FSDP), gradients summed over slices. Its FLOP/s count attention without
  the causal mask, as it did until 2025 (docs/reference/performance_metrics.md). The queries, keys and values of 128B,
  which its script moves to the host, are computed again here; embeddings by products with one-hot rows are lookups.
- MosaicML's llm-foundry: MPT with FSDP, whose gathers wait for the block before (Composer's default, BACKWARD_POST,
  without forward prefetch).

What a table does not state, such as microbatches and chunks of Megatron's runs, is stated here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from memwall.bench.accuracy.kinds import Record, Skip, TableKind, seconds
from memwall.core.errors import UsageError
from memwall.core.units import counted
from memwall.hardware.cluster import hardware_of, load_cluster
from memwall.hardware.host import load_host
from memwall.hardware.links import Cluster
from memwall.training.layout import Parallelism
from memwall_lab.sizes import Latents, Sizes
from memwall_lab.tables.base import known, positive, size
from memwall_lab.training import TrainingSample

#: the host of vTrain's machines relative to bare-metal: Megatron-DeepSpeed's Python between kernels. Fitted to half of
#: the rows of a single node
_VTRAIN_HOST = 4.8
#: llm-foundry's runs had the first FlashAttention, in Triton; the second takes half as long (Dao, 2023: "around 2x")
_FLASH_1 = 2.0
#: tokens of GPT-2's vocabulary, padded
_VOCAB = 51200

#: GPUs of a table → cluster
_CLUSTERS: Mapping[str, str] = {
    "A100-80GB-SXM (Selene)": "dgx-a100-80gb", "H100-80GB-SXM (Eos)": "dgx-h100",
    "A100-40GB-SXM": "dgx-a100-40gb", "a100_40gb": "dgx-a100-40gb", "a100_80gb": "dgx-a100-80gb",
    "h100_80gb": "dgx-h100", "DGX-H100": "dgx-h100", "DGX-B200": "hgx-b200", "DGX-B300": "hgx-b300",
    "DGX-GB200": "gb200-nvl72", "DGX-GB300": "gb300-nvl72",
}  # fmt: skip
_LLAMA = Sizes(4096, 32, 32, 128256, 0, ffn=14336, kv_heads=8, gated=True, rotary=True, bias=False, tied=False,
               dropout=0.0)  # fmt: skip
_GPT = Sizes(4096, 24, 32, 51200, 0)
_NEMOTRON = replace(_LLAMA, vocab=256000, ffn=16384, kv_heads=32, gated=False)
_QWEN3 = replace(_LLAMA, width=4096, layers=94, heads=64, kv_heads=4, head_dim=128, ffn=1536, vocab=151936,
                 experts=128, top_k=8)  # fmt: skip
_DEEPSEEK = Sizes(
    7168, 61, 128, 129280, 0, ffn=2048, gated=True, rotary=True, bias=False, tied=False, dropout=0.0, experts=256,
    top_k=8, shared=2048, dense=3, dense_ffn=18432, latents=Latents(1536, 512, 128, 64, 128), predicts_two=True,
)  # fmt: skip
#: model of NVIDIA's recipes → its sizes: configurations on Hugging Face; GPT3 and Nemotron as NeMo's recipes
_MODELS: Mapping[str, Sizes] = {
    "LLAMA3_8B": _LLAMA,
    "LLAMA3_70B": replace(_LLAMA, width=8192, layers=80, heads=64, ffn=28672),
    "LLAMA3.1_405B": replace(_LLAMA, width=16384, layers=126, heads=128, ffn=53248),
    "LLAMA2-13B": replace(_LLAMA, width=5120, layers=40, heads=40, kv_heads=40, ffn=13824, vocab=32000),
    "LLAMA2-70B": replace(_LLAMA, width=8192, layers=80, heads=64, ffn=28672, vocab=32000),
    "GPT3-5B": _GPT,
    "GPT3-20B": replace(_GPT, width=6144, layers=44, heads=48),
    "GPT3-175B": replace(_GPT, width=12288, layers=96, heads=96),
    "Nemotron-8B": _NEMOTRON,
    "Nemotron-22B": replace(_NEMOTRON, width=6144, layers=40, heads=48, kv_heads=48, ffn=24576),
    "Qwen3_30B_a3B": replace(_QWEN3, width=2048, layers=48, heads=32, ffn=768),
    "Qwen3_235B_a22B": _QWEN3,
    "GPT OSS 120B": replace(_QWEN3, width=2880, layers=36, kv_heads=8, head_dim=64, ffn=2880, vocab=201088, top_k=4),
    "Nemotron-340B": replace(_NEMOTRON, width=18432, layers=96, heads=96, kv_heads=8, ffn=73728),
    **dict.fromkeys(
        ("DeepSeekV3", "DeepSeekV3 (w/ MTP)", "DeepSeekV3 (dropless)", "DeepSeekV3 (tokendrop)"), _DEEPSEEK
    ),
    "DeepSeekV3 (w/o MTP)": replace(_DEEPSEEK, predicts_two=False),
    "Kimi_K2": replace(_DEEPSEEK, heads=64, vocab=163840, experts=384, dense=1, predicts_two=False),
}
#: table of Megatron-LM → what of its runs it does not state
_RUNS: Mapping[str, Mapping[str, object]] = {
    "A100 2021 weak scaling": {"state": "half", "overlap": False},
    "DGX-A100 2020 TP only batch 16": {"state": "half", "overlap": False},
    "DGX-A100 2020 batch 2048": {"state": "half", "overlap": False},
    "H100 2024 weak scaling (MCore r0.8)": {"state": "half"},
}
#: width → heads of the runs of 2021 (arXiv 2104.04473, table 1) that are not 128 wide
_HEADS_2021: Mapping[int, int] = {2304: 24, 3072: 32, 20480: 128}
_RECOMPUTES = {"full": "full", "attn_only": "selective", "none": "none"}
#: precision of NVIDIA's recipes → format of the layers' products; ``CS``: a scale for each tensor, ``MX``: one for 32
#: numbers, written in both directions by the kernel that casts. In NVFP4 are all layers (``bf16_with_nvfp4_mixed``)
_PRODUCTS = {"FP8": "fp8", "FP8-CS": "fp8", "FP8-MX": "fp8", "MXFP8": "fp8", "NVFP4": "fp4", "BF16": ""}
#: rank of LoRA's adapters, next to queries, keys and values alone (``target_modules`` of the recipes)
_ADAPTERS = 16
#: model of NVIDIA's recipes, system, first release → dispatcher, and whether another microbatch hides it; the last row
#: that fits counts, where none does ``alltoall`` and no. From Megatron-Bridge, ``scripts/performance/configs``, at
#: commits 0fa501a, f29a269, 07eea52, 01b2977 and 0426418: ``moe_flex_dispatcher_backend`` and ``moe_a2a_overlap``
_DISPATCHES: tuple[tuple[str, str, str, str, bool], ...] = (
    ("GPT OSS", "GB200", "26.02", "hybridep", True),
    ("GPT OSS", "B300", "26.02.01", "hybridep", False),
    ("GPT OSS", "B300", "26.06", "hybridep", True),
    ("Qwen3_30B", "H100", "26.02", "alltoall", True),
    ("Qwen3_30B", "H100", "26.04", "hybridep", False),
    ("Qwen3_235B", "GB200", "26.02", "hybridep", False),
    ("Qwen3_235B", "H100", "26.02", "alltoall", True),
    ("Qwen3_235B", "B300", "26.02", "alltoall", True),
    ("Qwen3_235B", "B300", "26.04", "alltoall", False),
    ("DeepSeekV3", "GB300", "26.02", "hybridep", False),
    ("DeepSeekV3", "GB300", "26.06", "hybridep", True),
    ("Kimi_K2", "GB300", "26.02", "hybridep", False),
)
_MIXED = {"PURE": "half", "DEFAULT": "mixed"}


@dataclass(frozen=True)
class Steps(TableKind):
    """A table of training steps: what a row of it measures."""

    sample: Callable[[Record], TrainingSample]

    def read(self, record: Record, source: Path) -> Iterator[TrainingSample]:
        try:
            yield self.sample(record)
        except UsageError as error:
            raise Skip(str(error)) from None


def _sample(name: str, record: Record, cluster: Cluster, label: str, kind: str, dtype: str, sizes: Sizes,
            microbatch: int, layout: Parallelism, measured_s: float, **how: object) -> TrainingSample:  # fmt: skip
    layout.check(layers=sizes.layers, heads=sizes.heads)
    made = TrainingSample(
        name, label, cluster, hardware_of(cluster), kind, dtype, sizes, microbatch, layout, measured_s
    )
    return replace(made, **how)  # type: ignore[arg-type]


def _vtrain_cluster(tp: int) -> Cluster:
    """A DGX A100 but for its network: four adapters (vTrain's config/validation: 800 Gbit/s of a node). Groups with
    several GPUs of a node use one of them: inferred from rows of several nodes with ``pp=1``, of both halves."""
    like, rails = load_cluster("dgx-a100-80gb"), 4 if tp % 8 == 0 else 1
    link = {**like.link, "network": replace(like.link["network"], rails=rails)}
    return replace(like, name=f"{like.name}, {counted(rails, 'rail')}", link=link)


def _vtrain(record: Record) -> TrainingSample:
    batch, dp = size(record, "micro_batch"), size(record, "dp")
    sizes = Sizes(size(record, "d_model"), size(record, "n_layers"), size(record, "n_heads"), _VOCAB,
                  size(record, "seq_len"))  # fmt: skip
    layout = Parallelism(
        tp=size(record, "tp"), pp=size(record, "pp"), dp=dp, recompute="full",
        microbatches=size(record, "global_batch") // (batch * dp),
    )  # fmt: skip
    cluster = _vtrain_cluster(layout.tp)
    gpu = replace(hardware_of(cluster), host=load_host("bare-metal").scaled(_VTRAIN_HOST))
    return _sample(VTRAIN.name, record, cluster, cluster.gpu, record["set"], "float16", sizes, batch, layout,
                   seconds(record, "iter_ms"), gpu=gpu, state="half", overlap=False)  # fmt: skip


def _calculon(record: Record) -> TrainingSample:
    if record["quantity"] != "iteration_time_s":
        raise Skip("memory, not a step")
    batch, dp, chunks = size(record, "microbatch"), size(record, "dp"), size(record, "interleave")
    sizes = Sizes(size(record, "hidden"), size(record, "num_blocks"), size(record, "attn_heads"), _VOCAB,
                  size(record, "seq_size"), ffn=size(record, "feedforward"))  # fmt: skip
    layout = Parallelism(
        tp=size(record, "tp"), sp=record["seq_par"] == "rs_ag", pp=size(record, "pp"), dp=dp, chunks=chunks,
        microbatches=size(record, "batch") // (batch * dp), schedule="interleaved" if chunks > 1 else "1f1b",
        recompute=known(_RECOMPUTES, record["recompute"], "recompute"),
    )  # fmt: skip
    cluster = load_cluster("dgx-a100-80gb")
    return _sample(CALCULON.name, record, cluster, cluster.gpu, record["mode"], "float16", sizes, batch, layout,
                   seconds(record, "measured", 1.0))  # fmt: skip


def _megatron(record: Record) -> TrainingSample:
    table, width = record["table"], size(record, "d_model")
    how = known(_RUNS, table, "runs of")
    is_new, tp, dp = "H100" in table, size(record, "tp"), size(record, "dp")
    heads = size(record, "heads") if record["heads"] else _HEADS_2021.get(width, width // 128)
    sequences = size(record, "global_batch") // dp
    batch = next(
        n for n in (16 if "2020" in table else 4 if not is_new and width < 8192 else 1, 1) if sequences % n == 0
    )
    sizes = Sizes(width, size(record, "n_layers"), heads, size(record, "vocab"), size(record, "seq_len"),
                  fused=is_new, dropout=0.0 if is_new else 0.1)  # fmt: skip
    layout = Parallelism(tp=tp, sp=is_new and tp > 1, pp=size(record, "pp"), dp=dp, microbatches=sequences // batch,
                         recompute="none" if is_new else "full", fsdp="optimizer" if is_new else "none",
                         async_tp=is_new and tp > 1)  # fmt: skip
    cluster = load_cluster(known(_CLUSTERS, record["gpu"], "GPU"))
    return _sample(MEGATRON.name, record, cluster, cluster.gpu, table, "bfloat16" if is_new else "float16", sizes,
                   batch, layout, seconds(record, "iter_ms_derived"), **how)  # fmt: skip


def _llmfoundry(record: Record) -> TrainingSample:
    known({"amp_bf16": 0, "bf16": 0}, record["precision"], "precision")
    dp, batch, count = size(record, "n_gpus"), size(record, "micro_batch"), size(record, "grad_accum")
    sizes = Sizes(size(record, "d_model"), size(record, "n_layers"), size(record, "n_heads"), 50368,
                  size(record, "seq_len"), fused=True, dropout=0.0, bias=False)  # fmt: skip
    layout = Parallelism(
        dp=dp, microbatches=count, recompute="full" if record["act_ckpt"] == "True" else "none",
        fsdp="full" if record["sharding"] == "FULL_SHARD" else "grad",
    )  # fmt: skip
    cluster = load_cluster(known(_CLUSTERS, record["gpu"], "GPU"))
    return _sample(LLM_FOUNDRY.name, record, cluster, cluster.gpu, "recomputed" if record["act_ckpt"] == "True" else
                   "kept", "bfloat16", sizes, batch, layout, seconds(record, "step_time_s", 1.0),
                   state=_MIXED[record["mp_mode"]], overlap=False, hand_fused=False, attention=_FLASH_1)  # fmt: skip


def _bridge(record: Record) -> TrainingSample:
    sizes = known(_MODELS, record["model"], "model")
    products = known(_PRODUCTS, record["precision"], "precision")
    tp, pp, cp, chunks, ep = (_count(record, name) for name in ("tp", "pp", "cp", "vp", "ep"))
    batch, dp = _count(record, "mbs"), _count(record, "n_gpus") // (tp * pp * cp)
    layout = Parallelism(
        tp=tp, sp=tp > 1, pp=pp, cp=cp, dp=dp, ep=ep, microbatches=_count(record, "gbs") // (batch * dp),
        chunks=chunks if pp > 1 else 1, schedule="interleaved" if pp > 1 < chunks else "1f1b",
        fsdp="full" if record["fsdp"] and float(record["fsdp"]) else "optimizer",
        async_tp=tp > 1,
    )  # fmt: skip
    if sizes.latents and tp > 1:
        raise Skip("latent attention, which tp does not divide here")
    in_graph = sizes.experts > 0 and record["precision"] == "MXFP8" and record["release"] >= "26.06"
    for model, system, since, dispatcher, hides in _DISPATCHES:
        if record["model"].startswith(model) and record["system"] == f"DGX-{system}" and record["release"] >= since:
            overlapped = layout.async_tp and not hides  # the recipe has tp_comm_overlap=False then
            layout = replace(layout, dispatcher=dispatcher, a2a_overlap=hides, async_tp=overlapped)
    sizes = replace(
        sizes,
        seq=_count(record, "seq_len"),
        fused=True,
        cudnn=True,
        products=products,
        adapters=_ADAPTERS if record["task"] == "LoRA" else 0,
        loops=sizes.experts > 0 and not in_graph,
        clamps=record["model"].startswith("GPT OSS") and not in_graph,
    )
    cluster = load_cluster(known(_CLUSTERS, record["system"], "system"))
    gpu = hardware_of(cluster)
    if sizes.loops:
        gpu = replace(gpu, host=load_host("bare-metal").scaled(_VTRAIN_HOST))
    stages = pp * layout.chunks
    each = -(-sizes.layers // stages)  # Megatron-Bridge's layouts of DeepSeek-V3 and Kimi-K2 leave fewer to the last
    cut = tuple(min(max(sizes.layers - each * stage, 0), each) for stage in range(stages * bool(sizes.latents)))
    kind = "experts" if sizes.experts else "dense"
    return _sample(BRIDGE.name, record, cluster, record["system"], kind, "bfloat16", sizes, batch, layout,
                   seconds(record, "step_time_s", 1.0), state="fused half", recomputes_to_fit=not sizes.experts,
                   gpu=gpu, stages=cut, fused_loss=not record["release"].startswith("24"))  # fmt: skip


class Script(NamedTuple):
    """What a script of MaxText states: sizes, sequences of a chip, chips that share matmuls, and what is computed again
    (``remat_policy``: ``full``, or ``minimal``, which keeps the results of products)."""

    sizes: Sizes
    batch: int
    tensor: int = 1
    recompute: str = "full"


def _scaled(scale: int) -> Sizes:
    """Sizes of a ``global_parameter_scale``: what doubles by MaxText's ``get_individual_scales`` (its types.py)."""
    layers, rest = divmod(scale.bit_length() - 1, 3)
    heads, width = 1 << layers + (rest > 0), 1 << layers + (rest > 1)
    return Sizes(2048 * width, 16 << layers, 16 * heads, 32000, 2048, ffn=7168 * heads, head_dim=128, gated=True,
                 rotary=True, fused=True, dropout=0.0, bias=False, tied=False)  # fmt: skip


#: TPU, parameters → the script
_SCRIPTS: Mapping[tuple[str, str], Script] = {
    ("tpu-v4", "22B"): Script(replace(_scaled(1), width=6144, layers=48, heads=24, ffn=24576), 13),
    ("tpu-v4", "52B"): Script(replace(_scaled(1), width=12288, layers=32, heads=32, ffn=49152), 7),
    ("tpu-v5e", "16B"): Script(_scaled(16), 6),
    ("tpu-v5e", "32B"): Script(_scaled(32), 4),
    ("tpu-v5e", "64B"): Script(_scaled(64), 2),
    ("tpu-v5e", "128B"): Script(_scaled(128), 1, 16),
    ("tpu-v5p", "32B"): Script(_scaled(32), 6, 4, "selective"),
    ("tpu-v5p", "64B"): Script(_scaled(64), 3, 4, "selective"),
    ("tpu-v5p", "128B"): Script(_scaled(128), 1, 8, "selective"),
    ("tpu-v5p", "256B"): Script(_scaled(256), 1, 8, "selective"),
    ("tpu-v5p", "512B"): Script(_scaled(512), 2, 8),
    ("tpu-v5p", "1024B"): Script(_scaled(1024), 2, 16),
}
#: TPU, chips of a slice → its shape (Google Cloud's pages of v4, v5e and v5p)
_SLICES: Mapping[tuple[str, str], str] = {
    ("tpu-v5e", "256"): "16x16", ("tpu-v4", "64"): "4x4x4", ("tpu-v4", "192"): "4x4x12", ("tpu-v5p", "64"): "4x4x4",
    ("tpu-v5p", "128"): "4x4x8", ("tpu-v5p", "256"): "4x8x8", ("tpu-v5p", "512"): "8x8x8",
    ("tpu-v5p", "1024"): "8x8x16", ("tpu-v5p", "2048"): "8x16x16",
}  # fmt: skip


def _maxtext(record: Record) -> TrainingSample:
    tpu, slices = record["tpu"], size(record, "slices")
    script = known(_SCRIPTS, (tpu, record["params"]), "script of")
    shape = known(_SLICES, (tpu, str(size(record, "chips") // slices)), "slice of")
    sizes, tensor, cluster = script.sizes, script.tensor, load_cluster(f"{tpu}-{shape}")
    sharers = cluster.gpus_per_node // tensor
    layout = Parallelism(tp=tensor, sp=tensor > 1, async_tp=tensor > 1, dp=sharers * slices, fsdp="full",
                         shards=sharers, recompute=script.recompute)  # fmt: skip
    measured_s = _maxtext_flops(sizes) * script.batch / (positive(record, "tflops_per_chip") * 1e12)
    return _sample(MAXTEXT.name, record, cluster, tpu, record["params"], "bfloat16", sizes, script.batch * tensor,
                   layout, measured_s, state="half", fused_loss=True)  # fmt: skip


def _maxtext_flops(sizes: Sizes) -> int:
    """FLOPs of a sequence as MaxText counts them: products, forward and twice backward, and all pairs of attention."""
    heads = sizes.heads * sizes.head_width
    layer = 2 * sizes.width * (4 * heads + 3 * sizes.inner) + 4 * sizes.seq * heads
    return 3 * sizes.seq * (sizes.layers * layer + 2 * sizes.width * sizes.vocab)


def _count(record: Record, name: str) -> int:
    """A whole number that is written with a point; 1 where it is left out."""
    return int(float(record[name] or 1))


VTRAIN = Steps(
    "vtrain_training", "set n_gpus global_batch micro_batch d_model n_heads n_layers seq_len tp dp pp iter_ms", _vtrain
)
BRIDGE = Steps("megatron_training", "task model system n_gpus precision gbs mbs tok_s_gpu step_time_s", _bridge)
CALCULON = Steps(
    "calculon_validation", "quantity mode hidden num_blocks recompute seq_par interleave measured", _calculon
)
MEGATRON = Steps("megatron_tables", "table model d_model n_layers flop_kind iter_ms_derived", _megatron)
MAXTEXT = Steps("maxtext_tpu", "tpu slices chips params tflops_per_chip mfu_pct", _maxtext)
LLM_FOUNDRY = Steps("llmfoundry_training", "micro_batch grad_accum mp_mode sharding act_ckpt step_time_s", _llmfoundry)
