"""Comparison → Document: GPUs or profiles side by side. Each kind of comparison has its list of sections."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import memwall.report.columns as col
from memwall.analysis.kernel_kinds import KINDS
from memwall.analysis.levers import KIND_NOTE, NOTABLE, by_kind
from memwall.analysis.modules import module_tree
from memwall.analysis.pipes import mfu_note, peaks_text
from memwall.analysis.quantities import ANSWERS
from memwall.core.units import duration, few, listed, percent
from memwall.perfmodel.roofline import LINK, WALLS
from memwall.report.document import (
    Block,
    Column,
    Document,
    Glance,
    Picture,
    PictureChoice,
    Section,
    Sentence,
    Table,
    clean,
)
from memwall.report.figures.modules import METRICS, flame_chart
from memwall.report.figures.profile import roofline_since
from memwall.report.figures.scene import Chart
from memwall.report.html import blocks_html, section_html
from memwall.report.kinds import Report
from memwall.report.notebook import fragment
from memwall.report.pages.glance import first_fact, glance, limit_fact, memory_fact
from memwall.report.pages.gpus import machine_sections, moral
from memwall.sweeping.comparison import MOST_LEVERED, Comparison, Entry, Flip, ProfileChange
from memwall.sweeping.comparison_figure import comparison_chart, times_chart

if TYPE_CHECKING:
    from pandas import DataFrame

#: the pipes on which float32 products run without and with TF32
_LANES, _TF32 = "vector.float32", "tensor.tf32"


@dataclass(frozen=True, slots=True)
class ComparisonReport(Report):
    """GPUs or profiles side by side, or machines."""

    noun = "a comparison"
    kinds = ("text", "md", "html", "json", "csv", "parquet", "png", "svg", "pdf")
    comparison: Comparison
    #: of what it is where nobody said so, and how to get another
    taken: str = ""

    def document(self, kind: str) -> Document:
        """Which is the fastest and what would help each, then its tables; as HTML with the pictures."""
        found = self.comparison
        answer: list[Block] = [Sentence(self.taken, strong=True)] if self.taken else []
        answer += _answer(found, kind)
        if kind == "html":
            label = "growth of the GPUs" if found.kind == "machines" else "times, speed-ups and utilization"
            answer.append(Picture(comparison_chart(found), label))
        sections = _SECTIONS[found.kind](found)
        if kind == "html" and found.sides:
            sections.insert(0, Section("Before and after", (_pictures(found),)))
        of = ", the last profile made in this folder" if self.taken else ""
        return Document(f"compare: {found.subject}{of}", sections, answer)

    def record(self) -> str:
        return self.comparison.to_json()

    def rows(self) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        record = self.comparison.to_dict()
        flat = [_flat(row) for row in record["entries"] or record["machines"]]
        columns = tuple(dict.fromkeys(key for row in flat for key in row))
        return columns, [tuple(row.get(column) for column in columns) for row in flat]

    def figure(self) -> Chart:
        return comparison_chart(self.comparison)


def _pictures(comparison: Comparison) -> PictureChoice:
    """Rooflines with arrows from the first profile's kernels, and the modules of both on one scale."""
    shown: list[tuple[str, Picture]] = []
    for name, before, after in comparison.sides:
        of = f"{clean(name)}: " if len(comparison.sides) > 1 else ""
        drawn = {"roofline": roofline_since(*before, *after)}
        trees = [(label, module_tree(*side)) for label, side in (("before", before), (clean(name), after))]
        drawn |= {
            f"flame graph, {metric}": flame_chart(f"{clean(name)} and before", trees, metric) for metric in METRICS
        }
        shown += [(of + label, Picture(chart, f"{of}{label}, before and after")) for label, chart in drawn.items()]
    return PictureChoice(shown)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A record with its inner tables as columns: ``wall_shares.compute``."""
    result: dict[str, Any] = {}
    for key, value in row.items():
        cell = value
        if isinstance(value, list):
            cell = "; ".join(each["name"] if isinstance(each, Mapping) else str(each) for each in value)
        result |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {key: cell}
    return result


def _gpu_sections(comparison: Comparison) -> list[Section]:
    entries = comparison.entries
    sections = [Section("Walls and memory", (_wall_table(entries), *_calibration_table(entries)))]
    sections += _cost_sections(entries)
    if len(entries) > 1:
        sections.append(Section("What flips its wall", (_flip_block(comparison.flips, entries),)))
    return sections


def _profile_sections(comparison: Comparison) -> list[Section]:
    entries = comparison.entries
    sections = [
        Section("Work", (*_float32(entries), _work_table(entries))),
        Section("Walls and memory", (_wall_table(entries), *_calibration_table(entries))),
    ]
    sections += _cost_sections(entries)
    sections.append(Section("What each fuses", _kind_tables(entries)))
    for label in dict.fromkeys(change.label for change in comparison.changes):
        rows = [change for change in comparison.changes if change.label == label]
        tables = [_change_table(kind, [r for r in rows if r.kind == kind]) for kind in ("class", "kernel")]
        sections.append(Section(f"What changed in {clean(label)}", [table for table in tables if table.rows]))
    if not comparison.changes:
        sections.append(Section("What changed", (Sentence("Nothing: every class and kernel takes the same."),)))
    return sections


def _answer(comparison: Comparison, kind: str) -> list[Block]:
    """What the comparison comes to, for HTML the facts of the fastest at a glance, the times behind it, and what would
    help."""
    entries = comparison.entries
    if comparison.kind == "machines":
        return [*moral(comparison.machines)]
    summary = (_summary if comparison.kind == "gpus" else _profiles_summary)(entries)
    fitting = [Sentence(_fitting(entries))] if all(entry.fits is not None for entry in entries) else []
    seen = [_glance(entries)] if kind == "html" and all(entry.time_s for entry in entries) else []
    told: list[Block] = [Sentence(summary, strong=True), *seen, *fitting, *_emulated(entries)]
    return [*told, _speed_table(comparison), *_lever_table(entries)]


def _glance(entries: Sequence[Entry]) -> Glance:
    """The facts of the fastest that fits."""
    best = min(entries, key=lambda entry: (entry.fits is False, entry.time_s))
    first = first_fact(best.levers)
    if len(entries) > MOST_LEVERED:
        first = f"profile {clean(best.label)}", f"levers are told of up to {MOST_LEVERED} entries"
    held = memory_fact(best.peak_memory_bytes + best.reserved_bytes, best.gpu_bytes)
    return glance(limit_fact(best.levers, best.wall_shares, best.time_s), first, held, clean(best.label))


def _fitting(entries: Sequence[Entry]) -> str:
    """Which entries do not fit into their GPU's memory, or that all do."""
    if lacking := [clean(entry.label) for entry in entries if not entry.fits]:
        return f"{listed(lacking)} {'do' if len(lacking) > 1 else 'does'} not fit into the GPU's memory."
    return f"{'Each' if len(entries) > 1 else 'It'} fits into the memory of its GPU."


