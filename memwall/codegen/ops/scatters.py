"""Ops that write to data-dependent positions."""

from __future__ import annotations

from memwall.codegen.index import Index, ravel
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.ops.base import Made, OpRule, OpView, Scatter, broadcast, constant, found_index, rules
from memwall.codegen.ops.places import Indexing
from memwall.codegen.tensors import Body, Indices, Tensor
from memwall.ops.expressions import literal


def _index_put(view: OpView) -> Made:
    whole, values = view.tensor("self"), view.tensor("values")
    indexing = Indexing.of(view, whole.shape)
    source = Tensor(indexing.result, values.dtype, lambda body, i: values.at(body, broadcast(values, i)))

    def place(body: Body, i: Indices) -> tuple[Index, list[str]]:
        return ravel(indexing.source(body, i), whole.shape), []

    return [Scatter(source, place, whole.shape, view.spec.dtype, whole, bool(view.number("accumulate", False)))]


def _index_add(view: OpView) -> Made:
    whole, index, source = view.tensor("self"), view.tensor("index"), view.tensor("source")
    axis = view.number("dim", 0) % len(whole.shape)
    alpha = view.number("alpha", 1)
    scaled = source if alpha == 1 else Tensor(
        source.shape, source.dtype, lambda body, i: f"{literal(alpha, 'float32')} * {source.at(body, i)}"
    )  # fmt: skip

    def place(body: Body, i: Indices) -> tuple[Index, list[str]]:
        at = found_index(body, index, (i[axis],), whole.shape[axis], False)
        return ravel((*i[:axis], at, *i[axis + 1 :]), whole.shape), []

    return [Scatter(scaled, place, whole.shape, view.spec.dtype, whole, True)]


def _scatter(accumulate: bool) -> OpRule:
    def rule(view: OpView) -> Made:
        whole, index = view.tensor("self"), view.tensor("index")
        if view.number("reduce"):
            raise NotGenerated(f"a scatter that reduces by {view.number('reduce')}")
        axis = view.number("dim", 0) % len(whole.shape)
        values = view.find("src") or constant(index.shape, view.spec.dtype, view.number("value"))
        source = Tensor(index.shape, values.dtype, values.at)

        def place(body: Body, i: Indices) -> tuple[Index, list[str]]:
            at = found_index(body, index, i, whole.shape[axis], False)
            return ravel((*i[:axis], at, *i[axis + 1 :]), whole.shape), []

        return [Scatter(source, place, whole.shape, view.spec.dtype, whole, accumulate)]

    return rule


def _embedding_backward(view: OpView) -> Made:
    grad, indices = view.tensor("grad_output"), view.tensor("indices")
    rows, padding = view.number("num_weights"), view.number("padding_idx", -1)
    if view.number("scale_grad_by_freq", False):
        raise NotGenerated("gradients scaled by how often a row is used")
    rank = len(indices.shape)
    shape = (rows, grad.shape[-1])

    def place(body: Body, i: Indices) -> tuple[Index, list[str]]:
        text = indices.at(body, i[:rank])
        row = found_index(body, indices, i[:rank], rows, False)
        return ravel((row, i[rank]), shape), [f"({text} != {padding})"] if padding >= 0 else []

    return [Scatter(grad, place, shape, view.spec.dtype, None, True)]


def _sparse_add(view: OpView) -> Made:
    """Rows of a table, found by their numbers (1 × n), have others added to them."""
    table, (numbers, rows) = view.tensor("self"), view.tensors("other")
    if len(rows.shape) != 2 or numbers.shape != (1, rows.shape[0]):
        raise NotGenerated("a sparse tensor that is not one of whole rows")
    alpha = view.number("alpha", 1)
    scaled = Tensor(rows.shape, rows.dtype, lambda body, i: f"{literal(alpha, 'float32')} * {rows.at(body, i)}")

    def place(body: Body, i: Indices) -> tuple[Index, list[str]]:
        row = found_index(body, numbers, (Index(), i[0]), table.shape[0], False)
        return ravel((row, i[1]), table.shape), []

    return [Scatter(scaled, place, table.shape, view.spec.dtype, None, True)]


#: packet -> rule
RULES = rules({
    _index_put: "index_put _unsafe_index_put _index_put_impl",
    _index_add: "index_add",
    _scatter(True): "scatter_add",
    _scatter(False): "scatter",
    _embedding_backward: "embedding_dense_backward",
    _sparse_add: "sparse.add_.Tensor",
})  # fmt: skip
