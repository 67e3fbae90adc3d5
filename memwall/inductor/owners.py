"""Launches -> kernels that own every op exactly once.

An op that a compiler inlines, recomputes or splits appears in several kernels. Its owner is the library's kernel that
runs it, else the kernel that arrives at its result and computes most of it, in the graph that runs first; other kernels
that arrive at its result recompute it. A launch that owns nothing (a stage of a split reduction, a change of layout)
counts as a further launch of the kernel that it serves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from memwall.core.flow import Flow
from memwall.core.graph import Graph

#: sizes and strides of a tensor
Laid = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """One kernel of Inductor's schedule.

    ``op_ids`` are the ops that it owns, ``recomputes`` ops that it also computes though another kernel owns them.
    ``kind`` is ``triton`` (``cpp`` on a CPU), ``extern`` (a library's), ``template``, ``eager`` (an op
    outside of all graphs) or ``none`` (nothing runs).
    ``read_bytes`` and ``write_bytes`` are Inductor's own count over all ``launches``. ``fx_ops`` has the calls of each
    operator that its own ops were decomposed into, views left out; ``loop_ops`` is what the bodies of its loops call.
    ``parts`` names the kernel of each launch; kernels that share a name but differ are distinguished by a number.

    ``around`` are the launches of Inductor's own that a library's kernel needs, such as copies into another layout:
    (bytes read, bytes written) of each. ``channels_last``: the library gets its tensors in that layout. ``two_passes``:
    (rows, bytes read) of the launches that go over each row twice, the second time to write it. ``operands``: of a
    product, (sizes, strides) of its left and right matrix as the library gets them.
    """

    name: str
    kind: str
    op_ids: tuple[int, ...]
    recomputes: tuple[int, ...]
    launches: int
    read_bytes: int
    write_bytes: int
    fx_ops: Mapping[str, int] = field(default_factory=dict)
    loop_ops: Mapping[str, int] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    source: str = ""
    around: tuple[tuple[int, int], ...] = ()
    channels_last: bool = False
    two_passes: tuple[tuple[int, int], ...] = ()
    operands: tuple[Laid, ...] = ()


@dataclass(frozen=True)
class Lowered:
    """A graph's forward and backward ops as Inductor would run them: each op is owned by exactly one kernel.

    ``kernels`` are in launch order. ``why_not_fused`` counts refused pairs of the compiled graph by reason.
    ``fallbacks`` names operators, other than products, convolutions and attention, for which Inductor has no lowering
    and calls a library. ``notes`` say where a real ``torch.compile`` is likely to decide otherwise.
    """

    kernels: tuple[LoweredKernel, ...]
    why_not_fused: Mapping[str, int]
    fallbacks: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def fx_ops(self) -> dict[str, int]:
        """Calls of each operator after Inductor's decompositions, before its graph passes; views left out."""
        return total(kernel.fx_ops for kernel in self.kernels)

    @property
    def loop_ops(self) -> dict[str, int]:
        """Calls of each op in the bodies of all loops, once for each loop."""
        return total(kernel.loop_ops for kernel in self.kernels)

    @property
    def launches(self) -> dict[str, int]:
        """Launches of each distinct kernel."""
        return total(Counter(kernel.parts) for kernel in self.kernels)


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of some counts, by name."""
    sums: Counter[str] = Counter()
    for some in counts:
        sums.update(some)
    return dict(sorted(sums.items()))


@dataclass(frozen=True)
class ScheduleNode:
    """One node of a compiler's schedule.

    ``computes``: ops computed here at least in part, with the elements computed; ``shows``: ops whose result is
    computed here; ``hands_on``: ops whose result is written to memory here, with its bytes; ``concerns``: all ops that
    the compiler names here. ``reads`` and ``writes`` name buffers, unique within a schedule. ``loop_ops`` is what its
    loops call.
    """

    name: str
    kind: str
    computes: Mapping[int, int] = field(default_factory=dict)
    shows: frozenset[int] = frozenset()
    hands_on: Mapping[int, int] = field(default_factory=dict)
    concerns: frozenset[int] = frozenset()
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    read_bytes: int = 0
    write_bytes: int = 0
    loop_ops: Mapping[str, int] = field(default_factory=dict)
    library_op: str = ""
    source: str = ""
    channels_last: bool = False
    #: rows that it reduces and then goes over again to write them; 0: none
    rows: int = 0
    operands: tuple[Laid, ...] = ()

    @property
    def work(self) -> Hashable:
        """Equal for launches of one kernel: a library's by name, others by source, or by traffic and calls."""
        if self.kind in _LIBRARY:
            return None
        return self.source or (self.read_bytes, self.write_bytes, tuple(sorted(self.loop_ops.items())))


