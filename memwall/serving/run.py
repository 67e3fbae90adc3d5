"""Servers of a model: engines on each GPU and for each number of GPUs, run under each load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

from memwall.core.errors import UsageError, unknown
from memwall.core.files import uncollected
from memwall.core.progress import counting, heard, tell
from memwall.core.question import filled, options_of, signature_of
from memwall.frontend.hf.config import GUESSING
from memwall.hardware.engine import ENGINES as ENGINES
from memwall.hardware.engine import load_engine
from memwall.hardware.lookup import Gpu, load_gpus
from memwall.hardware.prices import check_priced, prices_among, rates_of
from memwall.perfmodel.power import idle_w
from memwall.pipeline import Names
from memwall.serving.answer import Point, Serving, notes_of
from memwall.serving.candidates import ServerCandidate, choices, objective
from memwall.serving.engines import AskedEngine, AskedPolicy, Guess, Server, fitting, lacks, steps_in, stored_in, within
from memwall.serving.launch.reading import ServerLaunch, read_launch
from memwall.serving.loads import check_load, fleet_of, loads_of, loads_of_model
from memwall.serving.model import CACHES, Model, read_model
from memwall.serving.power import run_watts
from memwall.serving.question import ACCEPT, CostOptions, EngineLayout, ServeOptions
from memwall.serving.simulation.steady import largest_batch
from memwall.serving.simulation.timing import GpuSteps
from memwall.serving.simulation.workload import RequestLoad
from memwall.serving.steps import EngineStep, Layout
from memwall.serving.steps.routing import read_routing, routed
from memwall.serving.tower import media_of

#: in the note of a traced step whose experts are all alike
_BY_CHANCE = "experts=balanced"
#: what names the model's own module as a draft, and tokens that another model guesses where no number is given
OWN, DRAFT_TOKENS = "mtp", 4


@heard
@signature_of(ServeOptions)
@uncollected()
def serve(
    target: str | Path | Model | None = None,
    *,
    gpu: Names = "h100-sxm",
    price: Mapping[str, float] | None = None,
    slo: Sequence[str] = (),
    launch: str | Path | Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
    **server: Unpack[ServeOptions],
) -> Serving:
    """What a server of a model does under load.

    Args:
        target: a language model as :func:`memwall.profile` takes it, with a decode step; a saved profile of one, or
            one that was read. None: the model that ``launch`` names.
        gpu: names, specs or paths of specs; one or a list.
        price: USD per hour of a GPU, by name.
        slo: objectives such as ``ttft_p99<500ms``; for each load the cheapest point that keeps them is picked.
        launch: the command line that starts the server (:func:`memwall.serving.launch.read_launch`): its flags are
            options, and what none says is the engine's default.
        progress: called with one-line messages.

    Raises:
        UsageError: as :func:`read_model`; a name, number or objective is wrong, or no point keeps the objectives; or as
            :func:`~memwall.serving.launch.read_launch`, or an option says what a flag says, and otherwise.
    """
    target, line = target_of(target, launch)
    said = filled(ServeOptions, server if line is None else line.merged(server))
    check_engine(said, said.kv)
    gpus = load_gpus([gpu] if isinstance(gpu, (str, Gpu)) else gpu)
    limits = tuple(objective(text) for text in slo)
    check_load(said)
    asked = loads_of(said)
    prices = prices_among(price, [each.name for each in gpus])
    if limits:
        check_priced(prices, [each.name for each in gpus])
    longest = max(load.longest.tokens for load in asked.loads)
    read = partial(read_model, dtype=said.dtype, tokens=longest, prompt=said.prompt)
    tell(f"tracing {target if isinstance(target, (str, Path)) else target.name}")
    media = media_of(vars(said))
    if media and isinstance(target, Model):
        raise UsageError("a model that was read already has what stands in front of prompts: read it with media")
    model = target if isinstance(target, Model) else read(target, weights=said.weights, media=media)
    model = with_routing(model, said)
    asked = loads_of_model(model, said, asked)
    guess = None if said.draft is None else _guess(model, said.draft, read, said.draft_tokens, said.accept)
    servers = [replace(each, limits=limits) for each in _engines(model, gpus, prices, said, guess)]
    points = _points(servers, asked.loads)
    found = choices([p.candidate for p in points if p.candidate is not None], limits) if limits else ()
    return Serving(
        model=model,
        points=tuple(points),
        objectives=limits,
        choices=found,
        draft=str(guess or ""),
        notes=(*filter(None, (asked.note,)), *notes_of(points, model, gpus, said.cluster is None)),
        launch=line,
        dtype=said.dtype,
        target=str(target) if str(target).startswith("hf:") else "MODEL",
    )


def target_of(
    target: str | Path | Model | None, launch: str | Path | Sequence[str] | None
) -> tuple[str | Path | Model, ServerLaunch | None]:
    """The target, and the command line that was read. Raises UsageError: neither is given, or as ``read_launch``."""
    if launch is None and target is None:
        raise UsageError("name a target, or a launch line")
    if launch is None:
        assert target is not None
        return target, None
    line = read_launch(launch, str(target) if isinstance(target, (str, Path)) else None)
    return line.target if target is None else target, line


def _engines(
    model: Model, gpus: Sequence[Gpu], prices: Mapping[str, float], said: Any, guess: Guess | None
) -> list[AskedEngine]:
    """The engines that are asked for: each GPU with each number of GPUs that share matmuls."""
    engine, asked = load_engine(said.engine), asked_policy(said)
    rates = {name: getattr(said, name) for name in options_of(CostOptions)}
    return [
        AskedEngine(
            model=model,
            gpu=each,
            engine=engine,
            weights=said.weights,
            utilization=said.utilization,
            cluster=said.cluster,
            layout=Layout(tp=count, ep=said.ep, dp=said.dp, pp=said.pp, kv=CACHES[said.kv], engine=engine.kernels),
            asked=asked,
            utilization_of=said.utilization_of,
            max_context=said.max_context,
            straggler=said.straggler,
            closed_form=said.closed_form,
            guess=guess,
            disaggregate=said.disaggregate,
            fleet=fleet_of(said),
            client_s=(said.client or 0.0) / 1e3,
            rates=rates_of(each, prices.get(each.name), rates),
        )
        for each in gpus
        for count in ([said.tp] if isinstance(said.tp, int) else said.tp)
    ]


def asked_policy(said: Any) -> AskedPolicy:
    """What is asked of the scheduler. Raises UsageError: CUDA graphs that are turned off have batches, or there is no
    such share of memory or such a way of prompts."""
    for name, what in (("utilization_of", "share of memory"), ("prefill", "way of steps to take prompts")):
        given, choices = getattr(said, name), options_of(ServeOptions)[name].choices
        if given is not None and given not in choices:
            raise unknown(what, given, choices)
    if said.eager and said.captured:
        raise UsageError("--eager and --captured: no CUDA graph holds a batch; leave one out")
    asked = (said.captured,) if isinstance(said.captured, int) else said.captured
    return AskedPolicy(
        max_batch=said.max_batch,
        token_budget=said.token_budget,
        prefill=said.prefill,
        captured=() if said.eager else tuple(sorted(asked)) if asked else None,
    )


def _guess(
    model: Model, draft: str | Path | Model, read: Callable[[str | Path], Model], tokens: int | None, accept: float
) -> Guess:
    if draft != OWN:
        other = draft if isinstance(draft, Model) else read(draft)
        return Guess(model=other, draft_tokens=tokens or DRAFT_TOKENS, accept=accept)
    return own_guess(model, tokens, accept)


def own_guess(model: Model, tokens: int | None = None, accept: float = ACCEPT) -> Guess:
    """The guesses of a model's own module. Raises UsageError: it has none."""
    if not model.guesses:
        raise UsageError(
            f"{model.name} has no module that guesses tokens: its configuration states none of"
            f" {', '.join(GUESSING)}; --draft takes a smaller model"
        )
    return Guess(model=None, draft_tokens=tokens or model.guesses, accept=accept)


