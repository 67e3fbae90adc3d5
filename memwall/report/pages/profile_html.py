"""The HTML page of a profile: tables, bars and waterfalls, and data for the roofline and the kernels of its script.

Repeated kernels are one row, and at most ``MAX_ROWS`` rows are embedded, so a page of a large model stays under 2 MB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from memwall.analysis.savings import PolicySet, by_gpu, policy_sets
from memwall.analysis.table import KernelRow, class_rows, kernel_rows, phase_rows
from memwall.analysis.validation import Point, measured_points
from memwall.analysis.verdict import verdict
from memwall.analysis.whatif import Outcome
from memwall.core.units import duration, percent, size
from memwall.record.kernels import WALLS, schedule_label, wall_shares
from memwall.record.profile import Profile
from memwall.report.document import Bar, Bars, Block, Document, Markup, Panel, Part, Section, Sentence, clean
from memwall.report.figures.picture import CLASS_COLORS, MEMORY_COLORS, WALL_COLORS, class_color, time_unit
from memwall.report.figures.profile import axis_start_s, fall_and_bars, label
from memwall.report.figures.roofline import Roof, compute_roofs, memory_roofs
from memwall.report.html import embed, escape, resource, stack
from memwall.report.pages import profile_text as page
from memwall.report.pages.fusion import explained, fusion_tables, is_several, policy_blocks, what_if_section
from memwall.report.pages.validation import measured_sections
from memwall.simulate.schedule import Schedule

#: rows of kernels in a page, the slowest on any GPU first; of a table of measured ones; measured points in a roofline
MAX_ROWS, MAX_MEASURED, MAX_POINTS = 2000, 20, 500

_ROOFLINE = (
    "Each circle is a kernel (repeats are one), its area the time it takes; attained FLOP/s against FLOP per DRAM byte."
    " Kernels without FLOPs stand at the left edge. Click one to find it in the table."
)
_MARKS = " Outlined marks are measured kernels, each joined to where the model put it."


def profile_page(profile: Profile, what_ifs: Sequence[Outcome]) -> Document:
    """The page: facts, what was measured, policies, what-ifs, a panel for each simulation, the kernels."""
    profile = profile.with_simulations(by_gpu(profile))
    sims = profile.simulations
    rows = [kernel_rows(profile, schedule) for schedule in sims]
    data, left_out = _data(profile, rows)
    totals = [page.totals_table(profile)] if sims and not is_several(profile) else []
    sections: list[Section | Panel] = [Section("", (page.header_facts(profile), *totals))]
    sections += [Section(s.heading, s.blocks, "fusion") for s in measured_sections(profile, top=MAX_MEASURED)]
    for policies in policy_sets(profile) if is_several(profile) else ():
        sections.append(Section(page.gpu_title(profile, policies.schedules[0]), policy_blocks(policies)))
        for schedule in explained(policies):
            blocks: tuple[Block, ...] = (Markup(_waterfall(policies, schedule)), *fusion_tables(policies, schedule))
            sections.append(Section(f"{schedule.policy}: what fusion saves", blocks, "fusion"))
    if what_ifs:
        sections.append(what_if_section(what_ifs))
    sections += [_panel(profile, schedule, i) for i, schedule in enumerate(sims)]
    if sims:
        more = f" {left_out} more rows, of the least time, are left out of this page; the CSV has all."
        sections.append(
            Section("", (Markup(resource("kernels.html").rstrip("\n").format(left_out=more if left_out else "")),))
        )
    return Document(profile.workload.name, sections, embed(data))


def _panel(profile: Profile, schedule: Schedule, number: int) -> Panel:
    note = _ROOFLINE + (_MARKS if measured_points(profile, schedule) else "")
    roofline = f'<h3>Roofline</h3>\n<div class="roofline" data-sim="{number}"></div>\n<p class="note">{note}</p>'
    phases = phase_rows(profile, schedule)
    memory: list[Block] = [page.share_table("Phases", "phase", phases)] if len(phases) > 1 else []
    memory += [page.memory_table(profile, schedule), Markup(_memory_bar(schedule))]
    sentence = Sentence(verdict(profile, schedule), strong=True)
    classes = (sentence, Bars(_class_bars(profile, schedule)), page.class_table(profile, schedule))
    first = Section(page.gpu_title(profile, schedule), classes)
    sections = (first, Section("", (Markup(roofline),)), Section("", memory))
    return Panel(clean(schedule_label(profile, schedule)), sections)


def _waterfall(policies: PolicySet, schedule: Schedule) -> str:
    """Bars from the eager time down to the policy's; places in percent of the axis."""
    fall, rows = fall_and_bars(policies, schedule)
    start, (scale, unit) = axis_start_s(fall), time_unit(fall.eager_s)
    most = max(max(bar.start_s, bar.end_s) for bar in rows)

    def place(seconds: float) -> float:
        return round(100 * (max(seconds, start) - start) / (most - start), 3)

    bars = []
    for bar in rows:
        left, right = sorted((place(bar.start_s), place(bar.end_s)))
        where = f"<small>{escape(bar.where)}</small>" if bar.where else ""
        bars.append(
            f'<span class="fall-name" title="{escape(bar.name)}">{escape(bar.name)}{where}</span>'
            f'<span class="fall-track"><u style="left:{place(fall.ideal_s)}%"></u>'
            f'<i style="left:{left}%;width:{right - left}%;background:{bar.color}"></i>'
            f'<b style="left:{right}%">{label(bar, scale, fall.eager_s)} {unit}</b></span>'
        )
    note = f"The dashed line is ideal, {duration(fall.ideal_s)}."
    if start:
        note += f" The axis begins at {duration(start)}."
    return f'<div class="fall">{"".join(bars)}</div>\n<p class="note">{note}</p>\n'


