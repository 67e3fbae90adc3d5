"""Memory while a plan runs: the bytes alive in device memory, and the reuse distance of each read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from memwall.core.graph import HELD, Graph, Storage
from memwall.fusion import Plan
from memwall.hardware.lookup import Gpu


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """Device memory at the moment when most is alive, in bytes by what they are: one of :data:`KINDS` each."""

    parameters: int = 0
    #: of parameters, and of inputs that require one; gradients of intermediates are temporaries
    gradients: int = 0
    optimizer_state: int = 0
    #: results of the forward pass: in training results that the backward pass reads or the step returns
    activations: int = 0
    #: whatever else the step writes: results that die in their own phase, gradients of intermediates, copies of
    #: parameters (autocast), an optimizer's intermediates. Older records count these and inputs as activations
    temporaries: int = 0
    #: what the step is given, but for caches
    inputs: int = 0
    buffers: int = 0
    #: caches of keys, values and states: what earlier steps left, until it is last read, and what the next one finds
    kv_cache: int = 0
    #: the id of the kernel that runs then; None: before the first one, or a record that does not say
    kernel: int | None = None

    @property
    def total(self) -> int:
        """Bytes alive at the peak."""
        return sum(self.by_kind.values())

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes of each of :data:`KINDS`."""
        return {kind: getattr(self, kind) for kind in KINDS}


#: the fields of MemoryPeak that count bytes
KINDS = ("parameters", "gradients", "optimizer_state", "activations", "temporaries", "inputs", "buffers", "kv_cache")
_ACTIVATION, _TEMPORARY = KINDS.index("activations"), KINDS.index("temporaries")
#: role of a storage -> its place in KINDS; the plan tells activations from temporaries
_KIND = {
    "parameter": 0, "gradient": 1, "optimizer_state": 2, "input": 5, "replaced": 5, "buffer": 6, "kv_cache": 7,
    "kv_made": 7,
}  # fmt: skip


#: assumed for a process's context on the GPU, in bytes: with kernels loaded lazily "300 something MB"
#: (pytorch/pytorch#107667), 471 MiB on an RTX 4090 (3DTopia/Phidias-Diffusion#8); over 1 GB before CUDA 11.7
CONTEXT_BYTES = 500_000_000
#: assumed for PyTorch's caching allocator, as a share of the peak: blocks are rounded up to 512 bytes, segments to
#: 2 MiB, and free blocks between others stay unused
ALLOCATOR_SHARE = 0.02


def reserved_bytes(gpu: Gpu, peak_bytes: int) -> int:
    """Device memory that a process needs beyond its tensors: an assumption; none on a CPU, nor on a TPU, of whose
    memory its file leaves out what is reserved."""
    return 0 if gpu.cpu or gpu.tpu else CONTEXT_BYTES + round(ALLOCATOR_SHARE * peak_bytes)


def planned_peak(graph: Graph, plan: Plan) -> MemoryPeak:
    """The peak of a plan: of the buffers that a compiler has assigned, where it has, of which all is temporary
    that was not there before; else :func:`memory_peak`."""
    if plan.peak_bytes is None:
        return memory_peak(graph, plan)
    before = dict(zip(KINDS, next(memory_levels(graph, plan)), strict=True))
    held = min(sum(before.values()), plan.peak_bytes)
    return MemoryPeak(**{**before, "temporaries": before["temporaries"] + plan.peak_bytes - held})


