"""Finds runs of repeated layers: instances that do the same on their own storages. :mod:`memwall.core.loops` finds the
steps of loops in the same way, only cut elsewhere.

The op list is cut at the first op of each instance of a list of layers (module paths ``prefix.N``): in rising order of
N in forward and in an optimizer that steps through the parameters, in falling order in backward. Two neighbours are
equal when their ops agree one by one (name, attributes, arguments, specs, module paths except for N) and when a map of
storages, the *twin* map, takes the storages of one to the storages of the next: the layer's own results, inputs from
its neighbours, its parameters; what all layers share maps to itself. The map is one-to-one and common to the whole run,
so any difference in wiring is a contradiction, and the run ends there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from memwall.core.graph import Graph, Op

#: Period of alternating layers (local and global attention, dense and expert MLPs): lists are tried in such groups.
PERIODS = (1, 2, 3, 4, 6)

#: Ops that treat each entry of their lists separately.
LISTS = ("aten._foreach_", "aten._fused_")

#: phase -> whether later layers come later (1) or earlier (-1) in it
DIRECTIONS: Mapping[str, int] = {"forward": 1, "backward": -1, "optimizer": 1}


class Lane(NamedTuple):
    """Where the instances of a list begin in one stretch of the op list: ``firsts[n]`` is the first op of instance n,
    which ends where instance n + ``direction`` begins."""

    firsts: Mapping[int, int]
    direction: int


@dataclass(frozen=True, slots=True)
class Track:
    """The instances of a run in one phase: ``length`` ops each, without gaps, instance 0 from op ``start``, instance
    n + 1 ``direction`` * ``length`` ops after instance n. ``margin`` more instances before number 0 are equal too."""

    start: int
    length: int
    direction: int
    count: int
    margin: int = 0

    @property
    def stride(self) -> int:
        """Op ids from an instance to the next."""
        return self.direction * self.length

    def instance(self, op_id: int) -> int | None:
        """The instance that an op belongs to (margin included), or None."""
        number = self.direction * ((op_id - self.start) // self.length)
        return number if -self.margin <= number < self.count else None

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """Op ids (from, to) of the instances ``first`` to ``stop`` - 1."""
        if self.direction > 0:
            return self.start + first * self.length, self.start + stop * self.length
        return self.start - (stop - 1) * self.length, self.start - (first - 1) * self.length


@dataclass(frozen=True)
class LayerRun:
    """A run of ``count`` equal instances, of which ``kept`` represent all. ``twin``: storage → its counterpart in the
    next instance. ``level``: storage → the instance that it belongs to. ``touched``: storages of the first and of the
    last instance. ``whole``: only the first and the last layer of the list may be left out."""

    prefix: str
    count: int
    tracks: tuple[Track, ...]
    twin: dict[int, int]
    back: dict[int, int]
    level: dict[int, int]
    touched: tuple[frozenset[int], frozenset[int]]
    whole: bool
    kept: int

    @property
    def saved(self) -> int:
        """Ops of the instances that are not kept."""
        return sum(track.length for track in self.tracks) * (self.count - self.kept)

    def overlaps(self, other: LayerRun) -> bool:
        """Whether two runs share ops or storages."""
        spans, others = ([track.span(0, track.count) for track in run.tracks] for run in (self, other))
        shared = not self.level.keys().isdisjoint(other.level)
        return shared or any(a < d and c < b for a, b in spans for c, d in others)

    def place(self, op_id: int) -> tuple[int, int] | None:
        """The direction of the track and the instance that contain an op, or None when it is outside."""
        for track in self.tracks:
            low, high = track.span(0, self.count)
            if low <= op_id < high:
                return track.direction, track.direction * ((op_id - track.start) // track.length)
        return None

    def instance(self, op_id: int) -> int | None:
        """The instance that contains an op, or None when it is outside."""
        place = self.place(op_id)
        return place and place[1]

    def after_last(self, op_id: int) -> bool:
        """Whether an op outside follows the last instance: the track before it runs towards higher numbers."""
        passed = [track for track in self.tracks if op_id >= track.span(0, self.count)[0]]
        return bool(passed) and max(passed, key=lambda track: track.start).direction > 0

    def step(self, storage: int, count: int) -> int | None:
        """The counterpart of a storage ``count`` instances on (back when negative), or None."""
        table = self.twin if count > 0 else self.back
        for _ in range(abs(count)):
            if storage not in table:
                return None
            storage = table[storage]
        return storage


@dataclass
class Twins:
    """The twin map while it grows; :meth:`match` undoes what a failed comparison added. ``alike`` says which ops make
    equal calls. In a ``loop`` each step may also read or write the next part of a shared storage, always as many bytes
    further on."""

    graph: Graph
    alike: Sequence[int]
    loop: bool = False
    twin: dict[int, int] = field(default_factory=dict)
    back: dict[int, int] = field(default_factory=dict)
    _steps: dict[tuple[str, str, int], bool] = field(default_factory=dict)
    _moves: dict[int, int] = field(default_factory=dict)

    def match(self, pairs: Sequence[tuple[int, int, int]], period: int) -> bool:
        """Whether ops ``a`` … and ``b`` …, ``length`` each, are equal; if so the map covers them afterwards."""
        ops, added = self.graph.ops, list[int]()
        for first, second, length in pairs:
            for i in range(length):
                if not self._alike(ops[first + i], ops[second + i], period, added):
                    for storage in added:
                        del self.back[self.twin.pop(storage)]
                    return False
        return True

    def link(self, a: int, b: int, added: list[int] | None = None) -> bool:
        """Add b as the twin of a; False when that contradicts the map or they differ in kind."""
        known = self.twin.get(a)
        if known is not None or b in self.back:
            return known == b
        one, other = self.graph.storages[a], self.graph.storages[b]
        if one.nbytes != other.nbytes or one.role != other.role:
            return False
        self.twin[a], self.back[b] = b, a
        if added is not None:
            added.append(a)
        return True

    def _alike(self, a: Op, b: Op, period: int, added: list[int]) -> bool:
        if self.alike[a.id] != self.alike[b.id] or a.phase != b.phase:
            return False
        key = (a.module, b.module, period)
        if key not in self._steps:
            self._steps[key] = one_step(a.module, b.module, period)
        return (
            self._steps[key]
            and self._same_values(a.inputs, b.inputs, added)
            and self._same_values(a.outputs, b.outputs, added)
        )

    def _same_values(self, a: Sequence[int], b: Sequence[int], added: list[int]) -> bool:
        values, twin = self.graph.values, self.twin
        for i, j in zip(a, b, strict=True):
            one, other = values[i], values[j]
            moved = (other.offset - one.offset) * one.spec.itemsize
            if moved and not (self.loop and one.storage == other.storage):
                return False
            if self.loop and one.storage == other.storage and self._moves.setdefault(one.storage, moved) != moved:
                return False
            if twin.get(one.storage) != other.storage and not self.link(one.storage, other.storage, added):
                return False
        return True


def one_step(a: str, b: str, period: int) -> bool:
    """Whether two module paths are equal except for numbers that are ``period`` higher in the second."""
    if a == b:
        return True
    parts = list(zip(a.split("."), b.split("."), strict=False))
    return a.count(".") == b.count(".") and all(
        x == y or (x.isdecimal() and y.isdecimal() and int(y) == int(x) + period) for x, y in parts
    )


def find_runs(graph: Graph, kept: int, accept: Callable[[LayerRun], bool]) -> list[LayerRun]:
    """The runs of more than ``kept`` layers that ``accept`` takes, none inside or across another: outer lists first,
    and of several ways to group the layers of a list the one that saves the most ops."""
    runs: list[LayerRun] = []
    firsts = _first_ops(graph)
    for prefix in sorted(firsts, key=lambda p: (p.count("."), p != "", p)):
        if any(prefix.startswith(f"{run.prefix}.") or not run.prefix for run in runs):
            continue
        best: list[LayerRun] = []
        for period in PERIODS:
            lanes = [
                Lane(row, direction)
                for phase, direction in DIRECTIONS.items()
                if (row := _cuts(firsts[prefix][phase], period, direction))
            ]
            found = [
                run
                for bare in runs_along(lanes, lambda: Twins(graph, graph.alike), prefix, period, kept)
                for run in (_with_margin(graph, bare, period),)
                if not any(run.overlaps(other) for other in runs) and accept(run)
            ]
            best = max(best, found, key=lambda some: sum(run.saved for run in some))
            if len(found) == 1 and found[0].whole:
                break
        runs += best
    return runs


def collapse(module: str) -> str:
    """A module path with its numbers as stars, so that repeated layers have one: ``layers.3.attn`` is
    ``layers.*.attn``."""
    return _NUMBER.sub("*", module)


_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def _first_ops(graph: Graph) -> dict[str, dict[str, dict[int, int]]]:
    """List prefix → phase → layer number → first op of that layer."""
    found: dict[str, dict[str, dict[int, int]]] = {}
    known: dict[str, list[tuple[str, int]]] = {}
    last: dict[str, str] = {}
    for op in graph.ops:
        path = _owner(graph, op) if op.phase == "optimizer" else op.module
        if last.get(op.phase) == path:
            continue
        last[op.phase] = path
        if path not in known:
            parts = path.split(".")
            known[path] = [(".".join(parts[:i]), int(part)) for i, part in enumerate(parts) if part.isdecimal()]
        for prefix, number in known[path]:
            phases = found.setdefault(prefix, {phase: {} for phase in DIRECTIONS})
            phases[op.phase].setdefault(number, op.id)
    return found


def _owner(graph: Graph, op: Op) -> str:
    """The name of the first tensor with a name that an op updates; none for an op over lists."""
    if op.name.startswith(LISTS):
        return ""
    names = (graph.storages[graph.values[i].storage].name for i in op.outputs)
    return next(filter(None, names), "")


def _cuts(firsts: Mapping[int, int], period: int, direction: int) -> dict[int, int]:
    """Instance → its first op, for the longest ordered row of instances from the lowest."""
    cuts: dict[int, int] = {}
    for number, op_id in firsts.items():
        cuts[number // period] = min(op_id, cuts.get(number // period, op_id))
    row: dict[int, int] = {}
    for number in sorted(cuts):
        if row and (number - 1 not in row or (cuts[number] - row[number - 1]) * direction <= 0):
            break
        row[number] = cuts[number]
    return row


def runs_along(
    lanes: Sequence[Lane], twins_of: Callable[[], Twins], prefix: str, period: int, kept: int, tail: int = 0
) -> Iterator[LayerRun]:
    """The runs of more than ``kept`` equal instances along some lanes, without the last ``tail`` instances."""
    # an instance ends where its neighbour begins: the next one in forward, in backward the one before
    low = max(min(lane.firsts) for lane in lanes) + 1
    high = min(max(lane.firsts) + (lane.direction < 0) for lane in lanes) - tail

    def spans(n: int) -> list[tuple[int, int]]:
        return [(lane.firsts[n], lane.firsts[n + lane.direction] - lane.firsts[n]) for lane in lanes]

    start = low
    while start + kept < high:
        twins = twins_of()
        stop, here = start + 1, spans(start)
        while stop < high:
            there = spans(stop)
            pairs = [(a, b, length) for (a, length), (b, _) in zip(here, there, strict=True)]
            if [p[1] for p in here] != [p[1] for p in there] or not twins.match(pairs, period):
                break
            stop, here = stop + 1, there
        if stop - start > kept:
            tracks = tuple(
                Track(op_id, length, lane.direction, stop - start)
                for (op_id, length), lane in zip(spans(start), lanes, strict=True)
            )
            run = _run(twins, prefix, tracks, (start, stop) == (low, high), kept)
            if run is not None:
                yield run
        start = stop


def _run(twins: Twins, prefix: str, tracks: tuple[Track, ...], whole: bool, kept: int) -> LayerRun | None:
    count, made = tracks[0].count, twins.graph.first_writers
    touched = tuple(_touched(twins.graph, tracks, n) for n in (0, count - 1))
    run = LayerRun(prefix, count, tracks, twins.twin, twins.back, {}, (touched[0], touched[1]), whole, kept)
    placed: set[int] = set()
    for storage in sorted(twins.twin.keys() - twins.back.keys()):
        orbit = [storage]
        while orbit[-1] in twins.twin:
            orbit.append(twins.twin[orbit[-1]])
        placed.update(orbit)
        makers = [run.instance(made[s]) if s in made else None for s in orbit]
        base = 0
        if not twins.graph.storages[storage].is_persistent:
            base = next((n - i for i, n in enumerate(makers) if n is not None), 0)
            if any(n is not None and n != base + i for i, n in enumerate(makers)):
                return None
        run.level.update((s, base + i) for i, s in enumerate(orbit) if 0 <= base + i < count)
    in_turns = any(s not in placed and twins.twin[s] != s for s in touched[0])  # two buffers that change places
    return None if in_turns else run


def _touched(graph: Graph, tracks: Sequence[Track], instance: int) -> frozenset[int]:
    ops = [op for track in tracks for op in graph.ops[slice(*track.span(instance, instance + 1))]]
    return frozenset(graph.values[i].storage for op in ops for i in (*op.inputs, *op.outputs))


def _with_margin(graph: Graph, run: LayerRun, period: int) -> LayerRun:
    """The run, its forward track extended by the layer before it if that one is equal in forward."""
    track = run.tracks[0]
    before = track.start - track.length
    wider = Twins(graph, graph.alike, twin=dict(run.twin), back=dict(run.back))
    if track.direction < 0 or before < 0 or not wider.match([(before, track.start, track.length)], period):
        return run
    return replace(run, tracks=(replace(track, margin=1), *run.tracks[1:]))
