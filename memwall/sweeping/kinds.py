"""What a point of a sweep is, and how those that share a trace are evaluated.

``profile``: one step of a model, as ``memwall profile`` of it. ``decode``: one decode step of a server, as the engine
steps of ``memwall serve`` have it. ``serve``: a server under a load, as ``memwall serve`` of it. ``training``: a step
on many GPUs, as ``memwall profile --parallel`` has it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from memwall.analysis.quantities import ALIASES, SERVED_ALIASES, Quantity, swept
from memwall.analysis.serving import Decoding
from memwall.analysis.sweep.axes import Axis
from memwall.core.errors import MemwallError, UsageError, message_of, suggest, unknown
from memwall.core.files import uncollected
from memwall.core.units import counted
from memwall.frontend.workload.sizes import MODES
from memwall.fusion import POLICIES
from memwall.hardware.cluster import gpu_of, joined, load_cluster
from memwall.hardware.host import load_host
from memwall.hardware.lookup import DEFAULT_GPU, Gpu, load_gpu
from memwall.pipeline import ATTENTION, profile, resimulate
from memwall.serving import CACHES, ENGINES, OWN, WEIGHTS, Model, serve, steps_of
from memwall.simulate.rank_memory import STATES
from memwall.simulate.serving.engine import BLOCK_TOKENS
from memwall.simulate.serving.timing import UTILIZATION, GpuSteps
from memwall.sweeping.traces import Traces
from memwall.sweeping.trainings import NUMBERS, OPTIONS, Rank, trained_at

Options = Mapping[str, Any]
#: the values of a kind's quantities, or why there are none
Row = tuple[Any, ...] | str

#: options of :func:`memwall.profile` that change no op: points that differ in them alone share a trace
_NUMBERS = ("gpu", "policy", "host", "cuda_graph")
#: what a decode step and a server's load are where no axis says
_DECODED, _SERVED = {"batch": 1, "context": 1024}, {"concurrency": 64, "generate": 256}


@dataclass(frozen=True, kw_only=True)
class Task:
    """Points of one target that share a trace, in order; what any engine runs. ``prices``: USD per hour by GPU."""

    kind: str
    target: str
    points: tuple[Options, ...]
    prices: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of points: the ``options`` that a point may have, those among them that do not change the trace
    (``numbers``), that only go with another (``needs``) and in which points of one engine differ (``inner``); the
    ``rows`` of a task of at most ``most`` points, and what pages show unless asked otherwise: ``best`` is the first of
    these that is known. ``usual``: options that pages state where no axis does, with what a point has then."""

    name: str
    title: str
    options: tuple[str, ...]
    numbers: tuple[str, ...]
    needs: Mapping[str, str] = field(default_factory=dict)
    inner: tuple[str, ...]
    most: int
    rows: Callable[[Task, Traces], list[Row]]
    best: tuple[str, ...]
    front: tuple[str, ...]
    across: tuple[str, ...]
    usual: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def quantities(self) -> list[Quantity]:
        """Its columns."""
        return swept(self.name)

    def trace_key(self, point: Options) -> tuple[tuple[str, Any], ...]:
        """What of a point changes its trace."""
        return tuple((name, point[name]) for name in sorted(point) if name not in self.numbers)


@uncollected()
def evaluate(task: Task, traces: Traces) -> list[Row]:
    """The rows of a task, in the order of its points. Whatever goes wrong with a point is its row."""
    try:
        return KINDS[task.kind].rows(task, traces)
    except MemwallError as error:
        return [_line(str(error))] * len(task.points)
    except Exception as error:  # of the user's model, or a bug of memwall
        return [_line(f"{type(error).__name__}: {message_of(error)}")] * len(task.points)


def _line(text: str) -> str:
    return " ".join(text.split()) or "failed without a message"


def _tried(make: Callable[[], Row]) -> Row:
    try:
        return make()
    except MemwallError as error:
        return _line(str(error))


# -- profiles ----------------------------------------------------------------------------------------------------------


def _profiles(task: Task, traces: Traces) -> list[Row]:
    """The quantities of each schedule; one graph serves all GPUs and policies."""
    rows: list[Row] = []
    for point in task.points:
        options = {name: value for name, value in point.items() if name not in _NUMBERS}
        rows.append(_tried(lambda: _profiled(task.target, point, options, traces)))  # noqa: B023  called here
    return rows


