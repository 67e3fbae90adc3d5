"""What ``memwall fuse`` finds: policies side by side, what each fuses and refuses, what breaks and what-ifs cost.

Everything here needs only the graph, except the ``inductor`` policy and the op counts by IR level, which need torch,
and the capture, which needs the model and comes with the profile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from memwall.analysis.savings import Missed, PolicyRow, PolicySet, Saving, group_savings, missed_fusions, policy_sets
from memwall.analysis.table import summed
from memwall.analysis.whatif import Change, Outcome, parse_change, what_if
from memwall.core.errors import MemwallError, UsageError
from memwall.core.graph import Graph
from memwall.core.progress import heard, tell
from memwall.core.question import completed, signature_of
from memwall.core.structure import finite, write
from memwall.core.units import few
from memwall.core.version import __version__
from memwall.core.views import ShownResult
from memwall.fusing.breaks import BreakPrices, Cut, is_broken, planned, price_breaks
from memwall.fusing.plan_diff import PlanDiff, plan_diff
from memwall.fusing.rewrites import Family
from memwall.fusion import COMPILED, Plan, why_not
from memwall.fusion.repeats import MOST_UNASKED, distinct_ops
from memwall.hardware.lookup import Gpu
from memwall.ops.registry import is_users_own
from memwall.pipeline import Names, asked_gpus, profile, resimulate, with_capture
from memwall.record.capture import Break, Capture, carry, place_before
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule
from memwall.step import Step
from memwall.subjects import workload_of
from memwall.wings import part

if TYPE_CHECKING:
    from memwall.fusing.op_counts import OpCounts

SCHEMA = "memwall.fusion/1"

#: What is planned when no policy is named; ``inductor`` only with a torch and a Triton that memwall supports.
DEFAULT_POLICIES = ("eager", "inductor", "memwall", "ideal")


@dataclass(frozen=True, slots=True)
class Refused:
    """All refusals by one rule; what each alone would save, summed. Savings overlap where two share a tensor.
    ``reason`` is of the refusal that would save most."""

    rule: str
    count: int
    saved_bytes: Annotated[int, finite]
    saved_s: Annotated[float, finite]
    reason: str


@dataclass(frozen=True)
class SavedGpu:
    """What fusion wins on one GPU, each mapping by policy, and what the breaks cost there."""

    gpu: str
    policies: tuple[PolicyRow, ...]
    groups: Mapping[str, tuple[Saving, ...]]
    refused: Mapping[str, tuple[Refused, ...]]
    missed: Mapping[str, tuple[Missed, ...]]
    breaks: Any = None


@dataclass(frozen=True, kw_only=True)
class SavedFusion:
    """``memwall.fusion/1``; its page does not show what may be anything."""

    schema: str
    memwall_version: str
    workload: Mapping[str, str]
    gpus: tuple[SavedGpu, ...]
    agreement: Any = None
    compiled: Any = None
    alternatives: Any = None
    capture: Capture | None = None
    funnel: Any = None
    what_if: Any = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class FusedProfile(ShownResult):
    """A profile simulated under every policy on every GPU, with its fusion analysis. ``prices`` of the breaks,
    ``lowered``, ``plan_diffs`` (memwall's plan with Inductor's) and ``compiled`` (generated kernels) are by GPU.
    ``notes`` say what is missing and why."""

    profile: Profile
    prices: Mapping[str, BreakPrices] = field(default_factory=dict)
    lowered: Mapping[str, Any] = field(default_factory=dict)
    plan_diffs: Mapping[str, PlanDiff] = field(default_factory=dict)
    compiled: Mapping[str, Any] = field(default_factory=dict)
    alternatives: tuple[Family, ...] = ()
    op_counts: OpCounts | None = None
    what_ifs: tuple[Outcome, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def capture(self) -> Capture | None:
        """What Dynamo made of the model."""
        return self.profile.traced.dynamo

    def plan(self, schedule: Schedule) -> Plan:
        """The plan of a simulation."""
        assert schedule.plan is not None  # every one is simulated here
        return schedule.plan

    def simulated(self, policies: Sequence[str]) -> list[tuple[Plan, Schedule]]:
        """The plans of some policies with their simulations."""
        return [(self.plan(s), s) for s in self.profile.simulations if s.policy in policies]

    def to_dict(self) -> dict[str, Any]:
        """``memwall.fusion/1``: plain JSON types, base SI units."""
        info = self.profile.workload
        saved = SavedFusion(
            schema=SCHEMA,
            memwall_version=__version__,
            workload={"name": info.name, "mode": info.mode},
            gpus=tuple(_saved_gpu(self, policies) for policies in policy_sets(self.profile)),
            agreement=self.plan_diffs,
            compiled=[made.to_dict() for made in self.compiled.values()],
            alternatives=self.alternatives,
            capture=self.capture,
            funnel=self.op_counts,
            what_if=self.what_ifs,
            notes=self.notes,
        )
        return {key: value for key, value in write(saved).items() if key != "compiled" or value}


def refused_by_rule(plan: Plan) -> tuple[Refused, ...]:
    """The refusals of a plan by rule, what would save most first."""
    found = [
        Refused(r.rule, r.count, r.count * r.saved_bytes, r.count * r.saved_s, r.reason)
        for r in sorted(plan.refusals, key=lambda r: -r.count * r.saved_s)
    ]
    rows = summed(found, [row.rule for row in found], ("count", "saved_bytes", "saved_s"))
    return tuple(sorted(rows, key=lambda row: (-row.saved_s, row.rule)))


@heard
@signature_of(Step)
def fuse(
    target: Any,
    inputs: Any = None,
    *,
    gpu: Names | None = None,
    policy: str | Iterable[str] = (),
    what_ifs: Iterable[str] = (),
    progress: Callable[[str], None] | None = None,
    **step: Unpack[Step],
) -> FusedProfile:
    """What fusion would win for a model, what it misses and why; of a model, not of a saved profile, also where
    TorchDynamo breaks its graph and what that costs.

    Args:
        target: a module or a function with its ``inputs``, a target as on the command line, or a ``Profile``.
        inputs: as for :func:`memwall.profile`.
        gpu: names, specs or paths to specs; one or a list. None: a profile's own, else ``h100-sxm``.
        policy: policies to plan, in addition to eager; none named: ``inductor`` (where Triton is installed),
            ``memwall`` and ``ideal``.
        what_ifs: changes, as ``--what-if`` takes them.
        progress: called with one-line messages.

    Raises:
        UsageError: as :func:`memwall.profile`, or a policy or a change is wrong.
        MissingError: ``inductor`` was named and is not available.
    """
    changes = [parse_change(text) for text in what_ifs]
    policies = (policy,) if isinstance(policy, str) else tuple(policy)
    notes: tuple[str, ...] = ()
    if isinstance(target, Profile):
        if step or inputs is not None:
            raise UsageError(
                f"{next(iter(step), 'inputs')} says how to trace, and {target.workload.name} is traced already"
            )
        made = target if gpu is None else resimulate(target, asked_gpus(gpu))
        return fused(made, policies, changes=changes)
    made = profile(target, inputs, gpu=gpu, **step)
    count = distinct_ops(made.graph)
    if made.of_torch and count > MOST_UNASKED:
        notes = (not_captured(count),)
    elif made.of_torch:
        tell(f"tracing {made.workload.name} under TorchDynamo")
        made = with_capture(made, workload_of(target, completed(Step, step), made.gpus[0], inputs), step)
    found = fused(made, policies, changes=changes)
    return replace(found, notes=(*found.notes, *notes))


def not_captured(count: int) -> str:
    """Why a model of so many distinct ops is not captured."""
    return f"no capture: TorchDynamo would take {count:,} ops one by one"


def fused(
    profile: Profile,
    policies: Sequence[str] = (),
    *,
    changes: Sequence[Change] = (),
    source: bool = False,
    architectures: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> FusedProfile:
    """Plan and simulate every policy on every GPU of a profile. Fusion does not cross the breaks of its capture by
    Dynamo, and they are priced.

    Args:
        policies: in addition to eager; ``DEFAULT_POLICIES`` if empty; ``inductor`` is then left out, with a note, if
            it is not available.
        changes: what-ifs.
        source: keep the source of Inductor's kernels.
        architectures: by the name of a GPU, what its kernels under ``memwall`` are compiled for (``sm_90``).

    Raises:
        UsageError: no such policy, one that was named plans for none of the GPUs, or a what-if fits neither GPU nor
            model.
        MissingError: ``inductor`` was named and is not available, or there is no Triton to compile with.
    """
    maker, gpus = _Maker(profile, source, architectures), profile.gpus
    for gpu in gpus:
        for policy in dict.fromkeys(("eager", *(policies or DEFAULT_POLICIES))):  # savings are relative to eager
            maker.add(gpu, policy, optional=not policies)
    maker.check(policies)
    made = profile.with_simulations(tuple(maker.schedules))
    named = list(dict.fromkeys(schedule.policy for schedule in maker.schedules))
    outcomes = what_if(made, changes, gpus, named, maker.planned)
    return FusedProfile(
        made,
        maker.prices(gpus),
        maker.lowered,
        maker.plan_diffs(),
        maker.compiled,
        what_ifs=tuple(outcomes),
        notes=maker.notes(),
    )


def _own_kernels(graph: Graph) -> list[str]:
    """A line on what the model brings along as kernels of its own."""
    names = Counter(op.name for op in graph.ops if is_users_own(op.name))
    if not names:
        return []
    listed = few(f"{name} x{count:,}" if count > 1 else name for name, count in names.items())
    return [
        f"kernels of the user's own (Triton, custom ops), into which no compiler looks, so that nothing fuses with"
        f" them: {listed}"
    ]


class _Maker:
    """Makes plans and simulates them."""

    def __init__(self, profile: Profile, source: bool, architectures: Mapping[str, Sequence[str]]) -> None:
        self.profile, self.source = profile, source
        self.architectures = architectures
        self.compiled: dict[str, Any] = {}
        self.schedules: list[Schedule] = []
        self.lowered: dict[str, Any] = {}
        #: a policy, and why it is not there -> the GPUs that it is missing on
        self.missing: dict[tuple[str, str], list[str]] = {}

    def add(self, gpu: Gpu, policy: str, *, optional: bool) -> None:
        """Plan and simulate, or note why a compiler does not: for this GPU, or at all where that was ``optional``."""
        number = self.profile.graph_for(gpu)
        graph = self.profile.graphs[number]
        tell(f"simulating {len(graph.ops):,} ops under {policy} on {gpu.name}")
        try:
            if why := why_not(policy, gpu):
                raise UsageError(why)
            if policy == "inductor" and optional and (count := distinct_ops(graph)) > MOST_UNASKED:
                raise UsageError(f"it would compile {count:,} ops; --policy inductor does so, in its time")
            regions, plan = self.planned.get(number), self._plan(policy, number, gpu)
            launch = self.profile.launch
            found = self.profile.schedule(gpu, policy, graph=number, regions=regions, plan=plan, launch=launch)
        except (MemwallError, ImportError) as error:
            if policy not in COMPILED or not (optional or isinstance(error, UsageError)):
                raise
            self.missing.setdefault((policy, str(error)), []).append(gpu.name)
            return
        self.schedules.append(found)

    def check(self, named: Sequence[str]) -> None:
        """Raises ``UsageError``: a policy that was named is missing on all GPUs."""
        made = {schedule.policy for schedule in self.schedules}
        if missing := [why for policy, why in self.missing if policy in named and policy not in made]:
            raise UsageError(missing[0])

    def notes(self) -> tuple[str, ...]:
        """What is missing and why, and where Inductor may decide differently."""
        missing = [f"no {policy} policy on {', '.join(gpus)}: {why}" for (policy, why), gpus in self.missing.items()]
        doubts = [f"inductor: {note}" for lowered in self.lowered.values() for note in lowered.notes]
        return tuple(dict.fromkeys((*missing, *doubts, *_own_kernels(self.profile.graph))))

    def _plan(self, policy: str, number: int, gpu: Gpu) -> Plan | None:
        """The plan where more is to be known of it than that; None: as for any schedule."""
        graph, costs = self.profile.graphs[number], self.profile.costs[number]
        if policy == "inductor":
            regions = self._captured[number][0] if number in self._captured else None
            lowered = part("inductor.kernels_of")(graph, gpu, regions, source=self.source)
            self.lowered[gpu.name] = lowered
            plan: Plan = part("inductor.plan_of")(graph, costs, gpu, lowered.kernels)
            return plan
        if policy == "memwall" and gpu.name in self.architectures:
            toolchain = part("codegen.Toolchain")(tuple(self.architectures[gpu.name]))
            made = part("codegen.compiled_plan")(graph, costs, gpu, toolchain, regions=self.planned.get(number))
            self.compiled[gpu.name] = made
            compiled: Plan = made.plan
            return compiled
        return None

    def plan_diffs(self) -> dict[str, PlanDiff]:
        """memwall's planner next to Inductor, on the GPUs that both planned for."""
        made = {(s.gpu.name, s.policy): s for s in self.schedules}
        found = {}
        for (name, policy), theirs in made.items():
            ours = made.get((name, "memwall"))
            if policy == "inductor" and ours is not None and ours.plan and theirs.plan:
                found[name] = plan_diff(self.profile.graphs[ours.graph], ours.plan, theirs.plan, ours.gpu)
        return found

    @cached_property
    def _captured(self) -> dict[int, tuple[tuple[int, ...], list[Cut], int | None]]:
        """The broken graphs: the partial graph of each op, where each break cuts, and the first op after the model. The
        first graph was captured; graphs with other attention kernels are cut in the same places."""
        capture, given = self.profile.traced.dynamo, self.profile.graph.ops
        if capture is None or capture.failure is not None or len(capture.regions) != len(given):
            return {}
        found = {}
        for number, graph in enumerate(self.profile.graphs):
            regions, places, _ = carry(capture.regions, given, graph.ops)
            behind = _moved(capture.behind, places)
            if is_broken(graph, regions, behind):
                found[number] = regions, [_cut(item, places) for item in capture.breaks], behind
        return found

    @cached_property
    def planned(self) -> dict[int, list[int]]:
        """The partial graph of each op as memwall's planner takes it, by the number of the broken graph."""
        return {number: planned(self.profile.graphs[number], of) for number, (of, _, _) in self._captured.items()}

    def prices(self, gpus: Sequence[Gpu]) -> dict[str, BreakPrices]:
        """What the breaks cost on each GPU whose graph is broken."""
        found = {}
        for gpu in gpus:
            number = self.profile.graph_for(gpu)
            if number in self._captured:
                tell(f"simulating {gpu.name} without graph breaks")
                graph, costs = self.profile.graphs[number], self.profile.costs[number]
                found[gpu.name] = price_breaks(graph, costs, gpu, *self._captured[number])
        return found


