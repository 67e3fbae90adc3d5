"""One sentence per schedule: which wall it hits and what would move it.

Each gain is a what-if (:mod:`memwall.analysis.whatif`): the kernels are simulated again on a GPU with one number
changed, so ``--what-if`` with the text in :data:`WHAT_IFS` shows the same figure. What fusion would save is by the time
of a fused policy that the profile has, else of ``ideal``, the most that any fusion could win, with the kernels of
recurrent networks as they are: no compiler replaces those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memwall.analysis.communication import message_rows
from memwall.analysis.pipes import main_pipe, mfu_base
from memwall.analysis.table import share, sums
from memwall.analysis.whatif import outcome, parse_change
from memwall.core.graph import Pipe
from memwall.core.units import bandwidth, counted, duration, flop_rate, flops, percent, size
from memwall.fusion import REWRITING
from memwall.ops.registry import is_recurrent
from memwall.perfmodel.roofline import LINK, Estimate, launch_floor_s
from memwall.record.kernels import peak_place, printed_shares, wall_shares
from memwall.record.profile import Profile
from memwall.record.schedules import CHEAP
from memwall.simulate.plan_context import MODEL_CLASSES
from memwall.simulate.schedule import Schedule

#: what would help -> the what-if that says how much: twice the bandwidth, FLOP/s or power, no wait for the CPU
WHAT_IFS: Mapping[str, str] = {
    "bandwidth": "dram_bytes_per_s*=2", "flop_rate": "peak_flop_per_s*=2", "power": "tdp_w*=2",
    "graphs": "dispatch_s=0",
}  # fmt: skip
#: of the time, the least that twice the power must save for the limit to be named
_HELD = 0.01
#: of the bytes, the least that must be read from L2 for that to be said
_FROM_L2 = 0.25


def gains(profile: Profile, schedule: Schedule, names: Sequence[str] = tuple(WHAT_IFS)) -> dict[str, float]:
    """Seconds that each change of :data:`WHAT_IFS` saves; none of a saved schedule whose plan only a compiler can make
    again."""
    if schedule.plan is None:
        if schedule.policy not in CHEAP:
            return {}
        schedule = profile.schedule(schedule.gpu, schedule.policy, graph=schedule.graph, launch=schedule.launch)
    found = {name: outcome(profile, schedule, [parse_change(WHAT_IFS[name])]) for name in names}
    return {name: told.before.time_s - told.after.time_s for name, told in found.items()}


@dataclass(frozen=True, slots=True)
class FusionGain:
    """Seconds that fusing an eager schedule saves, by a policy. ``fuses``: two of its ops share a kernel;
    ``left``: recurrent networks are in it, which stay as they are."""

    policy: str
    saved_s: float
    fuses: bool
    left: bool


def fusion_gain(profile: Profile, schedule: Schedule) -> FusionGain | None:
    """The most that a fused policy saves of an eager schedule: of those that the profile has on the same GPU, else
    ``ideal``. None for a schedule that is fused."""
    if schedule.policy != "eager":
        return None
    gpu, graph, launch = schedule.gpu, schedule.graph, schedule.launch
    same = [s for s in profile.simulations if (s.gpu, s.graph, s.launch) == (gpu, graph, launch)]
    fused = [s for s in same if s.policy not in ("eager", "ideal", *REWRITING)]
    ideal = fused or [profile.schedule(gpu, "ideal", graph=graph, launch=launch)]
    best = min(ideal, key=lambda s: s.totals.time_s)
    saved_s = schedule.totals.time_s - best.totals.time_s
    ops = profile.graphs[schedule.graph].ops
    recurrent = {op.id for op in ops if is_recurrent(op.name)}
    if recurrent and best.policy == "ideal":
        replaced = (k for k in schedule.kernels if recurrent.isdisjoint(k.op_ids))
        saved_s = sum(k.time_s for k in replaced) - sum(
            k.time_s for k in best.kernels if recurrent.isdisjoint(k.op_ids)
        )
    return FusionGain(best.policy, saved_s, len(best.kernels) < len(schedule.kernels), bool(recurrent))


def verdict(profile: Profile, schedule: Schedule) -> str:
    """One sentence: the wall, and what would move it."""
    if not schedule.kernels or not schedule.totals.time_s:
        return "Nothing runs on the device, so there is no wall."
    shares = wall_shares(schedule)
    wall = max(shares, key=shares.__getitem__)
    rank = "the wall" if shares[wall] >= 0.5 else "the largest wall"
    part = percent(printed_shares(shares, 0)[wall], 0)
    kernels = [kernel for kernel in schedule.kernels if kernel.limited_by == wall]
    text = (
        f"{wall} is {rank}: {part} of the {duration(schedule.totals.time_s)} goes to kernels "
        f"{_DETAILS[wall](profile, schedule, kernels)}{_doubled(profile, schedule)}"
    )
    if wall != "overhead":
        text += _issuing(schedule)
    if wall == "compute":
        text += _power(profile, schedule) + _faster_pipe(profile, schedule)
    if schedule.fits:
        return f"{text[0].upper()}{text[1:]}."
    where = peak_place(profile, schedule)
    place = f" at the peak ({where})" if where else " at the peak"
    need, spare = size(schedule.totals.peak_memory_bytes), size(schedule.reserved_bytes)
    room = f" + {spare} assumed for context and allocator" if schedule.reserved_bytes else ""
    return f"It does not fit: {need}{place}{room} exceed the GPU's {size(schedule.gpu.dram_bytes)}. If it did: {text}."


def _doubled(profile: Profile, schedule: Schedule) -> str:
    found = gains(profile, schedule, ("bandwidth", "flop_rate"))
    if not found:
        return ""
    saved = {name: _saving(saved_s) for name, saved_s in found.items()}
    return f"; twice the bandwidth would save {saved['bandwidth']}, twice the FLOP/s {saved['flop_rate']}"


def _issuing(schedule: Schedule) -> str:
    """The CPU's time, where a GPU twice as fast would wait for it; empty elsewhere."""
    issued_s, time_s = sum(kernel.issue_s for kernel in schedule.kernels), schedule.totals.time_s
    if schedule.gpu.cpu is not None or 2 * issued_s < time_s:
        return ""
    return f"; the CPU takes {duration(issued_s)} to issue the kernels, which no faster GPU shortens"