def _profiled(target: str, point: Options, options: Options, traces: Traces) -> Row:
    cluster = point.get("cluster")
    gpu = point.get("gpu") or gpu_of(cluster)
    made = traces.profile(target, gpu, options)
    said = {name: point[name] for name in ("policy", "cuda_graph", "host") if point.get(name) is not None}
    found = resimulate(made, joined([load_gpu(gpu)], cluster, point.get("world")), **said)
    schedule = found.simulations[0]
    return tuple(quantity.read("profile", found, schedule) for quantity in KINDS["profile"].quantities)


# -- decode steps ------------------------------------------------------------------------------------------------------


def decode(
    target: str, *, gpu: str = DEFAULT_GPU, tp: int = 1, ep: int = 1, dp: int = 1, pp: int = 1,
    cluster: str | None = None, batch: int = 1, context: int = 1024, weights: str = "model", kv: str = "model",
    dtype: str | None = None, engine: str = "vllm", utilization: float = UTILIZATION, traces: Traces | None = None,
    usd_per_gpu_hour: float | None = None,
) -> Decoding:  # fmt: skip
    """One decode step of a server: ``batch`` sequences with ``context`` tokens in the cache of each make one more; the
    other arguments are those of :func:`memwall.serve`.

    Raises:
        UsageError: as :func:`memwall.serve`, or the model has fewer positions.
    """
    model = (Traces() if traces is None else traces).model(target, weights, dtype, context + 1)
    layout = {"tp": tp, "ep": ep, "dp": dp, "pp": pp}
    steps = steps_of(model, load_gpu(gpu), **layout, cluster=cluster, kv=kv, engine=engine, utilization=utilization)
    if (beyond := _beyond(model, context)) is not None:
        raise UsageError(beyond)
    (time_s,), (wall,) = steps.decodes([batch], [context])
    return _decoding(steps, batch, time_s, wall, _kv_bytes(steps, context), usd_per_gpu_hour)


