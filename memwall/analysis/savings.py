"""What fusion saves: policies side by side, group by group, module by module, and what was not fused.

Conventions. Every policy is compared with eager on the same GPU and against ``ideal``, the most that any fusion could
win; both are simulated if the profile lacks them. A group saves the time of its ops' eager kernels less its own; since
a plan holds every op once, the savings of all groups add up to the difference of the totals. A kernel belongs to the
module that all its ops share, and so do the eager kernels that it replaces. Repeated groups (the same ops in the same
place of a repeated block, moving the same bytes) form one row with a count. A missed fusion is a refusal of the plan
whose two ops were not fused by another route; its gain is computed for each alone, so gains overlap where two of them
share a tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Annotated

from memwall.analysis.table import OTHERS, group_by, summed, sums
from memwall.core.structure import finite
from memwall.fusion import REWRITING, Plan
from memwall.hardware.lookup import Gpu
from memwall.perfmodel.roofline import Estimate
from memwall.record.kernels import NO_MODULE, collapse, common_module, kernel_module, short_name
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule

#: refusals by this rule are not misses: the fusion was modeled to lose
DECLINED = "slower when fused"
#: the least share of the eager time that a step of a waterfall saves
LEAST_STEP = 1e-3
#: bytes that may be below 0
Signed = Annotated[int, finite]


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy on one GPU. Scores are what it saves over what ``ideal`` saves; None where ideal saves nothing."""

    policy: str
    time_s: float
    speedup: float
    kernels: int
    dram_bytes: int
    saved_bytes: Signed
    byte_score: Annotated[float, finite] | None
    time_score: Annotated[float, finite] | None
    mfu: float
    peak_memory_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Saving:
    """Kernels of a policy and the eager kernels that they replace. Bytes are compulsory DRAM bytes. ``count`` equal
    groups of ``ops`` ops each; for a module the number of its kernels and the ops in all of them."""

    name: str
    module: str
    phase: str
    op_class: str
    count: int
    ops: int
    eager_kernels: int
    kernels: int
    eager_bytes: int
    bytes: int
    eager_s: float
    time_s: float

    @property
    def saved_s(self) -> float:
        return self.eager_s - self.time_s

    @property
    def saved_bytes(self) -> int:
        return self.eager_bytes - self.bytes


@dataclass(frozen=True, slots=True)
class Missed:
    """Equal pairs of ops that were not fused: why, and what each alone would save, summed over ``count``."""

    producer: str
    consumer: str
    module: str
    phase: str
    rule: str
    reason: str
    count: int
    saved_bytes: Signed
    saved_s: Annotated[float, finite]


@dataclass(frozen=True)
class Waterfall:
    """From the eager time down to the policy's: the largest savings, then all the others together."""

    eager_s: float
    steps: tuple[Saving, ...]
    others_s: float
    time_s: float
    ideal_s: float


@dataclass(frozen=True)
class PolicySet:
    """The policies of a profile on one GPU, in the profile's order, with the two that they are compared with."""

    profile: Profile
    gpu: Gpu
    schedules: tuple[Schedule, ...]
    eager: Schedule
    ideal: Schedule

    @cached_property
    def _eager_of(self) -> dict[int, Estimate]:
        return {kernel.op_ids[0]: kernel for kernel in self.eager.kernels}

    def replaced(self, kernel: Estimate) -> list[Estimate]:
        """The eager kernels whose work a kernel does."""
        return [self._eager_of[i] for i in kernel.op_ids]

    def shares_ops(self, schedule: Schedule) -> bool:
        """Whether a schedule runs the ops that eager runs, not the ops of a compiled program."""
        return schedule.graph == self.eager.graph

    def module(self, schedule: Schedule, kernel: Estimate) -> str:
        """The module that all ops of a kernel share, its numbers as stars."""
        return collapse(kernel_module(self.profile, schedule, kernel))

    def rows(self) -> tuple[PolicyRow, ...]:
        return tuple(self.row(schedule) for schedule in self.schedules)

    def row(self, schedule: Schedule) -> PolicyRow:
        """The totals of one policy next to eager and ideal."""
        own, eager, ideal = schedule.totals, self.eager.totals, self.ideal.totals
        saved, rewrites = eager.dram_bytes - own.dram_bytes, schedule.policy in REWRITING
        return PolicyRow(
            schedule.policy,
            own.time_s,
            eager.time_s / own.time_s if own.time_s else 1.0,
            own.kernels,
            own.dram_bytes,
            saved,
            None if rewrites else _score(saved, eager.dram_bytes - ideal.dram_bytes),
            None if rewrites else _score(eager.time_s - own.time_s, eager.time_s - ideal.time_s),
            own.mfu,
            own.peak_memory_bytes,
            schedule.fits,
        )


def _score(saved: float, ideal_saved: float) -> float | None:
    return saved / ideal_saved if ideal_saved > 0 else None


def by_gpu(profile: Profile) -> tuple[Schedule, ...]:
    """The simulations of a profile, all of one GPU together; GPUs and policies in the order of their first."""
    schedules = group_by(profile.simulations, [schedule.gpu.name for schedule in profile.simulations])
    return tuple(chain.from_iterable(schedules.values()))


def policy_sets(profile: Profile) -> tuple[PolicySet, ...]:
    """The simulations of a profile, GPU by GPU."""
    schedules = group_by(profile.simulations, [schedule.gpu.name for schedule in profile.simulations])
    return tuple(_policy_set(profile, own) for own in schedules.values())


