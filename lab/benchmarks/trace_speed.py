"""Speed of memwall next to torch's FlopCounterMode, on the same model and tensors, in one run, one thread.

    python lab/benchmarks/trace_speed.py [bert_large | llama3_70b ...]
    python lab/benchmarks/trace_speed.py --against REF [WORKLOAD ...]

Each side runs forward and backward of a model on ``meta``. memwall also costs every op, simulates two GPUs and finds
the memory peak. Both are warmed up once on the same model; the medians of five runs, taken in turn, are printed with
their ratio (memwall / counter). Standard output is Markdown.

``--against`` compares this state with that of a commit or tag, checked out for as long: the profile of a training step
on an A100, the simulation of that profile on an H100, and the saving and loading of its record. Both states answer in
turn; what is printed are the medians and the median of the paired ratios (this state / the other).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

import memwall
from memwall.frontend.targets import resolve

ROOT = Path(__file__).parents[2]
#: workload folder → the target ratio
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


#: What is timed with ``--against``
TIMED = "profile", "simulate on one more GPU", "save", "load"

#: Answers each line of standard input with the seconds of all that is timed.
ANSWER = """
import gc, json, sys, tempfile, time
import torch, memwall
try:
    from memwall.simulate.schedule import PlanContext, simulate
except ImportError:  # an earlier state
    from memwall.simulate import PlanContext, simulate
torch.set_num_threads(1)
gpu = memwall.load_gpu("h100-sxm")
path = tempfile.mkdtemp() + "/record.json"
def seconds(call, *arguments):
    gc.collect()
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start
for _ in sys.stdin:
    gc.collect()
    start = time.perf_counter()
    record = memwall.profile(sys.argv[1], gpu="a100", mode="training")
    profiled = time.perf_counter() - start
    plan = record.simulations[0].plan
    context = PlanContext.of(record.graph, plan)
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    simulate(record.graph, plan, gpu, context=context)
    simulated = time.perf_counter() - start
    gc.enable()
    times = [profiled, simulated, seconds(record.save, path), seconds(memwall.Profile.load, path)]
    print(json.dumps(times), flush=True)
"""


def answers(roots: list[Path], name: str, runs: int) -> list[list[tuple[float, ...]]]:
    """For each run what each state answers, in turn; the first run warms up and does not count."""
    target = str(ROOT / "profiles" / name / "model.py")
    sides = [
        subprocess.Popen(
            [sys.executable, "-c", ANSWER, target], cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for root in roots
    ]  # fmt: skip
    found = []
    for _ in range(runs + 1):
        row = []
        for side in sides:
            assert side.stdin is not None and side.stdout is not None
            print(file=side.stdin, flush=True)
            row.append(tuple(json.loads(side.stdout.readline())))
        found.append(row)
    for side in sides:
        side.communicate()
    return found[1:]


def against(ref: str, names: list[str], runs: int) -> None:
    """Print how this state's times compare with another's."""
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other"
        subprocess.run(["git", "worktree", "add", "--detach", "-q", str(other), ref], cwd=ROOT, check=True)
        try:
            print(f"| model | what | {ref} (ms) | now (ms) | ratio |\n|---|---|---|---|---|")
            for name in names:
                rows = answers([other, ROOT], name, runs)
                for place, what in enumerate(TIMED):
                    times = [(before[place], now[place]) for before, now in rows]
                    before, now = (statistics.median(side) * 1e3 for side in zip(*times, strict=True))
                    ratio = statistics.median(b / a for a, b in times)
                    print(f"| {name} | {what} | {before:.1f} | {now:.1f} | {ratio:.2f} |", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=True)


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--against", metavar="REF")
    parser.add_argument("--runs", type=int, default=7, help="runs of each state with --against")
    options = parser.parse_args()
    if options.against:
        against(options.against, options.workloads or ["llama3_70b"], options.runs)
    else:
        main(options.workloads)
