"""Schedules → what is to be timed: each distinct kernel once, with the number of equal ones that it represents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memwall.core.graph import Graph
from memwall.fusion import Group, Plan
from memwall.hardware.lookup import Gpu
from memwall.perfmodel.roofline import Estimate
from memwall.record.measurement import EXECUTORS
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule


@dataclass(frozen=True)
class Job:
    """One distinct kernel of one executor: ``repeats`` equal kernels of a step, the first of which is ``estimate``: the
    kernel run alone, nothing in L2 from before, no wait for the CPU."""

    number: int
    executor: str
    group: Group
    estimate: Estimate
    repeats: int

    @property
    def step_s(self) -> float:
        """Modeled time of all equal kernels of a step: the job's weight."""
        return self.estimate.time_s * self.repeats


@dataclass(frozen=True)
class Work:
    """What one measurement of a graph on a GPU's spec covers: ``plans`` and ``schedules`` by policy."""

    graph: Graph
    gpu: Gpu
    plans: Mapping[str, Plan]
    schedules: Mapping[str, Schedule]
    jobs: tuple[Job, ...]

    def of(self, executor: str) -> tuple[Job, ...]:
        """The jobs of one executor."""
        return tuple(job for job in self.jobs if job.executor == executor)


def plan_work(profile: Profile, gpu: Gpu, executors: Sequence[str], top: int | None = None) -> Work:
    """The kernels of a profile for some executors; of each the ``top`` ones, which take most of the step's modeled
    time."""
    graph = profile.graphs[profile.graph_for(gpu)]
    policies = dict.fromkeys(EXECUTORS[name] for name in executors)
    schedules = {policy: profile.schedule(gpu, policy) for policy in policies}
    plans = {policy: plan for policy in policies if (plan := schedules[policy].plan)}
    jobs: list[Job] = []
    for name in executors:
        policy = EXECUTORS[name]
        alone = profile.schedule(gpu, policy, launch="alone")
        found = _distinct_jobs(graph, name, plans[policy], alone, len(jobs))
        jobs += sorted(found, key=lambda job: -job.step_s)[:top]
    return Work(graph, gpu, plans, schedules, tuple(jobs))


def _distinct_jobs(graph: Graph, executor: str, plan: Plan, schedule: Schedule, first: int) -> list[Job]:
    """The distinct kernels of a plan in order of their first launch, numbered from ``first``."""
    found: dict[Any, Job] = {}
    for group, estimate in zip(plan.groups, schedule.kernels, strict=True):
        key = (_structure(graph, group), estimate.time_s, estimate.bound_s)
        old = found.get(key, Job(first + len(found), executor, group, estimate, 0))
        found[key] = replace(old, repeats=old.repeats + 1)
    return list(found.values())


def _structure(graph: Graph, group: Group) -> tuple[Any, ...]:
    """What a group computes, its tensors numbered in the order of use: equal for groups that differ only in tensors."""
    storages: dict[int, int] = {}

    def tensor(value_id: int) -> tuple[Any, ...]:
        value = graph.values[value_id]
        local = storages.setdefault(value.storage, len(storages))
        return local, value.offset, value.spec, graph.storages[value.storage].nbytes

    ops = [graph.ops[i] for i in sorted((*group.op_ids, *group.recomputes))]
    used = (*(v for op in ops for v in (*op.inputs, *op.outputs)), *group.reads, *group.writes)
    return tuple(graph.alike[op.id] for op in ops), tuple(map(tensor, used)), len(group.reads)
