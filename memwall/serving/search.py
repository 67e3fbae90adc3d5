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
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Unpack

from memwall.analysis.limits import Limit
from memwall.core.best_first import best_first
from memwall.core.errors import UsageError
from memwall.core.files import uncollected
from memwall.core.question import filled, options_of, signature_of
from memwall.core.views import ShownResult
from memwall.hardware.engine import load_engine
from memwall.hardware.lookup import DEFAULT_GPU, Gpu, load_gpus
from memwall.hardware.prices import Billed, check_billed, check_priced, prices_among, rates_of
from memwall.perfmodel.roofline import bound_s, peak_compute_s
from memwall.serving import Model, Point, serve, steps_of
from memwall.serving.candidates import ServerCandidate, cost_of, objective, objective_text, stop
from memwall.serving.kinds import shared_model
from memwall.serving.loads import PROMPT
from memwall.serving.question import CostOptions, EngineOptions, SearchOptions
from memwall.serving.run import check_engine, with_routing
from memwall.serving.simulation.lengths import Lengths
from memwall.serving.simulation.steady import largest_batch
from memwall.serving.simulation.timing import GpuSteps
from memwall.serving.simulation.workload import RequestLoad
from memwall.serving.steps import EngineStep
from memwall.serving.steps.attention import Attention, Compressed, Index, Latent
from memwall.serving.steps.kernels import Collective, Experts
from memwall.trace_cache import Traces, trace_folder

#: what is said of candidates whose bound is enough
_DEARER = "costs more than the best even at its bound"
#: kernels whose bound is not counted
_UNBOUNDED = (Attention, Compressed, Latent, Index, Collective)
#: between nodes a step's time is linear, so it is at least that of so much smaller a step
_NODE = 31 / 32


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """Engines that are alike: the options of one, how many there are, and their figures under the load, which are those
    of the ``point``."""

    options: Mapping[str, Any]
    engines: int
    gpus: int
    candidate: ServerCandidate
    point: Point

    @property
    def usd_per_million(self) -> float:
        """Cost of a million generated tokens; GPU seconds of one token where no price is known."""
        return self.candidate.cost


@dataclass(frozen=True, kw_only=True)
class Found(ShownResult):
    """The outcome: the ``best``, all that were ``simulated`` in order of cost, of how many, and why others were not."""

    best: EngineChoice
    simulated: tuple[EngineChoice, ...]
    count: int
    pruned: Mapping[str, int]
    objectives: tuple[Limit, ...]
    target: str = ""


class EngineCandidate(NamedTuple):
    """Engines that are alike: the options of one, how many there are, and the load of each."""

    options: Mapping[str, Any]
    engines: int
    load: Mapping[str, Any]


@signature_of(SearchOptions)
@uncollected()
def search(
    target: str,
    *,
    gpu: str | Sequence[str] = DEFAULT_GPU,
    gpus: int = 8,
    price: Mapping[str, float] | None = None,
    cache: bool = True,
    progress: Callable[[str], None] = lambda message: None,
    **load: Unpack[SearchOptions],
) -> Found:
    """The cheapest way to serve a load on up to so many GPUs: which GPU, how many engines, tp, ep, dp and pp of each,
    and the formats of weights and cache.

    Args:
        target: as :func:`memwall.serve` takes it; so are the options that are not named here.
        gpu: one or a list, each searched alone.
        gpus: the most GPUs of all engines together.
        concurrency, rate: the whole load, which engines share evenly; one of them.
        weights, kv: those to try.
        price: USD per hour of a GPU, by name; ``cache`` keeps traces, ``progress`` is told what is being done.
        prompt, generate, engine, utilization, routing, redundant, straggler, kwh, grams_per_kwh, pue, busy, spot, slo:
            as :func:`memwall.serve`.

    Raises:
        UsageError: as :func:`memwall.serve`; or no candidate keeps the objectives.
    """
    said = filled(SearchOptions, load)
    if (said.concurrency is None) == (said.rate is None):
        raise UsageError("say how requests come: concurrency, or a rate")
    check_engine(said, *said.kv)
    limits = tuple(objective(text) for text in said.slo)
    hardware = {each.name: each for each in load_gpus([gpu] if isinstance(gpu, str) else gpu)}
    prices = prices_among(price, hardware)
    check_priced(prices, hardware)
    check_billed(prices, vars(said))
    run = _EngineSearch(target, hardware, limits, prices, said, Traces(trace_folder() if cache else None), progress)
    with_routing(run.model(said.weights[0]), said)
    candidates = [
        EngineCandidate({"gpu": name, "weights": scheme, "kv": dtype, **layout}, engines, load)
        for name, scheme, dtype in itertools.product(hardware, said.weights, said.kv)
        for layout in _layouts(gpus, run.model(scheme))
        for engines, load in _loads(gpus, layout, said.concurrency, said.rate)
    ]
    done = best_first(candidates, [(_DEARER, run.least_cost), ("simulated", run.cost)], say=progress)
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
    )


