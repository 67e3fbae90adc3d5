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
from memwall.fusion.plan import Group, Part, Placement, Plan, in_order, not_run
from memwall.fusion.pricing import Pricer, library_launches, loses_rows, with_launches
from memwall.fusion.repeats import shorten
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops.launches import Stream
from memwall.ops.loops import FAR
from memwall.ops.product_launches import Convolution


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
        group = pricer.alone(kernel.op_ids[0])
        return replace(group, cost=_with_around(group.cost, kernel), name=kernel.name, source=kernel.source)
    group = pricer.group(kernel.op_ids, kernel.recomputes)
    kernels = max(kernel.launches, library_launches(pricer.graph, pricer.costs, kernel.op_ids))
    cost = with_launches(
        group.cost, group.cost.launches, kernels=kernels, extra_bytes=_beyond(pricer, kernel, group),
        extra_flops=group.cost.extra_flops, numbers=_numbers(kernel),
    )  # fmt: skip
    return replace(group, cost=_with_around(cost, kernel), name=kernel.name, source=kernel.source)


def _numbers(kernel: LoweredKernel) -> int:
    """Random numbers that a kernel uses of the four of a call: one, or all in torch's later code for loops without
    rows (``_can_use_4x_random`` of its Triton back end, which a tile of two axes fails too)."""
    if "reduction" in kernel.loop_ops or kernel.loop_ops.keys().isdisjoint(("rand", "randn")):
        return 1
    from torch._inductor.codegen.triton import TritonOverrides

    return 4 if hasattr(TritonOverrides, "_can_use_4x_random") else 1


def _beyond(pricer: Pricer, kernel: LoweredKernel, group: Group) -> int:
    """Bytes that Inductor's kernel moves beyond the group's: scratch, copies for others that it writes too, and rows
    that a loop reads again since no cache keeps them, which Inductor counts once. What it counts of tensors that are
    read or written in part is the whole of them."""
    kinds = {pricer.loops[i].kind for i in (*group.op_ids, *group.recomputes)}
    if kernel.kind == "extern":
        return 0
    read, written = kernel.read_bytes - group.cost.read_bytes, kernel.write_bytes - group.cost.write_bytes
    if "scatter" in kinds:
        read = written = 0
    elif not kinds.isdisjoint(FAR):
        read = 0
    again = sum(nbytes for rows, nbytes in kernel.two_passes if loses_rows(pricer.gpu, rows, nbytes))
    return max(read + written, 0) + again


def _with_around(cost: Cost, kernel: LoweredKernel) -> Cost:
    """The cost with Inductor's launches around a convolution of a library in place of those of the eager call: it adds
    the bias, sums its gradient and copies tensors to channels last and back."""
    library = [launch for launch in cost.launches if isinstance(launch, Convolution)]
    if kernel.kind != "extern" or not library:
        return cost
    left = max(kernel.launches - len(kernel.around) - len(library), 0)
    first = replace(library[0], count=1 + left, channels_last=library[0].channels_last or kernel.channels_last)
    others = (replace(one, count=1, channels_last=first.channels_last) for one in library[1:])
    around = (
        Stream(kind="generated", read_bytes=read, write_bytes=written, about="Inductor's kernel around the library's")
        for read, written in kernel.around
    )
    return replace(cost, launches=(first, *others, *around))
