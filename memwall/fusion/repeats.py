"""Plans each distinct repeated block once: shortens the graph, and expands the plan to all layers and steps of loops.

Some instances of each run of equal layers (:mod:`memwall.core.layers`), then of equal steps of a loop
(:mod:`memwall.core.loops`), are kept and the rest cut out, forward and
backward together, with their parameters and optimizer state; readers of the last removed layer read from the last one
kept, and in backward the last one kept takes the gradient that the layer after the run makes. A plan of the short graph
is expanded by moving whole groups: in forward the last kept instance represents all removed ones, in backward the one
before it, since its predecessor must be a layer of the run. An op outside that reads the results of all steps, to
join them perhaps, still reads them all in the short graph, where nothing makes the results of the removed steps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from memwall.core.flow import Flow
from memwall.core.graph import Graph, Op, TensorSpec, Value
from memwall.core.layers import LISTS, LayerRun, Track, Twins, find_runs
from memwall.core.loops import find_loops
from memwall.fusion.plan import Part, in_order
from memwall.fusion.short_graph import Entries, GraphBuilder

#: layers of a run that are kept; with the first and the last layer of the list, four layers are left
KEPT = 2

#: Most ops, equal layers counted once, that are compiled and captured by default: beyond, either takes many minutes.
MOST_UNASKED = 20_000

#: Steps of a loop that are kept, so that an op finds as many siblings in the steps before it as in the whole graph
#: (MAX_SIBLINGS of the planner); and the last ones, which stay outside the run: as many as it has candidates for an op
#: that reads all of them (MAX_CANDIDATES).
KEPT_STEPS, LAST_STEPS = 6, 8


@dataclass(frozen=True)
class Shortened:
    """A graph without most of its repeated layers and steps; ``op_of``: its op id → the op's id in ``whole``. ``cuts``
    made it, one after another."""

    whole: Graph
    cuts: tuple[Cutting, ...] = ()

    @property
    def graph(self) -> Graph:
        """The short graph."""
        return self.cuts[-1].graph if self.cuts else self.whole

    @cached_property
    def op_of(self) -> Sequence[int]:
        """For each op of the short graph its id in the whole one."""
        found: Sequence[int] = range(len(self.graph.ops))
        for cut in reversed(self.cuts):
            found = [cut.op_of[i] for i in found]
        return found

    @cached_property
    def flow(self) -> Flow:
        """The data flow of the whole graph."""
        return self.cuts[0].flow if self.cuts else Flow.of(self.whole)

    def expand(self, parts: Sequence[Part]) -> list[Part] | None:
        """Expand parts of the short graph to the whole one, as :meth:`Cutting.expand`."""
        found: list[Part] | None = [Part(*part[:2], number) for number, part in enumerate(parts)]
        for cut in reversed(self.cuts):
            found = found and cut.expand(found)
        return found


@dataclass(frozen=True)
class Cutting:
    """One cut: ``op_of`` and ``graph`` as in :class:`Shortened`, the runs that it shortened, and the ops outside that
    read or write all instances of one."""

    whole: Graph
    graph: Graph
    op_of: Sequence[int]
    runs: tuple[LayerRun, ...]
    joins: frozenset[int]

    @cached_property
    def flow(self) -> Flow:
        """The data flow of the whole graph."""
        return Flow.of(self.whole)

    def expand(self, parts: Sequence[Part]) -> list[Part] | None:
        """Expand parts of the short graph to the whole one.

        Returns:
            Parts in dependency order, close to the given one; each op of the whole graph is owned by exactly one.
            ``source`` is the given part's. None when copies of the kept layers' parts do not fit together
            (parts that span three layers, or that treat the last layer differently): plan the whole graph then.
        """
        moved: list[tuple[int, int, Part]] = []
        for number, part in enumerate(parts):
            copies = self._copies(part)
            if copies is None:
                return None
            moved += [(bisect_right(self._borders, copy.op_ids[-1]), number, copy) for copy in copies]
        if sorted(op for *_, part in moved for op in part.op_ids) != list(range(len(self.whole.ops))):
            return None
        moved.sort()
        try:
            return in_order(self.flow, [part for *_, part in moved], rank=lambda number: number)
        except ValueError:
            return None

    def _copies(self, part: Part) -> list[Part] | None:
        own, again = (sorted(self.op_of[i] for i in ids) for ids in part[:2])
        if not self.joins.isdisjoint(own) and any(run.place(i) for run in self.runs for i in (*own, *again)):
            return None  # in the whole graph it may hold as much of every instance
        shifts: list[tuple[int, ...]] = [()]
        for run in self.runs:
            choices = _shifts(run, own[-1])
            shifts = [(*some, shift) for some in shifts for shift in choices]
        copies = []
        for shift in shifts:
            there, computed = ([to for i in ids if (to := self._move(i, shift)) is not None] for ids in (own, again))
            if len(there) < len(own) or len(computed) < len(again):
                return None
            copy = Part(tuple(sorted(there)), tuple(sorted(computed)), part.source)
            if again and not self._needed(copy):
                return None
            copies.append(copy)
        return copies

    def _move(self, op_id: int, shifts: Sequence[int]) -> int | None:
        """The op's counterpart when each run is moved by that many instances, or None."""
        for run, shift in zip(self.runs, shifts, strict=True):
            if not shift:
                continue
            for track in run.tracks:
                instance = track.instance(op_id)
                if instance is not None:
                    return op_id + shift * track.stride if instance + shift < run.count else None
            written = self._written(op_id)
            if any(run.twin.get(s, s) != s for s in written):  # other ops elsewhere make what it makes for this layer
                moved = [run.step(s, shift) for s in written]
                maker = self.whole.first_writers.get(moved[0]) if moved[0] is not None else None
                if maker is None or self._written(maker) != moved:
                    return None
                return maker if self.whole.ops[maker].name == self.whole.ops[op_id].name else None
        return op_id

    def _written(self, op_id: int) -> list[int]:
        return [self.whole.values[i].storage for i in self.whole.ops[op_id].outputs]

    def _needed(self, part: Part) -> bool:
        """Whether a part reads all that it recomputes."""
        ops, values = self.whole.ops, self.whole.values
        read = {values[i].storage for op in (*part.op_ids, *part.recomputes) for i in ops[op].inputs}
        return all(not read.isdisjoint(self._written(op)) for op in part.recomputes)

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


