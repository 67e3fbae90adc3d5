"""How row kernels use a GPU: DRAM traffic against the clocks that multiprocessors spend on each row."""

from __future__ import annotations

import math

from memwall.hardware import Gpu
from memwall.utilization.base import Terms
from memwall.utilization.memory import traffic_s
from memwall.work import Rows, RowsConstants

#: the part of L2 in which a line stays between two reads: each half of an A100's keeps its own copy (A100 white paper).
#: Layer norms of T4, V100, A100 (NeuSight), A100, H100 (Liger) move up to three tensors' bytes, not two, beyond it
L2_FRACTION = 0.5
#: compute capabilities whose multiprocessors hold about 1024 threads, not 2048 (CUDA C++ programming guide)
_FEWER_THREADS = frozenset(("7.5", "8.6", "8.7", "8.9", "12.0", "12.1"))
_VECTOR_BYTES = 16


def missed_share(work: Rows, gpu: Gpu) -> float:
    """Share of ``again_bytes`` that L2 no longer holds, by what all rows in flight take of it."""
    if not work.again_bytes or not gpu.l2_bytes:
        return 0.0
    per_sm = work.rows_per_sm / (2 if gpu.compute_capability in _FEWER_THREADS else 1)
    in_flight = min(work.rows, gpu.sm_count * per_sm) * work.columns * work.itemsize
    return min(max(in_flight / gpu.l2_bytes - L2_FRACTION, 0.0), 1.0)


def predict(work: Rows, gpu: Gpu, known: RowsConstants, resident_bytes: int = 0) -> Terms:
    """The terms of a launch with the constants given. Where what it reads lies in L2, what it writes stays there."""
    warm = min(resident_bytes / work.read_bytes, 1.0) if work.read_bytes else 0.0
    missed = missed_share(work, gpu) * (1 - warm)
    dram = work.bytes * (1 - warm) + work.again_bytes * missed
    memory_s = traffic_s(gpu, dram, work.bytes * warm, known.plateau)
    aligned = work.columns * work.itemsize % _VECTOR_BYTES == 0
    column_clk = known.column_clk * (1.0 if aligned else known.unaligned) + known.cold_clk * (1 - warm)
    row_clk = known.row_clk + column_clk * work.columns
    turns = math.ceil(work.rows / gpu.sm_count)
    rows_s = turns * row_clk / gpu.boost_clock_hz
    latency_s = known.latency_s + known.step_s * work.columns / 1024
    facts = {"warm": warm, "missed": missed, "row_clk": row_clk, "turns": turns, "dram_bytes": dram,
             "rows_s": rows_s, "traffic_s": memory_s}  # fmt: skip
    return Terms(0.0, max(rows_s, memory_s), latency_s, facts)


def explain(work: Rows, gpu: Gpu, known: RowsConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    facts = terms.facts
    cached = f", {facts['warm']:.0%} in L2," if facts["warm"] else ""
    again = f" with {facts['missed']:.0%} of the second pass missing L2" if work.again_bytes else ""
    return (
        f"{work.rows} rows of {work.columns} ({work.kind}) are {facts['turns']} for each of {gpu.sm_count} SMs at"
        f" {facts['row_clk']:.0f} clocks, {facts['rows_s'] * 1e6:.3g} us, against {work.bytes / 1e6:.3g} MB{cached}"
        f"{again} at {known.plateau:.0%} of {gpu.dram_bytes_per_s / 1e9:.0f} GB/s, {facts['traffic_s'] * 1e6:.3g} us;"
        f" {terms.latency_s * 1e6:.2g} us of latency."
    )
