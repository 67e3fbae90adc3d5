"""GPUs next to each other: their datasheets, and how each number grew from the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memwall.analysis.table import join
from memwall.core.graph import Pipe
from memwall.hardware.gpu import DTYPES
from memwall.hardware.lookup import Gpu


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU's datasheet, and each number over the first one's (``growth``; None where either lacks it)."""

    name: str
    full_name: str
    release: str
    peak_flop_per_s: Mapping[str, float]
    ridge_points: Mapping[str, float]
    dram_bytes_per_s: float
    dram_bytes: int
    l2_bytes: int
    link_bytes_per_s: float
    tdp_w: float
    growth: Mapping[str, float | None]


def best_peak(gpu: Gpu, dtype: str) -> float | None:
    """The faster of a GPU's two engines for a dtype; None where neither does it natively."""
    return max(gpu.peak_flop_per_s.get(Pipe(engine, dtype), 0.0) for engine in ("tensor", "vector")) or None


def growth_numbers(gpu: Gpu) -> dict[str, float | None]:
    """The quantities of the growth factors: peaks per dtype, bandwidth, capacity, ridge points and power."""
    numbers: dict[str, float | None] = {dtype: best_peak(gpu, dtype) for dtype in DTYPES}
    numbers |= {
        "bandwidth": gpu.dram_bytes_per_s,
        "capacity": float(gpu.dram_bytes),
        "l2": float(gpu.l2_bytes) or None,
        "link": gpu.link_bytes_per_s or None,
        "tdp": gpu.tdp_w or None,
    }
    numbers["ridge_float16"] = numbers["float16"] and numbers["float16"] / gpu.dram_bytes_per_s
    return numbers


def machines_of(gpus: Sequence[Gpu]) -> tuple[Machine, ...]:
    """The machines; growth is relative to the first."""
    base = growth_numbers(gpus[0])
    return tuple(_machine(gpu, base) for gpu in gpus)


def _machine(gpu: Gpu, base: Mapping[str, float | None]) -> Machine:
    peaks = {str(pipe): gpu.peak_flop_per_s[pipe] for pipe in sorted(gpu.peak_flop_per_s)}
    return Machine(
        gpu.name,
        gpu.full_name,
        gpu.release,
        peaks,
        {pipe: rate / gpu.dram_bytes_per_s for pipe, rate in peaks.items()},
        gpu.dram_bytes_per_s,
        gpu.dram_bytes,
        gpu.l2_bytes,
        gpu.link_bytes_per_s,
        gpu.tdp_w,
        {key: value / old if value and old else None for key, old, value in join(base, growth_numbers(gpu))},
    )
