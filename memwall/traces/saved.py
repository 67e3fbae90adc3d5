"""``memwall.trace/1`` as it is saved, for its schema: :meth:`TraceAnalysis.record` writes it, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SavedDevice:
    """A GPU that ran kernels; the name is empty where the trace does not say it."""

    index: int
    name: str
    kernels: int


@dataclass(frozen=True, slots=True)
class SavedTotals:
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


@dataclass(frozen=True, slots=True)
class SavedKernel:
    """A kernel that a row launched."""

    name: str
    stream: int
    time_s: float


@dataclass(frozen=True, slots=True)
class SavedRow:
    """What one execution of an op launched; null: not known."""

    id: int
    name: str = field(metadata={"key": "op"})
    op_class: str = field(metadata={"key": "class"})
    phase: str
    module: str
    source: str
    shapes: str
    device: int
    start_s: float
    measured_s: float
    flops: int | None
    read_bytes: int | None
    write_bytes: int | None
    link_bytes: int | None
    bound_s: float | None
    of_roof: float | None
    modeled_s: float | None
    wall: str
    assumed: str
    reason: str
    notes: tuple[str, ...]
    kernels: tuple[SavedKernel, ...]
    #: with a report of Nsight Compute
    measured_dram_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SavedGap:
    """A time in which a device ran nothing."""

    device: int
    start_s: float
    time_s: float
    cause: str


@dataclass(frozen=True, slots=True)
class SavedCollective:
    """Collectives that are alike; ``link_share`` and ``modeled_s`` on the cluster, null where it cannot run them."""

    op: str
    group: str
    ranks: int
    bytes: int
    count: int
    measured_s: float
    shortest_s: float
    bus_bytes_per_s: float
    link_share: float | None
    modeled_s: float | None


@dataclass(frozen=True, slots=True)
class SavedRank:
    """A rank among others: in how many collectives it came last, and its seconds in them, of which it waits."""

    name: str
    count: int
    last: int
    measured_s: float
    waits_s: float


@dataclass(frozen=True, slots=True)
class SavedTrace:
    """The record; ``over_roof`` are ids of rows."""

    trace: str
    devices: tuple[SavedDevice, ...]
    gpu: str
    resolution_s: float
    totals: SavedTotals
    by_wall_s: Mapping[str, float]
    by_class_s: Mapping[str, float]
    over_roof: tuple[int, ...]
    rows: tuple[SavedRow, ...]
    gaps: tuple[SavedGap, ...]
    notes: tuple[str, ...]
    cluster: str = ""
    collectives: tuple[SavedCollective, ...] = ()
    ranks: tuple[SavedRank, ...] = ()
    by_class_with_figures_s: Mapping[str, float] = field(default_factory=dict)
