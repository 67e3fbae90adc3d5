"""``memwall fuse`` as a page: policies side by side, groups, refusals, kernels, capture, op counts, what-ifs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import memwall.report.columns as col
from memwall.analysis.savings import PolicySet, group_savings, missed_fusions, module_savings, policy_sets
from memwall.analysis.verdict import verdict
from memwall.core.units import few, percent, size
from memwall.fusing.capture_page import capture_section
from memwall.fusing.plan_diff import PlanDiff
from memwall.fusing.rewrites import Family
from memwall.fusing.run import FusedProfile, Refused, refused_by_rule
from memwall.fusion import Plan
from memwall.record.kernels import collapse, fit_text, short_name, wall_shares
from memwall.report.document import Block, Document, Facts, Picture, Section, Sentence, Table, known_facts
from memwall.report.figures.profile import profile_chart, waterfall_chart
from memwall.report.figures.scene import Chart
from memwall.report.kinds import Report
from memwall.report.pages import fusion
from memwall.report.pages.glance import first_fact, glance, held_bytes, limit_fact, memory_fact
from memwall.report.pages.profile_text import host_text, inputs_text, lever_tables
from memwall.report.text import to_text
from memwall.simulate.schedule import Schedule
from memwall.wings import part

if TYPE_CHECKING:
    from memwall.fusing.op_counts import OpCounts

#: rows of the tables of groups, recomputed ops, Inductor's reasons and differences; operators that an IR level lists
DEFAULT_TOP, MAX_AGAIN, MAX_REASONS, MAX_DIFFERENCES, MAX_KEPT = 15, 8, 8, 8, 8
#: lines of a brief text; rows of its tables of groups, of refusals and of breaks, tried in this order until it fits
BRIEF_LINES, BRIEF_ROWS = 62, ((8, 8, 8), (5, 5, 5), (5, 3, 4), (3, 2, 4), (3, 0, 4), (2, 0, 3), (0, 0, 3))
#: rows of its one table of GPUs, where even the policies of each do not fit
BRIEF_GPUS = 30

AGAIN_NOTE = "ops that other kernels run once more instead of reading their result; not stored: bytes never written"


@dataclass(frozen=True, slots=True)
class FusedReport(Report):
    """What fusion wins; ``by`` is ``group`` or ``module``: what the table of savings lists. A ``brief`` text has at
    most ``BRIEF_LINES`` lines, but for what was asked for: what-ifs, alternatives, compiled kernels, ``top`` groups."""

    noun = "a fusion report"
    kinds = ("text", "md", "html", "json", "png", "svg", "pdf")
    found: FusedProfile
    by: str = "group"
    top: int | None = None
    brief: bool = False

    def text(self, *, width: int | None, color: bool) -> str:
        if not self.brief:
            return to_text(self.document("text"), width=width, color=color)
        pages = [partial(self._brief, *rows) for rows in BRIEF_ROWS]
        if len(sets := policy_sets(self.found.profile)) > 1 and not self.top:
            together = [Section("", (_gpus_table(sets, BRIEF_GPUS),))]
            pages += [partial(self._around, together, breaks) for _, _, breaks in BRIEF_ROWS]
        fits = (page for page in pages if to_text(page(asked=False), width=width).count("\n") <= BRIEF_LINES)
        return to_text(next(fits, pages[-1])(asked=True), width=width, color=color)

    def _brief(self, groups: int, refusals: int, breaks: int, *, asked: bool) -> Document:
        """The policies, and tables of so many rows; with what was ``asked`` for, ``top`` groups among it."""
        found, top = self.found, groups if self.top is None else self.top * asked
        sections, sets = [], policy_sets(found.profile)
        best = fusion.best_of(sets)
        for policies in sets:
            told = best[1] if best and best[0] is policies else None
            tables = _brief_tables(found, policies, self.by, top, refusals)
            sections.append(Section(policies.gpu.name, (*fusion.policy_blocks(policies, told=told), *tables)))
        return self._around(sections, breaks, asked=asked)

    def _around(self, policies: Sequence[Section], breaks: int, *, asked: bool) -> Document:
        """The brief page of what is said about the policies."""
        found = self.found
        sections = [Section("", (_header(found),)), *policies, *(self._asked(self.top or DEFAULT_TOP) if asked else ())]
        if found.capture is not None:
            sections.append(capture_section(found, found.capture, breaks, brief=True))
        more = "--all adds every policy's groups, what is computed again, missed fusions, guards and ops by IR level."
        sections.append(Section("", (Sentence(more),)))
        return Document(f"{found.profile.workload.name}: what fusion wins", sections, self._told())

    def _told(self) -> list[Block]:
        """What the best policy wins."""
        best = fusion.best_of(sets := policy_sets(self.found.profile))
        where = f"{best[0].gpu.name}: " if best and len(sets) > 1 else ""
        return [Sentence(where + fusion.saving_sentence(*best), strong=True)] if best else []

    def _answer(self, drawn: bool) -> list[Block]:
        """What the best policy wins and the levers, with a picture of its groups if they are to be ``drawn``."""
        profile = self.found.profile
        best = fusion.best_of(policy_sets(profile))
        if best is None:
            return []
        policies, schedule = best
        picture = [_waterfall(policies, schedule)] if drawn and schedule in fusion.explained(policies) else []
        eager = verdict(profile, policies.eager)
        memory = Sentence(f"{schedule.policy} {fit_text(schedule)}.", strong=not schedule.fits)
        limit = limit_fact(eager.levers, wall_shares(policies.eager), policies.eager.totals.time_s)
        own = [lever for lever in eager.levers if lever.options == f"--policy {schedule.policy}"]
        first = first_fact(own or eager.levers)
        held = memory_fact(held_bytes(schedule), schedule.gpu.dram_bytes)
        seen = (
            [glance(limit, first, held, ("eager", "", schedule.policy))]
            if drawn and policies.eager.totals.time_s
            else []
        )
        return [*self._told(), *seen, memory, Sentence(f"eager: {eager.text}"), *lever_tables(eager), *picture]

    def _asked(self, top: int) -> list[Section]:
        """What only an option brings: kernels compiled, other forms of the model, what-ifs."""
        found = self.found
        sections = [part("codegen.compiled_section")(made, top) for made in found.compiled.values()]
        sections += rewrite_sections(found.alternatives)
        return [*sections, fusion.what_if_section(found.what_ifs)] if found.what_ifs else sections

    def document(self, kind: str) -> Document:
        found, top = self.found, self.top or DEFAULT_TOP
        sections = [Section("What was fused", (_header(found),))]
        sets = policy_sets(found.profile)
        best = fusion.best_of(sets)
        for policies in sets:
            told = best[1] if best and best[0] is policies else None
            sections.append(Section(policies.gpu.name, fusion.policy_blocks(policies, told=told)))
            for schedule in fusion.explained(policies):
                section = _policy_section(found, policies, schedule, self.by, top)
                drawn = [_waterfall(policies, schedule)] if kind == "html" and (policies, schedule) != best else []
                sections.append(replace(section, blocks=(*drawn, *section.blocks)))
        sections += [_agreement_section(gpu, agreed) for gpu, agreed in found.plan_diffs.items()]
        sections += self._asked(top)
        if found.capture is not None:
            sections.append(capture_section(found, found.capture))
        if found.op_counts is not None:
            sections.append(_op_count_section(found.op_counts))
        return Document(f"{found.profile.workload.name}: what fusion wins", sections, self._answer(kind == "html"))

    def record(self) -> str:
        return json.dumps(self.found.to_dict(), indent=1) + "\n"

    def figure(self) -> Chart:
        return profile_chart(self.found.profile)


def _waterfall(policies: PolicySet, schedule: Schedule) -> Picture:
    label = f"{schedule.policy} on {policies.gpu.name}: what each fused group saves"
    return Picture(waterfall_chart(policies, schedule), label)


def _header(found: FusedProfile) -> Facts:
    profile = found.profile
    workload = profile.workload
    return known_facts(
        ("workload", f"{workload.name}, {workload.mode}, {workload.dtype}"),
        ("target", workload.target),
        ("inputs", inputs_text(workload)),
        ("ops", f"{len(profile.graph.ops):,}, which move {size(profile.dram_bytes)} unfused"),
        ("host", host_text(profile.simulations)),
        *(("note", note) for note in found.notes),
    )


# -- policies ----------------------------------------------------------------------------------------------------------


def _savings_tables(policies: PolicySet, schedule: Schedule, by: str, top: int) -> list[Table]:
    """What groups or modules save, the largest change first."""
    if by == "module":
        return [fusion.module_table(module_savings(policies, schedule, top=top))]
    groups = sorted(group_savings(policies, schedule), key=lambda row: -abs(row.saved_s))
    return [fusion.group_table(groups, top)] if groups else []


def _refusal_tables(plan: Plan, top: int | None = None) -> list[Table]:
    refused = refused_by_rule(plan)
    return [refusal_table(refused, top)] if refused else []


def _brief_tables(found: FusedProfile, policies: PolicySet, by: str, top: int, refusals: int) -> list[Table]:
    """The savings of one policy, memwall's if it is there, and what it refuses."""
    chosen = sorted(fusion.explained(policies), key=lambda schedule: schedule.policy != "memwall")[:1]
    tables = [table for s in chosen if top for table in _savings_tables(policies, s, by, top)]
    tables += [table for s in chosen if refusals for table in _refusal_tables(found.plan(s), refusals)]
    return [table._replace(title=f"{table.title}: {chosen[0].policy}") for table in tables]


