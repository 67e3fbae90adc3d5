"""The loop nest that a generated kernel would run for an op; it decides which ops can share one.

A kernel iterates over ``rows`` × ``cols``. A pointwise op allows any split of its elements. A row
reduction (softmax, layer norm) keeps one row in one thread block, a column reduction (the gradient of a bias) adds up
over the rows by partial sums and a second, small launch, and a grid reduction (batch norm) has to have seen all of its
input before it can write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from memwall.core.graph import Graph, Op, TensorSpec
from memwall.ops.registry import Row, find_row

#: kind -> what a generated kernel does for the op
KINDS: Mapping[str, str] = {
    "point": "each output element from elements at computable places",
    "gather": "each output element from elements at places found in data, or from a window",
    "scatter": "adds to places found in data",
    "row": "reduces or normalises rows, each within one thread block",
    "column": "reduces over the rows",
    "grid": "needs all of its input before its first output",
    "multi": "one elementwise op over a list of tensors",
    "opaque": "a library kernel, or an op that nothing is generated for",
}


@dataclass(frozen=True, slots=True)
class Loop:
    """Kind, number of iterations, and the rows and columns where the kind fixes them (else 0).

    ``columns``: column sums are made too (the affine gradients of a norm). ``axes`` distinguishes nests of equal
    sizes over different axes.
    """

    kind: str
    numel: int
    rows: int = 0
    cols: int = 0
    columns: bool = False
    axes: str = ""


OPAQUE = Loop("opaque", 0)


def loop_of(graph: Graph, op: Op) -> Loop:
    """The loop nest of an op; opaque where there is no rule."""
    row = find_row(op.name)
    rule = (row.loop if row else None) or _BY_CLASS.get(op.op_class)
    return OPAQUE if rule is None or not op.outputs else rule(View(graph, op))


def is_fused(row: Row) -> bool:
    """Whether the planner can put ops of a row into a kernel with others."""
    rule = row.loop or _BY_CLASS.get(row.op_class)
    return rule is not None and rule is not opaque


class View:
    """An op with its specs, as the rules need it."""

    def __init__(self, graph: Graph, op: Op) -> None:
        self.op = op
        self.inputs = graph.specs(op.inputs)
        self.outputs = graph.specs(op.outputs)

    def arg(self, name: str) -> TensorSpec:
        for argument, spec in zip(self.op.arguments, self.inputs, strict=False):
            if argument == name:
                return spec
        return self.inputs[0]

    def attribute(self, name: str, default: Any = None) -> Any:
        value = (self.op.attributes or {}).get(name, default)
        return default if value is None else value


LoopRule = Callable[[View], Loop]


def opaque(view: View) -> Loop:
    """Nothing is generated for the op."""
    return OPAQUE


def point(view: View) -> Loop:
    return Loop("point", max(spec.numel for spec in view.outputs))


def gather(view: View) -> Loop:
    return Loop("gather", view.outputs[0].numel)


def scatter(view: View) -> Loop:
    return Loop("scatter", max((spec.numel for spec in view.inputs), default=view.outputs[0].numel))


def multi(view: View) -> Loop:
    op = view.op
    if op.name.startswith(("aten._foreach_norm", "aten._foreach_powsum", "aten._foreach_max.")):
        return OPAQUE
    return Loop("multi", sum(spec.numel for spec in view.outputs), len(view.outputs))


def _reduced(spec: TensorSpec, dims: Any) -> tuple[int, ...]:
    rank = len(spec.shape)
    if dims is None or dims == []:
        return tuple(range(rank))
    listed = [dims] if isinstance(dims, int) else list(dims)
    return tuple(sorted(d % rank for d in listed)) if rank else ()


def reduction(view: View) -> Loop:
    """A sum or an extremum over some axes of its input."""
    if not view.inputs:
        return OPAQUE
    if view.op.op_class == "elementwise":  # max.other, min.other
        return point(view)
    spec = view.arg("self")
    dims = _reduced(spec, view.attribute("dim"))
    return _over(spec, dims)


def _over(spec: TensorSpec, dims: tuple[int, ...]) -> Loop:
    shape = spec.shape
    real = tuple(i for i, size in enumerate(shape) if size != 1)
    dims = tuple(d for d in dims if d in real)
    count = math.prod(shape[d] for d in dims)
    kept = spec.numel // count if count else 0
    if not dims:
        return Loop("point", spec.numel)
    if kept <= 1:
        return Loop("column", spec.numel, spec.numel, 1, True)
    if dims == real[-len(dims) :]:
        return Loop("row", spec.numel, kept, count)
    if dims == real[: len(dims)]:
        return Loop("column", spec.numel, count, kept, True)
    return Loop("grid", spec.numel, kept, count, axes=f"{dims} of {shape}")


def softmax(view: View) -> Loop:
    spec = view.outputs[0]
    dim = view.attribute("dim", -1)
    loop = _over(spec, _reduced(spec, dim))
    if loop.kind == "point":  # rows of one element
        return Loop("row", spec.numel, spec.numel, 1)
    if loop.kind == "row":
        return loop
    return Loop("row", spec.numel, loop.cols if loop.kind == "column" else loop.rows,
                loop.rows if loop.kind == "column" else loop.cols, axes=f"{dim} of {spec.shape}")  # fmt: skip


def row_norm(view: View) -> Loop:
    spec = view.arg("input")
    cols = math.prod(view.attribute("normalized_shape", spec.shape[-1:]))
    return Loop("row", spec.numel, spec.numel // cols if cols else 0, cols)


def row_norm_backward(view: View) -> Loop:
    loop = row_norm(view)
    affine = view.attribute("output_mask", [True, True, True])[1:]
    return Loop("row", loop.numel, loop.rows, loop.cols, columns=any(affine))


def group_norm(view: View) -> Loop:
    spec = view.arg("input")
    rows = spec.shape[0] * int(view.attribute("group", 1))
    return Loop("row", spec.numel, rows, spec.numel // rows if rows else 0)


def group_norm_backward(view: View) -> Loop:
    loop = group_norm(view)
    return Loop("row", loop.numel, loop.rows, loop.cols, columns=len(view.outputs) > 1)


def batch_norm(view: View) -> Loop:
    spec = view.arg("input")
    training = view.attribute("training", view.attribute("train", True))
    if not training or "no_training" in view.op.name or "no_update" in view.op.name:
        return Loop("point", spec.numel)
    channels = spec.shape[1] if len(spec.shape) > 1 else 1
    return Loop("grid", spec.numel, channels, spec.numel // channels if channels else 0, axes="channels")


def nll(view: View) -> Loop:
    spec = view.arg("self")
    rows = spec.shape[0] if len(spec.shape) > 1 else 1
    return Loop("column", rows, rows, 1, True)


def nll_backward(view: View) -> Loop:
    return Loop("point", view.outputs[0].numel)


def loss(view: View) -> Loop:
    reduction = view.attribute("reduction", 1)
    numel = max(spec.numel for spec in view.inputs)
    return Loop("point", numel) if reduction == 0 else Loop("column", numel, numel, 1, True)


#: op class -> rule of the ops whose row gives none
_BY_CLASS: Mapping[str, LoopRule] = {"elementwise": point, "optimizer": multi}


def reads_elsewhere(op: Op, loop: Loop) -> bool:
    """Whether a thread reads elements that are not its own, or reads its own a second time."""
    return loop.kind in ("gather", "scatter", "grid", "opaque") or moves(op)


def moves(op: Op) -> bool:
    """Whether the op puts elements at other places than it found them at."""
    row = find_row(op.name)
    return row is not None and row.moves


def late_outputs(graph: Graph, op: Op, loop: Loop) -> tuple[int, ...]:
    """The values that are whole only when the kernel ends: sums over more than a thread block sees."""
    if loop.kind == "scatter" or (loop.kind in ("column", "grid") and op.op_class == "reduction"):
        return op.outputs
    if not loop.columns:
        return ()
    return tuple(i for i in op.outputs if graph.values[i].spec.numel != loop.numel)


def is_random(op: Op) -> bool:
    """Whether the op draws random numbers."""
    row = find_row(op.name)
    return row is not None and row.is_random
