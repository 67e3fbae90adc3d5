"""Profiles → checks: each limit compared with its figure, with what moved it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import accumulate
from typing import Any

from memwall.analysis.limits import Limit
from memwall.analysis.matching import match_ops
from memwall.analysis.quantities import LIMITS, Quantity
from memwall.analysis.whole_profile import unmodeled
from memwall.core.errors import UsageError
from memwall.core.units import size
from memwall.gate.config import Limits
from memwall.gate.diff import Cause, DiffSide, explain, largest, new_breaks, top
from memwall.gate.memory_formats import given_up, layouts
from memwall.gate.result import Check, Problem
from memwall.hardware.lookup import load_gpu
from memwall.perfmodel.roofline import Estimate
from memwall.record.job import figures_of
from memwall.record.kernels import kernel_module
from memwall.record.profile import Profile
from memwall.record.schedules import CHEAP
from memwall.simulate.memory import KINDS
from memwall.simulate.schedule import Schedule
from memwall.wings import part

#: causes that a check keeps
MOST_CAUSES = 8


@dataclass(frozen=True)
class Subject:
    """One workload to judge. ``compared``: a baseline was asked for; ``refused``: why it must not be used;
    ``missing``: the message about a workload that is not in the base; ``new``: it may pass; ``load``: keywords of
    :func:`memwall.serve` where it is served.
    """

    name: str
    target: str
    head: Profile
    base: Profile | None
    compared: bool
    refused: str = ""
    missing: str = ""
    new: bool = False
    load: Mapping[str, Any] | None = None


@dataclass
class _GatedServer:
    """What a server does under the load of a workload, each side on each GPU once."""

    load: Mapping[str, Any] | None
    _models: dict[int, Any] = field(default_factory=dict)
    _found: dict[tuple[int, str], Any] = field(default_factory=dict)

    def under(self, side: DiffSide) -> Any:
        """The server, or why the model cannot be served."""
        if self.load is None:
            return 'it is not served; mode = "serve" says so'
        key = id(side.profile), side.schedule.gpu.name
        if key not in self._found:
            try:
                self._found[key] = self._run(side, self.load)
            except UsageError as error:
                self._found[key] = str(error)
        return self._found[key]

    def _run(self, side: DiffSide, load: Mapping[str, Any]) -> Any:
        gpu, settings = side.schedule.gpu, {**load}
        prices = {load_gpu(name).name: usd for name, usd in settings.pop("price", {}).items()}
        if gpu.name in prices:
            settings["price"] = {gpu.name: prices[gpu.name]}
        if id(side.profile) not in self._models:
            self._models[id(side.profile)] = part("serving.read_model")(
                side.profile, weights=settings.get("weights", "model")
            )
        (point,) = part("serving.serve")(self._models[id(side.profile)], gpu=gpu, **settings).points
        return point.candidate or point.refused


def check_workload(subject: Subject, limits: Mapping[tuple[str, str], Limits]) -> tuple[list[Check], list[Problem]]:
    """The checks of one workload, in the order of its simulations and limits; ``limits``: by GPU and policy."""
    checks: list[Check] = []
    problems: list[Problem] = []
    once: set[tuple[str, tuple[str, str], tuple[Limit, ...]]] = set()
    server = _GatedServer(subject.load)
    pairs: dict[tuple[int, int], dict[int, int]] = {}
    for schedule in subject.head.simulations:
        own = limits.get((schedule.gpu.name, schedule.policy), {})
        head = DiffSide(subject.head, schedule)
        base = _base_of(subject, schedule)
        causes: tuple[Cause, ...] | None = None
        for (name, module), rows in own.items():
            quantity = LIMITS[name]
            place = _place(quantity, schedule)
            if quantity.per == "machine" or (name, place, rows) in once:
                continue
            if quantity.per in ("profile", "server"):
                once.add((name, place, rows))
            values = _value(quantity, module, head, server), _value(quantity, module, base, server) if base else None
            if module and not kernels_in(head.profile, schedule, module):
                why = f"no kernel belongs to the modules {module!r}, so their limits check nothing; "
                why += "memwall profile --by module lists what there is"
                problems.append(Problem(subject.name, subject.target, "fail", why))
                continue
            for limit in rows:
                verdict, why, allowed = _verdict(subject, quantity, limit, values, head, base)
                of = subject.name, subject.target, *place, module, quantity.name
                check = Check(*of, limit.text, *values, allowed, verdict, why)
                if quantity.per == "server" and isinstance(found := server.under(head), str):
                    check = replace(check, message=f"{quantity.title}: {found}")
                if check.verdict == "fail" or (values[1] is not None and values[0] != values[1]):
                    if base is not None and causes is None:
                        key = head.schedule.graph, base.schedule.graph
                        pairs.setdefault(key, match_ops(base.graph, head.graph))
                        causes = explain(base, head, pairs[key])
                    pair = pairs.get((head.schedule.graph, base.schedule.graph), {}) if base is not None else {}
                    check = _explained(check, quantity, head, base, causes or (), pair)
                if quantity.every_rank and (other := _rank_with_most(quantity, head, values[0])):
                    check = replace(check, message=other, causes=())
                checks.append(check)
    return checks, list(dict.fromkeys(problems))


def _base_of(subject: Subject, schedule: Schedule) -> DiffSide | None:
    """The base's simulation of the same GPU and policy; None without a usable one."""
    if subject.base is None or subject.refused:
        return None
    there = [s for s in subject.base.simulations if s.gpu == schedule.gpu]
    found = [s for s in there if s.policy == schedule.policy]
    if not found and there and schedule.policy in CHEAP:  # its graph is all that the policy needs
        found = [subject.base.schedule(schedule.gpu, schedule.policy, graph=there[0].graph, launch=schedule.launch)]
    return DiffSide(subject.base, found[0]) if found else None


