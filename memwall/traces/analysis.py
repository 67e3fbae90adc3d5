"""A trace on a GPU → what its kernels attained: one row for each execution of an op, and the sums.

``measured_s`` is the profiler's. FLOPs, bytes, ``bound_s`` and ``modeled_s`` are memwall's and count for the op,
whatever number of kernels it launched; if they do not follow from the trace they are None, never 0, and ``reason`` says
why. Profilers before 2024 truncated durations to whole microseconds: compared with the roof, such a row is assumed as
long as it can have been (:attr:`TraceAnalysis.resolution_s` more for each kernel).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memwall.analysis.table import group_by, share
from memwall.core.graph import Pipe
from memwall.core.version import __version__
from memwall.hardware.gpu import Gpu
from memwall.perfmodel.roofline import LINK, WALLS
from memwall.traces.calls import Surroundings
from memwall.traces.costs import Pricing, older_kernels_note, row_cost
from memwall.traces.reading import ran_elsewhere, vendors_of
from memwall.traces.records import Trace, TracedKernel, TracedOp
from memwall.traces.rows import Launches, RowCost, is_call, rows_of

SCHEMA = "memwall.trace/1"
#: the key under which rows without a wall are summed
UNKNOWN = "unknown"
_US = 1e-6
_NOTABLE_PIPE = 0.05
#: attributes of a row in its record, and those that have another name there
_WRITTEN = ("id", "name", "op_class", "phase", "module", "source", "shapes", "device", "start_s", "measured_s", "flops",
            "read_bytes", "write_bytes", "link_bytes", "bound_s", "of_roof", "modeled_s", "wall", "assumed",
            "reason")  # fmt: skip
_KEYS = {"name": "op", "op_class": "class"}
_SHARES = ("matched_share", "shaped_share", "costed_share", "costed_of_shaped")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """What one op execution launched, or a kernel without a known op. Seconds and bytes; None: not known."""

    id: int
    name: str
    op_class: str
    phase: str
    module: str
    source: str
    shapes: str
    device: int
    start_s: float
    kernels: tuple[TracedKernel, ...]
    #: some op is linked to the launch, and it (or the copy, the collective) recorded its sizes
    matched: bool
    shaped: bool
    measured_s: float
    #: the time compared with the roof: ``measured_s`` plus what its kernels' durations may have lost by truncation
    longest_s: float
    flops: int | None
    #: what most of the FLOPs run on
    pipe: Pipe | None
    read_bytes: int | None
    write_bytes: int | None
    #: bytes that cross the link to the host or to other GPUs
    link_bytes: int | None
    bound_s: float | None
    modeled_s: float | None
    wall: str
    #: how the trace was read if the plain reading is impossible (:mod:`memwall.traces.costs`)
    assumed: str
    reason: str
    notes: tuple[str, ...] = ()
    #: by Nsight Compute, all kernels of the row together
    dram_bytes: int | None = None

    @property
    def bytes(self) -> int | None:
        """Compulsory bytes, read and written."""
        return None if self.read_bytes is None or self.write_bytes is None else self.read_bytes + self.write_bytes

    @property
    def moved_bytes(self) -> int | None:
        """Compulsory bytes, those over the link among them."""
        return None if self.bytes is None else self.bytes + (self.link_bytes or 0)

    @property
    def of_roof(self) -> float | None:
        """Speed of light over measured time."""
        return self.bound_s / self.longest_s if self.bound_s is not None and self.longest_s > 0 else None

    @property
    def is_over_roof(self) -> bool:
        """Whether it exceeds the roofline bound: a model error."""
        return self.bound_s is not None and self.bound_s > self.longest_s > 0

    @property
    def key(self) -> tuple[str, str]:
        """The key that rows of one kind share."""
        return self.name, self.shapes

    def to_dict(self) -> dict[str, Any]:
        """Its part of the record."""
        record = {_KEYS.get(name, name): getattr(self, name) for name in _WRITTEN}
        kernels = [{"name": k.name, "stream": k.stream, "time_s": k.dur_us * _US} for k in self.kernels]
        measured = {} if self.dram_bytes is None else {"measured_dram_bytes": self.dram_bytes}
        return {**record, "notes": list(self.notes), "kernels": kernels, **measured}


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one kind. A sum is over the rows that have the figure; None if none has."""

    key: str
    rows: tuple[TraceRow, ...]

    @property
    def first(self) -> TraceRow:
        """The row that represents the group."""
        return next((row for row in self.rows if row.bound_s is not None), self.rows[0])

    @property
    def measured_s(self) -> float:
        return sum(row.measured_s for row in self.rows)

    def known(self, field: str) -> float | None:
        """The sum of a field over the rows that have it; None if none has."""
        values = [value for row in self.rows if (value := getattr(row, field)) is not None]
        return sum(values) if values else None

    @property
    def of_roof(self) -> float | None:
        """Speed of light over measured time of the rows that have a bound."""
        bounded = [row for row in self.rows if row.bound_s is not None]
        longest_s = sum(row.longest_s for row in bounded)
        return sum(row.bound_s or 0.0 for row in bounded) / longest_s if longest_s else None

    @property
    def modeled_over_measured(self) -> float | None:
        """Predicted over measured seconds of the rows that have a prediction."""
        modeled = [row for row in self.rows if row.modeled_s is not None]
        measured_s = sum(row.measured_s for row in modeled)
        return sum(row.modeled_s or 0.0 for row in modeled) / measured_s if measured_s else None

    @property
    def wall(self) -> str:
        """The wall that most of the time belongs to."""
        return max(dict.fromkeys(row.wall for row in self.rows), key=lambda wall: _seconds(self.rows, wall))


