"""Servers of a model: engines on each GPU and for each number of GPUs, run under each load."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from memwall.analysis.serving import Candidate, best, objective
from memwall.core.errors import UsageError, unknown
from memwall.core.files import uncollected
from memwall.core.graph import Pipe
from memwall.core.units import counted
from memwall.frontend.workload.hf.config import GUESSING
from memwall.fusion.server import Layout, Served, Step
from memwall.fusion.server.attention import Attention, Compressed, Latent
from memwall.fusion.server.kernels import Experts, Product, State
from memwall.hardware.cluster import cluster_of, load_cluster
from memwall.hardware.engine import ENGINES as ENGINES
from memwall.hardware.engine import engine_host
from memwall.hardware.links import Cluster
from memwall.hardware.lookup import Gpu, load_gpus
from memwall.pipeline import Names
from memwall.serving.model import CACHES, Model, read_model
from memwall.serving.points import Point, Serving, notes_of
from memwall.simulate.serving.engine import DEFAULT, Policy, Speculation
from memwall.simulate.serving.requests import Disaggregated, Requests, simulate_requests
from memwall.simulate.serving.steady import Steady, largest_batch, steady_state
from memwall.simulate.serving.timing import UTILIZATION, GpuSteps
from memwall.simulate.serving.workload import Lengths, Workload, read_trace

#: tokens of a prompt where none are given, and of a decoder's whose encoder reads something else
PROMPT, DECODER_PROMPT = 1024, 4
#: what names the model's own module as a draft, and tokens that another model guesses where no number is given
OWN, DRAFT_TOKENS = "mtp", 4
#: the most GPUs that are tried where weights do not fit
_MOST_TP = 128
#: dtypes that engines run on GPUs alone that multiply them
_HALVES = ("bfloat16", "float16")
#: of a GPU between engines that no cluster joins: an adapter of 400 Gbit/s
_NETWORK_BYTES_PER_S = 50e9


@uncollected()
def serve(
    target: str | Path | Model, *, gpu: Names = "h100-sxm", tp: int | Iterable[int] = 1, ep: int = 1, dp: int = 1,
    pp: int = 1, cluster: str | Path | Cluster | None = None, prompt: int | None = None, generate: int = 256,
    lengths: str = "1", concurrency: int | Iterable[int] | None = (1, 4, 16, 64, 256), rate: float | None = None,
    weights: str = "model", kv: str = "model", price: Mapping[str, float] | None = None, slo: Sequence[str] = (),
    prefix_hit: float = 0.0, utilization: float = UTILIZATION, engine: str = "vllm", policy: Policy = DEFAULT,
    closed_form: bool = False, trace: str | Path | None = None, draft: str | Path | Model | None = None,
    draft_tokens: int | None = None, accept: float = 0.7, disaggregate: tuple[int, int] | None = None,
    dtype: str | None = None,
) -> Serving:  # fmt: skip
    """What a server of a model does under load.

    Args:
        target: a language model as :func:`memwall.profile` takes it, with a decode step; a saved profile of one, or
            one that was read.
        gpu: names, specs or paths of specs; one or a list.
        tp: how many GPUs share each product, one number or several.
        ep: GPUs that have experts of their own, of the ``tp * dp`` that share them; columns are shared by the others.
        dp: groups of ``tp`` GPUs that attend to sequences of their own (attention data parallelism).
        pp: stages of ``tp * dp`` GPUs that have the layers one after another (pipeline parallelism).
        cluster: how the GPUs are joined; None takes the one that memwall knows with the GPU.
        prompt, generate: tokens of a request; ``lengths`` is the range of both, ``0.8-1.0`` of nominal. Of a model with
            an encoder of text the prompt is what that reads, always whole. None takes 1,024, or 4 of the decoder where
            an encoder reads something else.
        concurrency: clients that each wait for an answer before they ask again, one number or several.
        rate: requests per second at random times, instead of clients.
        weights, kv: a key of :data:`WEIGHTS` and of :data:`CACHES`; ``model`` takes what its configuration says.
        price: USD per hour of a GPU, by name.
        slo: objectives such as ``ttft_p99<500ms``; the cheapest point that keeps them is picked.
        prefix_hit: share of a prompt that is in the cache already.
        utilization: share of a GPU's memory that the server takes.
        engine: whose kernels run, one of :data:`ENGINES`.
        policy: how the scheduler fills a step: tokens, sequences, chunks.
        closed_form: each load is solved for its steady state, not simulated request by request; no percentiles.
        trace: a CSV file of requests, instead of clients: arrival_s, prompt_tokens, generated_tokens.
        draft: a smaller model that guesses ``draft_tokens`` tokens, of which each is accepted with probability
            ``accept`` if those before it are; one step of the model verifies them. :data:`OWN` is the model's own
            module (MTP), which guesses as many as the configuration says where no number is given; else 4.
        disaggregate: engines that run prompts alone, and engines that decode; caches go over the network between them.
        dtype: cast the models to this first.

    Raises:
        UsageError: as :func:`read_model`; a name, number or objective is wrong, or no point keeps the objectives.
    """
    _check_engine(kv, engine, utilization)
    gpus = load_gpus([gpu] if isinstance(gpu, (str, Gpu)) else gpu)
    limits = tuple(objective(text) for text in slo)
    answer = Lengths.parse(generate, lengths)
    load_of = partial(_loads, concurrency, rate, generate=answer, hit=prefix_hit, trace=trace)
    loads = load_of(prompt=Lengths.parse(prompt or PROMPT, lengths))
    prices = _prices(price or {}, gpus)
    if limits:
        check_priced(prices, [each.name for each in gpus])
    longest = max(load.longest.prompt_tokens + load.longest.generated_tokens for load in loads)
    read = partial(read_model, dtype=dtype, tokens=longest, prompt=prompt)
    model = target if isinstance(target, Model) else read(target, weights=weights)
    if model.encoder is not None:
        if trace is not None:
            raise UsageError(
                f"the encoder of {model.name} is traced with one prompt: give clients or --rate, no --trace"
            )
        loads = load_of(prompt=Lengths.parse(1 if model.encoder else prompt or DECODER_PROMPT, "1"))
    guess = None if draft is None else _guess(model, draft, read, draft_tokens, accept)
    asked = _Asked(
        layout=Layout(ep=ep, dp=dp, pp=pp, kv=CACHES[kv], engine=engine), utilization=utilization, cluster=cluster,
        policy=policy, closed_form=closed_form,
        guess=guess, disaggregate=disaggregate,
    )  # fmt: skip
    points = [
        _point(server, load, prices.get(each.name))
        for each in gpus for count in ([tp] if isinstance(tp, int) else tp)
        for server in [_server(model, each, count, asked)] for load in loads
    ]  # fmt: skip
    if all(point.refused for point in points):
        raise UsageError(f"{points[0].name}: {points[0].refused}")
    found = best([p.candidate for p in points if p.candidate is not None], limits) if limits else None
    notes = notes_of(points, model, gpus, cluster is None)
    return Serving(
        model=model, points=tuple(points), objectives=limits, best=found, draft=str(guess or ""), notes=notes
    )


@dataclass(frozen=True, kw_only=True)
class _Guess:
    """What guesses tokens: another model, or None for the model's own module."""

    model: Model | None
    draft_tokens: int
    accept: float

    def __str__(self) -> str:
        name = "its own module (MTP)" if self.model is None else self.model.name
        return f"{name}, {counted(self.draft_tokens, 'token')}, each right at {100 * self.accept:.3g}%"

    def speculation(self, steps: GpuSteps, stored: Layout) -> Speculation:
        """Next to the ``steps`` of the model; ``stored`` as of :func:`_stored`."""
        if self.model is None:
            draft = steps.guessing()
        else:
            own = replace(_stored(stored, self.model), tp=steps.layout.tp)
            _check_layout(self.model.served, own)
            draft = GpuSteps(self.model.served, steps.gpu, own, steps.cluster, steps.utilization)
        return Speculation(draft_tokens=self.draft_tokens, accept=self.accept, draft=draft)


