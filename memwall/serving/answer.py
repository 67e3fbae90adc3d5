"""What is answered of servers: engines under loads, and what to know of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from memwall.analysis.limits import Limit
from memwall.core.units import counted, duration
from memwall.core.views import ShownResult
from memwall.hardware.lookup import Gpu
from memwall.ops.quantised import pipe_of
from memwall.ops.routing import BY_CHANCE, TYPICAL
from memwall.serving.candidates import Best, ServerCandidate, ServerChoice
from memwall.serving.engines import AskedEngine
from memwall.serving.launch.reading import ServerLaunch
from memwall.serving.model import Model
from memwall.serving.simulation.engine import Steps
from memwall.serving.simulation.served import Requests
from memwall.serving.simulation.steady import Steady
from memwall.serving.simulation.timing import GpuSteps
from memwall.serving.simulation.workload import RequestLoad
from memwall.serving.steps import EngineStep, Layout
from memwall.serving.steps.kernels import Experts

#: times of later requests from which times with the first ones are said
_NOTABLE = 1.05
#: share of the time in which a request may wait for the cache without a word
_SELDOM = 0.01


@dataclass(frozen=True, kw_only=True)
class Point:
    """One engine, as ``asked`` for, under one load. ``steps`` knows the time of any of its steps; ``refused`` says in
    a line why it does not run, else it is empty and ``candidate`` has the figures."""

    asked: AskedEngine = field(repr=False)
    gpu: Gpu = field(repr=False)
    layout: Layout
    workload: RequestLoad
    steps: GpuSteps = field(repr=False)
    candidate: ServerCandidate | None = None
    largest_batch: int = 0
    refused: str = ""
    gpus: int = 1
    draft: Steps | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """``h100-sxm x 4``: all GPUs that it needs."""
        return self.gpu.name if self.gpus == 1 else f"{self.gpu.name} x {self.gpus}"

    @property
    def load(self) -> str:
        """``64 clients``."""
        asked = self.workload
        if asked.trace:
            return counted(asked.count, "request")
        return counted(asked.concurrency, "client") if asked.concurrency else f"{asked.rate_per_s:g} requests/s"

    @property
    def weights_bytes(self) -> int:
        """Bytes of weights on one GPU, a draft's among them."""
        return sum(each.weights_bytes for each in self._loaded)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of activations, graphs and buffers on one GPU."""
        return sum(each.reserved_bytes for each in self._loaded)

    @property
    def decoding(self) -> EngineStep:
        """A step of decodes alone, of as many sequences as decode in the mean."""
        batch = max(round(self.candidate.run.batch), 1) if self.candidate else 1
        return EngineStep(batch, round(batch * self.context))

    @property
    def alone(self) -> EngineStep:
        """The step of the longest prompt alone."""
        prompt = self.workload.longest.prompt_tokens
        cached = self.workload.cached(prompt)
        return EngineStep(0, 0, ((prompt - cached, cached),))

    @property
    def _loaded(self) -> tuple[Steps, ...]:
        return (self.steps,) if self.draft is None else (self.steps, self.draft)

    def kv_bytes(self, tokens: int) -> int:
        """Bytes on one GPU of the caches of a sequence, a draft's among them."""
        return sum(each.kv_bytes(tokens) for each in self._loaded)

    @property
    def context(self) -> float:
        """Mean tokens in the cache of a sequence that decodes."""
        return self.workload.mean_context


@dataclass(frozen=True, kw_only=True, repr=False)
class Serving(ShownResult):
    """All points of a question, in the order asked: GPU, GPUs that share the model, load. ``draft`` says what guesses
    tokens, if anything does; ``choices`` are the cheapest that keep all ``objectives``, one for each load; ``launch``
    is the command line that was read; ``target`` and ``dtype`` are as they were asked."""

    model: Model
    points: tuple[Point, ...]
    objectives: tuple[Limit, ...] = ()
    choices: tuple[ServerChoice, ...] = ()
    draft: str = ""
    notes: tuple[str, ...] = field(default=())
    launch: ServerLaunch | None = None
    dtype: str | None = None
    target: str = ""

    @property
    def best(self) -> Best | None:
        """Of the choices the one whose tokens cost least; None without objectives."""
        return min(
            (each.best for each in self.choices if each.best), key=lambda best: best.candidate.cost, default=None
        )


