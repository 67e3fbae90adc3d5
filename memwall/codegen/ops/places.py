"""Ops that read or write elements at other places: concatenations, slices, lookups, scatters, searches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise

from memwall.codegen.index import AffineIndex, ravel
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.ops.base import (
    Made,
    OpRule,
    OpView,
    broadcast,
    choose,
    constant,
    found_index,
    promoted,
    rules,
    tests_between,
)
from memwall.codegen.tensors import Body, Indices, Scatter, Tensor, axes_of, cast, compute_dtype
from memwall.ops.expressions import literal


def _axis(view: OpView, shape: tuple[int, ...]) -> int:
    return int(view.number("dim", 0)) % len(shape)


def _at(indices: Indices, axis: int, *places: AffineIndex) -> Indices:
    """Indices with others in place of the one along an axis."""
    return (*indices[:axis], *places, *indices[axis + 1 :])


def _join(view: OpView) -> Made:
    """Parts next to each other along an axis, each read where it is; stacked ones are one element long there."""
    stacked = view.packet == "stack"
    parts = [t for t in view.tensors("tensors") if stacked or len(t.shape) == len(view.spec.shape)]
    axis = _axis(view, view.spec.shape)
    starts = list(accumulate((1 if stacked else part.shape[axis] for part in parts), initial=0))

    def rule(body: Body, indices: Indices) -> str:
        def element(part: Tensor) -> Callable[[Body, AffineIndex], str]:
            def at(inner: Body, place: AffineIndex) -> str:
                text = part.at(inner, _at(indices, axis, *(() if stacked else (place,))))
                return cast(text, part.dtype, view.spec.dtype)

            return at

        sides = [(*ends, element(part)) for part, ends in zip(parts, pairwise(starts), strict=True)]
        return choose(body, view.spec.dtype, indices[axis], sides)

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


def _slice_backward(view: OpView) -> Made:
    """Zeros except for a slice along an axis, or for one place of it."""
    source, axis = view.tensor("grad_output"), _axis(view, view.spec.shape)
    size, selects = view.spec.shape[axis], view.packet == "select_backward"
    if selects:
        start = view.number("index", 0) % size
        stop, step = start + 1, 1
    else:
        start, stop, step = slice(view.number("start"), view.number("end"), view.number("step", 1)).indices(size)
        if step > 1 and start % step:
            raise NotGenerated("a strided slice that does not start at a stride")

    def rule(body: Body, indices: Indices) -> str:
        place = indices[axis]
        inner_place, off = (place + -start).divmod(step) if step > 1 else (place + -start, AffineIndex())
        tests = tests_between(place, start, stop) + ([f"({off.text} == 0)"] if step > 1 else [])
        at = _at(indices, axis, *(() if selects else (inner_place,)))
        if not tests:
            return source.at(body, at)
        condition = body.name(" & ".join(tests))
        with body.where(condition, place.axes):
            found = source.at(body, at)
        return f"tl.where({condition}, {found}, {literal(0, compute_dtype(view.spec.dtype))})"

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


def _embedding(view: OpView) -> Made:
    weight, indices = view.tensor("weight"), view.tensor("indices")
    rank = len(indices.shape)

    def rule(body: Body, i: Indices) -> str:
        return weight.at(body, (found_index(body, indices, i[:rank], weight.shape[0]), i[rank]))

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


def _gather(view: OpView) -> Made:
    """Places along an axis from an index tensor: of the result's shape, or (``index_select``) of that axis alone."""
    source, index = view.tensor("self"), view.tensor("index")
    axis, whole = _axis(view, source.shape), view.packet == "gather"

    def rule(body: Body, i: Indices) -> str:
        place = found_index(body, index, i if whole else (i[axis],), source.shape[axis])
        return source.at(body, _at(i, axis, place))

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


def _triangle(below: str) -> OpRule:
    """What lies on one side of a diagonal of the last two axes, zeros elsewhere."""

    def rule(view: OpView) -> Made:
        source, diagonal = view.tensor("self"), view.number("diagonal", 0)

        def element(body: Body, i: Indices) -> str:
            kept = body.name(f"({i[-1].text}) - ({i[-2].text}) {below} {diagonal}")
            return f"tl.where({kept}, {source.at(body, i)}, {literal(0, compute_dtype(view.spec.dtype))})"

        return [Tensor(view.spec.shape, view.spec.dtype, element)]

    return rule


