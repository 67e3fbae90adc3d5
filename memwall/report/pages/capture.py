"""TorchDynamo's capture of a model, on a page: partial graphs, breaks and their price, guards, recompilations."""

from __future__ import annotations

import memwall.report.columns as col
from memwall.analysis.breaks import Loss
from memwall.analysis.fused import Fused
from memwall.core.units import duration, percent, size
from memwall.frontend.dynamo.capture import Break, Capture
from memwall.report.document import Block, Facts, Section, Sentence, clean

#: Rows of the tables of breaks and guards.
MAX_BREAKS, MAX_GUARDS = 20, 12

BREAK_NOTE = (
    "after op: the last op before the break (its number in the graph); bytes, time and kernels: what is saved when this"
    " break alone is removed, under memwall's planner; removing several may let more fuse;"
    " -: splits no graph, or not priced"
)


def capture_section(found: Fused, capture: Capture) -> Section:
    """Partial graphs, breaks with their price, guards, and what further inputs recompile."""
    ops = sum(region >= 0 for region in capture.regions)
    graphs = f"{len(capture.graphs)} run, {capture.captures} captured; {ops:,} ops in them"
    unmatched = f"; {capture.unmatched} ops have no counterpart" if capture.unmatched else ""
    facts = [
        ("graphs", f"{graphs}, {_eager(found, capture)}"),
        ("breaks", _breaks(capture)),
        ("guards", _guards(capture)),
        ("traced on", f"{capture.data} tensors{unmatched}"),
        *(("note", note) for note in capture.notes),
    ]
    if capture.failure is not None:
        facts = [("not captured", capture.failure)]
    blocks: list[Block] = [Facts(tuple((label, clean(text)) for label, text in facts))]
    blocks += _break_tables(found, capture)
    if capture.guards:
        rows = capture.guards[:MAX_GUARDS]
        columns = [
            col.text("kind", [g.kind for g in rows]),
            col.names("guard on", [g.name for g in rows]),
            col.text("must hold", [g.check for g in rows], wraps=True),
        ]
        more = sum(capture.guard_kinds.values()) - len(rows)
        blocks.append(col.table("Guards", columns, f"and {more:,} more; where one fails, Dynamo captures again"))
    blocks += [Sentence(clean(_recompile(n, capture))) for n in range(len(capture.recompiles))]
    return Section("Capture by TorchDynamo", tuple(blocks))


def _eager(found: Fused, capture: Capture) -> str:
    ops = found.profile.graph.ops
    outside = [op.phase for op, region in zip(ops, capture.regions, strict=False) if region < 0]
    optimizer = outside.count("optimizer")
    tail = f" ({optimizer:,} of them the optimizer's)" if optimizer else ""
    return f"{len(outside):,} outside{tail}"


def _breaks(capture: Capture) -> str:
    lines = len(capture.breaks)
    total = sum(item.count for item in capture.breaks)
    return f"{total:,}, at {lines} line{'s' * (lines > 1)}" if lines else "none: one graph"


def _guards(capture: Capture) -> str:
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in capture.guard_kinds.items())
    return f"{sum(capture.guard_kinds.values()):,}: {kinds}" if kinds else "none"


def _break_tables(found: Fused, capture: Capture) -> list[Block]:
    rows = capture.breaks[:MAX_BREAKS]
    if not rows:
        return []
    blocks: list[Block] = []
    for gpu, prices in found.prices.items() or [("", None)]:
        losses: list[Loss | None] = [None] * len(rows) if prices is None else [*prices.each[: len(rows)]]
        columns = [
            col.text("at", [f"{b.file}:{b.line}" for b in rows]),
            col.repeats(b.count for b in rows),
            col.plain("after op", [b.after_op for b in rows]),
            col.si("bytes", "B", [None if x is None else x.dram_bytes for x in losses]),
            col.seconds("time", [None if x is None else x.time_s for x in losses]),
            col.plain("kernels", [None if x is None else x.kernels for x in losses]),
            col.text("why", [_why(found, b) for b in rows], wraps=True),
        ]
        blocks.append(col.table(f"Graph breaks{f' and their price on {gpu}' if gpu else ''}", columns, BREAK_NOTE))
        if prices is not None:
            blocks.append(Sentence(clean(_together(gpu, prices.together, found)), strong=True))
    return blocks


def _why(found: Fused, item: Break) -> str:
    source = f" ({item.source_line.strip()})" if item.source_line.strip() else ""
    ops = found.profile.graph.ops
    if item.after_op is None or item.after_op >= len(ops):
        return f"{item.reason}{source}"
    module = ops[item.after_op].module
    return f"{item.reason}{source}{f', in module {module}' if module else ''}"


def _together(gpu: str, loss: Loss, found: Fused) -> str:
    eager = found.profile.dram_bytes
    share = percent(loss.dram_bytes / eager if eager else 0.0)
    launches = f"{loss.kernels:,} more launch{'es' * (loss.kernels != 1)}"
    return (
        f"All breaks together cost {size(loss.dram_bytes)} of DRAM traffic ({share} of what eager moves),"
        f" {duration(loss.time_s)} and {launches} on {gpu}; what Python takes between two graphs comes on top."
    )


def _recompile(number: int, capture: Capture) -> str:
    call = capture.recompiles[number]
    inputs = ", ".join(call.inputs)
    if not call.captures:
        return f"With {inputs} nothing is captured again."
    why = f" because {'; '.join(call.reasons)}" if call.reasons else ""
    became = f"; {', '.join(call.dynamic)} became dynamic" if call.dynamic else ""
    return f"With {inputs} Dynamo captures {call.captures} graphs again{why}{became}."
