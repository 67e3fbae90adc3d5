"""Schedules → what is to be timed: each distinct kernel once, with the number of equal ones that it represents; and all
of them timed in rounds, so that drift of the device affects each kernel."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from memwall.bench.device import merged
from memwall.bench.kernels.workers import START_LIMIT_S, Copied, KernelRun, KernelWorker, Ran, Setup, WorkerPool
from memwall.bench.question import BUILD_LIMIT_S
from memwall.bench.stats import timing
from memwall.core.graph import Graph
from memwall.core.progress import CountedLine, tell
from memwall.fusion import Group, Plan
from memwall.hardware.lookup import Gpu
from memwall.perfmodel.roofline import Estimate
from memwall.record.measurement import EXECUTORS, MeasuredKernel, Measurement, Sensors, Timing
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule

#: executors whose kernels take a compiler's time
COMPILED = ("generated", "inductor")


@dataclass(frozen=True)
class KernelJob:
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
class MeasurementWork:
    """What one measurement of a graph on a GPU's spec covers: ``plans`` and ``schedules`` by policy."""

    graph: Graph
    gpu: Gpu
    plans: Mapping[str, Plan]
    schedules: Mapping[str, Schedule]
    executors: tuple[str, ...]
    jobs: tuple[KernelJob, ...]

    @property
    def by_weight(self) -> list[KernelJob]:
        """The jobs, longest first by what they take of the step."""
        return sorted(self.jobs, key=lambda job: (-job.step_s, job.number))

    def compilations(self, kind: str, target: str) -> list[tuple[Setup, KernelRun]]:
        """What :meth:`WorkerPool.compile_ahead` takes: the kernels that take a compiler's time."""
        setup = Setup(kind, self.graph, self.gpu, target)
        jobs = [job for job in self.by_weight if job.executor in COMPILED]
        return [(setup, KernelRun(job.number, job.executor, job.group, 0, 0.0)) for job in jobs]

    def of(self, executor: str) -> tuple[KernelJob, ...]:
        """The jobs of one executor."""
        return tuple(job for job in self.jobs if job.executor == executor)


def plan_work(profile: Profile, gpu: Gpu, executors: Sequence[str], top: int | None = None) -> MeasurementWork:
    """The kernels of a profile for some executors; of each the ``top`` ones, which take most of the step's modeled
    time."""
    graph = profile.graphs[profile.graph_for(gpu)]
    policies = dict.fromkeys(EXECUTORS[name] for name in executors)
    schedules = {policy: profile.schedule(gpu, policy) for policy in policies}
    plans = {policy: plan for policy in policies if (plan := schedules[policy].plan)}
    jobs: list[KernelJob] = []
    for name in executors:
        policy = EXECUTORS[name]
        alone = profile.schedule(gpu, policy, launch="alone")
        jobs += sorted(_distinct_jobs(graph, name, plans[policy], alone), key=lambda job: -job.step_s)[:top]
    numbered = tuple(replace(job, number=n) for n, job in enumerate(jobs))
    return MeasurementWork(graph, gpu, plans, schedules, tuple(executors), numbered)


def _distinct_jobs(graph: Graph, executor: str, plan: Plan, schedule: Schedule) -> list[KernelJob]:
    """The distinct kernels of a plan in order of their first launch, not yet numbered."""
    found: dict[Any, KernelJob] = {}
    for group, estimate in zip(plan.groups, schedule.kernels, strict=True):
        key = (_structure(graph, group), estimate.time_s, estimate.bound_s)
        old = found.get(key, KernelJob(-1, executor, group, estimate, 0))
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


# -- a run -------------------------------------------------------------------------------------------------------------

#: how the model itself is run
WHOLES = ("eager", "torch.compile")
#: rounds over all kernels; the samples of a kernel are taken in as many blocks
ROUNDS = 3
#: seconds of samples in one block where nothing else limits them, and the least
BLOCK_S, LEAST_BLOCK_S = 20.0, 0.05
#: a block may overrun its budget by one sample, which is at most this long
SAMPLE_LIMIT_S = 120.0

