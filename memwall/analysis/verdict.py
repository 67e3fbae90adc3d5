"""One sentence per schedule: which wall it hits and what would move it, each figure computed by a replay.

A replay runs the kernels again through the launch queue of :mod:`memwall.simulate.launch_queue` with one term changed:
half the memory seconds (twice the bandwidth), half the compute seconds (twice the FLOP/s), no wait for the CPU (CUDA
graphs), or without some kernels (fused away, at best).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from memwall.analysis.pipes import main_pipe, mfu_base
from memwall.analysis.table import share, sums
from memwall.core.graph import Pipe
from memwall.core.units import duration, flop_rate, flops, percent, size
from memwall.record.kernels import WALLS, peak_place, wall_shares
from memwall.record.profile import Profile
from memwall.simulate.launch_queue import queue
from memwall.simulate.schedule import MODEL_CLASSES, Schedule


def replay_s(
    schedule: Schedule, *, compute: float = 1.0, memory: float = 1.0, launch: str = "eager",
    without: Container[int] = (),
) -> float:  # fmt: skip
    """Seconds of the schedule with its compute and memory seconds scaled; ``launch="graph"`` issues every kernel in
    time, ``without`` leaves out kernels by id."""
    kernels = (
        (k.issue_s, max(k.compute_s * compute, k.memory_s * memory, k.latency_s) + k.overhead_s - k.wait_s)
        for k in schedule.kernels
        if k.id not in without
    )
    return queue(kernels, launch)[1]


@dataclass(frozen=True, slots=True)
class Gains:
    """Seconds that each change would save."""

    bandwidth_s: float
    flop_rate_s: float
    #: CUDA graphs: no kernel waits for the CPU
    graphs_s: float
    #: at most: the kernels outside the matrix classes that wait for memory cost nothing
    fusion_s: float


def gains(schedule: Schedule) -> Gains:
    """What twice the bandwidth, twice the FLOP/s, CUDA graphs and fusion would save."""
    now_s = schedule.totals.time_s
    fusible = {k.id for k in schedule.kernels if k.limited_by == "bandwidth" and k.op_class not in MODEL_CLASSES}
    changed = (
        replay_s(schedule, memory=0.5),
        replay_s(schedule, compute=0.5),
        replay_s(schedule, launch="graph"),
        replay_s(schedule, without=fusible),
    )
    return Gains(*(max(0.0, now_s - then_s) for then_s in changed))


def verdict(profile: Profile, schedule: Schedule) -> str:
    """One sentence: the wall, and what would move it."""
    if not schedule.kernels or not schedule.totals.time_s:
        return "Nothing runs on the device, so there is no wall."
    shares = wall_shares(schedule)
    wall = max(WALLS, key=shares.__getitem__)
    found, rank = gains(schedule), "the wall" if shares[wall] >= 0.5 else "the largest wall"
    doubled = f"twice the bandwidth would save {_saving(found.bandwidth_s)}, twice the FLOP/s"
    text = (
        f"{wall} is {rank}: {percent(shares[wall], 0)} of the {duration(schedule.totals.time_s)} goes to kernels "
        f"{_DETAILS[wall](profile, schedule, found)}; {doubled} {_saving(found.flop_rate_s)}"
    )
    if wall == "compute":
        text += _faster_pipe(profile, schedule)
    if schedule.fits:
        return f"{text[0].upper()}{text[1:]}."
    place = f" at the peak {peak_place(profile, schedule)}".rstrip()
    need, spare = size(schedule.totals.peak_memory_bytes), size(schedule.reserved_bytes)
    room = f" and {spare} assumed for context and allocator" if schedule.reserved_bytes else ""
    return f"It does not fit ({need}{place}{room}, {size(schedule.gpu.dram_bytes)} on the GPU); if it did: {text}."


def _saving(seconds: float) -> str:
    text = duration(seconds)
    return "nothing" if text in ("0 s", "0.0 ns") else text  # a difference of two sums is seldom exactly 0


def _bandwidth(profile: Profile, schedule: Schedule, gains: Gains) -> str:
    waiting = [k for k in schedule.kernels if k.limited_by == "bandwidth"]
    matrix = [k for k in waiting if k.op_class in MODEL_CLASSES]
    all_of_them, own = sums(waiting, ("flops", "time_s")), sums(matrix, ("flops", "bytes", "time_s"))
    flop_share = share(all_of_them["flops"], schedule.totals.flops)
    text = f"that wait for memory, which do {percent(flop_share)} of the FLOPs; "
    if own["time_s"] <= 0.5 * all_of_them["time_s"]:
        return f"{text}fusing the ones outside contractions could save at most {_saving(gains.fusion_s)}"
    pipe = main_pipe(profile, schedule)
    ridge = f" where {schedule.gpu.name} needs {schedule.gpu.ridge_point(pipe):.0f}" if pipe else ""
    return (
        f"{text}most of them are contractions that do {share(own['flops'], own['bytes']):.1f} FLOP per byte{ridge}, "
        "so a larger batch or weights of fewer bytes would pay"
    )


def _compute(profile: Profile, schedule: Schedule, gains: Gains) -> str:
    used = f"MFU {percent(schedule.totals.mfu, 0)} of {mfu_base(profile, schedule)}"
    return f"that are busy multiplying ({flops(schedule.totals.flops)}, {used})"


def _latency(profile: Profile, schedule: Schedule, gains: Gains) -> str:
    return "that wait for instructions, dependent steps or loads, where neither peak is reached"


def _overhead(profile: Profile, schedule: Schedule, gains: Gains) -> str:
    work_s = sum(k.time_s - k.overhead_s for k in schedule.kernels)
    return (
        f"too small to hide their launch ({schedule.totals.kernels:,} "
        f"launch{'es' if schedule.totals.kernels != 1 else ''} for {duration(work_s)} of work); "
        f"CUDA graphs would save {_saving(gains.graphs_s)} and a larger batch would fill the gaps"
    )


#: wall -> which kernels those are, and what would help beside faster hardware
_DETAILS: dict[str, Callable[[Profile, Schedule, Gains], str]] = {
    "bandwidth": _bandwidth, "compute": _compute, "latency": _latency, "overhead": _overhead,
}  # fmt: skip


def _faster_pipe(profile: Profile, schedule: Schedule) -> str:
    """The faster pipe for fp32 matrix work on a GPU with tensor cores."""
    gpu, pipe = schedule.gpu, main_pipe(profile, schedule)
    if pipe is None or pipe.dtype != "float32":
        return ""
    now = gpu.peak(pipe)
    for other in (Pipe("tensor", dtype) for dtype in ("tf32", "bfloat16", "float16")):
        if (ratio := gpu.peak_flop_per_s.get(other, 0.0) / now) > 1.2:
            return f"; the matrix work runs on {pipe} at {flop_rate(now)}, {other} has {ratio:.1f} times that peak"
    return ""
