"""What a test expects of a profile: limits of its quantities, and the wall that limits it.

An exceeded limit is reported with its largest contributors: ops, modules and lines of the user's code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memwall.analysis.limits import Limit, parse_limit
from memwall.analysis.numbers import apart
from memwall.analysis.quantities import ALIASES, LIMITS, Quantity
from memwall.analysis.table import group_by
from memwall.core.errors import UsageError, unknown
from memwall.core.units import percent, size
from memwall.frontend.targets import Workload, resolve
from memwall.frontend.targets.sizes import SIZES
from memwall.gate.evaluate import kernels_in
from memwall.perfmodel.roofline import Estimate
from memwall.pipeline import profile as make_profile
from memwall.record.kernels import WALLS, collapse, kernel_module, peak_place, short_name
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule

#: rows that a failure lists
LARGEST = 5
#: what limits of quantities may depend on that a test's profile has not
_APART = ("machine", "server")


# -- limits ------------------------------------------------------------------------------------------------------------


def read_keywords(given: Mapping[str, Any]) -> tuple[dict[str, Limit], dict[str, Any]]:
    """Limits by what was written, and keywords of :func:`memwall.profile`; of two limits of a quantity the last counts.
    Raises ``UsageError``: no such keyword, or its value is no absolute limit of that quantity."""
    parameters = inspect.signature(make_profile).parameters.values()
    known = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    options = {key: value for key, value in given.items() if key in known}
    wanted = {key: value for key, value in given.items() if key not in known}
    limits = {f"{key}={value!r}": _limit(key, value, known) for key, value in wanted.items()}
    closest = {limit.quantity.name: written for written, limit in limits.items()}  # max_time is max_time_s too
    return {written: limits[written] for written in closest.values()}, options


def _limit(keyword: str, value: Any, options: Iterable[str]) -> Limit:
    side, _, name = keyword.partition("_")
    quantity = LIMITS.get(ALIASES.get(name, name))
    if side not in ("max", "min") or quantity is None or quantity.per in _APART:
        known = [f"{_side(q)}_{q.name}" for q in LIMITS.values() if q.per not in _APART]
        raise unknown("keyword", keyword, [*known, *sorted(options)], 0.5)
    if side != _side(quantity):
        better = "lower" if quantity.lower else "higher"
        raise UsageError(f"{keyword}: {better} is better; write {_side(quantity)}_{quantity.name}")
    limit = parse_limit(quantity, value)
    if limit.relative:
        raise UsageError(f"{keyword}={value!r} is a change, and a marker has no baseline; write an absolute limit")
    return limit


def _side(quantity: Quantity) -> str:
    return "max" if quantity.lower else "min"


# -- checks ------------------------------------------------------------------------------------------------------------


def workload_of(target: Any, inputs: Any, options: Mapping[str, Any]) -> Workload:
    """The workload that :func:`memwall.profile` makes of the same arguments."""
    if isinstance(target, (str, Path)):
        sizes = {name: options[name] for name in (*SIZES, "input_specs", "mode") if name in options}
        target = resolve(str(target), **sizes)
    elif not isinstance(target, Workload):
        target = Workload(target, inputs)
    return replace(target, loss=options["loss"]) if options.get("loss") else target


def exceeded(profile: Profile, limits: Mapping[str, Limit]) -> Iterator[str]:
    """Each limit that does not hold, with the largest contributors to the quantity."""
    if limits and not profile.simulations:
        yield f"{profile.workload.name} was simulated on no GPU"
    for schedule in profile.simulations:
        for written, limit in limits.items():
            quantity, where = limit.quantity, _where(profile, schedule)
            value = quantity.read("profile", profile, schedule)
            if value is None:
                yield f"{quantity.name} of {where} is not known; want {written}"
            elif not limit.holds(value):
                found, allowed = apart([value, limit.allowed(None)], quantity.unit)
                bound = "at most" if quantity.lower else "at least"
                yield f"{quantity.name} of {where}: {found}, want {bound} {allowed} ({written})"
                yield from _largest(profile, schedule, quantity)


def not_bound(profile: Profile, wall: str, module: str, share: float) -> str:
    """Why a profile is not limited by a wall on each of its GPUs under each of its policies; empty if it is. Raises
    ``UsageError``: there is no such wall, or no such share."""
    __tracebackhide__ = True
    if wall not in WALLS:
        raise unknown("wall", wall, WALLS, 0.5)
    if not 0 < share <= 1:
        raise UsageError(f"share is {share!r}; want a fraction above 0, at most 1")
    if not profile.simulations:
        return f"{profile.workload.name} was simulated on no GPU"
    failed = (_not_bound(profile, schedule, wall, module, share) for schedule in profile.simulations)
    return "\n".join(filter(None, failed))


def _not_bound(profile: Profile, schedule: Schedule, wall: str, pattern: str, share: float) -> str:
    """Why a schedule is not limited by a wall; empty if it is."""
    chosen, where = kernels_in(profile, schedule, pattern), _where(profile, schedule)
    if not chosen:
        modules = (kernel_module(profile, schedule, kernel) for kernel in schedule.kernels)
        names = list(dict.fromkeys(collapse(module) for module in modules if module))
        some = f"there is {', '.join(names[:LARGEST])}{', ...' * (len(names) > LARGEST)}"
        return f"no kernel of {where} is in {pattern}; {some if names else 'it has no modules'}"
    by_wall = group_by(chosen, (kernel.limited_by for kernel in chosen))
    times = {name: sum(kernel.time_s for kernel in kernels) for name, kernels in by_wall.items()}
    total_s = sum(times.values())
    if times.get(wall, 0.0) >= share * total_s:
        return ""
    part = "" if pattern == "*" else f" of {pattern}"
    shares = ", ".join(f"{name} {percent(time_s / total_s)}" for name, time_s in sorted(times.items()))
    others = [kernel for kernel in chosen if kernel.limited_by != wall]
    rows = _rows(profile, schedule, others, lambda kernel: kernel.time_s, "s")
    return "\n".join([f"{where}: want {percent(share)} of the time{part} {wall}-bound; it is {shares}", *rows])


# -- what a failure says -----------------------------------------------------------------------------------------------


def _where(profile: Profile, schedule: Schedule) -> str:
    return f"{profile.workload.name} on {schedule.gpu.name}, {schedule.policy}"


def _largest(profile: Profile, schedule: Schedule, quantity: Quantity) -> Iterator[str]:
    """The largest contributors to a quantity; if no kernel has a part of it, the heaviest or the slowest."""
    lines: list[str] = []
    if quantity.name == "peak_memory":
        parts = sorted(schedule.memory.by_kind.items(), key=lambda part: -part[1])
        lines = [f"{size(count)}  {name.replace('_', ' ')}" for name, count in parts if count]
        lines += [f"peak {place}" for place in (peak_place(profile, schedule),) if place]
    elif quantity.name == "graph_breaks":
        capture = profile.traced.dynamo
        breaks = sorted(capture.breaks, key=lambda row: -row.count) if capture else []
        lines = [f"x{row.count}  {row.file}:{row.line}, {row.reason}: {row.source_line}" for row in breaks]
    elif quantity.name == "coverage":
        lines = [f"no formula: {name}" for name in profile.coverage.unmodeled]
    elif quantity.adds:
        yield from _rows(profile, schedule, schedule.kernels, quantity.of, quantity.unit)
    elif quantity.unit == "B":
        yield from _rows(profile, schedule, schedule.kernels, lambda kernel: kernel.write_bytes, "B")
    else:
        yield from _rows(profile, schedule, schedule.kernels, lambda kernel: kernel.time_s, "s")
    yield from (f"    {line}" for line in lines[:LARGEST])


def _rows(
    profile: Profile, schedule: Schedule, kernels: Sequence[Estimate], weight: Callable[[Estimate], float], unit: str
) -> Iterator[str]:
    """Kernels by place, equal places of repeated blocks as one, the heaviest first."""
    ops = profile.graphs[schedule.graph].ops
    places = [
        (
            collapse(kernel_module(profile, schedule, kernel)),
            short_name(kernel.name),
            next((ops[i].source for i in kernel.op_ids if ops[i].source), ""),
            kernel.limited_by,
        )
        for kernel in kernels
    ]
    sums = [(sum(map(weight, rows)), place, len(rows)) for place, rows in group_by(kernels, places).items()]
    total = sum(amount for amount, _, _ in sums)
    for amount, (module, name, source, wall), count in sorted(sums, key=lambda row: (-row[0], row[1]))[:LARGEST]:
        share = f" ({percent(amount / total)})" if total else ""
        where = "".join(f", {part}" for part in (module, source) if part)
        yield f"    {apart([amount], unit)[0]}{share}  {name}{f' x{count}' * (count > 1)}, {wall}-bound{where}"