#: Kinds of launches that are not Inductor's own code.
_LIBRARY = frozenset(("extern", "template", "eager"))


@dataclass
class _OwnedKernel:
    main: ScheduleNode
    op_ids: list[int] = field(default_factory=list)
    others: list[ScheduleNode] = field(default_factory=list)


def _lowered(
    graph: Graph,
    kernel: _OwnedKernel,
    by_library: Collection[int],
    fx_ops: Mapping[int, Mapping[str, int]],
    names: Mapping[int, str],
) -> LoweredKernel:
    """A kernel as plain data. What a library owns is not recomputed: what is added to its result is. A library's kernel
    recomputes nothing: what launches before it make anew for it is in memory."""
    parts = [kernel.main, *kernel.others]
    running = [part for part in parts if part.kind != "none"]
    computing = [] if kernel.main.kind in _LIBRARY else parts
    shown = set().union(*(part.shows for part in computing)).difference(kernel.op_ids, by_library)
    return LoweredKernel(
        name=kernel.main.name,
        kind=kernel.main.kind,
        op_ids=tuple(sorted(kernel.op_ids)),
        recomputes=_used(graph, kernel.op_ids, shown),
        launches=len(running),
        read_bytes=sum(part.read_bytes for part in parts),
        write_bytes=sum(part.write_bytes for part in parts),
        fx_ops=total(fx_ops.get(op, {}) for op in kernel.op_ids),
        loop_ops=total(part.loop_ops for part in parts),
        parts=tuple(names[id(part)] for part in running),
        source="\n\n".join(dict.fromkeys(part.source for part in parts if part.source)),
        around=_around(kernel),
        channels_last=kernel.main.channels_last,
        two_passes=tuple((part.rows, part.read_bytes) for part in running if part.rows),
        operands=kernel.main.operands,
    )


def _around(kernel: _OwnedKernel) -> tuple[tuple[int, int], ...]:
    if kernel.main.kind not in _LIBRARY:
        return ()
    return tuple((part.read_bytes, part.write_bytes) for part in kernel.others if part.kind == "triton")


def _used(graph: Graph, op_ids: Iterable[int], others: Iterable[int]) -> tuple[int, ...]:
    """The other ops whose results the given ops use. A compiler may merge equal ops of all layers."""
    ops, values = graph.ops, graph.values
    taken = {values[i].storage for op in op_ids for i in ops[op].inputs}
    found = []
    for op in sorted(others, reverse=True):
        if not taken.isdisjoint(values[i].storage for i in ops[op].outputs):
            taken.update(values[i].storage for i in ops[op].inputs)
            found.append(op)
    return tuple(sorted(found))


def own(
    graph: Graph,
    op_ids: Iterable[int],
    schedules: Sequence[Sequence[ScheduleNode]],
    fx_ops: Mapping[int, Mapping[str, int]] = MappingProxyType({}),
) -> list[LoweredKernel]:
    """The kernels of some schedules (each one compiled graph, in launch order) that together compute the ops.
    ``fx_ops`` has the decomposed calls of each op."""
    wanted = sorted(op_ids)
    running = [[launch for launch in schedule if launch.kind != "none"] for schedule in schedules]
    owner = _first_owners(wanted, running)
    kernels = [_OwnedKernel(launch) for schedule in running for launch in schedule]
    for op_id, index in owner.items():
        kernels[index].op_ids.append(op_id)
    _merge_ownerless(schedules, kernels, owner)
    _place_vanished(graph, wanted, kernels, owner)
    by_library = {op for kernel in kernels if kernel.main.kind in _LIBRARY for op in kernel.op_ids}
    names = _names(kernel.main for kernel in kernels)
    return [_lowered(graph, kernel, by_library, fx_ops, names) for kernel in kernels if kernel.op_ids]


