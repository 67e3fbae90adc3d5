"""Measured runs × a server as modeled → the seconds of the engine's CPU and the factor of its kernels.

The server is simulated under each run's load, and its means are compared with the measured ones: least squares of the
logarithms of measured over modeled, each in units of the spread that the engine's own 80 % interval states, within
bounds. Every round is linear in the terms (Gauss-Newton), with effects by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from memwall.core.errors import UsageError, need
from memwall.core.question import filled, signature_of
from memwall.core.structure import one_line
from memwall.core.units import counted, duration
from memwall.hardware.engine import SCHEMA, EngineHost, EngineSpec, is_packaged
from memwall.hardware.lookup import DEFAULT_GPU, Gpu, load_gpu
from memwall.serving.calibration.results import BenchRun, is_alike, read_results
from memwall.serving.engines import Server
from memwall.serving.launch.command import version_of
from memwall.serving.launch.reading import engine_of_version
from memwall.serving.question import ServeOptions, ServerOptions
from memwall.serving.run import asked_engine, target_of
from memwall.serving.search import least_times
from memwall.serving.simulation.timing import GpuSteps


@dataclass(frozen=True, slots=True)
class Term:
    """A number of :class:`~memwall.hardware.engine.EngineHost` that is fitted from ``least`` to ``most`` where there
    are so many runs of different loads; ``step`` is a change whose effect is looked at."""

    name: str
    least: float
    most: float
    step: float
    runs: int
    about: str


TERMS = (
    Term("kernels_factor", 0.25, 4.0, 0.05, 1, "kernels, measured over modeled"),
    Term("request_s", 0.0, 5.0, 0.005, 1, "seconds between a client and the queue"),
    Term("step_s", 0.0, 0.1, 0.0005, 2, "seconds of each step"),
    Term("sequence_s", 0.0, 0.002, 0.00002, 3, "seconds of each sequence of a step"),
)
#: a term whose effect is so much of it another's is held, and one that changes no logarithm by so much
_OWN, _LEAST_EFFECT = 0.2, 0.002
#: rounds of the fit; a step that changes the sum of squares by less ends it
_ROUNDS, _ENOUGH = 8, 1e-4
#: rounds of a fit to all runs but one, which begins near its end
_ROUNDS_OF_OTHERS = 4
#: fewest runs of which each is predicted from the others
_FEWEST_LEFT_OUT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTerm:
    """A term ``before`` and ``after``, and why it is ``held``; empty where it was fitted."""

    term: Term
    before: float
    after: float
    held: str = ""

    @property
    def said(self) -> str:
        """How ``after`` came to be, in words."""
        if self.held:
            return f"held: {self.held}"
        ends = self.term.least, self.term.most
        return "fitted" + f", but {self.after:g} is the {'least' if self.after == ends[0] else 'most'}" * (
            self.after in ends
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRun:
    """A run, and its seconds (TTFT, TPOT) as modeled ``before``, ``after``, and with a fit to the ``others`` alone."""

    run: BenchRun
    before: tuple[float, float]
    after: tuple[float, float]
    others: tuple[float, float] | None

    @property
    def measured(self) -> tuple[float, float]:
        return self.run.ttft_s, self.run.tpot_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEngine:
    """An engine as measured: what was fitted, to which runs, and which were left out, each with the reason."""

    engine: EngineSpec
    model: str
    server: str
    terms: tuple[FittedTerm, ...]
    runs: tuple[FittedRun, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def error(self, when: str, figure: int) -> float | None:
        """The mean of |modeled - measured| / measured of TTFT (0) or TPOT (1), ``before``, ``after``, or of ``others``;
        None where that is not known."""
        pairs = [(getattr(each, when), each.measured) for each in self.runs]
        if any(modeled is None for modeled, _ in pairs):
            return None
        return sum(abs(m[figure] / measured[figure] - 1) for m, measured in pairs) / len(pairs)

    @property
    def text(self) -> str:
        """The file that ``--engine`` takes."""
        base = f"{self.engine.kernels}@{self.engine.version}"
        lines = [
            f'schema = "{SCHEMA}"',
            f'base = "{base}"',
            "",
            f"# {one_line(self.model)} on {self.server}: {self._said}",
        ]
        width = max(len(f"{each.term.name} = {each.after:.6g}") for each in self.terms)
        for each in self.terms:
            lines.append(f"{each.term.name} = {each.after:.6g}".ljust(width) + f"  # {each.term.about}; {each.said}")
        return "\n".join(lines) + "\n"

    @property
    def _said(self) -> str:
        parts = []
        for figure, name in enumerate(("TTFT", "TPOT")):
            before, after = self.error("before", figure), self.error("after", figure)
            assert before is not None and after is not None
            parts.append(f"mean error of {name} {before:.1%} before, {after:.1%} after")
        return f"{counted(len(self.runs), 'run')}, {', '.join(parts)}"


@signature_of(ServerOptions)
def calibrate_engine(
    target: str | Path | None,
    results: Sequence[str | Path],
    *,
    gpu: str | Path | Gpu = DEFAULT_GPU,
    launch: str | Path | Sequence[str] | None = None,
    **server: Unpack[ServerOptions],
) -> FittedEngine:
    """Fit an engine to runs that were measured of one server; the server is said as to :func:`memwall.serve`.

    Args:
        target: a language model as :func:`memwall.serve` takes it; None: the model of ``launch``.
        results: files of vLLM's, SGLang's or InferenceX's benchmarks.
        gpu: the GPU that served.
        launch: the command line that started the server.

    Raises:
        UsageError: as :func:`memwall.serve` and :func:`~.results.read_results`; a result is of another model or of
            other GPUs than the server, or no run is left.
    """
    runs = read_results(results)
    model, line = target_of(target, launch)
    given = server if line is None else line.merged(server)
    said = filled(ServeOptions, {**given, "engine": given.get("engine") or _engine_of(runs)})
    if not isinstance(said.tp, int):
        raise UsageError("runs are of one server: give --tp one number")
    if said.disaggregate is not None:
        raise UsageError("--disaggregate: calibrate with runs of one engine")
    named = line.model if line is not None and not Path(line.model).exists() else ""
    if named and (other := next((run for run in runs if run.model and not is_alike(run.model, named)), None)):
        raise UsageError(f"{other.source} is of {other.model}, and the launch line of {named}")
    longest = max(run.load.longest.prompt_tokens + run.load.longest.generated_tokens for run in runs)
    assert isinstance(model, (str, Path))
    asked = asked_engine(model, load_gpu(gpu), said, longest)
    if not is_packaged(asked.engine):
        raise UsageError(f"{asked.engine.name} is calibrated already: name the engine that it is based on")
    made = asked.server()
    kept, left_out = _possible(runs, made.steps, asked.guess.draft_tokens if asked.guess else 0)
    notes = () if named or not runs[0].model else (f"the runs are of {runs[0].model}, modeled as {asked.model.name}",)
    name = made.steps.gpu.name if made.gpus == 1 else f"{made.steps.gpu.name} x {made.gpus}"
    terms, fitted = _fit(_Runs(made, kept))
    return FittedEngine(
        engine=asked.engine, model=runs[0].model or asked.model.name, server=name, terms=terms, runs=fitted,
        left_out=left_out, notes=notes,
    )  # fmt: skip


def _engine_of(runs: Sequence[BenchRun]) -> str:
    """The engine that the results name. Raises UsageError: they name several."""
    named = {run.engine: run for run in runs if run.engine}
    if len(named) > 1:
        raise UsageError(f"results are of {' and of '.join(named)}: calibrate with the runs of one engine")
    return next((engine_of_version(name, version_of(run.image)) for name, run in named.items()), "vllm")


def _possible(
    runs: Sequence[BenchRun], steps: GpuSteps, guesses: int
) -> tuple[list[BenchRun], tuple[tuple[str, str], ...]]:
    """The runs that may be fitted to, and why others may not. Raises UsageError: they are of other GPUs than the
    server, or none is left."""
    kept, left_out = [], []
    for run in runs:
        if run.gpus and run.gpus != steps.layout.gpus:
            raise UsageError(
                f"{run.source} is of an engine of {counted(run.gpus, 'GPU')}, and the server has {steps.layout.gpus}:"
                " --tp and --dp say how many"
            )
        if why := _impossible(run, steps, guesses):
            left_out.append((run.source, why))
        else:
            kept.append(run)
    if not kept:
        raise UsageError(f"no run is left: {left_out[0][0]}: {left_out[0][1]}")
    return kept, tuple(left_out)


def _impossible(run: BenchRun, steps: GpuSteps, guesses: int) -> str:
    """Why no such server made a run; empty where one may have."""
    if run.speculates and not guesses:
        return "it speculates: say with what by --draft"
    load, decoding = run.load, max(math.floor(run.decoding), 1)
    least = least_times(steps, load.prompt.least, load.generate.least, decoding)
    for name, measured_s, bound_s in (
        ("TPOT", run.tpot_s * (1 + guesses), least["tpot"]),
        ("TTFT", run.ttft_s, least["ttft"]),
    ):
        if measured_s < bound_s:
            return f"{name} of {duration(measured_s)} is below the {duration(bound_s)} that the GPU takes at the least"
    return ""


class _Runs:
    """A server under the loads of some runs, with other numbers of its engine."""

    def __init__(self, server: Server, runs: Sequence[BenchRun]) -> None:
        self.server, self.runs = server, runs
        self.host = server.steps.host
        measured = [(run.ttft_s, run.tpot_s) for run in runs]
        self.measured = np.log(np.array(measured)).ravel()
        spreads = [_spread(self.host, "ttft"), _spread(self.host, "tpot")]
        self.weights = 1 / np.array(spreads * len(runs))

    def modeled(self, values: np.ndarray) -> np.ndarray:
        """Logarithms of TTFT and TPOT of each run."""
        numbers: dict[str, Any] = {term.name: float(value) for term, value in zip(TERMS, values, strict=True)}
        host = replace(self.host, **numbers)
        steps = replace(self.server.steps, host=host)
        policy = replace(self.server.policy, request_s=host.request_s)
        server = replace(self.server, steps=steps, engines=steps, policy=policy)
        made = [server.run(run.load) for run in self.runs]
        return np.log(np.array([(each.ttft.mean, each.tpot.mean) for each in made if each.tpot])).ravel()

    def effects(self, values: np.ndarray, modeled: np.ndarray) -> np.ndarray:
        """Change of each logarithm by a step of each term, in columns."""
        columns = []
        for i, term in enumerate(TERMS):
            step = term.step if values[i] + term.step <= term.most else -term.step
            changed = values.copy()
            changed[i] += step
            columns.append((self.modeled(changed) - modeled) * (term.step / step))
        return np.array(columns).T


def _spread(host: EngineHost, figure: str) -> float:
    """How far logarithms of measured over modeled spread; 1 where no interval is stated."""
    return math.log(getattr(host, f"{figure}_high") / getattr(host, f"{figure}_low")) or 1.0


def _fit(runs: _Runs) -> tuple[tuple[FittedTerm, ...], tuple[FittedRun, ...]]:
    before = np.array([getattr(runs.host, term.name) for term in TERMS], dtype=float)
    first = runs.modeled(before)
    effects = runs.effects(before, first)
    held = _held(runs, effects)
    free = [i for i, why in enumerate(held) if not why]
    values, modeled = before, first
    for _ in range(_ROUNDS):
        tried, found = _better(runs, values, modeled, effects, free)
        is_done = _squares(runs, modeled) - _squares(runs, found) <= _ENOUGH * _squares(runs, modeled)
        values, modeled = tried, found
        if is_done:
            break
        effects = runs.effects(values, modeled)
    terms = [
        FittedTerm(term=term, before=float(before[i]), after=float(values[i]), held=held[i])
        for i, term in enumerate(TERMS)
    ]
    others = [_of_others(runs, i, before, values, effects) for i in range(len(runs.runs))]
    return tuple(terms), tuple(
        FittedRun(run=run, before=_seconds(first, i), after=_seconds(modeled, i), others=others[i])
        for i, run in enumerate(runs.runs)
    )


def _seconds(logarithms: np.ndarray, run: int) -> tuple[float, float]:
    """TTFT and TPOT of a run."""
    ttft, tpot = np.exp(logarithms[2 * run : 2 * run + 2]).tolist()
    return ttft, tpot


def _of_others(
    runs: _Runs, left_out: int, before: np.ndarray, values: np.ndarray, effects: np.ndarray
) -> tuple[float, float] | None:
    """A run as it is modeled with a fit to the others, from the fit to all on, with the effects there; None where they
    are too few."""
    if len(runs.runs) < _FEWEST_LEFT_OUT:
        return None
    rest = _Runs(runs.server, [run for i, run in enumerate(runs.runs) if i != left_out])
    theirs = np.delete(effects, (2 * left_out, 2 * left_out + 1), axis=0)
    free = [i for i, why in enumerate(_held(rest, theirs)) if not why]
    found = before.copy()
    found[free] = values[free]
    modeled = rest.modeled(found)
    for _ in range(_ROUNDS_OF_OTHERS):
        found, modeled = _better(rest, found, modeled, theirs, free)
    return _seconds(_Runs(runs.server, [runs.runs[left_out]]).modeled(found), 0)


def _better(
    runs: _Runs, values: np.ndarray, modeled: np.ndarray, effects: np.ndarray, free: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Values of the free terms that fit better by their effects, or nearer ones that fit no worse, and what is modeled
    with them."""
    wanted = values.copy()
    wanted[free] += _step(runs.weights, effects[:, free], runs.measured - modeled, values[free], free)
    for share in (1.0, 0.5, 0.25, 0.1):
        tried = values + share * (wanted - values)
        found = runs.modeled(tried)
        if _squares(runs, found) <= _squares(runs, modeled):
            return tried, found
    return values, modeled