def _layouts(gpus: int, model: Model) -> Iterator[dict[str, int]]:
    """How the GPUs of one engine may share the model; experts columnwise, or whole ones on each GPU."""
    has_experts = any(isinstance(kernel, Experts) for kernel, _ in model.served.kernels)
    numbers = range(1, gpus + 1)
    for tp, dp, pp in itertools.product(numbers, repeat=3):
        if tp * dp * pp <= gpus:
            for ep in sorted({1, tp * dp} if has_experts else {1}):
                yield {"tp": tp, "ep": ep, "dp": dp, "pp": pp}


def _loads(
    gpus: int, layout: Mapping[str, int], concurrency: int | None, rate: float | None
) -> list[tuple[int, dict[str, Any]]]:
    """Numbers of engines, and the load of each; engines that no client would ask are left out."""
    most = gpus // (layout["tp"] * layout["dp"] * layout["pp"])
    if concurrency is None:
        assert rate is not None
        return [(n, {"rate": rate / n}) for n in range(1, most + 1)]
    return [(n, {"concurrency": -(-concurrency // n)}) for n in range(1, min(most, concurrency) + 1)]


@dataclass
class _EngineSearch:
    """The bounds of candidates; ``said`` are the options of the search, ``simulated`` all that were."""

    target: str
    hardware: Mapping[str, Gpu]
    limits: Sequence[Limit]
    prices: Mapping[str, float]
    said: Any
    traces: Traces
    say: Callable[[str], None]
    simulated: list[EngineChoice] = field(default_factory=list)
    #: the steps of the candidates before, which share an engine, or why it is out
    _before: tuple[Mapping[str, Any], GpuSteps | str] = ({}, "")

    def __post_init__(self) -> None:
        self.prompt = self.said.prompt or PROMPT
        self.own = {name: getattr(self.said, name) for name in options_of(EngineOptions)}
        self.billed = {name: getattr(self.said, name) for name in options_of(CostOptions)}

    def model(self, scheme: str) -> Model:
        """The model with a scheme of weights."""
        return shared_model(self.traces, self.target, scheme, tokens=self.prompt + self.said.generate)

    def least_cost(self, each: EngineCandidate) -> float | str:
        """What candidates cost at least, or why they are out, without a simulation."""
        if each.options is not self._before[0]:
            self._before = each.options, self._steps(each.options)
        steps = self._before[1]
        if isinstance(steps, str):
            return steps
        most = load_engine(self.said.engine).limits(steps.gpu, steps.layout.tp, steps.layout.dp).max_batch
        most *= steps.layout.dp
        most = min(each.load.get("concurrency", most), most)
        rates = rates_of(steps.gpu, self.prices.get(each.options["gpu"]), self.billed)
        return cost_of(Billed(gpus=steps.layout.gpus, rates=rates), _most_tokens_per_s(steps, most))

    def _steps(self, options: Mapping[str, Any]) -> GpuSteps | str:
        """The steps of an engine, or why it is out under any load."""
        layout = {name: options[name] for name in ("tp", "ep", "dp", "pp")}
        try:
            steps = steps_of(
                self.model(options["weights"]), self.hardware[options["gpu"]], kv=options["kv"], **layout, **self.own
            )
        except UsageError:
            return "the model does not divide so, or no cluster joins so many GPUs"
        asked = RequestLoad(prompt=Lengths(self.prompt), generate=Lengths(self.said.generate), concurrency=1)
        try:
            largest_batch(steps, asked)
        except UsageError:
            return "weights and the cache of one request do not fit"
        least = least_times(steps, self.prompt, self.said.generate)
        for limit in self.limits:
            value = least.get(_stem(limit.quantity.name))
            if value is not None and not limit.holds(value):
                return f"no run keeps {objective_text(limit)} by its bound"
        return steps

    def cost(self, each: EngineCandidate) -> float | str:
        """What candidates cost, simulated; infinity where they miss an objective."""
        self.say(f"simulating {each.engines} x {', '.join(f'{k} {v}' for k, v in each.options.items())}")
        options = dict(each.options)
        model, name = self.model(options.pop("weights")), options["gpu"]
        price = {name: self.prices[name]} if name in self.prices else None
        asked = {"prompt": self.prompt, "generate": self.said.generate, **self.own, **self.billed, **each.load}
        try:
            (point,) = serve(model, **options, **asked, price=price).points
        except UsageError:
            return "refused by its simulation"
        assert point.candidate is not None
        choice = EngineChoice(
            options=each.options,
            engines=each.engines,
            gpus=each.engines * point.gpus,
            candidate=point.candidate,
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