# -- index tensors side by side ----------------------------------------------------------------------------------------


@dataclass
class _Indexing:
    """``self[:, a, b]``: index tensors side by side, broadcast to ``shape``, stand where the axes from ``first`` on
    were."""

    tensors: list[Tensor]
    first: int
    shape: tuple[int, ...]
    whole: tuple[int, ...]

    @classmethod
    def of(cls, view: OpView) -> _Indexing:
        tensors = view.tensors("indices")
        given = view.number("indices_given", (True,) * len(tensors))
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
        return cls(tensors, places[0], tuple(shape), view.tensor("self").shape)

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of what is picked."""
        return (*self.whole[: self.first], *self.shape, *self.whole[self.first + len(self.tensors) :])

    def source(self, body: Body, indices: Indices) -> Indices:
        """The index in the whole tensor of an element of the result."""
        first, rank = self.first, len(self.shape)
        inner = indices[first : first + rank]
        found = [
            found_index(body, tensor, broadcast(tensor, inner), self.whole[first + n], wraps=True)
            for n, tensor in enumerate(self.tensors)
        ]
        return (*indices[:first], *found, *indices[first + rank :])


def _index(view: OpView) -> Made:
    source, indexing = view.tensor("self"), _Indexing.of(view)
    return [Tensor(view.spec.shape, view.spec.dtype, lambda body, i: source.at(body, indexing.source(body, i)))]


def _index_put(view: OpView) -> Made:
    whole, values, indexing = view.tensor("self"), view.tensor("values"), _Indexing.of(view)
    source = Tensor(indexing.result, values.dtype, lambda body, i: values.at(body, broadcast(values, i)))

    def place(body: Body, i: Indices) -> tuple[AffineIndex, list[str]]:
        return ravel(indexing.source(body, i), whole.shape), []

    return [Scatter(source, place, whole.shape, view.spec.dtype, whole, bool(view.number("accumulate", False)))]


# -- scatters along one axis -------------------------------------------------------------------------------------------


def _scaled(source: Tensor, alpha: float) -> Tensor:
    factor = literal(alpha, "float32")
    return Tensor(source.shape, source.dtype, lambda body, i: f"{factor} * {source.at(body, i)}")


def _scatter(accumulate: bool) -> OpRule:
    """Values to places along an axis: an index for each element, or (``index_add``) one for each slice."""

    def rule(view: OpView) -> Made:
        whole, index = view.tensor("self"), view.tensor("index")
        axis, slices = _axis(view, whole.shape), view.packet == "index_add"
        if view.number("reduce"):
            raise NotGenerated(f"a scatter that reduces by {view.number('reduce')}")
        if slices:
            alpha, source = view.number("alpha", 1), view.tensor("source")
            source = source if alpha == 1 else _scaled(source, alpha)
        else:
            values = view.find("src") or constant(index.shape, view.spec.dtype, view.number("value"))
            source = Tensor(index.shape, values.dtype, values.at)

        def place(body: Body, i: Indices) -> tuple[AffineIndex, list[str]]:
            at = found_index(body, index, (i[axis],) if slices else i, whole.shape[axis])
            return ravel(_at(i, axis, at), whole.shape), []

        return [Scatter(source, place, whole.shape, view.spec.dtype, whole, accumulate)]

    return rule


def _embedding_backward(view: OpView) -> Made:
    grad, indices = view.tensor("grad_output"), view.tensor("indices")
    rows, padding = view.number("num_weights"), view.number("padding_idx", -1)
    if view.number("scale_grad_by_freq", False):
        raise NotGenerated("gradients scaled by how often a row is used")
    rank, shape = len(indices.shape), (rows, grad.shape[-1])

    def place(body: Body, i: Indices) -> tuple[AffineIndex, list[str]]:
        text = indices.at(body, i[:rank])
        row = found_index(body, indices, i[:rank], rows)
        return ravel((row, i[rank]), shape), [f"({text} != {padding})"] if padding >= 0 else []

    return [Scatter(grad, place, shape, view.spec.dtype, None, True)]


def _sparse_add(view: OpView) -> Made:
    """Rows of a table, found by their numbers (1 × n), have others added to them."""
    table, (numbers, rows) = view.tensor("self"), view.tensors("other")
    if len(rows.shape) != 2 or numbers.shape != (1, rows.shape[0]):
        raise NotGenerated("a sparse tensor that is not one of whole rows")

    def place(body: Body, i: Indices) -> tuple[AffineIndex, list[str]]:
        row = found_index(body, numbers, (AffineIndex(), i[0]), table.shape[0])
        return ravel((row, i[1]), table.shape), []

    added = _scaled(rows, view.number("alpha", 1))
    return [Scatter(added, place, table.shape, view.spec.dtype, None, True)]


# -- bags, and searches in sorted lists --------------------------------------------------------------------------------


def _embedding_bag(view: OpView) -> Made:
    weight, indices, offsets = (view.tensor(name) for name in ("weight", "indices", "offsets"))
    mode = view.number("mode", 0)
    bags = view.outputs[0].shape[0]
    if mode not in (0, 1) or view.find("per_sample_weights") or view.number("padding_idx", -1) >= 0 or bags < 2:
        raise NotGenerated("bags of maxima, with weights or padding")

    def ends(body: Body, bag: AffineIndex) -> tuple[str, str]:
        start = offsets.at(body, (bag,))
        is_inner = body.name(f"({bag.text}) + 1 < {offsets.shape[0]}")
        with body.where(is_inner, bag.axes):
            after = offsets.at(body, (bag + 1,))
        return start, body.name(f"tl.where({is_inner}, {after}, {indices.shape[0]})")

    def total(body: Body, i: Indices) -> str:
        start, stop = ends(body, i[0])
        masks = " & ".join(body.writer.mask(i[0].axes))
        longest = body.name(f"tl.max(tl.where({masks}, {stop} - {start}, 0))")
        count, step = body.writer.unique(), body.writer.unique()
        axes = frozenset((*axes_of(i), "step"))
        inner = Body(body.writer, body.axes | axes, body)
        place = inner.variable(f"({start} + {step})", indices.shape[0], axes)
        inside = inner.name(f"{start} + {step} < {stop}")
        with inner.where(inside, axes_of(i)):
            row = found_index(inner, indices, (place,), weight.shape[0])
            value = inner.name(weight.at(inner, (row, i[1])))
        body.lines += [f"{count} = tl.zeros_like({start}).to(tl.float32)", f"for {step} in range(0, {longest}):"]
        body.lines += [f"    {line}" for line in (*inner.lines, f"{count} += tl.where({inside}, {value}, 0)")]
        return count if mode == 0 else f"{count} / tl.maximum({stop} - {start}, 1).to(tl.float32)"

    def size(body: Body, i: Indices) -> str:
        start, stop = ends(body, i[0])
        return f"{stop} - {start}"

    def bag_of(body: Body, i: Indices) -> str:
        return f"{_bound(body, offsets, f'({i[0].text})', i[0].axes, True)}.to(tl.int64) - 1"

    made = [Tensor(s.shape, s.dtype, rule) for s, rule in zip(view.outputs, (total, bag_of, size), strict=False)]
    return made + [constant(spec.shape, spec.dtype, 0) for spec in view.outputs[3:]]


def _embedding_bag_backward(view: OpView) -> Made:
    grad, indices, bag_of = (view.tensor(name) for name in ("grad", "indices", "offset2bag"))
    mode = view.number("mode", 0)
    if not view.number("sparse", False) or mode not in (0, 1) or view.number("padding_idx", -1) >= 0:
        raise NotGenerated("a dense gradient of bags, or bags of maxima")

    def rows(body: Body, i: Indices) -> str:
        bag = found_index(body, bag_of, i[:1], grad.shape[0])
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
    _join: "cat stack",
    _slice_backward: "slice_backward select_backward",
    _embedding: "embedding",
    _gather: "gather index_select",
    _triangle("<="): "tril",
    _triangle(">="): "triu",
    _index: "index _unsafe_index",
    _index_put: "index_put _unsafe_index_put _index_put_impl",
    _scatter(True): "scatter_add index_add",
    _scatter(False): "scatter",
    _embedding_backward: "embedding_dense_backward",
    _sparse_add: "sparse.add_.Tensor",
    _embedding_bag: "_embedding_bag",
    _embedding_bag_backward: "_embedding_bag_backward",
    _searchsorted: "searchsorted",
})  # fmt: skip