def _held(runs: _Runs, effects: np.ndarray) -> list[str]:
    """Why each term is held; empty where these runs tell it."""
    loads = len({replace(run.load, requests=None) for run in runs.runs})
    found, told = [], np.zeros((len(runs.measured), 0))
    for i, term in enumerate(TERMS):
        own = effects[:, i] * runs.weights
        left = own - told @ np.linalg.lstsq(told, own, rcond=None)[0] if told.size else own
        if loads < term.runs:
            found.append(f"{term.runs} runs of different loads tell it")
        elif np.abs(effects[:, i]).max() < _LEAST_EFFECT:
            found.append("no run depends on it")
        elif np.linalg.norm(left) < _OWN * np.linalg.norm(own):
            found.append("what it does is what the others do")
        else:
            found.append("")
            told = np.column_stack((told, own))
    return found


def _step(
    weights: np.ndarray, effects: np.ndarray, missing: np.ndarray, values: np.ndarray, free: Iterable[int]
) -> np.ndarray:
    """The change of the free terms that makes the weighted squares of what is missing least, within their bounds."""
    optimize: Any = need("scipy.optimize", "fit")
    terms = [TERMS[i] for i in free]
    steps = np.array([term.step for term in terms])
    low, high = (np.array([getattr(term, end) for term in terms]) for end in ("least", "most"))
    inside = np.clip(values, low, high)
    bounds = ((low - inside) / steps - 1e-12, (high - inside) / steps + 1e-12)
    found = optimize.lsq_linear(effects * weights[:, None], missing * weights, bounds)
    stepped: np.ndarray = np.clip(inside + found.x * steps, low, high) - values
    return stepped


def _squares(runs: _Runs, modeled: np.ndarray) -> float:
    return float(np.sum(((runs.measured - modeled) * runs.weights) ** 2))
