"""How kernels use a GPU whose thread blocks walk along a sequence: chunks of a linear attention, keys of an index, rows
that are cast.

A block takes its steps one after another, and the blocks run in waves of as many as the multiprocessors hold::

    block_s = block_clk + steps x step_clk
    time_s  = max(waves x block_s, matmuls at ``plateau`` of the peak, bytes at ``stream`` of the bandwidth) + start_s

``start_s`` is counted once for each kernel of the launch, with its launch latency: kernels that follow each other in a
CUDA graph overlap more than those whose shortest is a GPU's launch overhead.
"""

from __future__ import annotations

from math import ceil

from memwall.core.units import bandwidth, counted, duration, flop_rate, percent, size
from memwall.hardware.chips import chip_of
from memwall.hardware.constants import WalkConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.launches import Walk
from memwall.perfmodel.base import Terms, traffic_s


def predict(launch: Walk, gpu: Gpu, known: WalkConstants, resident_bytes: int = 0) -> Terms:
    """The terms of a launch with the constants given. Where its reads are in L2, its writes stay there."""
    warm = min(resident_bytes / launch.read_bytes, 1.0) if launch.read_bytes else 0.0
    memory_s = traffic_s(gpu, launch.bytes * (1 - warm), launch.bytes * warm, known.stream)
    compute_s = 0.0
    if launch.pipe is not None and launch.flops:
        compute_s = launch.flops / (gpu.peak(gpu.ceiling_pipe(launch.pipe)) * known.plateau)
    longest_s, mean_s = (
        (known.block_clk + steps * known.step_clk) / gpu.boost_clock_hz
        for steps in (launch.steps, launch.mean_steps or launch.steps)
    )
    lanes = gpu.sm_count * launch.per_sm * (launch.paired if chip_of(gpu).paired_tiles else 1)
    waves = launch.passes * ceil(launch.blocks / (lanes * launch.passes))
    walk_s, start_s = max(launch.passes * longest_s, waves * mean_s), known.start_s * launch.count
    facts = {"warm": warm, "waves": waves, "walk_s": walk_s, "memory_s": memory_s, "compute_s": compute_s}
    return Terms.of(compute_s, memory_s, walk_s, start_s, facts)


def explain(launch: Walk, gpu: Gpu, known: WalkConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    facts = terms.facts
    walks = f"{counted(launch.blocks, 'block')} of {counted(ceil(launch.steps), 'step')}"
    waves = f"{counted(facts['waves'], 'wave')} on {gpu.sm_count} SMs"
    said = [f"{walks} in {waves} take {duration(facts['walk_s'])}"]
    if launch.pipe is not None and launch.flops:
        ceiling = gpu.ceiling_pipe(launch.pipe)
        rate = f"{percent(known.plateau, 0)} of {flop_rate(gpu.peak(ceiling), ceiling)}"
        said.append(f"their matmuls {duration(facts['compute_s'])} at {rate}")
    cached = f", {percent(facts['warm'], 0)} of them in L2," if facts["warm"] else ""
    said.append(
        f"{size(launch.bytes)}{cached} {duration(facts['memory_s'])} at {percent(known.stream, 0)} of"
        f" {bandwidth(gpu.dram_bytes_per_s)}"
    )
    return f"{', '.join(said)}; {counted(launch.count, 'launch')} {duration(terms.ends_s)}."