def _policy_section(found: FusedProfile, policies: PolicySet, schedule: Schedule, by: str, top: int) -> Section:
    plan = found.plan(schedule)
    blocks: list[Block] = [*_savings_tables(policies, schedule, by, top), *_again_tables(found, schedule)]
    blocks += _refusal_tables(plan)
    if missed := missed_fusions(found.profile, schedule, plan, top=fusion.MAX_MISSED):
        blocks.append(fusion.missed_table(missed))
    lowered = found.lowered.get(policies.gpu.name)
    if schedule.policy == "inductor" and lowered is not None and lowered.why_not_fused:
        reasons = sorted(lowered.why_not_fused.items(), key=lambda item: (-item[1], item[0]))[:MAX_REASONS]
        note = "pairs of its nodes, as its scheduler says"
        blocks.append(col.listing("Why Inductor did not fuse", reasons, "pairs: 1 count, reason: 0 prose", note))
    return Section(f"{policies.gpu.name}, {schedule.policy}: groups and refusals", blocks)


def _again_tables(found: FusedProfile, schedule: Schedule) -> list[Table]:
    """Ops that are run again rather than stored: equal ones of repeated blocks as one row."""
    graph = found.profile.graphs[schedule.graph]
    written = {i for group in found.plan(schedule).groups for i in group.writes}
    runs: dict[int, list[str]] = {}
    for kernel in schedule.kernels:
        for op_id in kernel.recomputes:
            runs.setdefault(op_id, []).append(graph.ops[kernel.op_ids[0]].phase)
    sums: dict[tuple[str, str, str], list[int]] = {}
    for op_id, phases in runs.items():
        op = graph.ops[op_id]
        total = sums.setdefault((short_name(op.name), collapse(op.module), op.phase), [0, 0, 0])
        total[0] += 1
        total[1] += len(phases)
        total[2] += sum(graph.values[i].spec.nbytes for i in op.outputs if i not in written)
    if not sums:
        return []
    rows = sorted(sums.items(), key=lambda item: (-item[1][2], item[0]))[:MAX_AGAIN]
    table = [(*key, *total) for key, total in rows]
    specs = "op: 0 name, : 3 repeats, module: 1 module, phase: 2, runs again: 4 count, not stored: 5 B"
    return [col.listing("Computed again instead of stored", table, specs, AGAIN_NOTE, left=len(sums) - MAX_AGAIN)]


