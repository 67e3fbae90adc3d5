"""Recomputation: a value that is cheap to recompute is not stored where that moves fewer bytes.

A value that crosses from one kernel to others is written once and read by each. If the ops that make it are pointwise
or look rows up, and their inputs are in memory anyway, each reader can recompute it from those; a softmax too, where
the reader holds the same rows on chip. It pays where the additional source bytes of a reader are fewer than the
bytes of the value.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from memwall.core.graph import PHASES
from memwall.fusion.plan import Part, Placement, Refusal
from memwall.fusion.pricing import Pricer
from memwall.fusion.rules import MAX_OPS, MAX_TENSORS, REGISTER_SPILL, Spills, aligned, work_of
from memwall.ops.loops import FAR, Loop, is_random

#: programs (:meth:`memwall.core.graph.Graph.program_of`) in the order in which they run
_LATER = {program: number for number, program in enumerate(("", *PHASES))}

#: kinds of ops that are cheap to run again
_CHEAP = ("point", "row", "gather")
#: most pointwise ops to recompute one value
MAX_CHAIN = 6


def recompute(
    pricer: Pricer, members: Sequence[Sequence[int]], regions: Sequence[int] | None, spills: Spills
) -> tuple[list[Part], list[Refusal]]:
    """The groups, each as the ops that it owns and the ops of others that it recomputes; and the values that must be
    stored though a kernel could recompute them: random numbers, and what another op reads from memory anyway.

    Greedy, from the last op to the first, one value at a time, only where the modeled time of all affected kernels
    goes down. An op that only other groups compute in the end is owned by the first of them. Backward recomputes
    forward; nothing is recomputed across a graph break, or where a kernel would then spill.
    """
    walk = _Recompute(pricer, members, regions, spills)
    for op in reversed(pricer.graph.ops):
        if is_random(op):
            walk.refuse_random(op.id)
        elif walk.is_cheap(op.id):
            walk.attempt(op.id)
    return walk.parts(), walk.refusals


class _Recompute:
    def __init__(
        self, pricer: Pricer, members: Sequence[Sequence[int]], regions: Sequence[int] | None, spills: Spills
    ) -> None:
        self.pricer, self.members, self.regions, self.spills = pricer, members, regions, spills
        self.group_of = {op: index for index, group in enumerate(members) for op in group}
        self.placement = pricer.placement = Placement(Part(tuple(group)) for group in members)
        self.refusals: list[Refusal] = []
        #: ops that other groups run too
        self.copied: set[int] = set()
        #: group -> its seconds now: an attempt changes the seconds of the groups alone that it concerns
        self._seconds: dict[int, float] = {}
        self._reads = [len(reads) for reads in pricer.flow.reads]
        kinds = [{pricer.loops[op].kind for op in group} for group in members]
        self._closed = [not some.isdisjoint(("opaque", "multi")) for some in kinds]
        self._held = [
            {_rows(pricer.loops[op]) for op in group if pricer.loops[op].kind == "row"} if "row" in some else set()
            for group, some in zip(members, kinds, strict=True)
        ]

    def parts(self) -> list[Part]:
        """Groups that own at least one op; an op moves to a reader where its own group does not use it."""
        placement = self.placement
        for op in reversed(range(len(self.pricer.graph.ops))):
            for group in placement.runs[op][:]:
                if len(placement.runs[op]) > 1 and not self._is_used(op, placement.inside[group]):
                    placement.remove([(op, group)])
        owned: list[list[int]] = [[] for _ in self.members]
        for op in range(len(self.pricer.graph.ops)):
            owned[placement.runs[op][0]].append(op)
        return [
            Part(tuple(ops), tuple(sorted(inside.difference(ops))))
            for ops, inside in zip(owned, placement.inside, strict=True)
            if ops
        ]

    def _is_used(self, op: int, running: Set[int]) -> bool:
        """Whether a result of the op is needed in memory, or by another op of its kernel, which runs these ops."""
        for _, version in self.pricer.flow.writes[op]:
            if not running.isdisjoint(self.pricer.readers[version]) or self.pricer.is_needed(version, running):
                return True
        return False

    def _live(self, group: int) -> set[int]:
        """The ops that a group has to run itself: others, or its own live ops, read their results."""
        live = set(self.members[group])
        copied = self.copied.intersection(live)
        running = set(self.placement.inside[group]) if copied else live
        for op in sorted(copied, reverse=True):
            if not self._is_used(op, running):
                running.remove(op)
                live.remove(op)
        return live

    def is_cheap(self, op_id: int) -> bool:
        """Pointwise, looked up or by rows, not random, of one output, on a storage written once and not kept."""
        pricer = self.pricer
        flow, op, values = pricer.flow, pricer.graph.ops[op_id], pricer.graph.values
        if pricer.loops[op_id].kind not in _CHEAP or is_random(op) or len(op.outputs) != 1 or not op.inputs:
            return False
        version = flow.writes[op_id][0][1]
        alone = flow.carries[version] < 0 and version not in pricer.carried_by and version not in flow.kept
        return alone and all(values[v].storage != flow.storage[version] for v in op.inputs)

    def attempt(self, op_id: int) -> None:
        """Let every outside reader of the op's result compute it instead, unless it takes places found in data."""
        flow, placement = self.pricer.flow, self.placement
        version = flow.writes[op_id][0][1]
        home = self.group_of[op_id]
        readers = sorted({group for r in flow.readers[version] for group in placement.runs[r]} - {home})
        far = [r for r in flow.readers[version] if self.pricer.loops[r].kind in (*FAR, "scatter")]
        indexed = {group for r in far for group in placement.runs[r]}
        hosts = [
            g for g in readers if g not in indexed and op_id not in placement.inside[g] and self._may_host(g, op_id)
        ]
        if hosts and len(hosts) < len(readers):
            self._refuse_stored(op_id, version, hosts)
        readers = hosts
        chain = self._chain(op_id, home) if readers else None
        if chain is None:
            return
        readers = [g for g in readers if self._fits(g, chain)]
        if not readers or not self._sources_last(chain, readers):
            return
        concerned = [home, *readers]
        before = sum([self._time(g) for g in concerned])
        added = placement.add(chain, readers)
        new = {op for op, _ in added} - self.copied
        self.copied |= new
        after = [self._predict(g) for g in concerned]
        spilled = None
        if sum(after) < before and not (spilled := self._spilled(concerned)):
            self._seconds.update(zip(concerned, after, strict=True))
            for group in concerned:
                if not self._live(group):  # others compute all of its results: it is no kernel any more
                    placement.clear(group)
            return
        placement.remove(added)
        self.copied -= new
        if spilled:
            outside = next(r for r in flow.readers[version] if placement.runs[r][0] in readers)
            self._refuse(REGISTER_SPILL, spilled, op_id, outside, version)

    def refuse_random(self, op_id: int) -> None:
        """Random numbers are stored for every kernel that reads them."""
        for version in (v for _, v in self.pricer.flow.writes[op_id]):
            outside = [r for r in self.pricer.flow.readers[version] if self.group_of[r] != self.group_of[op_id]]
            for reader in outside[:1]:
                self._refuse("random state", "computed again it would draw other numbers", op_id, reader, version)

    def _refuse_stored(self, op_id: int, version: int, hosts: Sequence[int]) -> None:
        """The kernels that could recompute it read it, since it is in memory for another op."""
        readers, runs = self.pricer.flow.readers[version], self.placement.runs
        other = next((r for r in readers if runs[r][0] not in (*hosts, self.group_of[op_id])), None)
        if other is None:  # it runs there only as a copy
            return
        name = self.pricer.graph.ops[other].name.removeprefix("aten.").partition(".")[0]
        for reader in (r for r in readers if runs[r][0] in hosts):
            self._refuse("another consumer", f"{name} reads it from memory anyway", op_id, reader, version)

    def _refuse(self, rule: str, reason: str, producer: int, consumer: int, version: int) -> None:
        pricer = self.pricer
        value = next(v for v, made in pricer.flow.writes[producer] if made == version)
        nbytes = pricer.graph.values[value].spec.nbytes
        rate = pricer.gpu.dram_bytes_per_s * pricer.gpu.achievable["dram"]
        self.refusals.append(Refusal(rule, reason, producer, consumer, nbytes, nbytes / rate))

    def _may_host(self, group: int, op_id: int) -> bool:
        """Whether a generated kernel of the same graph can compute a value where it uses it."""
        if self._closed[group]:
            return False
        members = self.members[group]
        programs = [self._program(i) for i in (op_id, members[0])]
        if programs[0] != programs[1] and programs != ["forward", "backward"]:
            return False
        return self.regions is None or self.regions[op_id] == self.regions[members[0]]

    def _fits(self, group: int, chain: frozenset[int]) -> bool:
        """Whether the kernel has whole rows on chip wherever the chain reduces some, and stays within the limits."""
        loops, inside = self.pricer.loops, self.placement.inside[group]
        if not all(_rows(loops[i]) in self._held[group] for i in chain if loops[i].kind == "row"):
            return False
        return len(inside | chain) <= MAX_OPS and sum(map(self._reads.__getitem__, inside)) <= MAX_OPS + MAX_TENSORS

    def _chain(self, op_id: int, home: int) -> frozenset[int] | None:
        """The ops to rerun: the op, and the producers of its inputs that are not in memory anyway."""
        pricer, flow = self.pricer, self.pricer.flow
        inside = self.placement.inside[home]
        chain: set[int] = set()
        stack = [op_id]
        while stack:
            current = stack.pop()
            chain.add(current)
            if len(chain) > MAX_CHAIN:
                return None
            for _, version in flow.reads[current]:
                writer = flow.writer[version]
                if writer < 0 or writer in chain or writer not in inside or pricer.is_needed(version, inside):
                    continue
                if not self.is_cheap(writer) or (
                    pricer.loops[writer].kind == "row" and not self._in_order(current, version)
                ):
                    return None
                stack.append(writer)
        return frozenset(chain)

    def _in_order(self, reader: int, version: int) -> bool:
        """Whether an op reads a version in the order in which it is written: another kernel holds the same rows only
        there."""
        flow, values = self.pricer.flow, self.pricer.graph.values
        written = next(v for v, made in flow.writes[flow.writer[version]] if made == version)
        return all(aligned(values[written], values[v]) for v, read in flow.reads[reader] if read == version)

    def _sources_last(self, chain: frozenset[int], readers: Sequence[int]) -> bool:
        """Whether the chain's inputs are not overwritten before a later program than the readers'."""
        flow = self.pricer.flow
        last = max(_LATER[self._program(self.members[group][0])] for group in readers)
        sources = (version for op in chain for _, version in flow.reads[op] if flow.writer[version] not in chain)
        overwriters = (flow.overwriter[version] for version in sources if version in flow.overwriter)
        return all(_LATER[self._program(op)] > last for op in overwriters)

    def _program(self, op_id: int) -> str:
        return self.pricer.graph.program_of(self.pricer.graph.ops[op_id])

    def _spilled(self, groups: Sequence[int]) -> str | None:
        """Why one of the groups cannot be a kernel as it is."""
        if not self.spills:
            return None
        graph, inside = self.pricer.graph, self.placement.inside
        kernels = (work_of(graph, self._live(g) | inside[g].difference(self.members[g])) for g in groups)
        return next((self.spills[kernel] for kernel in kernels if kernel in self.spills), None)

    def _time(self, group: int) -> float:
        known = self._seconds.get(group)
        if known is None:
            known = self._seconds[group] = self._predict(group)
        return known

    def _predict(self, group: int) -> float:
        live = self._live(group)
        copies = self.placement.inside[group].difference(self.members[group])
        if not live:
            return 0.0
        return self.pricer.generated_s(sorted(live), sorted(copies))


def _rows(loop: Loop) -> tuple[int, int, str]:
    return loop.rows, loop.cols, loop.axes
