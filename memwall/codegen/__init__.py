"""Groups of ops as Triton kernels: text, without Triton; and the resources that they take once compiled.

In: a graph, its data flow, a group of a plan, a GPU. Out: a :class:`Kernel`, a Python file with ``@triton.jit``
functions and a ``run()`` that launches them; or :class:`NotGenerated`, which says why no kernel was generated.

Start with :mod:`memwall.codegen.generate` (rounds of loop nests: :mod:`~memwall.codegen.nests`); products go through
:mod:`memwall.codegen.gemm`, lists of tensors through :mod:`memwall.codegen.multi`. How each op's element is computed:
its row in :mod:`memwall.ops`, else :mod:`memwall.codegen.ops`. :mod:`memwall.codegen.planned` compiles a plan,
:mod:`memwall.codegen.emit` writes a folder.
"""

from __future__ import annotations

from memwall.codegen.generate import generate_nests
from memwall.codegen.kernel import Kernel, NotGenerated, TritonLaunch
from memwall.core.flow import Flow
from memwall.core.graph import Graph
from memwall.fusion.plan import Group
from memwall.hardware.lookup import Gpu

__all__ = ["Kernel", "NotGenerated", "TritonLaunch", "generate"]

_CONTRACTIONS = ("contraction", "convolution", "attention")


def covers(name: str) -> bool:
    """Whether kernels are generated for an op, at least for some of its forms."""
    from memwall.codegen.gemm import PRODUCTS
    from memwall.codegen.lowering import rule_of
    from memwall.codegen.multi import covers as covers_lists

    return rule_of(name) is not None or covers_lists(name) or name.removeprefix("aten.") in PRODUCTS


def generate(graph: Graph, flow: Flow, group: Group, gpu: Gpu) -> Kernel:
    """The Triton source of a group of the ``memwall`` policy, for a GPU.

    Raises:
        NotGenerated: no kernel is generated for it; says why.
    """
    ops = [graph.ops[i] for i in (*group.op_ids, *group.recomputes)]
    unnamed = next((op.name for op in ops if len(op.arguments) != len(op.inputs)), None)
    if unnamed:
        raise NotGenerated(f"the record does not name the arguments of {unnamed}")
    classes = {op.op_class for op in ops}
    if "contraction" in classes:
        from memwall.codegen.gemm import gemm_kernel

        return gemm_kernel(graph, flow, group, gpu)
    if classes & set(_CONTRACTIONS):
        raise NotGenerated("the vendor's library keeps it")
    if any(op.name.startswith(("aten._foreach_", "aten._fused_adam", "aten._fused_sgd")) for op in ops):
        from memwall.codegen.multi import multi_kernel

        return multi_kernel(graph, flow, group, gpu)
    return generate_nests(graph, flow, group, gpu)
