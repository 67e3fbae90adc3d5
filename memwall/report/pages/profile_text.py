"""Profile → Document: what a report of one workload says in words, in the order in which it is read: the answer, what
was profiled, what a time rests on. :mod:`.profile_tables` has its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import memwall.report.columns as col
from memwall.analysis.dtypes import emulations
from memwall.analysis.explanation import calibration_text, choices_text
from memwall.analysis.levers import KIND_NOTE, NOTABLE
from memwall.analysis.pipes import main_pipe, peaks_text
from memwall.analysis.savings import policy_sets
from memwall.analysis.table import phase_rows
from memwall.analysis.verdict import Verdict, verdict
from memwall.analysis.whatif import Outcome
from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.core.units import bandwidth, counted, duration, few, flops, intensity, percent, si, size
from memwall.frontend.facts import WorkloadInfo
from memwall.fusion import COMPILED
from memwall.fusion.policies import COMPILING
from memwall.hardware.host import Host
from memwall.hardware.lookup import Gpu
from memwall.ops.lowering import kernels_said
from memwall.record.kernels import fit_text, schedule_label, wall_shares
from memwall.record.profile import Profile
from memwall.report.document import Block, Facts, Glance, Section, Sentence, Table, clean, known_facts
from memwall.report.pages.communication import communication_blocks
from memwall.report.pages.fusion import explained, fusion_tables, is_several, policy_blocks, what_if_section
from memwall.report.pages.glance import first_fact, glance, held_bytes, limit_fact, memory_fact
from memwall.report.pages.profile_tables import BREAKDOWNS, class_table, memory_table, share_table, totals_table
from memwall.report.pages.validation import measured_answer, measured_sections
from memwall.simulate.schedule import Schedule

#: ops without a formula that are named
MAX_UNMODELED = 8


def profile_sections(
    profile: Profile, by: str, top: int, sort: str, what_ifs: Sequence[Outcome], depth: int | None = None
) -> list[Section]:
    """The whole report: what was measured comes first, ``what_ifs`` last; ``depth`` is of the tree of modules.

    Raises:
        UsageError: no such ``by``.
    """
    if by not in BREAKDOWNS:
        raise UsageError(f"cannot group by {by!r}; choose one of {', '.join(BREAKDOWNS)}")
    sections = [Section("", (header_facts(profile),)), *measured_sections(profile, top=top)]
    lone = len(profile.simulations) == 1
    if is_several(profile):
        for policies in policy_sets(profile):
            first = policies.schedules[0]
            table, *saved = policy_blocks(policies)
            blocks = (table, *verdict_blocks(profile, first), *saved)
            sections.append(Section(gpu_title(profile, first), blocks))
            sections.append(_schedule_section(profile, first, by, top, sort, depth))
            for schedule in explained(policies):
                heading = f"{policies.gpu.name}, {schedule.policy}: what fusion saves"
                sections.append(Section(heading, fusion_tables(policies, schedule)))
    else:
        if not lone and profile.simulations:
            sections.append(Section("Totals", (totals_table(profile),)))
        for schedule in profile.simulations:
            own = (totals_table(profile),) if lone else verdict_blocks(profile, schedule)
            section = _schedule_section(profile, schedule, by, top, sort, depth)
            sections.append(replace(section, blocks=(*own, *section.blocks)))
    return [*sections, what_if_section(what_ifs)] if what_ifs else sections


def _schedule_section(profile: Profile, schedule: Schedule, by: str, top: int, sort: str, depth: int | None) -> Section:
    blocks = [class_table(profile, schedule), *communication_blocks(profile, schedule)]
    blocks += BREAKDOWNS[by](profile, schedule, top, sort, depth)
    phases = phase_rows(profile, schedule)
    if len(phases) > 1:
        blocks.append(share_table("Phases", "phase", phases))
    blocks.append(memory_table(profile, schedule))
    blocks += provenance_facts(profile, schedule)
    title = schedule_label(profile, schedule) if is_several(profile) else full_title(profile, schedule)
    return Section(title, blocks)


def lever_tables(found: Verdict) -> list[Table]:
    """What would make the step faster, the most first."""
    rows = found.notable
    note = "the same step with one change, which the option shows, added to the command; what saves less than"
    note += f" {percent(NOTABLE, 0)} is left out"
    note += f"; {KIND_NOTE}"
    specs = "lever: name phrase, kind: kind, saved: saved_s s, of the step: share %, with: time_s s like saved_s?,"
    specs += "option: options prose"
    return [col.listing("What would make it faster", rows, specs, note)] if rows else []


def provenance_facts(profile: Profile, schedule: Schedule) -> list[Block]:
    """What a schedule's time rests on: how its constants are known, what is open, how it is launched, its bound."""
    facts = known_facts(
        ("calibrated", calibration_text(profile, schedule)),
        ("open choices", choices_text(profile, schedule)),
        ("launched", _launched(schedule)),
        ("step bound", _step_bound_text(profile, schedule)),
    )
    return [facts] if facts.items else []


