"""TorchDynamo's capture as a section: graphs, breaks with their price, guards, what further inputs recompile."""

from __future__ import annotations

from collections.abc import Sequence

import memwall.report.columns as col
from memwall.core.units import counted, duration, percent, size
from memwall.fusing.breaks import Loss
from memwall.fusing.run import FusedProfile
from memwall.record.capture import Break, Capture, Recompile
from memwall.report.document import Block, Section, Sentence, clean, known_facts

#: rows of the tables of breaks and of guards
MAX_BREAKS, MAX_GUARDS = 20, 12

BREAK_NOTE = (
    "after op: the last op before the break (its number in the graph); bytes, time and kernels: what is saved when this"
    " break alone is removed, under memwall's planner; removing several may let more fuse;"
    " -: splits no graph, or not priced"
)


def capture_section(found: FusedProfile, capture: Capture, breaks: int = MAX_BREAKS, *, brief: bool = False) -> Section:
    """Partial graphs, so many breaks with their price, guards, and what further inputs recompile. A ``brief`` one lists
    no guards, and of the price on several GPUs the time alone."""
    facts = [("not captured", capture.failure)] if capture.failure is not None else _facts(found, capture, brief)
    blocks: list[Block] = [known_facts(*facts), *_break_tables(found, capture, breaks, brief)]
    if capture.guards and not brief:
        rows = capture.guards[:MAX_GUARDS]
        more = sum(capture.guard_kinds.values()) - len(rows)
        note = f"and {more:,} more; where one fails, Dynamo captures again"
        blocks.append(col.listing("Guards", rows, "kind, guard on: name name, must hold: check prose", note))
    blocks += [Sentence(_recompile(call)) for call in capture.recompiles]
    return Section("Capture by TorchDynamo", blocks)


def _facts(found: FusedProfile, capture: Capture, brief: bool) -> list[tuple[str, str]]:
    inside = sum(region >= 0 for region in capture.regions)
    phases = [op.phase for op, r in zip(found.profile.graph.ops, capture.regions, strict=False) if r < 0]
    optimizer = phases.count("optimizer")
    tail = f" ({optimizer:,} of them the optimizer's)" if optimizer else ""
    graphs = f"{len(capture.graphs)} run, {capture.captures} captured; {counted(inside, 'op')} in them"
    breaks, lines = sum(item.count for item in capture.breaks), counted(len(capture.breaks), "line")
    whole = "none: one graph" if len(capture.graphs) == 1 else "none"
    most = sorted(capture.guard_kinds.items(), key=lambda item: -item[1])
    kinds = "--all lists them" if brief else ", ".join(f"{kind} {count:,}" for kind, count in most)
    unmatched = f"; {capture.unmatched} ops have no counterpart" if capture.unmatched else ""
    return [
        ("graphs", f"{graphs}, {len(phases):,} outside{tail}"),
        ("breaks", f"{breaks:,}, at {lines}" if breaks else whole),
        ("guards", f"{sum(capture.guard_kinds.values()):,}: {kinds}" if capture.guard_kinds else "none"),
        ("traced on", f"{capture.data} tensors{unmatched}"),
        *(("note", note) for note in capture.notes),
    ]


def _break_tables(found: FusedProfile, capture: Capture, most: int, brief: bool) -> list[Block]:
    rows = capture.breaks[:most]
    if not rows:
        return []
    if brief and len(found.prices) > 1:
        return _brief_breaks(found, rows, len(capture.breaks) - len(rows))
    blocks: list[Block] = []
    for gpu, prices in found.prices.items() or [("", None)]:
        losses: list[Loss | None] = [None] * len(rows) if prices is None else [*prices.each[: len(rows)]]
        lost = [(None, None, None) if x is None else (x.dram_bytes, x.time_s, x.kernels) for x in losses]
        table = [
            (f"{b.file}:{b.line}", b.count, b.after_op, *loss, _why(found, b))
            for b, loss in zip(rows, lost, strict=True)
        ]
        specs = "at: 0, : 1 repeats, after op: 2 count, bytes: 3 B, time: 4 s, kernels: 5 count, why: 6 prose"
        title = f"Graph breaks{f' and their price on {gpu}' if gpu else ''}"
        blocks.append(col.listing(title, table, specs, BREAK_NOTE, left=len(capture.breaks) - len(rows)))
        if prices is not None:
            blocks.append(Sentence(_together(gpu, prices.together, found), strong=True))
    return blocks


def _brief_breaks(found: FusedProfile, rows: Sequence[Break], left: int) -> list[Block]:
    """One table of the breaks, with the time that each costs on each GPU."""
    costs = [[None if loss is None else loss.time_s for loss in prices.each] for prices in found.prices.values()]
    table = [
        (f"{b.file}:{b.line}", b.count, b.after_op, _why(found, b), *times)
        for b, *times in zip(rows, *costs, strict=False)
    ]
    times = ", ".join(f"{clean(gpu)}: {4 + number} s" for number, gpu in enumerate(found.prices))
    specs = f"at: 0, : 1 repeats, after op: 2 count, {times}, why: 3 prose"
    said = [Sentence(_together(gpu, prices.together, found), strong=True) for gpu, prices in found.prices.items()]
    return [col.listing("Graph breaks and the time that each costs", table, specs, BREAK_NOTE, left=left), *said]


def _why(found: FusedProfile, item: Break) -> str:
    source = f" ({item.source_line.strip()})" if item.source_line.strip() else ""
    ops = found.profile.graph.ops
    if item.after_op is None or item.after_op >= len(ops):
        return f"{item.reason}{source}"
    module = ops[item.after_op].module
    return f"{item.reason}{source}{f', in module {module}' if module else ''}"


def _together(gpu: str, loss: Loss, found: FusedProfile) -> str:
    eager = found.profile.dram_bytes
    share = percent(loss.dram_bytes / eager if eager else 0.0)
    launches = (
        f"{abs(loss.kernels):,} {'fewer' if loss.kernels < 0 else 'more'} launch{'es' * (abs(loss.kernels) != 1)}"
    )
    return (
        f"All breaks together cost {size(loss.dram_bytes)} of DRAM traffic ({share} of what eager moves),"
        f" {duration(loss.time_s)} and {launches} on {gpu}; what Python takes between two graphs comes on top."
    )


def _recompile(call: Recompile) -> str:
    inputs = ", ".join(call.inputs)
    if not call.captures:
        return f"With {inputs} nothing is captured again."
    why = f" because {'; '.join(call.reasons)}" if call.reasons else ""
    became = f"; {', '.join(call.dynamic)} became dynamic" if call.dynamic else ""
    return f"With {inputs} Dynamo captures {counted(call.captures, 'graph')} again{why}{became}."
