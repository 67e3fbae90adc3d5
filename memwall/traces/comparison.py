"""Traces next to each other, and a trace next to the model: the same ops in several columns of time.

Ops are matched by name and shapes, GPU rows without an op by their kernel. A column is a trace as measured, or the
model's time for the ops of a trace on a GPU; of the latter, ops without a formula have none, and are compared nowhere.
If every trace has ``ProfilerStep`` annotations, times and counts are per step, else of the whole trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, ClassVar

from memwall.analysis.table import group_by
from memwall.core.structure import one_of, write
from memwall.core.version import __version__
from memwall.hardware.gpu import Gpu
from memwall.perfmodel.roofline import LINK
from memwall.traces.analysing import analyse
from memwall.traces.analysis import TraceAnalysis
from memwall.traces.attained import RowKind, TraceRows
from memwall.traces.reading import ran_on

SCHEMA = "memwall.trace_comparison/1"
NOT_MODELED = "not modeled"
CHANGES = ("slower", "faster", "new", "gone", "equal", NOT_MODELED)
#: a difference below this share of an op's time, or this share of all time, is none
_LEAST_CHANGE, _LEAST_SHARE = 0.02, 1e-4

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class TraceColumn:
    """A trace as measured on a GPU, or what the model says for it; its figures are divided by ``steps``."""

    label: str
    path_name: str = field(metadata={"key": "trace"})
    gpu: str
    what: str  # "measured" or "modeled"
    steps: int
    kernels: float
    time_s: float


@dataclass(frozen=True, slots=True)
class OpChange:
    """One op (name and shapes) in each column: executions, seconds and the kernel that took most of them; None where
    the column does not have it."""

    name: str = field(metadata={"key": "op"})
    shapes: str
    op_class: str = field(metadata={"key": "class"})
    #: "slower", "faster", "new", "gone", "equal" or "not modeled", the last column compared with the first
    change: Annotated[str, one_of(CHANGES)]
    counts: tuple[float | None, ...]
    times_s: tuple[float | None, ...]
    kernels: tuple[str, ...]

    @property
    def difference_s(self) -> float:
        """Seconds of the last column less the seconds of the first; 0 where they cannot be compared."""
        return 0.0 if self.change == NOT_MODELED else (self.times_s[-1] or 0.0) - (self.times_s[0] or 0.0)


@dataclass(frozen=True)
class TraceComparison:
    """``ops`` by the size of their difference, ``classes``: op class -> seconds in each column, ops that are not
    modeled apart."""

    SAVED: ClassVar = ("per_step", "columns", "compared_s", "classes", "ops", "notes")

    columns: tuple[TraceColumn, ...]
    ops: tuple[OpChange, ...]
    classes: Mapping[str, tuple[float, ...]] = field(metadata={"key": "by_class_s"})
    per_step: bool
    notes: tuple[str, ...]

    @property
    def compared_s(self) -> tuple[float, ...]:
        """Seconds of each column in the ops that are compared."""
        return tuple(
            sum(op.times_s[i] or 0.0 for op in self.ops if op.change != NOT_MODELED) for i in range(len(self.columns))
        )

    def to_dict(self) -> dict[str, Any]:
        """``memwall.trace_comparison/1``: plain JSON types in a fixed order."""
        return {"schema": SCHEMA, "memwall_version": __version__, **write(self)}


def compare_traces(analyses: Sequence[TraceAnalysis]) -> TraceComparison:
    """Traces as measured, two or more, the first the base."""
    per_step = all(analysis.trace.steps for analysis in analyses)
    sides = [_Side(analysis, "measured", len(analysis.trace.steps) if per_step else 1) for analysis in analyses]
    notes = [f"{side.analysis.trace.path_name}: {note}" for side in sides for note in side.analysis.trace.notes]
    return _compared(sides, per_step, tuple(dict.fromkeys(notes)))


def compare_with_model(analysis: TraceAnalysis, gpus: Sequence[Gpu]) -> TraceComparison:
    """A trace as measured, and the model's time for its ops on each GPU."""
    steps = len(analysis.trace.steps) or 1
    others = [analysis if gpu.name == analysis.gpu.name else analyse(analysis.trace, gpu) for gpu in gpus]
    sides = [_Side(analysis, "measured", steps), *(_Side(other, "modeled", steps) for other in others)]
    note = "of what crosses a link only the bandwidth is modeled, not the wait: not compared"
    crosses = bool(analysis.rows.where(_crosses))
    return _compared(sides, bool(analysis.trace.steps), (note,) * crosses)


