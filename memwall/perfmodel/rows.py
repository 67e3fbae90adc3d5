"""How row kernels use a GPU: DRAM traffic against the clocks that multiprocessors spend on each row."""

from __future__ import annotations

import math

from memwall.core.units import bandwidth, duration, percent, size
from memwall.hardware.chips import chip_of
from memwall.hardware.constants import RowsConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.launches import WELFORD_STEPS, Rows
from memwall.perfmodel.base import Terms, traffic_s
from memwall.perfmodel.stream import steps_s, triad_fraction

#: the part of L2 in which a line stays between two reads: each half of an A100's keeps its own copy (A100 white paper).
#: Layer norms of T4, V100, A100 (NeuSight), A100, H100 (Liger) move up to three tensors' bytes, not two, beyond it
L2_FRACTION = 0.5
#: warp schedulers for which clocks are stated. A P100's multiprocessor has two and spends twice the clocks of a P4's on
#: an element of softmax (NeuSight)
_COMMON_SCHEDULERS = 4
_VECTOR_BYTES = 16
#: threads of the block that takes a row (layer_norm_kernel.cu; SoftMax.cu, for rows of 4096 bytes and more); for other
#: kinds ``step_s`` covers the loops
_BLOCK_THREADS = {"layer_norm": 128, "rms_norm": 128, "softmax_block": 1024}
#: load latencies that a turn of a row's first pass takes more, to update its moments
_UPDATE_STEPS = {"layer_norm": WELFORD_STEPS - 1}


def missed_share(launch: Rows, gpu: Gpu) -> float:
    """Share of ``second_pass_bytes`` that L2 no longer holds, given the footprint of all rows in flight. The threads
    per multiprocessor do not matter: a T4's (1024) misses from the same rows on as a P4's (2048), with as much L2
    for each (NeuSight)."""
    if not launch.second_pass_bytes or not gpu.l2_bytes:
        return 0.0
    in_flight = min(launch.rows, gpu.sm_count * launch.rows_per_sm) * launch.columns * launch.itemsize
    return min(max(in_flight / gpu.l2_bytes - L2_FRACTION, 0.0), 1.0)


def lone_rows_s(launch: Rows, gpu: Gpu, warm: float) -> float:
    """Seconds of blocks whose threads load a vector, wait for it, and continue along the row: few long rows keep
    neither the multiprocessors nor the memory busy."""
    threads = _BLOCK_THREADS.get(launch.kind)
    if threads is None or not launch.read_bytes:
        return 0.0
    passes = 1 + math.ceil(launch.second_pass_bytes / launch.read_bytes)
    turns = math.ceil(launch.columns * launch.itemsize / (threads * _VECTOR_BYTES))
    updates_s = steps_s(gpu, launch.rows, _UPDATE_STEPS.get(launch.kind, 0) * turns, threads)
    return updates_s + steps_s(gpu, launch.rows, passes * turns, threads, warm=warm)


def predict(launch: Rows, gpu: Gpu, known: RowsConstants, resident_bytes: int = 0) -> Terms:
    """The terms of a launch with the constants given. Where its reads are in L2, its writes stay there."""
    warm = min(resident_bytes / launch.read_bytes, 1.0) if launch.read_bytes else 0.0
    missed = missed_share(launch, gpu) * (1 - warm)
    dram = launch.bytes * (1 - warm) + launch.second_pass_bytes * missed
    reached = min(known.plateau * triad_fraction(gpu), 1.0)
    memory_s = traffic_s(gpu, dram, launch.bytes * warm, reached)
    aligned = launch.columns * launch.itemsize % _VECTOR_BYTES == 0
    column_clk = known.column_clk * (1.0 if aligned else known.unaligned) + known.cold_clk * (1 - warm)
    crowd = _COMMON_SCHEDULERS / chip_of(gpu).partitions
    row_clk = crowd * (known.row_clk + column_clk * launch.columns)
    turns = math.ceil(launch.rows / gpu.sm_count)
    row_s, lone_s = row_clk / gpu.boost_clock_hz, lone_rows_s(launch, gpu, warm)
    latency_s = known.latency_s + known.step_s * launch.columns / 1024
    facts = {
        "warm": warm,
        "missed": missed,
        "row_clk": row_clk,
        "turns": turns,
        "dram_bytes": dram,
        "reached": reached,
        "rows_s": turns * row_s,
        "traffic_s": memory_s,
        "latency_s": latency_s,
        "lone_s": lone_s,
    }
    return Terms.of(0.0, memory_s, max(turns * row_s, lone_s), latency_s, facts)


def explain(launch: Rows, gpu: Gpu, known: RowsConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    facts = terms.facts
    cached = f", {percent(facts['warm'], 0)} in L2," if facts["warm"] else ""
    again = f" with {percent(facts['missed'], 0)} of the second pass missing L2" if launch.second_pass_bytes else ""
    alone = max(facts["rows_s"], facts["traffic_s"]) < facts["lone_s"]
    waits = f" too few to hide that a block waits for each load, {duration(facts['lone_s'])};" if alone else ""
    return (
        f"{launch.rows} rows of {launch.columns} ({launch.kind}) are {facts['turns']} for each of {gpu.sm_count} SMs at"
        f" {facts['row_clk']:.0f} clocks, {duration(facts['rows_s'])}, against {size(launch.bytes)}{cached}"
        f"{again} at {percent(facts['reached'], 0)} of {bandwidth(gpu.dram_bytes_per_s)},"
        f" {duration(facts['traffic_s'])};{waits} {duration(facts['latency_s'])} of latency."
    )
