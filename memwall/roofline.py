"""Cost × Gpu → seconds: the roofline with its achievable ceilings.

Assumptions. A kernel overlaps arithmetic and memory traffic perfectly, so it takes the longer of the two, and adds its
launch on top::

    compute_s  = sum over pipes of (flops + extra_flops) / (peak × achievable fraction), or the eager kernel's
                 index arithmetic at the rate of the integer lanes, whichever is longer
    memory_s   = DRAM bytes / (bandwidth × achievable fraction) + L2-resident bytes / L2 bandwidth
                 + waits that no other thread fills
    overhead_s = kernels × launch floor + time that the GPU waits for the CPU to issue the op
    time_s     = max(compute_s, memory_s) + overhead_s

``bound_s`` is the speed of light: datasheet peaks, each compulsory byte once, no overhead; bytes at L2 bandwidth where
all that the kernel touches fits in L2 (Williams, Waterman, Patterson: Roofline, CACM 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

from memwall.cost import Cost
from memwall.hardware import Gpu

#: integer lanes of a multiprocessor: four quarters of 16 (NVIDIA's V100, A100 and H100 white papers), a CU's 64
INTEGER_LANES = 64
#: the part of L2 in which a line stays between two reads: each half of an A100's keeps its own copy (A100 white paper).
#: From there on a layer norm moves three tensors' bytes, not two: T4, V100, A100 (NeuSight), A100, H100 (Liger)
L2_FRACTION = 0.5
#: one load at a random place, all caches missed: the cross entropy of Liger's pairs on an A100 takes 0.5 ms more than
#: its four passes, for 1024 loads in a row
ROUND_TRIP_S = 0.5e-6
#: from the loads to the stores of a block that synchronises all its threads twice. Softmax rows above 1024 columns take
#: beyond their bytes: 1.2 us on a T4, 1.5 RTX 3090 (Liger), 1.8 P4, 2.1 A100, 2.6 V100 (medians, NeuSight)
BLOCK_S = 1.5e-6
#: compute capabilities whose multiprocessors hold fewer than 2048 threads (CUDA C++ programming guide)
_FEWER_THREADS = frozenset(("7.5", "8.6", "8.7", "8.9", "12.0", "12.1"))


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
    #: launches that it takes, and ops of other kernels that it computes again
    launches: int = 1
    recomputes: tuple[int, ...] = ()

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
    if cost.instructions and _has_multiprocessors(gpu):
        seconds = max(seconds, cost.instructions / (gpu.sm_count * gpu.boost_clock_hz * INTEGER_LANES))
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
    """Seconds of memory traffic, of which ``resident_bytes`` come from L2, and of waiting for it.

    A kernel of fewer thread blocks than the GPU has multiprocessors leaves the others, and their share of the
    bandwidth, unused. What is read again comes from L2 where it holds all that has moved meanwhile.
    """
    resident = min(resident_bytes, cost.read_bytes)
    dram, cached = cost.bytes + cost.extra_bytes - resident, resident
    if cost.again_bytes:
        if cost.again_after_bytes * gpu.sm_count > gpu.l2_bytes * L2_FRACTION:
            dram += cost.again_bytes
        else:
            cached += cost.again_bytes
    seconds = dram / (gpu.dram_bytes_per_s * gpu.achievable["dram"])
    if cached:
        seconds += cached / gpu.l2_bytes_per_s
    if cost.programs is not None and 0 < cost.programs < gpu.sm_count and _has_multiprocessors(gpu):
        seconds *= gpu.sm_count / cost.programs
    if (cost.lone_blocks or cost.round_trips) and _has_multiprocessors(gpu):
        seconds += BLOCK_S * cost.lone_blocks / (gpu.sm_count * _blocks_per_sm(gpu))
        seconds += ROUND_TRIP_S * cost.round_trips
    return seconds


def _has_multiprocessors(gpu: Gpu) -> bool:
    """Whether eager PyTorch's CUDA kernels run here, on as many multiprocessors as the file says: no TPU, no file that
    leaves their number out."""
    return gpu.compute_capability is not None and gpu.sm_count > 1


def _blocks_per_sm(gpu: Gpu) -> int:
    """Blocks of 1024 threads that a multiprocessor holds: 2, or 1 where it holds 1024 or 1536 threads."""
    return 1 if gpu.compute_capability in _FEWER_THREADS else 2