def _seconds(rows: Iterable[TraceRow], wall: str) -> float:
    return sum(row.measured_s for row in rows if row.wall == wall)


@dataclass(frozen=True)
class TraceAnalysis:
    """A trace compared with ``gpu``; ``notes`` are those of the trace and of the analysis."""

    trace: Trace
    gpu: Gpu
    rows: tuple[TraceRow, ...]
    resolution_s: float
    notes: tuple[str, ...]

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
        return sum(row.measured_s for row in self.rows)

    @property
    def busy_s(self) -> float:
        """Time in which a device ran something, summed over devices."""
        return sum(self.trace.busy_us.values()) * _US

    @property
    def gap_s(self) -> float:
        """Time between a device's first and last kernel in which it ran nothing."""
        return sum(gap.dur_us for gap in self.trace.gaps) * _US

    @property
    def over_roof(self) -> tuple[TraceRow, ...]:
        """Rows faster than the bound, the worst first."""
        return tuple(sorted((row for row in self.rows if row.is_over_roof), key=lambda row: -(row.of_roof or 0.0)))

    def share(self, holds: Callable[[TraceRow], bool]) -> float:
        """Share of the GPU time of the rows that satisfy a condition."""
        return share(sum(row.measured_s for row in self.rows if holds(row)), self.measured_s)

    @property
    def matched_share(self) -> float:
        """Share of GPU time whose launch is linked to an op."""
        return self.share(lambda row: row.matched)

    @property
    def shaped_share(self) -> float:
        """Share of GPU time whose op recorded its sizes."""
        return self.share(lambda row: row.shaped)

    @property
    def costed_share(self) -> float:
        """Share of GPU time that has FLOPs, bytes and a wall."""
        return self.share(lambda row: row.bound_s is not None)

    @property
    def costed_of_shaped(self) -> float:
        """Share of the GPU time with sizes that has FLOPs, bytes and a wall; 0 if no GPU time has sizes."""
        return share(self.share(lambda row: row.shaped and row.bound_s is not None), self.shaped_share)

    @property
    def modeled_s(self) -> float:
        """The prediction for the rows that have one. Those that cross the link are left out: only their bandwidth is
        modeled, not the wait for the other side."""
        return sum(row.modeled_s or 0.0 for row in self.rows if row.wall != LINK)

    @property
    def modeled_of_s(self) -> float:
        """The measured time of the same rows."""
        return sum(row.measured_s for row in self.rows if row.modeled_s is not None and row.wall != LINK)

    def pipes(self) -> list[Pipe]:
        """What the FLOPs run on, on this GPU, the most used first; those with less than 5 % are left out."""
        flops: Counter[Pipe] = Counter()
        for row in self.rows:
            if row.pipe is not None and row.flops:
                flops[self.gpu.ceiling_pipe(row.pipe)] += row.flops
        least = _NOTABLE_PIPE * sum(flops.values())
        return [pipe for pipe in sorted(flops, key=lambda pipe: (-flops[pipe], pipe)) if flops[pipe] >= least]

    def by_wall(self) -> dict[str, float]:
        """Measured seconds under each wall, and ``unknown``."""
        return {wall: _seconds(self.rows, wall) for wall in (*WALLS, LINK, UNKNOWN)}

    def groups(self, by: str = "op") -> list[RowGroup]:
        """Rows summed by ``op`` (its name and shapes), ``module``, ``class`` or ``phase``, the longest first."""
        keys: Mapping[str, Callable[[TraceRow], Any]] = {
            "op": lambda row: row.key, "module": lambda row: row.module, "class": lambda row: row.op_class,
            "phase": lambda row: row.phase,
        }  # fmt: skip
        found = group_by(self.rows, map(keys[by], self.rows))
        groups = [RowGroup(key if isinstance(key, str) else key[0], tuple(rows)) for key, rows in found.items()]
        return sorted(groups, key=lambda group: (-group.measured_s, group.key))

    def to_dict(self) -> dict[str, Any]:
        """``memwall.trace/1``: plain JSON types in a fixed order."""
        trace = self.trace
        return {
            "schema": SCHEMA, "memwall_version": __version__, "trace": trace.path_name,
            "devices": [{"index": d.index, "name": d.name, "kernels": d.kernels} for d in trace.devices if d.kernels],
            "gpu": self.gpu.name, "resolution_s": self.resolution_s,
            "totals": self.totals(),
            "by_wall_s": self.by_wall(),
            "by_class_s": {group.key: group.measured_s for group in self.groups("class")},
            "over_roof": [row.id for row in self.over_roof],
            "rows": [row.to_dict() for row in self.rows],
            "gaps": [{"device": gap.device, "start_s": gap.start_us * _US, "time_s": gap.dur_us * _US,
                      "cause": gap.cause} for gap in trace.gaps],
            "notes": list(self.notes),
        }  # fmt: skip

    def totals(self) -> dict[str, Any]:
        """The sums of the record."""
        return {
            "kernels": len(self.trace.kernels), "rows": len(self.rows), "measured_s": self.measured_s,
            "busy_s": self.busy_s, "gap_s": self.gap_s, "span_s": self.trace.span_us * _US,
            "exposed_communication_s": sum(self.trace.exposed_communication_us.values()) * _US,
            **{what: getattr(self, what) for what in _SHARES},
            "flops": sum(row.flops or 0 for row in self.rows),
            "bytes": sum(row.bytes or 0 for row in self.rows),
            "bound_s": sum(row.bound_s or 0.0 for row in self.rows),
            "modeled_s": self.modeled_s, "modeled_rows_measured_s": self.modeled_of_s,
            "over_roof": len(self.over_roof),
        }  # fmt: skip


