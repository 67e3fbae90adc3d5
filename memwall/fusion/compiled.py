"""The ``inductor`` policy: the groups that torch.compile's own scheduler forms, priced like any other plan.

:mod:`memwall.fusion.inductor` runs the compiler; this module turns its kernels into groups. Bytes follow memwall's
counting rules, so that policies compare; Inductor's further bytes (scratch of split reductions, partial sums) go into
``extra_bytes``, that is, into ``time_s`` only. Inductor itself splits reductions of few rows over the GPU. The
optimizer stays eager, as under ``torch.compile(model)``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from memwall.core.graph import Graph
from memwall.fusion.inductor import Lowered, LoweredKernel, lower
from memwall.fusion.plan import Group, Part, Plan, in_order, not_run
from memwall.fusion.pricing import Placement, Pricer, library_launches, with_launches
from memwall.fusion.repeats import shorten
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops.loops import FAR


def inductor_plan(graph: Graph, costs: Sequence[Cost], gpu: Gpu, regions: Sequence[int] | None = None) -> Plan:
    """What ``torch.compile(model)`` would launch on ``gpu``; a MissingError without Triton, or where torch's internals
    are not those that memwall knows."""
    return plan_of(graph, costs, gpu, kernels_of(graph, gpu, regions).kernels)


def kernels_of(graph: Graph, gpu: Gpu, regions: Sequence[int] | None = None, *, source: bool = False) -> Lowered:
    """Inductor's kernels for a whole graph, as :func:`memwall.fusion.inductor.lower`; of repeated layers, four are
    compiled and represent the others. Inductor recomputes residual sums over several layers before it writes one, so
    four layers do not always show the same period as all of them. Loops over steps are compiled whole: how far
    Inductor fuses across steps, a few of them do not show."""
    short = shorten(graph, loops=False) if regions is None else None
    if short is None or short.graph is graph:
        return lower(graph, gpu, source=source, regions=regions)
    lowered = lower(short.graph, gpu, source=source)
    compiled = {op for kernel in lowered.kernels for op in kernel.op_ids}
    kernels = lowered.kernels
    parts = [Part(kernel.op_ids, kernel.recomputes) for kernel in kernels]
    whole = short.expand([*parts, *(Part((op.id,)) for op in short.graph.ops if op.id not in compiled)])
    if whole is None:
        return lower(graph, gpu, source=source)
    moved = tuple(
        replace(kernels[p.source], op_ids=p.op_ids, recomputes=p.recomputes) for p in whole if p.source < len(kernels)
    )
    return replace(lowered, kernels=moved)


def plan_of(graph: Graph, costs: Sequence[Cost], gpu: Gpu, kernels: Sequence[LoweredKernel]) -> Plan:
    """The plan of some lowered kernels; ops that are in none of them run alone."""
    pricer = Pricer(graph, costs, gpu)
    home = {op for kernel in kernels for op in kernel.op_ids}
    alone = [op.id for op in graph.ops if op.id not in home]
    pricer.placement = Placement(
        [*(Part(kernel.op_ids, kernel.recomputes) for kernel in kernels), *(Part((op,)) for op in alone)]
    )
    groups = [_group(pricer, kernel) for kernel in kernels if kernel.op_ids]
    groups += [pricer.alone(op) for op in alone]
    with contextlib.suppress(ValueError):  # an op whose kernels are apart is one group here: keep the compiler's order
        groups = in_order(pricer.flow, groups)
    return Plan("inductor", tuple(groups))


def _group(pricer: Pricer, kernel: LoweredKernel) -> Group:
    if not kernel.launches:
        return not_run(kernel.op_ids)
    if kernel.kind == "extern" and len(kernel.op_ids) == 1:
        # the library's kernel, with the launches of its eager call
        return replace(pricer.alone(kernel.op_ids[0]), name=kernel.name, source=kernel.source)
    group = pricer.group(kernel.op_ids, kernel.recomputes)
    beyond = max(kernel.read_bytes + kernel.write_bytes - group.cost.bytes, 0)
    if kernel.kind == "extern" or any(pricer.loops[i].kind in _PARTIAL for i in (*group.op_ids, *group.recomputes)):
        beyond = 0
    kernels = max(kernel.launches, library_launches(pricer.graph, pricer.costs, kernel.op_ids))
    cost = with_launches(
        group.cost, group.cost.launches, kernels=kernels, extra_bytes=beyond, extra_flops=group.cost.extra_flops
    )
    return replace(group, cost=cost, name=kernel.name, source=kernel.source)


#: Kinds of ops that touch some rows of a tensor, all of which Inductor counts.
_PARTIAL = (*FAR, "scatter")
