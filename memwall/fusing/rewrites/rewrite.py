"""Rewriting a graph: values are added, some ops are replaced by others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memwall.core.graph import Graph, Op, Storage, TensorSpec, Value, contiguous
from memwall.ops import Cost, classify, graph_costs

#: a graph and what each of its ops costs
Priced = tuple[Graph, Sequence[Cost]]


def new_op(
    name: str,
    phase: str,
    module: str,
    inputs: Iterable[tuple[str, int]],
    outputs: Sequence[int],
    attributes: Mapping[str, Any],
) -> Op:
    """An op that has no number yet; ``inputs`` are pairs of argument and value id."""
    pairs = tuple(inputs)
    arguments, values = tuple(name for name, _ in pairs), tuple(value for _, value in pairs)
    return Op(-1, name, classify(name, phase), phase, module, values, tuple(outputs), arguments, attributes)


class Rewrite:
    """New values and ops for a graph; :meth:`result` makes the changed one, the original is not modified."""

    def __init__(self, graph: Graph, costs: Sequence[Cost]) -> None:
        self.original, self.costs = graph, costs
        self.values: list[Value] = list(graph.values)
        self.storages: list[Storage] = list(graph.storages)
        self.dropped: set[int] = set()
        self.inserted: dict[int, list[Op]] = {}

    def tensor(self, shape: Sequence[int], dtype: str) -> int:
        """A value with a storage of its own, an activation."""
        spec = contiguous(shape, dtype)
        self.storages.append(Storage(len(self.storages), spec.nbytes, "activation"))
        return self._value(spec, len(self.storages) - 1, 0)

    def view(self, value_id: int, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> int:
        """Another view of a value's storage, ``offset`` elements behind the value."""
        value = self.values[value_id]
        spec = TensorSpec(tuple(shape), tuple(strides), value.spec.dtype)
        return self._value(spec, value.storage, value.offset + offset)

    def rows(self, value_id: int, start: int, count: int) -> int:
        """``count`` rows of a value from row ``start`` on."""
        spec = self.values[value_id].spec
        return self.view(value_id, (count, *spec.shape[1:]), spec.strides, start * spec.strides[0])

    def transposed(self, value_id: int) -> int:
        """A matrix with its axes swapped."""
        spec = self.values[value_id].spec
        return self.view(value_id, spec.shape[::-1], spec.strides[::-1])

    def _value(self, spec: TensorSpec, storage: int, offset: int) -> int:
        self.values.append(Value(len(self.values), spec, storage, offset))
        return len(self.values) - 1

    def replace(self, op_ids: Collection[int], at: int, ops: Sequence[Op]) -> None:
        """Drop some ops and put others in place of op ``at``."""
        self.dropped.update(op_ids)
        self.inserted.setdefault(at, []).extend(ops)

    def result(self) -> Priced:
        """The graph with all changes made, its ops numbered anew. Ops that stayed keep their costs."""
        ops: list[Op] = []
        known: dict[int, Cost] = {}
        for op in self.original.ops:
            ops += self.inserted.get(op.id, ())
            if op.id not in self.dropped:
                known[len(ops)] = self.costs[op.id]
                ops.append(op)
        numbered = tuple(replace(op, id=i) for i, op in enumerate(ops))
        graph = replace(self.original, values=tuple(self.values), storages=tuple(self.storages), ops=numbered)
        return graph, tuple(known.get(i, cost) for i, cost in enumerate(graph_costs(graph)))
