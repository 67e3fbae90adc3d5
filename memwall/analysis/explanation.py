"""Why a kernel takes its time: its launches in words, their context, and how well the model is calibrated for them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from memwall.analysis.table import group_by
from memwall.core.errors import UsageError, nearest
from memwall.core.units import counted, duration, few, percent
from memwall.fusion import Plan
from memwall.hardware.constants import CONSTANTS
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops.product_launches import Gemm
from memwall.perfmodel.families import CALIBRATED, Terms, as_run, calibrated, explain
from memwall.perfmodel.roofline import (
    OVERLAPPING,
    TEMPLATE_REACHED,
    TERMS,
    Estimate,
    launch_floor_s,
    launches_of,
    predict_cost,
    template_s,
)
from memwall.record.kernels import kernel_module, short_name
from memwall.record.profile import Profile
from memwall.simulate.memory import reuse_distances
from memwall.simulate.plan_context import PlanContext
from memwall.simulate.schedule import Schedule, as_run_again, in_memory


@dataclass(frozen=True, slots=True)
class Explanation:
    """One kernel, or ``count`` equal ones: a sentence for each of its launches, and one about the rest."""

    kernel: Estimate
    module: str
    count: int
    launches: tuple[str, ...]
    around: str
    calibrated: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """The seconds of a schedule that rest on constants known in one way (:data:`CALIBRATED`, or :data:`HOST`), from
    which GPUs they come and of which families of kernels they are, such as ``convolution.tf32``."""

    calibrated: str
    time_s: float
    gpus: tuple[str, ...]
    families: tuple[str, ...]


#: how the seconds are known in which the GPU waits for a host whose time is assumed
HOST = "host time assumed"
#: families that a text names for one way
MAX_FAMILIES = 4


def provenance(profile: Profile, schedule: Schedule) -> tuple[Provenance, ...]:
    """How the constants behind the modeled time are known, the best first; none on a CPU."""
    if schedule.gpu.cpu is not None:
        return ()
    plan, costs = profile.plan(schedule), profile.costs[schedule.graph]
    if plan is not None:
        cost_of = [group.cost for group in plan.groups]
    else:  # the cost of its most expensive op
        cost_of = [max((costs[i] for i in k.op_ids), key=lambda cost: cost.total_flops) for k in schedule.kernels]
    times_s, assumed = dict.fromkeys((*CALIBRATED, HOST), 0.0), schedule.gpu.host.is_assumed
    gpus: dict[str, dict[str, None]] = {}
    families: dict[str, dict[str, None]] = {HOST: {}}
    known: dict[int, str] = {}  # repeated kernels share their cost
    for cost, kernel in zip(cost_of, schedule.timings, strict=True):
        if not cost.launches:  # ops that a server does not run
            continue
        if id(cost) not in known:
            known[id(cost)], taken, weakest = calibration_of(cost, schedule.gpu)
            gpus.setdefault(known[id(cost)], {}).update(dict.fromkeys(taken))
            families.setdefault(known[id(cost)], {}).update(dict.fromkeys(weakest))
        status = known[id(cost)]
        waited_s = kernel.wait_s if assumed else 0.0
        times_s[status] += kernel.time_s - waited_s
        times_s[HOST] += waited_s
    if times_s[HOST]:
        gpus[HOST] = {}
    return tuple(
        Provenance(status, times_s[status], tuple(gpus[status]), tuple(sorted(families[status])))
        for status in times_s
        if status in gpus
    )


def calibration_text(profile: Profile, schedule: Schedule) -> str:
    """``yes for 93.1 % of the time, by architecture (a100-40gb-pcie) for 6.9 % (gemm.float16)``; empty on a CPU."""
    rows = provenance(profile, schedule)
    total = sum(row.time_s for row in rows)
    if not total:
        return ""
    sources = [row.calibrated + (f" ({', '.join(row.gpus)})" if row.gpus else "") for row in rows]
    if len(rows) == 1:
        return sources[0]
    parts = [f"{source} for {percent(row.time_s / total)}" for source, row in zip(sources, rows, strict=True)]
    named = [
        f" ({few(row.families, MAX_FAMILIES)})" if row.families and row.calibrated != CALIBRATED[0] else ""
        for row in rows
    ]
    first, *others = map("".join, zip(parts, (f" of the time{named[0]}", *named[1:]), strict=True))
    return ", ".join((first, *others))


def calibration_of(cost: Cost, gpu: Gpu) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The worst calibration of a cost's launches, the GPUs that the constants come from, and the launches' families
    that are calibrated so."""
    works = (as_run(work, gpu) for work in cost.launches)
    return _calibration_of(tuple((work.FAMILY, work.shown_by) for work in works), gpu)


