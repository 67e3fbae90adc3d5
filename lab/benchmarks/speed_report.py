"""Write reports/speed.md: how fast memwall is on this machine, each figure with the command that gives it.

python lab/benchmarks/speed_report.py
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from growth import MOST, TIMES

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

#: Runs in a process of its own and prints seconds and peak resident bytes.
BIG = """
import json, resource, sys, time
import memwall
start = time.perf_counter()
record = memwall.profile("profiles/llama3_405b/model.py", gpu=["a100", "h100"], mode="training")
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([seconds, peak, len(record.graph.ops)]))
"""


#: Prints seconds of the first prediction on a GPU, of later ones (median), and the kernels.
PREDICT = """
import gc, json, statistics, time
import memwall
from memwall.simulate.schedule import PlanContext, simulate
record = memwall.profile("profiles/llama3_70b/model.py", gpu="a100", mode="training")
plan, gpu = record.simulations[0].plan, memwall.load_gpu("h100-sxm")
context = PlanContext.of(record.graph, plan)
gc.disable()  # as memwall.profile does
times = []
for _ in range(20):
    start = time.perf_counter()
    simulate(record.graph, plan, gpu, context=context)
    times.append(time.perf_counter() - start)
print(json.dumps([times[0], statistics.median(times[1:]), len(plan.groups)]))
"""


#: the state before the package was ordered into folders, and the workloads on which it is compared with this one
BEFORE, COMPARED = "1f20135", ("llama3_70b", "llama3_8b", "bert_large")


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    return done.stdout


def seconds(*arguments: str, runs: int = 5) -> float:
    """Median wall time of a whole process, after one warm-up."""
    times = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        run(*arguments)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        saved = str(Path(folder) / "70b.json")
        run("-m", "memwall", "profile", "profiles/llama3_70b/model.py", "--mode", "training", "-q", "-o", saved)
        boards = ["v100", "a100", "h100", "h200", "b200", "l4", "l40s", "t4", "mi300x", "p100"]
        rows = [
            ("`memwall --help`", seconds("-m", "memwall", "--help"), "0.25"),
            ("`memwall gpus`", seconds("-m", "memwall", "gpus"), "0.25"),
            ("`memwall compare` of a saved 70B training step on ten GPUs",
             seconds("-m", "memwall", "compare", saved, "--gpu", *boards), "1.5"),
            ("`memwall profile profiles/bert_large/model.py --gpu v100 h100 --mode training`",
             seconds("-m", "memwall", "profile", "profiles/bert_large/model.py", "--gpu", "v100", "h100", "--mode",
                     "training", runs=3), "-"),
        ]  # fmt: skip
    took, peak, ops = json.loads(run("-c", BIG))
    first, again, kernels = json.loads(run("-c", PREDICT))
    text = f"""# Speed

Measured by `python lab/benchmarks/speed_report.py` on {platform.machine()}, {os.cpu_count()} cores, Python
{platform.python_version()}, torch {torch.__version__}. Medians; times depend on the machine, ratios hardly.

Next to torch's FlopCounterMode, forward and backward, same model and meta tensors, one run, one thread
(`python lab/benchmarks/trace_speed.py`); memwall's side includes costs, the simulation of two GPUs of different
generations and the memory peak:

{run("lab/benchmarks/trace_speed.py").strip()}

Next to the state before the package was ordered into folders, training steps, seven runs of each state in turn
(`python lab/benchmarks/trace_speed.py --against {BEFORE} {" ".join(COMPARED)}`;
goals: profile of the 70B step 1.0, simulation on one more GPU 0.5):

{run("lab/benchmarks/trace_speed.py", "--against", BEFORE, *COMPARED).strip()}

A cold command, the whole process, next to importing what it needs, both started in turn
(`python lab/benchmarks/cold_start.py`):

{run("lab/benchmarks/cold_start.py").strip()}

CPU seconds as the input grows, each pair in one process (`python lab/benchmarks/growth.py`; goal: {TIMES} times as much
takes at most {MOST:g} times as long):

{run("lab/benchmarks/growth.py").strip()}

Llama-3-405B (126 layers), training step with AdamW on two GPUs, in-process: {took:.1f} s for {ops:,} ops (goal 10 s),
peak resident memory {peak / 2**20:.0f} MiB (goal 1,024).

Predicting all {kernels:,} kernels of a Llama-3-70B training step on one GPU, in-process, the graph and its costs given:
{first * 1e3:.0f} ms the first time on that GPU, {again * 1e3:.0f} ms after (goal 50).

| whole process | s | goal |
|---|---:|---:|
""" + "".join(f"| {what} | {s:.2f} | {goal} |\n" for what, s, goal in rows)
    (ROOT / "reports" / "speed.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
