"""How kernels that stream use a GPU: bytes at the bandwidth that their mix reaches, against the integer lanes."""

from __future__ import annotations

import math

from memwall.core.units import bandwidth, duration, size
from memwall.hardware.constants import StreamConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.launches import Stream
from memwall.perfmodel.base import Terms, constants
from memwall.perfmodel.memory import traffic_s

#: integer lanes of a multiprocessor: four quarters of 16 (NVIDIA's V100, A100 and H100 white papers), a CU's 64
INTEGER_LANES = 64
#: clocks of one load at a random place, all caches missed: the cross entropy of Liger's pairs on an A100 takes 0.5 ms
#: more than its four passes, for 1024 loads in a row. Of clocks and not of time: a turn of the loops of vLLM's kernels
#: takes 800 to 1000 on A100, A40 and H100 alike (decode steps of Vidur)
ROUND_TRIP_CLK = 700


def round_trip_s(gpu: Gpu) -> float:
    """Seconds that a thread waits for a lone load."""
    return ROUND_TRIP_CLK / gpu.boost_clock_hz


#: threads of a block as :attr:`memwall.ops.launches.Stream.blocks` counts them, and how many of these a multiprocessor
#: of 2048 works on at once
BLOCK_THREADS = 512
_BLOCKS_PER_SM = 4


def steps_s(gpu: Gpu, blocks: int, steps: int, blocks_per_sm: int = _BLOCKS_PER_SM) -> float:
    """Seconds of loops whose turns wait for a load each, the blocks in waves of as many as fit: what they take where
    there are too few to keep the memory busy."""
    return math.ceil(blocks / (gpu.sm_count * blocks_per_sm)) * steps * round_trip_s(gpu)


def triad_fraction(gpu: Gpu) -> float:
    """The fraction of the DRAM bandwidth that a triad reaches: the GPU's own where its streams were fitted."""
    known = constants(StreamConstants, gpu, "elementwise")
    return known.triad if _fitted_here(gpu) else gpu.achievable["dram"]


def _fitted_here(gpu: Gpu) -> bool:
    return gpu.fitted_on.get("stream.elementwise") == gpu.name


def fraction(work: Stream, gpu: Gpu, known: StreamConstants) -> float:
    """The fraction of the DRAM bandwidth for this mix of reads and writes: between those of reading, a triad (a third
    is written) and a copy (half). A board that was not fitted itself has its own triad and the others beside it."""
    written = work.write_bytes / work.bytes if work.bytes else 0.0
    own = 1.0 if _fitted_here(gpu) else gpu.achievable["dram"] / known.triad
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
    loops_s = steps_s(gpu, work.blocks, work.steps)  # other blocks' traffic passes meanwhile
    waits_s = work.round_trips * round_trip_s(gpu)
    if (
        work.thread_blocks is not None and 0 < work.thread_blocks < gpu.sm_count
    ):  # the other multiprocessors move nothing
        memory_s *= gpu.sm_count / work.thread_blocks
    facts = {"warm": warm, "reached": reached, "instructions_s": places_s, "traffic_s": memory_s, "loops_s": loops_s,
             "waits_s": waits_s}  # fmt: skip
    return Terms(flops_s, max(memory_s, places_s, loops_s), latency_s + waits_s, facts)


def explain(work: Stream, gpu: Gpu, known: StreamConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    facts = terms.facts
    source = f"{facts['reached']:.0%} of {bandwidth(gpu.dram_bytes_per_s)}"
    if facts["warm"]:
        source += f", {facts['warm']:.0%} of them in L2"
    if work.thread_blocks is not None and work.thread_blocks < gpu.sm_count:
        source += f" on {work.thread_blocks} of {gpu.sm_count} SMs"
    said = [f"{size(work.read_bytes)} read and {size(work.write_bytes)} written take"
            f" {duration(facts['traffic_s'])} at {source}"]  # fmt: skip
    if work.instructions:
        each = work.instructions / max(work.elements, 1)
        said.append(f"{each:.0f} integer instructions an element take {duration(facts['instructions_s'])}"
                    f" on {INTEGER_LANES} lanes of {gpu.sm_count} SMs")  # fmt: skip
    if work.steps:
        said.append(f"{work.blocks} blocks, {work.steps} loads in a row each, wait {duration(facts['loops_s'])}")
    if work.round_trips:
        said.append(f"{work.round_trips} loads in a row wait {duration(facts['waits_s'])} with nothing else to do")
    if known.latency_s:
        said.append(f"{duration(known.latency_s)} of latency")
    return "; ".join(said) + "."