# -- our planner next to Inductor --------------------------------------------------------------------------------------


def _agreement_section(gpu: str, agreed: PlanDiff) -> Section:
    ours, theirs = agreed.kernels
    facts = (
        ("kernels", f"{ours:,} memwall, {theirs:,} Inductor ({_ratio(ours, theirs)})"),
        (
            "DRAM bytes",
            f"{size(agreed.dram_bytes[0])} memwall, {size(agreed.dram_bytes[1])} Inductor"
            f" ({_ratio(*agreed.dram_bytes)})",
        ),
        ("pairs of ops", f"{percent(agreed.all_share)} of {agreed.all_pairs:,} are fused in both plans or in neither"),
        (
            "neighbours",
            f"{percent(agreed.share)} of {agreed.pairs:,} (one reads what the other wrote, or both read the same"
            f" tensor); {agreed.only_first:,} fused by memwall alone, {agreed.only_second:,} by"
            " Inductor alone",
        ),
    )
    blocks: list[Block] = [Facts(facts)]
    if rows := agreed.differences[:MAX_DIFFERENCES]:
        table = [(d.module, d.count, d.bytes, d.time_s, "; ".join(d.ours), "; ".join(d.theirs)) for d in rows]
        specs = "module: 0 module, : 1 repeats, bytes: 2 B, time: 3 +s, memwall: 4 prose, Inductor: 5 prose"
        blocks.append(col.listing("Where they differ", table, specs, DIFFERENCE_NOTE))
    return Section(f"{gpu}: memwall's planner compared with Inductor", blocks)