@lru_cache(maxsize=4096)
def _calibration_of(tables: tuple[tuple[str, str], ...], gpu: Gpu) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    known = [calibrated(CONSTANTS[family], gpu, variant) for family, variant in tables]
    origins = (gpu.fitted_on.get(f"{family}.{variant}") for family, variant in tables)
    taken = dict.fromkeys(origin for origin in origins if origin and origin != gpu.name)
    worst = max(known, key=CALIBRATED.index)
    weakest = [
        f"{family}.{variant}".rstrip(".")
        for status, (family, variant) in zip(known, tables, strict=True)
        if status == worst
    ]
    return worst, tuple(taken), tuple(weakest)


def explanations(profile: Profile, schedule: Schedule, wanted: str) -> tuple[Explanation, ...]:
    """The kernels of a schedule that ``wanted`` names: a number, a name or part of one, or a pattern of names or of
    modules with ``*``. Equal ones (name, FLOPs, bytes and times) are listed once. Raises UsageError: no kernel has that
    name, or the plan is not in the record; names the nearest."""
    if schedule.kernels and all(kernel.low_s == kernel.high_s for kernel in schedule.kernels):
        raise UsageError(
            f"the times on {schedule.gpu.name} are an older memwall's: simulate again with --gpu {schedule.gpu.name}"
        )
    if profile.plan(schedule) is None:
        raise UsageError(
            f"the record does not hold what {schedule.policy} launched on {schedule.gpu.name}: profile the model again"
        )
    kernels = _named(profile, schedule, wanted)
    keys = [(k.name, k.flops, k.bytes, k.compute_s, k.memory_s, k.latency_s, k.overhead_s) for k in kernels]
    return explained(profile, schedule, list(group_by(kernels, keys).values()))


def explained(profile: Profile, schedule: Schedule, groups: Iterable[Sequence[Estimate]]) -> tuple[Explanation, ...]:
    """An explanation for each group of equal kernels; none where the plan is not known."""
    plan, graph = profile.plan(schedule), profile.graphs[schedule.graph]
    if plan is None:
        return ()
    reuse = reuse_distances(graph, plan)
    ran = replace(schedule, gpu=as_run_again(schedule.gpu, PlanContext.of(graph, plan), schedule.launch))
    return tuple(_explanation(profile, ran, plan, reuse[same[0].id], same[0], len(same)) for same in groups)


def _named(profile: Profile, schedule: Schedule, wanted: str) -> list[Estimate]:
    kernels = schedule.kernels
    if not wanted.strip():
        raise UsageError("no kernel is named; give a number, a name or a part of one")
    if not kernels:
        raise UsageError(f"no kernel runs on {schedule.gpu.name}")
    if wanted.isdecimal():
        if len(wanted) > 9 or int(wanted) >= len(kernels):
            raise UsageError(f"no kernel {wanted[:20]} on {schedule.gpu.name}: there are 0 to {len(kernels) - 1}")
        return [kernels[int(wanted)]]
    pattern = wanted if "*" in wanted else f"*{wanted}*"
    chosen = [k for k in kernels if short_name(k.name) == wanted or k.name == wanted] or [
        k
        for k in kernels
        if fnmatch.fnmatchcase(k.name, pattern) or fnmatch.fnmatchcase(kernel_module(profile, schedule, k), pattern)
    ]
    if not chosen:
        names = dict.fromkeys(short_name(k.name) for k in kernels)
        near = nearest(wanted, names, 3, 0.5) or list(names)[:3]
        raise UsageError(f"no kernel named {wanted[:60]!r} on {schedule.gpu.name}; there are {', '.join(near)}, ...")
    return chosen


def _explanation(
    profile: Profile, schedule: Schedule, plan: Plan, reuse: Iterable[tuple[int, int]], kernel: Estimate, count: int
) -> Explanation:
    cost, gpu = plan.groups[kernel.id].cost, schedule.gpu
    module = kernel_module(profile, schedule, kernel)
    if gpu.cpu is not None:
        return Explanation(kernel, module, count, (), f"{_around(kernel, gpu, cost.latencies)}.", "")
    resident = sum(nbytes for nbytes, distance in reuse if distance <= gpu.l2_bytes)
    launches = launches_of(in_memory(profile.graphs[schedule.graph], plan.groups[kernel.id], gpu), gpu, resident)
    sentences = [*dict.fromkeys(explain(work, gpu.running(), terms) for work, terms in launches)]
    sentences += [*_padded(kernel, cost, gpu), *_choice(kernel, cost, gpu)]
    around = f"{_around(kernel, gpu, cost.latencies)}{_not_overlapped(kernel, [terms for _, terms in launches])}."
    return Explanation(kernel, module, count, tuple(sentences), around, calibration_of(cost, gpu)[0])


