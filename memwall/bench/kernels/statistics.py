"""Samples → median with a distribution-free interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from memwall.record.measurement import Timing

#: the interval holds the true median with at least this probability, where there are samples enough
CONFIDENCE = 0.95


def timing(samples_s: Sequence[float]) -> Timing:
    """Median of some samples in seconds, and the interval of the true median.

    The ends are order statistics, so nothing is assumed of how the samples are distributed; up to five samples the
    interval is their range and holds the median with less than ``CONFIDENCE``.

    Raises:
        ValueError: there is no sample.
    """
    if not samples_s:
        raise ValueError("no samples")
    ordered = sorted(samples_s)
    count = len(ordered)
    cut = tail_rank(count)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return Timing(middle, ordered[cut], ordered[count - 1 - cut], count, ordered[0], ordered[-1])


@cache
def tail_rank(count: int) -> int:
    """How many samples lie outside of the interval at each end.

    The number of samples below the true median is binomial(count, 1/2): the largest rank whose two tails together stay
    within ``1 - CONFIDENCE``.
    """
    allowed = (1.0 - CONFIDENCE) / 2 * 2.0**count
    below, rank = 0.0, 0
    while rank < count // 2:
        below += math.comb(count, rank)
        if below > allowed:
            break
        rank += 1
    return max(rank - 1, 0)
