"""A profiler trace compared with a GPU, as text, Markdown, HTML, CSV, JSON and a picture.

Ops faster than the bound come first: they are model errors. Then what was measured and how much of it is known, the ops
next to their speed of light and the prediction, the gaps, and the ops without figures with the reason.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import memwall.report.columns as col
from memwall.core.errors import UsageError
from memwall.core.files import json_pieces
from memwall.core.graph import Pipe
from memwall.core.units import bandwidth, counted, duration, flop_rate, percent
from memwall.perfmodel.roofline import LINK
from memwall.report.document import Block, Document, Glance, Picture, Section, Sentence, Table, known_facts
from memwall.report.figures.picture import cut
from memwall.report.figures.scene import Chart
from memwall.report.kinds import Report
from memwall.traces.analysis import UNKNOWN, RowGroup, TraceAnalysis
from memwall.traces.attained import TraceRow
from memwall.traces.figure import trace_chart
from memwall.traces.page_names import short_name

#: rows of the tables of gaps, of ops farthest from the model, of ops without figures and of what is over the roof
_GAPS, _FARTHEST, _UNKNOWN, _OVER = 8, 8, 12, 20
#: levers that are listed, and characters of the shapes of each
_LEVERS, _SHORT_SHAPES = 5, 40
#: kinds of op that a page and a text list, and characters of shapes that a table shows
_HTML_ROWS, _TEXT_ROWS, _LONGEST_SHAPES = 200, 15, 60
#: ops shorter than this share of the time are no news where they are modeled badly
_NOTABLE = 0.005
_US = 1e-6

SORTS: dict[str, Callable[[RowGroup], float]] = {
    "time": lambda group: group.measured_s,
    "flops": lambda group: group.known("flops") or 0.0,
    "bytes": lambda group: group.known("moved_bytes") or 0.0,
    "intensity": lambda group: (group.known("flops") or 0.0) / (group.known("bytes") or float("inf")),
    "bound": lambda group: group.known("bound_s") or 0.0,
    "count": lambda group: len(group.rows),
}
#: columns of the CSV behind trace and GPU -> what is read of a row; seconds and bytes in base units
_CELLS: dict[str, Callable[[TraceRow], Any]] = {
    "id": attrgetter("id"), "op": attrgetter("name"), "class": attrgetter("op_class"),
    **{name: attrgetter(name) for name in ("phase", "module", "source", "shapes", "device", "start_s")},
    "kernels": lambda row: len(row.kernels),
    "kernel_names": lambda row: "; ".join(dict.fromkeys(kernel.name for kernel in row.kernels)),
    **{name: attrgetter(name) for name in (
        "measured_s", "flops", "read_bytes", "write_bytes", "link_bytes", "bound_s", "of_roof", "modeled_s", "wall",
        "assumed", "reason")},
    "measured_dram_bytes": attrgetter("dram_bytes"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceReport(Report):
    """A profiler's trace next to what a GPU could do; ``top`` ops are listed, 15, on a page 200."""

    noun = "a trace"
    kinds = ("text", "md", "html", "json", "csv", "parquet", "png", "svg", "pdf")
    analysis: TraceAnalysis
    by: str = "op"
    top: int | None = None
    sort: str = "time"

    def document(self, kind: str) -> Document:
        """What beats the speed of light first, then the rest in the order in which it is read.

        Raises:
            UsageError: no such ``by`` or ``sort``.
        """
        analysis = self.analysis
        if self.by not in ("op", "module", "class", "phase") or self.sort not in SORTS:
            raise UsageError(f"cannot group by {self.by!r} or sort by {self.sort!r}")
        groups = sorted(analysis.groups(self.by), key=SORTS[self.sort], reverse=True)
        top = self.top or (_HTML_ROWS if kind == "html" else _TEXT_ROWS)
        sections = [
            *_over_roof(analysis),
            Section("What was recorded", (known_facts(*_facts(analysis)),)),
            Section("Where the GPU's time went", (_walls(analysis), _classes(analysis))),
            Section("Measured against the speed of light", (_kernels(analysis, self.by, groups, top),)),
            *_collectives(analysis),
            *_gap_section(analysis),
            *_farthest(analysis),
            *_without(analysis),
            *([Section("Notes", [Sentence(note) for note in analysis.notes])] if analysis.notes else []),
        ]
        return Document(analysis.trace.path_name, sections, [*_answer(analysis, kind), *_picture(analysis, kind)])

    def record(self) -> Iterable[str]:
        return json_pieces(self.analysis.record())

    def rows(self) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        of = (self.analysis.trace.path_name, self.analysis.gpu.name)
        rows = ((*of, *(read(row) for read in _CELLS.values())) for row in self.analysis.rows)
        return ("trace", "gpu", *_CELLS), rows

    def figure(self) -> Chart:
        return trace_chart(self.analysis)