def distinct_ops(graph: Graph) -> int:
    """How many ops a compiler is given: a few of the repeated layers represent all."""
    short = shorten(graph)
    return len(graph.ops if short is None else short.graph.ops)


def shorten(graph: Graph, *, loops: bool = True) -> Shortened:
    """Cut repeated layers out of a graph until four of each list are left, the first, the last and two between; then
    steps of ``loops``."""
    short = Shortened(graph)
    finders = (partial(find_runs, kept=KEPT), partial(find_loops, kept=KEPT_STEPS, tail=LAST_STEPS))
    for find in finders if loops else finders[:1]:
        cut = _Cut(short.graph)
        runs = find(short.graph, accept=cut.accept) if graph.ops else []
        left = cut.graph(runs) if runs else None
        if left:
            cutting = Cutting(short.graph, *left, tuple(runs), frozenset(cut.joins))
            short = Shortened(graph, (*short.cuts, cutting))
    return short


def _shifts(run: LayerRun, anchor: int) -> Iterable[int]:
    """By how many instances each copy of a group of the short graph is moved, given by its last op."""
    gone = run.count - run.kept
    place = run.place(anchor)
    if place is None:
        return (gone,) if run.after_last(anchor) else (0,)
    direction, instance = place
    model = run.kept - 1 if direction > 0 else (run.kept - 1) // 2
    if instance == model:
        return range(gone + 1)
    return (0,) if instance < model else (gone,)


