"""Norms that a model decomposes op by op, and the library's fused kernel in their place.

A module is a decomposed norm when its forward ops are element-wise but for a reduction and a reciprocal root, read
one activation of full size, and write one. In training its backward ops are replaced too; if they add the gradient of
another branch, an add remains. torch runs ``F.rms_norm`` and ``F.layer_norm`` as one kernel forward and one or two
backward if the weight has the input's dtype, and decomposed otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from memwall.analysis.table import group_by
from memwall.core.flow import Flow
from memwall.core.graph import Graph, Op
from memwall.fusing.rewrites.rewrite import Priced, Rewrite, new_op
from memwall.ops import Cost

_ROOTS = ("aten.rsqrt", "aten.sqrt")
_CENTERED = ("aten.sub", "aten.var", "aten.var_mean")
_PLAIN = frozenset(("elementwise", "reduction", "movement"))


@dataclass(frozen=True)
class DecomposedNorm:
    """A norm over the last axis. All but the op ids are value ids; backward ones are -1 in inference."""

    module: str
    is_centered: bool
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    x: int
    affine: tuple[int, ...]
    out: int
    grad_out: int = -1
    grad_x: int = -1
    grad_affine: tuple[int, ...] = ()
    #: gradients of other branches that the backward ops add to this norm's
    joined: tuple[int, ...] = ()


def decomposed_norms(graph: Graph) -> tuple[DecomposedNorm, ...]:
    """The norms that a fused kernel of torch's could replace, in call order."""
    flow = Flow.of(graph)
    by_module = group_by(graph.ops, [op.module for op in graph.ops])
    found = (_norm(graph, flow, module, ops) for module, ops in by_module.items() if module)
    return tuple(norm for norm in found if norm is not None)


def with_fused_norms(graph: Graph, costs: Sequence[Cost], norms: Sequence[DecomposedNorm]) -> Priced:
    """The graph with the library's kernels in place of the norms."""
    rewrite = Rewrite(graph, costs)
    for norm in norms:
        _replace(rewrite, norm)
    return rewrite.result()


def _norm(graph: Graph, flow: Flow, module: str, ops: Sequence[Op]) -> DecomposedNorm | None:
    forward = [op for op in ops if op.phase == "forward"]
    roots = sum(op.name.startswith(_ROOTS) for op in forward)
    classes = {op.op_class for op in forward}
    if roots != 1 or "reduction" not in classes or not classes <= _PLAIN:
        return None
    first = frozenset(op.id for op in forward)
    second = frozenset(op.id for op in ops if op.phase == "backward")
    region = first | second
    inner, outs = _reads(flow, first, region), _writes(flow, first, region)
    params = tuple(v for v in inner if graph.storages[graph.values[v].storage].role == "parameter")
    xs = [v for v in inner if v not in params]
    if len(xs) != 1 or len(outs) != 1 or not _fits(graph, xs[0], outs[0], params):
        return None
    is_centered = any(op.name.startswith(_CENTERED) for op in forward)
    norm = DecomposedNorm(module, is_centered, tuple(sorted(first)), tuple(sorted(second)), xs[0], params, outs[0])
    return _with_backward(graph, flow, norm, region) if second else norm


def _with_backward(graph: Graph, flow: Flow, norm: DecomposedNorm, region: Collection[int]) -> DecomposedNorm | None:
    known = {graph.values[v].storage for v in (norm.x, *norm.affine)}
    outer = [v for v in _reads(flow, norm.backward, region) if graph.values[v].storage not in known]
    joined = [v for v in outer if _only_added(graph, norm.backward, v)]
    incoming = {graph.values[v].storage: v for v in reversed(outer) if v not in joined}
    leaving = _writes(flow, norm.backward, region)
    size = graph.values[norm.x].spec.numel
    grad_x = [v for v in leaving if graph.values[v].spec.numel == size]
    grad_affine = tuple(v for v in leaving if v not in grad_x)
    if len(incoming) != 1 or len(grad_x) > 1 or len(grad_affine) > len(norm.affine) or (joined and not grad_x):
        return None
    return replace(
        norm,
        grad_out=next(iter(incoming.values())),
        grad_x=grad_x[0] if grad_x else -1,
        grad_affine=grad_affine,
        joined=tuple(joined),
    )


def _only_added(graph: Graph, ops: Iterable[int], value: int) -> bool:
    """Whether some ops do nothing with a tensor but add it to another."""
    storage = graph.values[value].storage
    readers = [graph.ops[i] for i in ops if any(graph.values[v].storage == storage for v in graph.ops[i].inputs)]
    return all(op.name.startswith("aten.add") for op in readers)


def _reads(flow: Flow, ops: Collection[int], region: Collection[int]) -> list[int]:
    """Values that some ops read and the region did not write."""
    uses = (use for op in sorted(ops) for use in flow.reads[op])
    return list(dict.fromkeys(value for value, version in uses if flow.writer[version] not in region))


def _writes(flow: Flow, ops: Collection[int], region: Collection[int]) -> list[int]:
    """Values that some ops write for other ops, for after the step, or unread (a leaf's gradient)."""
    uses = (use for op in sorted(ops) for use in flow.writes[op])
    return [
        value
        for value, version in uses
        if version in flow.kept
        or not flow.readers[version]
        or any(reader not in region for reader in flow.readers[version])
    ]


def _fits(graph: Graph, x: int, out: int, params: Sequence[int]) -> bool:
    """Equal sizes and dtypes, and weights of one row."""
    data, result = graph.values[x].spec, graph.values[out].spec
    weights = [graph.values[v].spec for v in params]
    return (
        data.shape == result.shape
        and bool(data.shape)
        and len(weights) <= 2
        and all((w.numel, w.dtype) == (data.shape[-1], data.dtype) for w in weights)
        and result.dtype == data.dtype
    )


def _replace(rewrite: Rewrite, norm: DecomposedNorm) -> None:
    spec = rewrite.values[norm.x].spec
    statistics = [rewrite.tensor((*spec.shape[:-1], 1), "float32") for _ in range(1 + norm.is_centered)]
    name = "aten.native_layer_norm" if norm.is_centered else "aten._fused_rms_norm"
    attributes = {"normalized_shape": [spec.shape[-1]]}
    affine = tuple(zip(("weight", "bias"), norm.affine, strict=False))
    forward = new_op(name, "forward", norm.module, [("input", norm.x), *affine], [norm.out, *statistics], attributes)
    rewrite.replace(norm.forward, norm.forward[-1], [forward])
    if not norm.backward:
        return
    saved = tuple(zip(("mean", "rstd") if norm.is_centered else ("rstd",), statistics, strict=True))
    order = (*saved, *affine) if norm.is_centered else (*affine, *saved)
    reads = (("grad_out", norm.grad_out), ("input", norm.x), *order)
    # the library's backward kernel, and an add for each gradient of another branch
    chain = [*(rewrite.tensor(spec.shape, spec.dtype) for _ in norm.joined), *([norm.grad_x] * (norm.grad_x >= 0))]
    written = (*chain[:1], *norm.grad_affine)
    ops = [new_op(f"{name}_backward", "backward", norm.module, reads, written, attributes)]
    for other, (before, after) in zip(norm.joined, pairwise(chain), strict=True):
        pair = (("self", other), ("other", before))
        ops.append(new_op("aten.add.Tensor", "backward", norm.module, pair, (after,), {"alpha": 1}))
    rewrite.replace(norm.backward, norm.backward[-1], ops)
