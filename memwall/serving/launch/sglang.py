"""The command line of SGLang (``python/sglang/srt/server_args.py``).

With ``--enable-dp-attention`` the GPUs of ``--tp`` are ``--dp`` groups that attend to sequences of their own, and
numbers of requests and of tokens are of all of them; without it ``--dp`` are replicas. Prompts run whole, in steps of
their own, but for ``--enable-mixed-chunk``. ``--mem-fraction-static`` is the share of weights and cache, without
activations and graphs.
"""

from __future__ import annotations

from typing import Any

from memwall.core.errors import UsageError
from memwall.serving.launch.flags import (
    CACHE_DTYPES,
    COUNT,
    DTYPES,
    HEADS,
    SHARE,
    SWITCH,
    WHOLE,
    WHOLES,
    WORD,
    EngineLine,
    balanced,
    balancer,
    direct,
    either,
    graphs,
    negated,
    one_of,
    quantization,
    quiet,
    sets,
    table,
    unmodeled,
)

_QUANTIZATION = quantization(
    {"fp8": "fp8"},
    "awq awq_marlin gptq gptq_marlin marlin compressed-tensors modelopt modelopt_fp8 modelopt_fp4 modelopt_mixed"
    " w8a8_int8"
    " w8a8_fp8 moe_wna16 mxfp4 auto-round quark w4afp8 petit_nvfp4",
    dict.fromkeys(
        ("bitsandbytes", "gguf", "qoq", "mxfp8", "modelslim", "quark_int4fp8_moe", "quark_mxfp4", "nvfp4_online",
         "mxfp_w4a8", "auto-round-int8", "unquant", "humming", "mlx_q4", "mlx_q8"),
        "weights in that format are not modeled"),
)  # fmt: skip
_TORCHAO = one_of(
    {"int8wo": "int8", "int4wo-128": "int4"},
    dict.fromkeys(
        ("int8dq", "fp8wo", "fp8dq-per_tensor", "fp8dq-per_row", "int4wo-32", "int4wo-64", "int4wo-256"),
        "weights in that format are not modeled",
    ),
)
_SHARED = one_of({"none": None, "flashinfer": None, "ascend_tp": None, "deepep": True, "deepep_v2": True,
                  "mooncake": True, "nixl": True, "mori": True, "pplx": True, "megamoe": True})  # fmt: skip

