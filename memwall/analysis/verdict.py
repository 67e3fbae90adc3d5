"""What binds a step and what would move it, in words: the levers of :mod:`memwall.analysis.levers`, the largest first,
then the kernels of the wall that binds. A step that the CPU holds says so first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memwall.analysis.communication import message_rows
from memwall.analysis.levers import HOST, NOTABLE, Lever, as_would, bound_by, by_kind, levers
from memwall.analysis.pipes import main_pipe, mfu_base
from memwall.analysis.table import share, sums
from memwall.core.units import bandwidth, counted, duration, flops, percent, size
from memwall.perfmodel.roofline import LINK, Estimate, launch_floor_s
from memwall.record.kernels import peak_place, wall_shares
from memwall.record.profile import Profile
from memwall.record.schedules import CHEAP
from memwall.simulate.plan_context import MODEL_CLASSES
from memwall.simulate.schedule import Schedule

#: levers that the sentence names
MOST_NAMED = 3
#: of the bytes, the least that must be read from L2 for that to be said
_FROM_L2 = 0.25


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a step is bound by (``compute``, ``bandwidth``, ``latency``, ``link``, ``host``; empty where no number of
    the hardware shortens it), its levers, and both in words."""

    bound_by: str
    levers: tuple[Lever, ...]
    text: str

    @property
    def notable(self) -> tuple[Lever, ...]:
        """The levers that are worth a row, a share of :data:`memwall.analysis.levers.NOTABLE` and more, by kind."""
        return tuple(lever for lever in by_kind(self.levers) if lever.share >= NOTABLE)


def verdict(profile: Profile, schedule: Schedule) -> Verdict:
    """What binds a schedule and what would move it."""
    if not schedule.kernels or not schedule.totals.time_s:
        return Verdict("", (), "Nothing runs on the device, so there is no wall.")
    found = levers(profile, schedule)
    binding = bound_by(found, wall_shares(schedule), schedule.totals.time_s)
    said = (
        "" if found else _unknown(schedule),
        _unjitted(profile, schedule),
        _misfit(profile, schedule),
        _hosted(binding, found, schedule),
        named(found, schedule.totals.time_s),
    )
    text = " ".join(filter(None, (*said, _walled(profile, schedule, binding, found))))
    return Verdict(binding.wall if binding else "", found, text)


def _unknown(schedule: Schedule) -> str:
    """Why a saved schedule has no levers."""
    why = (
        "this memwall models the step otherwise than the record does"
        if schedule.policy in CHEAP
        else f"a record does not hold the plan of {schedule.policy}"
    )
    return f"Levers are not known: {why}, so profile the target again."


def _unjitted(profile: Profile, schedule: Schedule) -> str:
    """What run of a JAX program the policy eager is."""
    if schedule.policy != "eager" or "jax" not in profile.environment:
        return ""
    return "This is the program under jax.disable_jit(), each primitive a kernel; --policy xla is what jax.jit runs."


def _hosted(binding: Lever | None, found: Sequence[Lever], schedule: Schedule) -> str:
    """What comes first where the CPU holds the step."""
    if binding is None or binding.wall != HOST:
        return ""
    others_s = max((lever.saved_s for lever in found if lever.wall not in ("", HOST)), default=0.0)
    held_s = sum(kernel.wait_s for kernel in schedule.kernels)
    return (
        f"Host-bound: {duration(held_s)} of the {duration(schedule.totals.time_s)} are waits for the CPU, which issues"
        f" the kernels. Twice its speed would save {saving(binding.saved_s)}, a change of the GPU"
        f" {f'{saving(others_s)} at most' if saving(others_s) else 'nothing'}."
    )


