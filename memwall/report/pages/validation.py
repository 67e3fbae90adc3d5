"""Measured next to modeled times: executors, classes, kernels, and the same groups under each executor.

Errors come first: kernels measured faster than the bound, and samples in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import memwall.report.columns as col
from memwall.analysis.savings import group_name
from memwall.analysis.validation import GroupTimes, MeasuredDevice, MeasuredRun, Pair, Share, devices
from memwall.core.units import bandwidth, duration, percent, size
from memwall.record.kernels import NO_MODULE, collapse
from memwall.record.profile import Profile
from memwall.report.document import Block, Facts, Section, Sentence, Table, clean, known_facts
from memwall.report.pages.fusion import cut_name

#: rows of the tables of violations and of reasons why a kernel has no time; characters of shapes, or of a fact
MAX_VIOLATIONS, MAX_LOST, LONGEST_SHAPES = 20, 12, 160

#: how a name of an environment ends -> its number as text
UNITS: Mapping[str, Callable[[float], str]] = {"_s": duration, "_bytes": size}
#: beyond any size or time
LARGEST = 1e21

RUN_NOTE = (
    "modeled, measured: summed over the timed kernels and their repeats; error: modeled over measured, less 1; |error|:"
    " median of the distinct kernels; of bound: speed of light over measured; of copy: bytes per second over what a"
    " large copy moves on this device; step: timed as a whole"
)
KERNEL_NOTE = (
    "xN: so many equal kernels in a step; measured: median of one launch; +-: half of its interval; in step: measured"
    " seconds of all repeats over the seconds of all timed kernels; error: modeled over measured, less 1"
)


def measured_sections(profile: Profile, *, top: int) -> list[Section]:
    """For each device the executors side by side, then each executor's classes and kernels."""
    sections: list[Section] = []
    for device in devices(profile):
        sections.append(_device_section(device, top))
        sections += [_run_section(device, run, top) for run in device.runs]
    return sections


def measured_answer(profile: Profile) -> list[Sentence]:
    """For each device what was measured beside what is modeled: of whole steps, else of the kernels that were timed."""
    found = []
    for device in devices(profile):
        steps = [
            (f"a step of {run.measurement.executor}", run.measurement.step.median_s, error)
            for run in device.runs
            if run.measurement.step and (error := run.step_error) is not None
        ]
        kernels = [
            (f"the timed kernels of {run.measurement.executor}", run.total.measured_s, run.total.error)
            for run in device.runs
        ]
        told = [
            f"{what} took {duration(time_s)}, modeled as {duration(time_s * (1 + error))}"
            f" ({percent(abs(error))} {'more' if error > 0 else 'less'})"
            for what, time_s, error in steps or kernels
            if error is not None
        ]
        if told:
            found.append(Sentence(f"Measured on {device.name}: {'; '.join(told)}.", strong=True))
    return found


def _device_section(device: MeasuredDevice, top: int) -> Section:
    blocks: list[Block] = [*_violations(device), *_doubts(device), _facts(device), _run_table(device)]
    if device.same_groups:
        like = [*(r.seconds for r in device.same_groups), *(r.versus_seconds for r in device.same_groups)]
        rows = [
            (f"{r.executor} / {r.versus}", r.groups, r.ratio, r.geomean, r.worst, r.slower) for r in device.same_groups
        ]
        columns = [
            *col.of(rows, "first / second: 0, groups: 1 count"),
            col.seconds("first", [r.seconds for r in device.same_groups], like=like),
            col.seconds("second", [r.versus_seconds for r in device.same_groups], like=like),
            *col.of(rows, "ratio: 2 ratio, geomean: 3 ratio, worst: 4 ratio, slower: 5 count"),
        ]
        blocks += [col.table("The same groups of ops", columns, EXECUTOR_NOTE), _group_table(device.groups, top)]
    return Section(f"Measured on {device.name}, modeled as {device.gpu}", blocks)


