"""The ratio of head to base from paired rounds, its interval, and what follows from it.

Each round gives one ratio: blocks of both sides that ran one right after the other, so a machine that drifts drifts
under both. Rounds of one launch share their processes, and with them where code and memory happen to lie, which alone
shifts a time by a percent or so. The interval is therefore a bootstrap of the median in two stages (Davison and
Hinkley, Bootstrap Methods and their Application, 3.8): launches are drawn anew, and within them rounds. It is drawn
with a fixed seed: the same samples give the same interval.

The contest looks at its samples after the launches of ``LOOKS`` and at its end, seven times at most; each interval has
the confidence 99.3 %, so that all looks together err in at most 5 cases of 100 (Bonferroni). Three launches tell little
of how far launches differ: where those differ by 0.5, 1 and 2 %, and rounds by 2 %, an interval of 99 % from three
launches holds the truth in 98.7, 96.7 and 94.7 % of 300 drawn cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: the launches after which the contest looks: few where the sides are clearly apart, many where the machine is noisy
LOOKS = (3, 4, 5, 7, 10, 14)
LEAST_LAUNCHES = LOOKS[0]
#: of each look's interval; the time limit may end a contest between two looks, which is one more
CONFIDENCE = 1 - 0.05 / (len(LOOKS) + 1)
#: samples drawn
DRAWS = 4000
SEED = 20

PASS, FAIL, INCONCLUSIVE = "pass", "fail", "inconclusive"


@dataclass(frozen=True)
class Estimate:
    """Head's time over base's: the median of all rounds, and its interval. ``p_value``: two-sided exact sign test of
    "both are equally fast" over the rounds; it decides nothing."""

    ratio: float
    low: float
    high: float
    p_value: float

    @property
    def smallest_detectable(self) -> float:
        """Half of the interval's width as a share: a smaller slow-down would not show with these samples."""
        return math.exp((math.log(self.high) - math.log(self.low)) / 2) - 1.0

    def verdict(self, allowed: float) -> str:
        """``fail``: the whole interval lies above what is allowed. ``pass``: all of it lies below, and is narrow enough
        that a slow-down of the allowed size would have shown. Else ``inconclusive``."""
        if self.low > 1.0 + allowed:
            return FAIL
        return PASS if self.high < 1.0 + allowed and self.smallest_detectable <= allowed else INCONCLUSIVE


def estimate(launches: Sequence[Sequence[float]], confidence: float = CONFIDENCE) -> Estimate:
    """What the log ratios of some launches, each of as many rounds, say.

    Raises:
        ValueError: there are none, or not as many in each.
    """
    import numpy as np

    ratios = np.array(launches, dtype=float)
    if ratios.ndim != 2 or not ratios.size:
        raise ValueError("every launch needs the same number of rounds, one at least")
    count, rounds = ratios.shape
    generator = np.random.default_rng(SEED)
    launch = generator.integers(count, size=(DRAWS, count, 1))
    drawn = ratios[launch, generator.integers(rounds, size=(DRAWS, count, rounds))]
    tail = (1.0 - confidence) / 2
    low, high = np.quantile(np.median(drawn.reshape(DRAWS, -1), axis=1), [tail, 1.0 - tail])
    middle = float(np.median(ratios))
    return Estimate(math.exp(middle), math.exp(low), math.exp(high), sign_test(ratios.ravel().tolist()))


def sign_test(differences: Sequence[float]) -> float:
    """How probable so uneven a split into above and below 0, or a more uneven one, is by chance (two-sided, exact)."""
    above = sum(d > 0 for d in differences)
    count = above + sum(d < 0 for d in differences)
    tail = sum(math.comb(count, k) for k in range(min(above, count - above) + 1))
    return min(1.0, 2.0 * tail / 2**count)
