"""Sixty command lines in the style of the engines' documentation and recipes, and what each sets, by hand."""

VLLM = [
    ("vllm serve meta-llama/Llama-3.1-8B-Instruct", {}),
    ("vllm serve Qwen/Qwen3-8B --host 0.0.0.0 --port 8000 --api-key token", {}),
    ("vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 8 --max-num-seqs 256",
     {"tp": 8, "max_batch": 256}),
    ("vllm serve meta-llama/Llama-3.1-70B -tp 4 -pp 2", {"tp": 4, "pp": 2}),
    ("vllm serve m --tensor_parallel_size=2 --gpu_memory_utilization=0.95", {"tp": 2, "utilization": 0.95}),
    ("vllm serve m --max-model-len 32k --max-num-batched-tokens 16K", {"max_context": 32000, "token_budget": 16384}),
    ("vllm serve m --max-model-len -1 --dtype auto --kv-cache-dtype auto", {}),
    ("vllm serve m --dtype half --enforce-eager", {"dtype": "float16", "eager": True}),
    ("vllm serve m --quantization fp8 --kv-cache-dtype fp8_e4m3", {"weights": "fp8", "kv": "fp8"}),
    ("vllm serve m -q fp8_per_block", {"weights": "fp8-block"}),
    ("vllm serve TheBloke/x-AWQ --quantization awq_marlin --dtype float16", {"weights": "model", "dtype": "float16"}),
    ("vllm serve m --no-enable-prefix-caching --trust-remote-code", {"prefix_hit": 0.0}),
    ("vllm serve m --no-enable-chunked-prefill", {"prefill": "whole"}),
    ("vllm serve m --enable-chunked-prefill False --max-num-batched-tokens 32768",
     {"prefill": "whole", "token_budget": 32768}),
    ("vllm serve deepseek-ai/DeepSeek-V3 --tensor-parallel-size 8 --enable-expert-parallel", {"tp": 8, "ep": 8}),
    ("vllm serve deepseek-ai/DeepSeek-R1 -dp 8 --enable-expert-parallel --max-num-seqs 64",
     {"dp": 8, "ep": 8, "max_batch": 64}),
    ("vllm serve m --data-parallel-size 4 --tensor-parallel-size 2 -ep --data-parallel-size-local 2"
     " --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 13345", {"tp": 2, "dp": 4, "ep": 8}),
    ("""vllm serve zai-org/GLM-4.5 -tp 8 --speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'""",
     {"tp": 8, "draft": "mtp", "draft_tokens": 1}),
    ("vllm serve m --speculative-config.method deepseek_mtp --speculative-config.num_speculative_tokens 3",
     {"draft": "mtp", "draft_tokens": 3}),
    ("""vllm serve big --speculative_config '{"model": "small", "num_speculative_tokens": 5}'""",
     {"draft": "hf:small", "draft_tokens": 5}),
    ("""vllm serve m --speculative-config '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'""",
     {}),
    ("""vllm serve m --compilation-config '{"cudagraph_capture_sizes": [8, 1, 2, 4]}'""", {"captured": (1, 2, 4, 8)}),
    ("""vllm serve m --compilation-config '{"cudagraph_mode": "NONE"}'""", {"eager": True}),
    ("vllm serve m --cudagraph-capture-sizes 1 2 4 8 16 --max-num-seqs 16",
     {"captured": (1, 2, 4, 8, 16), "max_batch": 16}),
    ("vllm serve m --max-cudagraph-capture-size 16", {"captured": (1, 2, 4, 8, 16)}),
    ("vllm serve m -O3 --async-scheduling --no-enable-log-requests", {}),
    ("VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve openai/gpt-oss-120b --async-scheduling", {}),
    ("python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-32B --tensor-parallel 2", {"tp": 2}),
    ("docker run --gpus all -v ~/.cache/huggingface:/root/.cache/huggingface --env HF_TOKEN=x -p 8000:8000 --ipc=host"
     " vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-0.6B --max-num-seqs 32", {"max_batch": 32, "engine": "vllm@0.11.0"}),
    ("docker run --runtime nvidia -e VLLM_LOGGING_LEVEL=INFO vllm/vllm-openai:latest \\\n  mistralai/Mixtral-8x7B \\\n"
     "  --tensor-parallel-size 2", {"tp": 2}),
    ("vllm serve moonshotai/Kimi-K2-Instruct --tensor-parallel-size 16 --pipeline-parallel-size 2"
     " --gpu-memory-utilization 0.85 --max-num-batched-tokens 8192 --kv-cache-dtype fp8 --tool-call-parser kimi_k2"
     " --enable-auto-tool-choice", {"tp": 16, "pp": 2, "utilization": 0.85, "token_budget": 8192, "kv": "fp8"}),
]  # fmt: skip

