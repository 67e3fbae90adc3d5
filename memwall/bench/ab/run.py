"""``run_ab``: both sides are launched again and again, timed in turns, until the samples decide.

Why at least three launches and, by default, 24 rounds before the first look: a round's ratio scatters by 1 to 5 % on
shared machines, so the median of 24 is known to some 1 to 3 %; and no single pair of processes, with its random memory
layout, decides. An undecided benchmark continues, launch by launch, to the last look or the time limit.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memwall.bench.ab.sides import Round, Side, SideProcesses
from memwall.bench.device import DEVICES
from memwall.bench.machine import Usage
from memwall.bench.stats import Ratio, ratio
from memwall.core.errors import UsageError
from memwall.core.progress import CountedLine, tell
from memwall.core.structure import write
from memwall.core.units import duration, percent

#: the launches after which the samples are looked at: few if the difference is clear, many on a noisy machine
LOOKS = (3, 4, 5, 7, 10, 14)
LEAST_LAUNCHES = LOOKS[0]
#: of each look's interval. The benchmark looks after the launches of LOOKS and at its end, which the time limit may put
#: between two of them: all looks together err in at most 5 cases of 100 (Bonferroni)
CONFIDENCE = 1 - 0.05 / (len(LOOKS) + 1)

PASS, FAIL, INCONCLUSIVE = "pass", "fail", "inconclusive"

#: rounds before the first look, and the fewest that a caller or the time limit may make of them
BLOCKS, LEAST_BLOCKS = 24, 6
#: seconds after which no round begins
TIME_LIMIT_S = 60.0
#: seconds to wait after a disturbed round: what disturbs is often over soon
PAUSE_S = 0.5


@dataclass(frozen=True)
class ABResult:
    """Head's time over base's, as measured, and the verdict: ``pass``, ``fail`` or ``inconclusive``.

    Figures are None if too little was measured. Times in seconds of one step; shares as fractions.
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
    #: the smallest slow-down that these samples could detect
    smallest_detectable: float | None = None
    #: rounds (a block of each side) that count, and rounds that did not because the machine was disturbed
    blocks: int = 0
    dropped: int = 0
    #: times that both sides were started again
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
        found, low, high, allowed = (
            f"{100 * (n - 1):+.1f} %" for n in (self.ratio, self.low, self.high, 1 + self.allowed)
        )
        return (
            f"{self.verdict}{why}: head {found} in time ({low} to {high}); the base takes {duration(self.base_s)} a"
            f" step; {allowed} is allowed; slow-downs from {percent(self.smallest_detectable or 0.0)} on would show;"
            f" {self.blocks} rounds, {self.dropped} dropped"
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON knows it."""
        return {**write(self), "sentence": self.sentence}


@dataclass(frozen=True)
class Rules:
    """The rules of an A/B benchmark. Raises ``UsageError``: one is wrong."""

    #: the slow-down that passes, as a share: 0.05 is 5 %; above 0
    allowed: float
    #: ``cpu`` or ``cuda``; both models are in its memory at once
    device: str = "cpu"
    #: rounds (a block of each side) before the first look at them; 6 at least
    blocks: int = BLOCKS
    #: no round begins later than this
    seconds: float = TIME_LIMIT_S
    #: of the models' tensors, and of the order of the sides in each round; models that draw differently get inputs with
    #: other values, never with other shapes
    seed: int = 0

    def __post_init__(self) -> None:
        checks = (
            (self.device in DEVICES, f"no device {self.device!r}; there is {', '.join(DEVICES)}"),
            (
                0 < self.allowed < math.inf,
                "the allowed slow-down of a measured gate must be above 0 %, such as 5 %:"
                " no measurement can show that two versions are equally fast",
            ),
            (self.blocks >= LEAST_BLOCKS, f"an A/B benchmark needs at least {LEAST_BLOCKS} blocks, not {self.blocks}"),
            (0 < self.seconds < math.inf, f"an A/B benchmark needs a time limit above 0 s, not {self.seconds} s"),
        )
        for holds, message in checks:
            if not holds:
                raise UsageError(message)


def run_ab(base: Side, head: Side, rules: Rules) -> ABResult:
    """Time two versions of a model against each other.

    Each side runs in processes of its own, with this process's Python and this memwall, on real tensors from the same
    seed; one side runs while the other waits. On the CPU torch has one thread.

    Args:
        base, head: the checkouts and their target.

    Returns:
        The outcome; ``inconclusive`` if the samples do not decide or the machine was not quiet.

    Raises:
        UsageError: a side's code fails; says which side.
        MissingError: the device or a package is missing.
    """
    base, head = _checked(base), _checked(head)
    return run_launches(lambda: SideProcesses(base, head, rules.device, rules.seed), rules)


def run_launches(
    launch: Callable[[], SideProcesses],
    rules: Rules,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ABResult:
    """An A/B benchmark of the sides that ``launch`` starts."""
    found = _AbProgress(rules, clock, sleep, clock())
    while not found.stopped and len(found.launches) < LOOKS[-1]:
        started = clock()
        sides = launch()
        try:
            found.run(sides, clock() - started)
        finally:
            sides.stop()
        now = found.ratio
        so_far = f", head / base {now.ratio:.3f} ({now.low:.3f} to {now.high:.3f})" if now else ""
        done = len(found.launches)
        what = f"measuring, {done} launches done, {len(found.dropped)} rounds dropped{so_far}"
        tell(CountedLine(what, done, LOOKS[-1], text=what))
        if now and len(found.launches) in LOOKS and verdict_of(now, rules.allowed) != INCONCLUSIVE:
            break  # another launch would change nothing
    return found.outcome()


@dataclass
class _AbProgress:
    """The state of an A/B benchmark."""

    rules: Rules
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    began: float
    launches: list[list[Round]] = field(default_factory=list)
    #: why each dropped round was dropped
    dropped: list[str] = field(default_factory=list)
    environment: Mapping[str, Any] = field(default_factory=dict)
    #: why it stopped, if it is undecided
    stopped: str = ""
    #: rounds of each launch: equally many, so that each launch has the same weight
    rounds: int = 0

    def run(self, sides: SideProcesses, start_s: float) -> None:
        """All rounds of one launch. One that the machine disturbed is repeated; a launch that is cut short is lost."""
        self.environment = sides.environment
        self.rounds = self.rounds or self._rounds(sides.round_s, start_s)
        # the head begins in a random half of the rounds
        chance = random.Random(1000 * self.rules.seed + len(self.launches))
        orders = [first for _ in range(self.rounds // 2) for first in chance.sample([False, True], 2)]
        kept: list[Round] = []
        while len(kept) < self.rounds and not self.stopped:
            found = sides.round(head_first=orders[len(kept)])
            disturbed = found.usage.disturbances(self.rules.device)
            if disturbed:
                self.dropped.append(disturbed[0])
                self.sleep(PAUSE_S)
            else:
                kept.append(found)
            if len(self.dropped) > self.rules.blocks:
                self.stopped = "too many rounds were disturbed"
            elif self.clock() - self.began > self.rules.seconds:
                self.stopped = "the time was over"
        if len(kept) == self.rounds:
            self.launches.append(kept)

    def _rounds(self, round_s: float, start_s: float) -> int:
        """Rounds per launch: as many as the rules ask for, or as fit into the time limit with the starts; even."""
        wanted = math.ceil(self.rules.blocks / LEAST_LAUNCHES)
        fitting = int((self.rules.seconds / LEAST_LAUNCHES - start_s) / round_s)
        return 2 * math.ceil(max(LEAST_BLOCKS // LEAST_LAUNCHES, min(wanted, fitting)) / 2)

    @property
    def ratio(self) -> Ratio | None:
        """Head over base so far; None before the first look."""
        if len(self.launches) < LEAST_LAUNCHES:
            return None
        return ratio([[r.log_ratio for r in rounds] for rounds in self.launches], CONFIDENCE)

    def outcome(self) -> ABResult:
        """The result so far."""
        rules, found = self.rules, self.ratio
        kept = [r for rounds in self.launches for r in rounds]
        reasons = self._reasons(kept, found)
        base_s, head_s = tuple(r.base.step_s for r in kept), tuple(r.head.step_s for r in kept)
        result = ABResult(
            INCONCLUSIVE,
            rules.allowed,
            rules.device,
            blocks=len(kept),
            dropped=len(self.dropped),
            launches=len(self.launches),
            base_samples_s=base_s,
            head_samples_s=head_s,
            reasons=reasons,
            environment={**self.environment, "confidence": CONFIDENCE},
        )
        if found is None:
            return result
        return replace(
            result,
            verdict=INCONCLUSIVE if reasons else verdict_of(found, rules.allowed),
            ratio=found.ratio,
            low=found.low,
            high=found.high,
            p_value=found.p_value,
            smallest_detectable=found.smallest_detectable,
            base_s=statistics.median(base_s),
            head_s=statistics.median(head_s),
        )

    def _reasons(self, kept: Sequence[Round], found: Ratio | None) -> tuple[str, ...]:
        """Why there is no verdict; empty if there is one."""
        reasons = list(sum((r.usage for r in kept), Usage()).doubts(self.rules.device))
        if len(self.dropped) > len(kept):
            what, _ = Counter(self.dropped).most_common(1)[0]
            reasons.append(f"the machine was not quiet ({len(self.dropped)} disturbed rounds): {what}")
        elif found is None:
            reasons.append(f"{self.stopped or 'too early'}: {len(self.launches)} of {LEAST_LAUNCHES} launches done")
        elif verdict_of(found, self.rules.allowed) == INCONCLUSIVE:
            allowed, shown = self.rules.allowed, found.smallest_detectable
            reasons.append(
                f"no slow-down below {percent(shown)} shows here now, and {percent(allowed)} is what is allowed: it"
                " takes more blocks or a quieter machine"
                if shown > allowed
                else "what is allowed lies within the interval: it takes more blocks"
            )
        return tuple(reasons)


def verdict_of(found: Ratio, allowed: float) -> str:
    """``fail``: the whole interval is above the allowed slow-down. ``pass``: all of it is below, and narrow enough that
    the allowed slow-down would have shown. Else ``inconclusive``."""
    if found.low > 1.0 + allowed:
        return FAIL
    return PASS if found.high < 1.0 + allowed and found.smallest_detectable <= allowed else INCONCLUSIVE


def _checked(side: Side) -> Side:
    """A side with absolute paths, for a worker in another folder."""
    if not side.folder.is_dir():
        raise UsageError(f"no such folder: {side.folder}")
    if Path(side.target.removeprefix("hf:")).is_absolute():
        raise UsageError(
            f"{side.target} is the same file for both sides; name it as it is seen from the root of its checkout"
        )
    return replace(side, folder=side.folder.resolve(), options=dict(side.options))