#: what ends the gaps between kernels
_NO_GAPS = "CUDA graphs, with torch.compile(mode='reduce-overhead')"
_NO_GAPS_OF_XLA = "one jax.jit of the whole step, or several steps in a call (jax.lax.scan)"


def _answer(analysis: TraceAnalysis, kind: str) -> list[Block]:
    """How busy the GPU was and with what, and what it would save to end the gaps or to run an op at its bound."""
    over = [Sentence(_too_fast_text(analysis), strong=True)] if analysis.over_roof else []
    busy_s, gap_s, measured_s = analysis.busy_s, analysis.gap_s, analysis.measured_s
    span_s, devices = analysis.devices_s, len(analysis.trace.busy_us)
    if not measured_s:
        return [*over]
    walls = {wall: time_s for wall, time_s in analysis.by_wall().items() if wall != UNKNOWN}
    wall = max(walls, key=walls.__getitem__)
    who, whose = (f"{counted(devices, 'GPU')} are", "their") if devices > 1 else ("The GPU is", "its")
    told = f"{who} busy for {duration(busy_s)} of {duration(span_s)} ({percent(busy_s / span_s)})"
    if walls[wall]:
        told += f"; {percent(walls[wall] / measured_s)} of the time of {whose} kernels is under the {wall} wall"
    told += "."
    exposed_s = sum(analysis.trace.exposed_communication_us.values()) * _US
    levers = [
        ("no gaps between kernels", gap_s, _NO_GAPS_OF_XLA if analysis.trace.of_xla else _NO_GAPS),
        ("communication behind kernels", exposed_s, "other work beside it, or fewer and larger messages"),
    ]
    groups = [group for group in analysis.groups("op") if group.bounded_s]
    levers += [
        (
            f"{short_name(g.key)} of {cut(g.first.shapes, _SHORT_SHAPES)} at its bound",
            g.bounded_s - (g.known("bound_s") or 0.0),
            "fusion, or another kernel",
        )
        for g in groups
    ]
    notable = sorted((lever for lever in levers if lever[1] > _NOTABLE * span_s), key=lambda lever: -lever[1])
    rows = [(name, saved_s, saved_s / span_s, how) for name, saved_s, how in notable[:_LEVERS]]
    note = "at most: no op runs faster than its bound, and few reach it; of the span of the trace"
    specs = "lever: 0 phrase, saved: 1 s, of the span: 2 %, by: 3 prose"
    table = col.listing("What would make it faster", rows, specs, note)
    most = f"{percent(walls[wall] / measured_s)} of its time"
    seen = [_glance(analysis, most, wall, rows)] if kind == "html" and rows else []
    return [*over, Sentence(told, strong=True), *seen, *([table] if rows else [])]


def _glance(analysis: TraceAnalysis, most: str, wall: str, levers: Sequence[tuple[str, float, float, str]]) -> Glance:
    """What the span waits for, what would save most of it, and that a trace says nothing of memory."""
    whole_s = analysis.devices_s
    name, saved_s, of_span, how = levers[0]
    behind = f"{most}; the GPU is busy for {percent(analysis.busy_s / whole_s)} of the span"
    if analysis.gap_s > analysis.busy_s:
        busy, gaps, around = (
            percent(part_s / whole_s) for part_s in (analysis.busy_s, analysis.gap_s, analysis.around_s)
        )
        behind = f"{gaps} of the span, with {around} before the first kernel and after the last; busy {busy}"
        wall = "gaps between kernels"
    first, _, further = how.partition(", ")
    saves = f"{name} saves at most {percent(of_span)}, {duration(saved_s)}"
    facts = (
        ("limited by", wall, behind),
        ("do first", first, f"{further}: {saves}" if further else saves),
        ("memory", "not known", "a trace does not say what is held"),
    )
    return Glance(facts)


def _picture(analysis: TraceAnalysis, kind: str) -> list[Block]:
    """For a page: the time by op class, and the roofline."""
    if kind != "html" or not analysis.measured_s:
        return []
    return [Picture(trace_chart(analysis), "time by op class, and the roofline as measured")]


