"""A report → what a tool answers: its sentences, its figures and its longest kernels, in no more than
:data:`MOST_BYTES`; the rest is in the record, under the handle that the answer names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from memwall.analysis.quantities import ANSWERS, QUANTITIES
from memwall.core.structure import write
from memwall.report.document import Document, Section, Sentence, ShellCommand
from memwall.report.json_schema import json_schema

#: bytes of an answer's JSON, and the details and rows of other tables that it begins with
MOST_BYTES, MOST_DETAILS, MOST_ROWS = 2_000, 8, 40
#: digits of a figure
_DIGITS = 4

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ToolAnswer:
    """``answer`` in sentences; ``figures``, one row for each GPU, policy or load, and ``details``, kernels or what was
    refused, the longest first, in base SI units. ``record`` is the handle of the whole record, of the schema
    ``record_schema``; ``left_out`` says how many rows or characters of each were too much."""

    answer: str
    figures: tuple[Row, ...] = ()
    details: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    record: str = ""
    record_schema: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)


def answer_of_report(report: Any, notes: Sequence[str], record: str, schema: str) -> dict[str, Any]:
    """The answer of a report as plain JSON types, cut to :data:`MOST_BYTES`."""
    figures, details = _READERS.get(type(report).__name__, _first_rows)(report)
    is_whole = type(report).__name__ in _WHOLE
    page = report.document("md" if is_whole else "text")
    text = " ".join(_sentences(page, is_whole)) or page.title
    whole = ToolAnswer(
        answer=text,
        figures=tuple(map(_known, figures)),
        details=tuple(map(_known, details)),
        notes=tuple(note for note in dict.fromkeys(notes) if note not in text),
        record=record,
        record_schema=schema,
    )
    return write(_fitted(whole))


def size_of(answer: Any) -> int:
    """Bytes of an answer as JSON."""
    return len(compact(answer).encode())


def compact(answer: Any) -> str:
    """Plain JSON types as JSON without spaces."""
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":"))


def output_schema(page: str) -> dict[str, Any]:
    """The JSON schema of what a tool answers; ``page`` is the report that it comes to."""
    schema = json_schema(ToolAnswer, "what a tool answers", "answer/1")
    for place, names in (("figures", FIGURES.get(page, "")), ("details", DETAILS.get(page, ""))):
        schema["properties"][place]["items"] = {"type": "object", "properties": dict(map(_column, _columns(names)))}
    return schema


def _column(name: str) -> tuple[str, dict[str, Any]]:
    row = QUANTITIES.get(name)
    if row is None:
        return name, {"type": "string"} if name in _WORDS.split() else {}
    kind = {"word": "string", "flag": "boolean"}.get(row.unit, "number")
    return name, {"type": kind, "description": f"{row.title}, {row.unit}"}


#: columns that are words and no quantities
_WORDS = "gpu policy label name module phase load refused release bound_by shapes rule reason"


# -- cutting -----------------------------------------------------------------------------------------------------------


def _fitted(whole: ToolAnswer) -> ToolAnswer:
    """The answer with fewer details, then notes, then figures, then a shorter text, until it fits."""
    answer = whole
    while (over := size_of(write(answer)) - MOST_BYTES) > 0:
        longest = next((name for name in ("details", "notes", "figures") if len(getattr(answer, name)) > 1), "")
        if not longest:
            kept = answer.answer.encode()[: -over - len("...") - _MARK].decode(errors="ignore")
            return replace(
                answer, answer=f"{kept}...", left_out=_left(whole, answer) | {"answer": len(whole.answer) - len(kept)}
            )
        answer = replace(answer, **{longest: getattr(answer, longest)[:-1]})
        answer = replace(answer, left_out=_left(whole, answer))
    return answer


#: bytes that it takes to say what is left out of the text
_MARK = 24


def _left(whole: ToolAnswer, answer: ToolAnswer) -> dict[str, int]:
    counts = {name: len(getattr(whole, name)) - len(getattr(answer, name)) for name in ("details", "notes", "figures")}
    return {name: count for name, count in counts.items() if count}


def _known(row: Row) -> Row:
    """The figures of a row that are known, to :data:`_DIGITS` digits."""
    return {name: _short(value) for name, value in row.items() if value is not None and value != ""}


def _short(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


# -- reading reports ---------------------------------------------------------------------------------------------------


#: reports whose page says why in a sentence below its answer, not on a terminal
_WHOLE = ("BoundReport",)


def _sentences(page: Document, is_whole: bool) -> Iterator[str]:
    """The sentences of a page's answer; of a page that ``is_whole``, or one without an answer, all, in order."""
    for section in page.whole[:1] if page.answer and not is_whole else page.whole:
        if isinstance(section, Section):
            for block in section.blocks:
                if isinstance(block, Sentence):
                    yield block.text
                elif isinstance(block, ShellCommand):
                    yield f"{block.label}: {block.text}"


