"""Memory while a plan runs: the bytes alive in device memory, and the reuse distance of each read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from memwall.core.graph import Graph, Storage
from memwall.fusion import Plan


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """Device memory at the moment when most is alive, in bytes. Buffers count as parameters, inputs as activations."""

    parameters: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """Bytes alive at the peak."""
        return self.parameters + self.gradients + self.optimizer_state + self.activations


#: role of a storage -> which field of MemoryPeak counts it
_FIELD = {"parameter": 0, "buffer": 0, "gradient": 1, "optimizer_state": 2, "input": 3, "activation": 3}


def memory_peak(graph: Graph, plan: Plan) -> MemoryPeak:
    """The moment of :func:`memory_levels` when most bytes are alive."""
    return MemoryPeak(*max(memory_levels(graph, plan), key=sum))


def memory_levels(graph: Graph, plan: Plan) -> Iterator[tuple[int, ...]]:
    """Walk the groups: bytes alive before the first, then for each group while it runs and after it, in the order of
    the fields of :class:`MemoryPeak`. Parameters, buffers, inputs and optimizer state live throughout (a training step
    in steady state), gradients and outputs from their first write to the end, any other storage from the first group
    that touches it to the last."""
    values = graph.values
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, group in enumerate(plan.groups):
        for value_id in (*group.reads, *group.writes):
            number = values[value_id].storage
            first.setdefault(number, index)
            last[number] = index
    kept = {values[i].storage for i in graph.outputs}
    live = [0, 0, 0, 0]
    births: dict[int, list[Storage]] = {}
    deaths: dict[int, list[Storage]] = {}
    for storage in graph.storages:
        if storage.is_persistent:
            live[_FIELD[storage.role]] += storage.nbytes
        elif storage.id in first:
            births.setdefault(first[storage.id], []).append(storage)
            if storage.role != "gradient" and storage.id not in kept:
                deaths.setdefault(last[storage.id], []).append(storage)
    yield tuple(live)
    for index in range(len(plan.groups)):
        for born in births.get(index, ()):
            live[_FIELD[born.role]] += born.nbytes
        yield tuple(live)
        for dead in deaths.get(index, ()):
            live[_FIELD[dead.role]] -= dead.nbytes
        yield tuple(live)


def reuse_distances(graph: Graph, plan: Plan) -> list[tuple[tuple[int, int], ...]]:
    """For each group, (bytes, distance) of every read of a storage touched before. The distance is the number of bytes
    that kernels moved from the start of the kernel that last touched the storage to the start of this one: the bytes
    are in an LRU cache of at least that size."""
    storage_of = [value.storage for value in graph.values]
    specs = {id(value.spec): value.spec for value in graph.values}
    size_of = {number: spec.nbytes for number, spec in specs.items()}
    nbytes = [size_of[id(value.spec)] for value in graph.values]
    costs = {id(group.cost): group.cost for group in plan.groups}
    moves = {number: cost.bytes + cost.extra_bytes for number, cost in costs.items()}
    touched_at: dict[int, int] = {}
    moved = 0
    result = []
    for group in plan.groups:
        hits = []
        for value_id in dict.fromkeys(group.reads):
            last = touched_at.get(storage_of[value_id])
            if last is not None:
                hits.append((nbytes[value_id], moved - last))
        for value_id in (*group.reads, *group.writes):
            touched_at[storage_of[value_id]] = moved
        moved += moves[id(group.cost)]
        result.append(tuple(hits))
    return result


def alive_at_peak(graph: Graph, plan: Plan) -> list[Storage]:
    """What is alive at the moment of :func:`memory_peak`; their sizes add up to its total."""
    touched = [{graph.values[i].storage for i in (*group.reads, *group.writes)} for group in plan.groups]
    first = {number: i for i, numbers in reversed([*enumerate(touched)]) for number in numbers}
    last = {number: i for i, numbers in enumerate(touched) for number in numbers}
    kept = {graph.values[i].storage for i in graph.outputs}
    lives: list[tuple[int, int, Storage]] = []
    for storage in graph.storages:
        if storage.is_persistent:
            lives.append((0, len(touched), storage))
        elif storage.id in first:
            stays = storage.role == "gradient" or storage.id in kept
            lives.append((first[storage.id], len(touched) if stays else last[storage.id], storage))
    levels = [0] * (len(touched) + 2)
    for start, end, storage in lives:
        levels[start] += storage.nbytes
        levels[end + 1] -= storage.nbytes
    totals = [*accumulate(levels)]
    peak = max(range(len(totals)), key=totals.__getitem__)
    return [storage for start, end, storage in lives if start <= peak <= end]