def memory_peak(graph: Graph, plan: Plan) -> MemoryPeak:
    """The moment of :func:`memory_levels` when most bytes are alive."""
    most, level = max(enumerate(memory_levels(graph, plan)), key=lambda numbered: sum(numbered[1]))
    return MemoryPeak(**dict(zip(KINDS, level, strict=True)), kernel=(most - 1) // 2 if most else None)


def alive_at_peak(graph: Graph, plan: Plan) -> list[Storage]:
    """What is alive at the moment of :func:`memory_peak`; their sizes add up to its total."""
    at = memory_peak(graph, plan).kernel
    peak = _BEFORE if at is None else at
    return [storage for start, end, storage in _lives(graph, plan) if start <= peak <= end]


def memory_levels(graph: Graph, plan: Plan) -> Iterator[tuple[int, ...]]:
    """Walk the groups: bytes alive before the first, then for each group while it runs and after it, in the order of
    :data:`KINDS`."""
    lives = _lives(graph, plan)
    kinds = _kinds(graph, plan, lives)
    live = [0] * len(KINDS)
    births: dict[int, list[Storage]] = {}
    deaths: dict[int, list[Storage]] = {}
    for start, end, storage in lives:
        births.setdefault(start, []).append(storage)
        deaths.setdefault(end, []).append(storage)
    for index in range(_BEFORE, len(plan.groups)):
        for born in births.get(index, ()):
            live[kinds[born.id]] += born.nbytes
        yield tuple(live)
        if index != _BEFORE:
            for dead in deaths.get(index, ()):
                live[kinds[dead.id]] -= dead.nbytes
            yield tuple(live)


#: the group before the first: what is alive then was there before the step
_BEFORE = -1
#: the first and the last group during which a storage is alive; after the last group of the plan: to the end
Life = tuple[int, int, Storage]


def _lives(graph: Graph, plan: Plan) -> list[Life]:
    """Parameters, buffers, inputs and optimizer state live throughout (a training step in steady state), but to their
    last use where the step replaces them; gradients and outputs live from their first write to the end, any other
    storage from the first group that touches it to the last, or to the end of backward where that frees it."""
    values, end = graph.values, len(plan.groups)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, group in enumerate(plan.groups):
        for value_id in (*group.reads, *group.writes):
            number = values[value_id].storage
            first.setdefault(number, index)
            last[number] = index
    kept = {values[i].storage for i in graph.outputs}
    phases = [graph.ops[group.op_ids[0]].phase for group in plan.groups]
    backward = max((index for index, phase in enumerate(phases) if phase == "backward"), default=-1)
    lives = []
    for storage in graph.storages:
        if storage.is_persistent:
            replaced = storage.role == "replaced" or (storage.role == "kv_cache" and storage.id not in kept)
            lives.append((_BEFORE, last.get(storage.id, end) if replaced else end, storage))
        elif storage.id in first:
            stays, until = storage.role == "gradient" or storage.id in kept, last[storage.id]
            until = max(until, backward) if storage.name == HELD else until
            lives.append((first[storage.id], end if stays else until, storage))
    return lives


def _kinds(graph: Graph, plan: Plan, lives: Iterable[Life]) -> dict[int, int]:
    """The place in :data:`KINDS` of each storage that is alive in some group."""
    phases = [*(graph.ops[group.op_ids[0]].phase for group in plan.groups), "end"]
    trains, copies = "backward" in phases, _copies_of_parameters(graph)

    def of(start: int, end: int, storage: Storage) -> int:
        if storage.role in _KIND:
            return _KIND[storage.role]
        needed = not trains or phases[end] != "forward"
        return _ACTIVATION if needed and phases[start] == "forward" and storage.id not in copies else _TEMPORARY

    return {storage.id: of(start, end, storage) for start, end, storage in lives}


def _copies_of_parameters(graph: Graph) -> set[int]:
    """Storages that the forward pass makes of parameters alone, such as autocast's casts of the weights."""
    known = {storage.id for storage in graph.storages if storage.role == "parameter"}
    made: set[int] = set()
    for op in graph.ops:
        if op.phase == "forward" and op.inputs and all(graph.values[i].storage in known for i in op.inputs):
            new = {number for i in op.outputs if graph.storages[number := graph.values[i].storage].role == "activation"}
            made |= new
            known |= new
    return made


def reuse_distances(graph: Graph, plan: Plan) -> list[tuple[tuple[int, int], ...]]:
    """For each group, (bytes, distance) of every read of a storage touched before. The distance is the number of bytes
    that kernels moved from the start of the kernel that last touched the storage to the start of this one: the bytes
    are in an LRU cache of at least that size. Launches behind the first of a group write the results,
    as the pass that adds a convolution's bias does, unless they move less than these."""
    storage_of = [value.storage for value in graph.values]
    specs = {id(value.spec): value.spec for value in graph.values}
    size_of = {number: spec.nbytes for number, spec in specs.items()}
    nbytes = [size_of[id(value.spec)] for value in graph.values]
    costs = {id(group.cost): group.cost for group in plan.groups}
    moves = {number: cost.bytes + cost.extra_bytes for number, cost in costs.items()}
    later = {number: sum(launch.bytes for launch in cost.launches[1:]) for number, cost in costs.items()}
    ends = {n: later[n] if later[n] >= max(cost.write_bytes, 1) else moves[n] for n, cost in costs.items()}
    touched_at: dict[int, int] = {}
    moved = 0
    result = []
    for group in plan.groups:
        hits = []
        for value_id in dict.fromkeys(group.reads):
            touched = touched_at.get(storage_of[value_id])
            if touched is not None:
                hits.append((nbytes[value_id], moved - touched))
        for value_id in group.reads:
            touched_at[storage_of[value_id]] = moved
        moved += moves[id(group.cost)]
        for value_id in group.writes:
            touched_at[storage_of[value_id]] = moved - ends[id(group.cost)]
        result.append(tuple(hits))
    return result


def temporaries(graph: Graph, places: Sequence[int], kept: Mapping[int, float]) -> dict[int, tuple[int, int]]:
    """Place → the most bytes alive there that no later pass reads, and the op at which they are: results that die in
    their own pass, and of what is kept in a share the rest while it is whole.

    Args:
        places: of each op.
        kept: storage that backward reads → the share that is kept until then.
    """
    changes: Counter[int] = Counter()
    for (number, _), ops in _touched(graph, kept).items():
        nbytes = round(graph.storages[number].nbytes * (1 - kept.get(number, 0.0)))
        changes[ops[0]] += nbytes
        changes[ops[-1] + 1] -= nbytes
    alive, most = 0, dict[int, tuple[int, int]]()
    for op, place in enumerate(places):
        alive += changes[op]
        if place not in most or alive >= most[place][0]:
            most[place] = alive, op
    return most


def _touched(graph: Graph, kept: Mapping[int, float]) -> dict[tuple[int, str], list[int]]:
    """Storage that only the step has, and pass where it is kept in between → the ops that touch it."""
    found: dict[tuple[int, str], list[int]] = {}
    for op in graph.ops:
        for number in {graph.values[i].storage for i in (*op.inputs, *op.outputs)}:
            if graph.storages[number].role == "activation":
                found.setdefault((number, op.phase if number in kept else ""), []).append(op.id)
    return found
