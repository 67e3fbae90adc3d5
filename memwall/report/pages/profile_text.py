"""Profile → Document: what a report of one workload says, in the order in which it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import memwall.report.columns as col
from memwall.analysis.savings import PolicySet, policy_sets
from memwall.analysis.table import KernelRow, Row, class_rows, kernel_rows, module_rows, phase_rows
from memwall.analysis.verdict import main_pipe, verdict
from memwall.analysis.whatif import Outcome
from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.core.units import bandwidth, duration, flop_rate, flops, intensity, percent, si, size
from memwall.record.kernels import WALLS, rates, schedule_label, short_name, wall_shares
from memwall.record.profile import Profile
from memwall.report.document import Block, Column, Document, Facts, Section, Sentence, Table, clean
from memwall.report.pages.explanation import provenance_text
from memwall.report.pages.fusion import explained, fusion_section, is_several, policy_table, sentences, what_if_section
from memwall.report.pages.validation import measured_sections
from memwall.simulate.schedule import Schedule

MATRIX_NOTE = (
    "times fewer FLOP/s: than contraction, convolution and attention attain together; "
    "FLOPs and bytes are compulsory, time is modeled"
)

#: names that a report has no room for, at most so many
MAX_UNMODELED = 8


def profile_document(profile: Profile, by: str, top: int, sort: str, what_ifs: Sequence[Outcome]) -> Document:
    """The whole report: what was measured comes first, ``what_ifs`` last."""
    if by not in BREAKDOWNS:
        raise UsageError(f"cannot group by {by!r}; choose one of {', '.join(BREAKDOWNS)}")
    sections: list[Section] = [Section("", (Facts(header_facts(profile)),)), *measured_sections(profile, top=top)]
    if is_several(profile):
        for policies in policy_sets(profile):
            sections += _policy_sections(policies, by, top, sort)
    else:
        if len(profile.simulations) > 1:
            sections.append(Section("Totals", (totals_table(profile),)))
        sections += [_schedule_section(profile, s, by, top, sort) for s in profile.simulations]
    if what_ifs:
        sections.append(what_if_section(what_ifs))
    return Document(clean(profile.workload.name), tuple(sections))


def _policy_sections(policies: PolicySet, by: str, top: int, sort: str) -> list[Section]:
    """The policies of one GPU side by side, the first in full, of the others what they save."""
    profile, first = policies.profile, policies.schedules[0]
    side_by_side: tuple[Table | Sentence, ...] = (policy_table(policies.rows()), *sentences(policies))
    return [
        Section(gpu_title(profile, first), side_by_side),
        _schedule_section(profile, first, by, top, sort),
        *(fusion_section(policies, schedule) for schedule in explained(policies)),
    ]


def _schedule_section(profile: Profile, schedule: Schedule, by: str, top: int, sort: str) -> Section:
    blocks: list[Block] = []
    if len(profile.simulations) == 1:
        blocks.append(totals_table(profile))
    blocks.append(class_table(profile, schedule))
    blocks += BREAKDOWNS[by](profile, schedule, top, sort)
    phases = phase_rows(profile, schedule)
    if len(phases) > 1:
        blocks.append(share_table("Phases", "phase", phases))
    blocks.append(memory_table(profile, schedule))
    blocks.append(Sentence(verdict(profile, schedule), strong=True))
    facts = {"calibrated": provenance_text(profile, schedule), "launched": _launched(schedule)}
    if any(facts.values()):
        blocks.append(Facts(tuple((label, text) for label, text in facts.items() if text)))
    title = schedule_label(profile, schedule) if is_several(profile) else full_title(profile, schedule)
    return Section(title, tuple(blocks))


def _launched(schedule: Schedule) -> str:
    captured = not schedule.gpu.dispatch_s and schedule.gpu.cpu is None
    return "as a CUDA graph: no kernel waits for the CPU" if captured else ""


def full_title(profile: Profile, schedule: Schedule) -> str:
    """The GPU with its ceilings, and the policy where it is not eager."""
    return f"{gpu_title(profile, schedule)}{policy_suffix(profile, schedule)}"


def gpu_title(profile: Profile, schedule: Schedule) -> str:
    """``h100-sxm (NVIDIA H100 SXM5 80GB, 3.35 TB/s, 989.40 TFLOP/s tensor.float16)``: its matrix ceiling."""
    gpu = schedule.gpu
    pipe = gpu.ceiling_pipe(main_pipe(profile, schedule) or Pipe("tensor", "float16"))
    return clean(f"{gpu.name} ({gpu.full_name}, {bandwidth(gpu.dram_bytes_per_s)}, {flop_rate(gpu.peak(pipe))} {pipe})")


def policy_suffix(profile: Profile, schedule: Schedule) -> str:
    """The suffix that distinguishes two simulations of one GPU."""
    return schedule_label(profile, schedule)[len(schedule.gpu.name) :]


# -- the header --------------------------------------------------------------------------------------------------------


def header_facts(profile: Profile) -> tuple[tuple[str, str], ...]:
    """What was profiled and what it must do, whatever the GPU."""
    w = profile.workload
    how = [w.mode, w.dtype, f"autocast {w.autocast}" if w.autocast else "", w.optimizer if w.mode == "training" else ""]
    moved = profile.dram_bytes
    facts = [
        ("workload", f"{w.name}, {', '.join(clean(word) for word in how if word)}"),
        ("target", w.target),
        ("inputs", ", ".join(f"{i['dtype']}{list(i['shape'])}".replace(" ", "") for i in w.inputs)),
        ("parameters", f"{si(w.parameters, '')} ({w.parameters:,})"),
        ("FLOPs", f"{flops(profile.flops)} ({profile.flops:,})"),
        ("of matrix work", _matrix_fact(profile)),
        ("DRAM bytes", f"{size(moved)} ({moved:,}), compulsory, unfused"),
        ("intensity", f"{intensity(profile.flops / moved if moved else 0.0)} FLOP/byte"),
        ("coverage", _coverage_fact(profile)),
        ("counted on", _graphs_fact(profile)),
    ]
    return tuple((label, clean(text)) for label, text in facts if text)


def _matrix_fact(profile: Profile) -> str:
    share = profile.model_flops / profile.flops if profile.flops else 0.0
    text = f"{percent(share, 2)} ({profile.model_flops:,})"
    if profile.dense_model_flops != profile.model_flops:
        text += f"; with attention counted dense, as most tools do: {profile.dense_model_flops:,}"
    return text


def _graphs_fact(profile: Profile) -> str:
    """Which GPU's graph the header counts, where GPUs run different attention kernels."""
    if len(profile.graphs) < 2:
        return ""
    names = []
    for i, graph in enumerate(profile.graphs):
        gpus = dict.fromkeys(schedule.gpu.name for schedule in profile.simulations if schedule.graph == i)
        names.append(f"{graph.attention} attention ({', '.join(gpus)})")
    return f"{names[0]}; further graphs for {', '.join(names[1:])}"