_SECTIONS: dict[str, Callable[[Comparison], list[Section]]] = {
    "gpus": _gpu_sections,
    "profiles": _profile_sections,
    "machines": lambda comparison: machine_sections(comparison.machines),
}


def _emulated(entries: Sequence[Entry]) -> list[Sentence]:
    """What the GPUs have no tensor cores for, each said once."""
    return [Sentence(text, strong=True) for text in dict.fromkeys(text for e in entries for text in e.emulated)]


def _float32(entries: Sequence[Entry]) -> Iterator[Sentence]:
    """Where one workload multiplies float32 on vector lanes and another in TF32, which frameworks choose by default."""
    for gpu in dict.fromkeys(entry.gpu for entry in entries):
        found: dict[str, dict[str, None]] = {}
        for entry in entries:
            if entry.gpu == gpu and entry.mfu_peaks:
                found.setdefault(next(iter(entry.mfu_peaks)), {})[clean(entry.workload)] = None
        if _LANES in found and _TF32 in found:
            yield Sentence(
                f"On {gpu} float32 matmuls run on vector lanes in {few([*found[_LANES]])} and in TF32 in"
                f" {few([*found[_TF32]])}: PyTorch takes TF32 after torch.set_float32_matmul_precision('high'), JAX"
                " unless jax_default_matmul_precision is 'highest'.",
                strong=True,
            )


def _summary(entries: Sequence[Entry]) -> str:
    first, best = entries[0], min(entries, key=lambda entry: entry.time_s)
    names = [clean(entry.gpu) for entry in entries if not entry.fits]
    misfits = f"; it does not fit {', '.join(names)}" if names else ""
    if len(names) == len(entries):
        misfits = "; it fits none of them"
    alike = [clean(entry.label) for entry in entries if duration(entry.time_s) == duration(first.time_s)]
    if best is first and len(alike) > 1:
        return f"{few(alike)} take {duration(first.time_s)} a step each, and none is faster{misfits}."
    if best is first:
        takes = "takes" if len(entries) == 1 else "is the fastest at"
        return f"{clean(first.label)} {takes} {first.time_text} a step{misfits}."
    wall = max(best.wall_shares, key=best.wall_shares.__getitem__)
    return (
        f"{clean(best.label)} takes {best.time_text} a step, {best.speedup:.2f} times as fast as "
        f"{clean(first.label)}{_speedup_range(best, ' ({} to {})')}, {percent(best.wall_shares[wall])} of it in "
        f"kernels at the {wall} wall{misfits}."
    )