def _over_roof(analysis: TraceAnalysis) -> list[Section]:
    rows = analysis.over_roof
    if not rows:
        return []
    shown = rows[:_OVER]
    columns = [
        *_op_columns([row.name for row in shown], shown),
        *col.of(shown, "measured: measured_s s, bound: bound_s s like measured_s, of roof: of_roof %, wall"),
    ]
    return [Section("Over the roof", (col.table("", columns),))]


def _too_fast_text(analysis: TraceAnalysis) -> str:
    cause = "they ran on another GPU" if analysis.ran_elsewhere else "an error of memwall's counting"
    rows = counted(len(analysis.over_roof), "row")
    return f"{rows} ran faster than {analysis.gpu.name} can: {cause}."


def _op_columns(ops: Iterable[str], rows: Iterable[TraceRow]) -> list[col.CellColumn]:
    return [col.names("op", map(short_name, ops)), col.names("shapes", [cut(r.shapes, _LONGEST_SHAPES) for r in rows])]


def _facts(analysis: TraceAnalysis) -> list[tuple[str, str]]:
    trace, gpu = analysis.trace, analysis.gpu
    names = [device.label or f"device {device.index}" for device in trace.devices if device.kernels]
    counts = {name: names.count(name) for name in names}
    ran_on = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())
    # the peaks that the trace's FLOPs are compared with, the most used first; where none are known, of half floats
    pipes = analysis.pipes() or [gpu.ceiling_pipe(Pipe("tensor", "float16"))]
    peaks = ", ".join(f"{flop_rate(gpu.peak(pipe), pipe)} {pipe}" for pipe in pipes)
    shaped = f"{percent(analysis.shaped_share)} of GPU time, {percent(analysis.costed_of_shaped)} of that with figures"
    remedy = (
        "name the programs with --hlo" if trace.of_xla else "record with torch.profiler.profile(record_shapes=True)"
    )
    partly = f"; {percent(analysis.partly_share)} FLOPs or bytes alone" if analysis.partly_share else ""
    facts = [
        ("trace", f"{trace.path_name}, {counted(trace.events, 'event')}"),
        ("measured on", ran_on or "a GPU that the trace does not name"),
        ("compared with", f"{gpu.name} ({gpu.full_name}, {bandwidth(gpu.dram_bytes_per_s)}, {peaks})"),
        ("GPU time", _gpu_time(analysis)),
        ("linked to an op", f"{percent(analysis.matched_share)} of GPU time"),
        ("sizes recorded", shaped if analysis.shaped_share else f"none: {remedy}"),
        ("with figures", f"{percent(analysis.costed_share)} of GPU time has FLOPs, bytes and a wall{partly}"),
    ]
    if analysis.modeled_of_s:
        ratio = analysis.modeled_s / analysis.modeled_of_s
        text = f"{duration(analysis.modeled_s)} for what took {duration(analysis.modeled_of_s)} ({ratio:.2f}x)"
        crosses = analysis.rows.where(lambda kind: kind.wall == LINK)
        facts.append(("modeled", f"{text}, without what crosses a link" if crosses else text))
    if trace.steps:
        facts.append(("steps", f"{len(trace.steps):,}, {trace.steps[0].name} first"))
    return facts


def _gpu_time(analysis: TraceAnalysis) -> str:
    trace = analysis.trace
    count = len(trace.kernels)
    text = f"{duration(analysis.measured_s)} in {count:,} kernel{'s and copies' if count > 1 else ''}"
    text += f"; busy {duration(analysis.busy_s)} of {duration(analysis.devices_s)}"
    exposed_s = sum(trace.exposed_communication_us.values()) * _US
    return f"{text}, {duration(exposed_s)} of it communication alone" if exposed_s else text


_COLLECTIVES_NOTE = (
    "a kernel runs from when its rank comes to it until all have: the shortest of equal ones is nearest to the message"
    " alone; bus: bandwidth of it, as nccl-tests define it"
)


