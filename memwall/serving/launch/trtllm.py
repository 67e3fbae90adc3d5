"""The command line of TensorRT-LLM's PyTorch backend (``tensorrt_llm/commands/serve.py``), with the YAML of
``--config``, which has most of it (``TorchLlmArgs``), and which wins over the flags.

With ``enable_attention_dp`` each of the GPUs of ``--tp_size`` attends to sequences of its own; numbers of sequences and
tokens are of one. ``--free_gpu_memory_fraction`` is the cache's share of what weights and buffers leave.
"""

from __future__ import annotations

from typing import Any

from memwall.serving.launch.flags import (
    CACHE_DTYPES,
    DTYPES,
    HEADS,
    NULL,
    SHARE,
    SWITCH,
    WHOLE,
    WHOLES,
    WORD,
    EngineLine,
    direct,
    either,
    graphs,
    quiet,
    sets,
    table,
    unmodeled,
)

FLAGS = table(
    sets("model", "model", WORD),
    sets("tp-size tensor-parallel-size", "tp", WHOLE),
    sets("pp-size pipeline-parallel-size", "pp", WHOLE),
    sets("ep-size moe-expert-parallel-size", "ep", WHOLE),
    sets("enable-attention-dp", "attention_dp", SWITCH, "dp"),
    sets("dtype", "dtype", DTYPES),
    sets("kv-cache-config.dtype kv-cache-dtype", "kv", CACHE_DTYPES),
    sets("kv-cache-free-gpu-memory-fraction free-gpu-memory-fraction kv-cache-config.free-gpu-memory-fraction",
         "utilization", SHARE),
    sets("kv-cache-config.enable-block-reuse", "prefix_hit", SWITCH),
    sets("moe-config.load-balancer.num-slots", "slots", WHOLE, "redundant"),
    sets("max-seq-len", "max_context", WHOLE),
    sets("max-batch-size", "max_batch", WHOLE),
    sets("max-num-tokens", "token_budget", WHOLE),
    sets("enable-chunked-prefill", "prefill", either("chunked", "whole")),
    sets("cuda-graph-config", "eager", NULL),
    sets("cuda-graph-config.batch-sizes", "captured", WHOLES),
    sets("cuda-graph-config.max-batch-size", "most_captured", WHOLE, "captured"),
    sets("speculative-config.decoding-type", "method", WORD, "draft"),
    sets("speculative-config.speculative-model speculative-config.speculative-model-dir", "draft", WORD),
    sets("speculative-config.max-draft-len speculative-config.num-nextn-predict-layers", "draft_tokens", WHOLE),
    *quiet(
        "host port log-level backend tokenizer custom-tokenizer trust-remote-code! revision reasoning-parser"
        " tool-parser"
        " served-model-name chat-template num-postprocess-workers gpus-per-node metadata-server-config-file"
        " otlp-traces-endpoint fail-fast-on-attention-window-too-large! media-io-kwargs custom-module-dirs grpc!"
        " print-iter-log enable-iter-perf-stats enable-iter-req-stats postprocess-tokenizer-dir skip-tokenizer-init"
        " tokenizer-mode tokenizer-revision load-format cuda-graph-config.enable-padding"
        " garbage-collection-gen0-threshold"
        " return-perf-metrics perf-metrics-max-requests enable-layerwise-nvtx-marker guided-decoding-backend"
    ),
    *unmodeled({
        "memwall takes the kernels that the engine takes by itself": "attn-backend moe-config.backend"
            " allreduce-strategy nvfp4-gemm-config use-low-precision-moe-combine"
            " moe-config.use-low-precision-moe-combine"
            " torch-compile-config enable-autotuner sampler-type nvfp4-gemm-config.allowed-backends*",
        "steps are as --prefill says": "scheduler-config.capacity-scheduler-policy"
            " scheduler-config.context-chunking-policy attention-dp-config batch-wait-timeout-ms"
            " batch-wait-timeout-iters batch-wait-max-tokens-ratio attention-dp-config.enable-balance"
            " attention-dp-config.batching-wait-iters"
            " attention-dp-config.timeout-iters",
        "the cache of a sequence is on one GPU of each group": "cp-size context-parallel-size cp-config",
        "a load balancer has settled, and moves nothing any more": "moe-config.load-balancer.layer-updates-per-iter"
            " moe-config.load-balancer.initial-global-assignments",
        "experts are as --routing and --redundant say": "moe-config.load-balancer moe-config.max-num-tokens"
            " cluster-size moe-cluster-parallel-size moe-tensor-parallel-size",
        "the size of the cache follows from --utilization": "kv-cache-config.max-tokens"
            " kv-cache-config.max-attention-window* kv-cache-config.max-gpu-total-bytes",
        "weights and caches are in the GPU's memory alone": "kv-cache-config.host-cache-size"
            " kv-cache-config.secondary-offload-min-priority kv-connector-config",
        "blocks have 16 tokens": "kv-cache-config.tokens-per-block",
        "states are as memwall reads the model": "kv-cache-config.mamba-ssm-cache-dtype"
            " kv-cache-config.enable-partial-reuse kv-cache-config.copy-on-partial-reuse",
        "adapters are not modeled": "lora-config enable-lora lora-config.max-lora-rank",
        "the engine's CPU takes what it takes by default": "disable-overlap-scheduler stream-interval",
        "decodes and prompts apart are --disaggregate": "server-role disagg-cluster-uri cache-transceiver-config"
            " cache-transceiver-config.backend cache-transceiver-config.max-tokens-in-buffer",
        "each request has one answer": "max-beam-width",
        "the model is as its configuration says": "quant-config model-kwargs enable-min-latency max-input-len"
            " sparse-attention-config",
        "the draft is as its own configuration says": "speculative-config.use-relaxed-acceptance-for-thinking"
            " speculative-config.relaxed-topk speculative-config.relaxed-delta speculative-config.max-ngram-size"
            " speculative-config.max-matching-ngram-size speculative-config.eagle3-one-model"
            " speculative-config.max-total-draft-tokens speculative-config.allow-advanced-sampling"
            " speculative-config.max-concurrency",
    }),
)  # fmt: skip