def _names(launches: Iterable[ScheduleNode]) -> dict[int, str]:
    """The ids of launches -> names of their kernels; different kernels of one name are numbered."""
    known: dict[str, dict[Hashable, str]] = {}
    result: dict[int, str] = {}
    for launch in launches:
        same = known.setdefault(launch.name, {})
        name = f"{launch.name} ({len(same) + 1})" if same else launch.name
        result[id(launch)] = same.setdefault(launch.work, name)
    return result


def _first_owners(wanted: Sequence[int], schedules: Iterable[Iterable[ScheduleNode]]) -> dict[int, int]:
    """Op -> index of the launch with the strongest claim to it, for all ops that some launch concerns. A schedule owns
    what it computes, even if a later one recomputes it."""
    claims: dict[int, tuple[tuple[int, int, int, int], int]] = {}
    index = 0
    for number, schedule in enumerate(schedules):
        for launch in schedule:
            for op_id in launch.concerns | launch.computes.keys() | launch.hands_on.keys():
                work, written = launch.computes.get(op_id, 0), launch.hands_on.get(op_id, 0)
                claim = int(op_id in launch.hands_on)
                if op_id in launch.computes:
                    claim = 4 if launch.kind in _LIBRARY else 3 if op_id in launch.shows else 2
                strength = (claim, -number, work, written)
                if op_id not in claims or strength > claims[op_id][0]:
                    claims[op_id] = strength, index
            index += 1
    return {op_id: claims[op_id][1] for op_id in wanted if op_id in claims}


def _merge_ownerless(
    schedules: Sequence[Sequence[ScheduleNode]], kernels: list[_OwnedKernel], owner: Mapping[int, int]
) -> None:
    """Count launches that own nothing with the kernel that they serve, last ones first, so that chains end."""
    index = {id(kernel.main): i for i, kernel in enumerate(kernels)}
    into: dict[int, int] = {}
    for schedule in schedules:
        for launch in reversed(schedule):
            number = index.get(id(launch))
            if number is None or kernels[number].op_ids:
                continue
            readers = [index[id(later)] for later in schedule if id(later) in index and later.reads & launch.writes]
            readers = [into.get(r, r) for r in readers if r != number]
            written = sorted(launch.hands_on, key=lambda op: (op not in launch.computes, -op))  # its own work first
            handed = [owner[op] for op in written if op in owner]
            related = [r for r in readers if launch.concerns & kernels[r].main.concerns]
            owners = [owner[op] for op in sorted(launch.concerns, reverse=True) if op in owner]
            target = next(iter((*handed, *related, *owners, *readers)), None)
            if target is None:
                target = next((i for i in range(number + 1, len(kernels)) if kernels[i].op_ids), None)
            if target is not None:
                into[number] = target
                kernels[target].others.append(launch)


def _place_vanished(graph: Graph, wanted: Sequence[int], kernels: list[_OwnedKernel], owner: dict[int, int]) -> None:
    """Assign ops that no launch computes (folded, equal to another, no-ops) to a user of their result, at no cost;
    ops whose results nothing needs are apart."""
    unused = Flow.of(graph).unused(graph)
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
        others = () if op_id in unused else (*uses, *reversed(makers))
        place = next((owner[other] for other in others if other in owner), None)
        if place is None:
            place = len(kernels)
            kernels.append(_OwnedKernel(ScheduleNode(op.name, "none")))
        owner[op_id] = place
        kernels[place].op_ids.append(op_id)