#: Why a CPU's kernels may beat ceilings that were measured on it.
CALIBRATED_BUSY = (
    "the ceilings were measured while the machine was busier than now, and the modeled times say too little; run"
    " memwall calibrate again, on an idle machine"
)


def _violations(device: MeasuredDevice) -> list[Block]:
    found = [(run, pair) for run in device.runs for pair in run.violations]
    if not found:
        return []
    found.sort(key=lambda item: -item[1].of_bound)
    kernels = "1 kernel was" if len(found) == 1 else f"{len(found)} kernels were"
    cause = "model error" if not device.is_cpu else CALIBRATED_BUSY
    text = f"{kernels} measured faster than the roofline bound allows (above 100 % of bound): {cause}."
    pairs = [pair for _, pair in found[:MAX_VIOLATIONS]]
    columns = [
        col.text("executor", [run.measurement.executor for run, _ in found[:MAX_VIOLATIONS]]),
        *_name_columns(pairs),
        col.names("shapes", [pair.shape[:LONGEST_SHAPES] for pair in pairs]),
        *col.of(pairs, "bound: kernel.bound_s s, measured: measured_s s, of bound: of_bound %"),
    ]
    table = col.table("Faster than the roofline bound", columns, left=len(found) - len(pairs))
    return [Sentence(text, strong=True), table]


def _doubts(device: MeasuredDevice) -> Iterator[Sentence]:
    """One loud sentence for each reason to doubt an executor's samples."""
    for run in device.runs:
        name = run.measurement.executor
        for flag, count in run.flags.items():
            yield Sentence(f"IN DOUBT, {name}: {clean(flag)} ({count:,} of {len(run.pairs):,} kernels).", strong=True)
        if not run.measurement.complete:
            yield Sentence(f"CUT SHORT, {name}: not all kernels were reached.", strong=True)


def _facts(device: MeasuredDevice) -> Facts:
    measurements = [run.measurement for run in device.runs]
    rates = dict.fromkeys(bandwidth(m.copy_bytes_per_s) for m in measurements if m.copy_bytes_per_s)
    environment: dict[str, str] = {}
    for m in measurements:
        environment |= _plain_facts(m.environment)
    return known_facts(
        ("copy bandwidth", ", ".join(rates) or "not measured"),
        ("environment", ", ".join(f"{name} {value}" for name, value in environment.items())),
        *((f"no {m.executor} step", m.step_reason) for m in measurements if m.step is None),
    )


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


def _run_table(device: MeasuredDevice) -> Table:
    runs = device.runs
    steps = [run.measurement.step.median_s if run.measurement.step else None for run in runs]
    # kernels of the step that the times represent, of how many
    whole = [sum(p.kernel.repeats for p in r.pairs) if r.step_kernels is None else r.step_kernels for r in runs]
    reached = [f"{run.total.kernels:,}/{count:,}" for run, count in zip(runs, whole, strict=True)]
    columns = [
        *col.of(runs, "executor: measurement.executor"),
        col.text("kernels", reached),
        *_share_columns([run.total for run in runs]),
        *col.of(runs, "streaming: streaming_of_copy %"),
    ]
    note = RUN_NOTE
    if any(steps):
        eager = next((s for run, s in zip(runs, steps, strict=True) if run.measurement.executor == "eager"), None)
        columns += [
            col.seconds("step", steps),
            *col.of(runs, "error: step_error error"),
            col.ratio("of eager", [eager / step if eager and step else None for step in steps]),
        ]
        note += "; of eager: how many times faster than the eager step"
    if any(run.streaming for run in runs):
        note += "; streaming: geomean of copy over kernels of 64 MB or more without matrix work"
    return col.table("Executors", col.known(columns), note)


def _share_columns(rows: Sequence[Share]) -> list[col.CellColumn]:
    like = [*(r.modeled_s for r in rows), *(r.measured_s for r in rows)]
    return [
        col.seconds("modeled", [r.modeled_s for r in rows], like=like),
        col.seconds("measured", [r.measured_s for r in rows], like=like),
        *col.of(rows, "error error, |error|: median_error %, of bound: of_bound %, of copy: of_copy %"),
    ]


