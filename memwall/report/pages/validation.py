"""Measured next to modeled times: executors, classes, kernels, and the same groups under each executor.

Errors come first: kernels measured faster than the bound, and samples in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import memwall.report.columns as col
from memwall.analysis.savings import group_name
from memwall.analysis.validation import Device, GroupTimes, Pair, Run, SameGroups, Share, devices
from memwall.core.units import bandwidth, duration, size
from memwall.record.kernels import collapse
from memwall.record.profile import Profile
from memwall.report.document import Block, Facts, Section, Sentence, Table, clean
from memwall.report.pages.fusion import cut_name

#: Rows of the tables of kernels and groups, of violations, and of reasons why a kernel has no time.
DEFAULT_TOP, MAX_VIOLATIONS, MAX_LOST = 15, 20, 12
#: Characters of a list of shapes, or of a fact.
LONGEST_SHAPES = 160

#: how a name of an environment ends -> its number as text
UNITS: Mapping[str, Callable[[float], str]] = {"_s": duration, "_bytes": size}
#: beyond any size or time
LARGEST = 1e21

RUN_NOTE = (
    "modeled, measured: summed over the timed kernels and their repeats; error: modeled over measured, less 1; |error|:"
    " median of the distinct kernels; of bound: speed of light over measured; of copy: bytes per second over those of a"
    " large copy on this device; step: timed as a whole"
)
KERNEL_NOTE = (
    "xN: so many equal kernels in a step; measured: median of one launch; +-: half of its interval; in step: measured"
    " seconds of all repeats over those of all timed kernels; error: modeled over measured, less 1"
)


def measured_sections(profile: Profile, *, top: int = DEFAULT_TOP) -> tuple[Section, ...]:
    """For each device the executors side by side, then each executor's classes and kernels."""
    sections: list[Section] = []
    for device in devices(profile):
        sections.append(_device_section(device, top))
        sections += [_run_section(device, run, top) for run in device.runs]
    return tuple(sections)


# -- a device ----------------------------------------------------------------------------------------------------------


def _device_section(device: Device, top: int) -> Section:
    blocks: list[Block] = [*_violations(device), *_doubts(device), Facts(_facts(device)), run_table(device)]
    if device.same_groups:
        blocks.append(executor_table(device.same_groups))
        blocks.append(group_table(device.groups[:top], device.groups[top:]))
    return Section(clean(f"Measured on {device.name}, modeled as {device.gpu}"), tuple(blocks))


def _violations(device: Device) -> list[Block]:
    """The kernels that were faster than the bound: a sentence and a table, or nothing."""
    found = [(run, pair) for run in device.runs for pair in run.violations]
    if not found:
        return []
    found.sort(key=lambda item: -item[1].of_bound)
    kernels = "1 kernel was" if len(found) == 1 else f"{len(found)} kernels were"
    text = f"{kernels} measured faster than the roofline bound allows (above 100 % of bound): model error."
    shown = found[:MAX_VIOLATIONS]
    pairs = [pair for _, pair in shown]
    columns = [
        col.text("executor", [run.measurement.executor for run, _ in shown]),
        *name_columns(pairs),
        col.names("shapes", [pair.shape[:LONGEST_SHAPES] for pair in pairs]),
        col.seconds("bound", [pair.kernel.bound_s for pair in pairs]),
        col.seconds("measured", [pair.measured_s for pair in pairs]),
        col.percent("of bound", [pair.of_bound for pair in pairs]),
    ]
    return [
        Sentence(text, strong=True),
        col.table("Faster than the roofline bound", columns, left=len(found) - len(shown)),
    ]


def _doubts(device: Device) -> list[Sentence]:
    """One loud sentence for each reason to doubt an executor's samples."""
    sentences = []
    for run in device.runs:
        name = run.measurement.executor
        for flag, count in run.flags.items():
            of = f"{count:,} of {len(run.pairs):,} kernels"
            sentences.append(Sentence(f"IN DOUBT, {name}: {clean(flag)} ({of}).", strong=True))
        if not run.measurement.complete:
            sentences.append(Sentence(f"CUT SHORT, {name}: not all kernels were reached.", strong=True))
    return sentences


