"""Rows that add up: the one way to group, sum, sort and join; and the kernels of a schedule as such rows.

Conventions. A kernel belongs to the phase of its last op and to the module that all of its ops share. Kernels that
repeat (the same op on the same shapes in the same place of a repeated block) form one row with a count; all its figures
are sums over the repeats. A row's wall is the one that most of its time belongs to.

*Times fewer FLOP/s*: the FLOP/s that the matrix classes (contraction, convolution, attention: what MFU counts)
attain together, over the FLOP/s that a class attains. None for the matrix classes themselves, and for a class that does
less than one FLOP per hundred bytes: it moves data, and a ratio would mean nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self, TypeVar

from memwall.analysis.problems import Problems
from memwall.analysis.quantities import SORT_KEYS
from memwall.core.errors import UsageError
from memwall.core.graph import PHASES, SERVING
from memwall.ops.registry import class_order
from memwall.perfmodel.roofline import Estimate
from memwall.record.kernels import (
    NO_MODULE,
    collapse,
    common_module,
    kernel_module,
    kernel_phase,
    phase_name,
    shapes_text,
)
from memwall.record.profile import Profile
from memwall.simulate.plan_context import MODEL_CLASSES
from memwall.simulate.schedule import Schedule, time_by_wall

#: FLOP per byte below which a class moves data rather than computes
LEAST_INTENSITY = 0.01

#: the row that collects the rest
OTHERS = "(others)"

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
K = TypeVar("K", bound=Hashable)


# -- any rows ----------------------------------------------------------------------------------------------------------


def group_by(rows: Iterable[T], keys: Iterable[K]) -> dict[K, list[T]]:
    """The rows of each key, keys in order of first appearance; ``keys`` has one for each row."""
    groups: dict[K, list[T]] = {}
    for row, key in zip(rows, keys, strict=True):
        groups.setdefault(key, []).append(row)
    return groups


def sums(rows: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """The sum of each named attribute."""
    return {name: sum(map(attrgetter(name), rows)) for name in names}


def merged(rows: Sequence[T], names: Sequence[str], **changes: Any) -> T:
    """The first of some rows (dataclasses) with the named attributes summed over all of them."""
    first: Any = rows[0]
    result: T = dataclasses.replace(first, **sums(rows, names), **changes)
    return result


def summed(rows: Sequence[T], keys: Iterable[K], names: Sequence[str]) -> list[T]:
    """The rows of equal key merged: the first of each, with the named attributes summed."""
    return [merged(own, names) for own in group_by(rows, keys).values()]


def join(before: Mapping[K, A], after: Mapping[K, B]) -> Iterator[tuple[K, A | None, B | None]]:
    """Each key of either side with both values, the keys of ``before`` first."""
    for key in dict.fromkeys((*before, *after)):
        yield key, before.get(key), after.get(key)


def share(part: float, whole: float) -> float:
    """A part of a whole; 0 of nothing."""
    return part / whole if whole else 0.0


# -- kernels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over some kernels: launches, FLOPs, compulsory DRAM bytes, seconds."""

    launches: int
    flops: int
    read_bytes: int
    write_bytes: int
    bound_s: float
    time_s: float
    low_s: float
    high_s: float
    compute_s: float
    memory_s: float
    latency_s: float
    overhead_s: float
    #: the wall that most of the time belongs to
    limited_by: str

    @classmethod
    def of(cls, rows: Sequence[Estimate | Sums], **more: Any) -> Self:
        """The sums of some kernels, or of some sums; ``more``: the fields that a subclass adds."""
        walls = time_by_wall(rows)
        return cls(**sums(rows, _SUMMED), limited_by=max(walls, key=walls.__getitem__), **more)

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.write_bytes

    @property
    def arithmetic_intensity(self) -> float:
        """FLOP per compulsory DRAM byte; 0 where nothing moves."""
        return share(self.flops, self.bytes)

    @property
    def attained_flop_per_s(self) -> float:
        return share(self.flops, self.time_s)

    @property
    def interval_s(self) -> tuple[float, float]:
        return self.low_s, self.high_s


_SUMMED = tuple(field.name for field in dataclasses.fields(Sums) if field.name != "limited_by")