def _cut(item: Break, places: Sequence[int | None]) -> Cut:
    """Where a break splits another trace of the same step."""
    moved = {place_before(places, cut + 1) for cut in item.cuts}
    return Cut(sorted(place for place in moved if place is not None), _moved(item.lost_from, places))


def _moved(first: int | None, places: Sequence[int | None]) -> int | None:
    """The op with which a stretch of another trace begins."""
    if first is None:
        return None
    before = place_before(places, first)
    return 0 if before is None else before + 1


def with_op_counts(found: FusedProfile) -> FusedProfile:
    """The op counts of the first graph, with Inductor's levels where it was lowered."""
    try:
        from memwall.fusing.op_counts import op_counts

        tell("tracing the levels of lowering")
        lowered = next(iter(found.lowered.values()), None)
        return replace(found, op_counts=op_counts(found.profile.graph, lowered))
    except ImportError as error:
        return replace(found, notes=(*found.notes, f"no op counts by IR level: {error}"))


def _saved_gpu(found: FusedProfile, policies: PolicySet) -> SavedGpu:
    schedules = policies.schedules
    return SavedGpu(
        policies.gpu.name,
        tuple(policies.rows()),
        {s.policy: tuple(group_savings(policies, s)) for s in schedules},
        {s.policy: refused_by_rule(found.plan(s)) for s in schedules},
        {s.policy: tuple(missed_fusions(found.profile, s, found.plan(s))) for s in schedules},
        found.prices.get(policies.gpu.name),
    )
