"""Evaluated points → points that satisfy all conditions, the best of them, and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwall.analysis.quantities import QUANTITIES
from memwall.core.errors import UsageError
from memwall.core.units import counted
from memwall.sweeping.conditions import Condition

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pandas import DataFrame


@dataclass(frozen=True, slots=True)
class Pruned:
    """A condition, the points that it takes away after the conditions before it, and all that do not satisfy it."""

    condition: Condition
    further: int
    alone: int


def kept(frame: DataFrame, conditions: Sequence[Condition]) -> tuple[DataFrame, list[Pruned]]:
    """The points that were evaluated and satisfy all conditions, and what each condition takes away.

    Raises:
        UsageError: none does; says which condition no point satisfies, or how many satisfy each.
    """
    ran = frame[frame["error"] == ""]
    left, pruned = np.ones(len(ran), dtype=bool), []
    for condition in conditions:
        holds = condition.holds(ran).to_numpy()
        pruned.append(Pruned(condition, int((left & ~holds).sum()), int((~holds).sum())))
        left &= holds
    if len(ran) and not left.any():
        raise UsageError(_unsatisfied(ran, pruned))
    return ran[left], pruned


def _unsatisfied(ran: DataFrame, pruned: Sequence[Pruned]) -> str:
    """Why no point is left."""
    for each in pruned:
        condition = each.condition
        if each.alone == len(ran):
            values = ran[condition.column].dropna()
            if not len(values):
                return f"no point satisfies {condition.text}: {condition.column} is unknown of all points"
            if values.dtype.kind not in "if":
                return f"no point satisfies {condition.text}: {condition.column} is {_few(sorted(set(values)))}"
            ends = f"{values.min():.6g} to {values.max():.6g}"
            return f"no point satisfies {condition.text}: {condition.column} goes from {ends}"
    counts = ", ".join(f"{len(ran) - each.alone:,} {each.condition.text}" for each in pruned)
    return f"no point satisfies all conditions; of {counted(len(ran), 'point')}: {counts}"


def _few(values: Sequence[object]) -> str:
    return ", ".join(map(str, values[:5])) + (" ..." if len(values) > 5 else "")


def ranked(frame: DataFrame, best: str) -> DataFrame:
    """Points that have a value, the best first; equal ones in their order. Raises ``UsageError``: no point has one."""
    known = frame[frame[best].notna() & np.isfinite(frame[best].astype(float))]
    if len(frame) and not len(known):
        raise UsageError(f"{best} is unknown of all points; name another quantity with --best")
    return known.sort_values(best, ascending=QUANTITIES[best].lower, kind="stable")


def pareto(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """The points that no other beats in one of some quantities without being worse in another; sorted by the first.
    Of points that are equal in all of them the first stands for all; sums of the same times in another order, which
    differ in their last bits, are equal."""
    known = frame.dropna(subset=list(names))
    signs = np.array([1.0 if QUANTITIES[name].lower else -1.0 for name in names])
    values = _rounded(known[list(names)].to_numpy(dtype=float) * signs)
    firsts = np.sort(np.unique(values, axis=0, return_index=True)[1])
    known, values = known.iloc[firsts], values[firsts]
    order = np.lexsort(values.T[::-1])  # whatever beats a point comes before it
    if len(names) == 2:
        second = values[order, 1]
        least = np.minimum.accumulate(second)
        return known.iloc[order[np.r_[True, second[1:] < least[:-1]][: len(order)]]]
    front: list[int] = []
    for place in order:
        if not front or not (values[front] <= values[place]).all(axis=1).any():
            front.append(int(place))
    return known.iloc[front]


#: significant digits of a sum that its order does not change
_DIGITS = 9


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numbers to :data:`_DIGITS` significant digits."""
    sizes = np.where((values == 0) | ~np.isfinite(values), 1.0, np.abs(values))
    scale = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(sizes)))
    return np.where(np.isfinite(values), np.round(values * scale) / scale, values)
