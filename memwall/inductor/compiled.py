"""The ``inductor`` policy: the groups that torch.compile's own scheduler forms, priced like any other plan.

:mod:`memwall.inductor` runs the compiler; this module turns its kernels into groups. Bytes follow memwall's
counting rules, so that policies compare; Inductor's further bytes (scratch of split reductions, partial sums) go into
``extra_bytes``, that is, into ``time_s`` only. Inductor itself splits reductions of few rows over the GPU. The
optimizer stays eager, as under ``torch.compile(model)``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from memwall.core import compat
from memwall.core.graph import Graph, TensorSpec
from memwall.fusion.plan import Group, Part, Placement, Plan, in_order, not_run
from memwall.fusion.pricing import Pricer, library_launches, loses_rows, with_launches
from memwall.fusion.repeats import shorten
from memwall.hardware.lookup import Gpu
from memwall.inductor import Lowered, LoweredKernel, lower
from memwall.ops import Cost
from memwall.ops.contraction import is_aligned
from memwall.ops.launches import Stream
from memwall.ops.loops import FAR
from memwall.ops.product_launches import Convolution, Gemm

#: padding adds fewer elements to a side: 16 bytes of the narrowest operands
_MOST_PADDED = 8


def inductor_plan(graph: Graph, costs: Sequence[Cost], gpu: Gpu, regions: Sequence[int] | None = None) -> Plan:
    """What ``torch.compile(model)`` would launch on ``gpu``; a MissingError without Triton, or where torch's internals
    are not as memwall knows them."""
    return plan_of(graph, costs, gpu, kernels_of(graph, gpu, regions).kernels)


def kernels_of(graph: Graph, gpu: Gpu, regions: Sequence[int] | None = None, *, source: bool = False) -> Lowered:
    """Inductor's kernels for a whole graph, as :func:`memwall.inductor.lower`; of repeated layers, four are
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
    """The plan of some lowered kernels; ops that are in none of them run alone, outside of compiled code."""
    pricer = Pricer(graph, costs, gpu)
    home = {op for kernel in kernels for op in kernel.op_ids}
    alone = [op.id for op in graph.ops if op.id not in home]
    eager = [op for kernel in kernels if kernel.kind == "eager" for op in kernel.op_ids]
    pricer.placement = Placement(
        [*(Part(kernel.op_ids, kernel.recomputes) for kernel in kernels), *(Part((op,)) for op in alone)]
    )
    groups = [_group(pricer, kernel) for kernel in kernels if kernel.op_ids]
    groups += [pricer.alone(op) for op in alone]
    with contextlib.suppress(ValueError):  # an op whose kernels are apart is one group here: keep the compiler's order
        groups = in_order(pricer.flow, groups)
    return Plan("inductor", tuple(groups), outside=frozenset((*alone, *eager)))


def _group(pricer: Pricer, kernel: LoweredKernel) -> Group:
    if not kernel.launches:
        return not_run(kernel.op_ids)
    graph = pricer.graph
    if kernel.kind in ("extern", "eager") and len(kernel.op_ids) == 1:
        # the library's kernel, with the launches of its eager call
        group = pricer.alone(kernel.op_ids[0])
        return replace(group, cost=_as_called(graph, group.cost, kernel), name=kernel.name, source=kernel.source)
    group = pricer.group(kernel.op_ids, kernel.recomputes)
    kernels = max(kernel.launches, library_launches(graph, pricer.costs, kernel.op_ids))
    cost = with_launches(
        group.cost,
        kernels=kernels,
        extra_bytes=_beyond(pricer, kernel, group),
        extra_flops=group.cost.extra_flops,
        numbers=_numbers(kernel),
    )
    return replace(group, cost=_as_called(graph, cost, kernel), name=kernel.name, source=kernel.source)


def _numbers(kernel: LoweredKernel) -> int:
    """Random numbers that a kernel uses of the four of a call: one, or all in torch's later code for loops without
    rows (``_can_use_4x_random`` of its Triton back end, which a tile of two axes fails too)."""
    if "reduction" in kernel.loop_ops or kernel.loop_ops.keys().isdisjoint(("rand", "randn")):
        return 1
    return 4 if hasattr(compat.TritonOverrides, compat.name_of("can_use_4x_random")) else 1


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


def _as_called(graph: Graph, cost: Cost, kernel: LoweredKernel) -> Cost:
    """The cost of a library's convolution or product as Inductor calls it, with Inductor's launches around it: it adds
    a convolution's bias and sums its gradient, copies tensors to channels last and back, and pads products."""
    if kernel.kind != "extern":
        return cost
    convolutions = [launch for launch in cost.launches if isinstance(launch, Convolution)]
    products = [launch for launch in cost.launches if isinstance(launch, Gemm)]
    own, about = cost.launches, "Inductor's kernel around the library's"
    count = max(kernel.launches - len(kernel.around) - max(len(convolutions), 1), 0) + 1
    if convolutions:  # launches of the eager call around them have no place here
        last = convolutions[0].channels_last or kernel.channels_last
        first, *others = (replace(one, count=1, channels_last=last) for one in convolutions)
        own = (replace(first, count=count), *others)
    elif len(products) == 1 and kernel.operands:
        called = replace(_on_operands(graph, products[0], kernel), count=count)
        own = tuple(called if launch is products[0] else launch for launch in own)
        about = "Inductor's padding of an operand" if called.padded_from else about
    else:
        return cost
    around = (
        Stream(kind="generated", read_bytes=read, write_bytes=written, about=about) for read, written in kernel.around
    )
    return replace(cost, launches=(*own, *around))


def _on_operands(graph: Graph, launch: Gemm, kernel: LoweredKernel) -> Gemm:
    """The product of the matrices that Inductor hands the library: padded, or laid in rows with gaps between them."""
    dtype = graph.values[graph.ops[kernel.op_ids[0]].outputs[0]].spec.dtype
    left, right = (TensorSpec(*laid, dtype) for laid in kernel.operands)
    (m, k), n = left.shape[-2:], right.shape[-1]
    added = m - launch.m, n - launch.n, k - launch.k
    asked, launch = launch, replace(launch, aligned=is_aligned(left) and is_aligned(right))
    if not any(added) or any(not 0 <= more < _MOST_PADDED for more in added):
        return launch
    more = launch.batch * (m * k + k * n - launch.m * launch.k - launch.k * launch.n) * left.itemsize
    written = launch.batch * (m * n - launch.m * launch.n) * left.itemsize
    return replace(
        launch,
        m=m,
        n=n,
        k=k,
        padded_from=asked,
        write_bytes=launch.write_bytes + written,
        read_bytes=max(launch.read_bytes + more, left.nbytes + right.nbytes),
    )
