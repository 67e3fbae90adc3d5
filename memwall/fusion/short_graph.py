"""A graph without some of its ops: what is left of it, numbered anew (for :mod:`memwall.fusion.repeats`)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from memwall.core.graph import Graph, Op, Storage, TensorSpec, Value

_NO_SWAP: Mapping[int, int] = {}


class Entries(NamedTuple):
    """An op over lists of ``length`` entries each. ``rows``: the storages of each entry."""

    op: Op
    length: int
    rows: tuple[tuple[int, ...], ...]


class GraphBuilder:
    """Copies ops into a new graph, with new numbers for values and storages."""

    def __init__(self, whole: Graph, gone: Set[int], swaps: Mapping[int, Mapping[int, int]]) -> None:
        self.whole = whole
        self.gone = gone
        self.swaps = swaps
        self.storages: list[Storage] = []
        self.renamed: dict[int, int] = {}
        for storage in whole.storages:
            if storage.id not in gone:
                self.renamed[storage.id] = len(self.storages)
                self.storages.append(replace(storage, id=len(self.storages)))
        self.values: list[Value] = []
        self._new_ids: dict[int, int] = {}
        self._by_look: dict[tuple[int, int, TensorSpec], int] = {}
        self._ops = 0
        self._targets = {s for swap in swaps.values() for s in swap.values()}

    def value(self, number: int, swap: Mapping[int, int] = _NO_SWAP) -> int:
        """The new id of a value, with its storage swapped for the replacement."""
        old = self.whole.values[number]
        if old.storage in swap:
            return self._look(swap[old.storage], old)
        if old.storage in self._targets:
            return self._look(old.storage, old)
        if number not in self._new_ids:
            self._new_ids[number] = len(self.values)
            self.values.append(Value(len(self.values), old.spec, self.renamed[old.storage], old.offset))
        return self._new_ids[number]

    def _look(self, storage: int, like: Value) -> int:
        key = (storage, like.offset, like.spec)
        if key not in self._by_look:
            self._by_look[key] = len(self.values)
            self.values.append(Value(len(self.values), like.spec, self.renamed[storage], like.offset))
        return self._by_look[key]

    def op(self, op: Op, rows: Entries | None) -> Op:
        """A copy of an op, without the removed entries if it is over lists."""
        if rows is not None:
            op = self._without_rows(op, rows)
        swap = self.swaps.get(op.id, _NO_SWAP)
        self._ops += 1
        return Op(
            self._ops - 1,
            op.name,
            op.op_class,
            op.phase,
            op.module,
            tuple([self.value(i, swap) for i in op.inputs]),
            tuple([self.value(i, swap) for i in op.outputs]),
            op.arguments,
            op.attributes,
            op.source,
            again=op.again,
        )

    def _without_rows(self, op: Op, found: Entries) -> Op:
        stays = [self.gone.isdisjoint(row) for row in found.rows]
        if all(stays):
            return op
        length = found.length
        counts = Counter(op.arguments)
        seen: Counter[str] = Counter()
        inputs, arguments = [], []
        for i, name in zip(op.inputs, op.arguments, strict=True):
            if counts[name] < length or stays[seen[name]]:
                inputs.append(i)
                arguments.append(name)
            seen[name] += 1
        outputs = [i for number, i in enumerate(op.outputs) if stays[number % length]]
        attributes = {
            name: type(value)(itertools.compress(value, stays))
            if isinstance(value, (list, tuple)) and len(value) == length
            else value
            for name, value in op.attributes.items()
        }
        return replace(
            op, inputs=tuple(inputs), outputs=tuple(outputs), arguments=tuple(arguments), attributes=attributes
        )

    def graph(self, ops: Sequence[Op]) -> Graph:
        """The graph of some copied ops."""
        whole = self.whole
        inputs, parameters, outputs = (
            tuple([self.value(i) for i in ids if whole.values[i].storage not in self.gone])
            for ids in (whole.inputs, whole.parameters, whole.outputs)
        )
        return Graph(
            tuple(self.values),
            tuple(self.storages),
            tuple(ops),
            inputs,
            parameters,
            outputs,
            whole.free_calls,
            whole.attention,
            one_program=whole.one_program,
        )