def steps_of(model: Model, gpu: Gpu, tp: int = 1, **engine: Unpack[EngineLayout]) -> GpuSteps:
    """The steps of one engine; arguments and errors as of :func:`serve`."""
    said = filled(EngineLayout, engine)
    check_engine(said, said.kv)
    spec = load_engine(said.engine)
    if lacking := lacks(model.served, gpu):
        raise UsageError(lacking)
    layout = Layout(tp=tp, ep=said.ep, dp=said.dp, pp=said.pp, kv=CACHES[said.kv], engine=spec.kernels)
    steps = steps_in(with_routing(model, said), gpu, stored_in(layout, model), spec, said.cluster)
    own = within(steps, AskedPolicy().of(spec, gpu, layout))
    return replace(own, utilization=said.utilization, straggler=said.straggler)


def asked_engine(target: str | Path, gpu: Gpu, said: Any, tokens: int) -> AskedEngine:
    """One engine of a server that ``said`` says, for sequences of so many tokens. Raises UsageError: as :func:`serve`,
    or the model has an encoder in front."""
    check_engine(said, said.kv)
    read = partial(read_model, dtype=said.dtype, tokens=tokens)
    model = with_routing(read(target, weights=said.weights), said)
    if model.encoder is not None:
        raise UsageError(f"{model.name} has an encoder in front: a result does not say what that read")
    guess = None if said.draft is None else _guess(model, said.draft, read, said.draft_tokens, said.accept)
    (asked,) = _engines(model, [gpu], {}, said, guess)
    return asked


