"""Seconds of a server's questions about a 70B model, after its trace: steps at 10,000 points, a table of loads, and
hours of requests over eight replicas.

    python lab/benchmarks/serving_speed.py

The points are all of 25 batches, 25 contexts, 4 numbers of GPUs and 4 GPUs; the table is 4 GPUs x 4 numbers of GPUs x 6
loads, simulated request by request. An hour is of bursts with lognormal lengths, or of sessions whose prefixes are
kept, at rates that eight engines of four GPUs serve. One process, CPU seconds; steps in bulk are as a sweep has them.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from memwall.hardware.cluster import cluster_of  # noqa: E402
from memwall.hardware.lookup import load_gpu  # noqa: E402
from memwall.serving import read_model, serve  # noqa: E402
from memwall.serving.simulation import timing  # noqa: E402
from memwall.serving.simulation.timing import GpuSteps  # noqa: E402
from memwall.serving.steps import Layout  # noqa: E402

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
GPUS, COUNTS = ("a100-80gb-sxm", "h100-sxm", "h200", "b200"), (1, 2, 4, 8)
BATCHES = range(4, 104, 4)
CONTEXTS = range(512, 13_312, 512)
#: hours of requests: options of the load
HOURS = {
    "bursts": {"rate": 40.0, "burst": 3.0, "lengths": "lognormal:0.9,0.6"},
    "sessions": {"rate": 16.0, "burst": 3.0, "turns": 4, "think": 20.0, "system_prompt": 1000, "route": "prefix"},
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA_70B), encoding="utf-8")
        start_s = time.process_time()
        model = read_model(f"hf:{folder}")
    print(f"trace, imports too: {time.process_time() - start_s:.1f} s")
    for said in ("one by one", "in bulk"):
        for priced in (timing._priced, timing._attention, timing._sent):  # what the other way has priced
            priced.cache_clear()
        start_s = time.process_time()
        points = 0
        for name, count in itertools.product(GPUS, COUNTS):
            gpu = load_gpu(name)
            steps = GpuSteps(model.served, gpu, Layout(tp=count), cluster_of(gpu) if count > 1 else None)
            asked = list(itertools.product(BATCHES, CONTEXTS))
            if said == "in bulk":
                steps.decodes(*zip(*asked, strict=True))
            else:
                for batch, context in asked:
                    steps.step_s(batch, batch * context)
            points += len(asked)
        print(f"{points:,} steps, {said}: {time.process_time() - start_s:.2f} s (goal 1)")
    start_s = time.process_time()
    found = serve(model, gpu=GPUS, tp=COUNTS, concurrency=(1, 4, 16, 64, 128, 256))
    print(f"a table of {len(found.points)} points: {time.process_time() - start_s:.2f} s (goal 3)")
    for name, load in HOURS.items():
        start_s = time.process_time()
        (point,) = serve(model, gpu="h100-sxm", tp=4, replicas=8, requests=int(3600 * load["rate"]), **load).points
        run = point.candidate.run
        said = f"{len(run.served):,} requests in {run.span_s:,.0f} s, TTFT {run.ttft.mean:.3f} s"
        print(f"an hour of {name}, {said}: {time.process_time() - start_s:.2f} s (goal 20)")
    print(f"peak resident memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB (goal 1,024)")


if __name__ == "__main__":
    main()
