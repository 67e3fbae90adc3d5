"""A trace on a GPU → what its kernels attained: one row for each execution of an op, and the sums.

``measured_s`` is the profiler's. FLOPs, bytes, ``bound_s`` and ``modeled_s`` are memwall's and count for the op,
whatever number of kernels it launched; if they do not follow from the trace they are None, never 0, and ``reason`` says
why. Profilers before 2024 truncated durations to whole microseconds: compared with the roof, such a row is assumed as
long as it can have been (:attr:`TraceAnalysis.resolution_s` more for each kernel).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

from memwall.analysis.table import share
from memwall.core.graph import Pipe
from memwall.core.structure import write
from memwall.core.version import __version__
from memwall.hardware.gpu import Gpu
from memwall.hardware.links import Cluster
from memwall.perfmodel.roofline import LINK, WALLS
from memwall.traces.attained import RowKind, TraceRow, TraceRows
from memwall.traces.collectives import Alike, RankWaits
from memwall.traces.reading import ran_elsewhere, vendors_of
from memwall.traces.records import Gap, ProfilerTrace, TraceDevice

SCHEMA = "memwall.trace/1"
#: the key under which rows without a wall are summed
UNKNOWN = "unknown"
_US = 1e-6
_NOTABLE_PIPE = 0.05
#: what rows are grouped by -> the attribute of a kind
_GROUPED = {"op": "key", "module": "module", "class": "op_class", "phase": "phase"}


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one kind. A sum is over the rows that have the figure; None if none has."""

    key: str
    rows: TraceRows

    @property
    def first(self) -> TraceRow:
        """The row that represents the group."""
        bounded = self.rows.where(_is_bounded)
        return (bounded or self.rows)[0]

    @property
    def measured_s(self) -> float:
        return self.rows.measured_s

    @property
    def bounded_s(self) -> float:
        """Measured time of the rows that have figures: what their bound and prediction are compared with."""
        return self.rows.where(_is_bounded).measured_s

    def known(self, field: str) -> float | None:
        """The sum of a field over the rows that have it; None if none has."""
        values = list(self.rows.values(field))
        return sum(values) if values else None

    @property
    def of_roof(self) -> float | None:
        """Speed of light over measured time of the rows that have a bound."""
        longest_s = self.rows.where(_is_bounded).longest_s
        return (self.known("bound_s") or 0.0) / longest_s if longest_s else None

    @property
    def modeled_over_measured(self) -> float | None:
        """Predicted over measured seconds of the rows that have figures."""
        return (self.known("modeled_s") or 0.0) / self.bounded_s if self.bounded_s else None

    @property
    def wall(self) -> str:
        """The wall that most of the time belongs to."""
        walls = {wall: rows.measured_s for wall, rows in self.rows.groups(attrgetter("wall")).items()}
        return max(walls, key=walls.__getitem__)


def _is_bounded(kind: RowKind) -> bool:
    return kind.bound_s is not None


def _is_modeled(kind: RowKind) -> bool:
    return kind.modeled_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTotals:
    """Sums over all rows; the shares are of their measured time."""

    kernels: int
    rows: int
    measured_s: float
    busy_s: float
    gap_s: float
    span_s: float
    exposed_communication_s: float
    matched_share: float
    shaped_share: float
    costed_share: float
    costed_of_shaped: float
    flops: int
    bytes: int
    bound_s: float
    modeled_s: float
    modeled_rows_measured_s: float
    over_roof: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTrace:
    """The record; ``over_roof`` are ids of rows."""

    OMIT_DEFAULTS: ClassVar = True

    schema: str
    memwall_version: str
    trace: str
    devices: tuple[TraceDevice, ...]
    gpu: str
    resolution_s: float
    totals: TraceTotals
    by_wall_s: Mapping[str, float]
    by_class_s: Mapping[str, float]
    by_class_with_figures_s: Mapping[str, float]
    over_roof: tuple[int, ...]
    rows: tuple[TraceRow, ...]
    gaps: tuple[Gap, ...]
    cluster: str = ""
    collectives: tuple[Alike, ...] = ()
    ranks: tuple[RankWaits, ...] = ()
    notes: tuple[str, ...]


