"""The inputs and outputs of one compiled region of a graph, as AOTAutograd would define them.

A region is a set of ops that are compiled together: forward ops, and the backward ops that belong to them. Storages
with contents before the region touches them are fed in; storages that outside ops read later are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memwall.core.graph import Graph, Op, TensorSpec, Value, contiguous
from memwall.fusion.view_steps import row_major_order


@dataclass(frozen=True, slots=True)
class Feed:
    """An input tensor of the region: it holds a whole storage from ``before_op`` on. ``tangent``: it comes from a
    backward op outside of the region. ``static``: it stays at its address between steps."""

    storage: int
    before_op: int
    spec: TensorSpec
    tangent: bool
    static: bool


@dataclass(frozen=True)
class RegionScope:
    """The border of a region: its ops in order, their feeds, and the storages that they keep. ``forward_keeps`` and
    ``backward_keeps`` are read outside; ``mutated`` existed before and were written in place."""

    op_ids: tuple[int, ...]
    feeds: tuple[Feed, ...]
    forward_keeps: tuple[int, ...]
    backward_keeps: tuple[int, ...]
    mutated: tuple[int, ...]


def scope_of(graph: Graph, inside: Sequence[bool], overwritten: Callable[[Op], Sequence[int]]) -> RegionScope:
    """The border of the region of all ops for which ``inside`` is true. ``overwritten`` gives the outputs of an op
    whose storage it writes into rather than makes."""
    return _ScopeWalk(graph, inside, overwritten).run()


class _ScopeWalk:
    def __init__(self, graph: Graph, inside: Sequence[bool], overwritten: Callable[[Op], Sequence[int]]) -> None:
        self.graph, self.inside, self.overwritten = graph, inside, overwritten
        self.values_of: dict[int, list[Value]] = {}  # parameters and inputs first, then in order
        named = {*graph.parameters, *graph.inputs}
        for value in sorted(graph.values, key=lambda v: (v.id not in named, v.id)):
            self.values_of.setdefault(value.storage, []).append(value)
        self.held: set[int] = set()  # storages whose content the region knows
        self.written: dict[int, str] = {}  # storage -> phase of the region's last write
        self.last_writer: dict[int, str] = {}  # storage -> phase of the last op outside that wrote it
        self.feeds: list[Feed] = []
        self.kept: dict[int, None] = {}

    def run(self) -> RegionScope:
        graph = self.graph
        for op in graph.ops:
            if self.inside[op.id]:
                self._enter(op)
                continue
            for value_id in op.inputs:
                self._keep(graph.values[value_id].storage)
            for value_id in op.outputs:
                self.held.discard(graph.values[value_id].storage)
                self.last_writer[graph.values[value_id].storage] = op.phase
        for value_id in graph.outputs:
            self._keep(graph.values[value_id].storage)
        for storage in graph.storages:
            if storage.role == "gradient":
                self._keep(storage.id)
        for storage_id in self._unread_gradients():
            self._keep(storage_id)
        mutated = [s for s in self.written if graph.storages[s].is_persistent]
        return RegionScope(
            op_ids=tuple(op.id for op in graph.ops if self.inside[op.id]),
            feeds=tuple(self.feeds),
            forward_keeps=tuple(s for s in self.kept if self.written[s] == "forward" and s not in mutated),
            backward_keeps=tuple(s for s in self.kept if self.written[s] == "backward" and s not in mutated),
            mutated=tuple(mutated),
        )

    def _enter(self, op: Op) -> None:
        values, storages = self.graph.values, self.graph.storages
        for number in (values[i].storage for i in op.inputs):
            if number not in self.held:
                self._feed(number, op)
                self.held.add(number)
        into = self.overwritten(op)
        for value_id in dict.fromkeys((*op.outputs, *into)):
            number = values[value_id].storage
            exists = storages[number].is_persistent or number in self.last_writer
            if value_id in into and number not in self.held and exists:
                self._feed(number, op)
            if value_id in into or number not in self.held:
                self.written[number] = op.phase
            self.held.add(number)

    def _feed(self, number: int, op: Op) -> None:
        storage = self.graph.storages[number]
        spec = whole_spec(self.values_of[number], storage.nbytes)
        tangent = self.last_writer.get(number) == "backward"
        self.feeds.append(Feed(number, op.id, spec, tangent, storage.role in ("parameter", "buffer")))

    def _keep(self, number: int) -> None:
        if number in self.written and number in self.held:
            self.kept.setdefault(number)

    def _unread_gradients(self) -> list[int]:
        """First results of backward ops that nothing reads: gradients of the model's inputs, which the caller gets."""
        graph = self.graph
        read = {graph.values[i].storage for op in graph.ops for i in op.inputs} | set(self.kept)
        found = []
        for op in graph.ops:
            made = [graph.values[i].storage for i in op.outputs]
            if self.inside[op.id] and op.phase == "backward" and made and read.isdisjoint(made):
                found.append(made[0])
        return found


def whole_spec(values: Sequence[Value], nbytes: int) -> TensorSpec:
    """The spec of the tensor that holds a whole storage: its first dense value that covers it, else a flat one."""
    for value in values:
        spec = value.spec
        whole = value.offset == 0 and spec.nbytes == nbytes and spec.numel == spec.distinct_elements
        if whole and row_major_order(spec) is not None:
            return spec
    spec = values[0].spec
    return contiguous((nbytes // spec.itemsize,), spec.dtype)
