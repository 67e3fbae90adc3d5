"""The command line of vLLM, 0.9 and later (``vllm/engine/arg_utils.py``, ``vllm/entrypoints/openai/cli_args.py``).

``--data-parallel-size`` makes groups that attend to sequences of their own; experts are of all GPUs of all groups,
whole ones with ``--enable-expert-parallel``, else columns. Numbers of sequences and tokens are of a group.
"""

from __future__ import annotations

from typing import Any

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
    one_of,
    quantization,
    quiet,
    sets,
    table,
    unmodeled,
)

_NO_ONLINE = "weights in that format are not modeled"
_QUANTIZATION = quantization(
    {"fp8": "fp8", "fp8_per_tensor": "fp8", "fp8_per_block": "fp8-block"},
    "awq awq_marlin auto_awq gptq gptq_marlin auto_gptq marlin compressed-tensors modelopt modelopt_fp4 modelopt_mixed"
    " mxfp4 auto-round inc quark moe_wna16 fbgemm_fp8 w8a8_fp8 deepseek_v4_fp8 gpt_oss_mxfp4",
    dict.fromkeys(
        ("bitsandbytes", "gguf", "experts_int8", "ptpc_fp8", "torchao", "mxfp8", "online", "tpu_int8",
         "int8_per_channel_weight_only", "rtn", "hqq", "aqlm", "deepspeedfp", "tensorwise", "bitblas", "gptq_bitblas",
         "petit_nvfp4",
         "modelopt_mxfp8", "cpu_awq", "humming"),
        _NO_ONLINE),
)  # fmt: skip
_GRAPHS = one_of(
    {"none": True, "full_and_piecewise": None},
    dict.fromkeys(
        ("full", "piecewise", "full_decode_only"), "graphs hold all kernels of decodes, and of prompts up to 512 tokens"
    ),
)
_LEVEL = one_of({"0": True, "1": None, "2": None, "3": None})