def _kv_bytes(steps: GpuSteps, context: int) -> int:
    """Bytes on a GPU of the cache of a sequence and its next token, in whole blocks."""
    return steps.kv_bytes(-(-(context + 1) // BLOCK_TOKENS) * BLOCK_TOKENS)


def _beyond(model: Model, context: int) -> str | None:
    """Why a model cannot have so many tokens in the cache, if it cannot."""
    if model.max_context is None or context < model.max_context:
        return None
    return (f"{counted(context, 'token')} in the cache and one more are beyond the {model.max_context:,} positions of"
            f" the model; {model.max_context - 1:,} is the most")  # fmt: skip


def _decoding(steps: GpuSteps, batch: Any, time_s: Any, wall: Any, kv_bytes: Any, price: float | None) -> Decoding:
    """One step, or many where these are arrays."""
    return Decoding(
        batch=batch, gpus=steps.layout.gpus, time_s=time_s, limited_by=wall, weights_bytes=steps.weights_bytes,
        held_bytes=steps.weights_bytes + steps.reserved_bytes, kv_bytes=kv_bytes, capacity_bytes=steps.capacity_bytes,
        usd_per_gpu_hour=price, watts_per_gpu=steps.gpu.tdp_w,
    )  # fmt: skip


def _decodes(task: Task, traces: Traces) -> list[Row]:
    """The steps of each engine in bulk."""
    rows: list[Row] = []
    gpus: dict[str, Gpu] = {}
    for key, points in groupby(task.points, key=_engine_of(task)):
        engine = dict(key)
        weights, name = engine.pop("weights", "model"), engine.pop("gpu", DEFAULT_GPU)
        dtype, own = engine.pop("dtype", None), list(points)
        batches, contexts = ([{**_DECODED, **p}[name] for p in own] for name in ("batch", "context"))
        try:
            if name not in gpus:
                gpus[name] = load_gpu(name)
            model = traces.model(task.target, weights, dtype, max(contexts) + 1)
            steps = steps_of(model, gpus[name], **engine)
        except MemwallError as error:
            rows += [_line(str(error))] * len(own)
        else:
            rows += _of_engine(model, steps, batches, contexts, task.prices.get(gpus[name].name))
    return rows


def _of_engine(
    model: Model, steps: GpuSteps, batches: Sequence[int], contexts: Sequence[int], price: float | None
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
            rows[able[0]] = _line(str(error))
            return rows
        return [_of_engine(model, steps, [b], [c], price)[0] for b, c in zip(batches, contexts, strict=True)]
    caches = {each: _kv_bytes(steps, each) for each in set(context)}
    asked = (batch, times, walls, [caches[each] for each in context])
    numbers, seconds, limits, held = (np.array(each, dtype=object) for each in asked)
    made = _decoding(steps, numbers, seconds, limits, held, price)
    readers = [quantity.readers["decode"] for quantity in KINDS["decode"].quantities]
    columns = [np.broadcast_to(np.array(read(made), dtype=object), len(able)).tolist() for read in readers]
    for i, row in zip(able, zip(*columns, strict=True), strict=True):
        rows[i] = row
    return rows


def _engine_of(task: Task) -> Callable[[Options], list[tuple[str, Any]]]:
    """What points that follow one another may share: all options but the inner ones."""
    inner = KINDS[task.kind].inner
    return lambda point: [(name, value) for name, value in point.items() if name not in inner]


# -- servers -----------------------------------------------------------------------------------------------------------


def _servers(task: Task, traces: Traces) -> list[Row]:
    """Each engine under its loads; loads of one engine that follow one another share its steps."""
    rows: list[Row] = []
    for key, points in groupby(task.points, key=_engine_of(task)):
        asked, clients = dict(key), [{**_SERVED, **point}["concurrency"] for point in points]
        try:
            rows += _served(task, asked, clients, traces)
        except MemwallError as error:
            rows += [_line(str(error))] * len(clients)
    return rows


def _served(task: Task, asked: dict[str, Any], clients: Sequence[int], traces: Traces) -> list[Row]:
    name = asked.get("gpu", DEFAULT_GPU)
    weights, dtype = asked.pop("weights", "model"), asked.pop("dtype", None)
    tokens = asked.get("prompt", 1024) + {**_SERVED, **asked}["generate"]
    model = traces.model(task.target, weights, dtype, tokens)
    if isinstance(asked.get("draft"), str) and asked["draft"] != OWN:
        asked["draft"] = traces.model(asked["draft"], dtype=dtype, tokens=tokens)
    loads = {} if asked.keys() & {"rate", "trace"} else {"concurrency": clients}
    gpu = load_gpu(name)
    price = {gpu.name: task.prices[gpu.name]} if gpu.name in task.prices else None
    found = serve(model, **{**asked, **loads, "gpu": gpu, "price": price})
    readers = [quantity.readers["serve"] for quantity in KINDS["serve"].quantities]
    rows: list[Row] = [
        _line(point.refused) if point.candidate is None else tuple(read(point.candidate) for read in readers)
        for point in found.points
    ]
    return rows if loads else rows * len(clients)


# -- training steps ----------------------------------------------------------------------------------------------------


def _trainings(task: Task, traces: Traces) -> list[Row]:
    """A step at each point; those on the same GPUs share the blocks of their rank."""
    readers = [quantity.readers["training"] for quantity in KINDS["training"].quantities]
    known: dict[Any, Rank] = {}

    def made(point: Options) -> Row:
        found = trained_at(task.target, point, traces, known, task.prices)
        return tuple(read(found) for read in readers)

    return [_tried(lambda: made(point)) for point in task.points]  # noqa: B023  called here


# -- the table ---------------------------------------------------------------------------------------------------------


def _options(function: Callable[..., Any], *others: str) -> tuple[str, ...]:
    """The options of a function that may be axes."""
    given = inspect.signature(function).parameters.values()
    return tuple(p.name for p in given if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name not in others)


KINDS: Mapping[str, Kind] = {
    kind.name: kind for kind in (
        Kind(
            name="profile", title="one step of the model, as memwall profile has it", rows=_profiles,
            options=_options(profile, "progress", "strict", "loss"), numbers=_NUMBERS, inner=_NUMBERS, most=64,
            needs={"context": "mode", "prompt": "mode"},
            best=("samples_per_s", "time_s"),
            front=("time_s", "samples_per_s"), across=("batch", "seq", "context", "prompt"),
        ),
        Kind(
            name="decode", title="one decode step of a server", rows=_decodes,
            options=_options(decode, "traces", "usd_per_gpu_hour"),
            numbers=_options(decode, "dtype"), inner=("batch", "context"), most=2000,
            best=("tokens_per_s_per_gpu",),
            front=("tokens_per_s_per_user", "tokens_per_s_per_gpu"), across=("batch", "context"), usual=_DECODED,
        ),
        Kind(
            name="serve", title="a server under a load, as memwall serve has it", rows=_servers,
            options=_options(serve, "price", "slo", "policy"), numbers=_options(serve, "draft", "dtype"),
            inner=("concurrency",), most=64, best=("tokens_per_s_per_gpu",),
            front=("tokens_per_s_per_user", "tokens_per_s_per_gpu"), across=("concurrency", "rate", "prompt"),
            usual=_SERVED,
        ),
        Kind(
            name="training", title="a training step on many GPUs, as memwall profile --parallel has it",
            rows=_trainings, options=OPTIONS, numbers=NUMBERS, inner=NUMBERS, most=64,
            best=("tokens_per_s_per_gpu", "mfu"), front=("tokens_per_s", "tokens_per_s_per_gpu"),
            across=("batch", "seq", "parallel.microbatches", "parallel.dp", "world"),
        ),
    )
}  # fmt: skip


#: what may vary, where a name is like none of it
_AXES = "an axis for every option of memwall profile and of memwall serve, and for keys of a layout, as in parallel.tp"


def kind_of(names: Sequence[str], asked: str | None = None, mentioned: Iterable[str] = ()) -> Kind:
    """The kind that is asked for, else the first that has all of some options, and all quantities and options that are
    ``mentioned`` if any has. Raises ``UsageError``: none has the options; names the first wrong one, and the
    nearest."""
    if asked is not None and asked not in KINDS:
        raise unknown("kind of sweep", asked, KINDS)
    kinds = [KINDS[asked]] if asked is not None else [*KINDS.values()]
    able = [kind for kind in kinds if set(names) <= set(kind.options)]
    whole = [kind for kind in able if all(kind.needs.get(name, name) in names for name in names)]
    able = whole or able
    words = set(mentioned)
    for kind in able:
        if words <= {*kind.options, *ALIASES, *SERVED_ALIASES, *(row.name for row in kind.quantities)}:
            return kind
    if able:
        return able[0]
    every = list(dict.fromkeys(name for kind in kinds for name in kind.options))
    for name in names:
        if name not in every:
            raise UsageError(f"no option {name!r}; {suggest(name, every, listed=[_AXES])}")
    lacking = (f"{kind.name} has no {next(name for name in names if name not in kind.options)}" for kind in kinds)
    raise UsageError(f"no kind of sweep has all of {', '.join(names)}: {', '.join(lacking)}")


#: option → what refuses a name that there is not
_NAMED: Mapping[str, Callable[[Any], object]] = {"gpu": load_gpu, "cluster": load_cluster, "host": load_host}
#: option → the names that there are, and what they are names of
_LISTED: Mapping[str, tuple[str, Iterable[str]]] = {
    "policy": ("policy named", POLICIES), "weights": ("scheme of weights", WEIGHTS),
    "kv": ("dtype of the cache", CACHES), "engine": ("engine", ENGINES), "mode": ("mode", MODES),
    "attention": ("attention", ATTENTION), "state": ("state of parameters", STATES),
}  # fmt: skip


def check_names(axes: Iterable[Axis]) -> None:
    """Refuse values that name nothing, before any work. Raises ``UsageError``: names the nearest."""
    for axis in axes:
        for name, values in zip(axis.names, zip(*axis.values, strict=True), strict=True):
            for value in dict.fromkeys(value for value in values if value is not None):
                if name in _LISTED and value not in _LISTED[name][1]:
                    kind, known = _LISTED[name]
                    raise unknown(kind, value, known)
                if name in _NAMED:
                    _NAMED[name](value)
