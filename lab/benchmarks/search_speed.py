"""Seconds and memory of the search of all layouts of GPT-3 (175B) on 1,024 H100.

python lab/benchmarks/search_speed.py [GPUS] [GLOBAL_BATCH]
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from memwall.training.search import search_layouts  # noqa: E402

#: Brown et al., 2020, table 2.1
CONFIG = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 12288, "n_head": 96, "n_layer": 96,
          "n_positions": 2048, "vocab_size": 51200, "dtype": "bfloat16"}  # fmt: skip


def main() -> None:
    gpus, global_batch = [*map(int, sys.argv[1:]), *(1024, 1536)[len(sys.argv) - 1 :]]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        start_s, start_cpu_s = time.monotonic(), time.process_time()
        found = search_layouts(f"hf:{folder}", gpus=gpus, global_batch=global_batch, seq=2048)
    took = f"{time.monotonic() - start_s:.1f} s, {time.process_time() - start_cpu_s:.1f} s of CPU (goal 30)"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{found.count:,} layouts, {found.ranks} ranks traced, {found.simulated} simulated: {took}, {peak:,.0f} MiB")
    for each in found.order[:3]:
        print(f"{each.step.time_s:.3f} s, MFU {each.mfu:.1%}: {each.layout}, microbatches of {each.batch}")


if __name__ == "__main__":
    main()
