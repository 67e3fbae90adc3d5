"""What was modeled next to what was measured: one kernel, some kernels together, one run.

Conventions. An *error* is ``modeled / measured - 1``: above 0 the model is too slow. A kernel counts as measured only
if its status is ``ok``: the time of a wrong result does not count. A sum counts each kernel as often as the step runs
it; a median and a geometric mean count each distinct kernel once. A *violation* is a median below ``bound_s``, the
speed of light: a model error. The eager time of a group is the sum over the eager kernels of its ops, found by op, else
by an op that does the same to tensors of the same shapes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from memwall.analysis.table import group_by
from memwall.ops.registry import OP_CLASSES
from memwall.record.measurement import MeasuredKernel, Measurement, Timing
from memwall.simulate.schedule import MODEL_CLASSES

#: groups that move at least this much are compared with the copy bandwidth
STREAMING_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class Pair:
    """One kernel, modeled and measured, and what it is. Times are of one launch."""

    kernel: MeasuredKernel
    op_names: tuple[str, ...]
    dtype: str
    phase: str
    module: str
    shapes: str
    copy_bytes_per_s: float

    @property
    def timing(self) -> Timing | None:
        """Its timing, or None if no timing counts."""
        return self.kernel.timing if self.kernel.status == "ok" else None

    @property
    def measured_s(self) -> float | None:
        """The median."""
        return self.timing.median_s if self.timing else None

    @property
    def error(self) -> float | None:
        """Modeled over measured, less 1."""
        return None if self.measured_s is None else self.kernel.modeled_s / self.measured_s - 1

    @property
    def of_bound(self) -> float | None:
        """Fraction of the speed of light that was reached; above 1 is a model error."""
        return None if self.measured_s is None else self.kernel.bound_s / self.measured_s

    @property
    def of_copy(self) -> float | None:
        """Bytes per second as a fraction of what a large copy reached on the same device."""
        if self.measured_s is None or not self.copy_bytes_per_s:
            return None
        return self.kernel.bytes / self.measured_s / self.copy_bytes_per_s

    @property
    def step_s(self) -> float:
        """Measured seconds in a step, all repeats; 0 where it was not measured."""
        return (self.measured_s or 0.0) * self.kernel.repeats

    @property
    def is_violation(self) -> bool:
        """Whether it was measured faster than the bound."""
        return self.of_bound is not None and self.of_bound > 1


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
        """Modeled over measured, less 1."""
        return self.modeled_s / self.measured_s - 1 if self.measured_s else None

    @property
    def of_bound(self) -> float | None:
        """Speed of light over measured."""
        return self.bound_s / self.measured_s if self.measured_s else None

    @property
    def of_copy(self) -> float | None:
        """Bytes per second over those of a copy."""
        moved = self.measured_s * self.copy_bytes_per_s
        return self.bytes / moved if moved else None


@dataclass(frozen=True)
class Run:
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
        found = [pair for pair in self.measured if pair.is_violation]
        return tuple(sorted(found, key=lambda pair: -(pair.of_bound or 0.0)))

    @cached_property
    def total(self) -> Share:
        """All measured kernels together."""
        return _share(self.measurement.executor, self.measured)

    @cached_property
    def classes(self) -> tuple[Share, ...]:
        """Measured kernels by op class, in the order of the registry."""
        order = {name: i for i, name in enumerate(OP_CLASSES)}
        found = group_by(self.measured, [pair.kernel.op_class for pair in self.measured])
        names = sorted(found, key=lambda name: (order.get(name, len(order)), name))
        return tuple(_share(name, found[name]) for name in names)

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
        found = [(*key, sum(k.repeats for k in own), sum(k.repeats * k.bytes for k in own))
                 for key, own in groups.items()]  # fmt: skip
        return tuple(sorted(found, key=lambda row: (-row[3], row[0], row[1])))

    @cached_property
    def streaming(self) -> tuple[Pair, ...]:
        """Measured kernels without matrix work that move ``STREAMING_BYTES`` or more, if a copy was measured."""
        return tuple(
            pair
            for pair in self.measured
            if pair.kernel.bytes >= STREAMING_BYTES and pair.of_copy and pair.kernel.op_class not in MODEL_CLASSES
        )

    @property
    def streaming_of_copy(self) -> float | None:
        """Geometric mean of the share of the copy bandwidth that :attr:`streaming` kernels reach."""
        shares = [pair.of_copy for pair in self.streaming if pair.of_copy]
        return geomean(shares) if shares else None


def _share(key: str, pairs: Sequence[Pair]) -> Share:
    def total(name: str) -> Any:
        return sum(getattr(pair.kernel, name) * pair.kernel.repeats for pair in pairs)

    errors = [abs(pair.error) for pair in pairs if pair.error is not None]
    return Share(
        key, sum(pair.kernel.repeats for pair in pairs), len(pairs), total("bytes"), total("bound_s"),
        total("modeled_s"), sum(pair.step_s for pair in pairs), median(errors) if errors else None,
        pairs[0].copy_bytes_per_s if pairs else 0.0,
    )  # fmt: skip


def geomean(values: Sequence[float]) -> float:
    """The geometric mean of numbers above 0."""
    return math.exp(sum(map(math.log, values)) / len(values))