FLAGS = table(
    sets("model-path model", "model", WORD),
    sets("tp-size tp tensor-parallel-size", "tp", WHOLE),
    sets("pp-size pp pipeline-parallel-size", "pp", WHOLE),
    sets("dp-size dp data-parallel-size", "dp", WHOLE, "dp replicas"),
    sets("ep-size ep expert-parallel-size", "ep", WHOLE),
    sets("enable-dp-attention", "dp_attention", SWITCH, "tp"),
    sets("moe-a2a-backend", "whole_experts", _SHARED, "ep"),
    sets("enable-ep-moe enable-deepep-moe", "whole_experts", SWITCH, "ep"),
    sets("enable-eplb", "balancer", SWITCH, "redundant"),
    sets("ep-num-redundant-experts", "copies", COUNT, "redundant"),
    sets("dtype", "dtype", DTYPES),
    sets("quantization", "weights", _QUANTIZATION),
    sets("torchao-config", "weights", _TORCHAO),
    sets("kv-cache-dtype", "kv", CACHE_DTYPES),
    sets("mem-fraction-static", "utilization", SHARE),
    sets("context-length", "max_context", WHOLE),
    sets("max-running-requests", "max_batch", WHOLE),
    sets("chunked-prefill-size", "token_budget", WHOLE),
    sets("enable-mixed-chunk", "prefill", either("chunked", "apart")),
    sets("disable-radix-cache", "prefix_hit", negated()),
    sets("disable-cuda-graph", "eager", SWITCH),
    sets("cuda-graph-bs", "captured", WHOLES),
    sets("cuda-graph-max-bs", "most_captured", WHOLE, "captured"),
    sets("speculative-algorithm speculative-algo", "method", WORD, "draft"),
    sets("speculative-draft-model-path speculative-draft-model speculative-draft", "draft", WORD),
    sets("speculative-num-steps", "draft_tokens", WHOLE),
    sets("speculative-eagle-topk", "branches", WHOLE, "draft_tokens"),
    sets("speculative-num-draft-tokens", "verified", WHOLE, "draft_tokens"),
    *quiet(
        "host port grpc-mode! fastapi-root-path skip-server-warmup! warmups nccl-port tokenizer-path tokenizer-mode"
        " tokenizer-backend tokenizer-worker-num detokenizer-worker-num skip-tokenizer-init! load-format"
        " model-loader-extra-config trust-remote-code! revision is-embedding! quantization-param-path device"
        " base-gpu-id"
        " gpu-id-step stream-output! incremental-streaming-output! random-seed constrained-json-whitespace-pattern"
        " constrained-json-disable-any-whitespace! watchdog-timeout soft-watchdog-timeout dist-timeout download-dir"
        " model-checksum sleep-on-idle! log-level log-level-http log-requests! log-requests-level log-requests-format"
        " log-requests-target* uvicorn-access-log-exclude-prefixes* crash-dump-folder show-time-cost! enable-metrics!"
        " enable-mfu-metrics! enable-metrics-for-all-schedulers! tokenizer-metrics-custom-labels-header"
        " tokenizer-metrics-allowed-custom-labels* bucket-time-to-first-token* bucket-inter-token-latency*"
        " bucket-e2e-request-latency* collect-tokens-histogram! prompt-tokens-buckets* generation-tokens-buckets*"
        " gc-warning-threshold-secs decode-log-interval enable-request-time-stats-logging! kv-events-config"
        " enable-trace! otlp-traces-endpoint export-metrics-to-file! export-metrics-to-file-dir api-key admin-api-key"
        " served-model-name weight-version chat-template hf-chat-template-name completion-template file-storage-path"
        " enable-cache-report! reasoning-parser tool-call-parser tool-server sampling-defaults"
        " dist-init-addr nccl-init-addr nnodes node-rank preferred-sampling-params grammar-backend"
        " enable-p2p-check! enable-nan-detection! delete-ckpt-after-loading! enable-memory-saver!"
        " enable-weights-cpu-backup! enable-draft-weights-cpu-backup! allow-auto-truncate!"
        " enable-custom-logit-processor! disable-outlines-disk-cache! numa-node* custom-weight-loader*"
        " weight-loader-disable-mmap! weight-loader-prefetch-checkpoints! weight-loader-prefetch-num-threads"
        " enable-layerwise-nvtx-marker! enable-profile-cuda-graph! enable-cudagraph-gc! forward-hooks"
        " debug-tensor-dump-output-folder debug-tensor-dump-layers debug-tensor-dump-input-file"
        " mm-max-concurrent-calls mm-per-request-timeout max-queued-requests abort-on-priority-when-disabled!"
        " enable-return-hidden-states! enable-return-routed-experts! enable-tokenizer-batch-encode!"
        " disable-tokenizer-batch-decode! enable-dynamic-batch-tokenizer! dynamic-batch-tokenizer-batch-size"
        " dynamic-batch-tokenizer-batch-timeout speculative-ngram-capacity elastic-ep-rejoin!"
        " mooncake-ib-device"
    ),
    *unmodeled({
        "memwall takes the attention that the engine takes by itself":
            "attention-backend prefill-attention-backend decode-attention-backend mm-attention-backend"
            " nsa-prefill-backend"
            " nsa-decode-backend nsa-prefill dsa-prefill-backend dsa-decode-backend flashinfer-mla-disable-ragged!"
            " triton-attention-num-kv-splits triton-attention-reduce-in-fp32! triton-attention-split-tile-size"
            " speculative-attention-mode speculative-draft-attention-backend linear-attn-backend mamba-backend",
        "memwall takes the kernels that the engine takes by itself":
            "moe-runner-backend fp8-gemm-backend fp8-gemm-runner-backend fp4-gemm-backend fp4-gemm-runner-backend"
            " sampling-backend enable-flashinfer-allreduce-fusion! enable-aiter-allreduce-fusion!"
            " disable-custom-all-reduce! enable-mscclpp! enable-torch-symm-mem! enable-symm-mem! enable-nccl-nvls!"
            " flashinfer-mxfp4-moe-precision enable-flashinfer-cutlass-moe! enable-flashinfer-trtllm-moe!"
            " disable-shared-experts-fusion! enable-fused-qk-norm-rope! disable-flashinfer-cutlass-moe-fp4-allgather!"
            " speculative-moe-runner-backend speculative-moe-a2a-backend enable-fused-moe-sum-all-reduce!"
            " enable-deterministic-inference! enable-attn-tp-input-scattered! moe-dense-tp-size enable-dp-lm-head!"
            " enable-fp32-lm-head! enable-fused-grouped-gemm-combine! rl-on-policy-target",
        "messages of experts are an all-gather or an all-to-all, whichever takes less":
            "deepep-mode deepep-config deepep-dispatcher-output-dtype enable-two-batch-overlap!"
            " enable-single-batch-overlap! tbo-token-distribution-threshold enable-deepep-waterfill!",
        "replicas take requests as --route says": "load-balance-method",
        "a load balancer has settled, and moves nothing any more": "eplb-algorithm eplb-rebalance-num-iterations"
            " eplb-rebalance-layers-per-chunk eplb-min-rebalancing-utilization-threshold",
        "experts are as --routing and --redundant say":
            "ep-dispatch-algorithm init-expert-location expert-distribution-recorder-mode"
            " expert-distribution-recorder-buffer-size enable-expert-distribution-metrics! elastic-ep-backend"
            " enable-elastic-expert-backup!",
        "the cache of a sequence is on one group of GPUs": "attention-context-parallel-size attn-cp-size"
            " moe-data-parallel-size moe-dp-size dcp-size enable-dsa-prefill-context-parallel!"
            " enable-nsa-prefill-context-parallel! dsa-prefill-cp-mode nsa-prefill-cp-mode"
            " enable-prefill-context-parallel! enable-prefill-cp!",
        "weights and caches are in the GPU's memory alone": "cpu-offload-gb offload-group-size offload-num-in-group"
            " offload-prefetch-step offload-mode enable-hierarchical-cache! hicache-ratio hicache-size"
            " hicache-write-policy hicache-io-backend hicache-mem-layout hicache-storage-backend"
            " hicache-storage-prefetch-policy hicache-storage-backend-extra-config enable-lmcache! kt-weight-path"
            " kt-method kt-cpuinfer kt-threadpool-count kt-num-gpu-experts kt-max-deferred-experts-per-token",
        "the size of the cache follows from --utilization": "max-total-tokens swa-full-tokens-ratio"
            " disable-hybrid-swa-memory! max-mamba-cache-size mamba-full-memory-ratio",
        "blocks have 16 tokens": "page-size",
        "states are as memwall reads the model": "mamba-ssm-dtype mamba-scheduler-strategy mamba-track-interval",
        "adapters are not modeled": "enable-lora! lora-paths* max-lora-rank lora-target-modules* max-loras-per-batch"
            " max-loaded-loras lora-eviction-policy lora-backend max-lora-chunk-size enable-lora-overlap-loading!",
        "the scheduler serves first come, first served": "schedule-policy schedule-conservativeness max-prefill-tokens"
            " prefill-max-requests enable-dynamic-chunking! enable-priority-scheduling! radix-eviction-policy"
            " schedule-low-priority-values-first! priority-scheduling-preemption-threshold enable-prefill-delayer!"
            " prefill-delayer-max-delay-passes prefill-delayer-token-usage-low-watermark disable-chunked-prefix-cache!"
            " pp-max-micro-batch-size pp-async-batch-depth num-continuous-decode-steps enable-pdmux!",
        "the engine's CPU takes what it takes by default": "disable-overlap-schedule! stream-interval"
            " scheduler-recv-interval",
        "decodes and prompts apart are --disaggregate": "disaggregation-mode disaggregation-transfer-backend"
            " disaggregation-bootstrap-port disaggregation-ib-device disaggregation-decode-enable-offload-kvcache!"
            " num-reserved-decode-tokens disaggregation-decode-polling-interval encoder-only! language-only!"
            " encoder-transfer-backend encoder-urls*",
        "the kernels of a prompt are in graphs up to 512 tokens": "disable-piecewise-cuda-graph!"
            " enforce-piecewise-cuda-graph! enable-piecewise-cuda-graph! piecewise-cuda-graph-tokens*"
            " piecewise-cuda-graph-compiler piecewise-cuda-graph-max-tokens disable-cuda-graph-padding!",
        "kernels are fused as memwall says": "enable-torch-compile! torch-compile-max-bs"
        " enable-torch-compile-debug-mode!",
        "images are as --images says": "enable-multimodal! limit-mm-data-per-request mm-process-config"
            " mm-enable-dp-encoder! disable-fast-image-processor! keep-mm-feature-on-device! enable-prefix-mm-cache!",
        "the model is as its configuration says": "json-model-override-args model-impl modelopt-quant"
            " quantize-and-serve! rl-quant-profile",
        "the draft is as its own configuration says": "speculative-draft-model-revision speculative-token-map"
            " speculative-draft-model-quantization speculative-accept-threshold-single speculative-accept-threshold-acc"
            " enable-multi-layer-eagle! speculative-ngram-min-bfs-breadth speculative-ngram-max-bfs-breadth"
            " speculative-ngram-match-type speculative-ngram-max-trie-depth",
    }),
)  # fmt: skip

