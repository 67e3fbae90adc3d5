"""Best-first branch and bound, exact: a candidate that is not evaluated is ruled out by a bound.

Each candidate has a chain of bounds, each closer and dearer than the one before, the last of which is its value. The
candidate with the smallest bound is always the next to be looked at, so that when one comes up with its value, no other
can have a smaller one.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from memwall.core.progress import CountedLine, tell

C = TypeVar("C")


@dataclass(frozen=True, kw_only=True)
class Searched(Generic[C]):
    """The outcome: the candidates with the smallest values in order, how many of all were evaluated, and why others
    were not: reason → how many."""

    chosen: tuple[C, ...]
    evaluated: int
    pruned: Mapping[str, int]


def best_first(
    candidates: Sequence[C], bounds: Sequence[tuple[str, Callable[[C], float | str]]], top: int = 1
) -> Searched[C]:
    """The candidates with the smallest values, at most ``top``; among equal ones the first.

    Args:
        bounds: a number that the value does not stay below, or the reason why a candidate is out; with what is said of
            the candidates that the bound is enough for. The last is the value; infinity is a value that none wants.
    """
    pruned, chosen = Counter[str](), list[C]()
    waiting = [(0.0, number, 0) for number in range(len(candidates))]
    evaluated = looked = 0
    while waiting and len(chosen) < top and math.isfinite(waiting[0][0]):
        least, number, at = heapq.heappop(waiting)
        if at == len(bounds):
            chosen.append(candidates[number])
            continue
        if not at:
            if not looked % max(1, len(candidates) // 100):
                tell(CountedLine("searching candidates", looked, len(candidates)))
            looked += 1
        value = bounds[at][1](candidates[number])
        if isinstance(value, str):
            pruned[value] += 1
        else:
            evaluated += at + 1 == len(bounds)
            heapq.heappush(waiting, (max(least, value), number, at + 1))
    pruned.update(bounds[at - 1][0] for _, _, at in waiting if 0 < at < len(bounds))
    return Searched(chosen=tuple(chosen), evaluated=evaluated, pruned=dict(pruned.most_common()))
