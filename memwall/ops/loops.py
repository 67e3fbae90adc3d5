"""The loop nest that a generated kernel would run for an op: what decides which ops can share one.

A kernel iterates over ``rows`` × ``cols``. A pointwise op has no opinion on how its elements are split. A row
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

    ``columns`` says that column sums are made too (the affine gradients of a norm). ``axes`` tells nests of equal
    sizes apart that run over other axes.
    """

    kind: str
    numel: int
    rows: int = 0
    cols: int = 0
    columns: bool = False
    axes: str = ""


OPAQUE = Loop("opaque", 0)


def loop_of(graph: Graph, op: Op) -> Loop:
    """The loop nest of an op; opaque where no rule knows it."""
    packet = _packet(op.name)
    rule = _RULES.get(packet) or _BY_CLASS.get(op.op_class)
    if rule is None or not op.outputs or packet in _NOT_GENERATED:
        return OPAQUE
    return rule(_View(graph, op))


class _View:
    """An op with its specs, as the rules want it."""

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


def _packet(name: str) -> str:
    library, _, rest = name.partition(".")
    return rest.partition(".")[0] if library == "aten" else name


def _point(view: _View) -> Loop:
    return Loop("point", max(spec.numel for spec in view.outputs))


def _gather(view: _View) -> Loop:
    return Loop("gather", view.outputs[0].numel)


def _scatter(view: _View) -> Loop:
    return Loop("scatter", max((spec.numel for spec in view.inputs), default=view.outputs[0].numel))


def _multi(view: _View) -> Loop:
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


def _reduction(view: _View) -> Loop:
    """A sum or an extremum over some axes of its input."""
    if not view.inputs:
        return OPAQUE
    if view.op.op_class == "elementwise":  # max.other, min.other
        return _point(view)
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


def _softmax(view: _View) -> Loop:
    spec = view.outputs[0]
    dim = view.attribute("dim", -1)
    loop = _over(spec, _reduced(spec, dim))
    if loop.kind == "point":  # rows of one element
        return Loop("row", spec.numel, spec.numel, 1)
    if loop.kind == "row":
        return loop
    return Loop("row", spec.numel, loop.cols if loop.kind == "column" else loop.rows,
                loop.rows if loop.kind == "column" else loop.cols, axes=f"{dim} of {spec.shape}")  # fmt: skip