def choices_text(profile: Profile, schedule: Schedule) -> str:
    """How many kernels only timing chooses, and the seconds that they take in all; empty where none is open."""
    plan = profile.plan(schedule) if schedule.policy == "max-autotune" else None
    open_ = [k for k, group in zip(schedule.kernels, plan.groups if plan else (), strict=False) if group.cost.template]
    if not open_:
        return ""
    low_s, high_s = sum(k.low_s for k in open_), sum(k.high_s for k in open_)
    return (
        f"{counted(len(open_), 'kernel')} of {duration(low_s)} to {duration(high_s)}: timing on the GPU chooses between"
        " the library's kernels, whose time is stated, and Triton templates"
    )


def _padded(kernel: Estimate, cost: Cost, gpu: Gpu) -> Iterator[str]:
    """What a compiler's padding of a product is for."""
    for before in (launch.padded_from for launch in cost.launches if isinstance(launch, Gemm)):
        if before is not None:
            plain_s = predict_cost(replace(cost, launches=(before,)), gpu).time_s
            yield (
                f"Inductor pads it from {before.m}x{before.n}x{before.k}, so that the rows of its matrices begin at"
                f" multiples of 16 bytes: as it was it would take {duration(plain_s)}, with its padding"
                f" {duration(kernel.time_s - kernel.wait_s)}. On the GPU Inductor times both; here the model decides."
            )


def _choice(kernel: Estimate, cost: Cost, gpu: Gpu) -> Iterator[str]:
    """What timing on the GPU decides."""
    if cost.template is None:
        return
    least_s, own_s = duration(template_s(cost.template, gpu)), duration(kernel.time_s - kernel.wait_s)
    if cost.template.launches:
        yield (
            f"Which kernel runs is open: max-autotune times the library's ({own_s} as modeled) and Triton templates on"
            f" the GPU, and keeps the quickest; one that reaches {percent(TEMPLATE_REACHED, 0)} of the roofline takes"
            f" {least_s}."
        )
    else:
        yield f"A template of the matmul before it may do this too, and then adds {least_s} to it instead of {own_s}."


#: the terms that overlap, in words
_OVERLAPPING = {"bandwidth": "traffic", "compute": "arithmetic", "latency": "latency"}


def _not_overlapped(kernel: Estimate, launches: Sequence[Terms]) -> str:
    """What the largest of the terms that overlap holds beside its own seconds; empty where that is nothing."""
    wall = max(OVERLAPPING, key=lambda wall: getattr(kernel, TERMS[wall]))
    spent_s, own_s = getattr(kernel, TERMS[wall]), sum(getattr(terms, TERMS[wall]) for terms in launches)
    if duration(own_s) == duration(spent_s):
        return ""
    if max(sum(terms.body_s for terms in launches), kernel.link_s) < kernel.bound_s:
        modeled_s = sum(terms.time_s for terms in launches)
        return f"; the model of its launches says {duration(modeled_s)}, and the bound is taken in its place"
    rest = f"{duration(spent_s - own_s)} of what does not overlap with it"
    return f"; the {duration(spent_s)} of {_OVERLAPPING[wall]} are {duration(own_s)} of its own and {rest}"


def _around(kernel: Estimate, gpu: Gpu, latencies: int) -> str:
    """The terms of the time, which of them limits it, and the interval. ``latencies``: its launches that
    follow one another."""
    launched = f"{counted(latencies, 'launch')} at {duration(launch_floor_s(gpu))}"
    if kernel.launches > latencies:
        launched += (
            f" (launches of the other {counted(kernel.launches - latencies, 'kernel')} are within the terms before)"
        )
    waited = f" and {duration(kernel.wait_s)} of waiting for the CPU" if kernel.wait_s > 1e-9 else ""
    linked = f"; {duration(kernel.link_s)} on the link" if kernel.link_s else ""
    return (
        f"{duration(kernel.compute_s)} of arithmetic, {duration(kernel.memory_s)} of traffic and"
        f" {duration(kernel.latency_s)} of latency overlap; {duration(kernel.overhead_s)} of overhead,"
        f" {launched}{waited}{linked}; in all {duration(kernel.time_s)}, {duration(kernel.low_s)} to"
        f" {duration(kernel.high_s)} is the 80 % interval; limited by {kernel.limited_by}; no run is faster than"
        f" {duration(kernel.bound_s)}"
    )


def kernels_named(profile: Profile, wanted: Sequence[str]) -> tuple[tuple[Schedule, Explanation], ...]:
    """The explanations of all names on all simulations, in their order."""
    return tuple((s, e) for s in profile.simulations for name in wanted for e in explanations(profile, s, name))
