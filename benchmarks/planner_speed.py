"""Seconds to plan and simulate a large training step, and how they grow with its layers.

    python benchmarks/planner_speed.py [WORKLOAD ...]

Each workload (a Llama of ``profiles/``, default llama3_70b) is traced once with 20, 40 and 80 layers; then its
``memwall`` and ``ideal`` plans are made and simulated on an H100, in one process and one thread. The sizes are timed in
turn, five times each, and the medians are printed with the ratio to the size before. Standard output is Markdown.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from pathlib import Path

import torch

import memwall
from memwall.frontend.workload import resolve
from memwall.fusion import plan_graph
from memwall.simulate.schedule import simulate

ROOT = Path(__file__).parent.parent
LAYERS = (20, 40, 80)
POLICIES = ("memwall", "ideal")
RUNS = 5
#: seconds that the largest may take, and what twice the layers may take
GOAL_S, GOAL_RATIO = 3.0, 2.2


def traced(name: str, layers: int) -> memwall.Profile:
    """The training step of a workload, cut to so many layers."""
    workload = resolve(str(ROOT / "profiles" / name / "model.py"))
    with torch.device("meta"):
        module, inputs = workload.model(), workload.inputs()
    del module.blocks[layers:]
    return memwall.profile(module, inputs, loss=workload.loss, gpu="h100-sxm", mode="training")


def planned_s(profile: memwall.Profile) -> float:
    """Seconds of both policies, planned and simulated, on the profile's first graph."""
    gpu, graph = memwall.load_gpu("h100-sxm"), profile.graphs[0]
    gc.collect()
    gc.disable()  # as memwall.profile does
    start = time.perf_counter()
    for policy in POLICIES:
        simulate(graph, plan_graph(policy, graph, profile.costs[0], gpu), gpu)
    seconds = time.perf_counter() - start
    gc.enable()
    return seconds


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    print("| model | layers | ops | seconds | ratio | goal |\n|---|---|---|---|---|---|")
    for name in names or ["llama3_70b"]:
        profiles = {layers: traced(name, layers) for layers in LAYERS}
        times: dict[int, list[float]] = {layers: [] for layers in LAYERS}
        for run in range(RUNS + 1):
            for layers, profile in profiles.items():
                seconds = planned_s(profile)
                if run:  # the first warms up
                    times[layers].append(seconds)
        before = None
        for layers, profile in profiles.items():
            seconds = statistics.median(times[layers])
            ratio = f"{seconds / before:.2f}" if before else ""
            goal = f"{GOAL_S:.0f} s, ratio {GOAL_RATIO}" if layers == LAYERS[-1] else f"ratio {GOAL_RATIO}"
            print(
                f"| {name} | {layers} | {len(profile.graphs[0].ops)} | {seconds:.2f} | {ratio} | {goal} |", flush=True
            )
            before = seconds


if __name__ == "__main__":
    main(sys.argv[1:])
