"""The process of one side, started by :mod:`.sides` in its checkout: builds the model, times its steps."""

from __future__ import annotations

import gc
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from memwall.bench.ab.sides import MOST_STEPS, Block, Side
from memwall.bench.clock import open_device
from memwall.bench.device import RUN_OPTIONS, versions
from memwall.bench.machine import read_counters
from memwall.core.errors import UsageError, suggest

#: a model is warm when two spans of this length agree to this share, and after so many seconds in any case
SPAN_S, AGREE, LONGEST_WARM_UP_S = 0.1, 0.05, 2.0


class Worker:
    """Answers ``build``, ``warm_up`` and ``block``; a failure of the model's code is reported with its line."""

    def __call__(self, question: str, *arguments: Any) -> Any:
        try:
            return getattr(self, question)(*arguments)
        except (Exception, SystemExit) as error:  # whatever the user's code does, it is this side's
            from memwall.frontend.workload.blame import blame

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

    def block(self, steps: int) -> Block:
        """Time a block while watching the machine."""
        before = read_counters()
        samples, flags = self.device.steps(self._step, steps)
        return Block(statistics.median(samples), before.usage(read_counters(), flags))


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
    """A module of the other checkout in this process would make both sides run the same code.

    Raises:
        UsageError: there is one.
    """
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
