"""Seconds to plan and simulate a large training step, and how they grow with its layers.

    python lab/benchmarks/planner_speed.py [WORKLOAD ...]

Each workload (a Llama of ``profiles/``, default llama3_70b) is traced once with 20, 40 and 80 layers; then its
``memwall`` and ``ideal`` plans are made and simulated on an H100, in one process and one thread. The sizes are timed in
turn, five times each, and the medians are printed with the ratio to the size before. Two loops over time, a GRU cell in
inference and in training, follow with 250, 500 and 1000 steps. Standard output is Markdown.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from pathlib import Path

import torch

import memwall
from memwall.frontend.targets import resolve
from memwall.fusion import plan_graph
from memwall.simulate.schedule import simulate

ROOT = Path(__file__).parents[2]
LAYERS = (20, 40, 80)
STEPS = (250, 500, 1000)
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


class Recurrent(torch.nn.Module):
    """A GRU cell in a Python loop over time."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], 64)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return state


def looped(mode: str, steps: int) -> memwall.Profile:
    """A loop of so many steps."""
    return memwall.profile(Recurrent(), (torch.randn(8, steps, 64),), gpu="h100-sxm", mode=mode)


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
    print("| model | layers or steps | ops | seconds | ratio | goal |\n|---|---|---|---|---|---|")
    for name in names or ["llama3_70b"]:
        measure(name, {layers: traced(name, layers) for layers in LAYERS}, GOAL_S)
    for mode in ("inference", "training"):
        measure(f"GRU cell, {mode}", {steps: looped(mode, steps) for steps in STEPS}, None)


def measure(name: str, profiles: dict[int, memwall.Profile], goal_s: float | None) -> None:
    """Time the sizes in turn and print a row for each."""
    times: dict[int, list[float]] = {size: [] for size in profiles}
    for run in range(RUNS + 1):
        for size, profile in profiles.items():
            seconds = planned_s(profile)
            if run:  # the first warms up
                times[size].append(seconds)
    before = None
    for size, profile in profiles.items():
        seconds = statistics.median(times[size])
        ratio = f"{seconds / before:.2f}" if before else ""
        goal = f"{goal_s:.0f} s, ratio {GOAL_RATIO}" if goal_s and size == max(profiles) else f"ratio {GOAL_RATIO}"
        print(f"| {name} | {size} | {len(profile.graphs[0].ops)} | {seconds:.2f} | {ratio} | {goal} |", flush=True)
        before = seconds


if __name__ == "__main__":
    main(sys.argv[1:])
