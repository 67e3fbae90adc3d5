"""Random contents for what a group of ops reads: floats at the right scale, never zeros, indices within their tables.

What a tensor has to hold is asked of the ops that read it (:data:`_RULES`), and of those that hand it on to such an
op within the group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from memwall.core.flow import Flow
from memwall.core.graph import Graph, Op
from memwall.fusion import Group

#: numbers that arithmetic treats apart; the last two are denormals of float32 and bfloat16, and of float16
SPECIALS = (math.inf, -math.inf, math.nan, -0.0, 0.0, 1e-39, 6e-7)
#: of how many targets of a loss one is ignored
IGNORED_EVERY = 7
#: weights are this large beside the steps of an optimizer, so that a step shows in all dtypes
WEIGHT_BESIDE_STEP = 1e-3
#: second moments after the first steps of Adam with unit gradients: 1 - beta2 of them, about
SECOND_MOMENT = 2e-3


@dataclass(frozen=True)
class Need:
    """What a tensor has to hold: a way to fill it (a key of :data:`_FILLS`) and the numbers of that way."""

    kind: str
    high: int = 0
    scale: float = 1.0
    dim: int = -1
    window: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class _Use:
    """The ``position``-th tensor that an op takes as one of its arguments."""

    graph: Graph
    op: Op
    argument: str
    position: int

    def shape(self, argument: str) -> tuple[int, ...]:
        found = self.op.inputs[self.op.arguments.index(argument)]
        return self.graph.values[found].spec.shape

    def size(self, argument: str, dim: int) -> int:
        shape = self.shape(argument)
        return shape[dim] if shape else 1


def fill(
    graph: Graph, flow: Flow, group: Group, tensors: Mapping[int, Tensor], seed: int, special: bool = False
) -> None:
    """Fill the tensors of a group's external values.

    Args:
        tensors: value id → tensor, for every value whose memory existed before the group.
        special: put infinities, NaN, both zeros and denormals among the floats.
    """
    needs = needs_of(graph, flow, group)
    plain = [v for v in tensors if v not in needs]
    for value_id in (*plain, *(v for v in tensors if v in needs)):  # views may overlap: what is asked for comes last
        tensor = tensors[value_id]
        generator = torch.Generator(tensor.device).manual_seed(seed * 1_000_003 + value_id)
        need = needs.get(value_id, _default(tensor.dtype))
        distinct = _once(tensor)
        if distinct.numel():
            made = _FILLS[need.kind](need, distinct, generator)
            if special and need.kind == "normal":
                _sprinkle(made, generator)
            distinct.copy_(made)


def needs_of(graph: Graph, flow: Flow, group: Group) -> dict[int, Need]:
    """Value id → what it has to hold, for those that just any numbers would not do."""
    asked: dict[tuple[int, int], Need] = {}
    for op_id in sorted((*group.op_ids, *group.recomputes), reverse=True):
        op = graph.ops[op_id]
        written = {value: asked[value, version] for value, version in flow.writes[op_id] if (value, version) in asked}
        for use, key in zip(_uses(graph, op), flow.reads[op_id], strict=True):
            rule = _rule(op.name, use.argument)
            need = rule(use) if rule else _handed_on(op, key[0], written)
            if need is not None and graph.values[key[0]].spec.dtype != "bool":
                asked.setdefault(key, need)
    return {value: need for (value, _), need in reversed(asked.items())}


def _uses(graph: Graph, op: Op) -> Iterator[_Use]:
    seen: dict[str, int] = {}
    for argument in op.arguments:
        position = seen.get(argument, 0)
        seen[argument] = position + 1
        yield _Use(graph, op, argument, position)


def _default(dtype: torch.dtype) -> Need:
    if dtype.is_floating_point or dtype.is_complex:
        return Need("normal")
    return Need("mask") if dtype == torch.bool else Need("index", high=100)


def _once(tensor: Tensor) -> Tensor:
    """The tensor with each broadcast axis cut to one."""
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _sprinkle(tensor: Tensor, generator: torch.Generator) -> None:
    """A few elements become special: one in a hundred, and at least one of each kind where there is room."""
    flat = tensor.view(-1)
    count = max(flat.numel() // 100, min(len(SPECIALS), flat.numel() // 4))
    places = torch.randperm(flat.numel(), generator=generator, device=flat.device)[:count]
    kinds = torch.arange(count, device=flat.device) % len(SPECIALS)
    flat[places] = torch.tensor(SPECIALS, dtype=torch.float64, device=flat.device)[kinds].to(flat.dtype)


# -- the ways to fill --------------------------------------------------------------------------------------------------


def _floats(like: Tensor, generator: torch.Generator, normal: bool = True) -> Tensor:
    draw = torch.randn if normal else torch.rand
    return draw(like.shape, generator=generator, device=like.device, dtype=torch.float32)


def _normal(need: Need, like: Tensor, generator: torch.Generator) -> Tensor:
    return (_floats(like, generator) * need.scale).to(like.dtype)


def _positive(need: Need, like: Tensor, generator: torch.Generator) -> Tensor:
    """Between half of the scale and one and a half."""
    return ((_floats(like, generator, normal=False) + 0.5) * need.scale).to(like.dtype)


def _mask(need: Need, like: Tensor, generator: torch.Generator) -> Tensor:
    return (_floats(like, generator, normal=False) < 0.75).to(like.dtype)


def _index(need: Need, like: Tensor, generator: torch.Generator) -> Tensor:
    shape = tuple(like.shape)
    return torch.randint(max(need.high, 1), shape, generator=generator, device=like.device).to(like.dtype)


def _target(need: Need, like: Tensor, generator: torch.Generator) -> Tensor:
    """Class numbers, a few of them ``need.dim``, which means that the row does not count."""
    made = _index(need, like, generator)
    made.view(-1)[IGNORED_EVERY - 1 :: IGNORED_EVERY] = need.dim
    return made


def _places(need: Need, like: Tensor, generator: torch.Generator) -> Tensor:
    """Indices below ``high``, no two alike along an axis."""
    shape = list(like.shape) or [1]
    axis = need.dim % len(shape)
    room = max(need.high, shape[axis])
    drawn = torch.rand([*shape[:axis], room, *shape[axis + 1 :]], generator=generator, device=like.device)
    return drawn.argsort(axis).narrow(axis, 0, shape[axis]).reshape(like.shape).to(like.dtype)


def _ascending(need: Need, like: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers that never fall, the first 0."""
    made = _index(need, like, generator).view(-1).sort().values
    made[0] = 0
    return made.view(like.shape)


