"""How streaming kernels use a GPU: bytes at the bandwidth of their read/write mix, against the integer lanes and the
loops of blocks.

A thread of PyTorch's own kernels seldom has more than one load in flight: it goes over the window of its output, over
the elements of its channel or group, down its column, and waits a load latency for each. The blocks of a launch run in
waves of as many as the multiprocessors hold; a launch takes as long as the loops of its waves, or as its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from memwall.core.units import bandwidth, counted, duration, percent, size
from memwall.hardware.chips import chip_of
from memwall.hardware.constants import StreamConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.launches import Stream
from memwall.perfmodel.base import Terms, constants, kept_share, traffic_s

#: integer lanes of a multiprocessor: four quarters of 16 (NVIDIA's V100, A100 and H100 white papers), a CU's 64. CUDA's
#: guide states as many multiply-adds of 32 bits in a clock for 7.0 to 9.0
INTEGER_LANES = 64
#: clocks of one load from a random address that misses all caches: the cross entropy of Liger's pairs on an A100 takes
#: 0.5 ms more than its four passes, for 1024 dependent loads. Clocks, not seconds: an iteration of the loops of vLLM's
#: kernels takes 800 to 1000 on A100, A40 and H100 alike (decode steps of Vidur)
ROUND_TRIP_CLK = 700


#: the same of a load that L2 serves: pointer chases of A100 and H100
L2_TRIP_CLK = 300


def round_trip_s(gpu: Gpu, warm: float = 0.0) -> float:
    """Seconds that a thread waits for a lone load, of which L2 serves the share ``warm``."""
    return (ROUND_TRIP_CLK + warm * (L2_TRIP_CLK - ROUND_TRIP_CLK)) / gpu.boost_clock_hz


#: clocks of a turn between two barriers that no other block hides: the random numbers of a thread's elements, then the
#: load that waits for them. Dropout of 33.6e6 elements of float16 takes 19 us more on an H200 than its traffic, in 31
#: turns
_BARRIER_CLK = 1200


def barriers_s(launch: Stream, gpu: Gpu) -> float:
    """Seconds that a launch's turns between barriers add to its traffic."""
    if not launch.barrier_elements:
        return 0.0
    at_once = gpu.sm_count * chip_of(gpu).threads * launch.barrier_elements
    return math.ceil(launch.elements / at_once) * _BARRIER_CLK / gpu.boost_clock_hz


#: threads of a block unless its launch says otherwise
BLOCK_THREADS = 512


