"""The cheapest engines for a load that keep the objectives, exact (:mod:`memwall.core.best_first`).

No step is faster than the speed of light of its kernels (:func:`memwall.perfmodel.roofline.bound_s`), without kernels
that read the cache and without messages. So a token takes no less than a step of one sequence, a prompt no less than
its FLOPs at the peaks, and an engine makes no more tokens per second than the best batch of such steps, which bounds
its cost from below.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Unpack

from memwall.analysis.limits import Limit
from memwall.core.best_first import best_first
from memwall.core.errors import UsageError
from memwall.core.files import uncollected
from memwall.core.progress import heard, tell
from memwall.core.question import filled, part_of, signature_of
from memwall.core.views import ShownResult
from memwall.hardware.engine import load_engine
from memwall.hardware.lookup import DEFAULT_GPU, Gpu, load_gpus
from memwall.hardware.prices import Billed, check_billed, check_priced, prices_among, rates_of
from memwall.perfmodel.roofline import bound_s, peak_compute_s
from memwall.serving import Model, Point, serve, steps_of
from memwall.serving.candidates import ServerCandidate, cost_of, objective, objective_text, stop
from memwall.serving.kinds import shared_model
from memwall.serving.loads import check_load, loads_of, loads_of_model
from memwall.serving.question import CostOptions, EngineOptions, LoadOptions, SearchOptions
from memwall.serving.run import check_engine, with_routing
from memwall.serving.simulation.fleet import ONE
from memwall.serving.simulation.steady import largest_batch
from memwall.serving.simulation.timing import GpuSteps
from memwall.serving.steps import EngineStep
from memwall.serving.steps.attention import Attention, Compressed, Index, Latent
from memwall.serving.steps.kernels import Collective, Experts
from memwall.serving.tower import MEDIA, media_of
from memwall.trace_cache import Traces, trace_folder

#: what is said of candidates whose bound is enough
_DEARER = "costs more than the best even at its bound"
#: kernels whose bound is not counted
_UNBOUNDED = (Attention, Compressed, Latent, Index, Collective)
#: between nodes a step's time is linear, so it is at least the time of so much smaller a step
_NODE = 31 / 32


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """Engines that are alike: the options of one, how many there are, and their figures under the load, which are those
    of the ``point``."""

    options: Mapping[str, Any]
    engines: int
    gpus: int
    candidate: ServerCandidate
    point: Point = field(repr=False)

    @property
    def usd_per_million(self) -> float:
        """Cost of a million generated tokens; GPU seconds of one token where no price is known."""
        return self.candidate.cost


@dataclass(frozen=True, kw_only=True, repr=False)
class Found(ShownResult):
    """The outcome: the ``best``, all that were ``simulated`` in order of cost, of how many, and why others were not."""

    best: EngineChoice
    simulated: tuple[EngineChoice, ...]
    count: int
    pruned: Mapping[str, int]
    objectives: tuple[Limit, ...]
    target: str = ""
    #: of the model
    name: str = ""


class EngineCandidate(NamedTuple):
    """Engines that are alike: the options of one, and how many there are."""

    options: Mapping[str, Any]
    engines: int


@heard
@signature_of(SearchOptions)
@uncollected()
def search(
    target: str,
    *,
    gpu: str | Sequence[str] = DEFAULT_GPU,
    gpus: int = 8,
    price: Mapping[str, float] | None = None,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
    **load: Unpack[SearchOptions],
) -> Found:
    """The cheapest way to serve a load on up to so many GPUs: which GPU, how many engines, tp, ep, dp and pp of each,
    and the formats of weights and cache.

    Args:
        target: as :func:`memwall.serve` takes it.
        prompt, generate, lengths, images, frames, audio, image, prefix_hit, trace_scale, burst, turns, think,
            system_prompt, requests, client, engine, utilization, routing, redundant, straggler, kwh, grams_per_kwh,
            pue, busy, spot, slo: as of :func:`memwall.serve`.
        gpu: one or a list, each searched alone.
        gpus: the most GPUs of all engines together.
        concurrency, rate, trace: the whole load, which engines share by ``route``; one of them.
        replicas: so many engines alone; None tries each number.
        weights, kv: formats to try.
        price: USD per hour of a GPU, by name; ``cache`` keeps traces, ``progress`` is told what is being done.

    Raises:
        UsageError: as :func:`memwall.serve`; there are not so many engines; or no candidate keeps the objectives.
    """
    said = filled(SearchOptions, load)
    if sum(way is not None for way in (said.concurrency, said.rate, said.trace)) != 1:
        raise UsageError("say how requests come: by concurrency, a rate or a trace, one of them")
    check_load(said)
    check_engine(said, *said.kv)
    limits = tuple(objective(text) for text in said.slo)
    hardware = {each.name: each for each in load_gpus([gpu] if isinstance(gpu, str) else gpu)}
    prices = prices_among(price, hardware)
    check_priced(prices, hardware)
    check_billed(prices, vars(said))
    run = _EngineSearch(target, hardware, limits, prices, said, Traces(trace_folder() if cache else None))
    tell(f"tracing {target}")
    with_routing(model := run.model(said.weights[0]), said)
    numbers = _numbers(gpus, said)
    candidates = [
        EngineCandidate(options, engines)
        for name, scheme, dtype in itertools.product(hardware, said.weights, said.kv)
        for layout in _layouts(gpus, run.model(scheme))
        for options in [{"gpu": name, "weights": scheme, "kv": dtype, **layout}]
        for engines in numbers
        if engines * layout["tp"] * layout["dp"] * layout["pp"] <= gpus
    ]
    done = best_first(candidates, [(_DEARER, run.least_cost), ("simulated", run.cost)])
    keeping = [each for each in run.simulated if stop(each.candidate, limits) is None]
    if not keeping:
        raise UsageError(_unreachable(run.simulated, limits, done.pruned, len(candidates)))
    keeping.sort(key=lambda each: (each.usd_per_million, each.gpus))
    return Found(
        best=keeping[0],
        simulated=tuple(keeping),
        count=len(candidates),
        pruned=done.pruned,
        objectives=limits,
        target=target,
        name=model.name,
    )


def _layouts(gpus: int, model: Model) -> Iterator[dict[str, int]]:
    """How the GPUs of one engine may share the model; experts columnwise, or whole ones on each GPU."""
    has_experts = any(isinstance(kernel, Experts) for kernel, _ in model.served.kernels)
    numbers = range(1, gpus + 1)
    for tp, dp, pp in itertools.product(numbers, repeat=3):
        if tp * dp * pp <= gpus:
            for ep in sorted({1, tp * dp} if has_experts else {1}):
                yield {"tp": tp, "ep": ep, "dp": dp, "pp": pp}


def _numbers(gpus: int, said: Any) -> Sequence[int]:
    """Numbers of engines, up to the number of clients. Raises UsageError: not so many can be, or a router has one
    engine to choose from."""
    most = min(gpus, said.concurrency or gpus)
    if said.replicas is not None and said.replicas > most:
        raise UsageError(f"--replicas {said.replicas} are more than --gpus or --concurrency; {most} is the most")
    numbers = range(1, most + 1) if said.replicas is None else [said.replicas]
    if max(numbers) == 1 and said.route != ONE.route:
        raise UsageError(f"--route {said.route} of one engine has no effect: give more --gpus or --concurrency")
    return numbers


@dataclass
class _EngineSearch:
    """The bounds of candidates; ``said`` are the options of the search, ``simulated`` all that were."""

    target: str
    hardware: Mapping[str, Gpu]
    limits: Sequence[Limit]
    prices: Mapping[str, float]
    said: Any
    traces: Traces
    simulated: list[EngineChoice] = field(default_factory=list)
    #: the steps of the candidates before, which share an engine, or why it is out
    _before: tuple[Mapping[str, Any], GpuSteps | str] = ({}, "")

    def __post_init__(self) -> None:
        said = vars(self.said)
        self.own, billed, asked = (part_of(part, said) for part in (EngineOptions, CostOptions, LoadOptions))
        self.media = media_of(said)
        read_with_model = dict.fromkeys(MEDIA.values())
        self.served = {**self.own, **billed, **asked, **read_with_model, "concurrency": self.said.concurrency}
        self.billed, self.loads = billed, loads_of(self.said)

    def model(self, scheme: str) -> Model:
        """The model with a scheme of weights."""
        (load,) = self.loads.loads
        return shared_model(self.traces, self.target, scheme, tokens=load.longest.tokens, media=self.media)

    def least_cost(self, each: EngineCandidate) -> float | str:
        """What candidates cost at least, or why they are out, without a simulation."""
        if each.options is not self._before[0]:
            self._before = each.options, self._steps(each.options)
        steps = self._before[1]
        if isinstance(steps, str):
            return steps
        most = load_engine(self.said.engine).limits(steps.gpu, steps.layout.tp, steps.layout.dp).max_batch
        most *= steps.layout.dp
        if self.said.concurrency is not None:
            # the least loaded engine has no more than its share of the clients when it takes a request
            sharing = each.engines if self.said.route == ONE.route else 1
            most = min(most, -(-self.said.concurrency // sharing))
        rates = rates_of(steps.gpu, self.prices.get(each.options["gpu"]), self.billed)
        return cost_of(Billed(gpus=steps.layout.gpus, rates=rates), _most_tokens_per_s(steps, most))

    def _steps(self, options: Mapping[str, Any]) -> GpuSteps | str:
        """The steps of an engine, or why it is out under any load."""
        layout = {name: options[name] for name in ("tp", "ep", "dp", "pp")}
        model = self.model(options["weights"])
        try:
            steps = steps_of(model, self.hardware[options["gpu"]], kv=options["kv"], **layout, **self.own)
        except UsageError:
            return "the model does not divide so, or no cluster joins so many GPUs"
        (load,) = loads_of_model(model, self.said, self.loads).loads
        try:
            largest_batch(steps, load)
        except UsageError:
            return "weights and the cache of one request do not fit"
        least = least_times(steps, load.shortest.prompt_tokens, load.shortest.generated_tokens)
        for limit in self.limits:
            value = least.get(_stem(limit.quantity.name))
            if value is not None and not limit.holds(value):
                return f"no run keeps {objective_text(limit)} by its bound"
        return steps

    def cost(self, each: EngineCandidate) -> float | str:
        """What candidates cost, simulated; infinity where they miss an objective."""
        tell(f"simulating {each.engines} x {', '.join(f'{k} {v}' for k, v in each.options.items())}")
        options = dict(each.options)
        model, name = self.model(options.pop("weights")), options["gpu"]
        price = {name: self.prices[name]} if name in self.prices else None
        shared: dict[str, Any] = {"replicas": each.engines, "route": self.said.route if each.engines > 1 else ONE.route}
        try:
            (point,) = serve(model, **options, **self.served, **shared, price=price).points
        except UsageError:
            return "refused by its simulation"
        assert point.candidate is not None
        choice = EngineChoice(
            options=each.options,
            engines=each.engines,
            gpus=point.gpus,
            candidate=replace(point.candidate, limits=tuple(self.limits)),
            point=point,
        )
        self.simulated.append(choice)
        return choice.usd_per_million if stop(choice.candidate, self.limits) is None else math.inf


def _stem(name: str) -> str:
    """The quantity of a percentile: none is below the least of all requests."""
    return next((stem for stem in ("ttft", "tpot", "e2e") if name.startswith(stem)), name)


def least_times(steps: GpuSteps, prompt: int, generate: int, sequences: int = 1) -> dict[str, float]:
    """By quantity what no request beats."""
    step_s, each = _least_step_s(steps, sequences), steps.each(EngineStep(0, 0, ((prompt, 0),)))
    flops_s = sum(
        n * peak_compute_s(kernel.cost(own, steps.layout), steps.gpu.fastest())
        for kernel, n, own in each
        if not isinstance(kernel, _UNBOUNDED)
    )
    return {
        "tpot": step_s,
        "tokens_per_s_per_user": 1 / step_s,
        "ttft": flops_s,
        "e2e": flops_s + (generate - 1) * step_s,
    }


def _least_step_s(steps: GpuSteps, sequences: int) -> float:
    """Seconds that no step with a token of each of so many sequences beats."""
    step = EngineStep(max(int(_NODE * sequences), 1), 0)
    return sum(
        n * bound_s(kernel.cost(own, steps.layout), steps.gpu)
        for kernel, n, own in steps.each(step)
        if not isinstance(kernel, _UNBOUNDED)
    )


def _most_tokens_per_s(steps: GpuSteps, most: int) -> float:
    """Tokens per second that no steps of up to ``most`` sequences beat: a larger step takes no less time, so between
    two batches the larger one's tokens in the smaller one's time are a bound."""
    found, low = 0.0, 0
    while low < most:
        high = min(max(low + 1, math.floor(low * 1.125)), most)
        found = max(found, high / _least_step_s(steps, low + 1))
        low = high
    return found


def _unreachable(
    simulated: Sequence[EngineChoice], limits: Sequence[Limit], pruned: Mapping[str, int], count: int
) -> str:
    """Why nothing is left."""
    reasons = [f"{n:,}: {why}" for why, n in pruned.items()]
    missed = [stop(each.candidate, limits) for each in simulated]
    named = Counter(objective_text(each.objective) for each in missed if each is not None)
    reasons += [f"{n:,} miss {text} when simulated" for text, n in named.items()]
    return f"none of {count:,} candidates keeps all objectives; {'; '.join(reasons)}"
