"""Which pipes do a workload's products on a GPU: what MFU is relative to, and which dtypes the GPU has no pipe for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memwall.core.graph import Graph, Pipe
from memwall.core.units import duration, flop_rate
from memwall.hardware.lookup import Gpu
from memwall.ops.registry import graph_costs
from memwall.record.profile import Profile
from memwall.record.schedules import CHEAP, Schedules
from memwall.simulate.plan_context import MODEL_CLASSES
from memwall.simulate.schedule import Schedule

#: a pipe that does less than this share of the products' time at the peaks is not named
NAMED = 0.01
#: dtypes that vector lanes compute in: products run there as fast as the GPU can
_FULL = ("float64", "float32")
#: dtype, GPUs on which libraries refuse its products, and what is said of that
_REFUSED: Sequence[tuple[str, Callable[[Gpu], bool], str]] = (
    *((name, lambda gpu: True, "are refused by PyTorch's torch._scaled_mm") for name in ("fp8", "fp4")),
    # https://github.com/pytorch/pytorch/issues/57773
    ("bfloat16", lambda gpu: gpu.architecture == "pascal", "were refused by cuBLAS 11"),
)
#: 16-bit dtype -> the other one, and how the command line asks for that
_OTHER_HALF = {"bfloat16": ("float16", "fp16"), "float16": ("bfloat16", "bf16")}


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
    return " and ".join(f"{flop_rate(rate)} {pipe}" for pipe, rate in peaks.items())


def mfu_note(bases: Iterable[tuple[str, str]]) -> str:
    """``MFU: of 989.40 TFLOP/s tensor.bfloat16`` from names of GPUs and texts of peaks; says whose, where they differ.
    Empty where no GPU does matrix FLOPs."""
    gpus: dict[str, list[str]] = {}
    for gpu, base in bases:
        gpus.setdefault(base, []).append(gpu)
    texts = [f"of {base}" + f" on {', '.join(dict.fromkeys(gpus[base]))}" * (len(gpus) > 1) for base in gpus if base]
    return f"MFU: {', '.join(texts)}" if texts else ""


def emulations(profile: Profile, schedule: Schedule) -> tuple[str, ...]:
    """One sentence for each dtype of the products that the GPU has no tensor cores for: where they run, and what the
    other 16-bit dtype would take where the GPU has it."""
    gpu, flops = schedule.gpu, product_flops(profile, schedule.graph)
    if gpu.cpu is not None:
        return ()
    asked = sorted(pipe for pipe in flops if is_emulated(gpu, pipe) and flops[pipe] >= NAMED * flops.total())
    return tuple(_emulation(profile, schedule, pipe) for pipe in asked)


def is_emulated(gpu: Gpu, pipe: Pipe) -> bool:
    """Whether products of a dtype run on a pipe of another dtype, or on vector lanes for want of tensor cores."""
    runs_on = gpu.ceiling_pipe(pipe)
    return runs_on != pipe and not (pipe.dtype in _FULL and runs_on.dtype == pipe.dtype)


def _emulation(profile: Profile, schedule: Schedule, pipe: Pipe) -> str:
    gpu = schedule.gpu
    runs_on = gpu.ceiling_pipe(pipe)
    refused = next((why for dtype, is_refused, why in _REFUSED if dtype == pipe.dtype and is_refused(gpu)), "")
    how = f"{refused} and are modeled" if refused else "run"
    text = f"{gpu.name} has no {pipe.dtype} tensor cores: products {how} on {runs_on} at {flop_rate(gpu.peak(runs_on))}"
    other, option = _OTHER_HALF.get(pipe.dtype, ("", ""))
    if Pipe("tensor", other) not in gpu.peak_flop_per_s:
        return f"{text}."
    time_s = _time_in(profile, schedule, pipe.dtype, other)
    flag = "--autocast" if profile.workload.autocast else "--dtype"
    would = "has them" if time_s is None else f"would take {duration(time_s)}"
    return f"{text}; {other} {would} ({flag} {option})."


def _time_in(profile: Profile, schedule: Schedule, dtype: str, other: str) -> float | None:
    """Seconds of the step with every tensor of a dtype in another of the same size; None where only a compiler could
    plan it again, or where the dtype would choose other attention kernels."""
    traced = profile.graphs[schedule.graph]
    attends = profile.attention is not None or any(op.op_class == "attention" for op in traced.ops)
    if schedule.policy not in CHEAP or attends:
        return None
    graph = _in_dtype(traced, dtype, other)
    schedules = Schedules((graph,), (tuple(graph_costs(graph)),))
    return schedules.schedule(schedule.gpu, schedule.policy, launch=schedule.launch).totals.time_s


def _in_dtype(graph: Graph, dtype: str, other: str) -> Graph:
    specs = {value.spec: value.spec for value in graph.values}
    changed = {spec: replace(spec, dtype=other) if spec.dtype == dtype else spec for spec in specs}
    return replace(graph, values=tuple(replace(value, spec=changed[value.spec]) for value in graph.values))