def _row_norm(view: _View) -> Loop:
    spec = view.arg("input")
    cols = math.prod(view.attribute("normalized_shape", spec.shape[-1:]))
    return Loop("row", spec.numel, spec.numel // cols if cols else 0, cols)


def _row_norm_backward(view: _View) -> Loop:
    loop = _row_norm(view)
    affine = view.attribute("output_mask", [True, True, True])[1:]
    return Loop("row", loop.numel, loop.rows, loop.cols, columns=any(affine))


def _group_norm(view: _View) -> Loop:
    spec = view.arg("input")
    rows = spec.shape[0] * int(view.attribute("group", 1))
    return Loop("row", spec.numel, rows, spec.numel // rows if rows else 0)


def _group_norm_backward(view: _View) -> Loop:
    loop = _group_norm(view)
    return Loop("row", loop.numel, loop.rows, loop.cols, columns=len(view.outputs) > 1)


def _batch_norm(view: _View) -> Loop:
    spec = view.arg("input")
    training = view.attribute("training", view.attribute("train", True))
    if not training or "no_training" in view.op.name or "no_update" in view.op.name:
        return Loop("point", spec.numel)
    channels = spec.shape[1] if len(spec.shape) > 1 else 1
    return Loop("grid", spec.numel, channels, spec.numel // channels if channels else 0, axes="channels")


def _nll(view: _View) -> Loop:
    spec = view.arg("self")
    rows = spec.shape[0] if len(spec.shape) > 1 else 1
    return Loop("column", rows, rows, 1, True)


def _nll_backward(view: _View) -> Loop:
    return Loop("point", view.outputs[0].numel)


def _loss(view: _View) -> Loop:
    reduction = view.attribute("reduction", 1)
    numel = max(spec.numel for spec in view.inputs)
    return Loop("point", numel) if reduction == 0 else Loop("column", numel, numel, 1, True)


Rule = Callable[[_View], Loop]


def _table(rules: Mapping[Rule, str]) -> dict[str, Rule]:
    return {name: rule for rule, names in rules.items() for name in names.split()}


#: op class -> rule of the ops that are not named below
_BY_CLASS: Mapping[str, Rule] = {"elementwise": _point, "optimizer": _multi}

_RULES: Mapping[str, Rule] = _table({
    _point: "clone contiguous _to_copy copy copy_ cat stack arange fill fill_ full full_like zeros zeros_like zero_"
    " ones ones_like new_zeros new_ones new_full scalar_tensor constant_pad_nd flip roll repeat tril triu tril_ triu_"
    " slice_backward select_backward slice_scatter select_scatter diagonal_backward expand_copy permute_copy"
    " transpose_copy t_copy view_copy unsqueeze_copy squeeze_copy slice_copy select_copy pixel_shuffle pixel_unshuffle"
    " channel_shuffle native_channel_shuffle linspace eye _chunk_cat",
    _gather: "embedding index index_select gather take _unsafe_index take_along_dim max_pool2d_with_indices"
    " max_pool2d max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d im2col reflection_pad1d"
    " reflection_pad2d replication_pad1d replication_pad2d upsample_bilinear2d upsample_bicubic2d upsample_linear1d"
    " max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward",
    _scatter: "index_put index_put_ _unsafe_index_put _index_put_impl_ index_add index_add_ scatter scatter_"
    " scatter_add scatter_add_ embedding_dense_backward",
    _reduction: "sum mean amax amin prod all any nansum var std var_mean logsumexp linalg_vector_norm argmax argmin max"
    " min",
    _softmax: "_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data",
    _row_norm: "native_layer_norm _fused_rms_norm",
    _row_norm_backward: "native_layer_norm_backward _fused_rms_norm_backward",
    _group_norm: "native_group_norm",
    _group_norm_backward: "native_group_norm_backward",
    _batch_norm: "native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward"
    " _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training"
    " _batch_norm_with_update _batch_norm_no_update batch_norm_backward",
    _nll: "nll_loss_forward",
    _nll_backward: "nll_loss_backward",
    _loss: "mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss",
})  # fmt: skip


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Elementwise by class and yet nothing is generated for them: searches, cells, draws without replacement.
_NOT_GENERATED = _names(
    "bucketize searchsorted isin multinomial randperm linalg_cross _thnn_fused_gru_cell _thnn_fused_lstm_cell"
    " grid_sampler_2d grid_sampler_3d cudnn_grid_sampler poisson"
)

#: Ops that draw random numbers: computing one again would draw others.
RANDOM = _names(
    "native_dropout _fused_dropout bernoulli bernoulli_ rand rand_like randn randn_like randint randint_like normal"
    " normal_ uniform uniform_ random random_ exponential exponential_ rrelu_with_noise rrelu_with_noise_"
)


#: Pointwise ops that put elements at other places than they found them at.
_MOVES = _names(
    "flip roll repeat pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle permute_copy transpose_copy"
    " t_copy"
)


def reads_elsewhere(op: Op, loop: Loop) -> bool:
    """Whether a thread reads elements that are not its own, or reads its own a second time."""
    return loop.kind in ("gather", "scatter", "grid", "opaque") or moves(op)


def moves(op: Op) -> bool:
    """Whether the op puts elements at other places than it found them at."""
    return _packet(op.name) in _MOVES


def late_outputs(graph: Graph, op: Op, loop: Loop) -> tuple[int, ...]:
    """The values that are whole only when the kernel ends: sums over more than a thread block sees."""
    if loop.kind == "scatter" or (loop.kind in ("column", "grid") and op.op_class == "reduction"):
        return op.outputs
    if not loop.columns:
        return ()
    return tuple(i for i in op.outputs if graph.values[i].spec.numel != loop.numel)


def is_random(op: Op) -> bool:
    """Whether the op draws random numbers."""
    return _packet(op.name) in RANDOM
