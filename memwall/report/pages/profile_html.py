"""The HTML page of a profile: tables, pictures, and data for the kernels of its script.

Repeated kernels are one row, and at most ``MAX_ROWS`` rows are embedded, so a page of a large model stays under 2 MB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memwall.analysis.explanation import explained
from memwall.analysis.savings import PolicySet, by_gpu, policy_sets
from memwall.analysis.table import KernelRow, phase_rows, rows_and_kernels
from memwall.analysis.whatif import Outcome
from memwall.perfmodel.roofline import TERMS, Estimate
from memwall.record.kernels import schedule_label, short_name
from memwall.record.profile import Profile
from memwall.report.document import Block, Document, Markup, Panel, Picture, PictureChoice, Section, Sentence, clean
from memwall.report.figures.colors import CLASS_COLORS, css
from memwall.report.figures.memory import memory_chart
from memwall.report.figures.modules import METRICS, flame_chart, treemap_chart
from memwall.report.figures.picture import cut
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
from memwall.report.figures.timeline import timeline_chart
from memwall.report.html import embed, resource
from memwall.report.pages import fusion
from memwall.report.pages import profile_text as page
from memwall.report.pages.fusion import fusion_tables, is_several, policy_blocks, what_if_section
from memwall.report.pages.profile_tables import class_table, memory_table, peak_tensors, share_table, totals_table
from memwall.report.pages.validation import measured_sections
from memwall.simulate.schedule import Schedule

#: rows of kernels in a page, the slowest on any GPU first; of a table of measured ones; rows that say why, of a GPU
MAX_ROWS, MAX_MEASURED, MAX_EXPLAINED = 2000, 20, 100
#: rows with the kernels that each sums
Rows = Sequence[tuple[KernelRow, Sequence[Estimate]]]

_ROOFLINE = "Each circle is a kernel (repeats are one), its area the time it takes."

_TIMELINE = "Each mark is a kernel, in the colour of its class."

_FIND = Sentence("Click one to find it in the table below.", screens=True)

_ZOOM = Sentence(
    "Click a module to zoom into it and to find its kernels in the table below; click the outermost one to zoom out.",
    screens=True,
)


def profile_page(profile: Profile, what_ifs: Sequence[Outcome], ranks: Sequence[Section] = ()) -> Document:
    """The page: facts, ``ranks``, what was measured, a panel for each simulation, what-ifs, the kernels."""
    profile = profile.with_simulations(by_gpu(profile))
    sims = profile.simulations
    rows = [rows_and_kernels(profile, schedule) for schedule in sims]
    data, left_out = _data(profile, rows)
    answer = page.answer_blocks(profile, drawn=True)
    if sims:
        answer.append(Picture(walls_chart(profile, sims), "share of the time under each wall"))
    totals = [totals_table(profile)] if sims and not is_several(profile) else []
    sections: list[Section | Panel] = [Section("What was profiled", (page.header_facts(profile), *totals)), *ranks]
    sections += [Section(s.heading, s.blocks, "fusion") for s in measured_sections(profile, top=MAX_MEASURED)]
    sets = {s.gpu.name: policies for policies in policy_sets(profile) for s in policies.schedules} if sims else {}
    rooflines = roofline_charts([schedule_roofline(profile, s, sets[s.gpu.name]) for s in sims]) if sims else []
    sections += [_panel(profile, s, sets[s.gpu.name], roofline) for s, roofline in zip(sims, rooflines, strict=True)]
    sections += [what_if_section(what_ifs)] if what_ifs else []
    if sims:
        more = f" {left_out} more rows, of the least time, are left out of this page; the CSV has all."
        table = resource("kernels.html").rstrip("\n").format(left_out=more if left_out else "")
        sections.append(Section("Kernels", (Markup(table),)))
    return Document(profile.workload.name, sections, answer, embed(data))


def _modules(profile: Profile, schedule: Schedule) -> Section:
    """Flame graphs and treemaps of the modules."""
    trees = module_trees(profile, (schedule,))
    kinds = {"flame graph": flame_chart, "treemap": treemap_chart}
    title, label = context(profile), clean(schedule_label(profile, schedule))
    pictures = [
        (f"{kind}, {metric}", Picture(draw(title, trees, metric), f"{label}: {kind} of modules by {metric}"))
        for kind, draw in kinds.items()
        for metric in METRICS
    ]
    return Section("Modules", (PictureChoice(pictures), _ZOOM))


def _saved(policies: PolicySet, schedule: Schedule) -> list[Section]:
    """What fusion saves, where the groups of a policy are kernels of their own."""
    if not any(each is schedule for each in fusion.explained(policies)):
        return []
    label = clean(schedule_label(policies.profile, schedule))
    fall = Picture(waterfall_chart(policies, schedule), f"{label}: what each fused group saves")
    return [Section("What fusion saves", (fall, *fusion_tables(policies, schedule)), "fusion")]


def _panel(profile: Profile, schedule: Schedule, policies: PolicySet, roofline: Chart) -> Panel:
    """One simulation: beside the other policies of its GPU, its classes, pictures, memory and what fusion saves."""
    phases = phase_rows(profile, schedule)
    memory: list[Block] = [share_table("Phases", "phase", phases)] if len(phases) > 1 else []
    memory.append(memory_table(profile, schedule)._replace(title=""))
    title = page.full_title(profile, schedule)
    own = page.verdict_blocks(profile, schedule) if len(profile.simulations) > 1 else ()
    beside = policy_blocks(policies, only=schedule) if is_several(profile) else ()
    classes: tuple[Block, ...] = (
        *beside,
        *own,
        Picture(shares_chart(profile, (schedule,)), f"{title}: shares by op class"),
        class_table(profile, schedule),
    )
    memory += page.provenance_facts(profile, schedule)
    drawn = Picture(roofline, f"{title}: roofline", _ROOFLINE)
    over_time = memory_chart(profile, schedule, context(profile))
    if over_time:
        memory.append(Picture(over_time, f"{title}: memory over the step"))
    memory += peak_tensors(profile, schedule)
    lanes = timeline_chart(profile, schedule, context(profile))
    sections = (
        Section(title, classes),
        Section("Roofline", (drawn, _FIND)),
        _modules(profile, schedule),
        *([Section("Timeline", (Picture(lanes, f"{title}: the step over time", _TIMELINE), _FIND))] if lanes else []),
        *_saved(policies, schedule),
        Section("Memory and phases" if len(phases) > 1 else "Memory", memory),
    )
    return Panel(clean(schedule_label(profile, schedule)), sections)


def _data(profile: Profile, tables: Sequence[Rows]) -> tuple[dict[str, Any], int]:
    """Rows shared by all simulations, and each simulation's times for them; and how many rows were left out."""
    slowest: dict[tuple, float] = {}
    sources: dict[tuple, str] = {}
    for schedule, table in zip(profile.simulations, tables, strict=True):
        for row, kernels in table:
            key = _identity(row)
            slowest[key] = max(slowest.get(key, 0.0), row.time_share)
            sources.setdefault(key, clean(profile.graphs[schedule.graph].ops[kernels[0].op_ids[0]].source))
    keys = sorted(slowest, key=lambda key: (-slowest[key], key))
    number = {key: i for i, key in enumerate(keys[:MAX_ROWS])}
    data = {
        "kernels": [[*key, sources[key]] for key in number],
        "sims": [_times_of(profile, *each, number) for each in zip(profile.simulations, tables, strict=True)],
        "walls": [*TERMS],
        "colors": {name: css(color) for name, color in CLASS_COLORS.items()},
    }
    return data, len(keys) - len(number)