OVER = Ran("skipped", "the time was over")


@dataclass
class Result:
    """The result of one job so far."""

    job: KernelJob
    answer: Ran | None = None
    samples_s: list[float] = field(default_factory=list)
    readings: list[Sensors] = field(default_factory=list)

    @property
    def is_lost(self) -> bool:
        """Whether asking again is pointless."""
        return self.answer is not None and self.answer.status != "ok"

    def add(self, answer: Ran) -> None:
        """One more block. A kernel that fails in a later block is lost: its earlier samples are in doubt."""
        self.answer = answer
        self.samples_s += answer.samples_s
        self.readings.append(answer.sensors)

    def kernel(self) -> MeasuredKernel:
        """The job as the record has it."""
        job, estimate, answer = self.job, self.job.estimate, self.answer or OVER
        done = answer.status == "ok" and bool(self.samples_s)
        status = "skipped" if answer.status == "ok" and not done else answer.status
        return MeasuredKernel(
            estimate.id,
            estimate.name,
            estimate.op_ids,
            estimate.op_class,
            job.repeats,
            estimate.flops,
            estimate.bytes,
            estimate.time_s,
            estimate.bound_s,
            status,
            answer.reason,
            timing(self.samples_s) if done else None,
            answer.error,
            answer.schedule,
            answer.config,
            merged(self.readings),
            estimate.low_s,
            estimate.high_s,
        )


@dataclass(frozen=True)
class Limits:
    """How much is timed: ``samples`` of each kernel, until ``deadline`` (of :func:`time.monotonic`)."""

    samples: int = 30
    deadline: float = float("inf")
    check: bool = True
    steps: bool = True
    build_limit_s: float = BUILD_LIMIT_S

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self.deadline

    def block_s(self, blocks: int) -> float:
        """Seconds for each of the remaining blocks."""
        left = (self.deadline - time.monotonic()) / max(blocks, 1)
        return min(BLOCK_S, max(2 * left, LEAST_BLOCK_S))


