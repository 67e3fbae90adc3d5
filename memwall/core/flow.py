"""Who wrote what each op reads: the data flow of a graph through storages, exact under views and in-place writes.

Each write of an op to a storage makes a new *version* of it: what one op passes to another and fusion can keep on chip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from memwall.core.graph import Graph

#: (value id, version)
Use = tuple[int, int]


@dataclass(frozen=True)
class Flow:
    """Reads, writes and dependencies of every op, by version.

    ``writer[v]`` is the op that made version ``v``, -1 if it existed before the step. ``readers[v]`` are the ops
    that read it. ``carries[v]`` is the version that ``v`` overwrote in part, so that both must be in memory, or -1.
    ``kept`` are the versions that must be in memory when the step is over. ``deps[i]`` are the ops that must have run
    before op ``i``: ops that wrote what it reads, and ops that touched what it overwrites.
    """

    reads: Sequence[tuple[Use, ...]]
    writes: Sequence[tuple[Use, ...]]
    writer: Sequence[int]
    readers: Sequence[Sequence[int]]
    storage: Sequence[int]
    carries: Sequence[int]
    kept: frozenset[int]
    deps: Sequence[tuple[int, ...]]

    @cached_property
    def overwriter(self) -> dict[int, int]:
        """Version -> the op that overwrites it, if any."""
        last: dict[int, int] = {}
        found = {}
        for version, storage in enumerate(self.storage):
            if storage in last:
                found[last[storage]] = self.writer[version]
            last[storage] = version
        return found

    @cached_property
    def first(self) -> dict[int, int]:
        """Storage -> the version with which it begins."""
        return {storage: version for version, storage in reversed([*enumerate(self.storage)])}

    def unused(self, graph: Graph) -> frozenset[int]:
        """Copies of views, and forward ops whose results nothing needs, directly or through other such ops: a compiler
        removes them, eager runs them. Messages to other GPUs are needed, and so is what nothing reads in backward:
        gradients of the model's inputs, which the caller gets."""
        needed = set(self.kept)
        found = set()
        for op in reversed(graph.ops):
            made = {version for _, version in self.writes[op.id]}
            is_needed = (
                not made or not needed.isdisjoint(made) or op.phase != "forward" or op.op_class == "communication"
            )
            if op.is_view or not is_needed:
                found.add(op.id)
                continue
            needed.update(version for _, version in self.reads[op.id])
            needed.update(self.carries[version] for version in made & needed)
        return frozenset(found)

    @classmethod
    def of(cls, graph: Graph) -> Flow:
        """Walk the ops of a graph once."""
        return _FlowWalk(graph).flow()


class _FlowWalk:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.current: dict[int, int] = {}
        self.writer: list[int] = []
        self.readers: list[list[int]] = []
        self.storage: list[int] = []
        self.carries: list[int] = []
        self.value_of: list[int] = []

    def _new(self, storage: int, writer: int, carries: int = -1) -> int:
        version = len(self.writer)
        self.writer.append(writer)
        self.readers.append([])
        self.storage.append(storage)
        self.carries.append(carries)
        self.current[storage] = version
        return version

    def flow(self) -> Flow:
        values, storages = self.graph.values, self.graph.storages
        reads, writes, deps = [], [], []
        for op in self.graph.ops:
            before: set[int] = set()
            read = []
            for value_id in op.inputs:
                number = values[value_id].storage
                version = self.current.get(number)
                if version is None:
                    version = self._new(number, -1)
                read.append((value_id, version))
                before.add(self.writer[version])
                readers = self.readers[version]
                if not readers or readers[-1] != op.id:
                    readers.append(op.id)
            written = []
            for value_id in op.outputs:
                value = values[value_id]
                old = self.current.get(value.storage)
                partial = value.spec.nbytes < storages[value.storage].nbytes
                fresh = old is None and not storages[value.storage].is_persistent
                if old is None and not fresh:
                    old = self._new(value.storage, -1)
                if old is not None:
                    before.add(self.writer[old])
                    before.update(self.readers[old])
                carried = old if partial and old is not None else -1
                written.append((value_id, self._new(value.storage, op.id, carried)))
            before -= {-1, op.id}
            reads.append(tuple(read))
            writes.append(tuple(written))
            deps.append(tuple(sorted(before)))
        return Flow(reads, writes, self.writer, self.readers, self.storage, self.carries, self._kept(), deps)

    def _kept(self) -> frozenset[int]:
        graph = self.graph
        outputs = {graph.values[i].storage for i in graph.outputs}
        kept = set()
        for storage in graph.storages:
            version = self.current.get(storage.id, -1)
            lives_on = storage.is_persistent or storage.role == "gradient" or storage.id in outputs
            while version >= 0 and lives_on:
                kept.add(version)
                version = self.carries[version]
        return frozenset(kept)


def carried(flow: Flow, versions: set[int]) -> set[int]:
    """The versions, and all that they overwrote in part: what must be in memory for them to be complete."""
    result = set(versions)
    for version in versions:
        while (version := flow.carries[version]) >= 0 and version not in result:
            result.add(version)
    return result