def _columns(names: str) -> list[str]:
    """The columns of a table of :data:`ANSWERS`, an interval as its two ends."""
    found = []
    for name in names.replace("?", "").split():
        found += ["low_s", "high_s"] if name == "interval_s" else [] if name.endswith("_interval_s") else [name]
    return found


def _rows_of(page: str, rows: Sequence[Any], read: Callable[[Any, str], Any]) -> list[Row]:
    return [{name: read(row, name) for name in _columns(FIGURES[page])} for row in rows]


_OF_A_STEP = f"gpu policy {ANSWERS['profile']['']} kernels peak_memory fits"
#: report → the columns of its figures
FIGURES: Mapping[str, str] = {
    "BoundReport": "gpu bound_s time_s low_s high_s limited_by bound_by flops dram_bytes",
    "ProfileReport": _OF_A_STEP,
    "FusedReport": "gpu policy time_s speedup kernels dram_bytes saved_bytes time_score mfu fits",
    "ComparisonReport": f"label speedup speedup_low speedup_high {ANSWERS['profile']['']} peak_memory fits"
    " energy_j usd_per_step bound_by",
    "ServingReport": f"name load {ANSWERS['serve']['']} refused",
    "TraceReport": "gpu measured_s busy_s gap_s bound_s modeled_s kernels costed_share over_roof",
    "GpusReport": "name release dram_bytes_per_s dram_bytes l2_bytes tdp_w sm_count",
}


#: report → the columns of its details
DETAILS: Mapping[str, str] = {
    "BoundReport": "gpu policy kernels dram_bytes time_s low_s high_s limited_by called_s",
    "ProfileReport": "name module phase count time_s time_share bound_s flops bytes limited_by shapes",
    "FusedReport": "gpu policy rule count saved_s saved_bytes reason",
    "TraceReport": "name count measured_s bound_s modeled_s of_roof limited_by",
}


def _bounded(report: Any) -> tuple[list[Row], list[Row]]:
    figures: list[Row] = []
    details: list[Row] = []
    for answer in report.found.answers:
        row = {name: getattr(answer, name) for name in _columns(FIGURES["BoundReport"])}
        judged = {
            f"measured_{name}": getattr(answer.measured, name, None) for name in ("time_s", "of_bound", "possible")
        }
        figures.append({**row, **judged})
        details += [{"gpu": answer.gpu, **write(run)} for run in answer.runs]
    return figures, details


def _profile(report: Any) -> tuple[list[Row], list[Row]]:
    from memwall.analysis.quantities import answer_of
    from memwall.analysis.table import kernel_rows

    made = report.profile
    if report.explained:
        return [], [_explained(schedule, why) for schedule, why in report.explained]
    rows = [({"gpu": each.gpu.name, **answer_of(made, each)}, each.policy, each.totals) for each in made.simulations]
    rows += [({"gpu": each.gpu}, f"{each.policy} with {each.label}", each.after) for each in report.what_ifs]
    totals = [{**_times(total), "policy": policy, **row} for row, policy, total in rows]
    longest = kernel_rows(made, made.simulations[0])[:MOST_DETAILS] if made.simulations else ()
    figures = _rows_of("ProfileReport", totals, lambda row, name: row.get(name))
    return figures, [{name: getattr(row, name) for name in DETAILS["ProfileReport"].split()} for row in longest]