@dataclass(frozen=True)
class _Side:
    analysis: TraceAnalysis
    what: str
    steps: int

    def seconds(self, rows: TraceRows) -> float | None:
        """The time of some rows of one op per step; None if the model does not know it."""
        if self.what == "measured":
            return rows.measured_s / self.steps
        if rows.where(lambda kind: kind.modeled_s is None or _crosses(kind)):
            return None
        return sum(rows.values("modeled_s"), 0.0) / self.steps

    def column(self, label: str, time_s: float) -> TraceColumn:
        trace = self.analysis.trace
        kernels = len(trace.kernels) / self.steps
        gpu = ran_on(trace) if self.what == "measured" else ""
        return TraceColumn(
            label, trace.path_name, gpu or self.analysis.gpu.name, self.what, self.steps, kernels, time_s
        )


def _crosses(kind: RowKind) -> bool:
    return kind.wall == LINK


def _compared(sides: Sequence[_Side], per_step: bool, notes: tuple[str, ...]) -> TraceComparison:
    groups = [side.analysis.rows.groups(attrgetter("key")) for side in sides]
    keys = list(dict.fromkeys(key for rows in groups for key in rows))
    whole = max(side.analysis.measured_s / side.steps for side in sides)
    ops = [_change(key, sides, [rows.get(key) for rows in groups], whole) for key in keys]
    ops.sort(key=lambda op: (-abs(op.difference_s), -max(t or 0.0 for t in op.times_s), op.name, op.shapes))
    classes: dict[str, tuple[float, ...]] = {}
    kinds = [NOT_MODELED if op.change == NOT_MODELED else op.op_class for op in ops]
    for name, own in sorted(group_by(ops, kinds).items()):
        classes[name] = tuple(sum(op.times_s[i] or 0.0 for op in own) for i in range(len(sides)))
    order = sorted(classes, key=lambda name: (-max(classes[name]), name))
    totals = [sum(op.times_s[i] or 0.0 for op in ops) for i in range(len(sides))]
    columns = tuple(side.column(chr(ord("A") + i), totals[i]) for i, side in enumerate(sides))
    return TraceComparison(columns, tuple(ops), {name: classes[name] for name in order}, per_step, notes)


def _change(key: Key, sides: Sequence[_Side], rows: Sequence[TraceRows | None], whole: float) -> OpChange:
    times = tuple(side.seconds(own) if own else None for side, own in zip(sides, rows, strict=True))
    counts = tuple(len(own) / side.steps if own else None for side, own in zip(sides, rows, strict=True))
    op_class = next(own[0].op_class for own in rows if own)
    kernels = tuple(
        _longest_kernel(own) if own and side.what == "measured" else "" for side, own in zip(sides, rows, strict=True)
    )
    is_unknown = any(own and time is None for own, time in zip(rows, times, strict=True))
    change = NOT_MODELED if is_unknown else _word(times[0], times[-1], whole)
    return OpChange(key[0], key[1], op_class, change, counts, times, kernels)


def _word(before: float | None, after: float | None, whole: float) -> str:
    """How the last column differs from the first."""
    if before is None or after is None:
        return "gone" if after is None else "new"
    difference = after - before
    if abs(difference) <= max(_LEAST_CHANGE * before, _LEAST_SHARE * whole):
        return "equal"
    return "slower" if difference > 0 else "faster"


def _longest_kernel(rows: TraceRows) -> str:
    """The name of the kernel that took most of the time of an op."""
    times: dict[str, float] = {}
    kernels = rows.launches.trace.kernels
    for number in rows.kernels():
        name = kernels.kind_of(number).name
        times[name] = times.get(name, 0.0) + kernels.dur_us[number]
    return max(times, key=times.__getitem__)