def steps_s(
    gpu: Gpu,
    blocks: int,
    steps: float,
    block_threads: int = BLOCK_THREADS,
    resident_threads: int = 0,
    warm: float = 0.0,
) -> float:
    """Seconds of loops with one load latency per iteration, the blocks in waves of as many as fit: what they take
    where there are too few to keep the memory busy."""
    chip = chip_of(gpu)
    threads = min(resident_threads or chip.threads, chip.threads)
    at_once = min(max(threads // block_threads, 1), chip.blocks)
    return math.ceil(blocks / (gpu.sm_count * at_once)) * steps * round_trip_s(gpu, warm)


#: the largest fraction of the DRAM bandwidth that a GPU was measured to reach (gpu-stream read, bandwidth_measured.csv)
_MOST_REACHED = 0.98


def triad_fraction(gpu: Gpu) -> float:
    """The fraction of the DRAM bandwidth that a triad reaches: the GPU's own where its streams were fitted."""
    known = constants(StreamConstants, gpu, "elementwise")
    return known.triad if _fitted_here(gpu) else gpu.achievable["dram"]


def _fitted_here(gpu: Gpu) -> bool:
    return gpu.fitted_on.get("stream.elementwise") == gpu.name


def fraction(launch: Stream, gpu: Gpu, known: StreamConstants) -> float:
    """The fraction of the DRAM bandwidth for this mix of reads and writes: interpolated between reading, a
    triad (a third is written) and a copy (half). A GPU that was not fitted scales all three to its own triad."""
    written = launch.write_bytes / launch.bytes if launch.bytes else 0.0
    own = 1.0 if _fitted_here(gpu) else gpu.achievable["dram"] / known.triad
    if written <= 1 / 3:
        reached = known.read + 3 * written * (known.triad - known.read)
    else:
        reached = known.triad + min(6 * (written - 1 / 3), 1.0) * (known.copy - known.triad)
    return min(own * reached, _MOST_REACHED)


def predict(launch: Stream, gpu: Gpu, known: StreamConstants, resident_bytes: int = 0) -> Terms:
    """The terms of a launch with the constants given. Where its reads are in L2, its writes stay there, if they fit."""
    again = launch.second_pass_bytes * kept_share(gpu, launch.bytes - launch.second_pass_bytes)
    warm = min((resident_bytes + again) / launch.read_bytes, 1.0) if launch.read_bytes else 0.0
    reached = fraction(launch, gpu, known)
    over = max(launch.write_bytes * warm - gpu.l2_bytes, 0)
    memory_s = traffic_s(gpu, launch.bytes * (1 - warm) + over, launch.bytes * warm - over, reached)
    warm -= over / launch.bytes if over else 0
    flops_s = 0.0
    if launch.pipe is not None and launch.flops:
        flops_s = launch.flops / (gpu.peak(launch.pipe) * gpu.achievable_fraction(launch.pipe))
    places_s = launch.instructions / (gpu.sm_count * gpu.boost_clock_hz * INTEGER_LANES)
    # overlaps with other blocks' traffic; neither a turn of vLLM's kernels nor the waits of TensorRT-LLM's quantisation
    # take less where L2 has the data
    loops_s = steps_s(gpu, launch.blocks, launch.steps, launch.block_threads, launch.resident_threads)
    sectors_s = traffic_s(gpu, 0.0, launch.sector_bytes)
    waits_s, met_s = launch.round_trips * round_trip_s(gpu), barriers_s(launch, gpu)
    few_s = 0.0
    if 0 < (launch.thread_blocks or 0) < gpu.sm_count:  # the other multiprocessors move nothing
        few_s = memory_s * gpu.dram_bytes_per_s / (gpu.sm_bytes_per_s * (launch.thread_blocks or 1))
    facts = {
        "warm": warm,
        "reached": reached,
        "instructions_s": places_s,
        "traffic_s": memory_s,
        "loops_s": loops_s,
        "waits_s": waits_s,
        "few_s": few_s,
        "sectors_s": sectors_s,
        "barriers_s": met_s,
    }
    return Terms.of(
        flops_s, memory_s, max(places_s, loops_s, few_s, sectors_s), known.latency_s + waits_s + met_s, facts
    )


def _moved(launch: Stream) -> str:
    sides = ((launch.read_bytes, "read"), (launch.write_bytes, "written"))
    return " and ".join(f"{size(nbytes)} {what}" for nbytes, what in sides if nbytes) or "no bytes"


def _served(gpu: Gpu, facts: Mapping[str, float]) -> str:
    """Where the bytes are, and how fast what is in DRAM moves."""
    rate = f"at {percent(facts['reached'], 0)} of {bandwidth(gpu.dram_bytes_per_s)}"
    warm = percent(facts["warm"], 0)
    if warm == percent(1.0, 0):
        return ", all of them in L2"
    return f", {warm} of them in L2 and the others {rate}" if facts["warm"] else f" {rate}"


def explain(launch: Stream, gpu: Gpu, known: StreamConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    facts = terms.facts
    about = f"{launch.about[0].upper()}{launch.about[1:]}: " if launch.about else ""
    said = [f"{about}{_moved(launch)} take {duration(facts['traffic_s'])}{_served(gpu, facts)}"]
    if facts["few_s"]:
        said.append(
            f"{counted(launch.thread_blocks or 0, 'thread block')} on {gpu.sm_count} SMs take"
            f" {duration(facts['few_s'])}"
        )
    if launch.instructions:
        each = launch.instructions / max(launch.draws or launch.elements, 1)
        what = "a random number" if launch.draws else "an element"
        said.append(
            f"{each:.0f} integer instructions for {what} take {duration(facts['instructions_s'])}"
            f" on {INTEGER_LANES} lanes of {gpu.sm_count} SMs"
        )
    if facts["sectors_s"]:
        said.append(
            f"neighbours of the result are apart in what is read: {size(launch.sector_bytes)} of L2's sectors take"
            f" {duration(facts['sectors_s'])}"
        )
    if launch.steps:
        said.append(
            f"{counted(launch.blocks, 'block')} of {launch.block_threads} threads on {gpu.sm_count} SMs,"
            f" {counted(round(launch.steps), 'load')} in a row each, wait {duration(facts['loops_s'])}"
        )
    if launch.round_trips:
        said.append(
            f"{counted(launch.round_trips, 'load')} in a row wait {duration(facts['waits_s'])} with nothing else to do"
        )
    if facts["barriers_s"]:
        said.append(
            f"a thread meets its block after every {launch.barrier_elements} elements, which adds"
            f" {duration(facts['barriers_s'])}"
        )
    if known.latency_s:
        said.append(f"{duration(known.latency_s)} of latency")
    return "; ".join(said) + "."
