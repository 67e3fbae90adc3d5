"""How the CPU seconds of a command grow with its input: four times as many ops, layers, GPUs, stages, events, records.

python lab/benchmarks/growth.py [AXIS...]; with --profile AXIS it prints where the larger one spends its time

Each pair runs in one process, twice in turn, with its imports made before; the ratio is of the shorter runs. Nothing
may grow faster than linearly: a ratio above 5 is an error.
"""

from __future__ import annotations

import contextlib
import cProfile
import io
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from memwall.cli import main as memwall
from memwall.hardware.lookup import gpu_names

#: times as much, and the most times as long that this may take
TIMES, MOST = 4, 5.0

_LOOP = """
import torch
class Loop(torch.nn.Module):
    def forward(self, x):
        for i in range({size}):
            x = x * 1.5 if i % 2 else torch.relu(x)
        return x
def model():
    return Loop()
def inputs():
    return (torch.randn(64, 64),)
"""
_LAYERS = """
import torch
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(64), torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))
def model():
    return torch.nn.Sequential(*(Layer() for _ in range({size})))
def inputs(batch: int = 2):
    return (torch.randn(batch, 64),)
"""
_RAISES = """
import torch
class Raises(torch.nn.Module):
    def forward(self, x):
        raise ValueError("x" * {size} + " 3, 4 " * {size})
def model():
    return Raises()
def inputs():
    return (torch.randn(4, 4),)
"""


def _model(text: str, *words: str) -> Callable[[Path, int], list[str]]:
    """The profile of a model of some size, as text, page and record."""

    def make(folder: Path, size: int) -> list[str]:
        (folder / "model.py").write_text(text.format(size=size), encoding="utf-8")
        written = [word for kind in ("html", "json") for word in ("-o", str(folder / f"out.{kind}"))]
        return ["profile", str(folder / "model.py"), "--gpu", "h100", *words, *written]

    return make


def _gpus(folder: Path, size: int) -> list[str]:
    return [*_model(_LAYERS, "--gpu", *gpu_names()[:size])(folder, 64)]


def _layout(folder: Path, size: int) -> list[str]:
    (folder / "model.py").write_text(_LAYERS.format(size=64), encoding="utf-8")
    layout = f"pp={size},microbatches=32"
    return ["profile", str(folder / "model.py"), "--cluster", "dgx-h100", "--mode", "training", "--parallel", layout]


