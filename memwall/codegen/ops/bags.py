"""Runs of an index list that are looked up and added up; searches in sorted lists."""

from __future__ import annotations

from memwall.codegen.index import Index
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.ops.base import Made, OpView, constant, found_index, promoted, rules
from memwall.codegen.tensors import Body, Indices, Tensor, axes_of, cast


def _embedding_bag(view: OpView) -> Made:
    weight, indices, offsets = (view.tensor(name) for name in ("weight", "indices", "offsets"))
    mode = view.number("mode", 0)
    bags = view.outputs[0].shape[0]
    if mode not in (0, 1) or view.find("per_sample_weights") or view.number("padding_idx", -1) >= 0 or bags < 2:
        raise NotGenerated("bags of maxima, with weights or padding")

    def ends(body: Body, bag: Index) -> tuple[str, str]:
        start = offsets.at(body, (bag,))
        is_inner = body.name(f"({bag.text}) + 1 < {offsets.shape[0]}")
        with body.where(is_inner, bag.axes):
            after = offsets.at(body, (bag + 1,))
        return start, body.name(f"tl.where({is_inner}, {after}, {indices.shape[0]})")

    def total(body: Body, i: Indices) -> str:
        start, stop = ends(body, i[0])
        masks = " & ".join(body.memory.mask(i[0].axes))
        longest = body.name(f"tl.max(tl.where({masks}, {stop} - {start}, 0))")
        count, step = body.memory.unique(), body.memory.unique()
        axes = frozenset((*axes_of(i), "step"))
        inner = Body(body.memory, body.axes | axes, body)
        place = inner.variable(f"({start} + {step})", indices.shape[0], axes)
        inside = inner.name(f"{start} + {step} < {stop}")
        with inner.where(inside, axes_of(i)):
            row = found_index(inner, indices, (place,), weight.shape[0], False)
            value = inner.name(weight.at(inner, (row, i[1])))
        body.lines += [f"{count} = tl.zeros_like({start}).to(tl.float32)", f"for {step} in range(0, {longest}):"]
        body.lines += [f"    {line}" for line in (*inner.lines, f"{count} += tl.where({inside}, {value}, 0)")]
        return count if mode == 0 else f"{count} / tl.maximum({stop} - {start}, 1).to(tl.float32)"

    def size(body: Body, i: Indices) -> str:
        start, stop = ends(body, i[0])
        return f"{stop} - {start}"

    def bag_of(body: Body, i: Indices) -> str:
        return f"{_bound(body, offsets, f'({i[0].text})', i[0].axes, True)}.to(tl.int64) - 1"

    results = [Tensor(view.spec.shape, view.spec.dtype, total)]
    for spec, rule in zip(view.outputs[1:3], (bag_of, size), strict=False):
        results.append(Tensor(spec.shape, spec.dtype, rule))
    return results + [constant(spec.shape, spec.dtype, 0) for spec in view.outputs[3:]]


def _embedding_bag_backward(view: OpView) -> Made:
    grad, indices, bag_of = (view.tensor(name) for name in ("grad", "indices", "offset2bag"))
    mode = view.number("mode", 0)
    if not view.number("sparse", False) or mode not in (0, 1) or view.number("padding_idx", -1) >= 0:
        raise NotGenerated("a dense gradient of bags, or bags of maxima")

    def rows(body: Body, i: Indices) -> str:
        bag = found_index(body, bag_of, i[:1], grad.shape[0], False)
        text = grad.at(body, (bag, i[1]))
        if mode == 1:
            text += f" / tl.maximum({view.tensor('bag_size').at(body, (bag,))}, 1).to(tl.float32)"
        return text

    numbers = Tensor(view.spec.shape, view.spec.dtype, lambda body, i: indices.at(body, i[1:]))
    return [numbers, Tensor(view.outputs[1].shape, view.outputs[1].dtype, rows)]


def _bound(body: Body, sorted_: Tensor, key: str, axes: frozenset[str], right: bool) -> str:
    """How many elements of a sorted list are below a key (``right``: or equal), by halving the interval."""
    size = sorted_.shape[0]
    found = body.name(f"({key} * 0).to(tl.int32)")
    step = 1 << max(size.bit_length() - 1, 0)
    while step and size:
        probe = body.name(f"{found} + {step}")
        with body.where(f"({probe} <= {size})", axes):
            value = sorted_.at(body, (body.variable(probe, size + 1, axes) + -1,))
        below = f"({value} {'<=' if right else '<'} {key})"
        found = body.name(f"tl.where(({probe} <= {size}) & {below}, {probe}, {found})")
        step //= 2
    return found


def _searchsorted(view: OpView) -> Made:
    sequence, keys = view.tensor("sorted_sequence"), view.tensor("self")
    right = bool(view.number("right", False)) or view.number("side") == "right"
    if len(sequence.shape) != 1 or view.find("sorter"):
        raise NotGenerated("a search in several lists")

    def rule(body: Body, i: Indices) -> str:
        key = cast(keys.at(body, i), keys.dtype, promoted([keys.dtype, sequence.dtype]))
        found = _bound(body, sequence, key, axes_of(i), right)
        return found if view.spec.dtype == "int32" else f"{found}.to(tl.int64)"

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


#: packet -> rule
RULES = rules({
    _embedding_bag: "_embedding_bag",
    _embedding_bag_backward: "_embedding_bag_backward",
    _searchsorted: "searchsorted",
})  # fmt: skip