def _times_of(profile: Profile, schedule: Schedule, table: Rows, number: Mapping[tuple, int]) -> dict[str, Any]:
    """A simulation's label, its rows, and why the longest of them take their time."""
    numbered = [(n, row, kernels) for n, (row, kernels) in enumerate(table) if _identity(row) in number]
    numbered.sort(key=lambda each: -each[1].time_s)
    longest = [kernels for *_, kernels in numbered[:MAX_EXPLAINED]]
    why = [" ".join(each.launches) for each in explained(profile, schedule, longest)]
    rows = [
        [*_times(number[_identity(row)], row), i if i < len(why) else -1, n] for i, (n, row, _) in enumerate(numbered)
    ]
    return {"label": clean(schedule_label(profile, schedule)), "rows": rows, "why": [clean(text) for text in why]}


def _identity(row: KernelRow) -> tuple:
    """Columns of ``kernels`` in the page: name, class, phase, module, shapes, count, FLOPs, bytes read, written,
    short name, problem."""
    return (
        clean(row.name),
        clean(row.op_class),
        row.phase,
        clean(row.module),
        cut(clean(row.shapes), 160),
        row.count,
        row.flops if row.modeled else -1,
        row.read_bytes,
        row.write_bytes,
        short_name(clean(row.name)),
        clean(row.problem),
    )


_NUMBERS = {wall: number for number, wall in enumerate(TERMS)}


def _times(number: int, row: KernelRow) -> list[float | int]:
    """Columns of ``rows``: kernel, seconds (bound, time, compute, memory, latency, overhead), the wall's number, the
    ends of the range."""
    seconds = (row.bound_s, row.time_s, row.compute_s, row.memory_s, row.latency_s, row.overhead_s)
    brief = [float(f"{s:.4g}") for s in (*seconds, row.low_s, row.high_s)]
    return [number, *brief[:6], _NUMBERS[row.limited_by], *brief[6:]]
