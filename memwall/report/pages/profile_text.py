"""Profile → Document: what a report of one workload says, in the order in which it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import memwall.report.columns as col
from memwall.analysis.dtypes import emulations
from memwall.analysis.explanation import calibration_text, choices_text
from memwall.analysis.levers import NOTABLE
from memwall.analysis.modules import ModuleRow, levels, module_tree
from memwall.analysis.pipes import main_pipe, mfu_base, mfu_note
from memwall.analysis.savings import policy_sets
from memwall.analysis.table import KernelRow, TableRow, class_rows, kernel_rows, phase_rows
from memwall.analysis.verdict import Verdict, verdict
from memwall.analysis.whatif import Outcome
from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.core.units import bandwidth, counted, duration, few, flop_rate, flops, intensity, percent, si, size
from memwall.frontend.facts import WorkloadInfo
from memwall.fusion import COMPILED
from memwall.fusion.policies import COMPILING
from memwall.hardware.host import Host
from memwall.hardware.lookup import Gpu
from memwall.ops.lowering import kernels_said
from memwall.record.job import replicas
from memwall.record.kernels import Rates, collapse, fit_text, peak_place, rates, schedule_label, short_name, wall_shares
from memwall.record.profile import Profile
from memwall.report.document import Block, Column, Facts, Section, Sentence, Table, clean, known_facts
from memwall.report.pages.communication import communication_blocks
from memwall.report.pages.fusion import explained, fusion_tables, is_several, policy_blocks, what_if_section
from memwall.report.pages.validation import measured_sections
from memwall.simulate.memory import alive_at_peak
from memwall.simulate.schedule import Schedule

MATRIX_NOTE = (
    "times fewer FLOP/s: than matmuls, convolution and attention reach together; "
    "FLOPs are the model's and bytes compulsory, also of kernels that compute more (scores again) or fewer (Winograd); "
    "time is modeled"
)


#: rows of the tree of modules from which on its deeper levels are left to --depth
MODULES = 25
MODULES_NOTE = (
    "a module with all that is inside it; xN: so many modules of a list, summed; memory: what is alive at the"
    " peak; --depth N: levels of the tree"
)

TOTALS_NOTE = (
    "bound: the kernels' speeds of light, summed: FLOPs at the datasheet's peak or bytes at its DRAM"
    " bandwidth, at its L2's where all that a kernel touches fits in L2; 80 % range: should hold 80 % of real runs;"
    " MBU: bytes from L2 do not count; compute, bandwidth, latency, overhead: share of time under each wall"
)
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
    if any(lever.options == "--policy ideal" for lever in rows):
        note += "; perfect fusion: what no compiler can beat"
    specs = "lever: name name, saved: saved_s s, of the step: share %, with: time_s s like saved_s?,"
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


def answer_blocks(profile: Profile) -> list[Block]:
    """What a reader with one minute sees: how long the step takes and whether it fits, the verdict and the levers; of
    several simulations the levers of the fastest."""
    if not profile.simulations:
        return []
    real = [schedule for schedule in profile.simulations if schedule.policy != "ideal"] or [*profile.simulations]
    best = min(real, key=lambda schedule: (not schedule.fits, schedule.totals.time_s))
    time, low, high = (duration(best.totals.time_s), duration(best.totals.low_s), duration(best.totals.high_s))
    label, others = schedule_label(profile, best), [schedule for schedule in real if schedule is not best]
    told = f"{label} takes {time} a step (80 % range {low} to {high})"
    told += f", {_times_as_fast(profile, best, others)}" if others else ""
    told += f". It {fit_text(best)}." if best.fits else "."
    misfits = [schedule_label(profile, schedule) for schedule in others if not schedule.fits]
    told += f" It does not fit on {few(misfits)}." if misfits and best.fits else ""
    if not others:
        return [Sentence(told, strong=True), *verdict_blocks(profile, best)]
    found = verdict(profile, best)
    table = (each._replace(title=f"What would make {label} faster") for each in lever_tables(found))
    return [Sentence(told, strong=True), Sentence(f"{label}: {found.text}", strong=True), *table]


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
    """The verdict on a simulation, the dtypes that its GPU has no tensor cores for, and its levers."""
    found = verdict(profile, schedule)
    texts = (found.text, *emulations(profile, schedule))
    return [*(Sentence(text, strong=True) for text in texts), *lever_tables(found)]


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
    return clean(f"{gpu.name} ({gpu.full_name}, {bandwidth(gpu.dram_bytes_per_s)}, {flop_rate(gpu.peak(pipe))} {pipe})")


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


def totals_table(profile: Profile) -> Table:
    """One row per simulation: what a reader compares first."""
    sims = profile.simulations
    speeds = [rates(profile, s) for s in sims]
    time_s = [s.totals.time_s for s in sims]
    like = col.readable(time_s)
    columns = [
        col.text("GPU", [schedule_label(profile, s) for s in sims]),
        col.seconds("time", time_s, like=like),
        col.optional(col.seconds("bound", [s.totals.bound_s for s in sims], like=like)),
        col.interval([(s.totals.low_s, s.totals.high_s) for s in sims], like),
        *col.of(sims, "kernels: totals.kernels count?"),
        *_rate_columns(profile, speeds),
    ]
    if len({s.totals.flops for s in sims}) > 1:  # other attention kernels, or another policy
        columns += col.of(sims, "FLOPs: totals.flops FLOP")
    columns += [
        *col.of(sims, "MFU: totals.mfu %"),
        *(col.of(sims, "HFU: totals.hfu %") if any(s.totals.hfu > s.totals.mfu for s in sims) else []),
        *col.of(sims, "MBU: mbu %?"),
        *col.walls([wall_shares(s) for s in sims]),
        *col.of(sims, "peak: totals.peak_memory_bytes B?, fits fits"),
    ]
    mfu = mfu_note((s.gpu.name, mfu_base(profile, s)) for s in sims)
    notes = TOTALS_NOTE, mfu, _job_note(profile), _batch_note(profile)
    return col.table("", columns, "; ".join(filter(None, notes)))


def _rate_columns(profile: Profile, speeds: Sequence[Rates]) -> list[tuple[Column, list[str]]]:
    """Samples and tokens per second; of a program of many GPUs those of all, and what each has a share of."""
    if any(speed.samples_per_s is None and speed.tokens_per_s is None for speed in speeds):
        return []
    counts = {"samples": profile.workload.samples, "tokens": profile.workload.tokens}
    known = [name for name, count in counts.items() if count is not None]
    columns = [column for name in known for column in col.of(speeds, f"{name}: {name}_per_s /s?")]
    return columns + (col.of(speeds, f"of a GPU: {known[-1]}_per_s_per_gpu /s?") if profile.traced.job else [])


def _job_note(profile: Profile) -> str:
    """What samples and tokens are of, where a program has many ranks."""
    job, counts = profile.traced.job, profile.workload.samples
    if job is None or counts is None or profile.traced.pipeline:
        return ""
    batches = replicas(profile)
    many = "one batch" if batches == 1 else f"{batches:g} batches"
    return (
        f"samples, tokens: of all {job.world:,} ranks, which take {many} like this one's, as ranks that exchange"
        " activations share theirs; of a GPU: over the ranks"
    )


def _batch_note(profile: Profile) -> str:
    """Where the samples are from, if nothing says how many there are."""
    found = profile.workload
    return f"samples: {found.samples:,}, the first axis of the inputs" if found.samples_assumed else ""


def class_table(profile: Profile, schedule: Schedule) -> Table:
    rows = class_rows(profile, schedule)
    columns = [*col.of(rows, "class: key"), *col.quantities("class", rows, {"flop_share": 2})]
    return col.table("Op classes", columns, MATRIX_NOTE)


def share_table(title: str, heading: str, rows: Sequence[TableRow]) -> Table:
    return col.table(title, [*col.of(rows, f"{heading}: key name"), *col.quantities("share", rows)])


def module_table(rows: Sequence[tuple[int, ModuleRow]]) -> Table:
    """The tree, a node a row, its level in dots."""
    nodes = [node for _, node in rows]
    column, cells = col.text("module", [node.key for node in nodes])
    columns = [
        (column, ["· " * level + cell for (level, _), cell in zip(rows, cells, strict=True)]),
        *col.of(nodes, ": count repeats"),
        *col.quantities("module", nodes),
    ]
    return col.table("Modules", columns, MODULES_NOTE)


def kernel_table(title: str, rows: Sequence[KernelRow], note: str = "") -> Table:
    columns = [
        *col.of(rows, "kernel: name op, : count repeats, shape: problem name, module module"),
        col.optional(col.text("phase", [_PHASES.get(r.phase, r.phase) for r in rows])),
        *col.quantities("kernel", rows),
    ]
    return col.table(title, columns, note)


_PHASES = {"forward": "fwd", "backward": "bwd", "optimizer": "opt", "prefill": "prefill", "decode": "decode"}


_SIMULATED = (
    ", simulated in the order of the text, which does not say where XLA's buffers lie: XLA's own peak may differ"
)


def memory_table(profile: Profile, schedule: Schedule) -> Table:
    m = schedule.memory
    held = {kind.replace("_", " "): count for kind, count in m.by_kind.items() if count} | {"peak": m.total}
    note = fit_text(schedule)
    gradients = profile.graphs[schedule.graph].role_bytes["gradient"]
    if m.gradients < gradients:
        note += f"; at the moment of the peak {size(m.gradients)} of the {size(gradients)} of gradients are alive"
    if place := peak_place(profile, schedule):
        note += f"; peak {place}"
        note += _SIMULATED if schedule.policy in COMPILING else ""
    columns = [
        col.text("", held),
        (Column(""), [size(count) for count in held.values()]),
        col.percent("of the peak", [count / m.total if m.total else 0.0 for count in held.values()]),
    ]
    return col.table("Peak memory", columns, note)


#: tensors alive at the peak that are listed
MAX_TENSORS = 8


def peak_tensors(profile: Profile, schedule: Schedule) -> list[Table]:
    """The largest tensors alive at the peak, equal ones of repeated blocks summed; none where the plan is not known."""
    plan, graph = profile.plan(schedule), profile.graphs[schedule.graph]
    if plan is None:
        return []
    written: dict[int, tuple[str, str]] = {}
    shapes: dict[int, str] = {}
    for op in graph.ops:
        for value in (graph.values[i] for i in op.outputs):
            written.setdefault(value.storage, (short_name(op.name), collapse(op.module)))
    for value in graph.values:
        if graph.storages[value.storage].nbytes == value.spec.nbytes:
            shapes.setdefault(value.storage, f"{value.spec.dtype}{list(value.spec.shape)}".replace(" ", ""))
    sums: dict[tuple[str, ...], list[int]] = {}
    for storage in alive_at_peak(graph, plan):
        made = ("", collapse(storage.name)) if storage.is_persistent else written.get(storage.id, ("", ""))
        total = sums.setdefault((storage.role.replace("_", " "), *made, shapes.get(storage.id, "")), [0, 0])
        total[0] += 1
        total[1] += storage.nbytes
    rows = sorted(sums.items(), key=lambda item: -item[1][1])
    whole = sum(nbytes for _, (_, nbytes) in rows) or 1
    cells = [(*key, count, nbytes, nbytes / whole) for key, (count, nbytes) in rows[:MAX_TENSORS]]
    specs = "tensors: 0, made by: 1 name, of: 2 module, shape: 3 name, : 4 repeats, bytes: 5 B, of the peak: 6 %"
    return [col.listing("The largest at the peak", cells, specs, left=len(rows) - len(cells))]


def _by_op(profile: Profile, schedule: Schedule, top: int, sort: str, depth: int | None) -> list[Block]:
    rows = kernel_rows(profile, schedule, sort=sort)
    note = _kernel_note(rows[:top])
    if rest := rows[top:]:
        note = f"and {col.rows_left(len(rest))}, {duration(sum(r.time_s for r in rest))}; {note}"
    return [kernel_table(f"Top kernels by {sort}", rows[:top], note)]


def _kernel_note(rows: Sequence[KernelRow]) -> str:
    """What the columns mean, of what stands in these rows alone."""
    shapes = [
        "MxNxK of a matmul" if any(row.op_class == "contraction" for row in rows) else "",
        "dX or dW: gradient of the input or weight" if any(row.problem[:2] in ("dX", "dW") for row in rows) else "",
    ]
    parts = (
        "xN: so many equal kernels, their figures summed" if any(row.count > 1 for row in rows) else "",
        f"shape: {', '.join(filter(None, shapes))}" if any(shapes) else "",
        "bound: speed of light; time: modeled",
    )
    return "; ".join(filter(None, parts))


def _by_module(profile: Profile, schedule: Schedule, top: int, sort: str, depth: int | None) -> list[Block]:
    return [module_table(levels(module_tree(profile, schedule), depth, max(top, MODULES)))]


def _by_phase(profile: Profile, schedule: Schedule, top: int, sort: str, depth: int | None) -> list[Block]:
    rows = kernel_rows(profile, schedule, sort=sort)
    phases = [phase for phase in _PHASES if any(row.phase == phase for row in rows)]
    return [kernel_table(f"Top kernels, {p}", [r for r in rows if r.phase == p][:top]) for p in phases]


def _by_class(profile: Profile, schedule: Schedule, top: int, sort: str, depth: int | None) -> list[Block]:
    rows = kernel_rows(profile, schedule, sort=sort)
    classes = [row.key for row in class_rows(profile, schedule)]
    return [kernel_table(f"Top kernels, {c}", [r for r in rows if r.op_class == c][:top]) for c in classes]


#: ``--by`` key -> the blocks that break the time down that way
BREAKDOWNS: dict[str, Callable[[Profile, Schedule, int, str, int | None], list[Block]]] = {
    "op": _by_op, "module": _by_module, "class": _by_class, "phase": _by_phase,
}  # fmt: skip
