"""The process of one side: ``python -P -m memwall.bench.ab.worker PIPE``, started by :mod:`.launch` in its checkout.

It answers one question after another until its pipe closes. Its standard input is held open by its parent: when that
ends, however it ends, so does this process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from memwall.bench.ab.clocks import open_clock
from memwall.bench.ab.machine import read_counters
from memwall.bench.ab.side import Block, Failed, Ready, Setup, Time, WarmUp
from memwall.core.errors import MemwallError, MissingError, UsageError

#: a model is warm when two spans of this length agree to this share, and after so many seconds in any case
SPAN_S, AGREE, LONGEST_WARM_UP_S = 0.1, 0.05, 2.0
#: steps of a span at most, for models that do next to nothing
MOST_STEPS = 10_000


class Bench:
    """One side's model, built and ready to run."""

    def __init__(self, setup: Setup) -> None:
        import torch

        from memwall.bench.kernels.modules import module_step

        _look_in(setup.side.folder, setup.other)
        random.seed(setup.seed)
        torch.manual_seed(setup.seed)
        self.clock = open_clock(setup.kind)
        options = _module_options(setup.side.target, setup.side.options)
        self._step = module_step(options, self.clock.torch_device, False)
        self.clock.time(self._step, 1)
        _refuse_strays(setup.side.folder, setup.other)
        gc.collect()
        gc.freeze()  # what is there now stays: the collector need not look at it before every block

    def warm_up(self) -> Ready:
        """Run steps until they take as long as those before."""
        began, before_s, steps = time.monotonic(), 0.0, 1
        while True:
            step_s, _ = self.clock.time(self._step, steps)
            if abs(step_s - before_s) <= AGREE * step_s or time.monotonic() - began > LONGEST_WARM_UP_S:
                return Ready(self.clock.describe(), step_s)
            before_s, steps = step_s, max(1, min(int(SPAN_S / step_s), MOST_STEPS))

    def block(self, steps: int) -> Block:
        """Time a block, and watch the machine meanwhile."""
        before = read_counters()
        step_s, flags = self.clock.time(self._step, steps)
        return Block(step_s, before.usage(read_counters(), flags))


def _module_options(target: str, options: Mapping[str, Any]) -> Any:
    from memwall.bench.kernels.modules import ModuleOptions

    known = [field.name for field in dataclasses.fields(ModuleOptions) if field.name != "target"]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.6)
            hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known)}"
            raise UsageError(f"no option {name!r} of a timed model; {hint}")
    return ModuleOptions(target, **{"input_specs": (), **options})


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


def serve(pipe: Connection[Any, Any]) -> None:
    """Answer until the pipe closes."""
    bench: Bench | None = None
    while True:
        question = pipe.recv()
        try:
            if isinstance(question, Setup):
                bench = Bench(question)
                answer: Any = Ready()
            elif bench is None:
                raise RuntimeError("there is no model yet")
            elif isinstance(question, Time):
                answer = bench.block(question.steps)
            else:
                assert isinstance(question, WarmUp)
                answer = bench.warm_up()
        except (Exception, SystemExit) as error:  # whatever the user's code does, it is this side's
            answer = _failed(error)
        pipe.send(answer)


def _failed(error: BaseException) -> Failed:
    """What an error says, with the user's own line where it came from there."""
    from memwall.frontend.workload.blame import blame

    said: MemwallError = blame(error, "running the model")
    return Failed(str(said), isinstance(said, MissingError))


def _end_with(lifeline: int) -> None:
    """End this process when the other end of the lifeline is closed, even in the middle of a step."""
    while os.read(lifeline, 1):
        pass
    os._exit(1)


def main(arguments: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the model may read its standard input, and must not read the lifeline
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(Connection(int(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
