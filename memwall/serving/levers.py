"""What binds a server's decodes and prompts, and what would make them faster: each change is served again.

A lever is an option of ``memwall serve``: with it the command has the figures that stand here, to the last digit.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from memwall.analysis.levers import HOST, Lever, MadeLever, bound_by, numbers_of, ranked
from memwall.analysis.quantities import SERVED
from memwall.analysis.verdict import capital, named, saving
from memwall.analysis.whatif import LINK as LINK_RATE
from memwall.analysis.whatif import Change, GpuChange, parse_change
from memwall.core.errors import UsageError
from memwall.core.progress import counting
from memwall.core.structure import above_0
from memwall.core.units import counted, duration, percent
from memwall.hardware.engine import ENGINES, is_packaged, load_engine
from memwall.ops.quantised import pipe_of
from memwall.perfmodel.roofline import LINK
from memwall.serving.answer import Point, Serving
from memwall.serving.engines import AskedEngine
from memwall.serving.model import CACHES, WEIGHTS
from memwall.serving.run import OWN, own_guess, points_of
from memwall.serving.steps import EngineStep
from memwall.serving.steps.kernels import Experts

#: engines and requests up to which levers are simulated: beyond, the page says that they are left out
MOST_ENGINES, MOST_REQUESTS = 5, 10_000
#: formats of weights of 8 and of 4 bits: of a pipe, where a GPU has it, and of memory alone
_FORMATS = (("fp8", "int8"), ("nvfp4", "int4"))

_Positive = Annotated[float, above_0]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverFigures:
    """Seconds of a decode step, of a prompt that is computed alone, and of what users see of them; and tokens/s of a
    GPU. None: endless."""

    decode_step_s: _Positive
    prompt_step_s: _Positive
    tpot_s: _Positive | None
    ttft_s: _Positive | None
    tokens_per_s_per_gpu: _Positive | None


#: the figures of a load
_SEEN = ("tpot_s", "ttft_s", "tokens_per_s_per_gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What binds a step of one kind (``decode``, ``prefill``), and the levers of the figure that users see of it
    (``tpot_s``, ``ttft_s``), the largest first. ``bound_by`` is empty where no number of the hardware shortens the
    step; else the change of that number, and the seconds of the step that it saves."""

    name: str
    step: str
    step_s: _Positive
    bound_by: str
    change: str
    saved_s: float
    figure: str
    levers: tuple[Lever, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVerdict:
    """What binds an engine under a load."""

    engine: str
    load: str
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedOutcome:
    """What what-ifs, applied together, change of an engine under a load; ``after`` has the step of as many sequences
    as decode before."""

    what_if: tuple[str, ...]
    engine: str
    load: str
    before: LeverFigures
    after: LeverFigures


#: kind of a step -> its seconds, the seconds that users see of it, and their name
_PHASES: Mapping[str, tuple[str, str, str]] = {
    "decode": ("decode_step_s", "tpot_s", "TPOT"), "prefill": ("prompt_step_s", "ttft_s", "TTFT"),
}  # fmt: skip


def figures_of(point: Point, decoding: EngineStep) -> LeverFigures:
    """The figures of a point that runs, with a step of so many decodes."""
    assert point.candidate is not None
    seen = {name: SERVED[name].read("serve", point.candidate) for name in _SEEN}
    return LeverFigures(
        decode_step_s=point.steps.step_s(decoding.decodes, decoding.context_tokens),
        prompt_step_s=point.steps.step_s(0, 0, point.alone.prefills),
        **{name: value if value is not None and math.isfinite(value) else None for name, value in seen.items()},
    )


def read_changes(texts: Iterable[str]) -> list[GpuChange]:
    """The what-ifs of a server, as ``--what-if`` writes them. Raises UsageError: one has no meaning for any server."""
    return [_change(parse_change(text)) for text in texts]


def _change(change: Change) -> GpuChange:
    if not isinstance(change, GpuChange):
        raise UsageError(
            f"--what-if {change.text}: of a server the GPU's, the host's and the links' numbers change, as in"
            " 'dram_bytes_per_s*=2'; kernels are the engine's, and --weights, --kv and --dtype say what they read"
        )
    return change


def server_changes(texts: Iterable[str], found: Serving) -> list[GpuChange]:
    """The what-ifs of this server. Raises UsageError: one has no meaning for it."""
    changes = read_changes(texts)
    linked = any(point.steps.cluster is not None for point in found.points)
    for change in changes:
        if change.field == LINK_RATE and not linked:
            raise UsageError(f"--what-if {change.text}: no link joins these engines' GPUs; --tp 2 or a --cluster does")
    return changes


def served_what_ifs(found: Serving, changes: Sequence[GpuChange]) -> tuple[ServedOutcome, ...]:
    """Each point that runs with each change, and with all of them together where there are several. Raises UsageError:
    a change does not fit a GPU."""
    sets = [(change,) for change in changes] + ([tuple(changes)] if len(changes) > 1 else [])
    return tuple(
        ServedOutcome(
            what_if=tuple(change.text for change in some),
            engine=point.name,
            load=point.load,
            before=figures_of(point, point.decoding),
            after=figures_of(after, point.decoding),
        )
        for some in sets
        for point in found.points
        if point.candidate
        for after in [_again(point, replace(point.asked, changes=some))]
    )


def _again(point: Point, asked: AskedEngine) -> Point:
    """Another engine under the load of a point. Raises UsageError: it does not run."""
    (found,) = points_of(asked, [point.workload])
    if found.refused:
        raise UsageError(f"{found.name}: {found.refused}")
    return found


def served_verdicts(found: Serving) -> tuple[tuple[ServedVerdict, ...], str]:
    """What binds each engine under its last load, and what would help; and why levers are left out, if they are."""
    last = {point.name: point for point in found.points if point.candidate}
    requests = max((point.workload.count for point in last.values()), default=0)
    for count, most, what in ((len(last), MOST_ENGINES, "engines"), (requests, MOST_REQUESTS, "requests")):
        if count > most:
            return (), (
                f"what binds an engine and what would make it faster is told of up to {most:,} {what}, and not"
                f" of these {count:,}"
            )
    return tuple(_verdict(point) for point in last.values()), ""


def _verdict(point: Point) -> ServedVerdict:
    now = figures_of(point, point.decoding)
    ways = [*_numbers(point), *_ways(point)]
    made = [*_made(point, counting(ways, f"simulating changes of {point.name}"))]
    phases = tuple(_phase(name, point, now, made) for name in _PHASES)
    return ServedVerdict(engine=point.name, load=point.load, phases=phases)


@dataclass(frozen=True, slots=True)
class _Way:
    """A change of an engine: what it does, the option that shows it, the wall whose number it is (empty: none)."""

    name: str
    options: str
    wall: str
    asked: Callable[[], AskedEngine]


def _made(point: Point, ways: Iterable[_Way]) -> Iterator[tuple[_Way, LeverFigures]]:
    """The figures with each change; none of a change with which the engine does not run."""
    for way in ways:
        with contextlib.suppress(UsageError):
            yield way, figures_of(_again(point, way.asked()), point.decoding)


def _phase(name: str, point: Point, now: LeverFigures, made: Sequence[tuple[_Way, LeverFigures]]) -> Phase:
    step_field, seen_field, title = _PHASES[name]

    def levers(field: str) -> tuple[Lever, ...]:
        now_s = getattr(now, field)
        times = [(way, getattr(each, field)) for way, each in made]
        told = [MadeLever(way.name, way.options, way.wall, time_s) for way, time_s in times if time_s is not None]
        return ranked(told, now_s) if now_s is not None else ()

    step = point.decoding if name == "decode" else point.alone
    step_s, seen_s, found = getattr(now, step_field), getattr(now, seen_field), levers(seen_field)
    binding = bound_by(levers(step_field), {point.steps.wall(step): 1.0}, step_s)
    what = _step_text(name, step)
    text = f"{capital(what)} takes {duration(step_s)}: "
    if binding is None:
        text += "no number of the hardware shortens it."
    else:
        text += f"{_BINDING.get(binding.wall, binding.wall)} binds it, {binding.name} would save"
        text += f" {saving(binding.saved_s)} ({percent(binding.share)})."
    if seen_s is not None:
        text += f" {title} with {point.load}: {named(found, seen_s)}"
    return Phase(
        name=name,
        step=what,
        step_s=step_s,
        bound_by=binding.wall if binding else "",
        change=binding.options if binding else "",
        saved_s=binding.saved_s if binding else 0.0,
        figure=seen_field,
        levers=found,
        text=text,
    )


#: wall -> what it is called, where that says more
_BINDING = {HOST: "the engine's CPU", LINK: "the link"}


def _step_text(name: str, step: EngineStep) -> str:
    if name == "decode":
        return f"a decode step of {counted(step.decodes, 'sequence')}"
    ((new, cached),) = step.prefills
    return f"a lone prompt of {counted(new, 'token')}" + (f" after {cached:,} in the cache" if cached else "")


def _numbers(point: Point) -> Iterator[_Way]:
    """One number of the GPU, the engine's CPU or the links changed, as ``--what-if`` does."""
    asked = point.asked
    for number in numbers_of(point.gpu, is_hosted=True, is_linked=point.steps.cluster is not None):
        change = parse_change(number.change)
        assert isinstance(change, GpuChange)
        yield _Way(number.name, number.options, number.wall, partial(replace, asked, changes=(change,)))


def _ways(point: Point) -> Iterator[_Way]:
    """Other engines that options of ``memwall serve`` make: weights and a cache of fewer bytes, more GPUs, experts of
    their own, another engine, and the model's own module as a draft."""
    asked, model, layout = point.asked, point.asked.model, point.asked.layout
    for names in _FORMATS if asked.weights != "model" or not model.scheme else ():
        name = next(name for name in names if name == names[-1] or _multiplies(point, name))
        stored = replace(model, scheme=WEIGHTS[name])
        if model.served.weights_bytes(replace(point.layout, weights=stored.scheme)) < point.steps.weights_bytes:
            yield _Way(f"weights in {name}", f"--weights {name}", "", partial(replace, asked, model=stored))
    if point.layout.kv != CACHES["fp8"]:
        cache = partial(replace, asked, layout=replace(layout, kv=CACHES["fp8"]))
        yield _Way("a cache in fp8", "--kv fp8", "", cache)
    wider = partial(replace, asked, layout=replace(layout, tp=2 * layout.tp))
    yield _Way("twice the GPUs for each matmul", f"--tp {2 * layout.tp}", "", wider)
    if layout.ep == 1 < layout.stage_gpus and any(isinstance(kernel, Experts) for kernel, _ in model.served.kernels):
        apart = partial(replace, asked, layout=replace(layout, ep=layout.stage_gpus))
        yield _Way("whole experts on each GPU", f"--ep {layout.stage_gpus}", "", apart)
    for spec in map(load_engine, ENGINES if is_packaged(asked.engine) else ()):
        if (spec.kernels, spec.version) != (asked.engine.kernels, asked.engine.version):
            other = partial(replace, asked, engine=spec, layout=replace(layout, engine=spec.kernels))
            yield _Way(f"the engine {spec.name}", f"--engine {spec.name}", "", other)
    if asked.guess is None and model.guesses:
        own = own_guess(model)
        yield _Way(f"a draft by {own}", f"--draft {OWN}", "", partial(replace, asked, guess=own))


def _multiplies(point: Point, weights: str) -> bool:
    """Whether the GPU has the pipe of a format of weights."""
    pipe = pipe_of(WEIGHTS[weights])
    return point.gpu.ceiling_pipe(pipe) == pipe
