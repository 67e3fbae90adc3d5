"""Plans each distinct repeated block once: shortens the graph, and expands the plan to all layers.

Some instances of each run of equal layers (:mod:`memwall.core.layers`) are kept and the rest cut out, forward and
backward together, with their parameters and optimizer state. The ends are spliced: readers of the last removed layer
read from the last one kept, and in backward the last one kept takes the gradient that the layer after the run makes.
The result is the graph of a model with fewer layers.

A plan of the short graph is expanded by moving whole groups. In forward the last kept instance represents all removed
ones; in backward the one before it does, since its predecessor must be a layer of the run.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from memwall.core.graph import Graph
from memwall.core.layers import Run, find_runs, first_writers
from memwall.fusion.cut import Cut


class Expanded(NamedTuple):
    """A group on the whole graph: op ids in call order, and which group of the short graph it is a copy of."""

    owned: tuple[int, ...]
    recomputed: tuple[int, ...]
    source: int


@dataclass(frozen=True)
class Shortened:
    """A graph without most of its repeated layers; ``op_of``: its op id → the op's id in ``whole``."""

    whole: Graph
    graph: Graph
    op_of: Sequence[int]
    runs: tuple[Run, ...] = ()
    kept: int = 2

    def expand(self, groups: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Expanded] | None:
        """Expand groups of the short graph to the whole one.

        Args:
            groups: for each group the ids of the ops that it owns (at least one) and of those that it recomputes,
            in the short graph.

        Returns:
            The groups in dependency order, close to the given one; each op of the whole graph is owned by exactly
            one. None when copies of the kept layers' groups do not fit together (groups that span three layers, or
            that treat the last layer differently): plan the whole graph then.
        """
        moved: list[Expanded] = []
        for source, (owned, recomputed) in enumerate(groups):
            copies = self._copies(source, owned, recomputed)
            if copies is None:
                return None
            moved += copies
        owners = [-1] * len(self.whole.ops)
        moved.sort(key=lambda group: (self._region(group.owned[-1]), group.source))
        for number, group in enumerate(moved):
            for i in group.owned:
                if owners[i] != -1:
                    return None
                owners[i] = number
        if -1 in owners:
            return None
        return _launch_order(self.whole, moved, owners)

    def _copies(self, source: int, owned: Sequence[int], recomputed: Sequence[int]) -> list[Expanded] | None:
        own = sorted(self.op_of[i] for i in owned)
        again = sorted(self.op_of[i] for i in recomputed)
        shifts: list[tuple[int, ...]] = [()]
        for run in self.runs:
            choices = _shifts(run, own[-1], self.kept)
            shifts = [(*some, shift) for some in shifts for shift in choices]
        copies = []
        for shift in shifts:
            there = [to for i in own if (to := self._move(i, shift)) is not None]
            computed = [to for i in again if (to := self._move(i, shift)) is not None]
            if len(there) < len(own) or len(computed) < len(again):
                return None
            group = Expanded(tuple(sorted(there)), tuple(sorted(computed)), source)
            if again and not self._needed(group):
                return None
            copies.append(group)
        return copies

    def _move(self, op_id: int, shifts: Sequence[int]) -> int | None:
        """The op's counterpart when each run is moved by that many instances; None where there is none."""
        for run, shift in zip(self.runs, shifts, strict=True):
            if not shift:
                continue
            for track in run.tracks:
                instance = track.instance(op_id)
                if instance is not None:
                    return op_id + shift * track.stride if instance + shift < run.count else None
            written = self._written(op_id)
            if any(run.twin.get(s, s) != s for s in written):  # other ops elsewhere make what it makes for this layer
                return self._maker([run.step(s, shift) for s in written], op_id)
        return op_id

    def _maker(self, storages: Sequence[int | None], like: int) -> int | None:
        """The op that makes the given storages as another op makes its own, or None."""
        maker = self._makers.get(storages[0]) if storages[0] is not None else None
        if maker is None or self._written(maker) != list(storages):
            return None
        return maker if self.whole.ops[maker].name == self.whole.ops[like].name else None

    @cached_property
    def _makers(self) -> dict[int, int]:
        return first_writers(self.whole)

    def _written(self, op_id: int) -> list[int]:
        return [self.whole.values[i].storage for i in self.whole.ops[op_id].outputs]

    def _needed(self, group: Expanded) -> bool:
        """Whether a group reads all that it recomputes."""
        ops, values = self.whole.ops, self.whole.values
        read = {values[i].storage for op in (*group.owned, *group.recomputed) for i in ops[op].inputs}
        return all(not read.isdisjoint(self._written(op)) for op in group.recomputed)

    @cached_property
    def _borders(self) -> list[int]:
        """Where instances begin and end, over all runs."""
        return sorted(
            {
                track.span(n, n + 1)[0]
                for run in self.runs
                for track in run.tracks
                for n in range(-1 if track.direction < 0 else 0, run.count + (track.direction > 0))
            }
        )

    def _region(self, op_id: int) -> int:
        return bisect_right(self._borders, op_id)


