"""Seconds and memory of a sweep of 51,200 decode steps: 5 models x 8 GPUs x TP x weights x batch x context.

    python lab/benchmarks/sweep_speed.py [WORKERS] [dask]

The models are traced anew; then the same sweep runs in another process, with the traces in the cache. WORKERS are
processes of the pool, or of a Dask cluster that runs already; 0, the default, evaluates all in one process.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

import memwall  # noqa: E402

_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False,
          "dtype": "bfloat16", "max_position_embeddings": 131072}  # fmt: skip


def _llama(hidden: int, inter: int, layers: int, heads: int, kv_heads: int) -> dict[str, Any]:
    return {**_LLAMA, "hidden_size": hidden, "intermediate_size": inter, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": 128256}  # fmt: skip


MODELS = {
    "llama_1b": _llama(2048, 8192, 16, 32, 8), "llama_8b": _llama(4096, 14336, 32, 32, 8),
    "llama_34b": _llama(8192, 22016, 48, 64, 8), "llama_70b": _llama(8192, 28672, 80, 64, 8),
    "mixtral_8x7b": {
        **_llama(4096, 14336, 32, 32, 8), "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
        "num_local_experts": 8, "num_experts_per_tok": 2,
    },
}  # fmt: skip
VARY = {
    "gpu": ["a100-80gb-sxm", "h100-sxm", "h200", "b200", "l40s", "a100-40gb-sxm", "h100-pcie", "rtx-4090"],
    "tp": [1, 2, 4, 8], "weights": ["model", "fp8"], "batch": [1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192,
                                                               224, 256],
    "context": [512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384],
}  # fmt: skip


def once(state: str, workers: int, engine: str) -> None:
    """One sweep in this process, whose traces are in the cache or are made."""
    targets = [f"hf:{path.parent}" for path in map(Path, sys.argv[4:])]
    how: dict[str, Any] = {"workers": workers}
    if engine == "dask":
        from distributed import LocalCluster

        cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, host="127.0.0.1")
        how = {"engine": "dask", "scheduler": cluster.scheduler_address}
    start_s, start_cpu_s = time.monotonic(), time.process_time()
    frame = memwall.sweep(targets, VARY, best="tokens_per_s_per_gpu", where=["fits"], **how)
    cpu_s = time.process_time() - start_cpu_s
    took = f"{time.monotonic() - start_s:.1f} s, {cpu_s:.1f} s of this process's CPU"
    print(f"51,200 points, {len(frame):,} of which fit, {state}: {took} (goal 10)")
    if engine == "dask":
        cluster.close()
    for who, name in ((resource.RUSAGE_SELF, "this process"), (resource.RUSAGE_CHILDREN, "the largest child")):
        peak = resource.getrusage(who).ru_maxrss / 1024
        print(f"  peak resident memory of {name}: {peak:,.0f} MiB (goal 1,024)", flush=True)


def main() -> None:
    workers, engine = (*sys.argv[1:], *("0", "local")[len(sys.argv) - 1 :])
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name, config in MODELS.items():
            files.append(Path(folder) / name / "config.json")
            files[-1].parent.mkdir()
            files[-1].write_text(json.dumps(config), encoding="utf-8")
        for state in ("traced anew", "traces in the cache"):
            command = [sys.executable, __file__, state, workers, engine, *map(str, files)]
            subprocess.run(command, env={**os.environ, "MEMWALL_CACHE": folder}, check=True)


if __name__ == "__main__":  # workers of Dask import this file
    if len(sys.argv) > 3:
        once(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main()