class BenchmarkRun:
    """One measurement: the questions to the workers, and their answers. ``module`` is the model itself, with the
    options that say which step of it runs."""

    def __init__(
        self,
        work: MeasurementWork,
        kind: str,
        target: str,
        limits: Limits,
        pool: WorkerPool,
        module: tuple[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.work, self.limits, self.kind, self.pool = work, limits, kind, pool
        self.executors = work.executors
        self.setup = Setup(kind, work.graph, work.gpu, target)
        self.module = module
        self.workers: dict[str, KernelWorker] = {}
        self.results = {job.number: Result(job) for job in work.jobs}
        self.steps: dict[str, Ran] = {}
        self.wholes: dict[str, Ran] = {}
        self.copied: Copied | None = None
        self.is_complete = False

    def start(self) -> None:
        """Start the workers, and time what the machine itself reaches. Raises ``MissingError``: there is no such
        device."""
        self.workers = self.pool.begin(self.executors, self.setup)
        answer = self._first.ask(BUILD_LIMIT_S, "copy", self.limits.samples)
        self.copied = answer if isinstance(answer, Copied) else None

    @property
    def _first(self) -> KernelWorker:
        return self.workers[self.executors[0]]

    def run(self, updated: Callable[[], None] = lambda: None) -> None:
        """Time all kernels and then the steps. ``updated`` is called after each block."""
        jobs = self.work.by_weight
        blocks = ROUNDS * len(jobs)
        for round_number in range(ROUNDS):
            for job in jobs:
                result = self.results[job.number]
                if self.limits.is_over:
                    return
                if not result.is_lost:
                    known = f", {timing(result.samples_s).median_s * 1e6:,.1f} us so far" if result.samples_s else ""
                    modeled = f"modeled {job.estimate.time_s * 1e6:,.1f} us{known}"
                    what = f"measuring {job.executor} {job.estimate.name[:40]} ({modeled})"
                    tell(CountedLine(what, ROUNDS * len(jobs) - blocks, ROUNDS * len(jobs)))
                    self._block(result, round_number, blocks)
                    updated()
                blocks -= 1
        if self.limits.steps:
            self._time_steps(updated)
            self._time_module(updated)
        self.is_complete = True

    def _block(self, result: Result, round_number: int, blocks: int) -> None:
        wanted = share(self.limits.samples, round_number, ROUNDS)
        if not wanted:
            return
        budget_s = self.limits.block_s(blocks)
        job = result.job
        graphed = result.answer is None or result.answer.graphed
        question = KernelRun(job.number, job.executor, job.group, wanted, budget_s, self.limits.check, graphed)
        limit_s = self.limits.build_limit_s + budget_s
        result.add(self.workers[job.executor].ask(limit_s, "run", question))

    def _time_steps(self, updated: Callable[[], None]) -> None:
        for name, worker in self.workers.items():
            if self.limits.is_over:
                self.steps[name] = OVER
                continue
            tell(f"measuring the whole step, {name}")
            groups = self.work.plans[EXECUTORS[name]].groups
            self.steps[name] = self._whole(worker, len(self.workers), "step", name, groups)
            updated()

    def _time_module(self, updated: Callable[[], None]) -> None:
        """The model as its user runs it, where there is one: no policy models it."""
        for name in WHOLES if self.module else ():
            if self.limits.is_over or (name != "eager" and "inductor" not in self.executors):
                continue
            tell(f"measuring the model itself, {name}")
            self.wholes[name] = self._whole(self._first, 2, "whole", self.module, name != "eager")
            updated()

    def _whole(self, worker: KernelWorker, parts: int, *question: Any) -> Ran:
        """The answer about a whole step, one of several that share the time; all workers free their memory for it."""
        for each in self.workers.values():
            each.ask(START_LIMIT_S, "recover")
        budget_s = self.limits.block_s(parts)
        limit_s = self.limits.build_limit_s + budget_s + SAMPLE_LIMIT_S
        answer: Ran = worker.ask(limit_s, *question, self.limits.samples, budget_s)
        return answer

    # -- what was found ----------------------------------------------------------------------------------------------

    def measurements(self) -> tuple[Measurement, ...]:
        """One for each executor, with the results so far."""
        return tuple(self._measurement(name) for name in self.executors)

    def _measurement(self, name: str) -> Measurement:
        policy = EXECUTORS[name]
        about = self.workers[name].environment if name in self.workers else {}
        kernels = [self.results[job.number].kernel() for job in self.work.of(name)]
        step = self.steps.get(name, Ran("skipped", "" if self.limits.steps else "not asked for"))
        environment = {key: value for key, value in about.items() if key != "device"}
        if name == self.executors[0] and self.wholes:
            environment["module_step"] = {
                how: {"status": ran.status, "reason": ran.reason, "timing": (t := _timing(ran)) and asdict(t)}
                for how, ran in self.wholes.items()
            }
        copy_s = 0.0
        if self.copied is not None:
            copy_s = self.copied.bytes / timing(self.copied.samples_s).median_s
            environment["floor_s"] = timing(self.copied.floor_s).median_s
        return Measurement(
            device=str(about.get("device", self.kind)),
            kind=self.kind,
            gpu=self.work.gpu.name,
            executor=name,
            policy=policy,
            kernels=tuple(sorted(kernels, key=lambda kernel: kernel.id)),
            step=_timing(step),
            step_modeled_s=self.work.schedules[policy].totals.time_s,
            step_reason=step.reason,
            copy_bytes_per_s=copy_s,
            environment=environment,
            complete=self.is_complete,
        )


def share(total: int, part: int, parts: int) -> int:
    """The size of one of nearly equal parts of a whole."""
    return total * (part + 1) // parts - total * part // parts


def _timing(answer: Ran) -> Timing | None:
    return timing(answer.samples_s) if answer.samples_s else None


def flags(measurements: Iterable[Measurement]) -> Mapping[str, int]:
    """Flag → how many kernels carry it."""
    return Counter(flag for m in measurements for kernel in m.kernels for flag in kernel.sensors.flags)