def _guess(
    model: Model, draft: str | Path | Model, read: Callable[[str | Path], Model], tokens: int | None, accept: float
) -> _Guess:
    if draft != OWN:
        other = draft if isinstance(draft, Model) else read(draft)
        return _Guess(model=other, draft_tokens=tokens or DRAFT_TOKENS, accept=accept)
    if not model.guesses:
        raise UsageError(
            f"{model.name} has no module that guesses tokens: its configuration states none of"
            f" {', '.join(GUESSING)}; --draft takes a smaller model"
        )
    return _Guess(model=None, draft_tokens=tokens or model.guesses, accept=accept)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What holds for all engines."""

    layout: Layout
    utilization: float
    cluster: str | Path | Cluster | None
    policy: Policy
    closed_form: bool
    guess: _Guess | None
    disaggregate: tuple[int, int] | None


@dataclass(frozen=True, kw_only=True)
class _Server:
    """Engines under a policy; ``steps`` are those that decode."""

    steps: GpuSteps
    engines: GpuSteps | Disaggregated
    policy: Policy
    gpus: int
    closed_form: bool

    def run(self, load: Workload) -> Requests | Steady:
        if not self.closed_form:
            return simulate_requests(self.engines, load, self.policy)
        if isinstance(self.engines, Disaggregated):
            raise UsageError("prompts and decodes on separate engines have no closed form: leave out --closed-form")
        return steady_state(self.engines, load, self.policy)


def steps_of(
    model: Model, gpu: Gpu, tp: int = 1, *, ep: int = 1, dp: int = 1, pp: int = 1,
    cluster: str | Path | Cluster | None = None, kv: str = "model", engine: str = "vllm",
    utilization: float = UTILIZATION,
) -> GpuSteps:  # fmt: skip
    """The steps of one engine; arguments and errors as of :func:`serve`."""
    _check_engine(kv, engine, utilization)
    if lacking := _lacks(model.served, gpu):
        raise UsageError(lacking)
    layout = Layout(ep=ep, dp=dp, pp=pp, kv=CACHES[kv], engine=engine)
    return _steps(model, gpu, replace(_stored(layout, model), tp=tp), cluster, utilization)


def _stored(layout: Layout, model: Model) -> Layout:
    """With a model's weights and cache as its configuration says, but for a cache that was asked for."""
    return replace(layout, weights=model.scheme, kv=layout.kv or model.cache)