def notes_of(points: Sequence[Point], model: Model, gpus: Sequence[Gpu], is_joined_by_default: bool) -> tuple[str, ...]:
    """What the figures of points take for granted, a line for each thing."""
    found = [
        f"{each.name} has no pipe for {model.scheme} and multiplies dequantised weights"
        for each in gpus
        if model.scheme and each.ceiling_pipe(pipe_of(model.scheme)) != pipe_of(model.scheme)
    ]
    joined = {point.gpu.name: point.steps.cluster for point in points if is_joined_by_default}
    found += [
        f"{name}: joined as the GPUs of {known.name}"
        for name, known in joined.items()
        if known is not None and known.gpu != name
    ]
    ran = [point for point in points if not point.refused]
    waiting = dict.fromkeys(point.name for point in ran if point.steps.waits_for_cpu(point.alone))
    if waiting:
        engine = points[0].layout.engine
        found.append(
            f"{', '.join(waiting)}: a lone prompt waits for the CPU, which issues its kernels at the speed of"
            f" {engine} and of the host; its TTFT is alike on faster GPUs"
        )
    return (*found, *_uneven(ran), *_full(ran), *_doubts(ran))


def _full(points: Sequence[Point]) -> list[str]:
    """That a cache is full at times, with the first point that it holds for."""
    runs = [(p, p.candidate.run) for p in points if p.candidate and isinstance(p.candidate.run, Requests)]
    full = [(point, run) for point, run in runs if run.preemptions or run.full_cache_share > _SELDOM]
    if not full:
        return []
    (point, run), *others = full
    more = f", and {counted(len(others), 'more load')}" * bool(others)
    return [
        f"{point.name}, {point.load}{more}: requests wait for a full cache {run.full_cache_share:.0%} of the time and"
        f" lose it {counted(run.preemptions, 'time')}: TTFT depends on a few percent of memory or of load there"
    ]


def _uneven(points: Sequence[Point]) -> list[str]:
    """What the slowest GPU of each engine does more than others, in a decode step under its last load."""
    found = []
    for point in {point.name: point for point in points}.values():
        fleet = point.asked.fleet
        if fleet.failed:
            found.append(f"{point.name}: {fleet.left} of {counted(fleet.replicas, 'engine')} have all of the load")
        if point.steps.straggler < 1:
            found.append(f"{point.name}: others wait for a GPU at {point.steps.straggler:.0%} of its speed")
        mixed = [kernel for kernel, _ in point.steps.served.kernels if isinstance(kernel, Experts)]
        if any(kernel.routing not in (BY_CHANCE, TYPICAL) for kernel in mixed):
            tokens = max(point.decoding.decodes // point.layout.pp, 1)
            most = max(kernel.imbalance(tokens, point.layout) for kernel in mixed)
            rows = counted(tokens, "token")
            found.append(f"{point.name}: of {rows}, the experts of the slowest GPU get {most:.2f} times the mean")
    return found


def _doubts(points: Sequence[Point]) -> list[str]:
    """What to know of loads that were solved for their steady state, with the first point that it holds for."""
    found: dict[str, str] = {}
    solved = [(p, p.candidate.run) for p in points if p.candidate and isinstance(p.candidate.run, Steady)]
    for point, run in solved:
        for said in (run.overloaded, run.doubt):
            found.setdefault(said, f"{point.name}, {point.load}")
    notes = [f"{name}: {said}" for said, name in found.items() if said]
    if first := [(run.run_ttft_s / run.ttft.mean, point, run) for point, run in solved if not run.overloaded]:
        ratio, point, run = max(first, key=lambda each: each[0])
        if ratio > _NOTABLE:
            notes.append(
                f"{point.name}, {point.load}: TTFT, {duration(run.ttft.mean)}, is that of later requests; with"
                f" the first ones, which come at once, a run has {duration(run.run_ttft_s)}"
            )
    return notes