def _class_bars(profile: Profile, schedule: Schedule) -> list[Bar]:
    rows = class_rows(profile, schedule)
    fields = (("FLOPs", "flop_share"), ("bytes", "byte_share"), ("time", "time_share"))
    bars = [
        Bar(name, [_share_part(row.key, getattr(row, field), class_color(row.key)) for row in rows])
        for name, field in fields
    ]
    return [*bars, Bar("wall", wall_parts(wall_shares(schedule)))]


def wall_parts(shares: Mapping[str, float], length: float = 1.0) -> list[Part]:
    """The parts of a bar: each wall's share of the time, the whole as long as ``length`` of the page."""
    parts = (_share_part(wall, shares[wall], WALL_COLORS[wall]) for wall in WALLS)
    return [part._replace(width=round(part.width * length, 3)) for part in parts]


def _share_part(name: str, share: float, color: str) -> Part:
    return Part(clean(name), round(100 * share, 3), color, percent(share, 2))


def _memory_bar(schedule: Schedule) -> str:
    memory, held = schedule.memory, schedule.gpu.dram_bytes
    whole = max(memory.total, held)
    values = {name: getattr(memory, name.replace(" ", "_")) for name in MEMORY_COLORS}
    parts = [Part(name, round(100 * v / whole, 3), MEMORY_COLORS[name], size(v)) for name, v in values.items()]
    mark = f'<u style="left:{round(100 * held / whole, 3)}%" title="memory of the GPU"></u>'
    return f'<div class="memory">{stack(parts, least=14)}{mark}</div>'


def _data(profile: Profile, tables: Sequence[Sequence[KernelRow]]) -> tuple[dict[str, Any], int]:
    """Rows shared by all simulations, and each simulation's times for them; and how many rows were left out."""
    slowest: dict[tuple, float] = {}
    for row in chain.from_iterable(tables):
        slowest[_identity(row)] = max(slowest.get(_identity(row), 0.0), row.time_share)
    keys = sorted(slowest, key=lambda key: (-slowest[key], key))
    number = {key: i for i, key in enumerate(keys[:MAX_ROWS])}
    sims = [
        {
            "label": clean(schedule_label(profile, schedule)),
            "roofs": [_roof(r) for r in compute_roofs(profile, schedule)],
            "slopes": [_roof(r) for r in memory_roofs(schedule)],
            "rows": [_times(number[_identity(r)], r) for r in table if _identity(r) in number],
            "measured": [_point(p) for p in measured_points(profile, schedule)[:MAX_POINTS]],
        }
        for schedule, table in zip(profile.simulations, tables, strict=True)
    ]
    data = {"kernels": [list(key) for key in number], "sims": sims, "walls": WALLS, "colors": CLASS_COLORS}
    return data, len(keys) - len(number)


def _identity(row: KernelRow) -> tuple:
    """Columns of ``kernels`` in the page: name, class, phase, module, shapes, count, FLOPs, bytes read, written."""
    return (
        clean(row.name), clean(row.op_class), row.phase, clean(row.module), clean(row.shapes)[:160], row.count,
        row.flops if row.modeled else -1, row.read_bytes, row.write_bytes)  # fmt: skip


def _times(number: int, row: KernelRow) -> list[float | int]:
    """Columns of ``rows``: kernel, then seconds (bound, time, compute, memory, overhead), then the wall's number."""
    seconds = (row.bound_s, row.time_s, row.compute_s, row.memory_s, row.overhead_s)
    return [number, *(float(f"{s:.4g}") for s in seconds), WALLS.index(row.limited_by)]


def _point(point: Point) -> list[str | float]:
    """Columns of ``measured``: executor, kernel, class, FLOP/B, modeled and measured FLOP/s, share, seconds of each."""
    numbers = (
        point.arithmetic_intensity, point.modeled_flop_per_s, point.measured_flop_per_s, point.share, point.modeled_s,
        point.measured_s)  # fmt: skip
    return [point.executor, clean(point.name), clean(point.op_class), *(float(f"{number:.4g}") for number in numbers)]


def _roof(roof: Roof) -> dict[str, Any]:
    return {"label": roof.label, "rate": roof.rate, "used": roof.used}