def _policy_set(profile: Profile, schedules: Sequence[Schedule]) -> PolicySet:
    """The schedules of one GPU with eager and ideal next to them."""
    gpu, (graph, launch) = schedules[0].gpu, profile.beside(schedules[0])
    found = {schedule.policy: schedule for schedule in schedules}
    eager, ideal = (
        found.get(policy) or profile.schedule(gpu, policy, graph=graph, launch=launch) for policy in ("eager", "ideal")
    )
    return PolicySet(profile, gpu, tuple(schedules), eager, ideal)


def _saving(policies: PolicySet, kernels: Sequence[Estimate], name: str, module: str, ops: int) -> Saving:
    """What some kernels of several phases and classes save over the kernels that they replace."""
    own = sums(kernels, ("launches", "bytes", "time_s"))
    eager = sums([eager for kernel in kernels for eager in policies.replaced(kernel)], tuple(own))
    return Saving(
        name,
        module,
        "",
        "",
        len(kernels),
        ops,
        eager["launches"],
        own["launches"],
        eager["bytes"],
        own["bytes"],
        eager["time_s"],
        own["time_s"],
    )


def group_savings(policies: PolicySet, schedule: Schedule) -> tuple[Saving, ...]:
    """The groups that differ from eager (several ops, or other work), repeats as one, largest saving first; none of a
    compiled program, whose ops are its own."""
    if not policies.shares_ops(schedule):
        return ()
    ops = policies.profile.graphs[schedule.graph].ops
    changed = [kernel for kernel in schedule.kernels if [*map(_work, policies.replaced(kernel))] != [_work(kernel)]]
    keys = [
        (
            tuple([ops[i].name for i in k.op_ids]),
            policies.module(schedule, k),
            ops[k.op_ids[0]].phase,
            k.op_class,
            k.read_bytes,
            k.write_bytes,
        )
        for k in changed
    ]
    rows = [
        replace(_saving(policies, kernels, group_name(names), module, len(names)), phase=phase, op_class=op_class)
        for (names, module, phase, op_class, _, _), kernels in group_by(changed, keys).items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.saved_s, row.name, row.module, row.bytes)))


def _work(kernel: Estimate) -> tuple:
    return kernel.read_bytes, kernel.write_bytes, kernel.launches, kernel.compute_s


def group_name(names: Sequence[str]) -> str:
    """``add + layer_norm + mul x3``: the ops of a group, each once, in order of first appearance."""
    counts = Counter(map(short_name, names))
    return " + ".join(f"{name} x{count}" if count > 1 else name for name, count in counts.items())


def module_savings(policies: PolicySet, schedule: Schedule, *, top: int = 15) -> tuple[Saving, ...]:
    """What each module saves, repeated blocks as one, largest saving first; the rest as ``(others)``; nothing of a
    compiled program."""
    if not policies.shares_ops(schedule):
        return ()
    modules = [policies.module(schedule, kernel) or NO_MODULE for kernel in schedule.kernels]
    rows = _by_module(policies, schedule, modules)
    changed = [row for row in rows if row.saved_bytes or row.kernels != row.eager_kernels]
    if len(rows) <= min(top, len(changed)):
        return rows
    kept = {row.module for row in changed[: top - 1]}
    cut = _by_module(policies, schedule, [module if module in kept else OTHERS for module in modules])
    return tuple(sorted(cut, key=lambda row: row.module == OTHERS))


def _by_module(policies: PolicySet, schedule: Schedule, modules: Sequence[str]) -> tuple[Saving, ...]:
    rows = [
        _saving(policies, kernels, module, module, sum(len(kernel.op_ids) for kernel in kernels))
        for module, kernels in group_by(schedule.kernels, modules).items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.saved_s, row.module)))


def waterfall(policies: PolicySet, schedule: Schedule, *, top: int = 10) -> Waterfall:
    """The ``top`` largest savings as steps from the eager time down to the policy's; small ones are merged."""
    eager_s, time_s = policies.eager.totals.time_s, schedule.totals.time_s
    steps = [row for row in group_savings(policies, schedule) if row.saved_s > LEAST_STEP * eager_s][:top]
    others_s = eager_s - time_s - sum(step.saved_s for step in steps)
    return Waterfall(eager_s, tuple(steps), others_s, time_s, policies.ideal.totals.time_s)


def missed_fusions(
    profile: Profile, schedule: Schedule, plan: Plan | None = None, *, top: int | None = 10
) -> tuple[Missed, ...]:
    """The refusals of a policy that would win most, equal ones summed. ``plan``: the plan that was simulated; None
    takes :meth:`.Profile.plan`."""
    plan = plan or profile.plan(schedule)
    if plan is None:
        return ()
    ops = profile.graphs[schedule.graph].ops
    group_of = {op: i for i, group in enumerate(plan.groups) for op in group.op_ids}
    found = []
    for refusal in plan.refusals:
        where = group_of[refusal.consumer]
        again = refusal.producer in plan.groups[where].recomputes
        if refusal.rule == DECLINED or again or group_of[refusal.producer] == where:
            continue
        producer, consumer = ops[refusal.producer], ops[refusal.consumer]
        found.append(
            Missed(
                producer.name,
                consumer.name,
                collapse(common_module([producer.module, consumer.module])),
                consumer.phase,
                refusal.rule,
                refusal.reason,
                refusal.count,
                refusal.count * refusal.saved_bytes,
                refusal.count * refusal.saved_s,
            )
        )
    keys = [(m.producer, m.consumer, m.module, m.phase, m.rule) for m in found]
    rows = [
        replace(row, producer=short_name(row.producer), consumer=short_name(row.consumer))
        for row in summed(found, keys, ("count", "saved_bytes", "saved_s"))
    ]
    rows.sort(key=lambda row: (-row.saved_s, row.producer, row.consumer, row.module))
    return tuple(rows[:top])
