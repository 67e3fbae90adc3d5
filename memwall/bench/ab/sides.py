"""Both sides in fresh processes, asked in turns: while one is timed, the other waits."""

from __future__ import annotations

import gc
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memwall.bench.clock import open_device, timing_environment
from memwall.bench.device import RUN_OPTIONS, versions
from memwall.bench.machine import Usage, read_counters
from memwall.core.errors import MemwallError, MissingError, UsageError, suggest
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
    """One version of a model: a checkout, and the target in it as seen from there. ``options``: some of
    :data:`memwall.bench.device.RUN_OPTIONS`, as for :func:`memwall.profile`."""

    folder: Path
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StepBlock:
    """A block of steps: the median of their seconds, and what the machine did during them."""

    step_s: float
    usage: Usage


@dataclass(frozen=True)
class Round:
    """One block of each side, one right after the other."""

    base: StepBlock
    head: StepBlock

    @property
    def log_ratio(self) -> float:
        """Above 0: the head was slower."""
        return math.log(self.head.step_s / self.base.step_s)

    @property
    def usage(self) -> Usage:
        """What the machine did during both blocks."""
        return self.base.usage + self.head.usage


class SideProcesses:
    """Both sides in fresh processes, warm, until :meth:`stop`. Raises ``UsageError``: a side does not run;
    ``MissingError``: the device or a package is missing."""

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
        """Time a block of each side. Raises ``UsageError``: a side failed."""
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
        return Child(SideWorker, environment, folder=side.folder, own_path=True)
    except OSError as error:
        raise UsageError(f"the {name} cannot be started in its folder: {error.strerror}") from None


# -- in the process of a side ------------------------------------------------------------------------------------------

#: a model is warm when two spans of this length agree to this share, and after so many seconds in any case
SPAN_S, AGREE, LONGEST_WARM_UP_S = 0.1, 0.05, 2.0


class SideWorker:
    """Answers ``build``, ``warm_up`` and ``block``; a failure of the model's code is reported with its line."""

    def __call__(self, question: str, *arguments: Any) -> Any:
        try:
            return getattr(self, question)(*arguments)
        except (Exception, SystemExit) as error:  # whatever the user's code does, it is this side's
            from memwall.frontend.targets.blame import blame

            raise blame(error, "running the model") from error  # with the user's own line

    def build(self, kind: str, side: Side, other: Path, seed: int) -> None:
        """Build the model and run it once. ``other`` is the checkout from which nothing may be imported."""
        import torch

        from memwall.bench.kernels.steps import module_step

        for name in side.options:
            if name not in RUN_OPTIONS:
                raise UsageError(f"no option {name!r} of a timed model; {suggest(name, RUN_OPTIONS)}")
        _look_in(side.folder, other)
        random.seed(seed)
        torch.manual_seed(seed)
        if kind == "cpu":
            # numbers near zero are slow, and weights that are trained on noise for long come near zero
            torch.set_flush_denormal(True)
        self.device = open_device(kind)
        self._step = module_step(side.target, side.options, self.device.torch_device, False)
        self.device.steps(self._step, 1)
        _refuse_strays(side.folder, other)
        gc.collect()
        gc.freeze()  # what is there now stays: the collector need not look at it before every block

    def warm_up(self) -> tuple[dict[str, Any], float]:
        """Run steps until their time is stable: what is known of the device, and seconds of a step."""
        began, before_s, steps = time.monotonic(), 0.0, 1
        while True:
            step_s = statistics.median(self.device.steps(self._step, steps)[0])
            if abs(step_s - before_s) <= AGREE * step_s or time.monotonic() - began > LONGEST_WARM_UP_S:
                break
            before_s, steps = step_s, max(1, min(int(SPAN_S / step_s), MOST_STEPS))
        about = self.device.describe()
        if self.device.kind == "cpu":
            about = {"device": about["device"], "cores": os.cpu_count(), "threads": about["threads"], **versions()}
        return about, step_s

    def block(self, steps: int) -> StepBlock:
        """Time a block while watching the machine."""
        before = read_counters()
        samples, flags = self.device.steps(self._step, steps)
        return StepBlock(statistics.median(samples), before.usage(read_counters(), flags))


def _look_in(own: Path, other: Path) -> None:
    """Find this side's modules: its folder comes first, and where an entry of ``sys.path`` lies in the other side's
    checkout (an editable install, PYTHONPATH), the same place of this one comes before it."""
    own, other = own.resolve(), other.resolve()
    entries = [str(own)]
    for entry in sys.path:
        path = Path(entry or ".").resolve()
        if path.is_relative_to(other) and not path.is_relative_to(own):
            same = own / path.relative_to(other)
            entries += [str(same)] * same.is_dir()
        entries.append(entry)
    sys.path[:] = entries


def _refuse_strays(own: Path, other: Path) -> None:
    """A module of the other checkout in this process would make both sides run the same code. Raises ``UsageError``:
    there is one."""
    own, other = own.resolve(), other.resolve()
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str) or name.partition(".")[0] in ("memwall", "__main__"):
            continue
        path = Path(file).resolve()
        if path.is_relative_to(own) or not path.is_relative_to(other):
            continue
        inside = path.relative_to(other)
        if (own / inside).is_file():
            raise UsageError(
                f"{name} comes from the other side's checkout ({inside}), as an installed package does: "
                "uninstall it and run from the checkout, or both sides would be the same code"
            )
