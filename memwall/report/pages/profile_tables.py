"""The tables of a profile: totals, classes, modules, kernels, and the tensors that are alive at the peak."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import memwall.report.columns as col
from memwall.analysis.modules import ModuleRow, levels, module_tree
from memwall.analysis.pipes import mfu_base, mfu_note
from memwall.analysis.table import KernelRow, TableRow, class_rows, kernel_rows
from memwall.core.units import duration, size
from memwall.fusion.policies import COMPILING
from memwall.record.job import replicas
from memwall.record.kernels import Rates, collapse, fit_text, peak_place, rates, schedule_label, short_name, wall_shares
from memwall.record.profile import Profile
from memwall.report.document import Block, Column, Table
from memwall.simulate.memory import alive_at_peak
from memwall.simulate.schedule import Schedule

MATRIX_NOTE = (
    "limited by: what most of its time waits for; "
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
    """Samples and tokens per second; of a program of many GPUs the rates of all, and what each has a share of."""
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
        col.text("memory", held),
        col.si("bytes", "B", [*held.values()]),
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