def _value(quantity: Quantity, module: str, side: DiffSide, server: _GatedServer) -> float | None:
    if quantity.per == "server" and "serve" in quantity.readers:
        served = server.under(side)
        return None if isinstance(served, str) else quantity.read("serve", served)
    if module:
        return sum(quantity.of(kernel) for kernel in kernels_in(side.profile, side.schedule, module))
    return quantity.read("profile", side.profile, side.schedule)


def kernels_in(profile: Profile, schedule: Schedule, pattern: str) -> list[Estimate]:
    """The kernels whose module, or a parent of it, matches a pattern; ``*`` also matches kernels in no module."""
    fits = cache(lambda path: any(fnmatchcase(around, pattern) for around in _with_outer(path)))
    return [kernel for kernel in schedule.kernels if fits(kernel_module(profile, schedule, kernel))]


def _with_outer(path: str) -> list[str]:
    """``a`` and ``a.b`` of ``a.b``."""
    return list(accumulate(path.split("."), lambda outer, name: f"{outer}.{name}"))


def _place(quantity: Quantity, schedule: Schedule) -> tuple[str, str]:
    """The GPU and the policy that a figure is of; empty where it does not depend on one."""
    gpu, policy = schedule.gpu.name, schedule.policy
    return {"profile": ("", ""), "server": (gpu, "")}.get(quantity.per, (gpu, policy))


def _verdict(
    subject: Subject,
    quantity: Quantity,
    limit: Limit,
    values: tuple[float | None, float | None],
    head: DiffSide,
    base: DiffSide | None,
) -> tuple[str, str, float | None]:
    """The verdict on a figure, next to the base's, why, and what is allowed."""
    value, before = values
    verdict, why, allowed = "pass", "", None
    if value is None and quantity.name == "graph_breaks" and not head.profile.of_torch:
        why = "no PyTorch module: TorchDynamo captures nothing of it"
    elif value is None:
        capture = head.profile.traced.dynamo if quantity.name == "graph_breaks" else None
        failed = f"TorchDynamo captures nothing: {capture.failure}" if capture and capture.failure else ""
        verdict, why = "inconclusive", failed or f"{quantity.title}: the profile does not hold them"
    elif limit.sign > 0 and before is None and base is not None and value == 0 and quantity.lower:
        why = f"no {quantity.title}, whatever the base has"
    elif limit.relative and before is None and subject.new:
        why = "a new workload: there is nothing to compare it with"
    elif limit.relative and before is None:
        verdict, why = "inconclusive", _no_baseline(subject, quantity, head.schedule, base)
    else:
        allowed = limit.allowed(before)
        verdict = "pass" if limit.holds(value, before) else "fail"
    return verdict, why, allowed


