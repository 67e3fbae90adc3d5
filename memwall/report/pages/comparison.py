"""Comparison → Document: GPUs or profiles side by side. Each kind of comparison has its list of sections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import memwall.report.columns as col
from memwall.analysis.compare import Change, Comparison, Entry, Flip
from memwall.core.units import duration, percent
from memwall.record.kernels import WALLS, short_name
from memwall.report.document import Bar, Bars, Document, Part, Section, Sentence, Table, clean
from memwall.report.figures.comparison import comparison_drawing
from memwall.report.figures.picture import WALL_COLORS, Drawing
from memwall.report.kinds import Report
from memwall.report.pages.gpus import machine_sections


@dataclass(frozen=True, slots=True)
class ComparisonReport(Report):
    """GPUs or profiles side by side, or machines."""

    noun = "a comparison"
    kinds = ("text", "md", "html", "json", "csv", "parquet", "png", "svg")

    comparison: Comparison

    def document(self, kind: str) -> Document:
        """Its tables; as HTML below bars of the times by wall."""
        document = comparison_document(self.comparison)
        entries = self.comparison.entries
        longest_s = max((entry.time_s for entry in entries), default=0.0)
        if kind != "html" or not longest_s:
            return document
        bars = [Bar(clean(e.label), _wall_parts(e, longest_s), duration(e.time_s)) for e in entries]
        section = Section("Time per step, by wall", (Bars(tuple(bars), tuple(WALL_COLORS.items())),))
        return Document(document.title, (section, *document.sections))

    def record(self) -> str:
        """``memwall.comparison/1``."""
        return self.comparison.to_json()

    def rows(self) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """A row for each entry, or for each machine."""
        record = self.comparison.to_dict()
        flat = [_flat(row) for row in record["entries"] or record["machines"]]
        columns = tuple(dict.fromkeys(key for row in flat for key in row))
        return columns, [tuple(row.get(column) for column in columns) for row in flat]

    def figure(self) -> Drawing:
        """Bars; for machines, their growth."""
        return comparison_drawing(self.comparison)


def _wall_parts(entry: Entry, longest_s: float) -> list[Part]:
    """A bar as long as the time of an entry."""
    return [
        Part(wall, 100 * share * entry.time_s / longest_s, WALL_COLORS[wall])
        for wall, share in entry.wall_shares.items()
    ]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A record with its inner tables as columns: ``wall_shares.compute``."""
    result: dict[str, Any] = {}
    for key, value in row.items():
        result |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {key: value}
    return result


def comparison_document(comparison: Comparison) -> Document:
    """What a comparison says."""
    return Document(clean(f"compare: {comparison.title}"), tuple(_SECTIONS[comparison.kind](comparison)))


def _gpu_sections(comparison: Comparison) -> list[Section]:
    entries = comparison.entries
    sections = [
        Section("", (speed_table(entries), Sentence(summary(entries), strong=True))),
        Section("Walls and memory", (wall_table(entries),)),
    ]
    if any(e.energy_j is not None or e.usd_per_step is not None for e in entries):
        sections.append(Section("Energy and cost", (cost_table(entries),)))
    if len(entries) > 1:
        sections.append(Section("What flips its wall", (_flip_block(comparison.flips, entries),)))
    return sections


def _profile_sections(comparison: Comparison) -> list[Section]:
    entries = comparison.entries
    sections = [
        Section("", (speed_table(entries, "the first profile on the same GPU"), work_table(entries))),
        Section("Walls and memory", (wall_table(entries),)),
    ]
    for label in dict.fromkeys(change.label for change in comparison.changes):
        rows = [change for change in comparison.changes if change.label == label]
        tables = [change_table(kind, [r for r in rows if r.kind == kind]) for kind in ("class", "kernel")]
        sections.append(Section(clean(f"What changed in {label}"), tuple(t for t in tables if t.rows)))
    if not comparison.changes:
        sections.append(Section("What changed", (Sentence("Nothing: every class and kernel takes the same."),)))
    return sections


_SECTIONS: dict[str, Callable[[Comparison], list[Section]]] = {
    "gpus": _gpu_sections,
    "profiles": _profile_sections,
    "machines": lambda comparison: machine_sections(comparison.machines),
}


def summary(entries: Sequence[Entry]) -> str:
    """One sentence: the fastest, the wall that limits it, and where the workload does not fit."""
    first, best = entries[0], min(entries, key=lambda entry: entry.time_s)
    if len(entries) == 1:
        return f"{clean(first.label)} takes {duration(first.time_s)} a step{_misfits(entries)}."
    if best is first:
        return f"{clean(first.label)} is the fastest at {duration(first.time_s)} a step{_misfits(entries)}."
    wall = max(WALLS, key=best.wall_shares.__getitem__)
    return (
        f"{clean(best.label)} takes {duration(best.time_s)} a step, {best.speedup:.2f} times as fast as "
        f"{clean(first.label)}, and spends {percent(best.wall_shares[wall], 0)} of it at the {wall} wall"
        f"{_misfits(entries)}."
    )


def _misfits(entries: Sequence[Entry]) -> str:
    names = [clean(entry.gpu) for entry in entries if not entry.fits]
    if not names:
        return ""
    return "; it fits none of them" if len(names) == len(entries) else f"; it does not fit {', '.join(names)}"


def _labels(entries: Sequence[Entry], heading: str = "") -> col.CellColumn:
    return col.names(heading, [entry.label for entry in entries])