def answer_blocks(profile: Profile, drawn: bool = False) -> list[Block]:
    """What a reader with one minute sees: how long the step takes and whether it fits, on a page that is ``drawn`` the
    facts at a glance, the verdict and the levers; of several simulations the levers of the fastest."""
    if not profile.simulations:
        return []
    real = _real(profile)
    best = _best(real)
    time, low, high = (duration(best.totals.time_s), duration(best.totals.low_s), duration(best.totals.high_s))
    label, others = schedule_label(profile, best), [schedule for schedule in real if schedule is not best]
    told = f"{label} takes {time} a step (80 % range {low} to {high})"
    told += f", {_times_as_fast(profile, best, others)}" if others else ""
    told += f". It {fit_text(best)}." if best.fits else "."
    misfits = [schedule_label(profile, schedule) for schedule in others if not schedule.fits]
    told += f" It does not fit on {few(misfits)}." if misfits and best.fits else ""
    found, table = verdict(profile, best), lever_tables(verdict(profile, best))
    texts = [found.text, *emulations(profile, best)]
    if others:
        texts = [f"{label}: {found.text}"]
        table = [each._replace(title=f"What would make {label} faster") for each in table]
    seen = [_glance(profile, best, found, label if others else "")] if drawn and best.totals.time_s else []
    sentences = [Sentence(text, strong=True) for text in texts]
    return [*measured_answer(profile), Sentence(told, strong=True), *seen, *sentences, *table]


def _glance(profile: Profile, best: Schedule, found: Verdict, of: str) -> Glance:
    """The facts of the fastest simulation; what to do first is its own policy where it is not eager's."""
    eager = next((s for s in profile.simulations if s.gpu == best.gpu and s.policy == "eager"), best)
    first = first_fact(found.levers)
    if eager is not best:
        saved = percent(1 - best.totals.time_s / eager.totals.time_s)
        first = f"compile with {best.policy}", f"saves {saved} of eager's modeled time: --policy {best.policy}"
    limit = limit_fact(found.levers, wall_shares(best), best.totals.time_s)
    held = memory_fact(held_bytes(best), best.gpu.dram_bytes)
    return glance(limit, first, held, of if eager is best else (of, "", of))


def _real(profile: Profile) -> list[Schedule]:
    """The simulations of what can be run; ``ideal`` only where there is nothing else."""
    return [schedule for schedule in profile.simulations if schedule.policy != "ideal"] or [*profile.simulations]


def _best(schedules: Sequence[Schedule]) -> Schedule:
    """The fastest of the simulations that fit, or of all where none does: what the answer is of."""
    return min(schedules, key=lambda schedule: (not schedule.fits, schedule.totals.time_s))


def _times_as_fast(profile: Profile, best: Schedule, others: Sequence[Schedule]) -> str:
    """How many times as fast a schedule is as others, up to two of them by name."""
    ratios = [schedule.totals.time_s / best.totals.time_s if best.totals.time_s else 1.0 for schedule in others]
    if len(others) > 2:
        return f"{col.times(min(ratios))} to {col.times(max(ratios))} as fast as the {len(others)} others"
    said = (
        f"{col.times(ratio)} as fast as {schedule_label(profile, schedule)}"
        for ratio, schedule in zip(ratios, others, strict=True)
    )
    return " and ".join(said)