def _saving(seconds: float) -> str:
    text = duration(max(seconds, 0.0))
    # a difference of two sums is seldom exactly 0
    return "nothing" if text in ("0 s", "0.0 ns", "<0.1 ns") else text


def _power(profile: Profile, schedule: Schedule) -> str:
    """Why more FLOP/s alone help little where the power limit holds the clock; empty where it does not."""
    saved_s = gains(profile, schedule, ("power",)).get("power", 0.0)
    if not schedule.gpu.tdp_w or saved_s < _HELD * schedule.totals.time_s:
        return ""
    return (
        f"; the GPU's power limit of {schedule.gpu.tdp_w:.0f} W holds the products below their peak, and twice that"
        f" would save {_saving(saved_s)}"
    )


def _fusing(profile: Profile, schedule: Schedule) -> str:
    """``; fusion (torch.compile) could save at most 2.55 ms``; empty for a schedule that is fused."""
    gain = fusion_gain(profile, schedule)
    if gain is None:
        return ""
    how = "fusion" if gain.fuses else "generated kernels"
    saved = _saving(gain.saved_s)
    if gain.policy != "ideal":
        return f"; {how} would save {saved} (policy {gain.policy})"
    left = ", with the recurrent kernels as they are" if gain.left else ""
    return "" if saved == "nothing" else f"; {how} (torch.compile) could save at most {saved}{left}"


def _bandwidth(profile: Profile, schedule: Schedule, kernels: Sequence[Estimate]) -> str:
    matrix = [kernel for kernel in kernels if kernel.op_class in MODEL_CLASSES]
    all_of_them, own = sums(kernels, ("flops", "time_s")), sums(matrix, ("flops", "bytes", "time_s"))
    flop_share = share(all_of_them["flops"], schedule.totals.flops)
    text = f"that wait for memory, which do {percent(flop_share)} of the FLOPs{_from_l2(schedule)}"
    if own["time_s"] <= 0.5 * all_of_them["time_s"]:
        return text + _fusing(profile, schedule)
    pipe = main_pipe(profile, schedule)
    ridge = f" where {schedule.gpu.name} needs {schedule.gpu.ridge_point(pipe):.0f}" if pipe else ""
    part = percent(share(own["time_s"], all_of_them["time_s"]), 0)
    text += (
        f"; {part} of that time is {_largest(matrix)}, at {share(own['flops'], own['bytes']):.1f} FLOP per byte{ridge}"
    )
    weights, cache = (
        _bytes_of(roles, profile, schedule, matrix) for roles in (("parameter",), ("kv_cache", "kv_made"))
    )
    if 2 * weights > own["bytes"]:
        return f"{text}, so a larger batch or weights of fewer bytes would pay"
    if 3 * cache > own["bytes"]:
        held = f"{percent(cache / own['bytes'], 0)} of its bytes are the cache's"
        held += f" and {percent(weights / own['bytes'], 0)} the weights'" if weights else ""
        return f"{text}; {held}, so a cache of fewer bytes would pay{_fusing(profile, schedule)}"
    return f"{text} and most bytes activations, so fewer bytes per element would pay{_fusing(profile, schedule)}"


def _largest(matrix: Sequence[Estimate]) -> str:
    """The classes with a tenth of the time or more, the longest first: ``contraction and attention``."""
    seconds = {name: sum(k.time_s for k in matrix if k.op_class == name) for name in MODEL_CLASSES}
    least_s = 0.1 * sum(seconds.values())
    return " and ".join(sorted((name for name in seconds if seconds[name] >= least_s), key=lambda name: -seconds[name]))


