"""The modeled gain of fusion next to measured pairs: one layer unfused in eager PyTorch and as fused Triton kernels.

    python lab/benchmarks/liger_pairs.py FOLDER/liger_pairs.csv

The pairs are LinkedIn's (Liger-Kernel, benchmark/data, BSD-2-Clause). Each row is rebuilt as its benchmark script runs
it: layer, dtypes, gradients that accumulate, random gradients that are drawn inside the timed region. Where Liger's
kernel computes something else than the unfused layer (an output in bfloat16 instead of float32, the gradient of a loss
in forward already, atomic adds instead of a sort), the fused side is a layer of its own that says so. The unfused side
runs op by op, the fused side as memwall's planner fuses it.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import memwall  # noqa: E402
from benchmarks.liger_layers import AddRmsNorm, FusedCrossEntropy, FusedEmbedding, GatedMlp, RmsNorm, Rope, Step  # noqa: E402
from memwall.core.graph import EAGER, Graph, Op  # noqa: E402
from memwall.fusion import plan_graph  # noqa: E402
from memwall.hardware.host import Host  # noqa: E402
from memwall.hardware.lookup import load_gpu  # noqa: E402
from memwall.ops import Cost  # noqa: E402
from memwall.simulate.schedule import simulate  # noqa: E402

# -- the pairs ---------------------------------------------------------------------------------------------------------

BF16, FP32 = torch.bfloat16, torch.float32


def tensor(*shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


@dataclass(frozen=True)
class Side:
    """One side of a pair: a layer, the leaves whose gradients are wanted, and its other inputs."""

    layer: nn.Module
    leaves: tuple[torch.Tensor, ...] = ()
    others: tuple[torch.Tensor, ...] = ()
    seeds: tuple[torch.Tensor, ...] = ()
    drawn: bool = False
    accumulate: bool = False

    def step(self) -> Step:
        return Step(self.layer, self.leaves, len(self.seeds), self.drawn, self.accumulate)


def _rms_norm(config: Mapping[str, Any], size: int, fused: bool, mode: str) -> Side:
    x = tensor(config["M"], size, dtype=_dtype(config))
    return Side(RmsNorm(size, x.dtype if fused else FP32), (x,), (), (torch.empty_like(x),))


def _add_rms_norm(config: Mapping[str, Any], size: int, fused: bool, mode: str) -> Side:
    x, residual, dy, ds = (tensor(config["M"], size, dtype=_dtype(config)) for _ in range(4))
    return Side(AddRmsNorm(size, FP32), (x, residual), (), (dy, ds))


def _layer_norm(config: Mapping[str, Any], size: int, fused: bool, mode: str) -> Side:
    x = tensor(config["M"], size, dtype=_dtype(config))
    return Side(nn.LayerNorm(size), (x,), (), (torch.empty_like(x),))


def _softmax(config: Mapping[str, Any], size: int, fused: bool, mode: str) -> Side:
    x = tensor(config["M"], size, dtype=_dtype(config))
    return Side(nn.Softmax(dim=-1), (x,), (), (torch.empty_like(x),))


def _rope(config: Mapping[str, Any], x: int, fused: bool, mode: str) -> Side:
    tokens, hidden = config.get("seq_len", x), config.get("hidden_size", x)
    size, dtype = hidden // config["num_q_heads"], _dtype(config)
    q, k = (tensor(1, tokens, config[f"num_{n}_heads"], size, dtype=dtype).transpose(1, 2) for n in ("q", "kv"))
    cos, sin = tensor(1, tokens, size, dtype=dtype), tensor(1, tokens, size, dtype=dtype)
    return Side(Rope(), (q, k), (cos, sin), (torch.empty_like(q), torch.empty_like(k)))


def _cross_entropy(config: Mapping[str, Any], size: int, fused: bool, mode: str) -> Side:
    rows = config["B"] * config["T"]
    target = torch.empty(rows, dtype=torch.int64)
    layer = FusedCrossEntropy() if fused else nn.CrossEntropyLoss()
    return Side(layer, (tensor(rows, size),), (target,), accumulate=not fused)


def _mlp(act: Callable[[torch.Tensor], torch.Tensor], batch: str) -> Callable[..., Side]:
    def side(config: Mapping[str, Any], tokens: int, fused: bool, mode: str) -> Side:
        x = tensor(config[batch], tokens, config["hidden_size"], dtype=_dtype(config))
        layer = GatedMlp(config["hidden_size"], config["intermediate_size"], act, x.dtype)
        drawn = mode == "full"
        return Side(layer, (x,), (), () if drawn else (torch.empty_like(x),), drawn)

    return side


def _embedding(config: Mapping[str, Any], rows: int, fused: bool, mode: str) -> Side:
    layer = FusedEmbedding(rows, config["D"]) if fused else nn.Embedding(rows, config["D"])
    return Side(layer, (), (torch.empty(config["B"], config["T"], dtype=torch.int64),), drawn=True)


def _dtype(config: Mapping[str, Any]) -> torch.dtype:
    return getattr(torch, config["dtype"].removeprefix("torch."))


#: kernel -> what builds a side of the pair from (config, x, whether fused, mode)
PAIRS: Mapping[str, Callable[[Mapping[str, Any], int, bool, str], Side]] = {
    "rms_norm": _rms_norm,
    "fused_add_rms_norm": _add_rms_norm,
    "layer_norm": _layer_norm,
    "softmax": _softmax,
    "cross_entropy": _cross_entropy,
    "rope": _rope,
    "swiglu": _mlp(F.silu, "B"),
    "geglu": _mlp(lambda x: F.gelu(x, approximate="tanh"), "bsz"),
    "embedding": _embedding,
}

# -- what the clock of the benchmark saw -------------------------------------------------------------------------------

#: triton.testing.do_bench clears this much memory before each run; the host issues meanwhile
CLEARED_BYTES = 256 * 2**20
#: host seconds of one eager call that records or runs autograd, views too: of the host-bound unfused rows, 476 us for
#: the 36 calls of an RMS norm's step, 685 us for the 48 of a rotary embedding's (head start included)
EAGER_CALL_S = 14e-6
#: host seconds of a Python autograd.Function around Triton launches, by mode: medians of the host-bound fused rows,
#: head start included. Forward is host-bound in no row, so this is only below all of them
FUNCTION_S = {"forward": 60e-6, "backward": 262e-6, "full": 437e-6}
#: seconds from the first event to the first kernel and from the last kernel to the second event
EVENTS_S = 2.5e-6
PHASES = {"forward": ("forward",), "backward": ("backward",), "full": ("forward", "backward")}


@dataclass(frozen=True)
class Row:
    """One measured pair and its modeled twin, seconds."""

    kernel: str
    mode: str
    gpu: str
    axis: str
    size: int
    config: Mapping[str, Any]
    measured: tuple[float, float]
    modeled: tuple[float, float]

    @property
    def measured_gain(self) -> float:
        return self.measured[0] / self.measured[1]

    @property
    def modeled_gain(self) -> float:
        return self.modeled[0] / self.modeled[1]

    @property
    def error(self) -> float:
        """Log of the modeled gain over the measured."""
        return math.log(self.modeled_gain / self.measured_gain)


@cache
def _traced(kernel: str, config: str, size: int, fused: bool, mode: str) -> tuple[Graph, tuple[Cost, ...]]:
    with torch.device("meta"):
        side = PAIRS[kernel](json.loads(config), size, fused, mode)
        step, inputs = side.step(), (*side.others, *side.seeds)
    profile = memwall.profile(step, inputs, mode="training", optimizer=None, loss=lambda loss: loss)
    return profile.graphs[0], profile.costs[0]


def modeled_s(kernel: str, config: str, size: int, fused: bool, mode: str, gpu_name: str) -> float:
    """Seconds of one side of a pair as do_bench would time it.

    The device's, or the host's where that takes longer than clearing the cache and the kernels together. Gradients that
    are drawn and accumulated are kernels outside the layer, which no fusion reaches.
    """
    drawn = "full" if mode == "full" else "backward"
    graph, costs = _traced(kernel, config, size, fused, drawn)
    gpu = replace(load_gpu(gpu_name), host=Host.uniform(0.0))  # the host is added below
    regions = [0 if op.module else EAGER for op in graph.ops]
    schedule = simulate(graph, plan_graph("memwall" if fused else "eager", graph, costs, gpu, regions), gpu)
    device_s, calls = 0.0, 0
    for estimate in schedule.kernels:
        ops = [graph.ops[i] for i in estimate.op_ids]
        if ops[0].phase in PHASES[mode] and not all(_is_seed(graph, op) for op in ops):
            device_s += estimate.time_s
            calls += len(ops)
    views = sum(graph.free_calls.values()) / len(graph.ops)  # that come with each op
    host_s = FUNCTION_S[mode] if fused else EAGER_CALL_S * calls * (1 + views)
    clear_s = CLEARED_BYTES / (gpu.dram_bytes_per_s * gpu.achievable["dram"])
    return EVENTS_S + max(device_s, host_s - clear_s)


def _is_seed(graph: Graph, op: Op) -> bool:
    """The loss that represents the outputs, and its gradient: scalars outside the layer."""
    return not op.module and all(spec.numel == 1 for spec in graph.specs(op.outputs))


def read(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a file of pairs for which a pair is defined."""
    with path.open(encoding="utf-8") as handle:
        for row in csv.DictReader(line for line in handle if not line.startswith("#")):
            if row["kernel_name"] in PAIRS:
                yield row