def _points(folder: Path, size: int) -> list[str]:
    (folder / "model.py").write_text(_LAYERS.format(size=2), encoding="utf-8")
    hosts = ",".join(gpu_names()[: size // 16])
    axes = [f"gpu={hosts}", "policy=eager,memwall", "cuda_graph=true,false", "batch=1,2,3,4"]
    return ["sweep", str(folder / "model.py"), "--no-cache", "--workers", "0", "--vary", *axes]


def _events(folder: Path, size: int) -> list[str]:
    events = []
    for i in range(size):
        common = {"ph": "X", "ts": 10.0 * i, "tid": 1}
        shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
        events += [
            {**common, "cat": "cpu_op", "name": "aten::mm", "pid": 1, "dur": 4.0, "args": shapes},
            {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "ts": 10.0 * i + 1, "dur": 1.0,
             "args": {"correlation": i + 1}},
            {**common, "cat": "kernel", "name": "sm90_gemm", "pid": 0, "tid": 7, "ts": 10.0 * i + 2, "dur": 3.0,
             "args": {"device": 0, "stream": 7, "correlation": i + 1}},
        ]  # fmt: skip
    (folder / "trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    return ["profile", str(folder / "trace.json"), "--gpu", "h100"]


def _replicas(folder: Path, size: int) -> list[str]:
    """Replicas on as many GPUs of nodes of eight."""
    (folder / "model.py").write_text(_LAYERS.format(size=64), encoding="utf-8")
    layout = f"dp={size},fsdp=full,microbatches=2"
    return ["profile", str(folder / "model.py"), "--cluster", "dgx-h100", "--mode", "training", "--parallel", layout]


def _record(folder: Path, layers: int, batch: int = 2) -> str:
    (folder / "model.py").write_text(_LAYERS.format(size=layers), encoding="utf-8")
    path = str(folder / f"step{batch}.json")
    with contextlib.redirect_stdout(io.StringIO()):
        memwall(["profile", str(folder / "model.py"), "--gpu", "h100", "--batch", str(batch), "-q", "-o", path])
    return path


def _compared(folder: Path, size: int) -> list[str]:
    return ["compare", _record(folder, 64), "--gpu", *gpu_names()[:size]]


def _records(folder: Path, size: int) -> list[str]:
    """Records of as many batches."""
    return [_record(folder, 8, 1 + number) for number in range(size)]


def _beside(folder: Path, size: int) -> list[str]:
    return ["compare", *_records(folder, size)]


def _gated(folder: Path, size: int) -> list[str]:
    (folder / "memwall.toml").write_text("[tool.memwall.gate]\n", encoding="utf-8")
    return ["gate", "--config", str(folder / "memwall.toml"), "--limit", "time_s=1 s", *_records(folder, size)]


def _saved(folder: Path, size: int) -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()):
        memwall(_model(_LOOP)(folder, size))
    return ["report", str(folder / "out.json"), "-o", str(folder / "again.html")]


def _comm(folder: Path, size: int) -> list[str]:
    return ["comm", "--cluster", "dgx-h100", "--gpus", str(size)]


#: what grows → the command of some size, and the smaller size
AXES: dict[str, tuple[Callable[[Path, int], list[str]], int]] = {
    "ops": (_model(_LOOP), 5_000),
    "ops, all policies": (_model(_LOOP, "--policy", "eager", "memwall", "ideal"), 5_000),
    "layers": (_model(_LAYERS), 250),
    "layers in training, all policies": (
        _model(_LAYERS, "--mode", "training", "--policy", "eager", "memwall", "ideal"), 100
    ),
    "GPUs": (_gpus, len(gpu_names()) // TIMES),
    "GPUs of a comparison": (_compared, len(gpu_names()) // TIMES),
    "GPUs of a cluster": (_replicas, 256),
    "stages of a pipeline": (_layout, 4),
    "ranks of a collective": (_comm, 1_024),
    "points of a sweep": (_points, 256),
    "events of a trace": (_events, 10_000),
    "ops of a saved record": (_saved, 5_000),
    "saved records of a comparison": (_beside, 16),
    "saved records of a gate": (_gated, 16),
    "characters of a model's exception": (_model(_RAISES), 50_000),
}  # fmt: skip


def seconds(command: list[str]) -> float:
    """CPU seconds of a command in this process."""
    start = time.process_time()
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = memwall(command)
    took = time.process_time() - start
    if code != (2 if "ValueError" in said.getvalue() else 0):  # what the model raises
        raise SystemExit(f"{' '.join(command)}: exit code {code}: {said.getvalue()}")
    return took


def measured(axis: str) -> tuple[int, float, float]:
    """The smaller size, its seconds, and the seconds of the larger."""
    make, size = AXES[axis]
    times: dict[int, list[float]] = {size: [], TIMES * size: []}
    with tempfile.TemporaryDirectory() as place:
        commands = {}
        for each in times:
            (Path(place) / str(each)).mkdir()
            commands[each] = make(Path(place) / str(each), each)
        small = make(Path(place), 8)
        seconds(small)  # imports, GPUs' files
        for _ in range(2):
            for each, command in commands.items():
                times[each].append(seconds(command))
    return size, min(times[size]), min(times[TIMES * size])


def profile(axis: str) -> None:
    """Where the larger one spends its time."""
    make, size = AXES[axis]
    with tempfile.TemporaryDirectory() as place:
        seconds(make(Path(place), 8))
        command = make(Path(place), TIMES * size)
        profiler = cProfile.Profile()
        profiler.runcall(seconds, command)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main(words: list[str]) -> int:
    """Print a table of the ratios; 1 where one is too large."""
    if words[:1] == ["--profile"]:
        profile(words[1])
        return 0
    if len(words) == 1:
        print(json.dumps(measured(words[0])))
        return 0
    worst = 0.0
    print(f"| {TIMES} times as many | from | CPU (s) | of {TIMES} times (s) | ratio |\n|---|---:|---:|---:|---:|")
    for axis in words or AXES:
        own = subprocess.run(
            [sys.executable, __file__, axis], capture_output=True, text=True, check=True, env=os.environ
        )
        size, small, large = json.loads(own.stdout)
        worst = max(worst, large / small)
        print(f"| {axis} | {size:,} | {small:.2f} | {large:.2f} | {large / small:.1f} |", flush=True)
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
