"""CPU seconds of what takes longest on models of other libraries, in the environment of the zoo.

    python lab/benchmarks/zoo_speed.py [--python PYTHON]

- A training step of a Mamba of two layers with 1,024 steps of time, a scan in Python: the ``memwall`` plan.
- The U-Net of Stable Diffusion 1.5 in inference: Inductor's decisions, lowering included.
- Every tenth type of transformers in inference: ``memwall.profile`` after imports, the median.

PYTHON is the zoo's environment (``lab/benchmarks/zoo.py`` makes one). Standard output is a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab" / "benchmarks")]
GPU = "h100-sxm"
#: of the types of transformers, each so manieth is timed
EVERY = 10


def mamba() -> tuple[str, float, float]:
    """The plan of a loop over time in training: what, seconds, goal."""
    import torch
    from transformers import MambaConfig, MambaModel

    import memwall
    from memwall.fusion import plan_graph
    from memwall.ops import graph_costs

    config = MambaConfig(hidden_size=512, num_hidden_layers=2, use_mambapy=False)
    with torch.device("meta"):
        module = MambaModel(config)
    ids = torch.zeros(1, 1024, dtype=torch.long)
    graph = memwall.profile(module, {"input_ids": ids}, gpu=GPU, mode="training").graph
    costs, gpu = graph_costs(graph), memwall.load_gpu(GPU)
    took = []
    for _ in range(3):
        start_s = time.process_time()
        plan_graph("memwall", graph, costs, gpu)
        took.append(time.process_time() - start_s)
    return f"`memwall` plan of a Mamba training step ({len(graph.ops):,} ops)", statistics.median(took), 3.0


def unet() -> tuple[str, float, float]:
    """Inductor's decisions on a large convolutional net."""
    import torch
    from diffusers import UNet2DConditionModel

    import memwall
    from memwall.inductor.compiled import kernels_of

    with torch.device("meta"):
        module = UNet2DConditionModel(sample_size=64, cross_attention_dim=768)
    inputs = {
        "sample": torch.zeros(2, 4, 64, 64), "timestep": torch.zeros(2, dtype=torch.long),
        "encoder_hidden_states": torch.zeros(2, 77, 768),
    }  # fmt: skip
    graph = memwall.profile(module, inputs, gpu=GPU).graph
    start_s = time.process_time()
    kernels_of(graph, memwall.load_gpu(GPU))
    return f"Inductor's decisions on the U-Net of Stable Diffusion 1.5 ({len(graph.ops):,} ops)", \
        time.process_time() - start_s, 15.0  # fmt: skip


def types() -> tuple[str, float, float]:
    """The median of some types of transformers."""
    import zoo

    cases = zoo.listed(["transformers"], [], ["inference"])[::EVERY]
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        zoo.run(cases, 1, rows)
        found = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    took = [row["seconds"] for row in found if row["status"] == "works"]
    return f"`hf:`, median of {len(took)} types of transformers", statistics.median(took), 0.14


PARTS = {"mamba": mamba, "unet": unet, "types": types}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the zoo's environment")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        from zoo_models.compiled_ops import import_compiled

        import_compiled()
        what, seconds, goal = PARTS[arguments.part]()
        print(f"| {what} | {seconds:.2f} | {goal:g} |")
        return 0
    print("| what | CPU seconds | goal |\n|---|---:|---:|", flush=True)
    variables = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for part in PARTS:
        command = [arguments.python, __file__, "--part", part]
        text = subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout
        print(text.strip().splitlines()[-1], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