def verdict_blocks(profile: Profile, schedule: Schedule) -> list[Block]:
    """The verdict on one of several simulations, the dtypes that its GPU has no tensor cores for, and its levers; of
    the simulation that the answer is of, what the answer leaves out."""
    found = None if schedule is _best(_real(profile)) else verdict(profile, schedule)
    texts = [*([found.text] if found else []), *emulations(profile, schedule)]
    return [*(Sentence(text, strong=True) for text in texts), *(lever_tables(found) if found else [])]


def _step_bound_text(profile: Profile, schedule: Schedule) -> str:
    bound_s = profile.step_bound_s(schedule)
    if not bound_s or len(schedule.kernels) < 2:
        return ""
    l2_bytes = schedule.gpu.l2_bytes
    cache = "VMEM" if schedule.gpu.tpu else "L2"
    kept = f", even where {size(l2_bytes)} of {cache} keep all they can from one kernel to the next" if l2_bytes else ""
    return f"{duration(bound_s)}: no run of the step is faster{kept}"


def host_text(schedules: Sequence[Schedule]) -> str:
    """``bare-metal: 9.80 us of CPU time to issue an op, 0.5 to 2.75 times as long in the 80 % range``, with each other
    policy's time to issue a kernel, or a whole step that it starts at once, a range where GPUs differ; empty where no
    host issues kernels."""
    said: dict[Host, dict[str, list[float]]] = {}
    for schedule in schedules:
        launched = sum(1 for kernel in schedule.kernels if kernel.launches)
        issued_s = sum(kernel.issue_s for kernel in schedule.kernels)
        if not issued_s or schedule.gpu.cpu is not None:
            continue
        at_once = schedule.launch == "graph"
        compiled = f"the whole step of {schedule.policy}" if at_once else f"a kernel of {schedule.policy}"
        what = "an op" if schedule.policy == "eager" else compiled
        said.setdefault(schedule.gpu.host, {}).setdefault(what, []).append(issued_s / (1 if at_once else launched))
    texts = []
    for host, times_s in said.items():
        spread = f", {host.low:g} to {host.high:g} times as long in the 80 % range" if host.varies else ""
        asked = [(" to ".join(dict.fromkeys(map(duration, (min(s), max(s))))), what) for what, s in times_s.items()]
        (first, issued), *others = asked
        each = [f"{first} of CPU time to issue {issued}", *(f"{time} for {what}" for time, what in others)]
        texts.append(f"{host.name}: {', '.join(each)}{spread}")
    return "; ".join(texts)


def _breaks_text(profile: Profile) -> str:
    """What the policies that compile take for granted, and a capture would tell."""
    named = dict.fromkeys(schedule.policy for schedule in profile.simulations)
    whole = [policy for policy in named if policy == "memwall" or policy in COMPILED]
    if not whole or profile.traced.dynamo or not profile.of_torch:
        return ""
    return f"assumed absent under {' and '.join(whole)}; memwall fuse finds them"


def full_title(profile: Profile, schedule: Schedule) -> str:
    """The GPU with its ceilings, and the policy where it is not eager."""
    return gpu_title(profile, schedule) + schedule_label(profile, schedule)[len(schedule.gpu.name) :]


def gpu_title(profile: Profile, schedule: Schedule) -> str:
    """``h100-sxm (NVIDIA H100 SXM5 80GB, 3.35 TB/s, 989.40 TFLOP/s tensor.float16)``: its matrix ceiling."""
    gpu = schedule.gpu
    pipe = gpu.ceiling_pipe(main_pipe(profile, schedule) or _usual_pipe(profile, gpu))
    peaks = peaks_text({pipe: gpu.peak(pipe)})
    return clean(f"{gpu.name} ({gpu.full_name}, {bandwidth(gpu.dram_bytes_per_s)}, {peaks})")


def _usual_pipe(profile: Profile, gpu: Gpu) -> Pipe:
    """The tensor cores of the workload's dtype, else of float16, for a workload without products."""
    pipe = Pipe("tensor", profile.workload.dtype)
    return pipe if pipe in gpu.peak_flop_per_s else Pipe("tensor", "float16")


