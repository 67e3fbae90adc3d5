"""Which roofs to draw over the kernels of a schedule."""

from __future__ import annotations

from dataclasses import dataclass

from memwall.core.graph import Pipe
from memwall.core.units import bandwidth, flop_rate
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule

#: drawn for context even where the workload does not use them
CONTEXT = (Pipe("tensor", "float16"), Pipe("vector", "float32"))


@dataclass(frozen=True, slots=True)
class Roof:
    """A horizontal ceiling (FLOP/s) or a sloped one (B/s)."""

    name: str
    label: str
    rate: float
    used: bool


def compute_roofs(profile: Profile, schedule: Schedule) -> tuple[Roof, ...]:
    """One roof per pipe that the workload runs on here, and those of ``CONTEXT``; the highest first."""
    gpu = schedule.gpu
    used = {gpu.ceiling_pipe(pipe) for cost in set(map(_pipes, profile.costs[schedule.graph])) for pipe in cost}
    context = {gpu.ceiling_pipe(pipe) for pipe in CONTEXT}
    by_rate: dict[float, list[Pipe]] = {}
    for pipe in sorted(used | context):
        by_rate.setdefault(gpu.peak_flop_per_s[pipe], []).append(pipe)
    roofs = []
    for rate in sorted(by_rate, reverse=True):
        pipes = [p for p in by_rate[rate] if p in used] or by_rate[rate][:1]
        name = " = ".join(map(str, pipes))
        roofs.append(Roof(name, f"{name}  {flop_rate(rate)}", rate, pipes[0] in used))
    return tuple(roofs)


def _pipes(cost: object) -> frozenset[Pipe]:
    return frozenset(cost.flops)  # type: ignore[attr-defined]


def memory_roofs(schedule: Schedule) -> tuple[Roof, ...]:
    """DRAM, and L2 where the GPU has one."""
    gpu = schedule.gpu
    roofs = [Roof("DRAM", f"DRAM  {bandwidth(gpu.dram_bytes_per_s)}", gpu.dram_bytes_per_s, True)]
    if gpu.l2_bytes and gpu.l2_bytes_per_s > gpu.dram_bytes_per_s:
        roofs.append(Roof("L2", f"L2  {bandwidth(gpu.l2_bytes_per_s)}", gpu.l2_bytes_per_s, False))
    return tuple(roofs)
