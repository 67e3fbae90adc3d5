"""What ``memwall fuse`` finds: policies side by side, what each fuses and refuses, what breaks and what-ifs cost.

Everything here needs the graph alone, but for the ``inductor`` policy and the lowering funnel, which need torch, and
the capture, which needs the model and is made by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from memwall._version import __version__
from memwall.agreement import Agreement, agreement
from memwall.alternatives import Family
from memwall.breaks import BreakPrices, is_broken, planned, price_breaks
from memwall.capture import Break, Capture, Guard, PartialGraph, Recompile
from memwall.errors import MemwallError, UsageError
from memwall.fusion import Plan, plan_graph
from memwall.hardware import Gpu
from memwall.profile import Profile
from memwall.savings import PolicySet, group_savings, missed_fusions, policy_sets
from memwall.schedules import graph_for
from memwall.simulate import Schedule, simulate
from memwall.whatif import Change, Outcome, what_if

if TYPE_CHECKING:
    from memwall.funnel import Funnel
    from memwall.fusion.inductor import Lowered

SCHEMA = "memwall.fusion/1"

#: What is planned when no policy is named. ``inductor`` where there is a torch and a Triton that memwall knows.
DEFAULT_POLICIES = ("eager", "inductor", "memwall", "ideal")

#: Where a profile's ``capture`` holds what Dynamo made of the model.
CAPTURE_KEY = "dynamo"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Refused:
    """All refusals by one rule; what each alone would save, summed. Savings overlap where two share a tensor.

    ``reason`` is that of the refusal that would save most.
    """

    rule: str
    count: int
    saved_bytes: int
    saved_s: float
    reason: str


@dataclass(frozen=True)
class Fused:
    """A profile whose simulations are those of every policy on every GPU, and all that fusion has to say about it.

    ``plans`` are by (GPU, policy); ``prices`` of the breaks, ``lowered`` and ``agreements`` (ours with Inductor)
    by GPU. ``notes`` say what is missing and why.
    """

    profile: Profile
    plans: Mapping[tuple[str, str], Plan]
    capture: Capture | None = None
    prices: Mapping[str, BreakPrices] = field(default_factory=dict)
    lowered: Mapping[str, Lowered] = field(default_factory=dict)
    agreements: Mapping[str, Agreement] = field(default_factory=dict)
    alternatives: tuple[Family, ...] = ()
    funnel: Funnel | None = None
    what_ifs: tuple[Outcome, ...] = ()
    notes: tuple[str, ...] = ()

    def plan(self, schedule: Schedule) -> Plan:
        """The plan of a simulation."""
        return self.plans[schedule.gpu.name, schedule.policy]

    def simulated(self, policies: Sequence[str]) -> list[tuple[Plan, Schedule]]:
        """The plans of some policies with their simulations."""
        return [(self.plan(s), s) for s in self.profile.simulations if s.policy in policies]

    def to_dict(self) -> dict[str, Any]:
        """``memwall.fusion/1``: plain JSON types, base SI units."""
        return {
            "schema": SCHEMA,
            "memwall_version": __version__,
            "workload": {"name": self.profile.workload.name, "mode": self.profile.workload.mode},
            "gpus": [_gpu_dict(self, policies) for policies in policy_sets(self.profile)],
            "agreement": {name: asdict(found) for name, found in self.agreements.items()},
            "alternatives": [asdict(family) for family in self.alternatives],
            "capture": self.capture.to_dict() if self.capture else None,
            "funnel": self.funnel.to_dict() if self.funnel else None,
            "what_if": [
                {"what_if": list(o.specs), "gpu": o.gpu, "policy": o.policy, "before": asdict(o.before),
                 "after": asdict(o.after), "notes": list(o.notes)}
                for o in self.what_ifs
            ],
            "notes": list(self.notes),
        }  # fmt: skip


def refused_by_rule(plan: Plan) -> tuple[Refused, ...]:
    """The refusals of a plan by rule, what would save most first."""
    sums: dict[str, Refused] = {}
    for refusal in sorted(plan.refusals, key=lambda r: -r.count * r.saved_s):
        old = sums.get(refusal.rule, Refused(refusal.rule, 0, 0, 0.0, refusal.reason))
        sums[refusal.rule] = replace(
            old,
            count=old.count + refusal.count,
            saved_bytes=old.saved_bytes + refusal.count * refusal.saved_bytes,
            saved_s=old.saved_s + refusal.count * refusal.saved_s,
        )
    return tuple(sorted(sums.values(), key=lambda row: (-row.saved_s, row.rule)))


def fuse(
    profile: Profile,
    gpus: Sequence[Gpu],
    policies: Sequence[str] = (),
    *,
    changes: Sequence[Change] = (),
    capture: Capture | None = None,
    source: bool = False,
    funnel: bool = True,
    say: Say = lambda message: None,
) -> Fused:
    """Plan and simulate every policy on every GPU.

    Args:
        policies: None named means ``DEFAULT_POLICIES``; ``inductor`` is then left out, with a note, where it cannot be.
        changes: what-ifs.
        capture: what Dynamo made of the model: fusion does not cross its breaks, and they are priced.
        source: keep the source of Inductor's kernels.
        funnel: count ops at each level of lowering.
        say: called with one-line messages.

    Raises:
        UsageError: no such policy, or a what-if fits neither GPU nor model.
        MissingError: ``inductor`` was named and cannot be.
    """
    maker = _Maker(profile, capture, source, say)
    for gpu in gpus:
        for policy in policies or DEFAULT_POLICIES:
            maker.add(gpu, policy, optional=not policies)
    made = profile.with_simulations(tuple(maker.schedules))
    prices = {} if capture is None else {gpu.name: maker.price(gpu) for gpu in gpus if maker.is_broken(gpu)}
    named = list(dict.fromkeys(schedule.policy for schedule in maker.schedules))
    apart = maker.regions(0)
    apart = None if apart is None else planned(profile.graph, apart)
    outcomes = what_if(made, changes, gpus, named, maker.again, apart) if changes else []
    found = Fused(
        made, maker.plans, capture, prices, maker.lowered, maker.agreements(gpus),
        funnel=None, what_ifs=tuple(outcomes), notes=tuple(maker.notes),
    )  # fmt: skip
    return _with_funnel(found, say) if funnel else found


def capture_of(record: Mapping[str, Any]) -> Capture | None:
    """The capture that a saved profile holds, if it holds one.

    Raises:
        UsageError: it is damaged.
    """
    saved = record.get(CAPTURE_KEY)
    if saved is None:
        return None
    rows = {"graphs": PartialGraph, "breaks": Break, "guards": Guard, "recompiles": Recompile}
    try:
        values = {f.name: saved[f.name] for f in fields(Capture)}
        for name, row in rows.items():
            values[name] = tuple(
                row(**{key: tuple(v) if isinstance(v, list) else v for key, v in item.items()})
                for item in values[name]
            )
        values["regions"] = tuple([int(region) for region, count in saved["regions"] for _ in range(count)])
        values["notes"] = tuple(values["notes"])
        return Capture(**values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"the profile's capture is damaged ({type(error).__name__}: {error})") from None


class _Maker:
    """Makes plans and simulates them."""

    def __init__(self, profile: Profile, capture: Capture | None, source: bool, say: Say) -> None:
        self.profile, self.capture, self.source, self.say = profile, capture, source, say
        self.plans: dict[tuple[str, str], Plan] = {}
        self.schedules: list[Schedule] = []
        self.lowered: dict[str, Lowered] = {}
        self.notes: dict[str, None] = {}

    def add(self, gpu: Gpu, policy: str, *, optional: bool) -> None:
        number = graph_for(self.profile, gpu)
        graph = self.profile.graphs[number]
        self.say(f"simulating {len(graph.ops):,} ops under {policy} on {gpu.name}")
        try:
            plan = self.again(policy, number, gpu)
        except (MemwallError, ImportError) as error:
            if policy != "inductor" or not optional:
                raise
            self.notes.setdefault(f"no inductor policy on {gpu.name}: {error}")
            return
        self.schedules.append(simulate(graph, plan, gpu, graph_index=number))

    def again(self, policy: str, number: int, gpu: Gpu) -> Plan:
        """The plan of a policy, made once."""
        key = gpu.name, policy
        if key not in self.plans:
            self.plans[key] = self._plan(policy, number, gpu)
        return self.plans[key]

    def _plan(self, policy: str, number: int, gpu: Gpu) -> Plan:
        graph, costs = self.profile.graphs[number], self.profile.costs[number]
        regions = self.regions(number)
        if policy == "inductor":
            from memwall.fusion.compiled import kernels_of, plan_of

            lowered = kernels_of(graph, gpu, regions, source=self.source)
            self.lowered[gpu.name] = lowered
            return plan_of(graph, costs, gpu, lowered.kernels)
        return plan_graph(policy, graph, costs, gpu, None if regions is None else planned(graph, regions))

    def agreements(self, gpus: Sequence[Gpu]) -> dict[str, Agreement]:
        """Our planner beside Inductor, on the GPUs on which both have planned."""
        both = [
            gpu for gpu in gpus if all((gpu.name, name) in self.plans for name in ("memwall", "inductor"))
        ]
        return {
            gpu.name: agreement(
                self.profile.graphs[graph_for(self.profile, gpu)],
                self.plans[gpu.name, "memwall"], self.plans[gpu.name, "inductor"], gpu,
            )
            for gpu in both
        }  # fmt: skip

    def regions(self, number: int) -> Sequence[int] | None:
        """The partial graphs of the ops; None where there is one, or where another graph was captured."""
        if self.capture is None or self.capture.failure is not None:
            return None
        graph = self.profile.graphs[number]
        regions = self.capture.regions
        known = number == 0 and len(regions) == len(graph.ops)
        return regions if known and is_broken(graph, regions) else None

    def is_broken(self, gpu: Gpu) -> bool:
        return self.regions(graph_for(self.profile, gpu)) is not None

    def price(self, gpu: Gpu) -> BreakPrices:
        number = graph_for(self.profile, gpu)
        assert self.capture is not None
        return price_breaks(
            self.profile.graphs[number], self.profile.costs[number], gpu, self.capture.regions,
            [item.cuts for item in self.capture.breaks],
        )  # fmt: skip


def _with_funnel(found: Fused, say: Say) -> Fused:
    """The funnel of the first graph, with Inductor's levels where it was lowered."""
    try:
        from memwall.funnel import funnel

        say("tracing the levels of lowering")
        lowered = next(iter(found.lowered.values()), None)
        levels: dict[str, Any] = {}
        if lowered is not None:
            launches: dict[str, int] = {}
            for kernel in lowered.kernels:
                launches[kernel.name] = launches.get(kernel.name, 0) + kernel.launches
            levels = {"inductor_ops": lowered.fx_ops, "kernels": launches, "fallbacks": lowered.fallbacks}
        return replace(found, funnel=funnel(found.profile.graph, **levels))
    except ImportError as error:
        return replace(found, notes=(*found.notes, f"no lowering funnel: {error}"))


def _gpu_dict(found: Fused, policies: PolicySet) -> dict[str, Any]:
    prices = found.prices.get(policies.gpu.name)
    return {
        "gpu": policies.gpu.name,
        "policies": [asdict(row) for row in policies.rows()],
        "groups": {s.policy: [asdict(row) for row in group_savings(policies, s)] for s in policies.schedules},
        "refused": {
            s.policy: [asdict(row) for row in refused_by_rule(found.plan(s))] for s in policies.schedules
        },
        "missed": {
            s.policy: [asdict(row) for row in missed_fusions(found.profile, s, found.plan(s))]
            for s in policies.schedules
        },
        "breaks": None if prices is None else asdict(prices),
    }