# ---- making it


def analyse(
    trace: Trace, gpu: Gpu, *, dram_bytes: Mapping[int, int] | None = None, notes: Sequence[str] = ()
) -> TraceAnalysis:
    """Compare a trace with what a GPU can do.

    Args:
        dram_bytes: measured DRAM bytes by kernel id, from Nsight Compute.
        notes: lines that a reader of the result should see, in addition to those of the trace.
    """
    surroundings = Surroundings(trace)
    pricing = Pricing(gpu, measured_here=not ran_elsewhere(trace, gpu))
    whole = all(float(kernel.dur_us).is_integer() for kernel in trace.kernels)
    resolution_s = _US if whole and trace.kernels else 0.0
    rows = tuple(
        _row(number, launches, row_cost(launches, surroundings), pricing, resolution_s, dram_bytes or {})
        for number, launches in enumerate(rows_of(trace))
    )
    plain = TraceAnalysis(trace, gpu, rows, resolution_s, (*trace.notes, *notes))
    return replace(plain, notes=(*plain.notes, *_notes(plain)))


def _row(
    number: int, launches: Launches, found: RowCost, pricing: Pricing, resolution_s: float, measured: Mapping[int, int]
) -> TraceRow:
    """``measured`` are DRAM bytes by kernel id."""
    op, cost, kernels = launches.op, found.cost, launches.kernels
    measured_s = sum(kernel.dur_us for kernel in kernels) * _US
    longest_s = measured_s + resolution_s * len(kernels)
    priced = pricing.price(found, longest_s)
    seen = [measured[kernel.id] for kernel in kernels if kernel.id in measured]
    call = op if op is not None and is_call(op) else None
    named = op if op is not None and (call or launches.kind == "communication") else kernels[0]
    shaped = call is not None and bool(call.dims) if launches.kind == "kernel" else cost is not None
    return TraceRow(
        id=number, name=named.name, op_class=found.op_class,
        phase=op.phase if op else "", module=op.module if op else "", source=op.source if op else "",
        shapes=shapes_text(call) if call else "", device=kernels[0].device, start_s=kernels[0].start_us * _US,
        kernels=tuple(kernels), matched=op is not None, shaped=shaped, measured_s=measured_s, longest_s=longest_s,
        flops=cost.total_flops if cost else None,
        pipe=max(cost.flops, key=cost.flops.__getitem__, default=None) if cost else None,
        read_bytes=cost.read_bytes if cost else None, write_bytes=cost.write_bytes if cost else None,
        link_bytes=round(cost.link_bytes) if cost else None,
        bound_s=priced.bound_s if priced else None, modeled_s=priced.modeled_s if priced else None,
        wall=priced.wall if priced else UNKNOWN, assumed=priced.assumed if priced else "",
        reason=found.reason, notes=found.notes,
        dram_bytes=sum(seen) if seen and len(seen) == len(kernels) else None,
    )  # fmt: skip


