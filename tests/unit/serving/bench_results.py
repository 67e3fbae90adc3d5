"""Results as the tools write them, with what does not matter left in."""

import json

#: ``vllm bench serve --save-result``: one object
VLLM = {
    "date": "20260102-030405", "endpoint_type": "vllm", "backend": "vllm", "label": None, "model_id": "org/model",
    "tokenizer_id": "org/model", "num_prompts": 80, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 8,
    "duration": 30.0, "completed": 80, "failed": 0, "total_input_tokens": 81920, "total_output_tokens": 20480,
    "request_throughput": 2.67, "request_goodput": None, "output_throughput": 682.7, "total_token_throughput": 3413.3,
    "mean_ttft_ms": 100.0, "median_ttft_ms": 90.0, "std_ttft_ms": 9.0, "p99_ttft_ms": 120.0, "mean_tpot_ms": 10.0,
    "median_tpot_ms": 10.0, "std_tpot_ms": 0.1, "p99_tpot_ms": 11.0, "mean_itl_ms": 10.0, "median_itl_ms": 9.9,
}  # fmt: skip
#: SGLang's ``bench_serving --output-file``: a line for each run; Python writes an endless rate as Infinity
SGLANG = {
    "backend": "sglang", "dataset_name": "random", "request_rate": float("inf"), "max_concurrency": 16,
    "sharegpt_output_len": None, "random_input_len": 1000, "random_output_len": 200, "random_range_ratio": 0.5,
    "duration": 20.0, "completed": 160, "total_input_tokens": 120000, "total_output_tokens": 24000,
    "total_output_tokens_retokenized": 23990, "request_throughput": 8.0, "mean_e2e_latency_ms": 1900.0,
    "mean_ttft_ms": 150.0, "median_ttft_ms": 140.0, "mean_tpot_ms": 12.0, "median_tpot_ms": 12.0, "mean_itl_ms": 12.1,
    "concurrency": 15.2, "accept_length": None,
}  # fmt: skip
#: InferenceX's aggregate: seconds, nominal lengths
INFERENCEX = {
    "hw": "h200-nv_3", "conc": 32, "image": "vllm/vllm-openai:v0.11.0", "model": "org/model",
    "infmax_model_prefix": "m", "framework": "vllm", "precision": "fp8", "spec_decoding": "none", "disagg": False,
    "isl": 1024, "osl": 1024, "is_multinode": False, "tp": 4, "ep": 1, "dp_attention": "false",
    "tput_per_gpu": 1000.0, "output_tput_per_gpu": 500.0, "input_tput_per_gpu": 500.0, "mean_ttft": 0.2,
    "median_ttft": 0.18, "mean_tpot": 0.015, "mean_intvty": 66.7, "median_tpot": 0.015, "mean_e2el": 15.0,
}  # fmt: skip


def written(path, *records, lines=False):
    """The path of a file with one record, a list of them, or one on each line."""
    if lines:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        path.write_text(json.dumps(records[0] if len(records) == 1 else list(records)))
    return str(path)
