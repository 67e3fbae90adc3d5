"""Measurements on a device, as saved in a profile: one run of one executor, kernel by kernel.

``measurements`` of a record is a list of :meth:`Measurement.to_dict`. Times in seconds; ``low_s`` and ``high_s`` are
the ends of the interval of the median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from memwall.core.structure import BadRecord, above_0, at_least_1, finite, measurable, one_of, read, write

Measurable = Annotated[float, measurable]

#: executor -> the policy whose groups it runs: ``inductor`` compiles each group of memwall's planner with torch.compile
EXECUTORS: Mapping[str, str] = {"eager": "eager", "generated": "memwall", "inductor": "memwall"}

#: how the timing of one kernel ended
STATUSES = ("ok", "wrong", "failed", "timeout", "out of memory", "not generated", "skipped")

#: represents a deviation that is infinite or NaN in a record
_ENDLESS = 1e20


@dataclass(frozen=True, slots=True)
class Timing:
    """Median of ``samples`` timings of one thing, its interval, and the lowest and highest sample."""

    median_s: Annotated[float, above_0]
    low_s: Annotated[float, above_0]
    high_s: Annotated[float, above_0]
    samples: Annotated[int, at_least_1]
    min_s: Annotated[float, above_0]
    max_s: Annotated[float, above_0]

    def check(self) -> None:
        """Refuse figures that contradict each other."""
        if not self.min_s <= self.low_s <= self.median_s <= self.high_s <= self.max_s:
            raise BadRecord(": min_s, low_s, median_s, high_s, max_s are not in this order")


@dataclass(frozen=True, slots=True)
class Sensors:
    """Readings of the device's sensors during the samples; None where it has none. ``flags``: why a sample is in
    doubt (throttle reasons, other processes, contention)."""

    OMIT_DEFAULTS: ClassVar[bool] = True

    clock_hz: Measurable | None = None
    memory_clock_hz: Measurable | None = None
    power_w: Measurable | None = None
    temperature_c: Annotated[float, finite] | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """One kernel: modeled and measured.

    ``id`` is the kernel's in the simulation of the same policy, ``repeats`` the number of equal kernels of the
    step that this one represents. ``modeled_s``, its 80 % interval, ``bound_s``, bytes and FLOPs are of one launch.
    ``error`` is the worst deviation from float64 in units of the tolerance (below 1 passes), None when it was not
    checked.
    """

    OMIT_DEFAULTS: ClassVar[bool] = True

    id: int
    name: str
    op_ids: tuple[int, ...]
    op_class: str = field(metadata={"key": "class"})
    repeats: Annotated[int, at_least_1]
    flops: int
    bytes: int
    modeled_s: Measurable
    bound_s: Measurable
    status: Annotated[str, one_of(STATUSES)]
    reason: str = ""
    timing: Timing | None = None
    error: Measurable | None = None
    schedule: str = ""
    config: Mapping[str, int] = field(default_factory=dict)
    sensors: Sensors = Sensors()
    #: older records have none
    modeled_low_s: Measurable | None = None
    modeled_high_s: Measurable | None = None

    def __post_init__(self) -> None:
        if self.error is not None and not self.error < _ENDLESS:
            object.__setattr__(self, "error", _ENDLESS)

    def check(self) -> None:
        """Refuse a record whose figures contradict each other."""
        if self.status == "ok" and self.timing is None:
            raise BadRecord("is ok and has no timing")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One executor on one device. ``gpu`` is the name of the spec that modeled it; ``copy_bytes_per_s`` what a copy of
    large arrays reached here, 0 where that was not measured; ``step`` the whole step, None where it was not timed.
    ``environment``: versions and sizes, when it ran (``time``, UTC), the commit of the target's folder and whether
    files differed from it (``commit``, ``changes``; absent outside of a repository)."""

    device: str
    kind: str
    gpu: str
    executor: Annotated[str, one_of(EXECUTORS)]
    policy: str
    copy_bytes_per_s: Measurable = 0.0
    complete: bool
    environment: Mapping[str, Any] = field(default_factory=dict)
    step: Timing | None = None
    step_modeled_s: Measurable | None = None
    step_reason: str = ""
    kernels: tuple[MeasuredKernel, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types in the order of the format; what has its default is left out of kernels."""
        record: dict[str, Any] = write(self)
        return record

    @classmethod
    def from_dict(cls, record: Any, where: str = "measurement") -> Measurement:
        """The measurement of a parsed record.

        Raises:
            BadRecord: a key is missing or its value is of the wrong kind; names it.
        """
        return read(cls, record, where)


def check_measurements(records: Sequence[Any], ops: int) -> None:
    """Check the measurements of a record, whose graphs have so many ops. Raises ``BadRecord``: one is damaged, or has a
    kernel of ops that no graph has."""
    for i, record in enumerate(records):
        where = f"measurements[{i}]"
        for kernel in Measurement.from_dict(record, where).kernels:
            if not kernel.op_ids or max(kernel.op_ids) >= ops:
                raise BadRecord(f": kernel {kernel.id} has op_ids that the graph has not", f"{where}.kernels")