def with_routing(model: Model, said: Any) -> Model:
    """The model whose tokens choose experts as is asked. Raises UsageError: as ``read_routing`` and ``routed``."""
    made = routed(model.served, read_routing(said.routing, said.redundant))
    if made is model.served:
        return model
    return replace(model, served=made, notes=tuple(note for note in model.notes if _BY_CHANCE not in note))


def check_engine(said: Any, *caches: str) -> None:
    """Raises UsageError: an engine or a dtype of a cache is unknown, or a share is not above 0 and up to 1."""
    load_engine(said.engine)
    for kv in caches:
        if kv not in CACHES:
            raise unknown("dtype of the cache", kv, CACHES)
    shares = {"takes a share of a GPU's memory": said.utilization, "has a GPU at a share of its speed": said.straggler}
    for what, share in shares.items():
        if not 0 < share <= 1:
            raise UsageError(f"a server {what} above 0 and up to 1, not {share:g}")


def _points(servers: Sequence[AskedEngine], loads: list[RequestLoad]) -> list[Point]:
    """The engines under the loads. Raises UsageError: all are refused."""
    every = counting(loads * len(servers), "simulating loads")
    points = [point for each in servers for point in points_of(each, islice(every, len(loads)))]
    if all(point.refused for point in points):
        raise UsageError(f"{points[0].name}: {points[0].refused}")
    return points


def points_of(asked: AskedEngine, loads: Iterable[RequestLoad]) -> list[Point]:
    """An engine under each load. Raises UsageError: as :meth:`AskedEngine.server`."""
    server = asked.server()
    return [_point(asked, server, load) for load in loads]


def _point(asked: AskedEngine, server: Server, load: RequestLoad) -> Point:
    steps = server.steps
    guess = server.policy.speculation
    point = Point(
        asked=asked,
        gpu=steps.gpu,
        layout=steps.layout,
        workload=load,
        steps=steps,
        gpus=server.gpus,
        draft=guess.draft if guess else None,
    )
    if lacking := lacks(steps.served, steps.gpu):
        return replace(point, refused=lacking)
    try:
        run = server.run(load)
        most = largest_batch(steps, load, server.policy)
    except UsageError as error:
        return replace(point, refused=f"{error}{fitting(steps)}")
    batch, longest = max(round(run.batch), 1), load.longest.tokens
    candidate = ServerCandidate(
        name=f"{point.name}, {point.load}",
        load=point.load,
        run=run,
        gpus=server.mean_gpus(run),
        limits=asked.limits,
        is_closed=load.concurrency is not None,
        rates=asked.rates,
        idle_watts=idle_w(steps.gpu),
        wall=steps.wall(EngineStep(batch, round(batch * point.context))),
        kv_bytes_per_token=steps.served.token_bytes(longest, steps.layout) // steps.layout.dp,
        largest_batch=most,
        engine=server.host,
    )
    point = replace(point, candidate=candidate, largest_batch=most)
    return replace(point, candidate=replace(candidate, watts_per_gpu=run_watts(point, server.policy)))