def _rank_with_most(quantity: Quantity, side: DiffSide, value: float | None) -> str:
    """Which other rank of a program has the figure, whose causes the traced one does not have; empty of its own."""
    rows = [row for row in figures_of(side.profile, side.schedule) if getattr(row, quantity.name) == value]
    return f"of rank {rows[0].rank}, which has the most" if rows else ""


def _no_baseline(subject: Subject, quantity: Quantity, schedule: Schedule, base: DiffSide | None) -> str:
    if subject.refused:
        return subject.refused
    if base is not None:
        return f"the baseline does not hold {quantity.title}; --update it"
    if subject.base is not None:
        alike = (s.gpu.host for s in subject.base.simulations if replace(s.gpu, host=schedule.gpu.host) == schedule.gpu)
        of = next((f"on the host {schedule.gpu.host.name}, but on {host.name}" for host in alike), "")
        missing = f"{schedule.policy} on a {schedule.gpu.name} {of or 'of the same numbers'}"
        return f"the baseline has no {missing}; --update it"
    if subject.compared:
        return f"there is no baseline of this workload ({subject.missing}); --allow-new lets a new workload pass"
    return "the limit is relative and there is no baseline; give --baseline or --baseline-ref"


def _explained(
    check: Check,
    quantity: Quantity,
    head: DiffSide,
    base: DiffSide | None,
    causes: Sequence[Cause],
    pairs: Mapping[int, int],
) -> Check:
    """A check with the causes of its figure; ``pairs``: head op id → base op id."""
    if quantity.name == "graph_breaks":
        before, after = (side.profile.traced.dynamo if side else None for side in (base, head))
        return replace(check, causes=new_breaks(before, after, head.profile.graph)[:MOST_CAUSES])
    if quantity.name == "coverage":
        names = ", ".join(unmodeled(head.profile)[:MOST_CAUSES])
        return replace(check, message=f"no formula models {names}" if names else "")
    if quantity.name == "nchw_bytes" and base is not None:
        both = f"{layouts(head.graph)}, in the base {layouts(base.graph)}"
        return replace(check, message=both, causes=given_up(base.graph, head.graph, pairs)[:MOST_CAUSES])
    if base is None:
        kernels = kernels_in(head.profile, head.schedule, check.module or "*")
        return replace(check, causes=largest(head, quantity.name, kernels, MOST_CAUSES))
    inside = [c for c in causes if not check.module or _inside(c, check.module)]
    if quantity.name == "peak_memory":
        was, now = base.schedule.memory, head.schedule.memory
        moved = {kind: getattr(now, kind) - getattr(was, kind) for kind in KINDS}
        parts = [
            f"{n.replace('_', ' ')} {'+' if more > 0 else '-'}{size(abs(more))}" for n, more in moved.items() if more
        ]
        check = replace(check, message=", ".join(parts))
    return replace(check, causes=top(inside, quantity.name, count=MOST_CAUSES))


def _inside(cause: Cause, module: str) -> bool:
    """Whether a cause is in the modules of a pattern; stars match the numbers of repeated blocks."""
    paths = _with_outer(cause.module)
    return cause.kind != "elsewhere" and any(fnmatchcase(path, module) or _overlap(path, module) for path in paths)


def _overlap(path: str, pattern: str) -> bool:
    """Whether ``layers.*.attn`` and ``layers.3.attn`` can be the same module."""
    one, other = path.split("."), pattern.split(".")
    return len(one) == len(other) and all(a == "*" or fnmatchcase(a, b) for a, b in zip(one, other, strict=True))
