"""Servers as points of a sweep: ``decode``, one decode step, as the engine steps of ``memwall serve`` have it;
``serve``, a server under a load, as ``memwall serve`` of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Unpack

import numpy as np

from memwall.core.errors import MemwallError, UsageError, unknown
from memwall.core.question import filled, options_of, part_of, signature_of
from memwall.core.units import counted
from memwall.hardware.lookup import DEFAULT_GPU, Gpu, load_gpu
from memwall.hardware.prices import CostRates, rates_of
from memwall.perfmodel.power import idle_w
from memwall.points import Options, PointKind, Row, Task, engine_of, line
from memwall.serving.candidates import Decoding
from memwall.serving.loads import loads_of
from memwall.serving.model import CACHES, WEIGHTS, Model, read_model
from memwall.serving.power import StepPower
from memwall.serving.question import CostOptions, DecodeOptions, EngineLayout, ServeOptions
from memwall.serving.run import OWN, serve, steps_of
from memwall.serving.simulation.engine import BLOCK_TOKENS
from memwall.serving.simulation.timing import GpuSteps
from memwall.serving.steps import EngineStep
from memwall.serving.tower import MEDIA, media_of
from memwall.trace_cache import Traces

#: what a decode step and a server's load are where no axis says
_DECODED, _SERVED = {"batch": 1, "context": 1024}, {"concurrency": 64, "generate": 256}
_LISTED: Mapping[str, tuple[str, Iterable[str]]] = {
    "weights": ("scheme of weights", WEIGHTS), "kv": ("dtype of the cache", CACHES),
}  # fmt: skip


def shared_model(
    traces: Traces,
    target: str,
    weights: str = "model",
    dtype: str | None = None,
    tokens: int | None = None,
    media: Sequence[tuple[str, Any]] = (),
) -> Model:
    """A model as servers run it; arguments and errors as of :func:`memwall.serving.read_model`. One that its
    configuration does not quantise is read once for all formats of weights."""
    if weights not in WEIGHTS:
        raise unknown("scheme of weights", weights, WEIGHTS)
    pictured: dict[str, Any] = {"media": media} if media else {}
    made = _model(traces, target, dtype=dtype, **pictured)
    if made.max_context is None and tokens is not None:
        made = _model(traces, target, dtype=dtype, tokens=tokens, **pictured)
    if weights == "model":
        return made
    if made.scheme:
        return _model(traces, target, dtype=dtype, weights=weights, **pictured)
    return replace(made, scheme=WEIGHTS[weights])


def _model(traces: Traces, target: str, **options: Any) -> Model:
    made: Model = traces.shared("model", target, options, lambda: read_model(target, **options))
    return made


# -- decode steps ------------------------------------------------------------------------------------------------------


@signature_of(DecodeOptions)
def decode(
    target: str,
    *,
    gpu: str = DEFAULT_GPU,
    traces: Traces | None = None,
    usd_per_gpu_hour: float | None = None,
    **step: Unpack[DecodeOptions],
) -> Decoding:
    """One decode step of a server: ``batch`` sequences with ``context`` tokens in the cache of each make one more; the
    other arguments are as of :func:`memwall.serve`.

    Raises:
        UsageError: as :func:`memwall.serve`, or the model has fewer positions.
    """
    said = filled(DecodeOptions, step)
    known = Traces() if traces is None else traces
    model = shared_model(known, target, said.weights, said.dtype, said.context + 1)
    steps = steps_of(model, load_gpu(gpu), said.tp, **part_of(EngineLayout, step))
    if (beyond := _beyond(model, said.context)) is not None:
        raise UsageError(beyond)
    (time_s,), (wall,) = steps.decodes([said.batch], [said.context])
    rates = rates_of(steps.gpu, usd_per_gpu_hour, part_of(CostOptions, step))
    watts = StepPower(steps).watts(EngineStep(said.batch, said.batch * said.context), time_s)
    return _decoding(steps, said.batch, time_s, wall, _kv_bytes(steps, said.context), watts=watts, rates=rates)


def _kv_bytes(steps: GpuSteps, context: int) -> int:
    """Bytes on a GPU of the cache of a sequence and its next token, in whole blocks."""
    return steps.kv_bytes(-(-(context + 1) // BLOCK_TOKENS) * BLOCK_TOKENS)


def _beyond(model: Model, context: int) -> str | None:
    """Why a model cannot have so many tokens in the cache, if it cannot."""
    if model.max_context is None or context < model.max_context:
        return None
    return (
        f"{counted(context, 'token')} in the cache and one more are beyond the {model.max_context:,} positions of"
        f" the model; {model.max_context - 1:,} is the most"
    )


def _decoding(
    steps: GpuSteps, batch: Any, time_s: Any, wall: Any, kv_bytes: Any, *, watts: Any, rates: CostRates
) -> Decoding:
    """One step, or many where these are arrays."""
    return Decoding(
        batch=batch,
        gpus=steps.layout.gpus,
        time_s=time_s,
        limited_by=wall,
        weights_bytes=steps.weights_bytes,
        held_bytes=steps.weights_bytes + steps.reserved_bytes,
        kv_bytes=kv_bytes,
        capacity_bytes=steps.capacity_bytes,
        rates=rates,
        watts_per_gpu=watts,
        idle_watts=idle_w(steps.gpu),
        engine=steps.host,
    )


def _decodes(task: Task, traces: Traces) -> list[Row]:
    """The steps of each engine in bulk."""
    rows: list[Row] = []
    gpus: dict[str, Gpu] = {}
    for key, points in groupby(task.points, key=engine_of(task, DECODE.inner)):
        engine = dict(key)
        weights, name = engine.pop("weights", "model"), engine.pop("gpu", DEFAULT_GPU)
        dtype, own = engine.pop("dtype", None), list(points)
        batches, contexts = ([{**_DECODED, **p}[name] for p in own] for name in ("batch", "context"))
        try:
            if name not in gpus:
                gpus[name] = load_gpu(name)
            model = shared_model(traces, task.target, weights, dtype, max(contexts) + 1)
            billed = {name: engine.pop(name) for name in options_of(CostOptions) if name in engine}
            rates = rates_of(gpus[name], task.prices.get(gpus[name].name), billed)
            steps = steps_of(model, gpus[name], **engine)
        except MemwallError as error:
            rows += [line(str(error))] * len(own)
        else:
            rows += _of_engine(model, steps, batches, contexts, rates)
    return rows


def _of_engine(
    model: Model, steps: GpuSteps, batches: Sequence[int], contexts: Sequence[int], rates: CostRates
) -> list[Row]:
    """The rows of the steps of one engine; numbers are Python's, which do not overflow."""
    refused = {context: _beyond(model, context) for context in set(contexts)}
    rows: list[Row] = [refused[context] or "" for context in contexts]
    able = [i for i, row in enumerate(rows) if not row]
    batch, context = [batches[i] for i in able], [contexts[i] for i in able]
    try:
        times, walls = steps.decodes(batch, context)
    except MemwallError as error:
        if len(able) == 1:
            rows[able[0]] = line(str(error))
            return rows
        return [_of_engine(model, steps, [b], [c], rates)[0] for b, c in zip(batches, contexts, strict=True)]
    caches = {each: _kv_bytes(steps, each) for each in set(context)}
    power = StepPower(steps)
    watts = [power.watts(EngineStep(b, b * c), s) for b, c, s in zip(batch, context, times, strict=True)]
    asked = (batch, times, walls, [caches[each] for each in context], watts)
    numbers, seconds, limits, held, drawn = (np.array(each, dtype=object) for each in asked)
    made = _decoding(steps, numbers, seconds, limits, held, watts=None if None in watts else drawn, rates=rates)
    readers = [quantity.readers["decode"] for quantity in DECODE.quantities]
    columns = [np.broadcast_to(np.array(read(made), dtype=object), len(able)).tolist() for read in readers]
    for i, row in zip(able, zip(*columns, strict=True), strict=True):
        rows[i] = row
    return rows


