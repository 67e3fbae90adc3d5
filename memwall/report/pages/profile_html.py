"""The HTML page of a profile: tables, pictures, and data for the kernels of its script.

Repeated kernels are one row, and at most ``MAX_ROWS`` rows are embedded, so a page of a large model stays under 2 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from memwall.analysis.dtypes import emulations
from memwall.analysis.savings import by_gpu, policy_sets
from memwall.analysis.table import KernelRow, kernel_rows, phase_rows
from memwall.analysis.verdict import verdict
from memwall.analysis.whatif import Outcome
from memwall.perfmodel.roofline import TERMS
from memwall.record.kernels import schedule_label, short_name
from memwall.record.profile import Profile
from memwall.report.document import Block, Document, Markup, Panel, Picture, PictureChoice, Section, Sentence, clean
from memwall.report.figures.colors import CLASS_COLORS, css
from memwall.report.figures.memory import memory_chart
from memwall.report.figures.modules import METRICS, flame_chart, treemap_chart
from memwall.report.figures.profile import (
    context,
    module_trees,
    schedule_roofline,
    shares_chart,
    walls_chart,
    waterfall_chart,
)
from memwall.report.figures.roofline import roofline_charts
from memwall.report.figures.scene import Chart
from memwall.report.html import embed, resource
from memwall.report.pages import profile_text as page
from memwall.report.pages.fusion import explained, fusion_tables, is_several, policy_blocks, what_if_section
from memwall.report.pages.validation import measured_sections
from memwall.simulate.schedule import Schedule

#: rows of kernels in a page, the slowest on any GPU first; of a table of measured ones
MAX_ROWS, MAX_MEASURED = 2000, 20

_ROOFLINE = (
    "Each circle is a kernel (repeats are one), its area the time it takes. Click one to find it in the table below."
)

_ZOOM = (
    "Click a module to zoom into it and to find its kernels in the table below; click the outermost one to zoom out."
)


def profile_page(profile: Profile, what_ifs: Sequence[Outcome], ranks: Sequence[Section] = ()) -> Document:
    """The page: facts, ``ranks``, what was measured, policies, a panel for each simulation, what fusion saves,
    what-ifs, the kernels."""
    profile = profile.with_simulations(by_gpu(profile))
    sims = profile.simulations
    rows = [kernel_rows(profile, schedule) for schedule in sims]
    data, left_out = _data(profile, rows)
    totals = [page.totals_table(profile)] if sims and not is_several(profile) else []
    sections: list[Section | Panel] = [Section("", (page.header_facts(profile), *totals)), *ranks]
    sections += [Section(s.heading, s.blocks, "fusion") for s in measured_sections(profile, top=MAX_MEASURED)]
    saved = []
    for policies in policy_sets(profile) if is_several(profile) else ():
        sections.append(Section(page.gpu_title(profile, policies.schedules[0]), policy_blocks(policies)))
        for schedule in explained(policies):
            fall = Picture(waterfall_chart(policies, schedule), f"{schedule.policy}: what each fused group saves")
            blocks: tuple[Block, ...] = (fall, *fusion_tables(policies, schedule))
            saved.append(Section(f"{schedule.policy}: what fusion saves", blocks, "fusion"))
    sets = {s.gpu.name: policies for policies in policy_sets(profile) for s in policies.schedules} if sims else {}
    rooflines = roofline_charts([schedule_roofline(profile, s, sets[s.gpu.name]) for s in sims]) if sims else []
    sections += [_panel(profile, s, roofline) for s, roofline in zip(sims, rooflines, strict=True)]
    sections += [*saved, *([what_if_section(what_ifs)] if what_ifs else [])]
    if sims:
        more = f" {left_out} more rows, of the least time, are left out of this page; the CSV has all."
        sections.append(
            Section("", (Markup(resource("kernels.html").rstrip("\n").format(left_out=more if left_out else "")),))
        )
    return Document(profile.workload.name, sections, embed(data))


def _modules(profile: Profile, schedule: Schedule) -> Section:
    """Flame graphs and treemaps of the modules."""
    trees = module_trees(profile, (schedule,))
    kinds = {"flame graph": flame_chart, "treemap": treemap_chart}
    title = context(profile)
    pictures = [
        (f"{kind}, {metric}", Picture(draw(title, trees, metric), f"{kind} of modules by {metric}"))
        for kind, draw in kinds.items()
        for metric in METRICS
    ]
    return Section("Modules", (PictureChoice(pictures), Sentence(_ZOOM)))


def _panel(profile: Profile, schedule: Schedule, roofline: Chart) -> Panel:
    phases = phase_rows(profile, schedule)
    memory: list[Block] = [page.share_table("Phases", "phase", phases)] if len(phases) > 1 else []
    memory.append(page.memory_table(profile, schedule))
    title = page.gpu_title(profile, schedule)
    found = verdict(profile, schedule)
    classes: tuple[Block, ...] = (
        *(Sentence(text, strong=True) for text in (found.text, *emulations(profile, schedule))),
        *page.lever_tables(found),
        Picture(walls_chart(profile, (schedule,)), f"{title}: share of the time under each wall"),
        Picture(shares_chart(profile, (schedule,)), f"{title}: shares by op class"),
        page.class_table(profile, schedule),
    )
    memory += page.provenance_facts(profile, schedule)
    drawn = Picture(roofline, f"{title}: roofline", _ROOFLINE)
    over_time = memory_chart(profile, schedule, context(profile))
    if over_time:
        memory.append(Picture(over_time, f"{title}: memory over the step"))
    sections = (
        Section(title, classes),
        Section("Roofline", (drawn,)),
        _modules(profile, schedule),
        Section("", memory),
    )
    return Panel(clean(schedule_label(profile, schedule)), sections)


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
            "rows": [_times(number[_identity(r)], r) for r in table if _identity(r) in number],
        }
        for schedule, table in zip(profile.simulations, tables, strict=True)
    ]
    data = {
        "kernels": [list(key) for key in number],
        "sims": sims,
        "walls": [*TERMS],
        "colors": {name: css(color) for name, color in CLASS_COLORS.items()},
    }
    return data, len(keys) - len(number)


def _identity(row: KernelRow) -> tuple:
    """Columns of ``kernels`` in the page: name, class, phase, module, shapes, count, FLOPs, bytes read, written,
    short name."""
    return (
        clean(row.name),
        clean(row.op_class),
        row.phase,
        clean(row.module),
        clean(row.shapes)[:160],
        row.count,
        row.flops if row.modeled else -1,
        row.read_bytes,
        row.write_bytes,
        short_name(clean(row.name)),
    )


_NUMBERS = {wall: number for number, wall in enumerate(TERMS)}


def _times(number: int, row: KernelRow) -> list[float | int]:
    """Columns of ``rows``: kernel, seconds (bound, time, compute, memory, latency, overhead), the wall's number."""
    seconds = (row.bound_s, row.time_s, row.compute_s, row.memory_s, row.latency_s, row.overhead_s)
    return [number, *(float(f"{s:.4g}") for s in seconds), _NUMBERS[row.limited_by]]