def _steps(
    model: Model, gpu: Gpu, layout: Layout, cluster: str | Path | Cluster | None, utilization: float
) -> GpuSteps:
    _check_layout(model.served, layout)
    joined = _cluster(gpu, layout.gpus, cluster)
    host = engine_host(layout.engine)
    return GpuSteps(model.served, gpu, layout, joined, utilization, host=host, max_context=model.max_context)


def _server(model: Model, gpu: Gpu, count: int, asked: _Asked) -> _Server:
    layout = replace(_stored(asked.layout, model), tp=count)
    steps = _steps(model, gpu, layout, asked.cluster, asked.utilization)
    cluster = steps.cluster
    policy, engines, gpus = _of_engine(asked.policy, layout), steps, layout.gpus
    if asked.guess is not None:
        policy = replace(policy, speculation=asked.guess.speculation(steps, asked.layout))
    if asked.disaggregate is None:
        return _Server(steps=steps, engines=engines, policy=policy, gpus=gpus, closed_form=asked.closed_form)
    prompts, decodes = asked.disaggregate
    network = _NETWORK_BYTES_PER_S if cluster is None else list(cluster.link.values())[-1].bytes_per_s
    apart = Disaggregated(
        prompt=steps, decode=steps, prompt_engines=prompts, decode_engines=decodes, link_bytes_per_s=network
    )
    return _Server(
        steps=steps, engines=apart, policy=policy, gpus=gpus * (prompts + decodes), closed_form=asked.closed_form
    )


def _check_engine(kv: str, engine: str, utilization: float) -> None:
    for kind, name, names in (("dtype of the cache", kv, CACHES), ("engine", engine, ENGINES)):
        if name not in names:
            raise unknown(kind, name, names)
    if not 0 < utilization <= 1:
        raise UsageError(f"a server takes a share of a GPU's memory above 0 and up to 1, not {utilization:g}")


def _loads(
    concurrency: int | Iterable[int] | None, rate: float | None, *, prompt: Lengths, generate: Lengths, hit: float,
    trace: str | Path | None,
) -> list[Workload]:  # fmt: skip
    common: dict[str, Any] = {"prompt": prompt, "generate": generate, "prefix_hit": hit}
    if trace is not None:
        return [Workload(**common, trace=read_trace(trace))]
    if rate is not None:
        return [Workload(**common, rate_per_s=rate)]
    numbers = [concurrency] if isinstance(concurrency, int) else list(concurrency or ())
    if not numbers:
        raise UsageError("no load given: name concurrency, or a rate")
    return [Workload(**common, concurrency=number) for number in numbers]


def prices_of(price: Mapping[str, float]) -> dict[str, float]:
    """USD per hour by the names under which memwall knows the GPUs. Raises ``UsageError``: a price is not above 0."""
    named = {load_gpus([name])[0].name: each for name, each in price.items()}
    for name, each in named.items():
        if isinstance(each, bool) or not isinstance(each, (int, float)) or not each > 0:
            raise UsageError(f"a GPU costs more than nothing, in USD an hour: the price of {name} is {each!r}")
    return named


def check_priced(prices: Mapping[str, float], gpus: Iterable[str]) -> None:
    """Raises ``UsageError``: some of the GPUs have a price, and others none."""
    if prices and (unpriced := [name for name in gpus if name not in prices]):
        raise UsageError(f"no price of {', '.join(unpriced)}: costs compare where all GPUs have one, or none")


def _prices(price: Mapping[str, float], gpus: Sequence[Gpu]) -> dict[str, float]:
    named = prices_of(price)
    for name in named:
        if name not in {gpu.name for gpu in gpus}:
            raise UsageError(f"a price of {name}, which is not among the GPUs: {', '.join(g.name for g in gpus)}")
    return named


