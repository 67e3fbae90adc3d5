"""Serving → Document: what a server does under each load, its memory, and where a step's time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import memwall.report.columns as col
from memwall.analysis.levers import KIND_NOTE, NOTABLE, by_kind
from memwall.analysis.quantities import ANSWERS
from memwall.analysis.verdict import MOST_NAMED
from memwall.core.errors import UsageError
from memwall.core.structure import write
from memwall.core.units import duration, listed, percent, size
from memwall.report.document import (
    Block,
    Document,
    Glance,
    Picture,
    Section,
    Sentence,
    ShellCommand,
    Table,
    known_facts,
)
from memwall.report.figures.scene import Chart, stacked
from memwall.report.kinds import Report
from memwall.report.pages.glance import MemoryFact, first_fact, glance
from memwall.serving.answer import Serving
from memwall.serving.engine_figure import KERNELS, memory_chart, phases_charts
from memwall.serving.figure import serving_chart
from memwall.serving.levers import ServedOutcome, ServedVerdict
from memwall.serving.saved import SavedEngine, SavedLaunch, SavedPercentile, SavedPoint, SavedServing, saved
from memwall.serving.simulation.served import sure_from
from memwall.serving.wording import WAITED, capacity_text, held_text, priced_text

#: what a picture shows -> it
PICTURES: Mapping[str, Callable[[SavedServing], Chart]] = {
    "throughput of a GPU against speed for a user; latency against load": serving_chart,
    "memory of a GPU by the sequences that it holds": lambda found: memory_chart(found.engines),
    "roofline of decodes and of a prompt": lambda found: phases_charts(found.engines),
}


@dataclass(frozen=True, slots=True)
class ServingReport(Report):
    """A table for each GPU and number of GPUs, the memory, and the kernels of a decode step."""

    noun = "what a server does"
    kinds = ("text", "md", "html", "csv", "json", "svg", "png", "pdf")
    found: SavedServing

    @classmethod
    def load(cls, path: str) -> Self:
        """Read a record. Raises ``UsageError``: as :meth:`SavedServing.load`."""
        return cls(SavedServing.load(path))

    def document(self, kind: str) -> Document:
        found = self.found
        weights, kv = (
            _stored("" if scheme == "model" else scheme, size(held))
            for scheme, held in ((found.weights, found.weights_bytes), (found.kv, found.kv_bytes_per_token))
        )
        facts = known_facts(
            ("model", found.model),
            ("weights", weights),
            ("cache", f"{kv} per token on {found.points[0].name}, past the first 1,024 tokens"),
            ("engine", found.engine),
            ("draft", found.draft or ""),
            ("requests", found.requests),
            ("in front", found.media),
        )
        answer: list[Block] = [Sentence(line, strong=True) for line in (_choices(found) or _fastest(found))]
        answer += [_glance(found)] if kind == "html" and found.ran else []
        answer += [Sentence(line) for line in (*_held(found), *self._refused())]
        several = len({each.engine for each in found.verdicts}) > 1
        answer += [] if several else _verdicts(found.verdicts)
        ran = [engine for engine in found.engines if engine.decode]
        drawn = [Picture(draw(found), label) for label, draw in PICTURES.items()] if kind == "html" and ran else []
        sections = [Section("Under load", (self._loads(), facts))]
        if several:
            sections.append(Section("What binds, and what would make it faster", _verdicts(found.verdicts)))
        if found.launch is not None:
            sections.append(Section("What the command line sets", (_launch(found.launch),)))
        if any(point.figure("watts_per_gpu") for point in found.ran):
            sections.append(Section("Power and cost", (self._bill(),)))
        sections.append(Section("Memory of a GPU", (*drawn[1:2], self._memory())))
        if ran:
            sections.append(Section("Where a decode step's time goes", (*drawn[2:], _step(ran))))
        if found.percentiles:
            sections.append(Section("How sure the percentiles are", (_percentiles(found.percentiles),)))
        if found.what_ifs:
            sections.append(Section("What if", (_outcomes(found.what_ifs),)))
        if found.command:
            sections.append(Section("The command line that starts it", (ShellCommand(found.engine, found.command),)))
        if found.notes:
            sections.append(Section("Notes", tuple(Sentence(note) for note in found.notes)))
        return Document(f"{found.model}: serving", tuple(sections), (*answer, *drawn[:1]))

    def figure(self) -> Chart:
        if not any(engine.decode for engine in self.found.engines):
            raise UsageError(f"nothing to draw: {self.found.points[0].refused or 'no engine has kernels'}")
        return stacked([draw(self.found) for draw in PICTURES.values()])

    def _refused(self) -> list[str]:
        """Each reason once, with the engines that it holds back."""
        why: dict[str, list[str]] = {}
        for point in self.found.points:
            if point.refused and point.name not in why.setdefault(point.refused, []):
                why[point.refused].append(point.name)
        return [f"{', '.join(names)}: {reason}." for reason, names in why.items()]

    def _loads(self) -> Table:
        ran = self.found.ran
        columns = [col.text("GPUs", [point.name for point in ran]), col.text("load", [point.load for point in ran])]
        columns += col.answer(ANSWERS["serve"][""], lambda name: [point.figure(name) for point in ran])
        judged = any(point.figure("goodput_share") is not None for point in ran)
        return col.table("", columns, _NOTE.format(_GOOD_NOTE * judged))

    def _bill(self) -> Table:
        """Power and cost of the points."""
        ran, title = self.found.ran, "Power and cost"
        columns = [col.text("GPUs", [point.name for point in ran]), col.text("load", [point.load for point in ran])]
        columns += col.answer(ANSWERS["serve"][title], lambda name: [point.figure(name) for point in ran])
        priced = any(point.figure("usd_per_million_tokens") for point in ran)
        return col.table("", columns, _POWER_NOTE + _PRICED_NOTE * priced)

    def _memory(self) -> Table:
        engines = self.found.engines
        columns = [
            col.text("GPUs", [engine.name for engine in engines]),
            col.fixed("weights", "GB", [engine.weights_bytes for engine in engines], 1e9, 2),
            col.fixed("buffers", "GB", [engine.reserved_bytes for engine in engines], 1e9, 2),
            col.fixed("cache", "GB", [engine.free_bytes for engine in engines], 1e9, 2),
            col.fixed("a sequence", "GB", [engine.kv_bytes_per_sequence for engine in engines], 1e9, 3),
            col.fixed("of", "GB", [engine.dram_bytes for engine in engines], 1e9, 2),
        ]
        return col.table("", columns, _MEMORY_NOTE)

    def record(self) -> str:
        return self.found.to_json()

    def rows(self) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        rows = [write(point) for point in self.found.points]
        return tuple(rows[0]), (tuple(row.values()) for row in rows)


_MEMORY_NOTE = (
    "buffers: activations, CUDA graphs and communication; cache: what is left of the share that the server takes, "
    "below 0 where the weights do not fit; a sequence: the cache of one at its longest, with --dp on average over the "
    "groups, one of which holds it"
)
_STEP_NOTE = (
    "one token of each sequence; step: of the kernels, without the engine's CPU; products: with weights; attention: "
    "with the reads and writes of the cache; index: of sparse attention; states: of recurrences; messages: between the "
    "GPUs"
)
_NOTE = (
    "TTFT: time to first token, with the wait; TPOT: time per output token after it; 80 % range: of the mean, by the "
    "errors on measured servers; tokens/s: generated, of a user "
    "after the first token and of a GPU over all requests; batch: mean decoding sequences, largest: the most that the "
    "scheduler takes and the cache holds while they grow, half generated in the mean; {}limited by: what most of a "
    "decode step waits for; all modeled"
)
_LEVER_NOTE = (
    "the same load with one change, which the option shows, added to the command or in place of its own; of: what is "
    f"saved of, TPOT or TTFT; the first of each, without what saves less than 1 %; {KIND_NOTE}"
)
_OUTCOME_NOTE = (
    "decode: a step of as many sequences as decode before; prompt: the longest, computed alone; both with the engine's "
    "CPU"
)
_PERCENTILE_NOTE = (
    "at least, at most: where the percentile lies with a confidence of 90 %, by ten batches of requests in a row, as"
    f" neighbours share steps; the largest of fewer than {sure_from(0.99)} requests is no upper end: --requests says"
    " how many"
)
#: percentiles that the page shows
_TAILS = {"ttft_p99_s": "TTFT p99", "tpot_p99_s": "TPOT p99"}
#: engines whose memory and wall the answer says
_HELD = 3
#: what users see of a step -> its name
_FIGURES = {"tpot_s": "TPOT", "ttft_s": "TTFT"}
_GOOD_NOTE = "good, goodput: requests that each keep every limit of a request's times; "
_POWER_NOTE = (
    "power: of a GPU, mean of the run, by what its kernels keep busy; energy: of all GPUs for a token that comes out,"
    " with idle hours"
)
_PRICED_NOTE = (
    "; 1 M: all of the cost over a million tokens that come out, or go in; 10th, 90th: by TPOT's 80 % range, with"
    " clients that wait; spot: on GPUs that are given back when idle"
)


def serving_page(found: Serving) -> ServingReport:
    """The page of servers that were just simulated."""
    return ServingReport(saved(found))


def _stored(scheme: str, held: str) -> str:
    return f"{held} as {scheme}" if scheme else f"{held} in the model's dtype"


def _choices(found: SavedServing) -> list[str]:
    """The cheapest engine and the loads for which it is, why the next cheaper one fails, or why no engine keeps the
    objectives."""
    wanted, loads = ", ".join(each.text for each in found.objectives), dict[tuple[str, str, str], list[str]]()
    for each in dict.fromkeys(found.choices):
        best = (each.best or "").removesuffix(f", {each.load}")
        loads.setdefault((best, each.cheaper or "", each.unmet), []).append(each.load)
    usd = {(point.name, point.load): point.figure("usd_per_million_tokens") for point in found.ran}
    return [
        f"The cheapest that keeps {wanted} with {' or '.join(under)}: {best}"
        f"{priced_text(usd.get((best, load)) for load in under)}."
        + (f" The next cheaper one, {cheaper}." if cheaper else "")
        if best
        else f"With {listed(under)} {unmet}."
        for (best, cheaper, unmet), under in loads.items()
    ]


def _held(found: SavedServing) -> list[str]:
    """Whether each engine's memory holds the load, what its decode steps wait for, and of several engines what would
    help first."""
    last, told = {point.name: point for point in found.ran}, {each.engine: each for each in found.verdicts}
    memory = {engine.name: engine for engine in found.engines}
    lines = []
    for name, point in last.items():
        wall = str(point.figure("limited_by") or "")
        if not point.largest_batch or not wall or name not in memory:
            continue
        first = _first(told[name]) if name in told and len(told) > 1 else ""
        of_one = " of an engine" if point.gpus > 1 else ""
        lines.append(
            f"{_fitting(memory[name])}; up to {point.largest_batch:,.0f} sequences{of_one} run at once."
            f" With {point.load} its decode steps wait for {WAITED.get(wall, wall)}{first}."
        )
    return lines[:_HELD]


def _glance(found: SavedServing) -> Glance:
    """The facts of the cheapest engine under the last load that one keeps the objectives of, or else of the fastest
    under the last load."""
    chosen = [(each.best.removesuffix(f", {each.load}"), each.load) for each in found.choices if each.best]
    name, load = chosen[-1] if chosen else (_best(found).name, _best(found).load)
    engine = next(each for each in found.engines if each.name == name)
    point = next(each for each in found.ran if (each.name, each.load) == (name, load))
    phase = next((phase for each in found.verdicts if each.engine == name for phase in each.phases), None)
    wall, first = str(point.figure("limited_by") or ""), ("start it", found.command)
    behind = f"most of a decode step with {load}"
    if phase is not None:
        first = first_fact(phase.levers, of=f" of {_FIGURES[phase.figure]}")
        if phase.bound_by:
            behind += f"; {phase.change} would save {percent(phase.saved_s / phase.step_s)} of it"
    limit = WAITED.get(wall, wall), behind
    sizes = engine.capacity_bytes, engine.dram_bytes, engine.weights_bytes, engine.free_bytes
    held = MemoryFact(True, capacity_text(*sizes))
    return glance(limit, first, held, name if len(found.engines) > 1 else "")


def _fitting(engine: SavedEngine) -> str:
    """``It fits h100-sxm: of 85.02 GB weights take 16.06 GB and the cache may take 57.97 GB``."""
    each = "each GPU's " if engine.name != engine.gpu else ""
    return f"It fits {engine.name}: of {each}{held_text(engine.dram_bytes, engine.weights_bytes, engine.free_bytes)}"


def _first(verdict: ServedVerdict) -> str:
    """``; --tp 2 would save 37.3 % of TPOT and 22.0 % of TTFT``: what can be changed in software first."""
    saved: dict[str, list[str]] = {}
    for phase in verdict.phases:
        for lever in by_kind(phase.levers)[:1]:
            if lever.kind == "software" and lever.share >= NOTABLE:
                saved.setdefault(lever.options, []).append(f"{percent(lever.share)} of {_FIGURES[phase.figure]}")
    return "".join(f"; {options} would save {listed(shares)}" for options, shares in saved.items())


def _under_last(found: SavedServing) -> list[SavedPoint]:
    """The engines that run under the last load."""
    return [point for point in found.ran if point.load == found.ran[-1].load]


def _best(found: SavedServing) -> SavedPoint:
    """The engine that makes the most tokens on each GPU under the last load."""
    return max(_under_last(found), key=lambda point: point.figure("tokens_per_s_per_gpu") or 0.0)


def _fastest(found: SavedServing) -> list[str]:
    """Under the last load, the engine that makes the most tokens on each GPU, and how fast for a user."""
    if not found.ran:
        return []
    under, best = _under_last(found), _best(found)
    made = best.figure("tokens_per_s_per_gpu") or 0.0
    first = f"With {best.load} {best.name} makes {made:,.0f} tokens per second on each GPU"
    others = len({point.name for point in under}) - 1
    first += f", the most of {others + 1} engines" if others else ""
    times = []
    for name, said in _FIGURES.items():
        low, at, high = (best.figure(key) for key in (f"{name[:-2]}_low_s", name, f"{name[:-2]}_high_s"))
        if at is not None:
            spread = f" ({duration(low)} to {duration(high)})" if low is not None and high is not None else ""
            times.append(f"{said} {duration(at)}{spread}")
    return [f"{first}: {' and '.join(times)}." if times else f"{first}."]


def _verdicts(verdicts: Sequence[ServedVerdict]) -> list[Block]:
    """What binds each engine, in words, and its largest levers."""
    told: list[Block] = [
        Sentence(f"{each.engine}, {each.load}: {phase.text}" if len(verdicts) > 1 else phase.text, strong=True)
        for each in verdicts
        for phase in each.phases
    ]
    found = [
        (each, phase, lever)
        for each in verdicts
        for phase in each.phases
        for lever in by_kind(phase.levers)[:MOST_NAMED]
        if lever.share >= NOTABLE
    ]
    if not found:
        return told
    columns = [
        *col.of([each for each, *_ in found], "GPUs: engine, load"),
        col.text("of", [_FIGURES[phase.figure] for _, phase, _ in found]),
        *col.of(
            [lever for *_, lever in found],
            "lever: name phrase, kind: kind, saved: saved_s s, share: share %, with: time_s s like saved_s?,"
            "option: options prose",
        ),
    ]
    return [*told, col.table("What would make it faster", columns, _LEVER_NOTE)]


def _launch(launch: SavedLaunch) -> Table:
    """The flags that set an option."""
    setting = [each for each in launch.flags if each.sets]
    columns = col.of(setting, "flag: flag prose, sets: sets, value: value")
    version = f" {launch.version}" if launch.version else ""
    return col.table("", columns, f"flag: of {launch.engine}{version}; sets: the option of memwall serve")


def _percentiles(rows: Sequence[SavedPercentile]) -> Table:
    """The 99th percentiles of what users see, and between which times they lie."""
    by_point = {(each.engine, each.load): each for each in rows}
    columns = col.of([*by_point.values()], "GPUs: engine, load, requests: requests count")
    for quantity, title in _TAILS.items():
        found = {(each.engine, each.load): each for each in rows if each.quantity == quantity}
        read = lambda name: [getattr(found.get(point), name, None) for point in by_point]  # noqa: B023, E731
        like = read("value_s")
        columns += [
            col.seconds(title, like),
            col.seconds("at least", read("low_s"), like=like),
            col.seconds("at most", read("high_s"), like=like),
        ]
    return col.table("", col.known(columns), _PERCENTILE_NOTE)


def _outcomes(outcomes: Sequence[ServedOutcome]) -> Table:
    """The figures before and after each what-if, point by point."""
    labels = [" and ".join(each.what_if) for each in outcomes]
    once = [label if i == 0 or labels[i - 1] != label else "" for i, label in enumerate(labels)]
    specs = ", ".join(
        f"{title}: before.{name}>after.{name} s"
        for title, name in (
            ("TTFT", "ttft_s"),
            ("TPOT", "tpot_s"),
            ("decode", "decode_step_s"),
            ("prompt", "prompt_step_s"),
        )
    )
    columns = [col.text("what if", once, wraps=True), *col.of(outcomes, f"GPUs: engine, load, {specs}")]
    for title, side in (("per GPU", "before"), (col.AFTER, "after")):
        rates = [getattr(each, side).tokens_per_s_per_gpu for each in outcomes]
        columns.append(col.fixed(title, "tokens/s", rates, 1.0, 1))
    return col.table("", columns, _OUTCOME_NOTE)


def _step(engines: Sequence[SavedEngine]) -> Table:
    """Seconds of a decode step at each engine's last load, by kind of kernel."""
    steps = [engine.decode for engine in engines]
    columns = [
        col.text("GPUs", [engine.name for engine in engines]),
        col.plain("batch", [engine.batch for engine in engines]),
    ]
    totals = [sum(each.time_s for each in step.values()) for step in steps]
    columns.append(col.seconds("step", totals))
    for kind in dict.fromkeys((*KERNELS, *(kind for step in steps for kind in step))):
        if any(kind in step for step in steps):
            own = [step[kind].time_s if kind in step else 0.0 for step in steps]
            columns.append(col.seconds(KERNELS.get(kind, kind), own, like=totals))
    return col.table("", columns, _STEP_NOTE)