def _combine(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    options = direct(values, "tp", "pp", "ep", "dtype", "kv", "max_context", "max_batch", "token_budget", "prefill")
    options |= {"utilization_of": "free"} | direct(values, "utilization")
    if values.get("attention_dp") and options.get("tp", 1) > 1:
        options |= {"dp": options["tp"], "tp": 1}
    if values.get("prefix_hit") is False:
        options["prefix_hit"] = 0.0
    graphs(values, options, "trtllm")
    method = str(values.get("method", "")).lower()
    if method == "mtp":
        options |= {"draft": "mtp"} | direct(values, "draft_tokens")
    elif method == "draft_target" and "draft" in values:
        options |= direct(values, "draft", "draft_tokens")
    elif method:
        return options, dict.fromkeys(("method", "draft", "draft_tokens"), HEADS.format(method))
    return options, {}


def _apart(options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    values = direct(
        options, "pp", "ep", "dtype", "kv", "utilization", "max_context", "max_batch", "token_budget", "eager",
        "captured",
        "draft_tokens", "slots", "prefill",
    )  # fmt: skip
    tp, dp, unsaid = options.get("tp", 1), options.get("dp", 1), []
    values["tp"] = tp * dp
    if dp > 1 and tp == 1:
        values["attention_dp"] = True
    elif dp > 1:
        unsaid.append(f"{dp} groups of {tp} GPUs that attend to sequences of their own")
    if "redundant" in options and "slots" not in options:
        unsaid.append(f"a load balancer of {options['redundant']} more slots than there are experts")
    if options.get("prefix_hit") == 0.0:
        values["prefix_hit"] = False
    if "draft" in options:
        is_own = options["draft"] == "mtp"
        values |= {"method": "MTP"} if is_own else {"method": "Draft_Target", "draft": options["draft"]}
    return values, unsaid


TRTLLM = EngineLine(
    engine="trtllm",
    title="TensorRT-LLM",
    starts=(("trtllm-serve",), ("trtllm-serve", "serve")),
    image=("tensorrt-llm", False),
    flags=FLAGS,
    combine=_combine,
    apart=_apart,
    prefixes=("TRTLLM_", "TLLM_"),
    config=("config", "extra-llm-api-options"),
    config_wins=True,
    abbreviates=False,
    utilization_of="free",
    dash="_",
    in_config=frozenset({
        "enable-attention-dp", "dtype", "kv-cache-config.dtype", "kv-cache-config.enable-block-reuse",
        "cuda-graph-config",
        "cuda-graph-config.batch-sizes", "speculative-config.decoding-type", "speculative-config.speculative-model",
        "speculative-config.max-draft-len", "moe-config.load-balancer.num-slots",
    }),
)  # fmt: skip
