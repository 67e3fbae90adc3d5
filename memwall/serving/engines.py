"""One engine of a server as it is asked for → its steps and its scheduler's policy."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from memwall.analysis.limits import Limit
from memwall.analysis.whatif import GpuChange
from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.core.units import counted
from memwall.hardware.cluster import cluster_of, load_cluster
from memwall.hardware.engine import EngineHost, EngineSpec
from memwall.hardware.links import Cluster
from memwall.hardware.lookup import Gpu
from memwall.hardware.prices import CostRates
from memwall.serving.model import Model
from memwall.serving.simulation.engine import Policy, Speculation
from memwall.serving.simulation.fleet import ONE, Fleet
from memwall.serving.simulation.requests import Disaggregated, simulate_requests
from memwall.serving.simulation.served import Requests
from memwall.serving.simulation.steady import Steady, steady_state
from memwall.serving.simulation.timing import GpuSteps
from memwall.serving.simulation.workload import RequestLoad
from memwall.serving.steps import Layout, ServedKernels
from memwall.serving.steps.attention import Attention, Compressed, Latent
from memwall.serving.steps.kernels import Experts, Product, State

#: the most GPUs that are tried where weights do not fit
_MOST_TP = 128
#: dtypes that engines run on GPUs alone that multiply them
_HALVES = ("bfloat16", "float16")
#: of a GPU between engines that no cluster joins: an adapter of 400 Gbit/s
_NETWORK_BYTES_PER_S = 50e9


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What guesses tokens: another model, or None for the model's own module."""

    model: Model | None
    draft_tokens: int
    accept: float

    def __str__(self) -> str:
        name = "its own module (MTP)" if self.model is None else self.model.name
        return f"{name}, {counted(self.draft_tokens, 'token')}, each right at {100 * self.accept:.3g}%"

    def speculation(self, steps: GpuSteps, stored: Layout) -> Speculation:
        """Next to the ``steps`` of the model; ``stored`` as of :func:`stored_in`."""
        if self.model is None:
            draft = steps.guessing()
        else:
            own = replace(stored_in(stored, self.model), tp=steps.layout.tp)
            check_layout(self.model.served, own)
            draft = steps.guessing(self.model.served, own)
        return Speculation(draft_tokens=self.draft_tokens, accept=self.accept, draft=draft)