def _facts(device: Device) -> tuple[tuple[str, str], ...]:
    copies = {run.measurement.executor: run.measurement.copy_bytes_per_s for run in device.runs}
    rates = dict.fromkeys(bandwidth(rate) for rate in copies.values() if rate)
    facts = [("copy bandwidth", ", ".join(rates) or "not measured")]
    environment: dict[str, str] = {}
    for run in device.runs:
        environment |= _plain_facts(run.measurement.environment)
    facts.append(("environment", ", ".join(f"{name} {value}" for name, value in environment.items())))
    facts += [
        (f"no {run.measurement.executor} step", run.measurement.step_reason)
        for run in device.runs
        if run.measurement.step is None and run.measurement.step_reason
    ]
    return tuple((label, clean(text)) for label, text in facts if text)


def _plain_facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Names and numbers of an environment with their units; what is nested stays in the record."""
    facts = {}
    for name, value in environment.items():
        if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value == "":
            continue
        unit = next((suffix for suffix in UNITS if str(name).endswith(suffix)), None)
        if unit is None or isinstance(value, str) or not 0 <= value < LARGEST:
            facts[str(name).replace("_", " ")] = str(value)[:LONGEST_SHAPES]
        else:
            facts[str(name).removesuffix(unit).replace("_", " ")] = UNITS[unit](value)
    return facts


def run_table(device: Device) -> Table:
    """The executors of one device: sums over their kernels, and the whole step."""
    runs, totals = device.runs, [run.total for run in device.runs]
    steps = [run.measurement.step.median_s if run.measurement.step else None for run in runs]
    columns = [
        col.text("executor", [run.measurement.executor for run in runs]),
        col.text("kernels", [_reached(run) for run in runs]),
        *_time_columns(totals),
        *_fraction_columns(totals),
        col.percent("streaming", [run.streaming_of_copy for run in runs]),
    ]
    if any(steps):
        columns += [
            col.seconds("step", steps),
            col.error("error", [run.step_error for run in runs]),
            col.ratio("of eager", _speedups(runs, steps)),
        ]
    note = f"{RUN_NOTE}; of eager: how many times faster than the eager step" if any(steps) else RUN_NOTE
    if any(run.streaming for run in runs):
        note += "; streaming: geomean of copy over kernels of 64 MB or more without matrix work"
    return col.table("Executors", col.known(columns), note)


def _reached(run: Run) -> str:
    """Kernels of the step that the times represent, of how many."""
    whole = run.step_kernels if run.step_kernels is not None else sum(p.kernel.repeats for p in run.pairs)
    return f"{run.total.kernels:,}/{whole:,}"


def _speedups(runs: Sequence[Run], steps: col.Numbers) -> list[float | None]:
    eager = next((step for run, step in zip(runs, steps, strict=True) if run.measurement.executor == "eager"), None)
    return [eager / step if eager and step else None for step in steps]


def _time_columns(rows: Sequence[Share]) -> list[col.CellColumn]:
    like = [*(r.modeled_s for r in rows), *(r.measured_s for r in rows)]
    return [
        col.seconds("modeled", [r.modeled_s for r in rows], like=like),
        col.seconds("measured", [r.measured_s for r in rows], like=like),
        col.error("error", [r.error for r in rows]),
        col.percent("|error|", [r.median_error for r in rows]),
    ]


def _fraction_columns(rows: Sequence[Share]) -> list[col.CellColumn]:
    return [col.percent("of bound", [r.of_bound for r in rows]), col.percent("of copy", [r.of_copy for r in rows])]


# -- one executor ------------------------------------------------------------------------------------------------------


def _run_section(device: Device, run: Run, top: int) -> Section:
    blocks: list[Block] = []
    if run.measured:
        longest = sorted(run.measured, key=lambda pair: (-pair.step_s, pair.kernel.id))
        blocks += [share_table(run.classes), kernel_table(run, longest[:top], longest[top:])]
    if run.lost:
        blocks.append(lost_table(run))
    if not blocks:
        blocks.append(Sentence("It has no kernels."))
    m = run.measurement
    return Section(clean(f"{device.name}: {m.executor}, groups of policy {m.policy}"), tuple(blocks))


def share_table(rows: Sequence[Share]) -> Table:
    """Op classes of one executor."""
    columns = [
        col.text("class", [r.key for r in rows]),
        col.plain("kernels", [r.kernels for r in rows]),
        col.plain("distinct", [r.distinct for r in rows]),
        *_time_columns(rows),
        *_fraction_columns(rows),
    ]
    return col.table("By class", col.known(columns))


def kernel_table(run: Run, pairs: Sequence[Pair], more: Sequence[Pair] = ()) -> Table:
    """Kernels of one executor, repeats as one row."""
    measured = [pair.measured_s for pair in pairs]
    columns = [
        *name_columns(pairs),
        col.optional(col.text("dtype", [pair.dtype for pair in pairs])),
        col.optional(col.text("schedule", [pair.kernel.schedule for pair in pairs])),
        col.optional(col.si("bytes", "B", [pair.kernel.bytes for pair in pairs])),
        col.seconds("modeled", [pair.kernel.modeled_s for pair in pairs], like=measured),
        col.seconds("measured", measured),
        col.percent("+-", [_half_interval(pair) for pair in pairs]),
        col.percent("in step", [pair.step_s / run.total.measured_s for pair in pairs]),
        col.error("error", [pair.error for pair in pairs]),
        col.percent("of bound", [pair.of_bound for pair in pairs]),
        col.percent("of copy", [pair.of_copy for pair in pairs]),
    ]
    shown = [c for c in columns if set(c[1]) not in ({col.NOTHING}, {""}) or not c[0].heading]
    return col.table("Kernels that take longest", shown, KERNEL_NOTE, left=len(more))


def _half_interval(pair: Pair) -> float | None:
    """Half of the interval of the median, as a fraction of it."""
    return (pair.timing.high_s - pair.timing.low_s) / 2 / pair.timing.median_s if pair.timing else None


def lost_table(run: Run) -> Table:
    """Kernels that have no time, by status and reason."""
    shown, rest = run.lost[:MAX_LOST], run.lost[MAX_LOST:]
    columns = [
        col.text("status", [status for status, _, _, _ in shown]),
        col.plain("kernels", [count for _, _, count, _ in shown]),
        col.si("bytes", "B", [nbytes for _, _, _, nbytes in shown]),
        col.text("reason", [reason for _, reason, _, _ in shown], wraps=True),
    ]
    return col.table("Without a time", columns, left=len(rest))


# -- the same groups under several executors --------------------------------------------------------------------------

EXECUTOR_NOTE = (
    "ratio of the sums over all repeats, geomean and worst of the distinct groups, above 1: faster; slower: groups"
    " whose intervals do not meet; eager: the measured eager kernels of the group's ops, summed"
)
GROUP_NOTE = "medians of one launch; xN: so many equal groups in a step; the last columns: how many times faster"


def executor_table(rows: Sequence[SameGroups]) -> Table:
    """Executors compared over the groups that both ran."""
    like = [*(r.seconds for r in rows), *(r.versus_seconds for r in rows)]
    columns = [
        col.text("", [f"{r.executor} / {r.versus}" for r in rows]),
        col.plain("groups", [r.groups for r in rows]),
        col.seconds("first", [r.seconds for r in rows], like=like),
        col.seconds("second", [r.versus_seconds for r in rows], like=like),
        col.ratio("ratio", [r.ratio for r in rows]),
        col.ratio("geomean", [r.geomean for r in rows]),
        col.ratio("worst", [r.worst for r in rows]),
        col.plain("slower", [r.slower for r in rows]),
    ]
    return col.table("The same groups of ops", columns, EXECUTOR_NOTE)


def group_table(groups: Sequence[GroupTimes], more: Sequence[GroupTimes] = ()) -> Table:
    """Groups under each executor."""
    pairs = [group.pair for group in groups]
    executors = [name for name in ("eager", "inductor", "generated") if any(name in g.times for g in groups)]
    medians = {n: [g.times[n].median_s if n in g.times else None for g in groups] for n in executors}
    like = [value for values in medians.values() for value in values]
    columns = [
        *name_columns(pairs),
        col.si("bytes", "B", [pair.kernel.bytes for pair in pairs]),
        col.seconds("modeled", [pair.kernel.modeled_s for pair in pairs], like=like),
        *(col.seconds(name, medians[name], like=like) for name in executors),
        *(
            col.ratio(f"/{versus}", [g.ratio(name, versus) for g in groups], name)
            for name, versus in (("inductor", "eager"), ("generated", "eager"), ("generated", "inductor"))
            if any(g.ratio(name, versus) for g in groups)
        ),
    ]
    return col.table("Groups that take longest", columns, GROUP_NOTE, left=len(more))


def name_columns(pairs: Iterable[Pair]) -> list[col.CellColumn]:
    """Which kernels: name, repeats, module."""
    found = list(pairs)
    return [
        col.names("kernel", [cut_name(group_name(p.op_names or [p.kernel.name])) for p in found]),
        col.repeats(p.kernel.repeats for p in found),
        col.optional(col.names("module", [_module(p) for p in found])),
    ]


def _module(pair: Pair) -> str:
    """The module of a kernel; that of equal ones with its numbers as stars."""
    return (collapse(pair.module) if pair.kernel.repeats > 1 else pair.module) or "(top)"