def score(rows: Iterable[Mapping[str, str]]) -> list[Row]:
    """Every row with its modeled twin."""
    scored = []
    for row in rows:
        kernel, mode, gpu = row["kernel_name"], row["kernel_operation_mode"], row["gpu_name"]
        measured = tuple(1e-3 * float(row[f"median_{side}"]) for side in ("unfused", "fused"))
        size = int(row["x_value"])
        modeled = tuple(modeled_s(kernel, row["config"], size, fused, mode, gpu) for fused in (False, True))
        scored.append(Row(kernel, mode, gpu, row["x_name"], size, json.loads(row["config"]), measured, modeled))
    return scored


def median_factor(rows: Sequence[Row]) -> float:
    """The factor by which half of the modeled gains are off at most: exp of the median of |log error|."""
    return math.exp(statistics.median(abs(row.error) for row in rows))


def signs(rows: Iterable[Row], least: float = 1.1) -> tuple[int, int]:
    """(how many of, how many rows) whose measured gain or loss is above ``least`` fall on the right side of 1."""
    clear = [row for row in rows if max(row.measured_gain, 1 / row.measured_gain) > least]
    return sum((row.modeled_gain > 1) == (row.measured_gain > 1) for row in clear), len(clear)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__)
        return 2
    rows = score(read(Path(arguments[0])))
    print("kernel             mode     x          measured  modeled  GPU")
    for row in rows:
        size = f"{row.axis}={row.size}"
        gains = f"{row.measured_gain:8.2f} {row.modeled_gain:8.2f}"
        print(f"{row.kernel:18} {row.mode:8} {size:10} {gains}  {row.gpu}")
    right, clear = signs(rows)
    print(f"{len(rows)} rows: median factor {median_factor(rows):.3f}, {right} of {clear} on the right side of 1")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