@dataclass(frozen=True, slots=True)
class TableRow(Sums):
    """A class, a phase or a module: its kernels together, and their shares of ``whole``, all rows of the table."""

    key: str
    whole: Sums
    #: how many times fewer FLOP/s than the matrix classes; set for classes only
    times_fewer: float | None = None
    #: whether formulas model all of it
    modeled: bool = True

    @property
    def flop_share(self) -> float:
        return share(self.flops, self.whole.flops)

    @property
    def byte_share(self) -> float:
        return share(self.bytes, self.whole.bytes)

    @property
    def time_share(self) -> float:
        return share(self.time_s, self.whole.time_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow(TableRow):
    """One kernel, or ``count`` equal ones; its key is the kernel's name."""

    op_class: str
    phase: str
    module: str
    shapes: str
    #: M, N, K of a product and the like: :mod:`memwall.analysis.problems`
    problem: str
    count: int

    @property
    def name(self) -> str:
        return self.key


def _rows(schedule: Schedule, keys: Iterable[str]) -> list[TableRow]:
    """One row per distinct key, in order of first appearance. ``keys`` has one for each kernel of the schedule."""
    groups = group_by(schedule.kernels, keys)
    whole = Sums.of([Sums.of(kernels) for kernels in groups.values()])
    return [TableRow.of(kernels, key=key, whole=whole) for key, kernels in groups.items()]


def class_rows(profile: Profile, schedule: Schedule) -> tuple[TableRow, ...]:
    """Rows by op class, in the order in which the registry lists the classes."""
    rows = _rows(schedule, [kernel.op_class for kernel in schedule.kernels])
    matrix = sums([row for row in rows if row.key in MODEL_CLASSES], ("flops", "time_s"))
    matrix_rate = share(matrix["flops"], matrix["time_s"])
    for i, row in enumerate(rows):
        computes = row.flops and row.flops >= LEAST_INTENSITY * row.bytes and row.key not in MODEL_CLASSES
        if computes and matrix_rate:
            rows[i] = dataclasses.replace(row, times_fewer=matrix_rate / row.attained_flop_per_s)
    return tuple(sorted(rows, key=lambda row: class_order(row.key)))


def phase_rows(profile: Profile, schedule: Schedule) -> tuple[TableRow, ...]:
    """Rows by phase: forward (or prefill, or decode), backward, optimizer."""
    rows = _rows(schedule, [kernel_phase(profile, schedule, kernel) for kernel in schedule.kernels])
    return tuple(sorted(rows, key=lambda row: (*SERVING, *PHASES).index(row.key)))


def module_rows(profile: Profile, schedule: Schedule) -> tuple[TableRow, ...]:
    """Rows by the module that a kernel is in, repeated blocks as one (``layers.*.attn``), longest time first;
    :mod:`memwall.analysis.modules` has the modules with all that is inside them."""
    rows = _rows(
        schedule, [collapse(kernel_module(profile, schedule, kernel)) or NO_MODULE for kernel in schedule.kernels]
    )
    return tuple(sorted(rows, key=lambda row: (-row.time_s, row.key)))


def equal_kernels(profile: Profile, graph: int, kernels: Sequence[Estimate]) -> list[tuple]:
    """For each kernel the key of what it repeats: name, class, phase, module with its numbers as stars, shapes."""
    ops, values = profile.graphs[graph].ops, profile.graphs[graph].values
    starred: dict[str, str] = {}
    keys: list[tuple] = []
    for kernel in kernels:
        members = [ops[i] for i in kernel.op_ids]
        module = members[0].module if len(members) == 1 else common_module([op.module for op in members])
        if module not in starred:
            starred[module] = collapse(module)
        shapes = tuple([values[i].spec for op in members for i in op.inputs])
        phase = phase_name(profile, members[0].phase)
        keys.append(
            (
                kernel.name,
                kernel.op_class,
                phase,
                starred[module],
                shapes,
                kernel.flops,
                kernel.read_bytes,
                kernel.write_bytes,
            )
        )
    return keys


def kernel_rows(profile: Profile, schedule: Schedule, *, sort: str = "time") -> tuple[KernelRow, ...]:
    """The kernels, repeated ones as one row, largest first by ``sort``. Raises UsageError: ``sort`` is not a sort
    key."""
    if sort not in SORT_KEYS:
        raise UsageError(f"cannot sort by {sort!r}; choose one of {', '.join(SORT_KEYS)}")
    rows = [row for row, _ in rows_and_kernels(profile, schedule)]
    quantity = SORT_KEYS[sort]
    rows.sort(key=lambda row: (-quantity.of(row), row.name, row.module, row.phase, row.shapes, row.problem))
    return tuple(rows)


def rows_and_kernels(profile: Profile, schedule: Schedule) -> list[tuple[KernelRow, list[Estimate]]]:
    """Each row of :func:`kernel_rows` with the kernels that it sums, in the order of the first launches."""
    whole = dataclasses.replace(Sums.of(schedule.kernels), time_s=schedule.totals.time_s)
    problems = Problems(profile.graphs[schedule.graph], profile.costs[schedule.graph])
    equal = equal_kernels(profile, schedule.graph, schedule.kernels)
    keys = zip(equal, (problems.of(kernel.op_ids) for kernel in schedule.kernels), strict=True)
    groups = group_by(schedule.kernels, keys)
    return [
        (_kernel_row(profile, schedule, kernels, whole, problem), kernels) for (_, problem), kernels in groups.items()
    ]


def _kernel_row(
    profile: Profile, schedule: Schedule, kernels: Sequence[Estimate], whole: Sums, problem: str
) -> KernelRow:
    kernel = kernels[0]
    graph, costs = profile.graphs[schedule.graph], profile.costs[schedule.graph]
    module = kernel_module(profile, schedule, kernel)
    specs = [graph.values[i].spec for op_id in kernel.op_ids for i in graph.ops[op_id].inputs]
    return KernelRow.of(
        kernels,
        key=kernel.name,
        whole=whole,
        modeled=all(costs[i].modeled for i in kernel.op_ids),
        op_class=kernel.op_class,
        phase=kernel_phase(profile, schedule, kernel),
        module=collapse(module) if len(kernels) > 1 else module,
        shapes=shapes_text(specs),
        problem=problem,
        count=len(kernels),
    )
