"""What servers do as it is saved, ``memwall.serving/1``: all that the page and the pictures show, in plain numbers."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from memwall.analysis.quantities import SERVED
from memwall.core.errors import UsageError
from memwall.core.files import read_json
from memwall.core.graph import Pipe
from memwall.core.question import part_of
from memwall.core.structure import BadRecord, above_0, at_least_1, check_schema, number, one_of, read, write
from memwall.core.version import __version__
from memwall.serving.answer import Point, Serving
from memwall.serving.candidates import ServerChoice, objective_text, stop
from memwall.serving.launch.reading import LaunchFlag, ServerLaunch
from memwall.serving.launch.writing import launch_line, options_of_point
from memwall.serving.levers import ServedOutcome, ServedVerdict, served_verdicts, served_what_ifs, server_changes
from memwall.serving.question import LoadOptions
from memwall.serving.simulation.served import Requests
from memwall.serving.steps import EngineStep
from memwall.serving.wording import media_text, requests_text

SCHEMA = "memwall.serving/1"
_FAMILY, _, _VERSION = SCHEMA.partition("/")
#: a pipe that every roofline has
_VECTOR = Pipe("vector", "float32")


def _figure(value: Any) -> float:
    """A number that is not negative, as it was written."""
    number(value)
    return value


Figure = Annotated[float, _figure]


@dataclass(frozen=True, kw_only=True)
class _SavedPoint:
    """One engine under one load; ``tp`` are the GPUs that share each matmul, ``gpus`` all that it needs. ``refused``
    says why it does not run, ``misses`` names the first objective that it does not keep; empty where it does. All
    quantities of a server are further fields; null: not known, or endless."""

    gpu: str
    tp: int
    gpus: int
    load: str
    concurrency: int | None
    rate_per_s: Figure | None
    prompt_tokens: int
    generated_tokens: int
    weights_bytes: int
    reserved_bytes: int
    kv_bytes_per_sequence: int
    largest_batch: int
    wall: str
    refused: str
    misses: str

    @property
    def name(self) -> str:
        """``h100-sxm x 4``."""
        return self.gpu if self.gpus == 1 else f"{self.gpu} x {self.gpus}"

    def figure(self, name: str) -> float | None:
        """A quantity of a server."""
        found: float | None = getattr(self, "wall" if name == "limited_by" else name)
        return found


if TYPE_CHECKING:

    class SavedPoint(_SavedPoint): ...

else:
    SavedPoint = make_dataclass(
        "SavedPoint",
        [(name, Figure | None, None) for name in SERVED],
        bases=(_SavedPoint,),
        frozen=True,
        kw_only=True,
        namespace={"__module__": __name__},
    )


@dataclass(frozen=True, kw_only=True)
class SavedKernels:
    """The kernels of one class in a step on one GPU; ``flops`` by the pipe that multiplies there."""

    time_s: Annotated[float, above_0]
    bytes: int
    flops: Mapping[Pipe, int]

    @property
    def total_flops(self) -> int:
        return sum(self.flops.values())


@dataclass(frozen=True, kw_only=True)
class SavedEngine:
    """An engine: memory of a GPU, of which a server takes ``capacity_bytes``, with the cache of a sequence of
    ``sequence_tokens``; the kernels by class of a decode step of ``batch`` sequences under its last load, and of a lone
    prompt of ``prompt_tokens``. Where nothing runs there are no kernels. ``peaks``: of the pipes, FLOP/s."""

    gpu: str
    name: str
    tp: Annotated[int, at_least_1]
    weights_bytes: int
    reserved_bytes: int
    capacity_bytes: int
    dram_bytes: Annotated[int, at_least_1]
    dram_bytes_per_s: Annotated[float, above_0]
    peaks: Mapping[Pipe, Annotated[float, above_0]]
    kv_bytes_per_sequence: int
    sequence_tokens: int
    prompt_tokens: int
    batch: int
    decode: Mapping[str, SavedKernels]
    prompt: Mapping[str, SavedKernels]

    def check(self) -> None:
        """Raises BadRecord: it has kernels of one step alone, or no peaks."""
        if bool(self.decode) != bool(self.prompt):
            raise BadRecord("is empty, and that of the other step is not", ".prompt" if self.decode else ".decode")
        if not self.peaks:
            raise BadRecord("is empty", ".peaks")

    @property
    def free_bytes(self) -> int:
        """Bytes that are left for the cache; below 0 where weights do not fit."""
        return self.capacity_bytes - self.weights_bytes - self.reserved_bytes


@dataclass(frozen=True, kw_only=True)
class SavedObjective:
    """A bound of a quantity of a server, in base units, and both in words."""

    quantity: Annotated[str, one_of(SERVED)]
    amount: Annotated[float, above_0]
    text: str


@dataclass(frozen=True, kw_only=True)
class SavedChoice:
    """Under a load the cheapest engine that keeps all objectives (``best``), and what stops the next cheaper one, if
    there is one; or why none keeps them."""

    load: str
    best: str | None
    cheaper: str | None
    unmet: str


@dataclass(frozen=True, kw_only=True)
class SavedPercentile:
    """A percentile of ``requests`` of an engine under a load, and between which seconds it lies with a confidence of
    90 %, by the means of batches of requests in a row; null on a side where they are too few to say."""

    engine: str
    load: str
    quantity: Annotated[str, one_of(SERVED)]
    requests: Annotated[int, at_least_1]
    value_s: Figure
    low_s: Figure | None
    high_s: Figure | None


@dataclass(frozen=True, kw_only=True)
class SavedLaunch:
    """The command line that was read: the engine and the version of its image, empty where none is said; and each
    flag, with what it sets or why it sets nothing."""

    engine: str
    version: str
    flags: tuple[LaunchFlag, ...]


@dataclass(frozen=True, kw_only=True)
class SavedServing:
    """A record. ``weights_bytes`` and ``kv_bytes_per_token`` (after the first 1,024) are the model's on a GPU of
    the first engine; ``requests``, ``media`` and ``draft`` are in words; ``choices`` are for each load what keeps all
    objectives, ``best`` is the one of them whose tokens cost least, and ``cheaper`` what stops the next cheaper one of
    its load; ``percentiles`` are of all simulated points; ``verdicts`` are of each engine under its last load,
    ``what_ifs`` of each point that runs; ``launch`` is the command line that was read, ``command`` the one that starts
    the best engine, or the only one."""

    schema: str
    memwall_version: str
    model: str
    weights: str
    kv: str
    engine: str
    draft: str | None
    max_context: int | None
    requests: str
    weights_bytes: int
    kv_bytes_per_token: int
    notes: tuple[str, ...]
    objectives: tuple[SavedObjective, ...]
    best: str | None
    cheaper: str | None
    engines: tuple[SavedEngine, ...]
    points: tuple[SavedPoint, ...]
    choices: tuple[SavedChoice, ...] = ()
    verdicts: tuple[ServedVerdict, ...] = ()
    what_ifs: tuple[ServedOutcome, ...] = ()
    percentiles: tuple[SavedPercentile, ...] = ()
    media: str = ""
    launch: SavedLaunch | None = None
    command: str = ""

    def check(self) -> None:
        """Raises BadRecord: there is no engine, or no point."""
        for name in ("engines", "points"):
            if not getattr(self, name):
                raise BadRecord("is empty", f".{name}")

    @property
    def ran(self) -> list[SavedPoint]:
        """The points that run."""
        return [point for point in self.points if not point.refused]

    @classmethod
    def load(cls, path: str | Path) -> SavedServing:
        """Read a record. Raises ``UsageError``: not a record of a server, or a damaged one; says which key."""
        raw = read_json(Path(path))
        check_schema(raw, _FAMILY, int(_VERSION), str(path))
        try:
            return read(cls, {"media": raw.get("images", ""), **raw})  # older records have images alone
        except BadRecord as error:
            raise UsageError(f"{path}: {error}") from None

    def to_json(self) -> str:
        """The record as text."""
        return json.dumps(write(self), indent=2)


def saved(found: Serving, what_ifs: Sequence[str] = (), *, levers: bool = False) -> SavedServing:
    """What of an answer is saved, and shown: with ``what_ifs``, and with what binds each engine and its ``levers``.
    Raises UsageError: a what-if has no meaning for the server."""
    outcomes = served_what_ifs(found, server_changes(what_ifs, found))
    verdicts, left_out = served_verdicts(found) if levers else ((), "")
    model, first = found.model, found.points[0]
    kv = model.served.token_bytes(1024, first.layout)
    engines = {point.name: point for point in found.points}
    engines |= {point.name: point for point in found.points if not point.refused}
    limits = [(limit.quantity.name, limit.amount, objective_text(limit)) for limit in found.objectives]
    choices = tuple(map(_choice, found.choices))
    best = next((each for each in choices if found.best and each.best == found.best.candidate.name), None)
    return SavedServing(
        schema=SCHEMA,
        memwall_version=__version__,
        model=model.name,
        weights=model.scheme or "model",
        kv=_short(first.layout.kv) or "model",
        engine=first.asked.engine.name,
        draft=found.draft or None,
        max_context=model.max_context,
        requests=requests_text(found.points[0], found.model),
        media=media_text(found),
        weights_bytes=model.served.weights_bytes(first.layout),
        kv_bytes_per_token=kv,
        notes=(*model.notes, *found.notes, *filter(None, (left_out,)), *(found.launch.notes if found.launch else ())),
        launch=_launch(found.launch),
        command=_command(found),
        verdicts=verdicts,
        what_ifs=outcomes,
        objectives=tuple(SavedObjective(quantity=name, amount=amount, text=text) for name, amount, text in limits),
        best=best.best if best else None,
        cheaper=best.cheaper if best else None,
        choices=choices,
        engines=tuple(_engine(name, point) for name, point in engines.items()),
        points=tuple(_point(point, found) for point in found.points),
        percentiles=tuple(row for point in found.points for row in _percentiles(point)),
    )


def _launch(read: ServerLaunch | None) -> SavedLaunch | None:
    return None if read is None else SavedLaunch(engine=read.engine, version=read.version, flags=read.flags)


def _command(found: Serving) -> str:
    """The command line of the best engine, or of the only one; empty where neither is there, or where prompts and
    decodes have engines of their own."""
    best = found.best.candidate.name if found.best else ""
    chosen = [p for p in found.points if p.candidate and p.asked.disaggregate is None]
    names = {point.name for point in chosen}
    chosen = [p for p in chosen if p.candidate and p.candidate.name == best] if best else chosen * (len(names) == 1)
    if not chosen:
        return ""
    said, model = options_of_point(chosen[0], found.dtype), found.target
    if found.launch is not None:
        said |= part_of(LoadOptions, found.launch.options)
        model = found.launch.model or model
    return launch_line(chosen[0].layout.engine, model, said)


def _choice(found: ServerChoice) -> SavedChoice:
    cheaper = found.best and found.best.cheaper
    return SavedChoice(
        load=found.load,
        best=found.best.candidate.name if found.best else None,
        cheaper=str(cheaper) if cheaper else None,
        unmet=found.unmet,
    )


def _short(scheme: str) -> str:
    return "fp8" if scheme == "float8_e4m3fn" else scheme


def _point(point: Point, found: Serving) -> SavedPoint:
    load, made = point.workload, point.candidate
    missed = stop(made, found.objectives) if made else None
    values = {name: row.read("serve", made) if made else None for name, row in SERVED.items()}
    known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    return SavedPoint(
        gpu=point.gpu.name,
        tp=point.layout.tp,
        gpus=point.gpus,
        load=point.load,
        concurrency=load.concurrency,
        rate_per_s=load.rate_per_s,
        prompt_tokens=load.usual.prompt_tokens,
        generated_tokens=load.usual.generated_tokens,
        weights_bytes=point.weights_bytes,
        reserved_bytes=point.reserved_bytes,
        kv_bytes_per_sequence=point.kv_bytes(_longest(point)),
        largest_batch=point.largest_batch,
        wall=made.wall if made else "",
        refused=point.refused,
        misses=objective_text(missed.objective) if missed else "",
        **known,
    )


def _percentiles(point: Point) -> Iterator[SavedPercentile]:
    run = point.candidate.run if point.candidate else None
    if not isinstance(run, Requests):
        return
    for name, percent in itertools.product(("ttft", "tpot", "e2e"), (50, 90, 99)):
        if (spread := getattr(run, name)) is not None:
            low_s, high_s = run.interval(name, percent / 100)
            yield SavedPercentile(
                engine=point.name,
                load=point.load,
                quantity=f"{name}_p{percent}_s",
                requests=len(run.served),
                value_s=getattr(spread, f"p{percent}"),
                low_s=low_s,
                high_s=high_s,
            )


def _longest(point: Point) -> int:
    return point.workload.longest.tokens


def _engine(name: str, point: Point) -> SavedEngine:
    gpu, steps, made = point.gpu, point.steps, point.candidate
    batch, tokens = point.decoding.decodes if made else 0, point.workload.longest.prompt_tokens
    decode = _kernels(point, point.decoding) if made else {}
    prompt = _kernels(point, EngineStep(0, 0, ((tokens, 0),))) if made else {}
    pipes = [_VECTOR, *(pipe for phase in (decode, prompt) for each in phase.values() for pipe in each.flops)]
    return SavedEngine(
        gpu=gpu.name,
        name=name,
        tp=point.layout.tp,
        weights_bytes=point.weights_bytes,
        reserved_bytes=point.reserved_bytes,
        capacity_bytes=steps.capacity_bytes,
        dram_bytes=gpu.dram_bytes,
        dram_bytes_per_s=gpu.dram_bytes_per_s,
        peaks={pipe: gpu.peak(pipe) for pipe in pipes},
        kv_bytes_per_sequence=point.kv_bytes(_longest(point)),
        sequence_tokens=_longest(point),
        prompt_tokens=tokens,
        batch=batch,
        decode=decode,
        prompt=prompt,
    )


def _kernels(point: Point, step: EngineStep) -> dict[str, SavedKernels]:
    """The kernels of a step by class, without classes that it has none of."""
    flops: dict[str, dict[Pipe, int]] = {}
    nbytes: dict[str, int] = {}
    for kernel, n, own in point.steps.each(step):
        cost, kind = kernel.cost(own, point.layout), kernel.kind
        nbytes[kind] = nbytes.get(kind, 0) + n * cost.bytes
        by_pipe = flops.setdefault(kind, {})
        for pipe, count in cost.flops.items():
            ran = point.gpu.ceiling_pipe(pipe)
            by_pipe[ran] = by_pipe.get(ran, 0) + n * count
    times = point.steps.by_kind(step)
    return {
        kind: SavedKernels(time_s=time_s, bytes=nbytes.get(kind, 0), flops=flops.get(kind, {}))
        for kind, time_s in times.items()
        if time_s
    }
