"""Many problems at once, for leaderboards: a table of targets → their bounds, and the scores of measured times."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import memwall.report.columns as col
from memwall.bounding.answer import KernelBound, fast_p, sol_score
from memwall.bounding.question import BASELINES, seconds_of
from memwall.bounding.run import bounds, profiled
from memwall.core.errors import MemwallError, UsageError
from memwall.core.progress import counting
from memwall.core.structure import write
from memwall.core.units import counted, duration, percent
from memwall.core.version import __version__
from memwall.hardware.lookup import Gpu, load_gpu
from memwall.report.document import Block, Document, Section, Sentence, Table, known_facts
from memwall.report.kinds import Report

SCHEMA = "memwall.bounds/1"
#: columns that a table of problems may have; others are left alone
_COLUMNS = ("problem", "name", "gpu", "measured")
#: thresholds of fast_p that a page shows, as KernelBench's papers do
_THRESHOLDS = (1.0, 1.5, 2.0)
#: and the same against the bound, which none exceeds
_SHARES = (0.5, 0.7, 0.9)
#: rows of a page
_MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class BoundProblem:
    """A row of a table: a target on a GPU, and a time that was measured for it."""

    problem: str
    name: str
    gpu: Gpu
    measured_s: float | None = None


@dataclass(frozen=True, slots=True)
class SolvedProblem:
    """The answer to a row. ``baseline_s`` is the predicted time of ``--baseline``; ``speedup`` is relative to it, and
    ``sol_score`` the score of SOL-ExecBench. ``error`` says why there is no answer."""

    problem: str
    name: str
    gpu: str
    flops: int | None = None
    dram_bytes: int | None = None
    bound_s: float | None = None
    time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    limited_by: str = ""
    bound_by: str = ""
    baseline_s: float | None = None
    measured_s: float | None = None
    of_bound: float | None = None
    possible: bool | None = None
    speedup: float | None = None
    sol_score: float | None = None
    error: str = ""


def read_problems(path: str, gpus: Sequence[Gpu]) -> list[BoundProblem]:
    """The rows of a table of problems: each on the GPU that it names, else on each of ``gpus``. Raises UsageError: no
    such file, no column ``problem``, or a row that says no GPU or no time; names the line."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            columns = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if "problem" not in columns:
        raise UsageError(f"{path} has no column problem; it may have {', '.join(_COLUMNS)}")
    found = []
    for line, row in enumerate(rows, 2):
        try:
            target = (row["problem"] or "").strip()
            if not target:
                raise UsageError("the problem is empty")
            named, measured = (row.get("gpu") or "").strip(), (row.get("measured") or "").strip()
            measured_s = seconds_of(measured or None)
            for gpu in [load_gpu(named)] if named else gpus:
                found.append(BoundProblem(target, (row.get("name") or "").strip() or target, gpu, measured_s))
        except UsageError as error:
            raise UsageError(f"{path}, line {line}: {error}") from None
    if not found:
        raise UsageError(f"{path} has no problem")
    return found


def solved(rows: Sequence[BoundProblem], baseline: str, **step: Any) -> tuple[SolvedProblem, ...]:
    """The answers to rows, in order; targets that stand several times are traced once. A row that has no answer says
    why."""
    gpus: dict[str, dict[str, Gpu]] = {}
    for row in rows:
        gpus.setdefault(row.problem, {})[row.gpu.name] = row.gpu
    known: dict[tuple[str, str], KernelBound | str] = {}
    for target, asked in counting(gpus.items(), "tracing problems"):
        try:
            made = profiled(target, list(asked.values()), step)
            answers = bounds(made, ("eager", "memwall"), baseline, brief=True)
            known.update({(target, answer.gpu): answer for answer in answers})
        except MemwallError as error:
            known.update({(target, name): str(error) for name in asked})
    return tuple(_solved(row, known[row.problem, row.gpu.name], baseline) for row in rows)


