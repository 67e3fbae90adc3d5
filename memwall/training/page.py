"""Training → Document: a step on many GPUs, where its time goes, the memory of each stage, and what would help."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import memwall.report.columns as col
from memwall.analysis.levers import HOST, KIND_NOTE, NOTABLE, Lever, as_would, by_kind, kind_of
from memwall.analysis.verdict import capital
from memwall.core.units import counted, duration, listed, percent, size
from memwall.report.document import Block, Document, Glance, Picture, Section, Sentence, Table, known_facts
from memwall.report.kinds import Report
from memwall.report.pages.glance import first_fact, glance, limit_fact, memory_fact
from memwall.training.events import render_stages
from memwall.training.figure import parts_chart, scaling_chart

if TYPE_CHECKING:
    from memwall.training.run import Scaled, Training, TrainingChange
    from memwall.training.step import TrainingStep

SCHEMA = "memwall.training.run/1"
#: what a peak of memory is, where layouts are compared by it
PEAK = "of the fullest GPU, with what is assumed for context and allocator"
#: stages that a table lists at most, and of the step the least of a part that the answer names
_MOST_STAGES, _LEAST_PART = 8, 0.05


@dataclass(frozen=True, slots=True)
class TrainingReport(Report):
    """The step, its parts, the memory of its stages, and other layouts."""

    noun = "a training step on many GPUs"
    kinds = ("text", "md", "html", "json", "trace.json")
    own = MappingProxyType({"trace.json": lambda report: render_stages(report.found.profile, report.found.step)})
    found: Training
    #: most GPUs of the table of more GPUs; None: without it
    scale: int | None = None
    #: what-ifs that were asked for
    what_ifs: Sequence[TrainingChange] = ()

    def document(self, kind: str) -> Document:
        step, layout = self.found.step, self.found.layout
        tokens, rate, base = self.found.tokens, self.found.tokens_per_s_per_gpu, self.found.mfu_base
        facts = known_facts(
            ("model", self.found.profile.workload.name),
            ("layout", str(layout)),
            ("GPUs", f"{layout.world:,} of {step.cluster.full_name or step.cluster.name}"),
            ("a step", f"{duration(step.time_s)}" + (f" for {tokens:,} tokens" if tokens else "")),
            ("80 % range", " to ".join(map(duration, step.interval_s))),
            ("tokens/s", f"{rate * layout.world:,.0f} in all, {rate:,.0f} on each GPU" if rate else ""),
            ("MFU, HFU", f"{percent(self.found.mfu)}, {percent(self.found.hfu)} of {base}" if base else ""),
        )
        fits = Sentence(self._fits, strong=not self.found.fits())
        takes, *why = self._verdict()
        seen = [self._glance()] if kind == "html" else []
        answer: list[Block] = [takes, *seen, *why, fits]
        if self.found.changes:
            most_s = (1 - NOTABLE) * self.found.step.time_s
            notable = by_kind(each for each in self.found.changes if each.step.time_s <= most_s)
            if notable:
                answer.append(self._changes(notable)._replace(title="What would make it faster"))
        if kind == "html":
            answer.append(Picture(parts_chart(_parts(self.found)), "where the time of a step goes"))
        sections = [
            Section("The step", (facts,)),
            Section("Where the time goes", (self._parts(),)),
            Section("Memory of a GPU by stage", (self._memory(),)),
        ]
        if sent := self._messages():
            sections.append(Section("Collectives", (sent,)))
        if self.what_ifs:
            sections.append(Section("What if", (self._changes(self.what_ifs),)))
        if self.scale is not None:
            drawn = (Picture(scaling_chart(self._scaled), "speed on more GPUs"),) if kind == "html" else ()
            sections.append(Section("More GPUs", (*drawn, self._scaling(self._scaled))))
        if notes := [note for note in self.found.profile.notes if not note.startswith("rank ")]:
            sections.append(Section("Notes", [Sentence(note) for note in notes]))
        return Document(f"{self.found.profile.workload.name} on {counted(layout.world, 'GPU')}", sections, answer)

    def _parts(self) -> Table:
        parts = _parts(self.found)
        rows = [(name, seconds, seconds / self.found.step.time_s) for name, seconds in parts.items()]
        note = f"of the slowest rank, stage {self.found.step.pipeline.slowest}"
        return col.listing("", rows, "part: 0, time: 1 s, of the step: 2 %", note)

    def _memory(self) -> Table:
        step = self.found.step
        shown = sorted({0, step.pipeline.slowest, *range(len(step.memory) - 1, 0, -1)[:_MOST_STAGES]})
        rows = [
            (str(k), str(step.pipeline.in_flight[k]), *step.memory[k].parts.values(), step.memory[k].total)
            for k in shown
        ]
        parts = ["weights", "gradients", "optimizer", "gathered", "activations", "recomputed", "temporaries", "peak"]
        specs = ", ".join(("stage: 0", "held: 1 right", *(f"{part}: {i} B like 9" for i, part in enumerate(parts, 2))))
        note = (
            "held: microbatches whose activations are kept, of one chunk of layers each; gathered: weights of other"
            " replicas' shards, and gradients until they are scattered; temporaries: what dies in its pass"
        )
        return col.listing("", rows, specs, note)

    def _messages(self) -> Table | None:
        stage = self.found.step.pipeline.slowest
        sent = sorted(self.found.messages(stage).items(), key=lambda item: (-item[0][1] * item[1], item))
        rows = [(op, ranks, count, nbytes, count * nbytes) for (op, nbytes, ranks), count in sent]
        note = f"of a GPU of stage {stage} in a step; message: as nccl-tests define its size"
        specs = "collective: 0, GPUs: 1 count, count: 2 count, message: 3 B, in all: 4 B"
        return col.listing("", rows, specs, note) if rows else None

    @property
    def _fits(self) -> str:
        found, words = self.found, "fits" if self.found.fits() else "does not fit"
        rank, most, now = found.step.peak_rank, found.largest_microbatch, found.profile.workload.samples
        held, needed = counted(found.step.pipeline.in_flight[rank], "microbatch"), found.held_bytes()
        assumed = size(needed - max(memory.total for memory in found.step.memory))
        largest = f" The largest microbatch that fits has {counted(most, 'sample')}, this one {now:,}." if most else ""
        return (
            f"It {words} in the {size(found.gpu.dram_bytes)} of {found.gpu.full_name}: the peak and {assumed} assumed"
            f" for context and allocator take {size(needed)}. The peak is in stage {rank}, in the {found.peak_op}, with"
            f" {held} held.{largest}"
        )

    def _verdict(self) -> list[Sentence]:
        """How long the step takes, what would help most, and what of the hardware binds."""
        now_s, (low, high) = self.found.step.time_s, map(duration, self.found.step.interval_s)
        parts = sorted(_parts(self.found).items(), key=lambda part: -part[1])
        most = listed(f"{name} ({duration(time_s)})" for name, time_s in parts[:2] if time_s >= _LEAST_PART * now_s)
        told = f"A step takes {duration(now_s)} (80 % range {low} to {high}), most of it {most}."
        takes = Sentence(told, strong=True)
        if not self.found.changes:
            return [takes]
        first, binding = by_kind(self.found.changes)[0], self.found.bound_by
        told = f"{capital(first.name)} would save {self._saving(first)} ({first.options})."
        if binding is None:
            return [takes, Sentence(told, strong=True)]
        alike = as_would(binding.name, {change.name: change.step.time_s for change in self.found.changes})
        binds = f"{capital(binding.wall)} binds: {binding.name} would save {self._saving(binding)}"
        if binding.wall == HOST:
            return [
                takes,
                Sentence(
                    f"Host-bound: {binding.name} would save {self._saving(binding)} of the {duration(now_s)},"
                    f" more than any change of the GPU. {told}",
                    strong=True,
                ),
            ]
        said = f"{binds}{alike} ({first.options})." if first is binding else f"{told} {binds}{alike}."
        return [takes, Sentence(said, strong=True)]

    def _glance(self) -> Glance:
        found, now_s = self.found, self.found.step.time_s
        levers = [
            Lever(each.name, each.options, each.wall, each.step.time_s, now_s - each.step.time_s)
            for each in found.changes
        ]
        shares = {name: time_s / now_s for name, time_s in _parts(found).items()}
        _, second, *_ = sorted(shares, key=lambda name: -shares[name])
        wall, behind = limit_fact(levers, shares, now_s)
        return glance(
            (wall, f"{behind}; {second} {percent(shares[second])}"),
            first_fact(levers),
            memory_fact(found.held_bytes(), found.gpu.dram_bytes),
        )

    def _saving(self, change: TrainingChange) -> str:
        now_s = self.found.step.time_s
        return f"{duration(now_s - change.step.time_s)}, {percent(1 - change.step.time_s / now_s)} of the step"

    def _changes(self, changes: Sequence[TrainingChange]) -> Table:
        now_s = self.found.step.time_s
        rows = [
            (
                each.name,
                kind_of(each.options),
                each.step.time_s,
                1 - each.step.time_s / now_s,
                self.found.held_bytes(each.step),
                "yes" if self.found.fits(each.step) else "no",
                each.options,
            )
            for each in changes
        ]
        specs = "with: 0 phrase, kind: 1, a step: 2 s, less: 3 %, option: 6, peak memory: 4 B, fits: 5"
        return col.listing("", rows, specs, f"peak memory: {PEAK}; {KIND_NOTE}")

    @property
    def _scaled(self) -> tuple[Scaled, ...]:
        return () if self.scale is None else self.found.scaled(self.scale)

    def _scaling(self, scaled: Sequence[Scaled]) -> Table:
        first = scaled[0].weak
        rows = [
            (
                f"{each.weak.layout.world:,}",
                duration(each.weak.time_s),
                first.time_s / each.weak.time_s,
                "yes" if self.found.fits(each.weak) else "no",
                *_speed(first, each.strong),
            )
            for each in scaled
        ]
        specs = (
            "GPUs: 0 right, weak: 1 right, efficiency: 2 %, fits: 3, strong: 4 right, faster: 5 right,"
            " of ideal: 6 right"
        )
        return col.listing("", rows, specs, "weak: as many microbatches for each replica; strong: as many in all")

    def record(self) -> str:
        found, step = self.found, self.found.step
        return json.dumps(
            {
                "schema": SCHEMA,
                "model": found.profile.workload.name,
                "layout": str(found.layout),
                "world": found.layout.world,
                "cluster": step.cluster.name,
                "gpu": found.gpu.name,
                "time_s": step.time_s,
                "low_s": step.interval_s[0],
                "high_s": step.interval_s[1],
                "tokens": found.tokens,
                "samples": found.samples,
                "tokens_per_s_per_gpu": found.tokens_per_s_per_gpu,
                "mfu": found.mfu,
                "hfu": found.hfu,
                "model_flops": step.model_flops,
                "hardware_flops": step.hardware_flops,
                "parts_s": _parts(found),
                "slowest_stage": step.pipeline.slowest,
                "collectives": [
                    {"op": op, "bytes": nbytes, "gpus": ranks, "count": count}
                    for (op, nbytes, ranks), count in sorted(found.messages(step.pipeline.slowest).items())
                ],
                "peak_bytes": found.held_bytes(),
                "fits": found.fits(),
                "largest_microbatch": found.largest_microbatch,
                "stages": _stages(found),
                "scaling": [_scaled_row(each) for each in self._scaled],
                "bound_by": found.bound_by.wall if found.bound_by else "",
                "changes": [_change(found, each) for each in found.changes],
                **({"what_if": [_change(found, each) for each in self.what_ifs]} if self.what_ifs else {}),
            },
            indent=2,
        )


def _change(found: Training, each: TrainingChange) -> dict[str, Any]:
    saved_s = found.step.time_s - each.step.time_s
    return {
        "name": each.name,
        "options": each.options,
        "wall": each.wall,
        "time_s": each.step.time_s,
        "saved_s": saved_s,
    }


def _parts(found: Training) -> dict[str, float]:
    """Part of the step → its seconds on the slowest rank."""
    step = found.step
    busy_s = step.pipeline.busy_s[step.pipeline.slowest]
    return {
        "compute": busy_s - step.tensor_s,
        "communication within layers": step.tensor_s,
        "bubble of the pipeline": step.bubble_s,
        "exposed communication between replicas": step.exposed_s,
        "optimizer": step.optimizer_s,
    }


def _speed(first: TrainingStep, strong: TrainingStep | None) -> tuple[str, str, str]:
    """A step with as much work in all: its time, how much faster it is, and the share of that on ideal GPUs."""
    if strong is None:
        return "-", "-", "-"
    faster = first.time_s / strong.time_s
    return duration(strong.time_s), f"{faster:.2f}x", percent(faster * first.layout.world / strong.layout.world)


def _scaled_row(each: Scaled) -> dict[str, Any]:
    strong = each.strong
    return {
        "world": each.weak.layout.world,
        "weak_layout": str(each.weak.layout),
        "weak_time_s": each.weak.time_s,
        "strong_layout": None if strong is None else str(strong.layout),
        "strong_time_s": None if strong is None else strong.time_s,
    }


def _stages(found: Training) -> Sequence[dict[str, Any]]:
    run = found.step.pipeline
    return [
        {"stage": k, "busy_s": run.busy_s[k], "held": run.in_flight[k], "peak_bytes": memory.total}
        | {f"{name}_bytes": count for name, count in memory.parts.items()}
        for k, memory in enumerate(found.step.memory)
    ]