def _ratio(ours: int, theirs: int) -> str:
    return f"{ours / theirs:.2f}x" if theirs else "-"


DIFFERENCE_NOTE = (
    "bytes, time: Inductor minus memwall; again: recomputed instead of read; forward and backward, without the"
    " optimizer"
)


# -- op counts by IR level ---------------------------------------------------------------------------------------------


def _op_count_section(counts: OpCounts) -> Section:
    from memwall.fusing.op_counts import PUBLISHED, PUBLISHED_SOURCE  # where there are counts there is torch

    rows = [(v.name, v.distinct, v.calls, v.free_calls or None, PUBLISHED.get(v.name, "-")) for v in counts.levels]
    specs = "level: 0, distinct ops: 1 count, calls: 2 count, free calls: 3 count, announced: 4"
    note = f"free calls move nothing (views, allocations); the optimizer is left out; announced: {PUBLISHED_SOURCE}"
    kept = few((f"{name} {calls:,}" for name, calls in counts.no_decomposition.items()), MAX_KEPT)
    facts = known_facts(("left as ATen", kept or "none"), ("no lowering in Inductor", ", ".join(counts.fallbacks)))
    return Section("Ops by IR level", (col.listing("", rows, specs, note), facts))


# -- fused library ops -------------------------------------------------------------------------------------------------

REWRITE_NOTE = "each row is the whole step, its family in that form; → is the difference to what the model does now"


def rewrite_sections(families: Sequence[Family]) -> list[Section]:
    gpus = dict.fromkeys(family.gpu for family in families)
    return [
        Section(f"{gpu}: fused library ops", (_rewrite_table([f for f in families if f.gpu == gpu]),)) for gpu in gpus
    ]


def _rewrite_table(families: Sequence[Family]) -> Table:
    """The forms on one GPU; the first of each family is what the model does now."""
    rows = [(family, form) for family in families for form in (family.now, *family.others)]
    forms = [form for _, form in rows]
    columns = [
        col.text("", [family.name if form is family.now else "" for family, form in rows]),
        col.text("form", [f"{f.name} (now)" if f is family.now else f.name for family, f in rows]),
    ]
    for heading, field in (("time", "time_s"), ("DRAM bytes", "dram_bytes"), ("peak", "peak_memory_bytes")):
        values = [getattr(form, field) for form in forms]
        less = [None if f is family.now else getattr(f, field) - getattr(family.now, field) for family, f in rows]
        make = col.seconds if field == "time_s" else partial(col.si, unit="B")
        columns += [make(heading, values=values), make("→", values=less, like=values, signed=True)]
    return col.table("", [*columns, *col.of(forms, "kernels, note prose")], REWRITE_NOTE)


REFUSED_NOTE = (
    "pairs not fused, by the first rule against it; bytes, time: what each alone would save; reason: of the largest"
)


def refusal_table(rows: Sequence[Refused], top: int | None = None) -> Table:
    """The first refusals, summed by rule."""
    specs = "rule, pairs: count count, bytes: saved_bytes B, time: saved_s s, reason prose"
    return col.listing("Refusals by rule", rows[:top], specs, REFUSED_NOTE, left=len(rows) - len(rows[:top]))


def _gpus_table(sets: Sequence[PolicySet], top: int) -> Table:
    """The time of each policy on each GPU, the first GPUs alone."""
    shown = sets[:top]
    eager_s = [policies.eager.totals.time_s for policies in shown]
    columns = [col.text("GPU", [policies.gpu.name for policies in shown]), col.seconds("eager", eager_s)]
    for name in dict.fromkeys(s.policy for policies in shown for s in policies.schedules if s.policy != "eager"):
        found = [next((p.row(s) for s in p.schedules if s.policy == name), None) for p in shown]
        columns.append(col.seconds(name, [row.time_s if row else None for row in found], like=eager_s))
        columns.append(col.ratio("speed-up", [row.speedup if row else None for row in found]))
    columns += col.of([policies.eager for policies in shown], "fits fits")
    note = "modeled time of a step; speed-up: over eager; one GPU alone has its groups and refusals listed"
    return col.table("Policies", columns, note, left=len(sets) - len(shown))