SGLANG = [
    ("python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct", {}),
    ("python3 -m sglang.launch_server --model m --tp 2 --host 0.0.0.0 --port 30000", {"tp": 2}),
    ("sglang serve --model-path m --tp-size 4 --pp-size 2", {"tp": 4, "pp": 2}),
    ("python -m sglang.launch_server --model-path m --mem-fraction-static 0.8 --enable-mixed-chunk",
     {"utilization": 0.8, "utilization_of": "static", "prefill": "chunked"}),
    ("python -m sglang.launch_server --model-path m --chunked-prefill-size 4096 --max-running-requests 128",
     {"token_budget": 4096, "max_batch": 128}),
    ("python -m sglang.launch_server --model-path m --chunked-prefill-size -1 --context-length 65536",
     {"max_context": 65536}),
    ("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --trust-remote-code", {"tp": 8}),
    ("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 --enable-dp-attention"
     " --max-running-requests 1024 --chunked-prefill-size 65536",
     {"tp": 1, "dp": 8, "max_batch": 128, "token_budget": 8192}),
    ("python -m sglang.launch_server --model-path m --tp 16 --dp 4 --enable-dp-attention --ep-size 16 --nnodes 2"
     " --node-rank 0 --dist-init-addr 10.0.0.1:5000", {"tp": 4, "dp": 4, "ep": 16}),
    ("python -m sglang.launch_server --model-path m --tp 8 --moe-a2a-backend deepep --deepep-mode auto",
     {"tp": 8, "ep": 8}),
    ("python -m sglang.launch_server --model-path m --tp 4 --ep 4", {"tp": 4, "ep": 4}),
    ("python -m sglang.launch_server --model-path m --dp 2 --tp 2", {"tp": 2, "replicas": 2}),
    ("python -m sglang.launch_server --model-path m --quantization fp8 --kv-cache-dtype fp8_e5m2",
     {"weights": "fp8", "kv": "fp8"}),
    ("python -m sglang.launch_server --model-path m --torchao-config int4wo-128", {"weights": "int4"}),
    ("python -m sglang.launch_server --model-path m --disable-cuda-graph --disable-radix-cache",
     {"eager": True, "prefix_hit": 0.0}),
    ("python -m sglang.launch_server --model-path m --cuda-graph-max-bs 8", {"captured": (1, 2, 4, 8)}),
    ("python -m sglang.launch_server --model-path m --cuda-graph-bs 1 2 4 32", {"captured": (1, 2, 4, 32)}),
    ("python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 --speculative-algorithm EAGLE"
     " --speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 2",
     {"tp": 8, "draft": "mtp", "draft_tokens": 1}),
    ("python3 -m sglang.launch_server --model-path m --speculative-algorithm EAGLE3 --speculative-draft-model-path h"
     " --speculative-num-steps 5 --speculative-eagle-topk 8 --speculative-num-draft-tokens 64", {}),
    ("python3 -m sglang.launch_server --model-path m --speculative-algorithm STANDALONE"
     " --speculative-draft-model-path small --speculative-num-steps 4", {"draft": "hf:small", "draft_tokens": 4}),
    ("docker run --gpus all --shm-size 32g -p 30000:30000 lmsysorg/sglang:v0.5.3 python3 -m sglang.launch_server"
     " --model-path m --tp 2 --attention-backend fa3", {"tp": 2, "engine": "sglang@0.5.3"}),
]  # fmt: skip

TRTLLM = [
    ("trtllm-serve TinyLlama/TinyLlama-1.1B-Chat-v1.0", {}),
    ("trtllm-serve serve m --tp_size 8 --ep_size 8 --max_batch_size 64 --max_num_tokens 4096",
     {"tp": 8, "ep": 8, "max_batch": 64, "token_budget": 4096}),
    ("trtllm-serve m --backend pytorch --tp_size 4 --pp_size 2 --max_seq_len 8192 --log_level info",
     {"tp": 4, "pp": 2, "max_context": 8192}),
    ("trtllm-serve m --kv_cache_free_gpu_memory_fraction 0.85 --kv_cache_dtype fp8",
     {"utilization": 0.85, "kv": "fp8"}),
    ("cat > extra.yml <<EOF\nenable_attention_dp: true\nkv_cache_config:\n  dtype: fp8\n  enable_block_reuse: false\n"
     "EOF\ntrtllm-serve m --tp_size 8 --ep_size 8 --extra_llm_api_options extra.yml",
     {"tp": 1, "dp": 8, "ep": 8, "kv": "fp8", "prefix_hit": 0.0}),
    ("cat <<EOF > extra.yml\ncuda_graph_config:\n  enable_padding: true\n  batch_sizes: [1, 2, 4]\n"
     "speculative_config:\n  decoding_type: MTP\n  num_nextn_predict_layers: 3\nEOF\n"
     "trtllm-serve m --tp_size 8 --config extra.yml",
     {"tp": 8, "captured": (1, 2, 4), "draft": "mtp", "draft_tokens": 3}),
    ("trtllm-serve m --max_batch_size 32 --config <(echo '{\"max_batch_size\": 16, \"cuda_graph_config\": null}')",
     {"max_batch": 16, "eager": True}),
    ("mpirun -n 8 trtllm-llmapi-launch trtllm-serve m --tensor_parallel_size 8 --trust_remote_code 2>&1 | tee log.txt",
     {"tp": 8}),
]  # fmt: skip

#: engine, line, options; what an engine says without a flag is among these
LINES = [
    *(("vllm", line, {"engine": "vllm"} | options) for line, options in VLLM),
    *(("sglang", line, {"engine": "sglang"} | options) for line, options in SGLANG),
    *(("trtllm", line, {"engine": "trtllm", "utilization_of": "free"} | options) for line, options in TRTLLM),
]