def _solved(row: BoundProblem, answer: KernelBound | str, baseline: str) -> SolvedProblem:
    if isinstance(answer, str):
        return SolvedProblem(row.problem, row.name, row.gpu.name, measured_s=row.measured_s, error=answer)
    run = answer.run(BASELINES[baseline])
    baseline_s, time_s = run.time_s if run else None, row.measured_s
    possible = time_s >= answer.bound_s if time_s else None
    scored = time_s if possible else None
    return SolvedProblem(
        row.problem,
        row.name,
        row.gpu.name,
        answer.flops,
        answer.dram_bytes,
        answer.bound_s,
        answer.time_s,
        answer.low_s,
        answer.high_s,
        answer.limited_by,
        answer.bound_by,
        baseline_s,
        time_s,
        answer.bound_s / time_s if time_s else None,
        possible,
        baseline_s / scored if scored and baseline_s else None,
        sol_score(scored, baseline_s, answer.bound_s) if scored and baseline_s else None,
    )


@dataclass(frozen=True, slots=True)
class ProblemsReport(Report):
    """The answers to a table of problems, and what its measured times score."""

    noun = "a table of bounds"
    kinds = ("text", "md", "html", "csv", "json", "parquet")
    found: tuple[SolvedProblem, ...]
    baseline: str

    def document(self, kind: str) -> Document:
        failed = [row for row in self.found if row.error]
        facts = known_facts(
            ("problems", f"{len(self.found) - len(failed):,} answered, {len(failed):,} not"), *self._scores()
        )
        blocks: list[Block] = [facts, self._table()]
        blocks += [Sentence(f"{row.name}: {row.error}") for row in failed[:_MOST_ROWS]]
        return Document("bounds of problems", [Section("", blocks)])

    def _scores(self) -> list[tuple[str, str]]:
        """What measured times are worth in all; impossible ones do not count."""
        rated = [row for row in self.found if row.possible]
        impossible = sum(row.possible is False for row in self.found)
        if not rated and not impossible:
            return []
        speedups = [row.speedup for row in rated if row.speedup is not None]
        scores = [row.sol_score for row in rated if row.sol_score is not None]
        shares = [row.of_bound for row in rated if row.of_bound is not None]
        fast = ", ".join(f"fast_{p:g} {percent(fast_p(speedups, p), 0)}" for p in _THRESHOLDS)
        near = ", ".join(f"{percent(fast_p(shares, p), 0)} above {percent(p, 0)}" for p in _SHARES)
        return [
            ("measured", f"{counted(len(rated), 'time')} at or above the bound, {impossible:,} below it"),
            ("of the bound", f"median {percent(median(shares), 0)}; {near}" if shares else ""),
            (f"against {self.baseline}", fast if speedups else ""),
            ("sol_score", f"median {median(scores):.2f}" if scores else ""),
        ]

    def _table(self) -> Table:
        answered = [row for row in self.found if not row.error]
        rows = [
            (
                row.name,
                row.gpu,
                duration(row.bound_s or 0.0),
                duration(row.time_s or 0.0),
                row.bound_by,
                "" if row.measured_s is None else duration(row.measured_s),
                row.of_bound,
                "" if row.sol_score is None else f"{row.sol_score:.2f}",
            )
            for row in answered[:_MOST_ROWS]
        ]
        specs = (
            "problem: 0, GPU: 1, bound: 2 right, expected: 3 right, bound by: 4, measured: 5 right, of the bound: 6 %,"
            " sol_score: 7 right"
        )
        left = len(answered) - len(rows)
        return col.listing("", rows, specs, f"other kinds of files have {counted(left, 'more row')}" if left else "")

    def record(self) -> str:
        rows = [write(row) for row in self.found]
        record = {"schema": SCHEMA, "memwall_version": __version__, "baseline": self.baseline, "problems": rows}
        return json.dumps(record, indent=1) + "\n"

    def rows(self) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        columns = tuple(field.name for field in fields(SolvedProblem))
        return columns, (tuple(getattr(row, name) for name in columns) for row in self.found)