def _times(total: Any) -> Row:
    """The seconds of a kernel or of a whole, with their ends and bound."""
    return {name: getattr(total, name) for name in ("time_s", "low_s", "high_s", "bound_s")}


def _explained(schedule: Any, why: Any) -> Row:
    of = {"gpu": schedule.gpu.name, "policy": schedule.policy, "name": why.kernel.name}
    return {**of, "module": why.module, "count": why.count, **_times(why.kernel), "limited_by": why.kernel.limited_by}


def _fused(report: Any) -> tuple[list[Row], list[Row]]:
    from memwall.analysis.savings import policy_sets

    rows = [(each.gpu.name, row) for each in policy_sets(report.found.profile) for row in each.rows()]
    figures = _rows_of("FusedReport", rows, lambda row, name: row[0] if name == "gpu" else getattr(row[1], name))
    refused: list[Row] = [
        {"gpu": each["gpu"], "policy": policy, **rule}
        for each in report.found.to_dict()["gpus"]
        for policy, rules in each["refused"].items()
        for rule in rules
    ]
    return figures, sorted(refused, key=lambda rule: -rule["saved_s"])[:MOST_DETAILS]


def _compared(report: Any) -> tuple[list[Row], list[Row]]:
    found = report.comparison
    if found.kind == "machines":
        return [_machine(each) for each in found.machines], []
    return _rows_of("ComparisonReport", found.entries, lambda entry, name: entry.figure(name)), []


def _machine(gpu: Any) -> Row:
    """A GPU, or one of machines side by side: its numbers, and its peaks by pipe."""
    numbers = {name: getattr(gpu, name, None) for name in _columns(FIGURES["GpusReport"])}
    return {**numbers, "peak_flop_per_s": {str(pipe): peak for pipe, peak in gpu.peak_flop_per_s.items()}}


def _served(report: Any) -> tuple[list[Row], list[Row]]:
    points = report.found.points
    return _rows_of("ServingReport", points, lambda point, name: point.figure(name)), []


def _traced(report: Any) -> tuple[list[Row], list[Row]]:
    found = report.analysis
    totals = found.totals()
    figures = _rows_of(
        "TraceReport", [totals], lambda row, name: found.gpu.name if name == "gpu" else getattr(row, name)
    )
    groups = sorted(found.groups("op"), key=lambda group: -group.measured_s)[:MOST_DETAILS]
    return figures, [_measured(group) for group in groups]


def _measured(group: Any) -> Row:
    """The runs of an op: how often, and its seconds as measured, at least and as modeled."""
    known = {name: group.known(name) for name in ("bound_s", "modeled_s")}
    of = {"name": group.key, "count": len(group.rows), "measured_s": group.measured_s}
    return {**of, **known, "of_roof": group.of_roof, "limited_by": group.wall}


def _first_rows(report: Any) -> tuple[list[Row], list[Row]]:
    """Of any other report the rows that it has as a table of data."""
    if "csv" not in report.kinds:
        return [], []
    columns, rows = report.rows()
    return [dict(zip(columns, row, strict=True)) for row in islice(rows, MOST_ROWS)], []


#: report → how its figures and details are read
_READERS: Mapping[str, Callable[[Any], tuple[list[Row], list[Row]]]] = {
    "BoundReport": _bounded,
    "ProfileReport": _profile,
    "FusedReport": _fused,
    "ComparisonReport": _compared,
    "ServingReport": _served,
    "TraceReport": _traced,
    "GpusReport": lambda report: ([_machine(gpu) for gpu in report.gpus], []),
}
