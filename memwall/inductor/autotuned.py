"""The ``max-autotune`` policy: Inductor's kernels, and for each product and convolution what only timing decides.

``torch.compile(mode="max-autotune")`` runs the library's kernel and Triton templates of its own on the GPU and keeps
the quickest. Which it is, no model says: ``time_s`` is the library's, and ``low_s`` reaches down to the template
(:attr:`memwall.ops.Cost.template`), which may do the pointwise kernel behind it too. What is known beforehand: which
ops have templates on which GPU, and that convolutions by windows of one place become products, in float32 without TF32
(torch/_inductor/kernel/conv.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from memwall.core.graph import EAGER, Graph, Op
from memwall.fusion.plan import Group, Plan
from memwall.hardware.lookup import Gpu
from memwall.inductor.compiled import inductor_plan
from memwall.ops import Cost
from memwall.ops.contraction import product_pipe
from memwall.ops.launches import Launch, Plain
from memwall.ops.loops import loop_of
from memwall.ops.product_launches import Convolution, Gemm

#: multiprocessors from which Inductor tries its templates (``is_big_gpu``, torch/_inductor/utils.py)
_LEAST_SM_COUNT = 68
#: the ops that have some, and the dtypes of their results (torch/_inductor/kernel: mm.py, bmm.py, conv.py)
_TEMPLATES = ("mm", "addmm", "bmm", "baddbmm", "_int_mm", "_scaled_mm", "convolution")
_DTYPES = ("float16", "bfloat16", "float32", "int32")


def autotuned_plan(graph: Graph, costs: Sequence[Cost], gpu: Gpu, regions: Sequence[int] | None = None) -> Plan:
    """What ``torch.compile(model, mode="max-autotune-no-cudagraphs")`` would launch on ``gpu``; as a CUDA graph that of
    mode ``max-autotune``. Errors as of :func:`memwall.inductor.compiled.inductor_plan`."""
    return with_choices(graph, inductor_plan(graph, costs, gpu, regions), gpu, regions)


def with_choices(graph: Graph, plan: Plan, gpu: Gpu, regions: Sequence[int] | None = None) -> Plan:
    """Inductor's plan with the choices that timing leaves open."""
    compiled = [regions is None or regions[group.op_ids[0]] != EAGER for group in plan.groups]
    groups = [_as_product(graph, one) if its else one for one, its in zip(plan.groups, compiled, strict=True)]
    if gpu.sm_count >= _LEAST_SM_COUNT:
        opened = [i for i, one in enumerate(groups) if compiled[i] and any(_is_open(graph, one))]
        epilogues = dict(_epilogues(graph, groups, opened))
        for number in opened:
            groups[number] = _with_template(groups[number], Plain())
        for number, moved in epilogues.items():
            groups[number] = _with_template(groups[number], spared_bytes=moved)
    return replace(plan, policy="max-autotune", groups=tuple(groups))


def _is_open(graph: Graph, group: Group) -> Iterator[bool]:
    """For each of the group's ops whether a template may do it."""
    products = [launch for launch in group.cost.launches if isinstance(launch, (Gemm, Convolution))]
    for op in map(graph.ops.__getitem__, group.op_ids):
        named = op.name.removeprefix("aten.").partition(".")[0] in _TEMPLATES
        yield named and bool(products) and _dtype(graph, op) in _DTYPES and all(map(_has_template, products))


def _dtype(graph: Graph, op: Op) -> str:
    return graph.values[op.outputs[0]].spec.dtype


def _has_template(launch: Launch) -> bool:
    """Convolutions of two and three dimensions have one, unless they are transposed or dilated."""
    if not isinstance(launch, Convolution):
        return True
    return len(launch.kernel) > 1 and launch.role == "forward" and max(launch.dilation, default=1) == 1


def _as_product(graph: Graph, group: Group) -> Group:
    """The group with its convolution as a product, where the window is one place and the channels are innermost."""
    launch = group.cost.launches[0] if group.cost.launches else None
    if not isinstance(launch, Convolution) or not launch.channels_last or not any(_is_open(graph, group)):
        return group
    if math.prod(launch.kernel) > 1 or launch.groups > 1 or launch.places_in != launch.places_out:
        return group
    pipe = product_pipe(_dtype(graph, graph.ops[group.op_ids[0]]), {})
    gemm = Gemm(
        pipe=pipe,
        batch=1,
        m=launch.images * math.prod(launch.places_out),
        n=launch.channels_out,
        k=launch.channels_in,
        itemsize=launch.itemsize,
        read_bytes=launch.read_bytes,
        write_bytes=launch.write_bytes,
        count=launch.count,
    )
    cost = replace(group.cost, flops={pipe: gemm.flops}, launches=(gemm, *group.cost.launches[1:]))
    return replace(group, cost=cost)


def _epilogues(graph: Graph, groups: Sequence[Group], opened: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The pointwise kernels that alone read an open product's result, and the bytes of it that they read."""
    readers: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        for value in group.reads:
            readers.setdefault(value, []).append(number)
    for number in opened:
        for value in groups[number].writes:
            read = readers.get(value, [])
            if len(read) == 1 and _is_pointwise(graph, groups[read[0]]):
                yield read[0], graph.values[value].spec.nbytes


def _is_pointwise(graph: Graph, group: Group) -> bool:
    loops = [loop_of(graph, graph.ops[i]) for i in (*group.op_ids, *group.recomputes)]
    return group.cost.kernels == 1 and all(loop.kind == "point" and not loop.columns for loop in loops)


def _with_template(group: Group, *launches: Launch, spared_bytes: int = 0) -> Group:
    """The group, of which a template would leave so much: an epilogue, no launch and neither the result of the product
    nor its reading."""
    cost = group.cost
    left = max(cost.bytes - 2 * spared_bytes, 0)
    template = Cost(cost.flops, left, 0, launches=launches)
    return replace(group, cost=replace(cost, template=template))