def named(found: Sequence[Lever], time_s: float) -> str:
    """``Fusion by memwall would save 454.48 us of the 1.09 ms (41.9 %, --policy memwall); or ...``, of the largest
    levers, a bound among them where there is nothing else."""
    some = [lever for lever in by_kind(found) if saving(lever.saved_s)]
    reached = [lever for lever in some if lever.kind != "bound"] or some
    least_s = sorted((lever.saved_s for lever in reached), reverse=True)[:MOST_NAMED][-1:]
    largest = [lever for lever in reached if lever.saved_s >= least_s[0]][:MOST_NAMED]
    if not largest:
        return f"No lever that memwall knows shortens the {duration(time_s)}." if found else ""
    first, *others = largest
    text = f"{capital(first.name)} would save {saving(first.saved_s)} of the {duration(time_s)}"
    text += f" ({percent(first.share)}, {first.options})"
    for kind, joined in (first.kind, "or"), *((kind, _OTHERS[kind]) for kind in _OTHERS if kind != first.kind):
        told = [f"{lever.name} {saving(lever.saved_s)} ({lever.options})" for lever in others if lever.kind == kind]
        text += f"; {joined} {' or '.join(told)}" if told else ""
    return f"{text}."


#: levers of another kind than the first one -> what stands before them
_OTHERS = {"hardware": "of other hardware"}


def _walled(profile: Profile, schedule: Schedule, binding: Lever | None, found: Sequence[Lever]) -> str:
    """The wall that binds and its kernels; where the CPU does, or no number is known to, the wall of most of the
    time."""
    shares, time_s = wall_shares(schedule), schedule.totals.time_s
    if binding is None or binding.wall == HOST:
        wall = max(shares, key=shares.__getitem__)
        told = f"{capital(wall)} is {'the wall' if shares[wall] >= 0.5 else 'the largest wall'}"
    else:
        wall = binding.wall
        told = _bound(binding, found, shares, time_s) + _issuing(schedule)
    kernels = [kernel for kernel in schedule.kernels if kernel.limited_by == wall]
    if not kernels:
        return f"{told}."
    details = f"{percent(shares[wall])} of the time goes to kernels {_DETAILS[wall](profile, schedule, kernels)}."
    return f"{told}: {details}" if binding is None or binding.wall == HOST else f"{told}. {details}"


def _bound(binding: Lever, found: Sequence[Lever], shares: Mapping[str, float], time_s: float) -> str:
    """What the change of the number that binds would save; where kernels at another wall take more of the time, these
    first, and what a change of that wall's number would save."""
    wall, saved = max(shares, key=shares.__getitem__), saving(binding.saved_s)
    alike = as_would(binding.name, {lever.name: lever.time_s for lever in found})
    if wall == binding.wall:
        binds = f"{capital(wall)} binds" if binding.saved_s >= NOTABLE * time_s else f"Of the hardware {wall} binds"
        return f"{binds}: {binding.name} would save {saved}{alike}"
    other = bound_by([lever for lever in found if lever.wall == wall], shares, time_s)
    less = f", {other.name} {saving(other.saved_s) or 'nothing'}" if other else ""
    most = f"Kernels limited by {wall} take the most time, {percent(shares[wall])}"
    return f"{most}; of the hardware {binding.name} would save most, {saved}{alike}{less}"


def _misfit(profile: Profile, schedule: Schedule) -> str:
    if schedule.fits:
        return ""
    where = peak_place(profile, schedule)
    place = f" at the peak ({where})" if where else " at the peak"
    need, spare = size(schedule.totals.peak_memory_bytes), size(schedule.reserved_bytes)
    room = f" + {spare} assumed for context and allocator" if schedule.reserved_bytes else ""
    return f"It does not fit: {need}{place}{room} exceed the GPU's {size(schedule.gpu.dram_bytes)}. If it did:"


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _issued_s(schedule: Schedule) -> float:
    return sum(kernel.issue_s for kernel in schedule.kernels)


def _issuing(schedule: Schedule) -> str:
    """The CPU's time, where a GPU twice as fast would wait for it; empty elsewhere."""
    issued_s, time_s = _issued_s(schedule), schedule.totals.time_s
    if schedule.gpu.cpu is not None or 2 * issued_s < time_s or schedule.launch == "graph":
        return ""
    return f"; the CPU takes {duration(issued_s)} to issue the kernels, which no faster GPU shortens"


