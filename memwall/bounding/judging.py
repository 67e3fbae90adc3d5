"""A measured time next to the bound: is it possible, what could explain it if not, where does it stand among kernels of
its kind, and what would raise it?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from memwall.bounding.answer import BoundRun, JudgedTime
from memwall.bounding.stored import SPLIT
from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.core.units import duration, percent, size
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.perfmodel.roofline import bound_s, engine_s, launch_floor_s

#: z of the 90th percentile of a normal distribution: an 80 % range is that far to either side, in logarithms
_Z = 1.2816
#: dtypes of tensor cores that somebody may take in place of another, each with fewer bits
_LOWER = {
    "float64": ("float32", "tf32"), "float32": ("tf32", "bfloat16", "float16"), "tf32": ("bfloat16", "float16"),
    "bfloat16": ("fp8", "int8"), "float16": ("fp8", "int8"), "fp8": ("fp4",), "int8": ("fp4",),
}  # fmt: skip
#: compute capability from which tensor cores skip two zeros of four (PTX ISA, ``mma.sp``)
_SPARSE = (8, 0)
#: share of a time from which launches, and factor of the compulsory bytes from which others, are worth naming
_SHARE, _MORE = 0.1, 1.3
#: a unit taken for another is off by this
_THOUSAND = 1e3


def judged(time_s: float, cost: Cost, gpu: Gpu, runs: Sequence[BoundRun]) -> JudgedTime:
    """What there is to say of a time that was measured for a cost on a GPU, next to the runs that are predicted. Raises
    UsageError: nothing runs."""
    least_s, best = bound_s(cost, gpu), min(runs, key=lambda run: run.time_s)
    if not best.time_s:
        raise UsageError("--measured has nothing to judge: the target runs no kernel")
    if time_s < least_s:
        return JudgedTime(time_s, least_s / time_s, False, _impossible(time_s, least_s, cost, gpu))
    share = slower_than(time_s, best)
    raised_by = tuple(_raised_by(time_s, cost, gpu, runs, best)) if time_s > best.high_s else ()
    return JudgedTime(time_s, least_s / time_s, True, _standing(time_s, share, best), share, raised_by)


def slower_than(time_s: float, run: BoundRun) -> float | None:
    """The share of measured kernels like a run's that take less, in relation to their prediction; None where the
    run has no range. The range is the 10th to the 90th percentile, the logarithm taken as normal on either side."""
    end_s = run.high_s if time_s >= run.time_s else run.low_s
    if not run.time_s or end_s in (0.0, run.time_s):
        return None
    z = _Z * abs(math.log(time_s / run.time_s) / math.log(end_s / run.time_s))
    return 0.5 * (1 + math.erf(math.copysign(z, time_s - run.time_s) / math.sqrt(2)))


def _standing(time_s: float, share: float | None, best: BoundRun) -> str:
    """Where a possible time stands."""
    beside = f"It takes {time_s / best.time_s:.2f} times what the fastest predicted run takes"
    if share is None:
        return f"{beside}."
    if time_s > best.high_s:
        where = "slower than nine of ten"
    elif time_s < best.low_s:
        where = "faster than nine of ten"
    else:
        where = f"slower than about {percent(share, 0)} of"
    return f"{beside}, and is {where} kernels like it."


def _raised_by(time_s: float, cost: Cost, gpu: Gpu, runs: Sequence[BoundRun], best: BoundRun) -> Iterator[str]:
    """What a kernel that is slower than others may lack, each with the number that says so."""
    fastest, floor_s = gpu.fastest(), launch_floor_s(gpu)
    unfused = max(runs, key=lambda run: run.dram_bytes)
    if unfused.kernels * floor_s > _SHARE * time_s:
        yield f"launches: {unfused.kernels:,} of them take {duration(unfused.kernels * floor_s)}, so do more in each"
    if unfused.dram_bytes > _MORE * cost.bytes and time_s > unfused.low_s:
        yield (
            f"fusion: a run that writes intermediates moves {size(unfused.dram_bytes)} where {size(cost.bytes)} have to"
            f" move, and takes {duration(unfused.time_s)}"
        )
    rate = gpu.peak_flop_per_s.get(Pipe("vector", "float32"), 0.0)
    if "tensor" in engine_s(cost, fastest) and rate and time_s > cost.total_flops / rate:
        yield f"the pipe: products on vector units take {duration(cost.total_flops / rate)}; are tensor cores used?"
    memory_s = cost.bytes / fastest.dram_bytes_per_s
    if memory_s >= max(engine_s(cost, fastest).values(), default=0.0) and cost.bytes:
        moved = time_s * gpu.dram_bytes_per_s * gpu.achievable["dram"]
        yield (
            f"traffic: in that time a copy moves {size(moved)}, {moved / cost.bytes:.1f} times what has to move; a"
            " second pass, loads that do not coalesce, or too few bytes in flight leave the bus idle"
        )
    elif best.limited_by == "compute":
        done = time_s / best.time_s
        yield f"tiles: libraries do {done:.1f} times the arithmetic in that time; see their tile below"


def _impossible(time_s: float, least_s: float, cost: Cost, gpu: Gpu) -> str:
    """What could explain a time below the bound."""
    causes = list(_causes(time_s, cost, gpu))
    told = f"No run of this work as it is written is faster than {duration(least_s)}. "
    if causes:
        told += f"It is explained if {', or if '.join(causes)}; else the"
    else:
        told += "Neither L2, sparsity nor another dtype explains it: the"
    return (
        told
        + " timer did not wait for the GPU, or the kernel does less than is written (zeros that it knows, algebra)."
    )


def _causes(time_s: float, cost: Cost, gpu: Gpu) -> Iterator[str]:
    """Conditions under which a time below the bound would be possible."""
    fastest = gpu.fastest()
    compute_s = max(engine_s(cost, fastest).values(), default=0.0)
    crossing = max(cost.least_bytes - gpu.l2_bytes, 0)
    resident_s = (cost.least_bytes - crossing) / fastest.l2_bytes_per_s if gpu.l2_bytes else math.inf
    memory_s = cost.least_bytes / fastest.dram_bytes_per_s
    if max(compute_s, crossing / fastest.dram_bytes_per_s, resident_s) <= time_s < memory_s:
        yield "a call before left operands in L2, which a benchmark that repeats a call without clearing L2 does"
    on_bus_s = min(memory_s, bound_s(cost, gpu))
    tensor = [pipe for pipe in cost.flops if gpu.ceiling_pipe(pipe).engine == "tensor"]
    if (
        tensor
        and _is_sparse(gpu)
        and max(compute_s / 2, on_bus_s if compute_s < memory_s else 0.0) <= time_s < compute_s
    ):
        yield "the tensor cores skipped zeros (2:4 sparsity), whose peak is twice the dense one"
    for pipe in cost.flops:
        rates = {name: gpu.peak_flop_per_s.get(Pipe("tensor", name), 0.0) for name in _LOWER.get(pipe.dtype, ())}
        lower = [name for name, rate in rates.items() if rate and cost.total_flops / rate <= time_s < compute_s]
        parts_s = SPLIT * cost.total_flops / rates["tf32"] if rates.get("tf32") else math.inf
        if parts_s <= time_s < compute_s:
            yield f"each product of float32 was the sum of {SPLIT} of tf32, which is as accurate"
        if lower:
            yield f"the products ran in {lower[0]}, not in {pipe.dtype}"
            break
    if time_s * _THOUSAND >= bound_s(cost, gpu) and time_s < launch_floor_s(gpu):
        yield "the time is a thousand times as long, and the unit another"


def _is_sparse(gpu: Gpu) -> bool:
    capability = gpu.compute_capability or ""
    return capability[:1].isdigit() and tuple(map(int, capability.split("."))) >= _SPARSE