def header_facts(profile: Profile) -> Facts:
    """What was profiled and what it must do, whatever the GPU."""
    w = profile.workload
    how = [w.mode, w.dtype, f"autocast {w.autocast}" if w.autocast else "", w.optimizer if w.mode == "training" else ""]
    moved = profile.dram_bytes
    share = profile.model_flops / profile.flops if profile.flops else 0.0
    matrix = f"{percent(share, 2)} ({profile.model_flops:,})"
    if profile.dense_model_flops != profile.model_flops:
        matrix += f"; with attention counted dense, as most tools do: {profile.dense_model_flops:,}"
    if profile.flops_again:
        matrix += f"; {percent(profile.flops_again / profile.model_flops, 2)} of that is computed again in backward"
    return known_facts(
        ("workload", f"{w.name}, {', '.join(clean(word) for word in how if word)}"),
        ("target", w.target),
        ("inputs", inputs_text(w)),
        ("parameters", f"{si(w.parameters, '')} ({w.parameters:,})"),
        ("FLOPs", f"{flops(profile.flops)} ({profile.flops:,})"),
        ("of matrix work", matrix),
        ("DRAM bytes", f"{size(moved)} ({moved:,}), compulsory, unfused"),
        ("intensity", f"{intensity(profile.flops / moved if moved else 0.0)} FLOP/byte"),
        ("coverage", _coverage_fact(profile)),
        ("kernels", _graphs_fact(profile)),
        ("torch", _torch_fact(profile)),
        ("host", host_text(profile.simulations)),
        ("graph breaks", _breaks_text(profile)),
        *(("note", line) for line in profile.notes),
    )


def _torch_fact(profile: Profile) -> str:
    """The version of torch whose kernels are modeled, with its libraries."""
    version = profile.traced.version
    return f"{version.name} ({version.libraries}): its kernels are modeled" if profile.traced.torch else ""


def inputs_text(workload: WorkloadInfo) -> str:
    """``int64[8,128], float16[8,16]``."""
    runs = groupby(f"{i['dtype']}{list(i['shape'])}".replace(" ", "") for i in workload.inputs)
    alike = [(kind, len(list(run))) for kind, run in runs]  # a cache of keys and values is two tensors per layer
    return ", ".join(", ".join([kind] * count) if count < 4 else f"{count} × {kind}" for kind, count in alike)


def _launched(schedule: Schedule) -> str:
    """How the kernels of a schedule wait for nobody, or for the call that starts them all."""
    if schedule.launch != "graph":
        return ""
    what = "a CUDA graph" if schedule.policy not in COMPILING else "one program, captured by the compiler's runtime"
    started_s = sum(kernel.issue_s for kernel in schedule.kernels)
    how = f"the CPU starts it in {duration(started_s)}, and no other kernel waits" if started_s else "no kernel waits"
    return f"as {what}: {how} for the CPU"


def _graphs_fact(profile: Profile) -> str:
    """Which kernels each GPU runs where they differ, and that the counts above are of the first."""
    names = []
    compiled = {schedule.graph for schedule in profile.simulations if schedule.policy in COMPILING}
    for i, graph in enumerate(profile.graphs):
        if i in compiled:
            continue
        gpus = dict.fromkeys(schedule.gpu.name for schedule in profile.simulations if schedule.graph == i)
        kernels = kernels_said(graph.backends or (graph.attention,))
        names.append(f"{kernels} on {', '.join(gpus)}" if gpus else kernels)
    return f"{'; '.join(names)}; the counts above are of the first" if len(names) > 1 else ""


def _coverage_fact(profile: Profile) -> str:
    cover = profile.coverage
    if not cover.unmodeled:
        return f"100 % of {counted(len(profile.graph.ops), 'op')}"
    return (
        f"{percent(cover.ops)} of {counted(len(profile.graph.ops), 'op')}, {percent(cover.bytes)} of bytes; "
        f"no formula for {few(cover.unmodeled, MAX_UNMODELED)} (charged bytes only)"
    )
