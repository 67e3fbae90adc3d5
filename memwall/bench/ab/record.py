"""The outcome of a contest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memwall.core.structure import write
from memwall.core.units import duration, percent


@dataclass(frozen=True)
class Contest:
    """Head's time over base's, as measured, and the verdict: ``pass``, ``fail`` or ``inconclusive``.

    Figures are None where too little was measured to give any. Times in seconds of one step; shares as fractions.
    """

    verdict: str
    #: the slow-down that is allowed: 0.05 is 5 %
    allowed: float
    device: str
    #: median of head / base over all rounds, and the ends of its interval
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    #: of "both are equally fast", by the sign test
    p_value: float | None = None
    #: the smallest slow-down that these samples could tell from none
    smallest_detectable: float | None = None
    #: rounds (a block of each side) that count, and those that did not because the machine was disturbed
    blocks: int = 0
    dropped: int = 0
    #: times that both sides were started anew
    launches: int = 0
    #: medians over the blocks
    base_s: float | None = None
    head_s: float | None = None
    #: a step's seconds in each block, in the order of the rounds
    base_samples_s: tuple[float, ...] = ()
    head_samples_s: tuple[float, ...] = ()
    #: why it is inconclusive; empty otherwise
    reasons: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The outcome in one line."""
        why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        if self.ratio is None or self.low is None or self.high is None or self.base_s is None:
            return f"{self.verdict}{why}; {self.blocks} rounds, {self.dropped} dropped"
        return (
            f"{self.verdict}{why}: head {_change(self.ratio)} in time ({_change(self.low)} to {_change(self.high)})"
            f" beside the base's {duration(self.base_s)} a step; {_change(1 + self.allowed)} is allowed; slow-downs"
            f" from {percent(self.smallest_detectable or 0.0)} on would show; {self.blocks} rounds,"
            f" {self.dropped} dropped"
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON knows it."""
        return {**write(self), "sentence": self.sentence}


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"