FLAGS = table(
    sets("model model-tag", "model", WORD),
    sets("tensor-parallel-size tp", "tp", WHOLE),
    sets("pipeline-parallel-size pp", "pp", WHOLE),
    sets("data-parallel-size dp", "dp", WHOLE),
    sets("enable-expert-parallel ep", "whole_experts", SWITCH, "ep"),
    sets("enable-eplb", "balancer", SWITCH, "redundant"),
    sets("eplb-config.num-redundant-experts num-redundant-experts", "copies", COUNT, "redundant"),
    sets("dtype", "dtype", DTYPES),
    sets("quantization q", "weights", _QUANTIZATION),
    sets("kv-cache-dtype", "kv", CACHE_DTYPES),
    sets("gpu-memory-utilization", "utilization", SHARE),
    sets("max-model-len", "max_context", WHOLE),
    sets("max-num-seqs", "max_batch", WHOLE),
    sets("max-num-batched-tokens", "token_budget", WHOLE),
    sets("enable-chunked-prefill", "prefill", either("chunked", "whole")),
    sets("enable-prefix-caching", "prefix_hit", SWITCH),
    sets("enforce-eager", "eager", SWITCH),
    sets("cudagraph-capture-sizes cuda-graph-sizes compilation-config.cudagraph-capture-sizes"
         " cc.cudagraph-capture-sizes", "captured", WHOLES),
    sets("max-cudagraph-capture-size compilation-config.max-cudagraph-capture-size"
         " compilation-config.max-capture-size cc.max-cudagraph-capture-size", "most_captured", WHOLE, "captured"),
    sets("compilation-config.cudagraph-mode cc.cudagraph-mode", "eager", _GRAPHS),
    sets("optimization-level O", "eager", _LEVEL),
    sets("speculative-config.method spec-method", "method", WORD, "draft"),
    sets("speculative-config.model spec-model", "draft", WORD),
    sets("speculative-config.num-speculative-tokens spec-tokens", "draft_tokens", WHOLE),
    *quiet(
        "host port uds api-key* ssl-keyfile ssl-certfile ssl-ca-certs enable-ssl-refresh! ssl-cert-reqs root-path"
        " middleware* allow-credentials! allowed-origins* allowed-methods* allowed-headers* uvicorn-log-level"
        " disable-uvicorn-access-log! disable-fastapi-docs! served-model-name* chat-template"
        " chat-template-content-format response-role trust-request-chat-template! return-tokens-as-token-ids!"
        " enable-auto-tool-choice! tool-call-parser tool-parser-plugin tool-server reasoning-parser"
        " reasoning-parser-plugin enable-reasoning! log-config-file max-log-len enable-log-requests!"
        " disable-log-requests! disable-log-stats! enable-log-outputs! enable-request-id-headers!"
        " enable-server-load-tracking! enable-prompt-tokens-details! enable-force-include-usage!"
        " enable-tokenizer-info-endpoint! exclude-tools-when-tool-choice-none! default-chat-template-kwargs"
        " h11-max-incomplete-event-size h11-max-header-count tokenizer tokenizer-mode tokenizer-revision"
        " skip-tokenizer-init! trust-remote-code! revision code-revision hf-config-path config-format hf-token seed"
        " task runner allowed-local-media-path allowed-media-domains load-format download-dir"
        " safetensors-load-strategy model-loader-extra-config ignore-patterns* use-tqdm-on-load!"
        " pt-load-map-location max-parallel-loading-workers generation-config override-generation-config max-logprobs"
        " logprobs-mode enable-sleep-mode! distributed-executor-backend master-addr master-port nnodes node-rank"
        " distributed-timeout-seconds data-parallel-rank data-parallel-start-rank data-parallel-size-local"
        " data-parallel-address data-parallel-rpc-port data-parallel-backend data-parallel-hybrid-lb!"
        " data-parallel-external-lb! headless! ray-workers-use-nsight! worker-cls worker-extension-cls"
        " prefix-caching-hash-algo calculate-kv-scales! guided-decoding-backend structured-outputs-config"
        " show-hidden-metrics-for-version otlp-traces-endpoint collect-detailed-traces* kv-cache-metrics!"
        " kv-cache-metrics-sample cudagraph-metrics! enable-mfu-metrics! enable-layerwise-nvtx-tracing!"
        " enable-logging-iteration-details! aggregate-engine-logging! fail-on-environ-validation! shutdown-timeout"
        " kv-events-config profiler-config interleave-mm-strings! media-io-kwargs enable-flashinfer-autotune!"
        " tokens-only!"
        " enable-offline-docs! disable-access-log-for-endpoints allow-deprecated-quantization!"
    ),
    *unmodeled({
        "memwall takes the attention that the engine takes by itself":
            "attention-backend attention-config ac mm-encoder-attn-backend disable-cascade-attn!"
            " disable-sliding-window!",
        "memwall takes the kernels that the engine takes by itself":
            "moe-backend kernel-config disable-custom-all-reduce!",
        "messages of experts are an all-gather or an all-to-all, whichever takes less":
            "all2all-backend enable-dbo! ubatch-size dbo-decode-token-threshold dbo-prefill-token-threshold",
        "experts are as --routing and --redundant say": "expert-placement-strategy enable-elastic-ep!",
        "a load balancer has settled, and moves nothing any more": "eplb-config eplb-config.window-size"
            " eplb-config.step-interval eplb-config.log-balancedness eplb-config.log-balancedness-interval"
            " eplb-config.use-async eplb-config.policy eplb-config.communicator eplb-window-size eplb-step-interval"
            " eplb-log-balancedness!",
        "the cache of a sequence is on one group of GPUs": "decode-context-parallel-size dcp"
            " prefill-context-parallel-size pcp dcp-comm-backend dcp-kv-cache-interleave-size"
            " cp-kv-cache-interleave-size",
        "weights and caches are in the GPU's memory alone": "cpu-offload-gb cpu-offload-params swap-space"
            " kv-offloading-size kv-offloading-backend kv-transfer-config ec-transfer-config offload-backend"
            " offload-group-size offload-num-in-group offload-prefetch-step offload-params weight-transfer-config",
        "the size of the cache follows from --utilization": "kv-cache-memory-bytes kv-cache-memory"
            " num-gpu-blocks-override",
        "blocks have 16 tokens": "block-size mamba-block-size",
        "states are as memwall reads the model": "mamba-cache-dtype mamba-ssm-cache-dtype mamba-cache-mode"
            " kv-sharing-fast-prefill!",
        "adapters are not modeled": "enable-lora! max-loras max-lora-rank lora-dtype lora-modules* max-cpu-loras"
            " fully-sharded-loras! default-mm-loras lora-extra-vocab-size lora-target-modules*"
            " enable-tower-connector-lora! specialize-active-lora!",
        "the scheduler serves first come, first served, and cuts every prompt": "scheduling-policy scheduler-cls"
            " max-num-partial-prefills max-long-partial-prefills long-prefill-token-threshold num-scheduler-steps"
            " preemption-mode disable-hybrid-kv-cache-manager! performance-mode",
        "the engine's CPU takes what it takes by default": "async-scheduling! stream-interval api-server-count"
            " disable-frontend-multiprocessing! disable-async-output-proc! renderer-num-workers",
        "images are as --images says": "limit-mm-per-prompt mm-processor-kwargs mm-processor-cache-gb"
            " mm-processor-cache-type mm-encoder-tp-mode mm-encoder-only! language-model-only! skip-mm-profiling!"
            " enable-mm-embeds! video-pruning-rate disable-mm-preprocessor-cache! disable-chunked-mm-input!"
            " mm-shm-cache-max-object-size-mb limit-mm-per-prompt.image limit-mm-per-prompt.video"
            " limit-mm-per-prompt.audio",
        "the model is as its configuration says": "hf-overrides rope-scaling rope-theta model-impl convert"
        " pooler-config"
            " override-pooler-config override-attention-dtype logits-processors* logits-processor-pattern"
            " io-processor-plugin additional-config quantization-config enable-prompt-embeds!"
            " enable-return-routed-experts!",
        "the draft is as its own configuration says": "speculative-config.draft-tensor-parallel-size"
            " speculative-config.quantization speculative-config.max-model-len speculative-config.prompt-lookup-max"
            " speculative-config.prompt-lookup-min speculative-config.draft-sample-method"
            " speculative-config.disable-by-batch-size speculative-config.attention-backend",
        "kernels are fused as memwall says": "compilation-config.mode cc.mode compilation-config.level"
            " compilation-config.pass-config compilation-config.custom-ops* compilation-config.splitting-ops*"
            " compilation-config.use-inductor compilation-config.backend compilation-config.full-cuda-graph"
            " compilation-config.compile-sizes* compilation-config.use-cudagraph compilation-config.debug-dump-path",
    }),
)  # fmt: skip

