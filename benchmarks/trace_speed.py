"""Speed of memwall next to torch's FlopCounterMode, on the same model and tensors, in one run, one thread.

    python benchmarks/trace_speed.py [bert_large | llama3_70b ...]

Each side runs forward and backward of a model on ``meta``. memwall also costs every op, simulates two GPUs and finds
the memory peak. Both are warmed up once on the same model; the medians of five runs, taken in turn, are printed with
their ratio (memwall / counter). Standard output is Markdown.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

import memwall
from memwall.frontend.workload import resolve

ROOT = Path(__file__).parent.parent
#: workload folder → the ratio that we want to stay under
GOALS = {"bert_large": 1.0, "llama3_70b": 0.5}
GPUS = ("v100", "h100")
RUNS = 5


def counter_s(workload: object) -> float:
    """Seconds of FlopCounterMode alone: forward and backward on meta tensors."""
    with torch.device("meta"):
        module, inputs = workload.model(), workload.inputs()
    start = time.perf_counter()
    with FlopCounterMode(display=False):
        output = module(*inputs)
        loss = workload.loss(output) if workload.loss else output.sum()
        loss.backward()
    return time.perf_counter() - start


def memwall_s(workload: object) -> float:
    """Seconds of trace, cost, two simulations and the memory peak, on the module as it is."""
    with torch.device("meta"):
        module, inputs = workload.model(), workload.inputs()
    start = time.perf_counter()
    memwall.profile(module, inputs, loss=workload.loss, gpu=GPUS, mode="training", optimizer=None)
    return time.perf_counter() - start


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    print("| model | FlopCounterMode (s) | memwall (s) | ratio | goal |\n|---|---|---|---|---|")
    for name in names or list(GOALS):
        workload = resolve(str(ROOT / "profiles" / name / "model.py"))
        counter, ours = [], []
        for run in range(RUNS + 1):
            for measure, times in ((counter_s, counter), (memwall_s, ours)):
                gc.collect()
                seconds = measure(workload)
                if run:  # the first warms up imports and caches
                    times.append(seconds)
        a, b = statistics.median(counter), statistics.median(ours)
        print(f"| {name} | {a:.2f} | {b:.2f} | {b / a:.2f} | {GOALS.get(name, '')} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
