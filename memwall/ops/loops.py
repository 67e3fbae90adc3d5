"""The loop nest that a generated kernel would run for an op; it decides which ops can share one.

A kernel iterates over ``rows`` × ``cols``. A pointwise op allows any split of its elements. A row
reduction (softmax, layer norm) keeps one row in one thread block, a column reduction (the gradient of a bias) adds up
over the rows by partial sums and a second, small launch, and a grid reduction (batch norm) has to have seen all of its
input before it can write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memwall.core.graph import Graph, Op, TensorSpec
from memwall.ops.base import Call
from memwall.ops.registry import OpRow, call_of, find_row

#: kind -> what a generated kernel does for the op
KINDS: Mapping[str, str] = {
    "point": "each output element from elements at computable places",
    "gather": "each output element from one at a place found in data",
    "window": "each output element from a window of others",
    "scatter": "adds to places found in data",
    "row": "reduces or normalises rows, each within one thread block",
    "column": "reduces over the rows",
    "grid": "needs all of its input before its first output",
    "multi": "one elementwise op over a list of tensors",
    "opaque": "a library kernel, or an op that nothing is generated for",
}


#: kinds that read elements at places of their own choice
FAR = ("gather", "window")


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
    return OPAQUE if rule is None or not op.outputs else rule(call_of(graph, op))


def is_fused(row: OpRow) -> bool:
    """Whether the planner can put ops of a row into a kernel with others."""
    rule = row.loop or _BY_CLASS.get(row.op_class)
    return rule is not None and rule is not opaque


LoopRule = Callable[[Call], Loop]


def _spec(call: Call, name: str) -> TensorSpec:
    named = zip(call.arguments, call.inputs, strict=False)  # a record need not name its arguments
    return next((spec for argument, spec in named if argument == name), call.inputs[0])


def _given(call: Call, name: str, default: Any) -> Any:
    value = (call.attributes or {}).get(name)
    return default if value is None else value


def opaque(call: Call) -> Loop:
    """Nothing is generated for the op."""
    return OPAQUE


def point(call: Call) -> Loop:
    return Loop("point", max(spec.numel for spec in call.outputs))


def gather(call: Call) -> Loop:
    return Loop("gather", call.outputs[0].numel)


def window(call: Call) -> Loop:
    return Loop("window", call.outputs[0].numel)


def scatter(call: Call) -> Loop:
    return Loop("scatter", max((spec.numel for spec in call.inputs), default=call.outputs[0].numel))


def multi(call: Call) -> Loop:
    if call.name.startswith(("aten._foreach_norm", "aten._foreach_powsum", "aten._foreach_max.")):
        return OPAQUE
    return Loop("multi", sum(spec.numel for spec in call.outputs), len(call.outputs))


def _reduced(spec: TensorSpec, dims: Any) -> tuple[int, ...]:
    rank = len(spec.shape)
    if dims is None or dims == []:
        return tuple(range(rank))
    listed = [dims] if isinstance(dims, int) else list(dims)
    return tuple(sorted(d % rank for d in listed)) if rank else ()


def reduction(call: Call) -> Loop:
    """A sum or an extremum over some axes of its input."""
    if not call.inputs:
        return OPAQUE
    spec = _spec(call, "self")
    return _over(spec, _reduced(spec, _given(call, "dim", None)))


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


def softmax(call: Call) -> Loop:
    spec, dim = call.outputs[0], _given(call, "dim", -1)
    loop = _over(spec, _reduced(spec, dim))
    if loop.kind == "point":  # rows of one element
        return Loop("row", spec.numel, spec.numel, 1)
    if loop.kind == "row":
        return loop
    rows, cols = (loop.cols, loop.rows) if loop.kind == "column" else (loop.rows, loop.cols)
    return Loop("row", spec.numel, rows, cols, axes=f"{dim} of {spec.shape}")


def row_norm(call: Call) -> Loop:
    spec = _spec(call, "input")
    cols = math.prod(_given(call, "normalized_shape", spec.shape[-1:]))
    return Loop("row", spec.numel, spec.numel // cols if cols else 0, cols)


def row_norm_backward(call: Call) -> Loop:
    return replace(row_norm(call), columns=any(_given(call, "output_mask", [True, True, True])[1:]))


def group_norm(call: Call) -> Loop:
    spec = _spec(call, "input")
    rows = spec.shape[0] * int(_given(call, "group", 1))
    return Loop("row", spec.numel, rows, spec.numel // rows if rows else 0)


def group_norm_backward(call: Call) -> Loop:
    return replace(group_norm(call), columns=len(call.outputs) > 1)


def batch_norm(call: Call) -> Loop:
    spec = _spec(call, "input")
    training = _given(call, "training", _given(call, "train", True))
    if not training or "no_training" in call.name or "no_update" in call.name:
        return Loop("point", spec.numel)
    channels = spec.shape[1] if len(spec.shape) > 1 else 1
    return Loop("grid", spec.numel, channels, spec.numel // channels if channels else 0, axes="channels")


def nll(call: Call) -> Loop:
    spec = _spec(call, "self")
    rows = spec.shape[0] if len(spec.shape) > 1 else 1
    return Loop("column", rows, rows, 1, True)


def loss(call: Call) -> Loop:
    numel = max(spec.numel for spec in call.inputs)
    return Loop("point", numel) if _given(call, "reduction", 1) == 0 else Loop("column", numel, numel, 1, True)


#: op class -> rule of the ops whose row gives none
_BY_CLASS: Mapping[str, LoopRule] = {"elementwise": point, "optimizer": multi}


def reads_elsewhere(op: Op, loop: Loop) -> bool:
    """Whether a thread reads elements that are not its own, or reads its own a second time."""
    return loop.kind in (*FAR, "scatter", "grid", "opaque") or moves(op)


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
