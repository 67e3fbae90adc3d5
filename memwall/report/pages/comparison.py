"""Comparison → Document: GPUs or profiles side by side. Each kind of comparison has its list of sections."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memwall.analysis.compare import Change, Comparison, Entry, Flip
from memwall.core.units import duration, percent
from memwall.record.kernels import WALLS, short_name
from memwall.report.columns import (
    NOTHING,
    CellColumn,
    percent_column,
    plain_column,
    seconds_column,
    si_column,
    times_column,
)
from memwall.report.document import Document, Section, Sentence, Table, clean, optional, table, text_column
from memwall.report.pages.gpus import machine_sections


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
    """One sentence: the fastest, the wall that it stands at, and where the workload does not fit."""
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


def _labels(entries: Sequence[Entry], heading: str = "") -> CellColumn:
    return text_column(heading, [entry.label for entry in entries], flexible=True)


def speed_table(entries: Sequence[Entry], versus: str = "the first") -> Table:
    """Time, speed-up, throughput, utilization."""
    columns = [
        _labels(entries),
        seconds_column("time", [e.time_s for e in entries]),
        times_column("speed-up", [e.speedup for e in entries]),
        optional(seconds_column("bound", [e.bound_s for e in entries], like=[e.time_s for e in entries])),
    ]
    if any(e.samples_per_s is not None for e in entries):
        columns.append(si_column("samples", "/s", [e.samples_per_s for e in entries]))
    if any(e.tokens_per_s is not None for e in entries):
        columns.append(si_column("tokens", "/s", [e.tokens_per_s for e in entries]))
    columns += [percent_column("MFU", [e.mfu for e in entries]), percent_column("MBU", [e.mbu for e in entries])]
    return table("", columns, f"time: modeled; bound: speed of light; speed-up: over {versus}")


def work_table(entries: Sequence[Entry]) -> Table:
    """What each profile has to do, over the first."""
    first = entries[0]
    columns = [
        _labels(entries),
        plain_column("kernels", [e.kernels for e in entries]),
        si_column("FLOPs", "FLOP", [e.flops for e in entries]),
        times_column("of the first", [e.flops / first.flops if first.flops else None for e in entries]),
        si_column("bytes", "B", [e.dram_bytes for e in entries]),
        times_column("of the first", [e.dram_bytes / first.dram_bytes if first.dram_bytes else None for e in entries]),
    ]
    return table("Work", columns)


def wall_table(entries: Sequence[Entry]) -> Table:
    """Share of time under each wall, and whether it fits."""
    columns = [
        _labels(entries),
        *(percent_column(wall, [e.wall_shares[wall] for e in entries]) for wall in WALLS),
        si_column("peak memory", "B", [e.peak_memory_bytes for e in entries]),
        si_column("on board", "B", [e.gpu_bytes for e in entries]),
        text_column("fits", ["yes" if e.fits else "NO" for e in entries]),
    ]
    return table("", columns)


def cost_table(entries: Sequence[Entry]) -> Table:
    """Joule per step at TDP, and money where prices were given."""
    columns = [_labels(entries), si_column("energy at TDP", "J/step", [e.energy_j for e in entries])]
    if any(e.energy_j is not None for e in entries):
        base = entries[0].energy_j
        ratios = [e.energy_j / base if e.energy_j is not None and base else None for e in entries]
        columns.append(times_column("of the first", ratios))
    for heading, values in (
        ("USD per step", [e.usd_per_step for e in entries]),
        ("USD per million samples", [e.usd_per_million_samples for e in entries]),
        ("USD per million tokens", [e.usd_per_million_tokens for e in entries]),
    ):
        if any(v is not None for v in values):
            words = heading.split(" ", 1)
            columns.append(plain_column(words[1], values, _money_digits(values), words[0]))
    return table("", columns)


def _money_digits(values: Sequence[float | None]) -> int:
    """Enough digits for two significant ones of the smallest."""
    least = min((v for v in values if v), default=1.0)
    return next((digits for digits in range(2, 12) if least * 10**digits >= 10), 12)


def _flip_block(flips: Sequence[Flip], entries: Sequence[Entry]) -> Table | Sentence:
    if not flips:
        return Sentence("Nothing notable: the kernels hit the same wall on all of them.")
    columns = [
        text_column("kernel", [short_name(f.name) for f in flips], flexible=True),
        text_column("", [f"x{f.count}" if f.count > 1 else "" for f in flips]),
        text_column("module", [f.module or "(top)" for f in flips], flexible=True),
        text_column("phase", [f.phase for f in flips], optional=True),
        *_flip_columns(flips, entries),
    ]
    return table("", columns, "kernels of 0.1 % of the time or more whose wall differs, the longest time first")


#: with more entries than this, what flips is listed by wall
MAX_WIDE = 4

#: the longest list of entries under one wall; where more stand there than under any other, they are "the others"
MAX_LISTED = 3


def _flip_columns(flips: Sequence[Flip], entries: Sequence[Entry]) -> list[CellColumn]:
    """One column per entry while they are few; else one per wall that lists the entries."""
    labels = [clean(entry.label) for entry in entries]
    if len(labels) <= MAX_WIDE:
        return [text_column(label, [f.walls[i] or NOTHING for f in flips]) for i, label in enumerate(labels)]
    columns = []
    for wall in WALLS:
        cells = [_listed(labels, flip, wall) for flip in flips]
        if any(cell != NOTHING for cell in cells):
            columns.append(text_column(f"{wall} on", cells, wraps=True))
    return columns


def _listed(labels: Sequence[str], flip: Flip, wall: str) -> str:
    """The entries on which a kernel hits a wall; the most of them are "the others" where that is clear and shorter."""
    names = [name for name, hit in zip(labels, flip.walls, strict=True) if hit == wall]
    most = max(WALLS, key=flip.walls.count)
    if wall == most and len(names) > MAX_LISTED and all(flip.walls):
        return f"the other {len(names)}"
    return ", ".join(names) or NOTHING


def change_table(kind: str, rows: Sequence[Change]) -> Table:
    """What changed, in time, FLOPs and bytes."""
    before = [r.before_s for r in rows]
    columns = [
        text_column(kind, [short_name(r.name) for r in rows], flexible=True),
        seconds_column("before", before),
        seconds_column("after", [r.after_s for r in rows], like=before),
        seconds_column("change", [r.delta_s for r in rows], like=before, signed=True),
        times_column("time", [r.after_s / r.before_s if r.before_s else None for r in rows]),
        times_column("FLOPs", [r.after_flops / r.before_flops if r.before_flops else None for r in rows]),
        times_column("bytes", [r.after_bytes / r.before_bytes if r.before_bytes else None for r in rows]),
    ]
    return table({"class": "Classes", "kernel": "Kernels"}[kind], columns)
