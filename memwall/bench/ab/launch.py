"""Both sides started anew, each in its process, and asked in turns: while one is timed, the other waits."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from memwall.bench.ab.machine import Usage
from memwall.bench.ab.side import Block, Failed, Ready, Setup, Side, Time, WarmUp
from memwall.bench.kernels.workers import START_LIMIT_S, worker_environment
from memwall.core.errors import MissingError, UsageError

#: a block has as many steps as take this long, so that a clock tick or a short interruption is little of it
BLOCK_S = 0.06
#: steps of a block at most
MOST_STEPS = 10_000
#: a question may take this many times as long as it should, and so many seconds
PATIENCE, LEAST_LIMIT_S = 20.0, 60.0

NAMES = ("base", "head")


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


class Runner:
    """The process of one side. It belongs to the process group of its parent and ends with it."""

    def __init__(self, name: str, setup: Setup) -> None:
        self._name, self._setup = name, setup
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed by stop()
        ours, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-P", "-m", "memwall.bench.ab.worker", str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=_environment(setup.kind), cwd=setup.side.folder,
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._said,
            )  # fmt: skip
        except OSError as error:
            raise UsageError(f"the {name} cannot be started in its folder: {error.strerror}") from None
        finally:
            theirs.close()
        self._pipe: Connection[Any, Any] = ours

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def send(self, question: Any) -> None:
        """Ask; a process that is gone is noticed by :meth:`receive`."""
        with contextlib.suppress(OSError):
            self._pipe.send(question)

    def receive(self, limit_s: float) -> Any:
        """The answer.

        Raises:
            UsageError: this side's code failed, ended the process, or took longer than the limit.
            MissingError: the device or a package is missing.
        """
        try:
            if not self._pipe.poll(limit_s):
                raise UsageError(f"the {self._name} took longer than its limit of {limit_s:.0f} s")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise UsageError(f"the {self._name} does not run: {self._obituary()}") from None
        if isinstance(answer, Failed):
            raise (
                MissingError(answer.message) if answer.missing else UsageError(f"the {self._name}: {answer.message}")
            )
        return answer

    def ask(self, question: Any, limit_s: float) -> Any:
        """Ask, and wait for the answer."""
        self.send(question)
        return self.receive(limit_s)

    def _obituary(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        code = self._process.returncode
        if code == -signal.SIGKILL:
            return "the system killed the process, as it does when memory runs out"
        if code is not None and code < 0:
            return f"the process crashed: {signal.Signals(-code).name}"
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return f"the process ended with exit code {code}" + (f": {lines[-1][:200]}" if lines else "")

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._said.close()


class Launch:
    """Both sides in fresh processes, warm. Use it in a ``with``: they are stopped at its end."""

    def __init__(self, base: Side, head: Side, kind: str, seed: int) -> None:
        """
        Raises:
            UsageError: a side does not run.
            MissingError: the device or a package is missing.
        """
        self._runners: list[Runner] = []
        try:
            for name, side, other in zip(NAMES, (base, head), (head, base), strict=True):
                self._runners.append(Runner(name, Setup(kind, side, other.folder, seed)))
                self._runners[-1].send(Setup(kind, side, other.folder, seed))
            for runner in self._runners:
                runner.receive(START_LIMIT_S)
            warm: list[Ready] = [runner.ask(WarmUp(), START_LIMIT_S) for runner in self._runners]
        except BaseException:
            self.stop()
            raise
        self.environment: Mapping[str, Any] = warm[0].environment
        self._step_s = [ready.step_s for ready in warm]

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End both processes."""
        for runner in self._runners:
            runner.stop()

    @property
    def pids(self) -> tuple[int, ...]:
        """Both processes."""
        return tuple(runner.pid for runner in self._runners)

    @property
    def round_s(self) -> float:
        """Seconds that a round should take; a block of several steps runs one more, which does not count."""
        return sum((steps + (steps > 1)) * step_s for steps, step_s in zip(self._steps, self._step_s, strict=True))

    @property
    def _steps(self) -> list[int]:
        return [max(1, min(math.ceil(BLOCK_S / step_s), MOST_STEPS)) for step_s in self._step_s]

    def round(self, head_first: bool) -> Round:
        """Time a block of each side.

        Raises:
            UsageError: a side failed.
        """
        limit_s = LEAST_LIMIT_S + PATIENCE * self.round_s
        blocks: dict[int, Block] = {}
        for index in (1, 0) if head_first else (0, 1):
            blocks[index] = self._runners[index].ask(Time(self._steps[index]), limit_s)
        return Round(blocks[0], blocks[1])


def _environment(kind: str) -> dict[str, str]:
    """As for all measuring workers; both sides hash alike, so that sets and dicts of names lie alike."""
    return {**worker_environment(kind), "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
