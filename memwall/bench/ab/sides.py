"""Both sides in fresh processes, asked in turns: while one is timed, the other waits."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memwall.bench.clock import timing_environment
from memwall.bench.machine import Usage
from memwall.core.errors import MemwallError, MissingError, UsageError
from memwall.core.process import Child, Lost

#: seconds that a side may take to import torch, build its model and warm up
START_LIMIT_S = 180.0
#: a block has as many steps as take this long, so that a clock tick or a short interruption is negligible
BLOCK_S = 0.06
#: steps of a block at most
MOST_STEPS = 10_000
#: a question may take this many times its expected time, plus this many seconds
PATIENCE, LEAST_LIMIT_S = 20.0, 60.0


@dataclass(frozen=True)
class Side:
    """One version of a model: a checkout, and the target in it as seen from there. ``options``: ``mode``, ``batch``,
    ``seq``, ``input_specs``, ``dtype``, ``autocast``, ``optimizer``, as for :func:`memwall.profile`."""

    folder: Path
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """A block of steps: the median of their seconds, and what the machine did during them."""

    step_s: float
    usage: Usage


@dataclass(frozen=True)
class Round:
    """One block of each side, one right after the other."""

    base: Block
    head: Block

    @property
    def log_ratio(self) -> float:
        """Above 0: the head was slower."""
        return math.log(self.head.step_s / self.base.step_s)

    @property
    def usage(self) -> Usage:
        """What the machine did during both blocks."""
        return self.base.usage + self.head.usage


class Launch:
    """Both sides in fresh processes, warm, until :meth:`stop`.

    Raises:
        UsageError: a side does not run.
        MissingError: the device or a package is missing.
    """

    def __init__(self, base: Side, head: Side, kind: str, seed: int) -> None:
        self._sides: dict[str, Child] = {}
        try:
            for name, side, other in (("base", base, head), ("head", head, base)):
                self._sides[name] = _started(name, kind, side)
                self._sides[name].send("build", kind, side, other.folder, seed)
            for name in self._sides:
                self._answer(name, START_LIMIT_S)
            warm = {name: self._answer(name, START_LIMIT_S, "warm_up") for name in self._sides}
        except BaseException:
            self.stop()
            raise
        self.environment: Mapping[str, Any] = warm["base"][0]
        self._step_s: dict[str, float] = {name: step_s for name, (_, step_s) in warm.items()}

    def stop(self) -> None:
        """End both processes."""
        for side in self._sides.values():
            side.stop()

    @property
    def round_s(self) -> float:
        """Expected seconds of a round; a block of several steps runs one more, which does not count."""
        steps = {name: self._steps(name) for name in self._sides}
        return sum((count + (count > 1)) * self._step_s[name] for name, count in steps.items())

    def round(self, head_first: bool) -> Round:
        """Time a block of each side.

        Raises:
            UsageError: a side failed.
        """
        limit_s = LEAST_LIMIT_S + PATIENCE * self.round_s
        order = ("head", "base") if head_first else ("base", "head")
        return Round(**{name: self._answer(name, limit_s, "block", self._steps(name)) for name in order})

    def _steps(self, name: str) -> int:
        return max(1, min(math.ceil(BLOCK_S / self._step_s[name]), MOST_STEPS))

    def _answer(self, name: str, limit_s: float, *question: Any) -> Any:
        """A side's answer to a question, or to the one that was sent before."""
        if question:
            self._sides[name].send(*question)
        try:
            return self._sides[name].receive(limit_s)
        except Lost as lost:
            raise UsageError(f"the {name} {'' if lost.status == 'timeout' else 'does not run: '}{lost}") from None
        except MissingError:
            raise
        except MemwallError as error:
            raise UsageError(f"the {name}: {error}") from None


def _started(name: str, kind: str, side: Side) -> Child:
    # both sides hash alike, so that sets and dicts of names lie alike
    environment = {**timing_environment(kind), "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
    try:
        return Child("memwall.bench.ab.worker:Worker", environment, folder=side.folder, own_path=True)
    except OSError as error:
        raise UsageError(f"the {name} cannot be started in its folder: {error.strerror}") from None
