"""What was modeled next to what was measured: one kernel, some kernels together, one run.

Conventions. An *error* is ``modeled / measured - 1``: above 0 the model is too slow. A kernel counts as measured only
if its status is ``ok``: the time of a wrong result does not count. A sum counts each kernel as often as the step runs
it; a median and a geometric mean count each distinct kernel once. A *violation* is a time below ``bound_s``, the
speed of light: a model error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from memwall.analysis.table import group_by
from memwall.ops.registry import class_order
from memwall.record.measurement import MeasuredKernel, Measurement, Timing
from memwall.simulate.plan_context import MODEL_CLASSES

#: groups that move at least this much are compared with the copy bandwidth
STREAMING_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class TimedRow:
    """One kernel, modeled and measured, here or by others. Seconds of one launch; what is not known is None or empty.
    ``measured_s`` is 0 if no timing counts. Of another project's data ``bound_s`` is also None if a kernel touches no
    more than twice the L2: it may beat the bound."""

    dataset: str
    gpu: str
    op_class: str
    dtype: str
    modeled_s: float
    measured_s: float
    bound_s: float | None = None
    #: identifies it within its class: the op's name first, if the class has several, then its sizes
    shape: str = ""
    #: the 80 % interval
    low_s: float | None = None
    high_s: float | None = None
    #: the largest term of the prediction; the larger of compute and bandwidth by the datasheet
    limited_by: str = ""
    datasheet_limit: str = ""
    #: the datasheet's roofline, and the same at common efficiencies with a constant overhead
    r0_s: float | None = None
    r1_s: float | None = None
    #: whether the constants are the GPU's own: yes, by architecture, by other instructions, datasheet only
    calibrated: str = ""
    #: seconds to which the measured time is rounded
    resolution_s: float = 0.0

    @property
    def error(self) -> float:
        return self.modeled_s / self.measured_s - 1

    @property
    def is_violation(self) -> bool:
        """Whether it was measured faster than the bound, by more than rounding: a model error."""
        return bool(self.measured_s) and self.measured_s + self.resolution_s / 2 < (self.bound_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(TimedRow):
    """A kernel that was measured here; its figures as the record has them, and its place in the step."""

    kernel: MeasuredKernel
    op_names: tuple[str, ...]
    phase: str
    module: str
    copy_bytes_per_s: float

    @property
    def timing(self) -> Timing | None:
        """None if no timing counts."""
        return self.kernel.timing if self.measured_s else None

    @property
    def of_bound(self) -> float:
        """Fraction of the speed of light that was reached; above 1 is a model error."""
        return self.kernel.bound_s / self.measured_s

    @property
    def of_copy(self) -> float | None:
        """Bytes per second as a fraction of what a large copy reached on the same device."""
        return self.kernel.bytes / self.measured_s / self.copy_bytes_per_s if self.copy_bytes_per_s else None

    @property
    def step_s(self) -> float:
        """Measured seconds in a step, all repeats."""
        return self.measured_s * self.kernel.repeats


@dataclass(frozen=True, slots=True)
class Share:
    """Some measured kernels together: a class, or a whole run. Seconds and bytes over all repeats."""

    key: str
    kernels: int
    distinct: int
    bytes: int
    bound_s: float
    modeled_s: float
    measured_s: float
    #: of the distinct kernels, regardless of sign
    median_error: float | None
    copy_bytes_per_s: float

    @property
    def error(self) -> float | None:
        return self.modeled_s / self.measured_s - 1 if self.measured_s else None

    @property
    def of_bound(self) -> float | None:
        return self.bound_s / self.measured_s if self.measured_s else None

    @property
    def of_copy(self) -> float | None:
        moved = self.measured_s * self.copy_bytes_per_s
        return self.bytes / moved if moved else None


def _share(key: str, pairs: Sequence[Pair]) -> Share:
    kernels = [pair.kernel for pair in pairs]
    return Share(
        key,
        sum(k.repeats for k in kernels),
        len(pairs),
        sum(k.bytes * k.repeats for k in kernels),
        sum(k.bound_s * k.repeats for k in kernels),
        sum(k.modeled_s * k.repeats for k in kernels),
        sum(pair.step_s for pair in pairs),
        median(abs(pair.error) for pair in pairs) if pairs else None,
        pairs[0].copy_bytes_per_s if pairs else 0.0,
    )


@dataclass(frozen=True)
class MeasuredRun:
    """One measurement with its kernels paired. ``step_kernels`` is how many the modeled step has, None if unknown."""

    measurement: Measurement
    pairs: tuple[Pair, ...]
    step_kernels: int | None

    @cached_property
    def measured(self) -> tuple[Pair, ...]:
        """The pairs whose time counts."""
        return tuple(pair for pair in self.pairs if pair.timing)

    @cached_property
    def violations(self) -> tuple[Pair, ...]:
        """Pairs measured faster than the bound, the worst first."""
        return tuple(sorted((pair for pair in self.measured if pair.is_violation), key=lambda pair: -pair.of_bound))

    @cached_property
    def total(self) -> Share:
        return _share(self.measurement.executor, self.measured)

    @cached_property
    def classes(self) -> tuple[Share, ...]:
        """Measured kernels by op class, in the order of the registry."""
        found = group_by(self.measured, [pair.op_class for pair in self.measured])
        return tuple(_share(name, found[name]) for name in sorted(found, key=class_order))

    @property
    def step_error(self) -> float | None:
        """Of the whole step: modeled over measured, less 1."""
        m = self.measurement
        return m.step_modeled_s / m.step.median_s - 1 if m.step and m.step_modeled_s is not None else None

    @cached_property
    def flags(self) -> Mapping[str, int]:
        """Why samples are in doubt -> how many distinct kernels it touches, the most first."""
        counts = Counter(flag for pair in self.pairs for flag in dict.fromkeys(pair.kernel.sensors.flags))
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @cached_property
    def lost(self) -> tuple[tuple[str, str, int, int], ...]:
        """Kernels without a time that counts: status, reason, kernels of the step, bytes; the most bytes first."""
        kernels = [pair.kernel for pair in self.pairs if not pair.timing]
        groups = group_by(kernels, [(kernel.status, kernel.reason) for kernel in kernels])
        found = [
            (*key, sum(k.repeats for k in own), sum(k.repeats * k.bytes for k in own)) for key, own in groups.items()
        ]
        return tuple(sorted(found, key=lambda row: (-row[3], row[0], row[1])))

    @cached_property
    def streaming(self) -> tuple[Pair, ...]:
        """Measured kernels without matrix work that move ``STREAMING_BYTES`` or more, if a copy was measured."""
        large = [pair for pair in self.measured if pair.kernel.bytes >= STREAMING_BYTES and pair.of_copy]
        return tuple(pair for pair in large if pair.op_class not in MODEL_CLASSES)

    @property
    def streaming_of_copy(self) -> float | None:
        """Geometric mean of the share of the copy bandwidth that :attr:`streaming` kernels reach."""
        return geomean([pair.of_copy or 0.0 for pair in self.streaming]) if self.streaming else None


def geomean(values: Sequence[float]) -> float:
    """The geometric mean of numbers above 0."""
    return math.exp(sum(map(math.log, values)) / len(values))