class _Cut:
    """A cut through a graph: checks each run against the surrounding ops, then builds the short graph."""

    def __init__(self, whole: Graph) -> None:
        self.whole = whole
        self.lists = {op.id: found for op in whole.ops if (found := _list_of(whole, op)) is not None}
        #: run → op id → storage that the op touches → its replacement
        self.swaps: dict[tuple[Track, ...], dict[int, dict[int, int]]] = {}
        #: run → storages of all its steps that an op outside reads
        self.joined: dict[tuple[Track, ...], set[int]] = {}
        self.joins: set[int] = set()

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """Storage → the ops that touch it."""
        found: dict[int, list[int]] = {}
        storage_of = [value.storage for value in self.whole.values]
        for op in self.whole.ops:
            for storage in {storage_of[i] for i in (*op.inputs, *op.outputs)}:
                found.setdefault(storage, []).append(op.id)
        return found

    def accept(self, run: LayerRun) -> bool:
        """Whether a run can be cut: ops outside touch its layers only as neighbouring layers would."""
        if not self._link_lists(run) or not self._ends_alike(run):
            return False
        joins = self._joins(run)
        swaps: dict[int, dict[int, int]] = {}
        for storage, level in run.level.items():
            for user in self.users[storage]:
                if user in self.lists or user in joins:
                    continue
                instance = run.instance(user)
                shift = self._shift(run, user, instance, storage, level)
                if shift is None:
                    return False
                if shift:  # the replacement has to exist in the short graph before the op touches it
                    other = run.step(storage, shift)
                    if other is None or run.level.get(other, 0) >= run.kept:
                        return False
                    if self.whole.first_writers.get(other, -1) >= user and not self.whole.storages[other].is_persistent:
                        return False
                    swaps.setdefault(user, {})[storage] = other
        self.swaps[run.tracks] = swaps
        self.joins |= joins
        touched = [value.storage for op in joins for value in self._values(op)]
        self.joined[run.tracks] = {storage for storage in touched if storage in run.level}
        return True

    def _values(self, op_id: int) -> list[Value]:
        op = self.whole.ops[op_id]
        return [self.whole.values[i] for i in (*op.inputs, *op.outputs)]

    def _joins(self, run: LayerRun) -> set[int]:
        """Ops outside that read or write all instances of a run alike, to join their results or to split their inputs:
        with each storage its counterpart in the next one, through the same view."""
        users = {op for storage, level in run.level.items() if level == run.kept for op in self.users[storage]}
        found = set()
        for user in (op for op in users if op not in self.lists and run.instance(op) is None):
            views = {(value.storage, value.offset, value.spec) for value in self._values(user)}
            inside = [(run.level[view[0]], view) for view in views if view[0] in run.level]
            last = run.count - 1
            onward = all((run.twin.get(storage), *view) in views for n, (storage, *view) in inside if n < last)
            if onward and all((run.back.get(storage), *view) in views for n, (storage, *view) in inside if n > 0):
                found.add(user)
        return found

    def _shift(self, run: LayerRun, user: int, instance: int | None, storage: int, level: int) -> int | None:
        """By how many instances the storage that an op touches is moved; None when the op may not touch it."""
        gone = run.count - run.kept
        if instance is not None:
            return 0 if instance >= run.kept or level < run.kept else gone
        if run.after_last(user):  # the layer after the last: touches it as the last touches the one before it
            return -gone if level >= gone and run.back.get(storage) in run.touched[1] else None
        return 0 if level == 0 and run.twin[storage] in run.touched[0] else None

    def _ends_alike(self, run: LayerRun) -> bool:
        """Whether all layers have the same model outputs."""
        found: dict[int, set[tuple[int, TensorSpec, int]]] = {n: set() for n in range(run.count)}
        for i in self.whole.outputs:
            value = self.whole.values[i]
            level = run.level.get(value.storage)
            if level is not None:
                found[level].add((value.storage, value.spec, value.offset))
        return all(
            {(run.twin[storage], spec, offset) for storage, spec, offset in found[n]} == found[n + 1]
            for n in range(run.count - 1)
        )

    def _link_lists(self, run: LayerRun) -> bool:
        """Follow the layers' entries through ops over lists, so that optimizer state belongs to layers too."""
        waiting = [found for found in self.lists.values() if run.instance(found.op.id) is None]
        while waiting:
            later = []
            for found in waiting:
                known = any(s in run.level for row in found.rows for s in row)
                if not known:
                    later.append(found)
                elif not _link_rows(run, found.rows, Twins(self.whole, self.whole.alike, twin=run.twin, back=run.back)):
                    return False
            if len(later) == len(waiting):
                break
            waiting = later
        return True

    def graph(self, runs: Sequence[LayerRun]) -> tuple[Graph, tuple[int, ...]] | None:
        """The graph without the instances that are not kept, and the ids of its ops in the whole graph.

        None when the replacement of a storage in one run is cut out by another run.
        """
        whole = self.whole
        gone = {s for run in runs for s, level in run.level.items() if level >= run.kept}
        gone = gone.difference(*(self.joined[run.tracks] for run in runs))
        dropped = [range(*track.span(run.kept, run.count)) for run in runs for track in run.tracks]
        ops = [op for op in whole.ops if not any(op.id in span for span in dropped)]
        swaps: dict[int, dict[int, int]] = {}
        for run in runs:
            for op_id, swap in self.swaps[run.tracks].items():
                swaps.setdefault(op_id, {}).update(swap)
        if any(target in gone for swap in swaps.values() for target in swap.values()):
            return None
        builder = GraphBuilder(whole, gone, swaps)
        short = [builder.op(op, self.lists.get(op.id)) for op in ops]
        return builder.graph(short), tuple([op.id for op in ops])


def _list_of(graph: Graph, op: Op) -> Entries | None:
    if not op.name.startswith(LISTS):
        return None
    counts = Counter(op.arguments)
    length = max(counts.values(), default=0)
    if length < 2 or any(count not in (1, length) for count in counts.values()) or len(op.outputs) % length:
        return None
    values = graph.values
    columns = [
        [i for i, name in zip(op.inputs, op.arguments, strict=True) if name == which]
        for which, count in counts.items()
        if count == length
    ]
    columns += [list(op.outputs[i : i + length]) for i in range(0, len(op.outputs), length)]
    rows = zip(*([values[i].storage for i in column] for column in columns), strict=True)
    return Entries(op, length, tuple(rows))


def _link_rows(run: LayerRun, rows: Sequence[Sequence[int]], twins: Twins) -> bool:
    """Add the list neighbours of known storages to the twin map; False on a contradiction."""
    levels = []
    for row in rows:
        known = {run.level.get(s) for s in row if s in run.level}
        if len(known) > 1:
            return False
        levels.append(known.pop() if known else None)
        if levels[-1] is not None:
            run.level.update(dict.fromkeys(row, levels[-1]))
    row_of = {s: row for row in rows for s in row}
    for row, level in zip(rows, levels, strict=True):
        if level is None or level == run.count - 1:
            continue
        other = next((row_of.get(run.twin[s]) for s in row if s in run.twin), None)
        if other is None or not all(twins.link(a, b) for a, b in zip(row, other, strict=True)):
            return False
    return True