def _collectives(analysis: TraceAnalysis) -> list[Section]:
    """The trace's own collectives, next to the model's time, and who of several ranks waits."""
    rows, cluster = analysis.collectives[:_TEXT_ROWS], analysis.cluster
    if not rows:
        return []
    cells = [
        (
            row.message.op,
            row.message.ranks,
            row.message.nbytes,
            len(row.seconds),
            row.measured_s,
            row.shortest_s,
            row.bus_bytes_per_s,
            row.link_share,
            row.modeled.time_s if row.modeled else None,
        )
        for row in rows
    ]
    note = (
        f"{_COLLECTIVES_NOTE}; links and modeled: of {cluster.name}, {_PLACED}{_ABOVE}"
        if cluster
        else _COLLECTIVES_NOTE
    )
    table = col.listing(
        "Collectives",
        cells,
        "collective: 0, ranks: 1, message: 2 B, count: 3 count, all: 4 s, shortest: 5 s, bus: 6 B/s, of the links: 7 %,"
        " modeled: 8 s like 5",
        note,
        left=len(analysis.collectives) - len(rows),
    )
    return [Section("", (table, *_too_fast(analysis), *_ranks(analysis)))]


_PLACED = "the ranks on as few nodes as hold them"
_ABOVE = "; in the tables above a collective is modeled by its bytes on the GPU's own link"


def _too_fast(analysis: TraceAnalysis) -> list[Sentence]:
    """Of collectives that no algorithm runs so fast on the cluster's links: it was another one."""
    known = [row for row in analysis.collectives if row.modeled]
    count = sum(row.shortest_s < row.modeled.bound_s for row in known if row.modeled)
    if not count or not analysis.cluster:
        return []
    said = f"{count:,} of {counted(len(known), 'row')} took less time than the links of {analysis.cluster.name} need"
    return [Sentence(f"{said}: the trace is of another cluster; --cluster names it (memwall clusters lists them).")]


def _ranks(analysis: TraceAnalysis) -> list[Table | Sentence]:
    rows = analysis.ranks
    if not rows:
        return []
    table = col.listing(
        "Ranks",
        rows,
        "trace: name name, collectives: count count, came last: last count, in them: measured_s s,"
        " waits: waits_s s like measured_s",
        "waits: beyond the shortest of the same collective on any rank",
    )
    first = rows[0]
    said = f"The others wait for {first.name}, which came last in {first.last:,} of {first.count:,} collectives"
    return [table, Sentence(f"{said} and waits {duration(first.waits_s)}.")]


def _walls(analysis: TraceAnalysis) -> Table:
    whole = analysis.measured_s or 1.0
    rows = [(wall, time_s, time_s / whole) for wall, time_s in analysis.by_wall().items() if time_s]
    note = "the wall is the model's: the largest of its terms for that op on this GPU"
    return col.listing("", rows, "wall: 0, measured: 1 s, time: 2 %", note)


def _classes(analysis: TraceAnalysis) -> Table:
    groups = analysis.groups("class")
    columns = _figures(analysis, groups, "class", [group.key for group in groups])
    columns += col.of(groups, "/measured: modeled_over_measured ratio")
    return col.table("Op classes", columns, _IN_PART if any(map(_has_part, groups)) else "")


_IN_PART = "bound, of roof and modeled are of the time with figures"


def _has_part(group: RowGroup) -> bool:
    """Whether only a part of a group's time has figures."""
    return 0 < group.bounded_s < group.measured_s


def _kernels(analysis: TraceAnalysis, by: str, groups: Sequence[RowGroup], top: int) -> Table:
    shown = groups[:top]
    shorten = {"op": short_name, "module": _tail}.get(by, str)
    columns = _figures(analysis, shown, by, [shorten(group.key) or col.NOTHING for group in shown])
    if by == "op":
        columns.insert(1, _op_columns([], [group.first for group in shown])[1])
        if any(group.first.module for group in shown):
            columns.append(col.optional(col.names("module", [_module(group) for group in shown])))
    note = "FLOPs and bytes count once for each op, whatever it launched; '-' is unknown, not zero"
    if any(map(_has_part, shown)):
        note += f"; {_IN_PART}"
    if len(groups) > top:
        rest_s = sum(group.measured_s for group in groups[top:])
        note += f"; {len(groups) - top:,} more take {percent(rest_s / (analysis.measured_s or 1.0))} (--top)"
    return col.table("", columns, note)