@dataclass(frozen=True)
class TraceAnalysis:
    """A trace compared with ``gpu``; ``notes`` are the trace's and the analysis'."""

    trace: ProfilerTrace
    gpu: Gpu
    rows: TraceRows
    resolution_s: float
    notes: tuple[str, ...]
    #: the links that the trace's collectives are compared with, the collectives that are alike, and the ranks of
    #: several traces
    cluster: Cluster | None = None
    collectives: tuple[Alike, ...] = ()
    ranks: tuple[RankWaits, ...] = ()

    @property
    def ran_elsewhere(self) -> bool:
        """Whether the trace was measured on another GPU than it is compared with."""
        return ran_elsewhere(self.trace, self.gpu)

    @property
    def other_vendor(self) -> str:
        """A sentence where the GPU that ran is of another vendor than the one that it is compared with."""
        others = sorted(vendors_of(self.trace) - {self.gpu.vendor})
        if not others:
            return ""
        return (
            f"measured on a GPU of {' and '.join(others)}, compared with {self.gpu.name} of {self.gpu.vendor}: its"
            " kernels are others, and its roofline bounds none of them"
        )

    @property
    def measured_s(self) -> float:
        """Time of all GPU kernels, copies and collectives, each whole, overlapping or not."""
        return self.rows.measured_s

    @property
    def busy_s(self) -> float:
        """Time in which a device ran something, summed over devices."""
        return sum(self.trace.busy_us.values()) * _US

    @property
    def gap_s(self) -> float:
        """Time between a device's first and last kernel in which it ran nothing."""
        return sum(self.trace.gaps.dur_us) * _US

    @property
    def devices_s(self) -> float:
        """The span of the trace, once for each device that ran something."""
        return self.trace.span_us * _US * len(self.trace.busy_us)

    @property
    def around_s(self) -> float:
        """Time before a device's first kernel and after its last."""
        return round(self.devices_s - self.busy_s - self.gap_s, 9)

    @property
    def over_roof(self) -> TraceRows:
        """Rows faster than the bound, the worst first."""
        return self.rows.over_roof()

    def share(self, holds: Callable[[RowKind], bool]) -> float:
        """Share of the GPU time of the rows for whose kind something holds."""
        return share(self.rows.where(holds).measured_s, self.measured_s)

    @property
    def matched_share(self) -> float:
        """Share of GPU time whose launch is linked to an op."""
        return self.share(attrgetter("matched"))

    @property
    def shaped_share(self) -> float:
        """Share of GPU time whose op recorded its sizes."""
        return self.share(attrgetter("shaped"))

    @property
    def costed_share(self) -> float:
        """Share of GPU time that has FLOPs, bytes and a wall."""
        return self.share(_is_bounded)

    @property
    def partly_share(self) -> float:
        """Share of GPU time that has FLOPs or bytes alone, and no wall."""
        return self.share(lambda kind: not _is_bounded(kind) and not (kind.flops is kind.bytes is None))

    @property
    def costed_of_shaped(self) -> float:
        """Share of the GPU time with sizes that has FLOPs, bytes and a wall; 0 if no GPU time has sizes."""
        return share(self.share(lambda kind: kind.shaped and _is_bounded(kind)), self.shaped_share)

    @property
    def modeled_s(self) -> float:
        """The prediction for the rows that have one. Rows that cross the link are left out: only their bandwidth is
        modeled, not the wait for the other side."""
        return sum(self._modeled.values("modeled_s"), 0.0)

    @property
    def modeled_of_s(self) -> float:
        """The measured time of the same rows."""
        return self._modeled.measured_s

    @property
    def _modeled(self) -> TraceRows:
        return self.rows.where(lambda kind: _is_modeled(kind) and kind.wall != LINK)

    def pipes(self) -> list[Pipe]:
        """What the FLOPs run on, on this GPU, the most used first; pipes with less than 5 % are left out."""
        flops: Counter[Pipe] = Counter()
        for kind, count in self.rows.counts():
            if kind.pipe is not None and kind.flops:
                flops[self.gpu.ceiling_pipe(kind.pipe)] += kind.flops * count
        least = _NOTABLE_PIPE * sum(flops.values())
        return [pipe for pipe in sorted(flops, key=lambda pipe: (-flops[pipe], pipe)) if flops[pipe] >= least]

    def by_wall(self) -> dict[str, float]:
        """Measured seconds under each wall, and ``unknown``."""
        found = self.rows.groups(attrgetter("wall"))
        return {wall: found[wall].measured_s if wall in found else 0 for wall in (*WALLS, LINK, UNKNOWN)}

    def groups(self, by: str = "op") -> list[RowGroup]:
        """Rows summed by ``op`` (its name and shapes), ``module``, ``class`` or ``phase``, the longest first."""
        found: dict[Any, TraceRows] = self.rows.groups(attrgetter(_GROUPED[by]))
        groups = [RowGroup(key if isinstance(key, str) else key[0], rows) for key, rows in found.items()]
        return sorted(groups, key=lambda group: (-group.measured_s, group.key))

    def to_dict(self) -> dict[str, Any]:
        """``memwall.trace/1``: plain JSON types in a fixed order."""
        return {key: list(value) if isinstance(value, Iterator) else value for key, value in self.record().items()}

    def record(self) -> dict[str, Any]:
        """The same, but rows and gaps are iterators: there may be millions."""
        trace, classes = self.trace, self.groups("class")
        saved = SavedTrace(
            schema=SCHEMA,
            memwall_version=__version__,
            trace=trace.path_name,
            devices=tuple(device for device in trace.devices if device.kernels),
            gpu=self.gpu.name,
            resolution_s=self.resolution_s,
            totals=self.totals(),
            by_wall_s=self.by_wall(),
            by_class_s={group.key: group.measured_s for group in classes},
            by_class_with_figures_s={group.key: group.bounded_s for group in classes},
            over_roof=tuple(self.over_roof.numbers),
            rows=(),
            gaps=(),
            cluster=self.cluster.name if self.cluster and self.collectives else "",
            collectives=self.collectives,
            ranks=self.ranks,
            notes=self.notes,
        )
        return {**write(saved), "rows": map(write, self.rows), "gaps": map(write, trace.gaps)}

    def totals(self) -> TraceTotals:
        """The sums of the record."""
        return TraceTotals(
            kernels=len(self.trace.kernels),
            rows=len(self.rows),
            measured_s=self.measured_s,
            busy_s=self.busy_s,
            gap_s=self.gap_s,
            span_s=self.trace.span_us * _US,
            exposed_communication_s=sum(self.trace.exposed_communication_us.values()) * _US,
            matched_share=self.matched_share,
            shaped_share=self.shaped_share,
            costed_share=self.costed_share,
            costed_of_shaped=self.costed_of_shaped,
            flops=sum(self.rows.values("flops")),
            bytes=sum(self.rows.values("bytes")),
            bound_s=sum(self.rows.values("bound_s"), 0.0),
            modeled_s=self.modeled_s,
            modeled_rows_measured_s=self.modeled_of_s,
            over_roof=len(self.over_roof),
        )
