"""Bounds → Document: the bound, what reaches it, and what a measured time is worth; on a terminal in 15 lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import memwall.report.columns as col
from memwall.analysis.levers import NOTABLE
from memwall.bounding.answer import BoundRun, KernelBound, KernelBounds
from memwall.core.units import bandwidth, duration, flop_rate, flops, intensity, percent, size
from memwall.report.document import Block, Document, Glance, Picture, Section, Sentence, Table, known_facts
from memwall.report.figures.bars import Bar, Piece, bars_chart
from memwall.report.figures.colors import series_color
from memwall.report.figures.picture import time_unit
from memwall.report.kinds import Report

#: what a run is called
_NAMES = {"eager": "libraries, op by op", "inductor": "torch.compile", "memwall": "fused by memwall"}
#: what the run of the user's own kernels is called
_LAUNCHED = "as launched"
#: changes that a terminal shows
_LEVERS = 1
#: columns of CSV → how each is read
_COLUMNS = ("gpu", "flops", "dram_bytes", "bound_s", "time_s", "low_s", "high_s", "limited_by", "bound_by")


@dataclass(frozen=True, slots=True)
class BoundReport(Report):
    """The answer for each GPU."""

    noun = "the bound of a kernel"
    kinds = ("text", "md", "html", "csv", "json", "parquet")
    found: KernelBounds

    @classmethod
    def load(cls, path: str) -> Self:
        """Read a record. Raises ``UsageError``: as :meth:`KernelBounds.load`."""
        return cls(KernelBounds.load(path))

    def document(self, kind: str) -> Document:
        name, answers = self.found.name, self.found.answers
        if len(answers) == 1:
            told = [_verdict(answers[0], ""), _helpful(answers[0], kind)]
            answer = [*_strong(told[:1]), *_glance(answers[0], kind, ""), *_strong(told[1:])]
            return Document(f"{name} on {answers[0].gpu}", [Section("", _blocks(answers[0], kind))], answer)
        told = [f"{each.gpu}: {_verdict(each, each.gpu)} {_helpful(each, kind)}" for each in answers]
        first, *others = _strong(told)
        answer = [first, *_glance(answers[0], kind, answers[0].gpu), *others]
        return Document(name, [Section(each.gpu, _blocks(each, kind)) for each in answers], answer)

    def record(self) -> str:
        return self.found.to_json()

    def rows(self) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        return _COLUMNS, (tuple(getattr(answer, name) for name in _COLUMNS) for answer in self.found.answers)


def _strong(told: Sequence[str]) -> list[Block]:
    return [Sentence(each, strong=True) for each in told if each]


def _blocks(answer: KernelBound, kind: str) -> list[Block]:
    others = (f"{wall.name} {duration(wall.time_s)}" for wall in answer.walls)
    work = f"{flops(answer.flops)}, {size(answer.dram_bytes)}"
    if answer.dram_bytes and answer.flops:
        work += f", {intensity(answer.flops / answer.dram_bytes)} FLOP/B"
    blocks: list[Block] = [
        known_facts(
            ("work", work),
            ("alone", "; ".join(others)),
            ("otherwise", "; ".join(f"{duration(other.bound_s)}: {other.name}" for other in answer.others)),
            *(("note", note) for note in answer.notes),
        ),
        _runs(answer),
    ]
    if kind == "html" and answer.runs:
        blocks.append(_picture(answer))
    if answer.own:
        blocks += [_own(answer), *(Sentence(f"{each.name}: {hint}.") for each in answer.own for hint in each.hints)]
    if answer.measured is not None and answer.measured.raised_by:
        blocks.append(Sentence(f"What may be missing is {'; '.join(answer.measured.raised_by)}."))
    if answer.why and (kind != "text" or answer.measured is None):  # a terminal has what a measured run lacks
        blocks.append(Sentence(f"Why {duration(answer.time_s)}: {answer.why}"))
    return blocks


def _picture(answer: KernelBound) -> Picture:
    """The bound, each run with its range, and the measured time, as bars."""
    times = [(_name(run, answer), run.time_s, (run.low_s, run.high_s)) for run in answer.runs]
    rows = [("bound", answer.bound_s, None), *times]
    rows += [("measured", answer.measured.time_s, None)] if answer.measured else []
    scale, unit = time_unit(max(time_s for _, time_s, _ in rows))
    bars = [
        Bar(
            name,
            (Piece("", time_s / scale, series_color(0 if ends else 1 if name == "bound" else 2)),),
            duration(time_s),
            interval=(ends[0] / scale, ends[1] / scale) if ends else None,
        )
        for name, time_s, ends in rows
    ]
    mark = (answer.bound_s / scale, "bound", "ink")
    title = f"{answer.gpu}: time back to back, and the bound"
    return Picture(bars_chart(title, bars, unit=f"time, {unit} (line: 80 % range)", marks=(mark,)), title)


def _verdict(answer: KernelBound, gpu: str) -> str:
    """The bound and its wall; of a measured time, whether it is good, ``gpu`` being where it is taken to be measured if
    there are several."""
    wall = next((wall for wall in answer.walls if wall.name == answer.bound_by), None)
    if wall is None:
        return "No kernel is needed: the target computes nothing and moves no byte."
    rate = flop_rate(wall.per_s, wall.name.rpartition(" ")[2]) if wall.unit == "FLOP" else bandwidth(wall.per_s)
    told = f"No kernel is faster than {duration(answer.bound_s)}: {wall.name} at {rate}"
    measured = answer.measured
    if measured is None:
        reached = percent(answer.bound_s / answer.time_s, 0) if answer.time_s else "100 %"
        return f"{told}. The fastest run below reaches {reached}."
    run = duration(measured.time_s) + (f", if measured on {gpu}," if gpu else "")
    if not measured.possible:
        return f"{run} is below the bound. {measured.why}"
    return f"{told}; a run of {run} reaches {percent(measured.of_bound, 0)} of that. {measured.why}"


def _helpful(answer: KernelBound, kind: str) -> str:
    """What would help first and the option that shows it: the fastest run where it is faster than the measured time,
    or than the slowest run; what costs time in the user's own kernels; then what would make that run faster, if nothing
    faster was measured. Empty of a time that is impossible."""
    measured = answer.measured
    if measured is not None and not measured.possible:
        return ""
    found = _helps(answer)
    shown = found if kind != "text" else found[:_LEVERS]
    return f"Look first at {'; or '.join(shown)}." if shown else "No run that is predicted is faster."


def _helps(answer: KernelBound) -> list[str]:
    """What would help, the first first: ``torch.compile: 25.28 us, 37 % less than ...``."""
    best, slowest, measured = answer.fastest, max(answer.runs, key=lambda run: run.time_s), answer.measured
    before_s = measured.time_s if measured else slowest.time_s
    found = [f"{each.name}: {hint}" for each in answer.own for hint in each.hints]
    if _name(best, answer) != _LAUNCHED and before_s - best.time_s >= NOTABLE * before_s > 0:
        than = f"the {duration(before_s)}" if measured else _name(slowest, answer)
        share = percent(1 - best.time_s / before_s, 0)
        found.append(
            f"{_name(best, answer)}: {duration(best.time_s)}, {share} less than {than} (--policy {best.policy})"
        )
    return [*found, *(answer.levers if measured is None or measured.time_s >= best.time_s else ())]


def _glance(answer: KernelBound, kind: str, of: str) -> list[Block]:
    """The wall of the bound, what would help first, and what a measured time, or else the fastest run, reaches."""
    measured, best = answer.measured, answer.fastest
    if kind != "html" or (measured is not None and not measured.possible):
        return []
    helps = _helps(answer)
    word, _, behind = helps[0].partition(": ") if helps else ("nothing known", "", "no run that is predicted is faster")
    time_s = measured.time_s if measured else best.time_s
    run = "as measured" if measured else f"by {_name(best, answer)}"
    facts = (
        ("bound by", answer.bound_by, f"no kernel is faster than {duration(answer.bound_s)}"),
        ("do first", word, behind),
        ("reached", percent(answer.bound_s / time_s, 0) if time_s else "100 %", f"of the bound {run}"),
    )
    return [Glance([(f"{of}: {label}" if of else label, said, behind) for label, said, behind in facts])]


def _name(run: BoundRun, answer: KernelBound) -> str:
    if run.policy == "eager" and len(answer.own) == run.kernels:
        return _LAUNCHED
    return _NAMES.get(run.policy, run.policy) + (f", {run.attention} attention" if run.attention else "")


def _own(answer: KernelBound) -> Table:
    """The user's own kernels as compiled."""
    rows = [
        (
            each.name,
            f"{each.programs:,} of {each.num_warps} warps",
            f"{each.registers:,}",
            size(each.spilled_bytes),
            size(each.shared_bytes),
            percent(each.occupancy, 1),
            each.limited_by,
            f"{each.waves:.1f}",
            each.tensor_instruction or "none",
            percent(each.sector_share, 0),
        )
        for each in answer.own
    ]
    specs = (
        "your kernel: 0, programs: 1 right, registers: 2 right, spilled: 3 right, shared: 4 right, occupancy: 5 right,"
        " by: 6, waves: 7 right, tensor cores: 8, sectors used: 9 right"
    )
    return col.listing("", rows, specs)


def _runs(answer: KernelBound) -> Table:
    runs = answer.runs
    times, ends = [run.time_s for run in runs], [(run.low_s, run.high_s) for run in runs]
    columns = [
        col.text("run", [_name(run, answer) for run in runs]),
        *col.of(runs, "kernels: kernels count, bytes: dram_bytes B"),
        col.seconds("back to back", times),
        col.interval(ends, times),
        col.percent("of bound", [answer.bound_s / time_s if time_s else None for time_s in times]),
        col.text("limited by", [run.limited_by for run in runs]),
    ]
    if any(run.called_s != run.time_s for run in runs):  # a kernel inside a step is not
        columns.append(col.seconds("called once", [run.called_s for run in runs], like=times))
    return col.table("", columns)
