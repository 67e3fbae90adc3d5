"""Why a figure moved: base and head of one workload on one GPU under one policy, taken apart kernel by kernel.

Kernels of both sides that share an op (see :mod:`memwall.gate.matching`) belong together; each such cluster is one
change, and since every kernel is in exactly one cluster the changes add up to the difference of the totals. Clusters
that changed alike in the places of a repeated block form one :class:`Cause` with a count. Clusters whose ops are all
the same still differ in time where the CPU's lead or the contents of L2 changed: together the cause ``elsewhere``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from memwall.core.graph import Graph, Op
from memwall.frontend.dynamo.capture import Break, Capture
from memwall.fusion import Refusal
from memwall.gate.matching import match_ops
from memwall.gate.result import Cause
from memwall.perfmodel.roofline import Estimate
from memwall.record.kernels import collapse, common_module, shapes_text, short_name
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule

#: seconds below which a difference is rounding
_LEAST_S = 1e-12

#: names that one cause lists
_NAMED = 4

#: what each quantity is explained by: the field of a cause that is its part
MEASURE: Mapping[str, str] = {
    "kernels": "kernels", "flops": "flops", "dram_bytes": "dram_bytes", "peak_memory": "dram_bytes",
    "materialized_bytes": "dram_bytes",
}  # fmt: skip


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    profile: Profile
    schedule: Schedule

    @property
    def graph(self) -> Graph:
        """The graph that was simulated."""
        return self.profile.graphs[self.schedule.graph]

    def modeled(self, op: Op) -> bool:
        """Whether a formula models an op."""
        return self.profile.costs[self.schedule.graph][op.id].modeled


@dataclass
class Cluster:
    """Kernels of both sides that share ops, and the ops that only one side has."""

    base: list[Estimate]
    head: list[Estimate]
    appeared: list[Op]
    vanished: list[Op]
    kept: list[tuple[Op, Op]]


def explain(base: Side, head: Side, pairs: Mapping[int, int] | None = None) -> tuple[Cause, ...]:
    """All causes, most seconds first; they add up to the head's totals less the base's.

    Args:
        pairs: head op id → base op id, where :func:`match_ops` was called already.
    """
    if pairs is None:
        pairs = match_ops(base.graph, head.graph)
    refusals = _refusals(head.schedule)
    found: dict[tuple[str, ...], list[Cause]] = {}
    for cluster in _clusters(base, head, pairs):
        cause = _cause(cluster, base, head, refusals)
        if cause is not None:
            key = (cause.kind, cause.op, collapse(cause.module), cause.phase, cause.source, cause.detail)
            found.setdefault(key, []).append(cause)
    causes = [_together(rows) for rows in found.values()]
    causes = [c for c in causes if c.kind != "elsewhere" or abs(c.time_s) > _LEAST_S]
    causes.sort(key=lambda c: (-c.time_s, -c.dram_bytes, c.module, c.op, c.source, c.kind, c.detail))
    return tuple(causes)


def _clusters(base: Side, head: Side, pairs: Mapping[int, int]) -> list[Cluster]:
    """Union-find over the kernels of both sides: linked where an op of the one is an op of the other."""
    offset = len(head.schedule.kernels)
    parent = list(range(offset + len(base.schedule.kernels)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    kernel_of_base = {op: offset + i for i, k in enumerate(base.schedule.kernels) for op in k.op_ids}
    for i, kernel in enumerate(head.schedule.kernels):
        for op in kernel.op_ids:
            if op in pairs and pairs[op] in kernel_of_base:
                one, other = root(i), root(kernel_of_base[pairs[op]])
                parent[max(one, other)] = min(one, other)
    clusters: dict[int, Cluster] = {}
    stayed = set(pairs.values())
    for i, kernel in enumerate(head.schedule.kernels):
        cluster = clusters.setdefault(root(i), Cluster([], [], [], [], []))
        cluster.head.append(kernel)
        for op in kernel.op_ids:
            ours = head.graph.ops[op]
            if op in pairs:
                cluster.kept.append((base.graph.ops[pairs[op]], ours))
            else:
                cluster.appeared.append(ours)
    for i, kernel in enumerate(base.schedule.kernels):
        cluster = clusters.setdefault(root(offset + i), Cluster([], [], [], [], []))
        cluster.base.append(kernel)
        cluster.vanished += [base.graph.ops[op] for op in kernel.op_ids if op not in stayed]
    return list(clusters.values())


def _cause(cluster: Cluster, base: Side, head: Side, refusals: Mapping[int, list[Refusal]]) -> Cause | None:
    """What changed in a cluster; None where nothing did."""
    kernels = _sum(cluster.head, "launches") - _sum(cluster.base, "launches")
    flops = _sum(cluster.head, "flops") - _sum(cluster.base, "flops")
    moved = _sum(cluster.head, "bytes") - _sum(cluster.base, "bytes")
    time_s = sum(k.time_s for k in cluster.head) - sum(k.time_s for k in cluster.base)
    kind, ops, detail = _change(cluster, base, head, refusals)
    if not kind and (kernels or flops or moved):
        kind, ops, detail = (
            "changed",
            [op for _, op in cluster.kept],
            "the same ops pass other tensors through memory",
        )
    if not kind:
        return Cause("elsewhere", "", "", "", "", 1, 0, 0, 0, time_s, _ELSEWHERE) if time_s else None
    if kind == "changed":
        kind = "grew" if next((d for d in (moved, flops, time_s) if d), 0) > 0 else "shrank"
    names = list(dict.fromkeys(short_name(op.name) for op in ops))
    label = "+".join(names[:_NAMED]) + (f"+{len(names) - _NAMED} more" if len(names) > _NAMED else "")
    source = next((op.source for op in ops if op.source), "")
    module = common_module([op.module for op in ops])
    return Cause(kind, label, module, ops[0].phase, source, 1, kernels, flops, moved, time_s, detail)


_ELSEWHERE = "the same kernels waiting more or less for the CPU, or finding other bytes in L2"


def _sum(kernels: Iterable[Estimate], name: str) -> int:
    return sum(getattr(kernel, name) for kernel in kernels)


def _change(
    cluster: Cluster, base: Side, head: Side, refusals: Mapping[int, list[Refusal]]
) -> tuple[str, list[Op], str]:
    """The kind of a change, the ops that it is named after, and its detail; ``changed`` where it grew or shrank, an
    empty kind where the ops are equal."""
    if cluster.appeared:
        details = [] if all(map(head.modeled, cluster.appeared)) else ["no formula models it"]
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
    changed = [(old, new) for old, new in cluster.kept if _differ(base.graph, old, head.graph, new)]
    if not changed:
        return "", [], ""
    return ("changed", [op for _, op in changed], _difference(base.graph, changed[0][0], head.graph, changed[0][1]))


def _lost(cluster: Cluster, head: Side, refusals: Mapping[int, list[Refusal]]) -> tuple[str, list[Op], str]:
    """A fusion that is lost: named after the two ops that the planner refused to fuse, where it says so."""
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


def _names(ops: Sequence[Op]) -> str:
    names = list(dict.fromkeys(short_name(op.name) for op in ops))
    return "+".join(names[:_NAMED]) + ("+…" if len(names) > _NAMED else "")


def _shapes(graph: Graph, op: Op) -> str:
    """``f16[8,512] -> f32[8,512]``: what an op reads and writes, a few tensors of it, odd strides said."""
    read, written = ([_spec(graph, i) for i in ids] for ids in (op.inputs, op.outputs))
    return " -> ".join(" ".join(row[:3]) + (" …" if len(row) > 3 else "") for row in (read, written) if row)


def _spec(graph: Graph, value: int) -> str:
    spec = graph.values[value].spec
    return shapes_text([spec]) + ("" if spec.is_contiguous else "(strided)")


def _difference(before: Graph, old: Op, after: Graph, new: Op) -> str:
    """What is other about an op that is still there: its name, the first tensor that differs, its arguments."""
    if old.name != new.name:
        return f"{short_name(new.name)} where {short_name(old.name)} was"
    for ids, others in ((old.inputs, new.inputs), (old.outputs, new.outputs)):
        for one, other in zip(ids, others, strict=False):
            if before.values[one].spec != after.values[other].spec:
                return f"{_spec(after, other)} where {_spec(before, one)} was"
    names = sorted({*old.attributes, *new.attributes})
    changed = [n for n in names if old.attributes.get(n) != new.attributes.get(n)]
    rows = [f"{n} {new.attributes.get(n)} where {old.attributes.get(n)} was" for n in changed[:3]]
    return ", ".join(rows)[:160] or f"{len(new.inputs)} inputs where {len(old.inputs)} were"


def _differ(before: Graph, old: Op, after: Graph, new: Op) -> bool:
    """Whether an op that is still there does something else."""
    return (
        old.name != new.name
        or before.specs(old.inputs) != after.specs(new.inputs)
        or before.specs(old.outputs) != after.specs(new.outputs)
        or old.attributes != new.attributes
    )


def _refusals(schedule: Schedule) -> dict[int, list[Refusal]]:
    """Consumer op id → why it was not fused."""
    found: dict[int, list[Refusal]] = {}
    for refusal in schedule.plan.refusals if schedule.plan is not None else ():
        found.setdefault(refusal.consumer, []).append(refusal)
    return found


def _together(rows: Sequence[Cause]) -> Cause:
    """Equal changes in several places as one."""
    first = rows[0]
    if len(rows) == 1:
        return first
    modules = dict.fromkeys(row.module for row in rows)
    sums = {
        name: sum(getattr(row, name) for row in rows) for name in ("count", "kernels", "flops", "dram_bytes", "time_s")
    }
    return replace(first, module=first.module if len(modules) == 1 else collapse(first.module), **sums)


# -- what moved one quantity -------------------------------------------------------------------------------------------


def top(causes: Sequence[Cause], quantity: str, *, lower: bool, count: int) -> tuple[Cause, ...]:
    """The causes that moved a quantity for the worse, most first; those beyond ``count`` are summed into one."""
    measure = MEASURE.get(quantity, "time_s")
    sign = 1 if lower or measure == "time_s" else -1
    worse = [cause for cause in causes if sign * getattr(cause, measure) > 0]
    worse.sort(key=lambda cause: (cause.kind == "elsewhere", -sign * getattr(cause, measure)))
    if len(worse) <= count:
        return tuple(worse)
    rest = worse[count - 1 :]
    sums = {
        name: sum(getattr(row, name) for row in rest) for name in ("count", "kernels", "flops", "dram_bytes", "time_s")
    }
    return (*worse[: count - 1], Cause("elsewhere", "", "", "", "", detail=f"{len(rest)} further changes", **sums))


def largest(side: Side, quantity: str, kernels: Sequence[Estimate], count: int) -> tuple[Cause, ...]:
    """Where a figure comes from that has no baseline: the kernels with the largest part of it, equal ones together."""
    measure = {"kernels": "launches", "flops": "flops", "dram_bytes": "bytes", "bound_s": "bound_s"}.get(
        quantity, "time_s"
    )
    ops = side.graph.ops
    found: dict[tuple[str, ...], list[Cause]] = {}
    weight: dict[tuple[str, ...], float] = {}
    for kernel in kernels:
        mine = [ops[i] for i in kernel.op_ids]
        source = next((op.source for op in mine if op.source), "")
        module = common_module([op.module for op in mine])
        key = (kernel.name, collapse(module), mine[0].phase, source)
        name, phase = short_name(kernel.name), mine[0].phase
        cause = Cause("largest", name, module, phase, source, 1, kernel.launches, kernel.flops, kernel.bytes,
                      kernel.time_s, "")  # fmt: skip
        found.setdefault(key, []).append(cause)
        weight[key] = weight.get(key, 0.0) + getattr(kernel, measure)
    order = sorted(found, key=lambda key: (-weight[key], key))
    return tuple(_together(found[key]) for key in order[:count])


def new_breaks(base: Capture | None, head: Capture | None, graph: Graph) -> tuple[Cause, ...]:
    """Graph breaks of the head (whose ops are in ``graph``) that the base did not meet, or met less often."""
    before = _breaks(base)
    causes = []
    for key, rows in _breaks(head).items():
        more = sum(b.count for b in rows) - sum(b.count for b in before.get(key, []))
        if more > 0:
            row = rows[0]
            called = _METHOD.search(row.reason)
            module = graph.ops[row.after_op].module if row.after_op is not None else ""
            name, at = called[0] if called else row.function, f"{row.file}:{row.line}"
            detail = f"{row.reason}: {row.source_line}"
            causes.append(Cause("graph break", name, module, "forward", at, more, 0, 0, 0, 0.0, detail))
    return tuple(sorted(causes, key=lambda c: (-c.count, c.source)))


_METHOD = re.compile(r"Tensor\.\w+\(\)")


def _breaks(capture: Capture | None) -> dict[tuple[str, str, str], list[Break]]:
    found: dict[tuple[str, str, str], list[Break]] = {}
    for row in capture.breaks if capture else ():
        found.setdefault((row.reason, row.function, row.source_line), []).append(row)
    return found