def _log_probabilities(need: Need, like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.log_softmax(_floats(like, generator), need.dim).to(like.dtype)


def _probabilities(need: Need, like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.softmax(_floats(like, generator), need.dim).to(like.dtype)


def _pooled(need: Need, like: Tensor, generator: torch.Generator) -> Tensor:
    """The places of the maxima of some image."""
    shape, kernel, stride, padding, dilation = need.window
    image = torch.randn(shape, generator=generator, device=like.device)
    call = torch.ops.aten.max_pool2d_with_indices
    places: Tensor = call(image, kernel, stride, padding, dilation, bool(need.high))[1]
    return places


_FILLS: Mapping[str, Callable[[Need, Tensor, torch.Generator], Tensor]] = {
    "normal": _normal, "positive": _positive, "mask": _mask, "index": _index, "target": _target, "places": _places,
    "ascending": _ascending, "log_probabilities": _log_probabilities, "probabilities": _probabilities,
    "pooled": _pooled,
}  # fmt: skip


# -- what ops ask of their arguments -----------------------------------------------------------------------------------


def _positive_always(use: _Use) -> Need:
    return Need("positive")


def _mean(use: _Use) -> Need:
    return Need("normal", scale=0.1)


def _second_moment(use: _Use) -> Need:
    return Need("positive", scale=SECOND_MOMENT)


def _weight(use: _Use) -> Need:
    return Need("normal", scale=WEIGHT_BESIDE_STEP)


def _rows_of(argument: str) -> Callable[[_Use], Need]:
    return lambda use: Need("index", high=use.size(argument, 0))


def _sparse_rows(use: _Use) -> Need | None:
    """The first tensor of a sparse one are its indices, the second its values."""
    return Need("normal") if use.position else Need("index", high=use.size("self", 0))


def _rows_counted(use: _Use) -> Need:
    return Need("index", high=use.op.attributes["num_weights"])


def _along_dim(use: _Use) -> Need:
    return Need("index", high=use.size("self", use.op.attributes["dim"]))


def _places_along_dim(use: _Use) -> Need:
    dim = use.op.attributes["dim"]
    return Need("places", high=use.size("self", dim), dim=dim)


def _nth_index(use: _Use) -> Need:
    """The n-th index of x[i, :, j]; where writes must not collide, the first index is never twice the same."""
    count = use.op.arguments.count("indices")
    given = use.op.attributes.get("indices_given") or (True,) * count
    axis = [n for n, there in enumerate(given) if there][use.position]
    high = use.size("self", axis)
    collides = "index_put" in use.op.name and not use.op.attributes.get("accumulate")
    return Need("places" if collides and not use.position else "index", high=high)


def _class_number(use: _Use) -> Need:
    shape = use.shape("self")
    return Need("target", high=shape[1 if len(shape) > 1 else 0], dim=use.op.attributes["ignore_index"])


def _counted_targets(use: _Use) -> Need:
    shape = use.shape("self")
    return Need("positive", scale=shape[0] if len(shape) > 1 else 1)


def _along(kind: str) -> Callable[[_Use], Need]:
    return lambda use: Need(kind, dim=use.op.attributes["dim"])


def _pool_places(use: _Use) -> Need:
    given = use.op.attributes
    names = ("kernel_size", "stride", "padding", "dilation")
    window = (use.shape("self"), *(tuple(given[name]) for name in names))
    return Need("pooled", high=int(given.get("ceil_mode", False)), window=window)


def _bag_starts(use: _Use) -> Need:
    return Need("ascending", high=use.size("indices", 0))


def _bags(use: _Use) -> Need:
    return Need("ascending", high=use.size("offsets", 0))


#: (op, argument) → what the argument has to hold
_RULES: Mapping[tuple[str, str], Callable[[_Use], Need | None]] = {
    **{(op, "self"): _positive_always for op in ("rsqrt", "sqrt", "log", "log2", "log10", "reciprocal")},
    **{(op, "other"): _positive_always for op in ("div", "div_", "floor_divide", "_foreach_div", "_foreach_div_")},
    **{(op, "running_var"): _positive_always for op in ("native_batch_norm", "native_batch_norm_backward")},
    **{(op, "running_mean"): _mean for op in ("native_batch_norm", "native_batch_norm_backward")},
    ("native_batch_norm_backward", "save_mean"): _mean,
    ("native_batch_norm_backward", "save_invstd"): _positive_always,
    **{(f"native_{op}_norm_backward", "mean"): _mean for op in ("layer", "group")},
    **{(f"native_{op}_norm_backward", "rstd"): _positive_always for op in ("layer", "group")},
    ("_fused_rms_norm_backward", "rstd"): _positive_always,
    **{(op, "self"): _second_moment for op in ("_foreach_sqrt", "_foreach_sqrt_")},
    **{(op, "self"): _weight for op in ("_foreach_addcdiv_", "_foreach_addcdiv")},
    ("embedding", "indices"): _rows_of("weight"),
    ("_embedding_bag", "indices"): _rows_of("weight"),
    ("_embedding_bag", "offsets"): _bag_starts,
    ("_embedding_bag_backward", "indices"): _rows_counted,
    ("_embedding_bag_backward", "offsets"): _bag_starts,
    ("_embedding_bag_backward", "offset2bag"): _bags,
    ("_embedding_bag_backward", "bag_size"): _positive_always,
    ("embedding_dense_backward", "indices"): _rows_counted,
    ("sparse.add_.Tensor", "other"): _sparse_rows,
    **{(op, "indices"): _nth_index for op in ("index", "index_put", "index_put_")},
    **{(op, "index"): _along_dim for op in ("index_select", "index_add", "index_add_", "gather")},
    **{(op, "index"): _places_along_dim for op in ("scatter", "scatter_", "scatter_add", "scatter_add_")},
    ("searchsorted", "sorted_sequence"): lambda use: Need("ascending", high=100),
    **{(op, "target"): _class_number for op in ("nll_loss_forward", "nll_loss_backward")},
    ("nll_loss_backward", "total_weight"): _counted_targets,
    ("binary_cross_entropy_with_logits", "target"): lambda use: Need("positive", scale=0.5),
    ("_log_softmax_backward_data", "output"): _along("log_probabilities"),
    ("_softmax_backward_data", "output"): _along("probabilities"),
    ("max_pool2d_with_indices_backward", "indices"): _pool_places,
}  # fmt: skip

#: ops whose results are in range where what they read is
_MOVES = frozenset(("_to_copy", "clone", "cat", "stack", "floor_divide", "index", "index_select"))
#: ops whose results are of a sign and a size where what they read is
_KEEPS_SIGN = _MOVES | {
    "mean", "sum", "add", "add_", "mul", "mul_", "_foreach_mul_", "_foreach_mul", "_foreach_addcmul_", "_foreach_lerp_",
    "_foreach_add_",
}  # fmt: skip


def _rule(name: str, argument: str) -> Callable[[_Use], Need | None] | None:
    return _RULES.get((name if name.startswith("sparse.") else _packet(name), argument))


def _handed_on(op: Op, value_id: int, written: Mapping[int, Need]) -> Need | None:
    """What an argument has to hold for the results of the op to hold what is asked of them."""
    in_place = any(i in op.inputs for i in op.outputs)
    need = written.get(value_id) if in_place else next(iter(written.values()), None)
    if need is None or _packet(op.name) not in (_KEEPS_SIGN if need.kind in ("positive", "normal") else _MOVES):
        return None
    if op.name.startswith("aten.floor_divide"):
        return replace(need, high=need.high * int(op.attributes.get("other", 1)))
    return need


def _packet(name: str) -> str:
    return name.split(".")[1]