def _coverage_fact(profile: Profile) -> str:
    cover = profile.coverage
    if not cover.unmodeled:
        return f"100 % of {len(profile.graph.ops):,} ops"
    names = ", ".join(cover.unmodeled[:MAX_UNMODELED])
    more = len(cover.unmodeled) - MAX_UNMODELED
    tail = f" and {more} more" if more > 0 else ""
    return (
        f"{percent(cover.ops)} of {len(profile.graph.ops):,} ops, {percent(cover.bytes)} of bytes; "
        f"no formula for {names}{tail} (charged bytes only)"
    )


# -- tables ------------------------------------------------------------------------------------------------------------


def totals_table(profile: Profile) -> Table:
    """One row per simulation: what a reader compares first."""
    sims = profile.simulations
    speeds = [rates(profile, s) for s in sims]
    columns = [
        col.text("GPU", [schedule_label(profile, s) for s in sims]),
        col.seconds("time", [s.totals.time_s for s in sims]),
        col.optional(col.seconds("bound", [s.totals.bound_s for s in sims], like=[s.totals.time_s for s in sims])),
        col.interval([(s.totals.low_s, s.totals.high_s) for s in sims], [s.totals.time_s for s in sims]),
        col.optional(col.plain("kernels", [s.totals.kernels for s in sims])),
    ]
    if profile.workload.samples is not None:
        columns.append(col.optional(col.si("samples", "/s", [r.samples_per_s for r in speeds])))
    if profile.workload.tokens is not None:
        columns.append(col.optional(col.si("tokens", "/s", [r.tokens_per_s for r in speeds])))
    if len({s.totals.flops for s in sims}) > 1:  # other attention kernels, or another policy
        columns.append(col.si("FLOPs", "FLOP", [s.totals.flops for s in sims]))
    columns += [
        col.percent("MFU", [s.totals.mfu for s in sims]),
        col.optional(col.percent("MBU", [s.mbu for s in sims])),
        *(col.percent(wall, [wall_shares(s)[wall] for s in sims], 0) for wall in WALLS),
        col.si("peak", "B", [s.totals.peak_memory_bytes for s in sims]),
        col.text("fits", ["yes" if s.fits else "NO" for s in sims]),
    ]
    return col.table(
        "",
        columns,
        "bound: speed of light; 80 % range: should hold 80 % of real runs; compute, bandwidth, overhead: share of"
        " time under each wall",
    )