def _run_section(device: MeasuredDevice, run: MeasuredRun, top: int) -> Section:
    blocks: list[Block] = []
    if run.measured:
        classes = [*col.of(run.classes, "class: key, kernels count, distinct count"), *_share_columns(run.classes)]
        longest = sorted(run.measured, key=lambda pair: (-pair.step_s, pair.kernel.id))
        blocks += [col.table("By class", col.known(classes)), _kernel_table(run, longest, top)]
    if run.lost:
        specs = "status: 0, kernels: 2 count, bytes: 3 B, reason: 1 prose"
        left = len(run.lost) - MAX_LOST
        blocks.append(col.listing("Without a time", run.lost[:MAX_LOST], specs, left=left))
    m = run.measurement
    return Section(
        f"{device.name}: {m.executor}, groups of policy {m.policy}", blocks or [Sentence("It has no kernels.")]
    )


def _kernel_table(run: MeasuredRun, longest: Sequence[Pair], top: int) -> Table:
    pairs = longest[:top]
    timings = [pair.timing for pair in pairs]
    columns = [
        *_name_columns(pairs),
        *col.of(pairs, "dtype?, schedule: kernel.schedule?, bytes: kernel.bytes B?"),
        *col.of(pairs, "modeled: kernel.modeled_s s like measured_s, measured: measured_s s"),
        col.percent("+-", [(t.high_s - t.low_s) / 2 / t.median_s if t else None for t in timings]),
        col.percent("in step", [pair.step_s / run.total.measured_s for pair in pairs]),
        *col.of(pairs, "error error, of bound: of_bound %, of copy: of_copy %"),
    ]
    shown = [c for c in columns if set(c[1]) not in ({col.NOTHING}, {""}) or not c[0].heading]
    return col.table("Kernels that take longest", shown, KERNEL_NOTE, left=len(longest) - len(pairs))


EXECUTOR_NOTE = (
    "ratio of the sums over all repeats, geomean and worst of the distinct groups, above 1: faster; slower: groups"
    " whose intervals do not meet; eager: the measured eager kernels of the group's ops, summed"
)
GROUP_NOTE = "medians of one launch; xN: so many equal groups in a step; the last columns: how many times faster"


def _group_table(groups: Sequence[GroupTimes], top: int) -> Table:
    shown = groups[:top]
    pairs = [group.pair for group in shown]
    executors = [name for name in ("eager", "inductor", "generated") if any(name in g.times for g in shown)]
    medians = {n: [g.times[n].median_s if n in g.times else None for g in shown] for n in executors}
    like = [value for values in medians.values() for value in values]
    columns = [
        *_name_columns(pairs),
        *col.of(pairs, "bytes: kernel.bytes B"),
        col.seconds("modeled", [pair.kernel.modeled_s for pair in pairs], like=like),
        *(col.seconds(name, medians[name], like=like) for name in executors),
        *(
            col.ratio(f"/{versus}", [g.ratio(name, versus) for g in shown], name)
            for name, versus in (("inductor", "eager"), ("generated", "eager"), ("generated", "inductor"))
            if any(g.ratio(name, versus) for g in shown)
        ),
    ]
    return col.table("Groups that take longest", columns, GROUP_NOTE, left=len(groups) - len(shown))


def _name_columns(pairs: Sequence[Pair]) -> list[col.CellColumn]:
    """Which kernels: name, repeats, module; the module of equal ones has its numbers as stars."""
    modules = [collapse(p.module) if p.kernel.repeats > 1 else p.module for p in pairs]
    return [
        col.names("kernel", [cut_name(group_name(p.op_names or [p.kernel.name])) for p in pairs]),
        *col.of(pairs, ": kernel.repeats repeats"),
        col.optional(col.names("module", [module or NO_MODULE for module in modules])),
    ]
