"""Finds loops in a graph: steps of a Python loop, over time perhaps, that do the same one after another.

Each op has a letter (:attr:`Graph.alike_in_loops`); a loop is a stretch of the op list in which the letters repeat with
a period. A stretch in backward belongs to the one in forward whose storages it reads, step by step in reverse. The
stretches of a loop are then lanes of a run as repeated layers are (:mod:`memwall.core.layers`), which checks
that step after step does the same on its own storages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from memwall.core.graph import Graph
from memwall.core.layers import Lane, LayerRun, Twins, runs_along

#: ops that are compared at once when a period is guessed: the distance to the last place with the same ones
WINDOW = 4

#: rounds of choosing stretches that do not overlap: a loop inside one that is no run is found in the next round
ROUNDS = 4


class LoopStretch(NamedTuple):
    """Ops ``start`` to ``start`` + ``period`` * ``times``: in letters the same ``period`` ops again and again."""

    start: int
    period: int
    times: int

    @property
    def stop(self) -> int:
        """The first op after it."""
        return self.start + self.period * self.times

    def overlaps(self, start: int, stop: int) -> bool:
        """Whether it has an op in common with a range."""
        return self.start < stop and start < self.stop


def find_loops(graph: Graph, kept: int, tail: int, accept: Callable[[LayerRun], bool]) -> list[LayerRun]:
    """The runs of more than ``kept`` steps, the last ``tail`` left out, that ``accept`` takes, none inside or across
    another."""
    made = graph.first_writers
    runs: list[LayerRun] = []
    pool = sorted(_stretches(graph.alike_in_loops, kept + tail + 1), key=lambda s: (s.period - (s.stop - s.start), s))
    for _ in range(ROUNDS):
        chosen = _apart(pool)
        if not chosen:
            break
        for lanes in _loops(graph, sorted(chosen), made):
            found = runs_along(lanes, lambda: Twins(graph, graph.alike_in_loops, loop=True), "", 1, kept, tail)
            runs += [run for run in found if not any(run.overlaps(other) for other in runs) and accept(run)]
        taken = [track.span(0, run.count) for run in runs for track in run.tracks]
        pool = [s for s in pool if s not in chosen and not any(s.overlaps(*span) for span in taken)]
    return runs


def _stretches(letters: Sequence[int], least: int) -> Iterator[LoopStretch]:
    """The stretches of at least ``least`` periods, of every period that occurs that often between equal windows."""
    last: dict[tuple[int, ...], int] = {}
    votes: dict[int, list[int]] = defaultdict(list)
    for i in range(len(letters) - WINDOW + 1):
        window = tuple(letters[i : i + WINDOW])
        if window in last:
            votes[i - last[window]].append(i)
        last[window] = i
    for period, places in votes.items():
        reach = 0
        for i in places if len(places) + 1 >= least else ():
            if i < reach:
                continue
            start, stop = i - period, i
            while start > reach and letters[start - 1] == letters[start - 1 + period]:
                start -= 1
            while stop < len(letters) and letters[stop] == letters[stop - period]:
                stop += 1
            reach = stop
            if (stop - start) // period >= least:
                yield LoopStretch(start, period, (stop - start) // period)


def _apart(pool: Sequence[LoopStretch]) -> set[LoopStretch]:
    """Stretches that do not overlap, the first ones first."""
    chosen: list[LoopStretch] = []
    for stretch in pool:
        if not any(stretch.overlaps(other.start, other.stop) for other in chosen):
            chosen.append(stretch)
    return set(chosen)


class _Numbered(NamedTuple):
    """A stretch whose period i is step ``first`` + ``direction`` * i of the loop number ``loop``."""

    stretch: LoopStretch
    loop: int
    first: int
    direction: int


def _loops(graph: Graph, stretches: Sequence[LoopStretch], made: Mapping[int, int]) -> list[list[Lane]]:
    """The stretches as lanes, all of one loop together: each belongs to the first one before it that makes, step by
    step, what it reads."""
    numbered: list[_Numbered] = []
    lanes: list[list[Lane]] = []
    for stretch in stretches:
        middle = stretch.times // 2
        here, there = ({*_read(graph, stretch, middle + i, made)} for i in (0, 1))
        own = _Numbered(stretch, len(lanes), 0, 1)
        for other in numbered:
            steps = [max(_steps_in(other, ops), default=None) for ops in (here, there)]
            if steps[0] is not None and steps[1] is not None and abs(steps[1] - steps[0]) == 1:
                direction = steps[1] - steps[0]
                own = _Numbered(stretch, other.loop, steps[0] - direction * middle, direction)
                break
        if own.loop == len(lanes):
            lanes.append([])
        numbered.append(own)
        firsts = {own.first + own.direction * i: stretch.start + stretch.period * i for i in range(stretch.times + 1)}
        lanes[own.loop].append(Lane(firsts, own.direction))
    return lanes


def _read(graph: Graph, stretch: LoopStretch, period: int, made: Mapping[int, int]) -> Iterator[int]:
    """The ops that made what a period of a stretch reads."""
    start = stretch.start + stretch.period * period
    for op in graph.ops[start : start + stretch.period]:
        for i in op.inputs:
            if (maker := made.get(graph.values[i].storage)) is not None:
                yield maker


def _steps_in(other: _Numbered, ops: set[int]) -> Iterator[int]:
    """The steps of a stretch that some ops belong to."""
    stretch = other.stretch
    for op in ops:
        if stretch.start <= op < stretch.stop:
            yield other.first + other.direction * ((op - stretch.start) // stretch.period)