def _profiles_summary(entries: Sequence[Entry]) -> str:
    """The profile that differs most from the first on its GPU, slower or faster."""
    found = max(entries, key=lambda entry: abs(math.log(entry.speedup)) if entry.speedup > 0 else 0.0)
    if f"{found.speedup:.2f}" == "1.00":
        return "Every profile takes as long as the first on its GPU."
    return (
        f"{clean(found.label)} takes {found.time_text} a step, {found.speedup:.2f} times as fast as the first profile"
        " on that GPU, which is the largest difference."
    )


def _speedup_range(entry: Entry, form: str, without: str = "") -> str:
    """The 80 % interval of the speed-up in a form, or ``without`` where it has none."""
    if entry.speedup_low is None or entry.speedup_high is None:
        return without
    return form.format(*(col.times(end).removesuffix("x") for end in (entry.speedup_low, entry.speedup_high)))


def _speed_table(comparison: Comparison) -> Table:
    """The times with their intervals, the speed-ups with theirs, and what each entry makes of its GPU."""
    entries = comparison.entries
    first, second, others = ANSWERS["profile"][""].split(" ", 2)
    ranges = [_speedup_range(e, "{}-{}", col.NOTHING) for e in entries]
    columns = [
        _labels(entries),
        *_figures(entries, f"{first} {second}"),
        *col.of(entries, "speedup"),
        *col.known([(Column("80 % range", "x"), ranges)]),
        *_figures(entries, others),
    ]
    words = f"time: modeled; bound: speed of light; speed-up: over {comparison.baseline}; limited by: the wall of most"
    words += " of the time"
    notes = words, _range_note(entries), _mfu_note(entries)
    return col.table("", columns, "; ".join(filter(None, notes)))


def _heading(entries: Sequence[Entry]) -> str:
    """What a column of labels has above it."""
    return "GPU" if all(entry.label == entry.gpu for entry in entries) else "step"


def _labels(entries: Sequence[Entry]) -> col.CellColumn:
    return col.names(_heading(entries), [entry.label for entry in entries])


def _figures(entries: Sequence[Entry], names: str) -> list[col.CellColumn]:
    return col.answer(names, lambda name: [entry.figure(name) for entry in entries])


def _range_note(entries: Sequence[Entry]) -> str:
    text = "80 % range: should hold 80 % of real runs"
    ratios = any(entry.speedup_low is not None for entry in entries)
    return f"{text}, of a speed-up at least: the errors on two GPUs are taken as independent" if ratios else text


def _calibration_table(entries: Sequence[Entry]) -> list[Table]:
    """How the constants behind the times are known."""
    known = [entry for entry in entries if entry.calibrated]
    hosts = [entry.host for entry in known]
    texts = col.text("calibrated", [entry.calibrated for entry in known], wraps=True)
    named = [col.text("host", hosts)] if any(hosts) else []
    return [col.table("Calibration", [_labels(known), *named, texts])] if known else []


def _mfu_note(entries: Sequence[Entry]) -> str:
    return mfu_note((entry.gpu, peaks_text(entry.mfu_peaks)) for entry in entries)


def _of_first(entries: Sequence[Entry], field: str) -> col.CellColumn:
    values = [getattr(entry, field) for entry in entries]
    return col.ratio("of the first", [v / values[0] if values[0] and v is not None else None for v in values])


def _work_table(entries: Sequence[Entry]) -> Table:
    columns = [
        _labels(entries),
        *col.of(entries, "kernels, flops"),
        _of_first(entries, "flops"),
        *col.of(entries, "dram_bytes"),
        _of_first(entries, "dram_bytes"),
    ]
    return col.table("", columns)


def _kind_tables(entries: Sequence[Entry]) -> list[Table]:
    """Kernels of each entry by what they hold, and their time."""
    kinds = [kind for kind in KINDS if any(kind in entry.kind_kernels for entry in entries)]
    labels = _labels(entries)
    note = "fused: in one kernel with other ops; reductions: norms too; a kernel with a matmul counts under matmuls"
    like = [time_s for entry in entries for time_s in entry.kind_s.values()]
    counts = [col.plain(kind, [entry.kind_kernels.get(kind, 0) for entry in entries]) for kind in kinds]
    times = [col.seconds(kind, [entry.kind_s.get(kind, 0.0) for entry in entries], like=like) for kind in kinds]
    return [col.table("Kernels", [labels, *counts], note), col.table("Time", [labels, *times])]


def _wall_table(entries: Sequence[Entry]) -> Table:
    columns = [_labels(entries), *_figures(entries, ANSWERS["profile"]["Walls and memory"])]
    places: dict[str, list[str]] = {}
    for entry in entries:
        if entry.peak_at:
            places.setdefault(entry.peak_at, []).append(clean(entry.label))
    texts = [f"peak {place}" + f" ({', '.join(on)})" * (len(places) > 1) for place, on in places.items()]
    note = "assumed: for context and allocator; fits: peak memory and assumed are at most the GPU memory"
    return col.table("", columns, "; ".join((note, *texts)))


