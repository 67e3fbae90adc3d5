"""Plans each distinct repeated block once: shortens the graph, and expands the plan to all layers.

Some instances of each run of equal layers (:mod:`memwall.core.layers`) are kept and the rest cut out, forward and
backward together, with their parameters and optimizer state. The ends are spliced: readers of the last removed layer
read from the last one kept, and in backward the last one kept takes the gradient that the layer after the run makes.
The result is the graph of a model with fewer layers.

A plan of the short graph is expanded by moving whole groups. In forward the last kept instance represents all removed
ones; in backward the one before it does, since its predecessor must be a layer of the run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from memwall.core.flow import Flow
from memwall.core.graph import Graph
from memwall.core.layers import Run, find_runs, first_writers
from memwall.fusion.cut import KEPT, Cut
from memwall.fusion.plan import Part, in_order


@dataclass(frozen=True)
class Shortened:
    """A graph without most of its repeated layers; ``op_of``: its op id → the op's id in ``whole``."""

    whole: Graph
    graph: Graph
    op_of: Sequence[int]
    runs: tuple[Run, ...] = ()

    @cached_property
    def flow(self) -> Flow:
        """The data flow of the whole graph."""
        return Flow.of(self.whole)

    def expand(self, parts: Sequence[Part]) -> list[Part] | None:
        """Expand parts of the short graph to the whole one.

        Returns:
            Parts in dependency order, close to the given one; each op of the whole graph is owned by exactly one.
            ``source`` is the number of the given part. None when copies of the kept layers' parts do not fit together
            (parts that span three layers, or that treat the last layer differently): plan the whole graph then.
        """
        moved: list[Part] = []
        for source, part in enumerate(parts):
            copies = self._copies(source, part)
            if copies is None:
                return None
            moved += copies
        if sorted(op for part in moved for op in part.op_ids) != list(range(len(self.whole.ops))):
            return None
        moved.sort(key=lambda part: (bisect_right(self._borders, part.op_ids[-1]), part.source))
        try:
            return in_order(self.flow, moved, rank=lambda number: number)
        except ValueError:
            return None

    def _copies(self, source: int, part: Part) -> list[Part] | None:
        own, again = (sorted(self.op_of[i] for i in ids) for ids in part[:2])
        shifts: list[tuple[int, ...]] = [()]
        for run in self.runs:
            choices = _shifts(run, own[-1])
            shifts = [(*some, shift) for some in shifts for shift in choices]
        copies = []
        for shift in shifts:
            there, computed = ([to for i in ids if (to := self._move(i, shift)) is not None] for ids in (own, again))
            if len(there) < len(own) or len(computed) < len(again):
                return None
            copy = Part(tuple(sorted(there)), tuple(sorted(computed)), source)
            if again and not self._needed(copy):
                return None
            copies.append(copy)
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
                moved = [run.step(s, shift) for s in written]
                maker = self._makers.get(moved[0]) if moved[0] is not None else None
                if maker is None or self._written(maker) != moved:
                    return None
                return maker if self.whole.ops[maker].name == self.whole.ops[op_id].name else None
        return op_id

    @cached_property
    def _makers(self) -> dict[int, int]:
        return first_writers(self.whole)

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


def shorten(graph: Graph) -> Shortened:
    """Cut repeated layers out of a graph until four of each list are left: the first, the last and two between."""
    cut = Cut(graph)
    runs = find_runs(graph, KEPT + 1, cut.accept) if graph.ops else []
    left = cut.graph(runs) if runs else None
    return Shortened(graph, *left, tuple(runs)) if left else Shortened(graph, graph, range(len(graph.ops)))


def _shifts(run: Run, anchor: int) -> Iterable[int]:
    """By how many instances each copy of a group of the short graph is moved, given by its last op."""
    gone = run.count - KEPT
    place = run.place(anchor)
    if place is None:
        return (gone,) if run.after_last(anchor) else (0,)
    direction, instance = place
    model = KEPT - 1 if direction > 0 else (KEPT - 1) // 2
    if instance == model:
        return range(gone + 1)
    return (0,) if instance < model else (gone,)