def _figures(
    analysis: TraceAnalysis, groups: Sequence[RowGroup], heading: str, names: Sequence[str]
) -> list[col.CellColumn]:
    """The columns of any table of groups."""
    whole = analysis.measured_s or 1.0
    sums = ("flops", "moved_bytes", "bound_s", "modeled_s", "dram_bytes")
    rows = [
        (
            name,
            len(g.rows),
            g.measured_s,
            g.measured_s / whole,
            g.of_roof,
            g.wall,
            *map(g.known, sums),
            g.bounded_s or None,
        )
        for name, g in zip(names, groups, strict=True)
    ]
    parts = "with figures: 11 s like 2, " if any(map(_has_part, groups)) else ""
    seen = "by ncu: 10 B, " if any(row[10] is not None for row in rows) else ""
    return col.of(
        rows,
        f"{heading}: 0 name, count: 1 count?, measured: 2 s, time: 3 %, {parts}FLOPs: 6 FLOP, bytes: 7 B, {seen}"
        "bound: 8 s like 2, of roof: 4 %, wall: 5, modeled: 9 s like 2",
    )


def _module(group: RowGroup) -> str:
    """The module of a group's ops, or the number of modules."""
    modules = [module for module in group.rows.groups(attrgetter("module")) if module]
    if not modules:
        return ""
    return _tail(modules[0]) + (f" and {len(modules) - 1} more" if len(modules) > 1 else "")


def _tail(module: str) -> str:
    """The innermost parts of a module's path, which distinguish it from others."""
    parts = module.split("/")
    return module if len(parts) <= 2 else "…/" + "/".join(parts[-2:])


def _gap_section(analysis: TraceAnalysis) -> list[Section]:
    gaps = analysis.trace.gaps
    if not gaps:
        return []
    causes: dict[str, array[float]] = {}
    for cause, dur_us in zip(gaps.cause, gaps.dur_us, strict=True):
        causes.setdefault(gaps.causes.values[cause], array("d")).append(dur_us * _US)
    shown = sorted(causes.items(), key=lambda item: (-sum(item[1]), item[0]))[:_GAPS]
    rows = [(cause, len(times), sum(times), max(times)) for cause, times in shown]
    specs = "what the CPU did when it ended: 0 name, gaps: 1 count, in all: 2 s, longest: 3 s"
    text = (
        f"{counted(len(gaps), 'gap')}, {duration(analysis.gap_s)} in which no stream ran anything;"
        f" {duration(analysis.around_s)} more before the first kernel and after the last"
    )
    return [Section("Exposed gaps", (Sentence(text), col.listing("", rows, specs)))]


def _farthest(analysis: TraceAnalysis) -> list[Section]:
    """Ops of some length whose prediction is the farthest from what was measured, either way."""
    whole = analysis.measured_s or 1.0
    groups = [
        (ratio, group)
        for group in analysis.groups("op")
        if group.measured_s / whole >= _NOTABLE and group.wall != LINK and (ratio := group.modeled_over_measured)
    ]
    groups.sort(key=lambda item: (min(item[0], 1 / item[0]), item[1].key))
    shown = [group for ratio, group in groups[:_FARTHEST] if not 0.8 <= ratio <= 1.25]
    if not shown:
        return []
    rows = [
        (len(g.rows), g.measured_s, g.known("modeled_s"), g.modeled_over_measured, short_name(g.first.kernels[-1].name))
        for g in shown
    ]
    columns = [
        *_op_columns([group.key for group in shown], [group.first for group in shown]),
        *col.of(rows, "count: 0 count, measured: 1 s, modeled: 2 s like 1, /measured: 3 ratio, kernel: 4 name"),
    ]
    return [Section("Farthest from the model", (col.table("", columns),))]


def _without(analysis: TraceAnalysis) -> list[Section]:
    """What has no figures, by name and reason, what no op is linked to among it."""
    found = analysis.rows.where(lambda kind: kind.bound_s is None).groups(lambda kind: (kind.name, kind.reason))
    if not found:
        return []
    order = sorted(found.items(), key=lambda item: (-item[1].measured_s, item[0]))
    shown = order[:_UNKNOWN]
    whole = analysis.measured_s or 1.0
    table = [
        (short_name(name), len(rows), time_s := rows.measured_s, time_s / whole, reason)
        for (name, reason), rows in shown
    ]
    specs = "op or kernel: 0 name, count: 1 count, measured: 2 s, time: 3 %, why: 4 name"
    unmatched = sum(1 for _ in analysis.rows.where(lambda kind: not kind.matched).kernels())
    note = f"linked to no op: {counted(unmatched, 'kernel')}"
    if len(order) > len(shown):
        note += f"; {len(order) - len(shown):,} more kinds are in the JSON and CSV"
    return [Section("Without figures", (col.listing("", table, specs, note),))]