def class_table(profile: Profile, schedule: Schedule) -> Table:
    """Op classes and their shares."""
    rows = class_rows(profile, schedule)
    columns = [col.text("class", [r.key for r in rows]), *col.quantities("class", rows, {"flop_share": 2})]
    return col.table("Op classes", columns, MATRIX_NOTE)


def share_table(title: str, heading: str, rows: Sequence[Row]) -> Table:
    """Phases or modules."""
    return col.table(title, [col.names(heading, [r.key for r in rows]), *col.quantities("share", rows)])


def kernel_table(title: str, rows: Sequence[KernelRow], note: str = "") -> Table:
    """Kernels, repeats as one row."""
    columns = [
        col.names("kernel", [short_name(r.name) for r in rows]),
        col.repeats(r.count for r in rows),
        col.modules(r.module for r in rows),
        col.text("phase", [_PHASES.get(r.phase, r.phase) for r in rows], optional=True),
        *col.quantities("kernel", rows),
    ]
    return col.table(title, columns, note)


_PHASES = {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}


def memory_table(profile: Profile, schedule: Schedule) -> Table:
    """Peak memory and what it holds."""
    m, gpu = schedule.memory, schedule.gpu
    values = (m.parameters, m.gradients, m.optimizer_state, m.activations, m.total, gpu.dram_bytes)
    names = ("parameters", "gradients", "optimizer state", "activations", "peak", "GPU memory")
    fits = "fits" if schedule.fits else "DOES NOT FIT"
    note = f"{fits}: {percent(m.total / gpu.dram_bytes)} of the GPU's memory"
    gradients = profile.graphs[schedule.graph].role_bytes["gradient"]
    if m.gradients < gradients:
        note += f"; at the moment of the peak {size(m.gradients)} of the {size(gradients)} of gradients are alive"
    columns = [(Column(name), [size(value)]) for name, value in zip(names, values, strict=True)]
    return col.table("Peak memory", columns, note)


# -- what --by chooses -------------------------------------------------------------------------------------------------


def _by_op(profile: Profile, schedule: Schedule, top: int, sort: str) -> list[Block]:
    rows = kernel_rows(profile, schedule, sort=sort)
    shown, rest = rows[:top], rows[top:]
    note = "xN: so many equal kernels, their figures summed; bound: speed of light, time: modeled"
    if rest:
        rest_s = sum(r.time_s for r in rest)
        note = f"and {len(rest):,} more row{'s' if len(rest) > 1 else ''}, {duration(rest_s)}; {note}"
    return [kernel_table(f"Top kernels by {sort}", shown, note)]


def _by_module(profile: Profile, schedule: Schedule, top: int, sort: str) -> list[Block]:
    return [share_table("Modules", "module", module_rows(profile, schedule, top=top))]


def _by_phase(profile: Profile, schedule: Schedule, top: int, sort: str) -> list[Block]:
    rows = kernel_rows(profile, schedule, sort=sort)
    phases = dict.fromkeys(row.phase for row in phase_kernels(rows))
    return [kernel_table(f"Top kernels, {p}", [r for r in rows if r.phase == p][:top]) for p in phases]


def phase_kernels(rows: Sequence[KernelRow]) -> list[KernelRow]:
    """The rows in the order of the phases."""
    order = list(_PHASES)
    return sorted(rows, key=lambda row: order.index(row.phase))


def _by_class(profile: Profile, schedule: Schedule, top: int, sort: str) -> list[Block]:
    rows = kernel_rows(profile, schedule, sort=sort)
    classes = [row.key for row in class_rows(profile, schedule)]
    return [kernel_table(f"Top kernels, {c}", [r for r in rows if r.op_class == c][:top]) for c in classes]


#: ``--by`` key -> the blocks that break the time down that way
BREAKDOWNS: dict[str, Callable[[Profile, Schedule, int, str], list[Block]]] = {
    "op": _by_op,
    "module": _by_module,
    "class": _by_class,
    "phase": _by_phase,
}
