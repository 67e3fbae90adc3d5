"""Which pipes do a workload's products on a GPU: what MFU is relative to, and which dtypes the GPU has no pipe for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from memwall.core.graph import Pipe
from memwall.core.units import flop_rate
from memwall.hardware.lookup import Gpu
from memwall.record.profile import Profile
from memwall.simulate.plan_context import MODEL_CLASSES
from memwall.simulate.schedule import Schedule

#: a pipe that does less than this share of the products' time at the peaks is not named
NAMED = 0.01
#: dtypes that vector lanes compute in: products run there as fast as the GPU can
_FULL = ("float64", "float32")


def product_flops(profile: Profile, graph: int) -> Counter[Pipe]:
    """FLOPs of the contractions, convolutions and attention of a graph by the pipe that their dtype asks for."""
    total: Counter[Pipe] = Counter()
    for op, cost in zip(profile.graphs[graph].ops, profile.costs[graph], strict=True):
        if op.op_class in MODEL_CLASSES:
            for pipe, count in cost.flops.items():
                total[pipe] += count
    return total


def main_pipe(profile: Profile, schedule: Schedule) -> Pipe | None:
    """The pipe that does most of the matrix FLOPs."""
    total = product_flops(profile, schedule.graph)
    return max(sorted(total), key=total.__getitem__) if total else None


def mfu_peaks(profile: Profile, schedule: Schedule) -> dict[Pipe, float]:
    """The peaks that MFU is relative to: of the pipes that do the matrix FLOPs on this GPU, the busiest first."""
    return peaks_of(product_flops(profile, schedule.graph), schedule.gpu)


def peaks_of(products: Mapping[Pipe, int], gpu: Gpu) -> dict[Pipe, float]:
    """The peaks of the pipes that do FLOPs of products on a GPU, the busiest first."""
    busy_s = Counter[Pipe]()
    for pipe, count in products.items():
        busy_s[gpu.ceiling_pipe(pipe)] += count / gpu.peak(pipe)  # type: ignore[assignment]
    order = sorted(busy_s, key=lambda pipe: (-busy_s[pipe], pipe))
    return {pipe: gpu.peak(pipe) for pipe in order if busy_s[pipe] >= NAMED * busy_s.total()}


def mfu_base(profile: Profile, schedule: Schedule) -> str:
    """``15.70 TFLOP/s vector.float32``: the peaks that MFU is relative to; empty without matrix FLOPs."""
    return peaks_text(mfu_peaks(profile, schedule))


def peaks_text(peaks: Mapping[Any, float]) -> str:
    """``989.40 TFLOP/s tensor.bfloat16 and 66.90 TFLOP/s vector.float32``."""
    return " and ".join(f"{flop_rate(rate, pipe)} {pipe}" for pipe, rate in peaks.items())


def mfu_note(bases: Iterable[tuple[str, str]]) -> str:
    """``MFU: of 989.40 TFLOP/s tensor.bfloat16`` from names of GPUs and texts of peaks; says whose, where they differ.
    Empty where no GPU does matrix FLOPs."""
    gpus: dict[str, list[str]] = {}
    for gpu, base in bases:
        gpus.setdefault(base, []).append(gpu)
    texts = [f"of {base}" + f" on {', '.join(dict.fromkeys(gpus[base]))}" * (len(gpus) > 1) for base in gpus if base]
    return f"MFU: {', '.join(texts)}" if texts else ""


def is_emulated(gpu: Gpu, pipe: Pipe) -> bool:
    """Whether products of a dtype run on a pipe of another dtype, or on vector lanes for want of tensor cores."""
    runs_on = gpu.ceiling_pipe(pipe)
    return runs_on != pipe and not (pipe.dtype in _FULL and runs_on.dtype == pipe.dtype)
