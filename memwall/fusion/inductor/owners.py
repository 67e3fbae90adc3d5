"""Launches -> kernels that own every op exactly once.

An op that a compiler inlines or computes again shows up in several kernels, one that it takes apart in several too. It
is owned by the library's kernel that runs it, else by the kernel that writes its result to memory, else by the first
that computes it; the others recompute it. A launch that owns nothing (the first stage of a split reduction, a change of
layout) counts as a further launch of the kernel that it works for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from memwall.fusion.inductor.types import LoweredKernel
from memwall.graph import Graph


@dataclass(frozen=True)
class Launch:
    """One node of a compiler's schedule.

    ``computes``: ops of which something is computed here; ``shows``: those whose result is; ``hands_on``: those whose
    result is written to memory here. ``reads`` and ``writes`` name buffers, unique within a schedule.
    """

    name: str
    kind: str
    computes: frozenset[int] = frozenset()
    shows: frozenset[int] = frozenset()
    hands_on: frozenset[int] = frozenset()
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    read_bytes: int = 0
    write_bytes: int = 0
    nodes: int = 1
    library_op: str = ""
    source: str = ""


@dataclass
class _Kernel:
    main: Launch
    op_ids: list[int] = field(default_factory=list)
    others: list[Launch] = field(default_factory=list)

    def lowered(self) -> LoweredKernel:
        parts = [self.main, *self.others]
        computed = set().union(*(part.computes for part in parts))
        return LoweredKernel(
            name=self.main.name,
            kind=self.main.kind,
            op_ids=tuple(sorted(self.op_ids)),
            recomputes=tuple(sorted(computed - set(self.op_ids))),
            launches=sum(part.kind != "none" for part in parts),
            read_bytes=sum(part.read_bytes for part in parts),
            write_bytes=sum(part.write_bytes for part in parts),
            source="\n\n".join(dict.fromkeys(part.source for part in parts if part.source)),
        )


def own(graph: Graph, op_ids: Iterable[int], schedules: Sequence[Sequence[Launch]]) -> list[LoweredKernel]:
    """The kernels of some schedules (each one compiled graph, in launch order) that together compute the ops."""
    wanted = sorted(op_ids)
    launches = [launch for schedule in schedules for launch in schedule if launch.kind != "none"]
    owner = _first_owners(wanted, launches)
    kernels = [_Kernel(launch) for launch in launches]
    for op_id, index in owner.items():
        kernels[index].op_ids.append(op_id)
    _merge_ownerless(schedules, kernels, owner)
    _place_vanished(graph, wanted, kernels, owner)
    return [kernel.lowered() for kernel in kernels if kernel.op_ids]


def _first_owners(wanted: Sequence[int], launches: Sequence[Launch]) -> dict[int, int]:
    """Op -> index of the launch that owns it, for all ops that some launch computes."""
    owner: dict[int, int] = {}
    inside = set(wanted)
    for kinds, what in _CLAIMS:
        found: dict[int, int] = {}
        for index, launch in enumerate(launches):
            if launch.kind in kinds:
                for op_id in getattr(launch, what):
                    found.setdefault(op_id, index)
        owner = {op: index for op, index in found.items() if op in inside} | owner
    return owner


_LIBRARY = frozenset(("extern", "template"))
_ANY = _LIBRARY | {"triton", "cpp"}

#: Who owns an op, the strongest claim first: kinds of launch, and what it has to do with the op.
_CLAIMS = ((_LIBRARY, "computes"), (_ANY, "hands_on"), (_ANY, "shows"), (_ANY, "computes"))


def _merge_ownerless(
    schedules: Sequence[Sequence[Launch]], kernels: list[_Kernel], owner: Mapping[int, int]
) -> None:
    """Count launches that own nothing with the kernel that they work for, last ones first, so that chains end."""
    index = {id(kernel.main): i for i, kernel in enumerate(kernels)}
    into: dict[int, int] = {}
    for schedule in schedules:
        for launch in reversed(schedule):
            number = index.get(id(launch))
            if number is None or kernels[number].op_ids:
                continue
            readers = [
                index[id(later)] for later in schedule if id(later) in index and later.reads & launch.writes
            ]
            readers = [into.get(r, r) for r in readers if r != number]
            related = [r for r in readers if launch.computes & kernels[r].main.computes]
            owners = [owner[op] for op in sorted(launch.computes, reverse=True) if op in owner]
            target = next(iter((*related, *owners, *readers)), None)
            if target is None:
                target = next((i for i in range(number + 1, len(kernels)) if kernels[i].op_ids), None)
            if target is not None:
                into[number] = target
                kernels[target].others.append(launch)


def _place_vanished(
    graph: Graph, wanted: Sequence[int], kernels: list[_Kernel], owner: dict[int, int]
) -> None:
    """Ops that no launch computes (folded, equal to another, no-ops) go to where their result is used, at no cost."""
    readers: dict[int, list[int]] = {}
    writers: dict[int, list[int]] = {}
    for op in graph.ops:
        for value_id in op.inputs:
            readers.setdefault(graph.values[value_id].storage, []).append(op.id)
        for value_id in op.outputs:
            writers.setdefault(graph.values[value_id].storage, []).append(op.id)
    for op_id in reversed(wanted):
        if op_id in owner:
            continue
        op = graph.ops[op_id]
        uses = [r for i in op.outputs for r in readers.get(graph.values[i].storage, ()) if r > op_id]
        makers = [w for i in op.inputs for w in writers.get(graph.values[i].storage, ()) if w < op_id]
        place = next((owner[other] for other in (*uses, *reversed(makers)) if other in owner), None)
        if place is None:
            place = len(kernels)
            kernels.append(_Kernel(Launch(op.name, "none")))
        owner[op_id] = place
        kernels[place].op_ids.append(op_id)