def _from_l2(schedule: Schedule) -> str:
    """Why more DRAM bandwidth helps little where much of the traffic is L2's; empty where it is not."""
    part = share(schedule.totals.resident_bytes, schedule.totals.dram_bytes)
    if part < _FROM_L2:
        return ""
    return f"; {percent(part, 0)} of the step's bytes are read from L2, which more DRAM bandwidth does not speed up"


def _bytes_of(roles: tuple[str, ...], profile: Profile, schedule: Schedule, kernels: Sequence[Estimate]) -> int:
    """Bytes of storages with one of the roles that the kernels read, each once per kernel."""
    graph = profile.graphs[schedule.graph]
    read = (dict.fromkeys(v for i in kernel.op_ids for v in graph.ops[i].inputs) for kernel in kernels)
    values = (graph.values[v] for ids in read for v in ids)
    return sum(value.spec.nbytes for value in values if graph.storages[value.storage].role in roles)


def _compute(profile: Profile, schedule: Schedule, kernels: Sequence[Estimate]) -> str:
    totals = schedule.totals
    again = f", HFU {percent(totals.hfu, 0)}," if totals.hfu > totals.mfu else ""
    used = f"MFU {percent(totals.mfu, 0)}{again} of {mfu_base(profile, schedule)}"
    return f"that are busy multiplying ({flops(totals.flops)}, {used})"


def _link(profile: Profile, schedule: Schedule, kernels: Sequence[Estimate]) -> str:
    name, bytes_per_s = "link", schedule.gpu.link_bytes_per_s / 2
    if cluster := schedule.gpu.cluster:
        exposed_s: dict[str, float] = {}
        for row in message_rows(profile, schedule):
            exposed_s[row.link] = exposed_s.get(row.link, 0.0) + row.exposed_s
        name = max(exposed_s, key=exposed_s.__getitem__)
        bytes_per_s = cluster.link[name].bytes_per_s
    return (
        f"that wait for the {name}, {bandwidth(bytes_per_s)} each way: fewer bytes to send, or a faster one, would help"
    )


def _latency(profile: Profile, schedule: Schedule, kernels: Sequence[Estimate]) -> str:
    text, saved_s = "that wait for instructions, dependent steps or loads", _by_graphs(profile, schedule)
    if saved_s is None or saved_s < _HELD * schedule.totals.time_s:
        return f"{text}{_fusing(profile, schedule)}"
    ops = profile.graphs[schedule.graph].ops
    if any(is_recurrent(ops[i].name) for kernel in kernels for i in kernel.op_ids):
        text = "that wait for dependent steps, loads or the CPU, which launches a recurrent layer step by step"
    return f"{text}{_fusing(profile, schedule)}; CUDA graphs would save {_saving(saved_s)}"


def _overhead(profile: Profile, schedule: Schedule, kernels: Sequence[Estimate]) -> str:
    """Kernels at their minimum time, and those that the CPU issues late: CUDA graphs help the latter alone."""
    spent = sums(kernels, ("launches", "wait_s", "overhead_s", "time_s"))
    least_s, work_s = spent["overhead_s"] - spent["wait_s"], spent["time_s"] - spent["overhead_s"]
    text = (
        f"that do little: {duration(least_s)} of it is their minimum kernel time"
        f" ({counted(spent['launches'], 'launch')} at {duration(launch_floor_s(schedule.gpu))}, the shortest kernel,"
        " launch included)"
    )
    if spent["wait_s"] > 0:
        text += f", {duration(spent['wait_s'])} waiting for the CPU"
    text += f", {duration(work_s)} their work"
    text += f"{_fusing(profile, schedule)}; a larger batch gives each kernel more to do"
    saved_s = _by_graphs(profile, schedule)
    return text if saved_s is None else f"{text}; CUDA graphs would save {_saving(saved_s)}"


def _by_graphs(profile: Profile, schedule: Schedule) -> float | None:
    """Seconds that a CUDA graph of the step saves; None of a schedule that is one, and where it is not known."""
    if schedule.launch != "eager" or schedule.gpu.cpu is not None:
        return None
    return gains(profile, schedule, ("graphs",)).get("graphs")


#: wall -> which kernels those are, and what would help beside faster hardware
_DETAILS: Mapping[str, Callable[[Profile, Schedule, Sequence[Any]], str]] = {
    "bandwidth": _bandwidth, "compute": _compute, "latency": _latency, "overhead": _overhead, LINK: _link,
}  # fmt: skip


def _faster_pipe(profile: Profile, schedule: Schedule) -> str:
    """The faster pipe for fp32 matrix work on a GPU with tensor cores."""
    gpu, wanted = schedule.gpu, main_pipe(profile, schedule)
    if wanted is None or wanted.dtype != "float32":
        return ""
    pipe, now = gpu.ceiling_pipe(wanted), gpu.peak(wanted)
    for other in (Pipe("tensor", dtype) for dtype in ("tf32", "bfloat16", "float16")):
        if (ratio := gpu.peak_flop_per_s.get(other, 0.0) / now) > 1.2:
            return f"; the matrix work runs on {pipe} at {flop_rate(now)}, {other} has {ratio:.1f} times that peak"
    return ""