#: levers of each entry that are listed
MAX_LEVERS = 3


def _lever_table(entries: Sequence[Entry]) -> list[Block]:
    """The largest levers of each entry; or that they are left out."""
    if len(entries) > MOST_LEVERED:
        return [
            Sentence(
                f"What would make an entry faster is told of up to {MOST_LEVERED}, and not of these"
                f" {len(entries):,}: memwall compare of fewer has it, and memwall profile of one."
            )
        ]
    notable = ((entry, [lever for lever in by_kind(entry.levers) if lever.share >= NOTABLE]) for entry in entries)
    found = [(entry, lever, not i) for entry, own in notable for i, lever in enumerate(own[:MAX_LEVERS])]
    rows = [lever for _, lever, _ in found]
    columns = [
        col.names(_heading(entries), [entry.label if is_first else "" for entry, _, is_first in found]),
        *col.of(rows, "lever: name phrase, kind: kind, saved: saved_s s, of the step: share %, option: options prose"),
    ]
    note = f"saved: by memwall profile with the option; {KIND_NOTE}"
    return [col.table("What would make it faster", columns, note)] if rows else []


def _cost_sections(entries: Sequence[Entry]) -> list[Section]:
    known = any(e.energy_j is not None or e.usd_per_step is not None for e in entries)
    return [Section("Energy and cost", (_cost_table(entries),))] if known else []


def _cost_table(entries: Sequence[Entry]) -> Table:
    energy, costs = ANSWERS["profile"]["Energy and cost"].split(" ", 1)
    drawn = _figures(entries, energy)
    over = [_of_first(entries, energy)] * len(drawn)
    return col.table("", [_labels(entries), *drawn, *over, *_figures(entries, costs)])


def _flip_block(flips: Sequence[Flip], entries: Sequence[Entry]) -> Table | Sentence:
    if not flips:
        return Sentence("Nothing notable: the kernels hit the same wall on all of them.")
    labels = [clean(entry.label) for entry in entries]
    columns = col.of(flips, "kernel: name op, : count repeats, module module, phase?")
    if len(labels) <= MAX_WIDE:
        columns += [col.text(name, [f.walls[i] or col.NOTHING for f in flips]) for i, name in enumerate(labels)]
    else:
        listed = {wall: [_listed(labels, flip, wall) for flip in flips] for wall in (*WALLS, LINK)}
        columns += col.known([col.text(f"{wall} on", cells, wraps=True) for wall, cells in listed.items()])
    return col.table("", columns, "kernels of 0.1 % of the time or more whose wall differs, the longest time first")


#: with more entries than this, what flips is listed by wall
MAX_WIDE = 4
#: the longest list of entries under one wall; where more stand there than under any other, they are "the others"
MAX_LISTED = 3


def _listed(labels: Sequence[str], flip: Flip, wall: str) -> str:
    """The entries on which a kernel hits a wall; the most of them are "the others" where that is clear and shorter."""
    names = [name for name, hit in zip(labels, flip.walls, strict=True) if hit == wall]
    most = max((*WALLS, LINK), key=flip.walls.count)
    if wall == most and len(names) > MAX_LISTED and all(flip.walls):
        return f"the other {len(names)}"
    return ", ".join(names) or col.NOTHING


def _change_table(kind: str, rows: Sequence[ProfileChange]) -> Table:
    columns = [
        *col.of(rows, f"{kind}: name op, before: before_s s, after: after_s s like before_s"),
        *col.of(rows, "change: delta_s +s like before_s"),
        col.ratio("time", [r.after_s / r.before_s if r.before_s else None for r in rows]),
        col.ratio("FLOPs", [r.after_flops / r.before_flops if r.before_flops else None for r in rows]),
        col.ratio("bytes", [r.after_bytes / r.before_bytes if r.before_bytes else None for r in rows]),
    ]
    return col.table({"class": "Classes", "kernel": "Kernels"}[kind], columns)


# -- in a notebook -----------------------------------------------------------------------------------------------------


def comparison_frame(comparison: Comparison) -> DataFrame:
    """One row per entry, or per machine; see :meth:`memwall.Comparison.to_pandas`."""
    from pandas import json_normalize

    record = comparison.to_dict()
    return json_normalize(record["entries"] or record["machines"])


def comparison_fragment(comparison: Comparison) -> str:
    """A comparison as HTML: bars of the times by wall, then its tables."""
    document = ComparisonReport(comparison).document("text")
    bars = [blocks_html((Picture(times_chart(comparison), "time per step, by wall"),))] if comparison.entries else []
    sections = [section_html(section) for section in document.whole if isinstance(section, Section)]
    return fragment(document.title, [*bars, *sections])