# -- servers -----------------------------------------------------------------------------------------------------------


def _servers(task: Task, traces: Traces) -> list[Row]:
    """Each engine under its loads; loads of one engine that follow one another share its steps."""
    rows: list[Row] = []
    for key, points in groupby(task.points, key=engine_of(task, SERVE.inner)):
        asked, clients = dict(key), [{**_SERVED, **point}["concurrency"] for point in points]
        try:
            rows += _served(task, asked, clients, traces)
        except MemwallError as error:
            rows += [line(str(error))] * len(clients)
    return rows


def _served(task: Task, asked: dict[str, Any], clients: Sequence[int], traces: Traces) -> list[Row]:
    name = asked.get("gpu", DEFAULT_GPU)
    weights, dtype = asked.pop("weights", "model"), asked.pop("dtype", None)
    load = filled(ServeOptions, {**_SERVED, **part_of(ServeOptions, asked)})
    tokens = max(each.longest.tokens for each in loads_of(load).loads)
    media = media_of({option: asked.pop(option, None) for option in MEDIA.values()})
    model = shared_model(traces, task.target, weights, dtype, tokens, media)
    if isinstance(asked.get("draft"), str) and asked["draft"] != OWN:
        asked["draft"] = shared_model(traces, asked["draft"], dtype=dtype, tokens=tokens)
    loads = {} if asked.keys() & {"rate", "trace"} else {"concurrency": clients}
    gpu = load_gpu(name)
    price = {gpu.name: task.prices[gpu.name]} if gpu.name in task.prices else None
    found = serve(model, **{**asked, **loads, "gpu": gpu, "price": price})
    readers = [quantity.readers["serve"] for quantity in SERVE.quantities]
    rows: list[Row] = [
        line(point.refused) if point.candidate is None else tuple(read(point.candidate) for read in readers)
        for point in found.points
    ]
    return rows if loads else rows * len(clients)


def _alone(point: Options, price: Sequence[str]) -> tuple[str, Options]:
    """``memwall serve`` of a point, with what it has where no axis says."""
    return "serve", {**point, **SERVE.usual_of(point), "price": price}


# -- the kinds ---------------------------------------------------------------------------------------------------------

DECODE = PointKind(
    name="decode", title="one decode step of a server", rows=_decodes,
    options=("gpu", *options_of(DecodeOptions)),
    numbers=("gpu", *(name for name in options_of(DecodeOptions) if name != "dtype")),
    inner=("batch", "context"), most=2000,
    best=("tokens_per_s_per_gpu",),
    front=("tokens_per_s_per_user", "tokens_per_s_per_gpu"), across=("batch", "context"), usual=_DECODED,
    commands=("serve", "profile"), listed=_LISTED,
)  # fmt: skip

SERVE = PointKind(
    name="serve", title="a server under a load, as memwall serve has it", rows=_servers, alone=_alone,
    options=("gpu", *options_of(ServeOptions)),
    numbers=("gpu", *(name for name in options_of(ServeOptions) if name not in ("draft", "dtype", "image"))),
    inner=("concurrency",), most=64, best=("tokens_per_s_per_gpu",),
    front=("tokens_per_s_per_user", "tokens_per_s_per_gpu"), across=("concurrency", "rate", "prompt"),
    usual=_SERVED,
    commands=("serve", "profile"), listed=_LISTED,
)  # fmt: skip