def speed_table(entries: Sequence[Entry], versus: str = "the first") -> Table:
    """Time, speed-up, throughput, utilization."""
    columns = [
        _labels(entries),
        col.seconds("time", [e.time_s for e in entries]),
        col.ratio("speed-up", [e.speedup for e in entries]),
        col.optional(col.seconds("bound", [e.bound_s for e in entries], like=[e.time_s for e in entries])),
    ]
    if any(e.samples_per_s is not None for e in entries):
        columns.append(col.si("samples", "/s", [e.samples_per_s for e in entries]))
    if any(e.tokens_per_s is not None for e in entries):
        columns.append(col.si("tokens", "/s", [e.tokens_per_s for e in entries]))
    columns += [col.percent("MFU", [e.mfu for e in entries]), col.percent("MBU", [e.mbu for e in entries])]
    return col.table("", columns, f"time: modeled; bound: speed of light; speed-up: over {versus}")


def work_table(entries: Sequence[Entry]) -> Table:
    """What each profile has to do, over the first."""
    first = entries[0]
    columns = [
        _labels(entries),
        col.plain("kernels", [e.kernels for e in entries]),
        col.si("FLOPs", "FLOP", [e.flops for e in entries]),
        col.ratio("of the first", [e.flops / first.flops if first.flops else None for e in entries]),
        col.si("bytes", "B", [e.dram_bytes for e in entries]),
        col.ratio("of the first", [e.dram_bytes / first.dram_bytes if first.dram_bytes else None for e in entries]),
    ]
    return col.table("Work", columns)


def wall_table(entries: Sequence[Entry]) -> Table:
    """Share of time under each wall, and whether it fits."""
    columns = [
        _labels(entries),
        *(col.percent(wall, [e.wall_shares[wall] for e in entries]) for wall in WALLS),
        col.si("peak memory", "B", [e.peak_memory_bytes for e in entries]),
        col.si("GPU memory", "B", [e.gpu_bytes for e in entries]),
        col.text("fits", ["yes" if e.fits else "NO" for e in entries]),
    ]
    return col.table("", columns)


def cost_table(entries: Sequence[Entry]) -> Table:
    """Joule per step at TDP, and money where prices were given."""
    columns = [_labels(entries), col.si("energy at TDP", "J/step", [e.energy_j for e in entries])]
    if any(e.energy_j is not None for e in entries):
        base = entries[0].energy_j
        ratios = [e.energy_j / base if e.energy_j is not None and base else None for e in entries]
        columns.append(col.ratio("of the first", ratios))
    for heading, values in (
        ("USD per step", [e.usd_per_step for e in entries]),
        ("USD per million samples", [e.usd_per_million_samples for e in entries]),
        ("USD per million tokens", [e.usd_per_million_tokens for e in entries]),
    ):
        if any(v is not None for v in values):
            words = heading.split(" ", 1)
            columns.append(col.plain(words[1], values, _money_digits(values), words[0]))
    return col.table("", columns)


def _money_digits(values: Sequence[float | None]) -> int:
    """Enough digits for two significant ones of the smallest."""
    least = min((v for v in values if v), default=1.0)
    return next((digits for digits in range(2, 12) if least * 10**digits >= 10), 12)


def _flip_block(flips: Sequence[Flip], entries: Sequence[Entry]) -> Table | Sentence:
    if not flips:
        return Sentence("Nothing notable: the kernels hit the same wall on all of them.")
    columns = [
        col.names("kernel", [short_name(f.name) for f in flips]),
        col.repeats(f.count for f in flips),
        col.modules(f.module for f in flips),
        col.text("phase", [f.phase for f in flips], optional=True),
        *_flip_columns(flips, entries),
    ]
    return col.table("", columns, "kernels of 0.1 % of the time or more whose wall differs, the longest time first")


#: with more entries than this, what flips is listed by wall
MAX_WIDE = 4

#: the longest list of entries under one wall; where more stand there than under any other, they are "the others"
MAX_LISTED = 3


def _flip_columns(flips: Sequence[Flip], entries: Sequence[Entry]) -> list[col.CellColumn]:
    """One column per entry while they are few; else one per wall that lists the entries."""
    labels = [clean(entry.label) for entry in entries]
    if len(labels) <= MAX_WIDE:
        return [col.text(label, [f.walls[i] or col.NOTHING for f in flips]) for i, label in enumerate(labels)]
    columns = []
    for wall in WALLS:
        cells = [_listed(labels, flip, wall) for flip in flips]
        if any(cell != col.NOTHING for cell in cells):
            columns.append(col.text(f"{wall} on", cells, wraps=True))
    return columns


def _listed(labels: Sequence[str], flip: Flip, wall: str) -> str:
    """The entries on which a kernel hits a wall; the most of them are "the others" where that is clear and shorter."""
    names = [name for name, hit in zip(labels, flip.walls, strict=True) if hit == wall]
    most = max(WALLS, key=flip.walls.count)
    if wall == most and len(names) > MAX_LISTED and all(flip.walls):
        return f"the other {len(names)}"
    return ", ".join(names) or col.NOTHING


def change_table(kind: str, rows: Sequence[Change]) -> Table:
    """What changed, in time, FLOPs and bytes."""
    before = [r.before_s for r in rows]
    columns = [
        col.names(kind, [short_name(r.name) for r in rows]),
        col.seconds("before", before),
        col.seconds("after", [r.after_s for r in rows], like=before),
        col.seconds("change", [r.delta_s for r in rows], like=before, signed=True),
        col.ratio("time", [r.after_s / r.before_s if r.before_s else None for r in rows]),
        col.ratio("FLOPs", [r.after_flops / r.before_flops if r.before_flops else None for r in rows]),
        col.ratio("bytes", [r.after_bytes / r.before_bytes if r.before_bytes else None for r in rows]),
    ]
    return col.table({"class": "Classes", "kernel": "Kernels"}[kind], columns)