@dataclass(frozen=True, kw_only=True)
class AskedPolicy:
    """What is asked of the scheduler, as of :func:`memwall.serve`; None: as the engine takes by itself on a GPU."""

    max_batch: int | None = None
    token_budget: int | None = None
    prefill: str | None = None
    captured: tuple[int, ...] | None = None

    def of(self, engine: EngineSpec, gpu: Gpu, layout: Layout, verified: int = 1) -> Policy:
        """How each group fills a step; ``verified`` are the tokens of a sequence in it. Raises UsageError: more
        sequences than tokens were asked for."""
        usual = engine.limits(gpu, layout.tp, layout.dp)
        budget = self.token_budget or usual.token_budget
        prefill = self.prefill or engine.prefill
        mixed = prefill != "apart"
        fitting = min(usual.max_batch, max(budget // verified, 1)) if mixed else usual.max_batch
        return Policy(
            token_budget=budget,
            max_batch=self.max_batch or fitting,
            mixed=mixed,
            cut=prefill == "chunked",
            captured=engine.captured(usual.largest_graph) if self.captured is None else self.captured,
            reserve=engine.reserve,
            request_s=engine.host.request_s,
        )


@dataclass(frozen=True, kw_only=True)
class AskedEngine:
    """An engine as it is asked for. ``layout`` has its GPUs, and what was asked of its cache (empty: as the model's
    configuration says); ``weights``, ``utilization_of``, ``max_context``, ``straggler`` and ``rates`` are as of
    :func:`memwall.serve`; ``changes`` are what-ifs; ``client_s`` passes between a user and the server; ``limits`` are
    the objectives."""

    model: Model
    gpu: Gpu
    engine: EngineSpec
    layout: Layout
    weights: str
    utilization: float
    cluster: str | Path | Cluster | None
    asked: AskedPolicy
    closed_form: bool
    guess: Guess | None
    disaggregate: tuple[int, int] | None
    rates: CostRates
    changes: tuple[GpuChange, ...] = ()
    utilization_of: str = "all"
    max_context: int | None = None
    straggler: float = 1.0
    fleet: Fleet = ONE
    client_s: float = 0.0
    limits: tuple[Limit, ...] = ()

    @property
    def policy(self) -> Policy:
        """Of each group of GPUs with sequences of their own. Raises UsageError: as :meth:`AskedPolicy.of`."""
        return self.asked.of(self.engine, self.gpu, self.layout, 1 + self.guess.draft_tokens if self.guess else 1)

    def server(self) -> Server:
        """Raises UsageError: the layout does not fit the model, or a change is impossible."""
        layout, own = stored_in(self.layout, self.model), self.policy
        steps = self._steps(layout, own)
        # groups of GPUs with sequences of their own have a scheduler each, which fills a step for each stage at a time
        policy = replace(own.of_groups(layout.dp, layout.pp), request_s=steps.host.request_s + self.client_s)
        if self.guess is not None:
            policy = replace(policy, speculation=self.guess.speculation(steps, self.layout))
        served = partial(Server, steps=steps, policy=policy, fleet=self.fleet, closed_form=self.closed_form)
        if self.disaggregate is None:
            if self.fleet.most == 1 and self.fleet.route != ONE.route:
                raise UsageError(f"--route {self.fleet.route} of one engine has no effect: give --replicas")
            return served(engines=steps, gpus=layout.gpus * self.fleet.most)
        if self.fleet.most > 1:
            raise UsageError("--disaggregate says how many engines there are: leave out --replicas and --autoscale")
        prompts, decodes = self.disaggregate
        if prompts == 1 and self.fleet.route != ONE.route:
            raise UsageError(f"--route {self.fleet.route} of one engine of prompts has no effect: give more of them")
        links = steps.cluster.link if steps.cluster else {}
        apart = Disaggregated(
            prompt=steps,
            decode=steps,
            prompt_engines=prompts,
            decode_engines=decodes,
            link_bytes_per_s=[*links.values()][-1].bytes_per_s if links else _NETWORK_BYTES_PER_S,
        )
        return served(engines=apart, gpus=layout.gpus * (prompts + decodes))

    def _steps(self, layout: Layout, policy: Policy) -> GpuSteps:
        """Within the scheduler's numbers, the memory and the tokens of a sequence that were asked for."""
        steps = steps_in(self.model, self.gpu, layout, self.engine, self.cluster, self.changes)
        limits = [tokens for tokens in (self.max_context, self.model.max_context) if tokens is not None]
        return replace(
            within(steps, policy),
            max_context=min(limits, default=None),
            utilization=self.utilization,
            utilization_of=self.utilization_of,
            straggler=self.straggler,
        )


@dataclass(frozen=True, kw_only=True)
class Server:
    """Engines under a policy; ``steps`` are of the engines that decode; ``gpus`` are the GPUs of all engines."""

    steps: GpuSteps
    engines: GpuSteps | Disaggregated
    policy: Policy
    gpus: int
    closed_form: bool
    fleet: Fleet = ONE

    @property
    def host(self) -> EngineHost:
        """The engine's CPU, with the intervals of engines as these."""
        return self.steps.host.apart if isinstance(self.engines, Disaggregated) else self.steps.host

    def mean_gpus(self, run: Requests | Steady) -> float:
        """The GPUs that are on in the mean."""
        on = None if isinstance(run, Steady) else run.engines_on
        return self.gpus if on is None else self.gpus * on / self.fleet.most

    def run(self, load: RequestLoad) -> Requests | Steady:
        if not self.closed_form:
            return simulate_requests(self.engines, load, self.policy, self.fleet)
        if self.fleet.most > 1:
            raise UsageError("several replicas have no closed form: leave out --closed-form")
        if isinstance(self.engines, Disaggregated):
            raise UsageError("prompts and decodes on separate engines have no closed form: leave out --closed-form")
        return steady_state(self.engines, load, self.policy)


def stored_in(layout: Layout, model: Model) -> Layout:
    """With a model's weights and cache as its configuration says, but for a cache that was asked for."""
    return replace(layout, weights=model.scheme, kv=layout.kv or model.cache)


def steps_in(
    model: Model,
    gpu: Gpu,
    layout: Layout,
    engine: EngineSpec,
    cluster: str | Path | Cluster | None,
    changes: tuple[GpuChange, ...] = (),
) -> GpuSteps:
    """The steps of an engine on a GPU with other numbers. Raises UsageError: as :meth:`AskedEngine.server`."""
    check_layout(model.served, layout)
    named = cluster if cluster is None else load_cluster(cluster)
    joined = named or (cluster_of(gpu) if layout.gpus > 1 else None)
    host = engine.host
    for change in changes:
        changed = change.on(replace(gpu, cluster=joined))
        gpu, joined, host = replace(changed, cluster=gpu.cluster), changed.cluster, change.on_engine(host)
    return GpuSteps(
        model.served,
        gpu,
        layout,
        joined,
        host=host,
        max_context=model.max_context,
        attention_apart=engine.attention_apart,
    )


def check_layout(kernels: ServedKernels, layout: Layout) -> None:
    """Raises UsageError: GPUs do not divide the heads, the experts or the layers."""
    for name in ("tp", "ep", "dp", "pp"):
        if getattr(layout, name) < 1:
            raise UsageError(f"--{name} {getattr(layout, name)}: want 1 or more")
    attending = [
        (kernel, n) for kernel, n in kernels.kernels if isinstance(kernel, (Attention, Compressed, Latent, State))
    ]
    for heads in (kernel.heads for kernel, _ in attending if isinstance(kernel, (Attention, Compressed, Latent))):
        _check_divides(layout.tp, heads, "heads", "tp")
    experts = {(kernel.count, kernel.routing.copies) for kernel, _ in kernels.kernels if isinstance(kernel, Experts)}
    if layout.ep > 1 and not experts:
        raise UsageError(f"--ep {layout.ep}: the model has no experts to divide")
    for count, copies in sorted(experts):
        _check_copies(layout.ep, count, copies)
    if layout.stage_gpus % layout.ep:
        raise UsageError(
            f"--ep {layout.ep} does not divide the {layout.stage_gpus} GPUs of --tp {layout.tp} and --dp"
            f" {layout.dp}; --ep {math.gcd(layout.ep, layout.stage_gpus)} does"
        )
    layers = sum(n for _, n in attending)
    if layout.pp > layers:
        raise UsageError(f"{layout.pp} stages are more than the {layers} layers; --pp {layers} is the most")


def _check_copies(ep: int, count: int, copies: int) -> None:
    """Raises UsageError: GPUs do not divide experts and their copies, or there are more copies than other GPUs."""
    if not copies:
        _check_divides(ep, count, "experts", "ep")
    elif copies > (most := count * (ep - 1)):
        raise UsageError(f"--redundant {copies}: --ep {ep} has room for {most} copies of {count} experts on other GPUs")
    elif rest := (count + copies) % ep:
        raise UsageError(
            f"--redundant {copies}: {ep} GPUs do not divide {count} experts and so many copies; --redundant"
            f" {copies + ep - rest} does"
        )


def _check_divides(parts: int, count: int, what: str, option: str) -> None:
    if count % parts:
        fitting = max(n for n in range(1, parts + 1) if count % n == 0)
        raise UsageError(f"{parts} GPUs do not divide {count} {what}; --{option} {fitting} does")


def within(steps: GpuSteps, policy: Policy) -> GpuSteps:
    """The steps of an engine whose scheduler has these numbers: buffers and CUDA graphs are made for them."""
    return replace(
        steps,
        captured=max(policy.captured, default=0),
        most_tokens=policy.token_budget,
        most_sequences=policy.max_batch,
    )


def fitting(steps: GpuSteps) -> str:
    """The least ``--tp`` that holds weights which do not fit; empty where they do, or none does."""
    layout, free = steps.layout, steps.capacity_bytes - steps.reserved_bytes
    if steps.weights_bytes >= free:
        for count in range(layout.tp + 1, _MOST_TP + 1):
            more = replace(layout, tp=count)
            if steps.served.weights_bytes(more) < free:
                with contextlib.suppress(UsageError):
                    check_layout(steps.served, more)
                    return f"; --tp {count} is the least that divides the heads"
    return ""


def lacks(kernels: ServedKernels, gpu: Gpu) -> str:
    """Why engines do not run the model's dtype on a GPU; empty where they do."""
    dtypes = {kernel.dtype for kernel, _ in kernels.kernels if isinstance(kernel, Product)}
    other = "float16" if Pipe("tensor", "float16") in gpu.peak_flop_per_s else "float32"
    lacking = sorted(d for d in dtypes if d in _HALVES and gpu.ceiling_pipe(Pipe("tensor", d)).dtype != d)
    return f"{lacking[0]}, the model's dtype, does not run there; --dtype {other} does" if lacking else ""