def _cluster(gpu: Gpu, count: int, named: str | Path | Cluster | None) -> Cluster | None:
    if named is not None:
        return load_cluster(named)
    return cluster_of(gpu) if count > 1 else None


def _of_engine(policy: Policy, layout: Layout) -> Policy:
    """The policy of all groups of GPUs with sequences of their own, each of which has a scheduler."""
    return replace(
        policy, token_budget=policy.token_budget * layout.dp, max_batch=policy.max_batch * layout.dp,
        request_s=policy.request_s or engine_host(layout.engine).request_s,
    )  # fmt: skip


def _check_layout(kernels: Served, layout: Layout) -> None:
    """Raises UsageError: GPUs do not divide the heads, the experts or the layers."""
    for name in ("tp", "ep", "dp", "pp"):
        if getattr(layout, name) < 1:
            raise UsageError(f"--{name} {getattr(layout, name)}: want 1 or more")
    attending = [
        (kernel, n) for kernel, n in kernels.kernels if isinstance(kernel, (Attention, Compressed, Latent, State))
    ]
    for heads in (kernel.heads for kernel, _ in attending if isinstance(kernel, (Attention, Compressed, Latent))):
        _check_divides(layout.tp, heads, "heads", "tp")
    experts = [kernel.count for kernel, _ in kernels.kernels if isinstance(kernel, Experts)]
    if layout.ep > 1 and not experts:
        raise UsageError(f"--ep {layout.ep}: the model has no experts to divide")
    for count in experts:
        _check_divides(layout.ep, count, "experts", "ep")
    if layout.stage_gpus % layout.ep:
        raise UsageError(f"--ep {layout.ep} does not divide the {layout.stage_gpus} GPUs of --tp {layout.tp} and --dp"
                         f" {layout.dp}; --ep {math.gcd(layout.ep, layout.stage_gpus)} does")  # fmt: skip
    layers = sum(n for _, n in attending)
    if layout.pp > layers:
        raise UsageError(f"{layout.pp} stages are more than the {layers} layers; --pp {layers} is the most")


def _check_divides(parts: int, count: int, what: str, option: str) -> None:
    if count % parts:
        fitting = max(n for n in range(1, parts + 1) if count % n == 0)
        raise UsageError(f"{parts} GPUs do not divide {count} {what}; --{option} {fitting} does")


def _fitting(steps: GpuSteps) -> str:
    """The least ``--tp`` that holds weights which do not fit; empty where they do, or none does."""
    layout, free = steps.layout, steps.capacity_bytes - steps.reserved_bytes
    if steps.weights_bytes >= free:
        for count in range(layout.tp + 1, _MOST_TP + 1):
            more = replace(layout, tp=count)
            if steps.served.weights_bytes(more) < free:
                with contextlib.suppress(UsageError):
                    _check_layout(steps.served, more)
                    return f"; --tp {count} is the least that divides the heads"
    return ""


def _lacks(kernels: Served, gpu: Gpu) -> str:
    """Why engines do not run the model's dtype on a GPU; empty where they do."""
    dtypes = {kernel.dtype for kernel, _ in kernels.kernels if isinstance(kernel, Product)}
    other = "float16" if Pipe("tensor", "float16") in gpu.peak_flop_per_s else "float32"
    lacking = sorted(d for d in dtypes if d in _HALVES and gpu.ceiling_pipe(Pipe("tensor", d)).dtype != d)
    return f"{lacking[0]}, the model's dtype, does not run there; --dtype {other} does" if lacking else ""


def _point(server: _Server, load: Workload, price: float | None) -> Point:
    steps = server.steps
    guess = server.policy.speculation
    point = Point(
        gpu=steps.gpu, layout=steps.layout, workload=load, steps=steps, gpus=server.gpus,
        draft=guess.draft if guess else None,
    )  # fmt: skip
    if lacking := _lacks(steps.served, steps.gpu):
        return replace(point, refused=lacking)
    try:
        run = server.run(load)
        most = largest_batch(steps, load, server.policy)
    except UsageError as error:
        return replace(point, refused=f"{error}{_fitting(steps)}")
    batch, longest = max(round(run.batch), 1), load.longest.prompt_tokens + load.longest.generated_tokens
    candidate = Candidate(
        name=f"{point.name}, {point.load}", run=run, gpus=server.gpus, usd_per_gpu_hour=price,
        watts_per_gpu=steps.gpu.tdp_w, wall=steps.wall(Step(batch, round(batch * point.context))),
        kv_bytes_per_token=steps.served.token_bytes(longest, steps.layout) // steps.layout.dp,
    )  # fmt: skip
    return replace(point, candidate=candidate, largest_batch=most)