#: of a longer list of tensors only the first is shown
_SHOWN = 4


def shapes_text(op: TracedOp) -> str:
    """The shapes that an op took: ``64x128 128x32 float``."""
    parts = [_dims_text(dims) for dims in op.dims if dims]
    types = [name.removeprefix("c10::") for dims, name in zip(op.dims, op.types, strict=False) if dims and name]
    return " ".join([*parts, *types[:1]])


def _dims_text(dims: tuple[Any, ...]) -> str:
    if dims and isinstance(dims[0], tuple):
        shown = " ".join(_dims_text(part) for part in dims[:_SHOWN])
        more = f" and {len(dims) - _SHOWN} more" if len(dims) > _SHOWN else ""
        return f"({shown}{more})"
    return "x".join(map(str, dims))


#: a GPU that runs less than this share of the time is mostly waiting for the host
_IDLE = 0.25


def _notes(analysis: TraceAnalysis) -> list[str]:
    """How often the trace was read in another way than the plain one, and what was assumed."""
    rows, busy_s = analysis.rows, analysis.busy_s
    notes = [analysis.other_vendor] if analysis.other_vendor else []
    if analysis.resolution_s:
        notes.append("durations are whole microseconds: each may be up to 1 us longer, and is held so against the roof")
    if analysis.modeled_of_s and busy_s < _IDLE * (busy_s + analysis.gap_s):
        share = busy_s / (busy_s + analysis.gap_s)
        notes.append(
            f"between its first and last kernel the GPU ran {100 * share:.1f} % of the time: the model takes kernels "
            "back to back, with clocks and caches that have had no pause"
        )
    products = (kernel for row in rows if row.op_class == "contraction" for kernel in row.kernels)
    if older := older_kernels_note(products, analysis.gpu):
        notes.append(older)
    counts = Counter(text for row in rows for text in row.notes)
    counts.update(f"{row.assumed}: otherwise it exceeds the roofline bound" for row in rows if row.assumed)
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return notes + [f"{count:,} row{'s' if count > 1 else ''}: {text}" for text, count in order]
