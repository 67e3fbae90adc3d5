"""What changed from one profile to another: base and head on one GPU under one policy, kernel by kernel.

Kernels of both sides that share an op (see :mod:`memwall.analysis.matching`) belong together; each such cluster is one
change, and since every kernel is in exactly one cluster the changes add up to the difference of the totals. Clusters
that changed alike in the places of a repeated block form one :class:`Cause` with a count. Clusters whose ops are all
the same still differ in time if the CPU's lead or the contents of L2 changed: these form the cause ``elsewhere``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memwall.analysis.matching import clusters, match_ops
from memwall.analysis.quantities import LIMITS
from memwall.analysis.table import group_by, merged, sums
from memwall.core.graph import Graph, Op
from memwall.fusion import Refusal
from memwall.perfmodel.roofline import Estimate
from memwall.record.capture import Break, Capture
from memwall.record.kernels import collapse, common_module, shapes_text, short_name
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule

#: seconds below which a difference is rounding
_LEAST_S = 1e-12

#: most names that one cause lists
_NAMED = 4

#: kind of the cause that stands for all that are not named
ELSEWHERE = "elsewhere"
#: unit of a quantity -> the field of a cause that is its part; seconds for all others
_PART = {"count": "kernels", "FLOP": "flops", "B": "dram_bytes"}

_ADDED = ("count", "kernels", "flops", "dram_bytes", "time_s")


@dataclass(frozen=True, slots=True)
class Cause:
    """Kernels that changed together, summed over ``count`` equal places (the numbers of repeated blocks as stars).
    ``kind``: appeared, vanished, grew, shrank, lost fusion, fused, graph break, elsewhere; or largest: without a
    baseline, a main contributor to a figure, with its own sums. ``kernels``, ``flops``, ``dram_bytes`` and ``time_s``
    are head less base, so that the causes of one workload on one GPU under one policy add up to the difference of the
    totals. ``source`` is ``path:line`` in the head (in the base for what vanished), or empty. ``detail`` says in words
    what changed."""

    kind: str
    op: str
    module: str
    phase: str
    source: str
    count: int
    kernels: int
    flops: int
    dram_bytes: int
    time_s: float
    detail: str


@dataclass(frozen=True)
class DiffSide:
    """One side of the comparison."""

    profile: Profile
    schedule: Schedule

    @property
    def graph(self) -> Graph:
        return self.profile.graphs[self.schedule.graph]


@dataclass
class OpCluster:
    """Kernels of both sides that share ops, and the ops that only one side has."""

    base: list[Estimate]
    head: list[Estimate]
    appeared: list[Op]
    vanished: list[Op]
    kept: list[tuple[Op, Op]]


def explain(base: DiffSide, head: DiffSide, pairs: Mapping[int, int] | None = None) -> tuple[Cause, ...]:
    """All causes, most seconds first; they add up to the head's totals less the base's. ``pairs``: head op id → base op
    id, where :func:`match_ops` was called already."""
    if pairs is None:
        pairs = match_ops(base.graph, head.graph)
    refused = head.schedule.plan.refusals if head.schedule.plan is not None else ()
    refusals = group_by(refused, [refusal.consumer for refusal in refused])
    causes = [c for cluster in _clusters(base, head, pairs) if (c := _cause(cluster, base, head, refusals)) is not None]
    keys = [(c.kind, c.op, collapse(c.module), c.phase, c.source, c.detail) for c in causes]
    causes = [together(rows) for rows in group_by(causes, keys).values()]
    causes = [c for c in causes if c.kind != "elsewhere" or abs(c.time_s) > _LEAST_S]
    causes.sort(key=lambda c: (-c.time_s, -c.dram_bytes, c.module, c.op, c.source, c.kind, c.detail))
    return tuple(causes)


def _clusters(base: DiffSide, head: DiffSide, pairs: Mapping[int, int]) -> Iterator[OpCluster]:
    ours, theirs = head.schedule.kernels, base.schedule.kernels
    stayed = set(pairs.values())
    for mine, other in clusters([k.op_ids for k in ours], [k.op_ids for k in theirs], pairs.get):
        heads, bases = [ours[i] for i in mine], [theirs[i] for i in other]
        ops = [head.graph.ops[op] for kernel in heads for op in kernel.op_ids]
        yield OpCluster(
            bases,
            heads,
            appeared=[op for op in ops if op.id not in pairs],
            vanished=[base.graph.ops[op] for kernel in bases for op in kernel.op_ids if op not in stayed],
            kept=[(base.graph.ops[pairs[op.id]], op) for op in ops if op.id in pairs],
        )


def _cause(cluster: OpCluster, base: DiffSide, head: DiffSide, refusals: Mapping[int, list[Refusal]]) -> Cause | None:
    """What changed in a cluster; None where nothing did."""
    before, after = (sums(side, ("launches", "flops", "bytes", "time_s")) for side in (cluster.base, cluster.head))
    kernels, flops, moved, time_s = (after[name] - before[name] for name in after)
    kind, ops, detail = _change(cluster, base, head, refusals)
    if not kind and (kernels or flops or moved):
        kind, ops = "changed", [op for _, op in cluster.kept]
        detail = "the same ops pass other tensors through memory"
    if not kind:
        return Cause("elsewhere", "", "", "", "", 1, 0, 0, 0, time_s, _ELSEWHERE) if time_s else None
    if kind == "changed":
        kind = "grew" if next((d for d in (moved, flops, time_s) if d), 0) > 0 else "shrank"
    return Cause(kind, _names(ops, "+{} more"), *_place(ops), 1, kernels, flops, moved, time_s, detail)


def _place(ops: Sequence[Op]) -> tuple[str, str, str]:
    """Module, phase and source line."""
    source = next((op.source for op in ops if op.source), "")
    return common_module([op.module for op in ops]), ops[0].phase, source


_ELSEWHERE = "the same kernels waiting more or less for the CPU, or finding other bytes in L2"


def _change(
    cluster: OpCluster, base: DiffSide, head: DiffSide, refusals: Mapping[int, list[Refusal]]
) -> tuple[str, list[Op], str]:
    """The kind of a change, the ops that it is named after, and its detail; ``changed`` if it grew or shrank, empty if
    the ops are equal."""
    if cluster.appeared:
        costs = head.profile.costs[head.schedule.graph]
        details = [] if all(costs[op.id].modeled for op in cluster.appeared) else ["no formula models it"]
        if cluster.vanished:
            details.append("in place of " + _names(cluster.vanished))
        if cluster.base and len(cluster.head) > len(cluster.base):
            details.append(f"parts {_names([op for op, _ in cluster.kept])}, which {_were(cluster.base)}")
        return "appeared", cluster.appeared, "; ".join(details) or _shapes(head.graph, cluster.appeared[0])
    if cluster.vanished:
        return "vanished", cluster.vanished, _shapes(base.graph, cluster.vanished[0])
    if len(cluster.head) > len(cluster.base):
        return _lost(cluster, head, refusals)
    if len(cluster.head) < len(cluster.base):
        return "fused", [op for _, op in cluster.kept], f"{_count(cluster.head)} where {_were(cluster.base)}"
    differences = [(new, _difference(base.graph, old, head.graph, new)) for old, new in cluster.kept]
    changed = [(op, text) for op, text in differences if text]
    return ("changed", [op for op, _ in changed], changed[0][1]) if changed else ("", [], "")


def _lost(cluster: OpCluster, head: DiffSide, refusals: Mapping[int, list[Refusal]]) -> tuple[str, list[Op], str]:
    """A lost fusion, named after the two ops that the planner refused to fuse, if known."""
    ours = [op for _, op in cluster.kept]
    detail = f"{_count(cluster.head)} where {_were(cluster.base)}"
    inside = {op.id for op in ours}
    apart = [r for op in ours for r in refusals.get(op.id, ()) if r.producer in inside]
    if not apart:
        return "lost fusion", ours, detail
    first = min(apart, key=lambda r: (r.consumer - r.producer, r.consumer))  # others follow from it
    pair = [head.graph.ops[i] for i in (first.consumer, first.producer)]
    return "lost fusion", pair, f"{detail}: {first.reason}"


def _count(kernels: Sequence[Estimate]) -> str:
    return f"{len(kernels)} kernel{'s' if len(kernels) != 1 else ''}"


def _were(kernels: Sequence[Estimate]) -> str:
    return "was one" if len(kernels) == 1 else f"were {len(kernels)}"


def _names(ops: Sequence[Op], more: str = "+…") -> str:
    names = list(dict.fromkeys(short_name(op.name) for op in ops))
    return "+".join(names[:_NAMED]) + (more.format(len(names) - _NAMED) if len(names) > _NAMED else "")


def _shapes(graph: Graph, op: Op) -> str:
    """``f16[8,512] -> f32[8,512]``: what an op reads and writes, a few tensors each, with unusual strides."""
    read, written = ([_spec(graph, i) for i in ids] for ids in (op.inputs, op.outputs))
    return " -> ".join(" ".join(row[:3]) + (" …" if len(row) > 3 else "") for row in (read, written) if row)


def _spec(graph: Graph, value: int) -> str:
    spec = graph.values[value].spec
    return shapes_text([spec]) + ("" if spec.is_contiguous else "(strided)")


def _listed(value: Any) -> Any:
    """Attributes as a saved record gives them back: sequences as lists."""
    if isinstance(value, Mapping):
        return {name: _listed(item) for name, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, (list, tuple)) else value


def _difference(before: Graph, old: Op, after: Graph, new: Op) -> str:
    """How a matched op differs: its name, the first tensor that differs, its arguments; empty if it does not."""
    if old.name != new.name:
        return f"{short_name(new.name)} where {short_name(old.name)} was"
    for ids, others in ((old.inputs, new.inputs), (old.outputs, new.outputs)):
        for one, other in zip(ids, others, strict=False):
            if before.values[one].spec != after.values[other].spec:
                return f"{_spec(after, other)} where {_spec(before, one)} was"
    was, now = _listed(old.attributes), _listed(new.attributes)
    if changed := [name for name in sorted({*was, *now}) if was.get(name) != now.get(name)]:
        return ", ".join(f"{name} {now.get(name)} where {was.get(name)} was" for name in changed[:3])[:160]
    if (len(old.inputs), len(old.outputs)) != (len(new.inputs), len(new.outputs)):
        return f"{len(new.inputs)} inputs where {len(old.inputs)} were"
    return ""


def together(rows: Sequence[Cause]) -> Cause:
    """Merge equal changes in several places."""
    first = rows[0]
    if len(rows) == 1:
        return first
    modules = {row.module for row in rows}
    return merged(rows, _ADDED, module=first.module if len(modules) == 1 else collapse(first.module))


def top(causes: Sequence[Cause], quantity: str, *, count: int) -> tuple[Cause, ...]:
    """The causes that made a quantity worse, most first; causes beyond ``count`` are summed into one."""
    measure = _PART.get(LIMITS[quantity].unit, "time_s")
    sign = 1 if LIMITS[quantity].lower or measure == "time_s" else -1
    worse = [cause for cause in causes if sign * getattr(cause, measure) > 0]
    worse.sort(key=lambda cause: (cause.kind == ELSEWHERE, -sign * getattr(cause, measure)))
    if len(worse) <= count:
        return tuple(worse)
    rest = worse[count - 1 :]
    others = Cause(ELSEWHERE, "", "", "", "", detail=f"{len(rest)} further changes", **sums(rest, _ADDED))
    return (*worse[: count - 1], others)


def largest(side: DiffSide, quantity: str, kernels: Sequence[Estimate], count: int) -> tuple[Cause, ...]:
    """The main contributors to a figure without a baseline: the kernels with the largest parts, equal ones together."""
    wanted = LIMITS[quantity] if LIMITS[quantity].adds else LIMITS["time_s"]
    causes = [
        Cause(
            "largest",
            short_name(kernel.name),
            *_place([side.graph.ops[i] for i in kernel.op_ids]),
            1,
            kernel.launches,
            kernel.flops,
            kernel.bytes,
            kernel.time_s,
            "",
        )
        for kernel in kernels
    ]
    keys = [(kernel.name, collapse(c.module), c.phase, c.source) for kernel, c in zip(kernels, causes, strict=True)]
    weight = {key: sum(map(wanted.of, own)) for key, own in group_by(kernels, keys).items()}
    found = group_by(causes, keys)
    order = sorted(found, key=lambda key: (-weight[key], key))
    return tuple(together(found[key]) for key in order[:count])


def new_breaks(base: Capture | None, head: Capture | None, graph: Graph) -> tuple[Cause, ...]:
    """Graph breaks of the head (whose ops are in ``graph``) that the base did not meet, or met less often."""
    before = _breaks(base)
    causes = []
    for key, rows in _breaks(head).items():
        more = sum(b.count for b in rows) - sum(b.count for b in before.get(key, []))
        if more > 0:
            row = rows[0]
            called = re.search(r"Tensor\.\w+\(\)", row.reason)
            module = graph.ops[row.after_op].module if row.after_op is not None else ""
            name, at = called[0] if called else row.function, f"{row.file}:{row.line}"
            detail = f"{row.reason}: {row.source_line}"
            causes.append(Cause("graph break", name, module, "forward", at, more, 0, 0, 0, 0.0, detail))
    return tuple(sorted(causes, key=lambda c: (-c.count, c.source)))


def _breaks(capture: Capture | None) -> dict[tuple[str, str, str], list[Break]]:
    breaks = capture.breaks if capture else ()
    return group_by(breaks, [(row.reason, row.function, row.source_line) for row in breaks])


def other_step(before: Profile | None, after: Profile) -> list[str]:
    """Differences of the compared step that no limit covers: smaller inputs cost less, another torch has other
    kernels."""
    if before is None:
        return []
    names = ("mode", "inputs", "optimizer", "autocast")
    rows = [(name, getattr(before.workload, name), getattr(after.workload, name)) for name in names]
    rows.append(("torch", before.traced.version.name, after.traced.version.name))
    return [f"{name} {_short(new)} where the base has {_short(old)}" for name, old, new in rows if old != new]


def _short(value: Any) -> str:
    """``bfloat16[101, 64]`` of inputs, anything else as it is, of readable length."""
    if isinstance(value, tuple):
        value = ", ".join(f"{row.get('dtype', '')}{row.get('shape', '')}" for row in value)
    return value if len(str(value)) <= 80 else f"{str(value)[:79]}…"
