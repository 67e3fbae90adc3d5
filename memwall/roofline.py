"""Cost × Gpu → seconds: the roofline with its achievable ceilings.

Assumptions. A kernel overlaps arithmetic and memory traffic perfectly, so it takes the longer of the two, and adds its
launch on top::

    compute_s  = sum over pipes of (flops + extra_flops) / (peak × achievable fraction)
    memory_s   = DRAM bytes / (bandwidth × achievable fraction) + L2-resident bytes / L2 bandwidth
    overhead_s = kernels × launch floor + time that the GPU waits for the CPU to issue the op
    time_s     = max(compute_s, memory_s) + overhead_s

``bound_s`` is the speed of light: datasheet peaks, each compulsory byte once, no overhead; bytes at L2 bandwidth where
all that the kernel touches fits in L2 (Williams, Waterman, Patterson: Roofline, CACM 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

from memwall.cost import Cost
from memwall.hardware import Gpu


@dataclass(frozen=True, slots=True)
class Estimate:
    """One kernel (one group) on one GPU. Times in seconds, bytes compulsory."""

    id: int
    name: str
    op_ids: tuple[int, ...]
    op_class: str
    flops: int
    read_bytes: int
    write_bytes: int
    bound_s: float
    compute_s: float
    memory_s: float
    overhead_s: float

    @property
    def time_s(self) -> float:
        """The prediction: the longer of arithmetic and traffic, and the overhead on top."""
        return max(self.compute_s, self.memory_s) + self.overhead_s

    @property
    def limited_by(self) -> str:
        """``compute``, ``bandwidth`` or ``overhead``: the largest of the three terms."""
        if self.overhead_s > self.compute_s and self.overhead_s > self.memory_s:
            return "overhead"
        return "compute" if self.compute_s > self.memory_s else "bandwidth"

    @property
    def bytes(self) -> int:
        """Compulsory DRAM bytes."""
        return self.read_bytes + self.write_bytes

    @property
    def arithmetic_intensity(self) -> float:
        """FLOP per compulsory DRAM byte; 0 where nothing moves."""
        return self.flops / self.bytes if self.bytes else 0.0


def peak_compute_s(cost: Cost, gpu: Gpu) -> float:
    """Seconds that the FLOPs take at the datasheet peaks of their pipes."""
    return sum((count / gpu.peak(pipe) for pipe, count in cost.flops.items()), 0.0)


def achievable_compute_s(cost: Cost, gpu: Gpu) -> float:
    """Seconds that the kernel's FLOPs take at the ceilings that real kernels reach."""
    seconds = sum(
        (n / (gpu.peak(pipe) * gpu.achievable_fraction(pipe)) for pipe, n in cost.flops.items()), 0.0
    )
    if cost.extra_flops and cost.total_flops:
        seconds *= 1 + cost.extra_flops / cost.total_flops
    return seconds


def bound_s(cost: Cost, gpu: Gpu) -> float:
    """Speed of light of a kernel: no real run is faster."""
    rate = gpu.l2_bytes_per_s if cost.bytes <= gpu.l2_bytes else gpu.dram_bytes_per_s
    return max(_least_compute_s(cost, gpu), cost.bytes / rate)


def _least_compute_s(cost: Cost, gpu: Gpu) -> float:
    """Like :func:`peak_compute_s`, with the FLOPs of the fastest algorithm where a vector engine runs it."""
    if cost.least_flops is None or any(gpu.ceiling_pipe(pipe).engine == "tensor" for pipe in cost.flops):
        return peak_compute_s(cost, gpu)
    return peak_compute_s(cost, gpu) * cost.least_flops / cost.total_flops


def memory_s(cost: Cost, gpu: Gpu, resident_bytes: int = 0) -> float:
    """Seconds of memory traffic, of which ``resident_bytes`` come from L2."""
    resident = min(resident_bytes, cost.read_bytes)
    dram = cost.bytes + cost.extra_bytes - resident
    seconds = dram / (gpu.dram_bytes_per_s * gpu.achievable["dram"])
    return seconds + resident / gpu.l2_bytes_per_s if resident else seconds
