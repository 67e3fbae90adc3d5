"""How kernels that stream use a GPU: bytes at the bandwidth that their mix reaches, against the integer lanes."""

from __future__ import annotations

from memwall.hardware import Gpu
from memwall.utilization.base import Terms
from memwall.utilization.memory import traffic_s
from memwall.work import Stream, StreamConstants

#: integer lanes of a multiprocessor: four quarters of 16 (NVIDIA's V100, A100 and H100 white papers), a CU's 64
INTEGER_LANES = 64
#: one load at a random place, all caches missed: the cross entropy of Liger's pairs on an A100 takes 0.5 ms more than
#: its four passes, for 1024 loads in a row
ROUND_TRIP_S = 0.5e-6


def fraction(work: Stream, gpu: Gpu, known: StreamConstants) -> float:
    """The fraction of the DRAM bandwidth for this mix of reads and writes: between those of reading, a triad (a third
    is written) and a copy (half). A board that was not fitted itself has its own triad and the others beside it."""
    written = work.write_bytes / work.bytes if work.bytes else 0.0
    own = 1.0 if gpu.fitted_on.get("stream.elementwise") == gpu.name else gpu.achievable["dram"] / known.triad
    if written <= 1 / 3:
        reached = known.read + 3 * written * (known.triad - known.read)
    else:
        reached = known.triad + min(6 * (written - 1 / 3), 1.0) * (known.copy - known.triad)
    return min(own * reached, 1.0)


def predict(work: Stream, gpu: Gpu, known: StreamConstants, resident_bytes: int = 0) -> Terms:
    """The terms of a launch with the constants given. Where what it reads lies in L2, what it writes stays there."""
    warm = min(resident_bytes / work.read_bytes, 1.0) if work.read_bytes else 0.0
    reached = fraction(work, gpu, known)
    memory_s = traffic_s(gpu, work.bytes * (1 - warm), work.bytes * warm, reached)
    latency_s, flops_s = known.latency_s, 0.0
    if work.pipe is not None and work.flops:
        flops_s = work.flops / (gpu.peak(work.pipe) * gpu.achievable_fraction(work.pipe))
    places_s = work.instructions / (gpu.sm_count * gpu.boost_clock_hz * INTEGER_LANES)
    latency_s += ROUND_TRIP_S * work.round_trips
    if (
        work.programs is not None and 0 < work.programs < gpu.sm_count
    ):  # the other multiprocessors move nothing
        memory_s *= gpu.sm_count / work.programs
    facts = {"warm": warm, "reached": reached, "instructions_s": places_s, "traffic_s": memory_s}
    return Terms(flops_s, max(memory_s, places_s), latency_s, facts)


def explain(work: Stream, gpu: Gpu, known: StreamConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    facts = terms.facts
    source = f"{facts['reached']:.0%} of {gpu.dram_bytes_per_s / 1e9:.0f} GB/s"
    if facts["warm"]:
        source += f", {facts['warm']:.0%} of them in L2"
    if work.programs is not None and work.programs < gpu.sm_count:
        source += f" on {work.programs} of {gpu.sm_count} SMs"
    said = [f"{work.read_bytes / 1e6:.3g} MB read and {work.write_bytes / 1e6:.3g} MB written take"
            f" {facts['traffic_s'] * 1e6:.3g} us at {source}"]  # fmt: skip
    if work.instructions:
        each = work.instructions / max(work.elements, 1)
        said.append(f"{each:.0f} integer instructions an element take {facts['instructions_s'] * 1e6:.3g} us"
                    f" on {INTEGER_LANES} lanes of {gpu.sm_count} SMs")  # fmt: skip
    if terms.latency_s:
        waits = f" ({work.round_trips} waits in a row)" if work.round_trips else ""
        said.append(f"{terms.latency_s * 1e6:.2g} us of latency{waits}")
    return "; ".join(said) + "."
