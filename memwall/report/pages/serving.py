"""Serving → Document: what a server does under each load, its memory, and where a step's time goes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import memwall.report.columns as col
from memwall.analysis.quantities import SERVED
from memwall.analysis.serving import objective_text
from memwall.core.units import size
from memwall.report.document import Block, Document, Picture, Section, Sentence, Table, known_facts
from memwall.report.figures.engine import KERNELS, memory_chart, phases_charts
from memwall.report.figures.scene import Chart, stacked
from memwall.report.figures.serving import serving_chart
from memwall.report.kinds import Report

if TYPE_CHECKING:
    from memwall.serving import Point, Serving

SCHEMA = "memwall.serving/1"
#: what a picture shows -> it
PICTURES: Mapping[str, Callable[[Serving], Chart]] = {
    "throughput of a GPU against speed for a user; latency against load": serving_chart,
    "memory of a GPU by the sequences that it holds": lambda found: memory_chart(found.points),
    "roofline of decodes and of a prompt": lambda found: phases_charts(found.points),
}


@dataclass(frozen=True, slots=True)
class ServingReport(Report):
    """A table for each GPU and number of GPUs, the memory, and the kernels of a decode step."""

    noun = "what a server does"
    kinds = ("text", "md", "html", "csv", "json", "svg", "png", "pdf")
    found: Serving

    def document(self, kind: str) -> Document:
        model, first = self.found.model, self.found.points[0]
        kv = model.served.kv_bytes(1025, first.layout) - model.served.kv_bytes(1024, first.layout)
        facts = known_facts(
            ("model", model.name), ("weights", _stored(model.scheme, size(model.served.weights_bytes(first.layout)))),
            ("cache", f"{_stored(first.layout.kv, size(kv))}, of a token after the first 1,024, of {first.name}"),
            ("engine", first.layout.engine), ("draft", self.found.draft), ("requests", _requests(self.found)),
        )  # fmt: skip
        blocks: list[Block] = [facts, self._loads()]
        blocks += [Sentence(line) for line in self._refused()]
        if self.found.best is not None:
            blocks += [Sentence(line) for line in _choice(self.found)]
        if kind == "html":
            blocks += [Picture(draw(self.found), label) for label, draw in PICTURES.items()]
        sections = [Section("", tuple(blocks))]
        sections.append(Section("Memory of a GPU", (self._memory(),)))
        if ran := [point for point in self.found.points if point.candidate is not None]:
            sections.append(Section("Where a decode step's time goes", (_step(ran),)))
        notes = (*model.notes, *self.found.notes)
        if notes:
            sections.append(Section("Notes", tuple(Sentence(note) for note in notes)))
        return Document(f"{model.name}: serving", tuple(sections))

    def figure(self) -> Chart:
        return stacked([draw(self.found) for draw in PICTURES.values()])

    def _refused(self) -> list[str]:
        """Each reason once, with the engines that it holds back."""
        why: dict[str, list[str]] = {}
        for point in self.found.points:
            if point.refused and point.name not in why.setdefault(point.refused, []):
                why[point.refused].append(point.name)
        return [f"{', '.join(names)}: {reason}." for reason, names in why.items()]

    def _loads(self) -> Table:
        ran = [point for point in self.found.points if point.candidate is not None]
        of = lambda name: [SERVED[name].serve(p.candidate) for p in ran]  # type: ignore[misc] # noqa: E731
        columns = [
            col.text("GPUs", [point.name for point in ran]), col.text("load", [point.load for point in ran]),
            col.seconds("TTFT", of("ttft_s")), col.seconds("p99", of("ttft_p99_s"), like=of("ttft_s")),
            col.seconds("TPOT", of("tpot_s")), col.seconds("p99", of("tpot_p99_s"), like=of("tpot_s")),
            col.fixed("a user", "tokens/s", of("tokens_per_s_per_user"), 1.0, 1),
            col.fixed("a GPU", "tokens/s", of("tokens_per_s_per_gpu"), 1.0, 1),
            col.fixed("batch", "", of("batch"), 1.0, 1), col.plain("largest", [point.largest_batch for point in ran]),
        ]  # fmt: skip
        if any(point.candidate and point.candidate.usd_per_gpu_hour for point in ran):
            columns.append(col.fixed("1 M out", "USD", of("usd_per_million_tokens"), 1.0, 2))
            columns.append(col.fixed("1 M in", "USD", of("usd_per_million_prompt_tokens"), 1.0, 3))
        columns.append(col.fixed("energy", "J/token", of("energy_per_token_j"), 1.0, 2))
        columns.append(col.text("wall", [point.candidate.wall if point.candidate else "" for point in ran]))
        return col.table("", columns, _NOTE)

    def _memory(self) -> Table:
        engines = list({point.name: point for point in self.found.points}.values())
        held = [(p.weights_bytes, p.reserved_bytes) for p in engines]
        columns = [
            col.text("GPUs", [point.name for point in engines]),
            col.fixed("weights", "GB", [weights for weights, _ in held], 1e9, 2),
            col.fixed("buffers", "GB", [reserved for _, reserved in held], 1e9, 2),
            col.fixed("cache", "GB", [p.steps.capacity_bytes - sum(h) for p, h in zip(engines, held, strict=True)],
                      1e9, 2),
            col.fixed("a sequence", "GB", [p.kv_bytes(_longest(p)) for p in engines], 1e9, 3),
            col.fixed("of", "GB", [point.gpu.dram_bytes for point in engines], 1e9, 2),
        ]  # fmt: skip
        return col.table("", columns, _MEMORY_NOTE)

    def record(self) -> str:
        columns, rows = self.rows()
        points = [dict(zip(columns, row, strict=True)) for row in rows]
        model = self.found.model
        record: dict[str, Any] = {
            "schema": SCHEMA, "model": model.name, "weights": model.scheme or "model",
            "kv": _short(self.found.points[0].layout.kv) or "model", "engine": self.found.points[0].layout.engine,
            "draft": self.found.draft or None, "max_context": model.max_context,
            "notes": [*model.notes, *self.found.notes], "points": points,
        }  # fmt: skip
        if self.found.best is not None:
            record["best"] = self.found.best.candidate.name
            record["cheaper"] = str(self.found.best.cheaper) if self.found.best.cheaper else None
        return json.dumps(record, indent=2)

    def rows(self) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        return (*_COLUMNS, *SERVED), (_row(point) for point in self.found.points)


_COLUMNS = (
    "gpu", "tp", "gpus", "concurrency", "rate_per_s", "prompt_tokens", "generated_tokens", "weights_bytes",
    "reserved_bytes", "kv_bytes_per_sequence", "largest_batch", "wall", "refused",
)  # fmt: skip
_MEMORY_NOTE = (
    "buffers: activations, CUDA graphs and communication; cache: what is left of the share that the server takes, "
    "below 0 where the weights do not fit; a sequence: the cache of one at its longest"
)
_STEP_NOTE = (
    "one token of each sequence; products: with weights; attention: with the reads and writes of the cache; index: of "
    "sparse attention; states: of recurrences; messages: between the GPUs"
)
_NOTE = (
    "TTFT: time to first token, with the wait; TPOT: time per output token after it; tokens/s: generated, of a user "
    "after the first token and of a GPU over all requests; batch: mean decoding sequences, largest: those that the "
    "cache holds; 1 M: all of the cost over a million tokens that come out, or go in; energy: at the GPU's power "
    "limit; wall: what most of a decode step waits for; all modeled"
)


def _row(point: Point) -> tuple[Any, ...]:
    load, made = point.workload, point.candidate
    figures = [q.serve(made) if q.serve is not None and made is not None else None for q in SERVED.values()]
    return (point.gpu.name, point.layout.tp, point.gpus, load.concurrency, load.rate_per_s, load.prompt.nominal,
            load.generate.nominal, point.weights_bytes, point.reserved_bytes, point.kv_bytes(_longest(point)),
            point.largest_batch, made.wall if made else "", point.refused, *figures)  # fmt: skip


def _longest(point: Point) -> int:
    longest = point.workload.longest
    return longest.prompt_tokens + longest.generated_tokens


def _stored(scheme: str, held: str) -> str:
    return f"{held} as {_short(scheme)}" if scheme else f"{held} in the model's dtype"


def _short(scheme: str) -> str:
    return "fp8" if scheme == "float8_e4m3fn" else scheme


def _requests(found: Serving) -> str:
    load = found.points[0].workload
    if load.trace:
        return f"{len(load.trace):,} of a trace"
    hit = f", {load.prefix_hit:.0%} of a prompt cached" if load.prefix_hit else ""
    encoder = found.model.encoder
    if encoder:
        return f"{encoder:,} tokens to the encoder, {load.generate.nominal:,} out"
    after = " after the encoder" if encoder is not None else ""
    return f"{load.prompt.nominal:,} tokens in{after}{hit}, {load.generate.nominal:,} out"


def _choice(found: Serving) -> list[str]:
    assert found.best is not None
    wanted = ", ".join(map(objective_text, found.objectives))
    lines = [f"The cheapest that keeps {wanted}: {found.best.candidate.name}."]
    if found.best.cheaper is not None:
        lines.append(f"The next cheaper one, {found.best.cheaper}.")
    return lines


def _step(points: Sequence[Point]) -> Table:
    """Seconds of a decode step at each engine's last load, by kind of kernel."""
    from memwall.fusion.server import Step

    last = list({point.name: point for point in points}.values())
    found = []
    for point in last:
        assert point.candidate is not None
        batch = max(round(point.candidate.run.batch), 1)
        found.append((batch, point.steps.by_kind(Step(batch, round(batch * point.context)))))
    kinds = [kind for kind in KERNELS if any(kind in taken for _, taken in found)]
    columns = [col.text("GPUs", [point.name for point in last]), col.plain("batch", [batch for batch, _ in found])]
    totals = [sum(taken.values()) for _, taken in found]
    columns.append(col.seconds("step", totals))
    for kind in kinds:
        columns.append(col.seconds(KERNELS[kind], [taken.get(kind, 0.0) for _, taken in found], like=totals))
    return col.table("", columns, _STEP_NOTE)