_SPECULATION = ("method", "draft", "draft_tokens", "branches", "verified")


def _combine(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    options = direct(
        values, "tp", "pp", "dtype", "weights", "kv", "max_context", "max_batch", "token_budget", "prefill"
    )
    left = balanced(values, options)
    ep = values.get("ep") or (values.get("tp", 1) if values.get("whole_experts") else 1)
    if ep > 1:
        options["ep"] = ep
    dp = values.get("dp", 1)
    if dp > 1 and values.get("dp_attention"):
        options |= {"tp": _divided("--tp", values.get("tp", 1), dp), "dp": dp}
        options |= {name: max(options[name] // dp, 1) for name in ("max_batch", "token_budget") if name in options}
    elif dp > 1:
        options["replicas"] = dp
    if "utilization" in values:
        options |= {"utilization": values["utilization"], "utilization_of": "static"}
    if values.get("prefix_hit") is False:
        options["prefix_hit"] = 0.0
    graphs(values, options, "sglang")
    return options | _guesses(values, left), left


def _divided(flag: str, number: int, dp: int) -> int:
    if number % dp:
        raise UsageError(f"{flag} {number} GPUs are not divided by the {dp} groups of --dp with --enable-dp-attention")
    return number // dp


def _guesses(values: dict[str, Any], left: dict[str, str]) -> dict[str, Any]:
    """What guesses; a tree of guesses, or a head of its own, is left."""
    method, draft = str(values.get("method", "")).lower(), values.get("draft")
    if not method:
        return {}
    is_module = draft is None or draft == values.get("model") or "nextn" in draft.lower()
    is_own = method in ("eagle", "nextn") and is_module
    if values.get("branches", 1) > 1:
        left |= dict.fromkeys(_SPECULATION, "a tree of guesses is not modeled: steps make one token")
        return {}
    if not is_own and not (method == "standalone" and draft):
        left |= dict.fromkeys(_SPECULATION, HEADS.format(method))
        return {}
    guesses = values.get("draft_tokens") or max(values.get("verified", 4) - 1, 1)
    return {"draft": "mtp" if is_own else draft, "draft_tokens": guesses}


def _apart(options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    values = direct(
        options, "pp", "dtype", "kv", "utilization", "max_context", "max_batch", "token_budget", "eager", "captured",
        "ep", "weights", "prefill",
    )  # fmt: skip
    values |= balancer(options)
    tp, dp = options.get("tp", 1), options.get("dp", 1)
    values["tp"] = tp * dp
    if dp > 1:
        values |= {"dp": dp, "dp_attention": True}
        values |= {name: values[name] * dp for name in ("max_batch", "token_budget") if name in values}
    elif options.get("replicas", 1) > 1:
        values["dp"] = options["replicas"]
    if options.get("prefix_hit") == 0.0:
        values["prefix_hit"] = False
    if "draft" in options:
        count, is_own = options.get("draft_tokens"), options["draft"] == "mtp"
        values |= {"method": "EAGLE"} if is_own else {"method": "STANDALONE", "draft": options["draft"]}
        values |= {"draft_tokens": count, "branches": 1, "verified": count + 1} if count else {}
    return values, []


SGLANG = EngineLine(
    engine="sglang",
    title="SGLang",
    starts=(("python3", "-m", "sglang.launch_server"), ("-m", "sglang.launch_server"), ("sglang", "serve")),
    image=("sglang", False),
    flags=FLAGS,
    combine=_combine,
    apart=_apart,
    prefixes=("SGLANG_", "SGL_"),
    utilization_of="static",
)