def shorten(graph: Graph, keep: int = 4) -> Shortened:
    """Cut repeated layers out of a graph until ``keep`` of each run are left: the first, the last and those between.

    Raises:
        ValueError: ``keep`` is below 4.
    """
    if keep < 4:
        raise ValueError(f"keep is {keep}; a layer with both neighbours takes at least 4")
    kept = keep - 2
    cut = Cut(graph, kept)
    runs = find_runs(graph, kept + 1, cut.accept) if graph.ops else []
    left = cut.graph(runs) if runs else None
    if left is None:
        return Shortened(graph, graph, range(len(graph.ops)))
    return Shortened(graph, *left, tuple(runs), kept)


def _shifts(run: Run, anchor: int, kept: int) -> Iterable[int]:
    """By how many instances each copy of a group of the short graph is moved, given by its last op."""
    gone = run.count - kept
    place = run.place(anchor)
    if place is None:
        return (gone,) if run.after_last(anchor) else (0,)
    direction, instance = place
    model = kept - 1 if direction > 0 else (kept - 1) // 2
    if instance == model:
        return range(gone + 1)
    return (0,) if instance < model else (gone,)


def _launch_order(graph: Graph, groups: list[Expanded], owners: Sequence[int]) -> list[Expanded] | None:
    """The groups, each as early as its position and dependencies allow; None when they form a cycle."""
    before = _dependencies(graph, groups, owners)
    if all(earlier < number for number, some in enumerate(before) for earlier in some):
        return groups
    missing = [len(some) for some in before]
    after: list[list[int]] = [[] for _ in groups]
    for number, some in enumerate(before):
        for earlier in some:
            after[earlier].append(number)
    ready = [number for number, count in enumerate(missing) if not count]
    order = []
    while ready:
        number = heapq.heappop(ready)
        order.append(groups[number])
        for later in after[number]:
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(ready, later)
    return order if len(order) == len(groups) else None


def _dependencies(graph: Graph, groups: Sequence[Expanded], owners: Sequence[int]) -> list[set[int]]:
    """For each group those that must run first: they write what it reads, or read what it overwrites."""
    storage_of = [value.storage for value in graph.values]
    again: dict[int, set[int]] = {}
    for number, group in enumerate(groups):
        for i in group.recomputed:
            again.setdefault(i, set()).add(number)
    before: list[set[int]] = [set() for _ in groups]
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    nobody: frozenset[int] = frozenset()
    for op in graph.ops:
        owner, others = owners[op.id], again.get(op.id, nobody)
        for storage in {storage_of[i] for i in op.inputs}:
            last = writer.get(storage)
            for number in (owner, *others):
                if last is not None and number not in again.get(last, nobody):
                    before[number].add(owners[last])
            readers.setdefault(storage, set()).update((owner, *others))
        for storage in {storage_of[i] for i in op.outputs}:
            before[owner] |= readers.pop(storage, nobody) - set(others)
            if storage in writer:
                before[owner].add(owners[writer[storage]])
            writer[storage] = op.id
    for number, some in enumerate(before):
        some.discard(number)
    return before
