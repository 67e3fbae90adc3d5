"""What a clock said beside what the model said: executors, classes, kernels, and the same groups under each executor.

First of all stands what is wrong: kernels measured faster than our speed of light, and samples in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memwall.analysis.validation import Device, Pair, Run, Share, devices
from memwall.core.units import bandwidth, duration, size
from memwall.record.profile import Profile
from memwall.report.columns import (
    NOTHING,
    CellColumn,
    Numbers,
    percent_column,
    plain_column,
    seconds_column,
    si_column,
    times_column,
)
from memwall.report.document import Column, Facts, Section, Sentence, Table, clean, optional, table, text_column
from memwall.report.pages.ab import contest_table, group_table, name_columns
from memwall.report.pages.fusion import rows_left

Block = Table | Facts | Sentence

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
    if device.contests:
        blocks.append(contest_table(device.contests))
        blocks.append(group_table(device.groups[:top], device.groups[top:]))
    return Section(clean(f"Measured on {device.name}, modeled as {device.gpu}"), tuple(blocks))


def _violations(device: Device) -> list[Block]:
    """The kernels that were faster than our speed of light: a sentence and a table, or nothing."""
    found = [(run, pair) for run in device.runs for pair in run.violations]
    if not found:
        return []
    found.sort(key=lambda item: -(item[1].of_bound or 0.0))
    kernels = "1 kernel was" if len(found) == 1 else f"{len(found)} kernels were"
    text = f"OUR ERROR: {kernels} measured faster than our speed of light (above 100 % of bound)."
    shown = found[:MAX_VIOLATIONS]
    pairs = [pair for _, pair in shown]
    columns = [
        text_column("executor", [run.measurement.executor for run, _ in shown]),
        *name_columns(pairs),
        text_column("shapes", [pair.shapes[:LONGEST_SHAPES] for pair in pairs], flexible=True),
        seconds_column("bound", [pair.kernel.bound_s for pair in pairs]),
        seconds_column("measured", [pair.measured_s for pair in pairs]),
        percent_column("of bound", [pair.of_bound for pair in pairs]),
    ]
    more = f"and {rows_left(len(found) - len(shown))}" if len(found) > len(shown) else ""
    return [Sentence(text, strong=True), table("Faster than our speed of light", columns, more)]


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
        text_column("executor", [run.measurement.executor for run in runs]),
        text_column("kernels", [_reached(run) for run in runs]),
        *_time_columns(totals),
        *_fraction_columns(totals),
        percent_column("streaming", [run.streaming_of_copy for run in runs]),
    ]
    if any(steps):
        columns += [
            seconds_column("step", steps),
            error_column("error", [run.step_error for run in runs]),
            times_column("of eager", _speedups(runs, steps)),
        ]
    note = f"{RUN_NOTE}; of eager: how many times faster than the eager step" if any(steps) else RUN_NOTE
    if any(run.streaming for run in runs):
        note += "; streaming: geomean of copy over kernels of 64 MB or more without matrix work"
    return table("Executors", [c for c in columns if set(c[1]) != {NOTHING}], note)


def _reached(run: Run) -> str:
    """Kernels of the step that the times stand for, of how many."""
    whole = run.step_kernels if run.step_kernels is not None else sum(p.kernel.repeats for p in run.pairs)
    return f"{run.total.kernels:,}/{whole:,}"


def _speedups(runs: Sequence[Run], steps: Numbers) -> list[float | None]:
    eager = next((step for run, step in zip(runs, steps, strict=True) if run.measurement.executor == "eager"), None)
    return [eager / step if eager and step else None for step in steps]


def _time_columns(rows: Sequence[Share]) -> list[CellColumn]:
    like = [*(r.modeled_s for r in rows), *(r.measured_s for r in rows)]
    return [
        seconds_column("modeled", [r.modeled_s for r in rows], like=like),
        seconds_column("measured", [r.measured_s for r in rows], like=like),
        error_column("error", [r.error for r in rows]),
        percent_column("|error|", [r.median_error for r in rows]),
    ]


def _fraction_columns(rows: Sequence[Share]) -> list[CellColumn]:
    return [
        percent_column("of bound", [r.of_bound for r in rows]),
        percent_column("of copy", [r.of_copy for r in rows]),
    ]


def error_column(heading: str, values: Numbers) -> CellColumn:
    """A signed fraction in percent: ``+3.1``, ``-12.0``."""
    return Column(heading, "%"), [NOTHING if v is None else f"{100 * v:+,.1f}" for v in values]


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
        text_column("class", [r.key for r in rows]),
        plain_column("kernels", [r.kernels for r in rows]),
        plain_column("distinct", [r.distinct for r in rows]),
        *_time_columns(rows),
        *_fraction_columns(rows),
    ]
    return table("By class", [c for c in columns if set(c[1]) != {NOTHING}])


def kernel_table(run: Run, pairs: Sequence[Pair], more: Sequence[Pair] = ()) -> Table:
    """Kernels of one executor, repeats as one row."""
    measured = [pair.measured_s for pair in pairs]
    columns = [
        *name_columns(pairs),
        optional(text_column("dtype", [pair.dtype for pair in pairs])),
        optional(text_column("schedule", [pair.kernel.schedule for pair in pairs])),
        optional(si_column("bytes", "B", [pair.kernel.bytes for pair in pairs])),
        seconds_column("modeled", [pair.kernel.modeled_s for pair in pairs], like=measured),
        seconds_column("measured", measured),
        percent_column("+-", [_half_interval(pair) for pair in pairs]),
        percent_column("in step", [pair.step_s / run.total.measured_s for pair in pairs]),
        error_column("error", [pair.error for pair in pairs]),
        percent_column("of bound", [pair.of_bound for pair in pairs]),
        percent_column("of copy", [pair.of_copy for pair in pairs]),
    ]
    note = f"and {rows_left(len(more))}; {KERNEL_NOTE}" if more else KERNEL_NOTE
    shown = [c for c in columns if set(c[1]) not in ({NOTHING}, {""}) or not c[0].heading]
    return table("Kernels that take longest", shown, note)


def _half_interval(pair: Pair) -> float | None:
    """Half of the interval of the median, as a fraction of it."""
    return (pair.timing.high_s - pair.timing.low_s) / 2 / pair.timing.median_s if pair.timing else None


def lost_table(run: Run) -> Table:
    """Kernels that have no time, by status and reason."""
    shown, rest = run.lost[:MAX_LOST], run.lost[MAX_LOST:]
    columns = [
        text_column("status", [status for status, _, _, _ in shown]),
        plain_column("kernels", [count for _, _, count, _ in shown]),
        si_column("bytes", "B", [nbytes for _, _, _, nbytes in shown]),
        text_column("reason", [reason for _, reason, _, _ in shown], wraps=True),
    ]
    return table("Without a time", columns, f"and {rows_left(len(rest))}" if rest else "")
