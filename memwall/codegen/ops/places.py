"""Ops that read elements at other places: concatenations, slices, lookups, bags of them, searches in sorted lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise

from memwall.codegen.index import Index
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.ops.base import Made, OpRule, OpView, broadcast, choose, constant, found_index, promoted, rules
from memwall.codegen.tensors import Body, Indices, Tensor, axes_of, cast, compute_dtype
from memwall.ops.expressions import literal


def _cat(view: OpView) -> Made:
    """Parts side by side along an axis; each is read where it is."""
    parts = [t for t in view.tensors("tensors") if len(t.shape) == len(view.spec.shape)]
    axis = view.number("dim", 0) % len(view.spec.shape)
    starts = list(accumulate((part.shape[axis] for part in parts), initial=0))

    def rule(body: Body, indices: Indices) -> str:
        def element(part: Tensor) -> Callable[[Body, Index], str]:
            def at(inner: Body, place: Index) -> str:
                text = part.at(inner, (*indices[:axis], place, *indices[axis + 1 :]))
                return cast(text, part.dtype, view.spec.dtype)

            return at

        sides = [(*ends, element(part)) for part, ends in zip(parts, pairwise(starts), strict=True)]
        return choose(body, view.spec.dtype, indices[axis], sides)

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


def _stack(view: OpView) -> Made:
    parts = view.tensors("tensors")
    axis = view.number("dim", 0) % len(view.spec.shape)

    def rule(body: Body, indices: Indices) -> str:
        rest = (*indices[:axis], *indices[axis + 1 :])

        def element(part: Tensor) -> Callable[[Body, Index], str]:
            return lambda inner, place: cast(part.at(inner, rest), part.dtype, view.spec.dtype)

        sides = [(n, n + 1, element(part)) for n, part in enumerate(parts)]
        return choose(body, view.spec.dtype, indices[axis], sides)

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


def _inside(view: OpView, source: Tensor, axis: int, start: int, stop: int, step: int) -> Made:
    """Zeros except for a slice along an axis."""
    drops = len(source.shape) < len(view.spec.shape)

    def rule(body: Body, indices: Indices) -> str:
        place = indices[axis]
        inner_place, off = (place + -start).divmod(step) if step > 1 else (place + -start, Index())
        tests = [f"({place.text} >= {start})"] if start > 0 else []
        tests += [f"({place.text} < {stop})"] if stop <= place.high else []
        tests += [f"({off.text} == 0)"] if step > 1 else []
        at = (*indices[:axis], *(() if drops else (inner_place,)), *indices[axis + 1 :])
        if not tests:
            return source.at(body, at)
        condition = body.name(" & ".join(tests))
        with body.where(condition, place.axes):
            found = source.at(body, at)
        return f"tl.where({condition}, {found}, {literal(0, compute_dtype(view.spec.dtype))})"

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


def _select_backward(view: OpView) -> Made:
    axis = view.number("dim", 0) % len(view.spec.shape)
    start = view.number("index", 0) % view.spec.shape[axis]
    return _inside(view, view.tensor("grad_output"), axis, start, start + 1, 1)


def _slice_backward(view: OpView) -> Made:
    axis = view.number("dim", 0) % len(view.spec.shape)
    size, step = view.spec.shape[axis], view.number("step", 1)
    start, stop, _ = slice(view.number("start"), view.number("end"), step).indices(size)
    if step > 1 and start % step:
        raise NotGenerated("a strided slice that does not start at a stride")
    return _inside(view, view.tensor("grad_output"), axis, start, stop, step)


def _embedding(view: OpView) -> Made:
    weight, indices = view.tensor("weight"), view.tensor("indices")
    rank = len(indices.shape)

    def rule(body: Body, i: Indices) -> str:
        return weight.at(body, (found_index(body, indices, i[:rank], weight.shape[0], False), i[rank]))

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


def _index_select(view: OpView) -> Made:
    source, index = view.tensor("self"), view.tensor("index")
    axis = view.number("dim", 0) % len(source.shape)

    def rule(body: Body, i: Indices) -> str:
        place = found_index(body, index, (i[axis],), source.shape[axis], False)
        return source.at(body, (*i[:axis], place, *i[axis + 1 :]))

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


def _gather(view: OpView) -> Made:
    source, index = view.tensor("self"), view.tensor("index")
    axis = view.number("dim", 0) % len(source.shape)

    def rule(body: Body, i: Indices) -> str:
        place = found_index(body, index, i, source.shape[axis], False)
        return source.at(body, (*i[:axis], place, *i[axis + 1 :]))

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


@dataclass
class Indexing:
    """``self[:, a, b]``: index tensors side by side stand, broadcast together, where the axes were."""

    given: tuple[bool, ...]
    tensors: list[Tensor]
    shape: tuple[int, ...]
    whole: tuple[int, ...]

    @classmethod
    def of(cls, view: OpView, whole: tuple[int, ...]) -> Indexing:
        tensors = view.tensors("indices")
        given = tuple(view.number("indices_given", (True,) * len(tensors)))
        places = [n for n, is_given in enumerate(given) if is_given]
        if not places or places != list(range(places[0], places[0] + len(places))):
            raise NotGenerated("index tensors that do not stand side by side")
        if any(t.dtype not in ("int64", "int32") for t in tensors):
            raise NotGenerated("an index that is a mask")
        rank = max(len(t.shape) for t in tensors)
        shape = [1] * rank
        for tensor in tensors:
            for n, size in enumerate(tensor.shape, start=rank - len(tensor.shape)):
                shape[n] = max(shape[n], size) if size else 0
        return cls(given, tensors, tuple(shape), whole)

    @property
    def first(self) -> int:
        return self.given.index(True)

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of what is picked."""
        after = self.first + len(self.tensors)
        return (*self.whole[: self.first], *self.shape, *self.whole[after:])

    def source(self, body: Body, indices: Indices) -> Indices:
        """The index in the whole tensor of an element of the result."""
        first, rank = self.first, len(self.shape)
        inner = indices[first : first + rank]
        found = [
            found_index(body, tensor, broadcast(tensor, inner), self.whole[first + n], True)
            for n, tensor in enumerate(self.tensors)
        ]
        return (*indices[:first], *found, *indices[first + rank :])


def _index(view: OpView) -> Made:
    source = view.tensor("self")
    indexing = Indexing.of(view, source.shape)
    return [Tensor(view.spec.shape, view.spec.dtype, lambda body, i: source.at(body, indexing.source(body, i)))]


def _triangle(below: str) -> OpRule:
    """What lies on one side of a diagonal of the last two axes, zeros elsewhere."""

    def rule(view: OpView) -> Made:
        source, diagonal = view.tensor("self"), view.number("diagonal", 0)

        def element(body: Body, i: Indices) -> str:
            kept = body.name(f"({i[-1].text}) - ({i[-2].text}) {below} {diagonal}")
            return f"tl.where({kept}, {source.at(body, i)}, {literal(0, compute_dtype(view.spec.dtype))})"

        return [Tensor(view.spec.shape, view.spec.dtype, element)]

    return rule


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
    _cat: "cat",
    _stack: "stack",
    _select_backward: "select_backward",
    _slice_backward: "slice_backward",
    _embedding: "embedding",
    _index_select: "index_select",
    _gather: "gather",
    _index: "index _unsafe_index",
    _triangle("<="): "tril",
    _triangle(">="): "triu",
    _embedding_bag: "_embedding_bag",
    _embedding_bag_backward: "_embedding_bag_backward",
    _searchsorted: "searchsorted",
})  # fmt: skip