#: modules of the model itself: ``mtp``, or of older versions by the model
_OWN = ("mtp", "deepseek_mtp")


def _combine(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    options = direct(
        values, "tp", "pp", "dp", "dtype", "weights", "kv", "utilization", "max_context", "max_batch", "token_budget",
        "prefill",
    )  # fmt: skip
    if values.get("whole_experts"):
        options["ep"] = values.get("tp", 1) * values.get("dp", 1)
    if values.get("prefix_hit") is False:
        options["prefix_hit"] = 0.0
    graphs(values, options, "vllm")
    left = balanced(values, options)
    method = str(values.get("method", "draft_model" if "draft" in values else "")).lower()
    if not method:
        return options, left
    if method in _OWN or method.endswith("_mtp"):
        options["draft"] = "mtp"
    elif method == "draft_model" and "draft" in values and "eagle" not in values["draft"].lower():
        options["draft"] = values["draft"]
    else:
        named = method if "method" in values else "eagle"
        return options, left | dict.fromkeys(("method", "draft", "draft_tokens"), HEADS.format(named))
    return options | direct(values, "draft_tokens"), left


def _apart(options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    values = direct(
        options, "tp", "pp", "dp", "dtype", "kv", "utilization", "max_context", "max_batch", "token_budget", "eager",
        "captured", "draft_tokens", "weights", "prefill",
    )  # fmt: skip
    values |= balancer(options)
    unsaid = []
    ep, gpus = options.get("ep", 1), options.get("tp", 1) * options.get("dp", 1)
    if ep == gpus > 1:
        values["whole_experts"] = True
    elif ep > 1:
        unsaid.append(f"whole experts on {ep} of {gpus} GPUs")
    if options.get("draft") == "mtp":
        values["method"] = "mtp"
    elif "draft" in options:
        values |= {"method": "draft_model", "draft": options["draft"]}
    if options.get("prefix_hit") == 0.0:
        values["prefix_hit"] = False
    return values, unsaid


VLLM = EngineLine(
    engine="vllm",
    title="vLLM",
    starts=(("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server")),
    image=("vllm", True),
    flags=FLAGS,
    combine=_combine,
    apart=_apart,
    prefixes=("VLLM_",),
)
