"""A trace and a GPU → its analysis: what was launched is made rows, and what is alike is priced once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from memwall.core.units import counted
from memwall.hardware.gpu import Gpu
from memwall.hardware.links import Cluster
from memwall.traces.analysis import UNKNOWN, TraceAnalysis
from memwall.traces.attained import RowKind, TraceRows
from memwall.traces.calls import Surroundings
from memwall.traces.collectives import collectives, rank_waits, unshared
from memwall.traces.costs import Price, Pricing, of_instructions, older_kernels_note, reading, row_cost
from memwall.traces.reading import memory_note, ran_elsewhere
from memwall.traces.records import ProfilerTrace, TracedOp
from memwall.traces.rows import KernelRows, Launches, RowCost, is_call

_US = 1e-6


def analyse(
    trace: ProfilerTrace,
    gpu: Gpu,
    *,
    dram_bytes: Mapping[int, int] | None = None,
    notes: Sequence[str] = (),
    cluster: Cluster | None = None,
    others: Sequence[ProfilerTrace] = (),
) -> TraceAnalysis:
    """Compare a trace with what a GPU can do.

    Args:
        dram_bytes: measured DRAM bytes by kernel id, from Nsight Compute.
        notes: lines that a reader of the result should see, in addition to the notes of the trace.
        cluster: how the GPUs are joined that its collectives ran on.
        others: traces of other ranks in the same step.
    """
    whole = all(map(float.is_integer, trace.kernels.dur_us))
    launches = KernelRows(trace)
    rows = TraceRows(launches, _US if whole and trace.kernels else 0.0, _by_row(launches, dram_bytes or {}))
    surroundings, linked, instruction_cost = Surroundings(trace), trace.ops.linked(), of_instructions(trace, gpu)
    pricing = Pricing(gpu, measured_here=not ran_elsewhere(trace, gpu))
    known: dict[tuple[int, ...], _Priced] = {}
    for number, op in enumerate(launches.op):
        kernels = launches.kernels(number)
        signature = surroundings.signature(op, kernels)
        priced = known.get(signature)
        if priced is None:
            cost = instruction_cost(launches[number]) or row_cost(launches[number], surroundings)
            priced = _Priced(launches[number], op >= 0 and bool(linked[op]), cost, pricing.prices(cost), {})
            if not cost.one_off:
                known[signature] = priced
        measured_s = trace.kernels.total_us(kernels) * _US
        rows.add(priced.kind(rows, rows.longest_of(number, measured_s)), measured_s)
    waits = tuple(rank_waits((trace, *others))) if others else ()
    notes = (*notes, *unshared((trace, *others))) if others else notes
    alike = tuple(collectives(trace, cluster))
    plain = TraceAnalysis(trace, gpu, rows, rows.resolution_s, (*trace.notes, *notes), cluster, alike, waits)
    return replace(plain, notes=(*plain.notes, *_notes(plain)))


def _by_row(launches: KernelRows, measured: Mapping[int, int]) -> dict[int, int]:
    """The DRAM bytes of each row all of whose kernels were measured; ``measured`` is by kernel."""
    found = {}
    for number in range(len(launches)) if measured else ():
        kernels = launches.kernels(number)
        if all(kernel in measured for kernel in kernels):
            found[number] = sum(measured[kernel] for kernel in kernels)
    return found


class _Priced(NamedTuple):
    """Launches that are all alike: their cost, its prices, and by reading the number of their kind of row."""

    launches: Launches
    matched: bool
    cost: RowCost
    prices: tuple[Price, ...]
    numbers: dict[int, int]

    def kind(self, rows: TraceRows, longest_s: float) -> int:
        """The number of the kind of a row that took so long."""
        which = reading(self.prices, longest_s)
        if which not in self.numbers:
            price = self.prices[which] if self.prices else None
            self.numbers[which] = rows.kind_number(_row_kind(self.launches, self.matched, self.cost, price))
        return self.numbers[which]


def _row_kind(launches: Launches, matched: bool, found: RowCost, price: Price | None) -> RowKind:
    op, cost, kernels = launches.op, found.cost, launches.kernels
    call = op if op is not None and is_call(op) else None
    named = op if op is not None and (call or launches.kind == "communication") else kernels[0]
    moved = cost if cost is not None and not found.flops_alone else None
    shaped = call is not None and bool(call.dims) if launches.kind == "kernel" else cost is not None
    return RowKind(
        name=named.name,
        op_class=found.op_class,
        phase=op.phase if op else "",
        module=op.module if op else "",
        source=op.source if op else "",
        shapes=shapes_text(call) if call else "",
        device=kernels[0].device,
        matched=matched,
        shaped=shaped,
        flops=cost.total_flops if cost and cost.modeled else None,
        pipe=max(moved.flops, key=moved.flops.__getitem__, default=None) if moved else None,
        read_bytes=moved.read_bytes if moved else None,
        write_bytes=moved.write_bytes if moved else None,
        link_bytes=round(moved.link_bytes) if moved else None,
        bound_s=price.bound_s if price else None,
        modeled_s=price.modeled_s if price else None,
        wall=price.wall if price else UNKNOWN,
        assumed=price.assumed if price else "",
        reason=found.reason,
        notes=found.notes,
    )


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
    busy_s = analysis.busy_s
    notes = list(filter(None, (analysis.other_vendor, memory_note(analysis.trace, analysis.gpu))))
    if analysis.resolution_s:
        notes.append("durations are whole microseconds: each may be up to 1 us longer, and is held so against the roof")
    if analysis.modeled_of_s and busy_s < _IDLE * (busy_s + analysis.gap_s):
        share = busy_s / (busy_s + analysis.gap_s)
        notes.append(
            f"between its first and last kernel the GPU ran {100 * share:.1f} % of the time: the model takes kernels "
            "back to back, with clocks and caches that have had no pause"
        )
    products = analysis.rows.where(lambda kind: kind.op_class == "contraction")
    if older := older_kernels_note(analysis.trace.kernels, products.kernels(), analysis.gpu):
        notes.append(older)
    counts: Counter[str] = Counter()
    for kind, count in analysis.rows.counts():
        assumed = [f"{kind.assumed}: otherwise it exceeds the roofline bound"] if kind.assumed else []
        for text in (*kind.notes, *assumed):
            counts[text] += count
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return notes + [f"{counted(count, 'row')}: {text}" for text, count in order]