def saving(seconds: float) -> str:
    """Seconds that are saved; empty where nothing is: a difference of two sums is seldom exactly 0."""
    text = duration(max(seconds, 0.0))
    return "" if text in ("0 s", "0.0 ns", "<0.1 ns") else text


def _bandwidth(profile: Profile, schedule: Schedule, kernels: Sequence[Estimate]) -> str:
    matrix = [kernel for kernel in kernels if kernel.op_class in MODEL_CLASSES]
    all_of_them, own = sums(kernels, ("flops", "time_s")), sums(matrix, ("flops", "bytes", "time_s"))
    flop_share = share(all_of_them["flops"], schedule.totals.flops)
    text = f"that wait for memory, which do {percent(flop_share)} of the FLOPs{_from_l2(schedule)}"
    if own["time_s"] <= 0.5 * all_of_them["time_s"]:
        return text
    pipe = main_pipe(profile, schedule)
    ridge = f" where {schedule.gpu.name} needs {schedule.gpu.ridge_point(pipe):.0f}" if pipe else ""
    part = percent(share(own["time_s"], all_of_them["time_s"]))
    text += (
        f"; {part} of that time is {_largest(matrix)}, at {share(own['flops'], own['bytes']):.1f} FLOP per byte{ridge}"
    )
    weights, cache = (
        _bytes_of(roles, profile, schedule, matrix) for roles in (("parameter",), ("kv_cache", "kv_made"))
    )
    if 2 * weights > own["bytes"]:
        return f"{text}, so a larger batch or weights of fewer bytes would pay"
    if 3 * cache > own["bytes"]:
        held = f"{percent(cache / own['bytes'])} of its bytes are the cache's"
        held += f" and {percent(weights / own['bytes'])} the weights'" if weights else ""
        return f"{text}; {held}, so a cache of fewer bytes would pay"
    return f"{text} and most bytes activations, so fewer bytes per element would pay"


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
    return f"; {percent(part)} of the step's bytes are read from L2, which more DRAM bandwidth does not speed up"


def _bytes_of(roles: tuple[str, ...], profile: Profile, schedule: Schedule, kernels: Sequence[Estimate]) -> int:
    """Bytes of storages with one of the roles that the kernels read, each once per kernel."""
    graph = profile.graphs[schedule.graph]
    read = (dict.fromkeys(v for i in kernel.op_ids for v in graph.ops[i].inputs) for kernel in kernels)
    values = (graph.values[v] for ids in read for v in ids)
    return sum(value.spec.nbytes for value in values if graph.storages[value.storage].role in roles)


def _compute(profile: Profile, schedule: Schedule, kernels: Sequence[Estimate]) -> str:
    totals = schedule.totals
    again = f", HFU {percent(totals.hfu)}," if totals.hfu > totals.mfu else ""
    used = f"MFU {percent(totals.mfu)}{again} of {mfu_base(profile, schedule)}"
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
    return "that wait for instructions, dependent steps or loads"


def _overhead(profile: Profile, schedule: Schedule, kernels: Sequence[Estimate]) -> str:
    """Kernels at their minimum time, and kernels that the CPU issues late: CUDA graphs help the latter alone."""
    spent = sums(kernels, ("launches", "wait_s", "overhead_s", "time_s"))
    least_s, work_s = spent["overhead_s"] - spent["wait_s"], spent["time_s"] - spent["overhead_s"]
    waits = f", {duration(spent['wait_s'])} waiting for the CPU" if spent["wait_s"] > 0 else ""
    return (
        f"that do little: {duration(least_s)} of it is their minimum kernel time"
        f" ({counted(spent['launches'], 'launch')} at {duration(launch_floor_s(schedule.gpu))}, the shortest kernel,"
        f" launch included){waits}, {duration(work_s)} their work; a larger batch gives each kernel more to do"
    )


#: wall -> which kernels those are, and what would help beside faster hardware
_DETAILS: Mapping[str, Callable[[Profile, Schedule, Sequence[Any]], str]] = {
    "bandwidth": _bandwidth, "compute": _compute, "latency": _latency, "overhead": _overhead, LINK: _link,
}  # fmt: skip
