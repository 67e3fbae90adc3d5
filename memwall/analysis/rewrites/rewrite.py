"""Rewriting a graph: values are added, some ops are replaced by others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memwall.core.graph import Graph, Op, Storage, TensorSpec, Value, contiguous
from memwall.ops import Cost, classify, graph_costs


@dataclass(frozen=True)
class NewOp:
    """An op that has no number yet. ``inputs`` and ``outputs`` map or pair arguments to value ids."""

    name: str
    phase: str
    module: str
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[int, ...]
    attributes: Mapping[str, Any]


#: a graph and what each of its ops costs
Priced = tuple[Graph, tuple[Cost, ...]]


class Rewrite:
    """New values and ops for a graph; :meth:`result` makes the changed one, the original is not modified."""

    def __init__(self, graph: Graph, costs: Sequence[Cost]) -> None:
        self.original, self.costs = graph, costs
        self.values: list[Value] = list(graph.values)
        self.storages: list[Storage] = list(graph.storages)
        self.dropped: set[int] = set()
        self.inserted: dict[int, list[NewOp]] = {}

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

    def replace(self, op_ids: Collection[int], at: int, ops: Sequence[NewOp]) -> None:
        """Drop some ops and put others in place of op ``at``."""
        self.dropped.update(op_ids)
        self.inserted.setdefault(at, []).extend(ops)

    def result(self) -> Priced:
        """The graph with all changes made, its ops numbered anew. Those that stayed keep their costs."""
        ops: list[Op] = []
        known: dict[int, Cost] = {}
        for op in self.original.ops:
            for new in self.inserted.get(op.id, ()):
                ops.append(_numbered(new, len(ops)))
            if op.id not in self.dropped:
                known[len(ops)] = self.costs[op.id]
                ops.append(replace(op, id=len(ops)))
        graph = replace(self.original, values=tuple(self.values), storages=tuple(self.storages), ops=tuple(ops))
        return graph, tuple(known.get(i, cost) for i, cost in enumerate(graph_costs(graph)))


def _numbered(new: NewOp, number: int) -> Op:
    arguments = tuple(name for name, _ in new.inputs)
    inputs = tuple(value for _, value in new.inputs)
    return Op(
        number, new.name, classify(new.name), new.phase, new.module, inputs, new.outputs, arguments, new.attributes
    )
