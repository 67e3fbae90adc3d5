"""The processes in which kernels run, seen from outside: asked with a time limit, and started again when one dies."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from memwall.bench.clock import timing_environment
from memwall.core.errors import MemwallError, MissingError
from memwall.core.graph import Graph
from memwall.core.process import Child, Lost
from memwall.fusion import Group
from memwall.hardware.lookup import Gpu
from memwall.record.measurement import Sensors

#: seconds that a worker may take to import torch and open its device
START_LIMIT_S = 180.0
#: how often a worker that fails to restart is tried again, with one kernel lost each time
MOST_STARTS = 2


class WorkerFailed(MemwallError):
    """The worker could not be started."""


# -- what is asked, and what is answered -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """What a worker measures. ``target`` is what the model was made from: importing it may register custom ops."""

    kind: str
    graph: Graph
    gpu: Gpu
    target: str = ""


@dataclass(frozen=True)
class KernelRun:
    """Time a kernel; a new one is built, checked and tuned first. ``samples`` 0 only compiles it, for the caches on
    disk. ``graphed`` False: launch it directly, a graph of it cannot be captured."""

    number: int
    executor: str
    group: Group
    samples: int
    budget_s: float
    check: bool = True
    graphed: bool = True


@dataclass(frozen=True)
class Ran:
    """The outcome of a kernel or a step; ``fatal``: the worker cannot continue; ``graphed`` False: no graph of it could
    be captured."""

    status: str
    reason: str = ""
    samples_s: tuple[float, ...] = ()
    error: float | None = None
    schedule: str = ""
    config: Mapping[str, int] = field(default_factory=dict)
    sensors: Sensors = field(default_factory=Sensors)
    fatal: bool = False
    graphed: bool = True


@dataclass(frozen=True)
class Copied:
    """``bytes`` that a copy moved, read and written together, and timings of it and of an empty kernel."""

    bytes: int
    samples_s: tuple[float, ...]
    floor_s: tuple[float, ...]
    sensors: Sensors = field(default_factory=Sensors)


# -- workers -----------------------------------------------------------------------------------------------------------


class KernelWorker:
    """One process that runs kernels (:class:`.session.Questions`). A kernel that crashes it or exceeds its time limit
    is lost alone: the next question starts a new process."""

    def __init__(self) -> None:
        self.setup: Setup | None = None
        #: the device and the versions
        self.environment: dict[str, Any] = {}
        #: how often it could not be started again since :meth:`begin`
        self.failures = 0
        self._process: Child | None = None

    def begin(self, setup: Setup) -> None:
        """Switch to another graph, in the same process if one runs; raises as :meth:`start`."""
        self.setup, self.failures = setup, 0
        if self._process is not None:
            with contextlib.suppress(MemwallError):  # the last graph has broken it: a new one may do
                self._set_up()
        self.start()

    def start(self) -> None:
        """Start the process and open its device. Raises ``MissingError``: there is no such device; ``WorkerFailed``: it
        could not start."""
        if self._process is not None:
            return
        assert self.setup is not None, "begin() comes first"
        environment = timing_environment(self.setup.kind)
        self._process = Child("memwall.bench.kernels.session:Questions", environment, shown=True)
        self._set_up()

    def _set_up(self) -> None:
        try:
            answer = self._ask(START_LIMIT_S, "begin", self.setup)
            if isinstance(answer, Ran):
                raise WorkerFailed(f"the measuring process did not start: {answer.reason}")
        except MemwallError as error:
            self.stop()
            raise error if isinstance(error, MissingError) else WorkerFailed(str(error)) from None
        self.environment = answer

    def ask(self, limit_s: float, question: str, *arguments: Any) -> Any:
        """What a method of the worker's :class:`.session.Session` returns, or a :class:`Ran` that says how the answer
        was lost: also where no process could be started in place of one that ended. That is tried ``MOST_STARTS``
        times."""
        if self.failures >= MOST_STARTS:
            return Ran("skipped", "the measuring process could not be started again")
        try:
            self.start()
        except MemwallError as error:
            self.failures += 1
            return Ran("skipped", f"the measuring process could not be started again: {error}")
        answer = self._ask(limit_s, question, *arguments)
        if isinstance(answer, Ran) and answer.fatal:
            self.stop()
        return answer

    def _ask(self, limit_s: float, *question: Any) -> Any:
        assert self._process is not None
        try:
            return self._process.ask(limit_s, *question)
        except Lost as lost:
            return Ran(lost.status, str(lost), fatal=True)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()


class WorkerPool:
    """The workers of one or more measurements: one for each executor, and helpers that compile ahead. Use it in a
    ``with``: they are stopped at its end, whatever they do."""

    def __init__(self, helpers: int = 0) -> None:
        self._workers: dict[str, KernelWorker] = {}
        self._helpers = [KernelWorker() for _ in range(helpers)]

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in (*self._workers.values(), *self._helpers):
            worker.stop()

    def begin(self, executors: Sequence[str], setup: Setup) -> dict[str, KernelWorker]:
        """The worker of each executor, switched to a graph; see :meth:`KernelWorker.start`."""
        for name in executors:
            self._workers.setdefault(name, KernelWorker()).begin(setup)
        return {name: self._workers[name] for name in executors}

    def compile_ahead(self, kernels: Sequence[tuple[Setup, KernelRun]], limit_s: float, deadline: float) -> None:
        """Have the helpers compile kernels side by side, so that the workers find them in the caches on disk. Kernels
        not compiled at ``deadline`` (of :func:`time.monotonic`) are left out. The helpers are stopped at its end."""
        if not self._helpers:
            return
        waiting = deque(kernels)

        def work(helper: KernelWorker) -> None:
            with contextlib.suppress(MemwallError, IndexError):  # another took the last one
                while helper.failures < MOST_STARTS:
                    setup, kernel = waiting.popleft()
                    if helper.setup is not setup:
                        helper.begin(setup)
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        break
                    helper.ask(min(limit_s, left_s), "run", kernel)
            helper.stop()

        with ThreadPoolExecutor(len(self._helpers)) as pool:
            futures = [pool.submit(work, helper) for helper in self._helpers]
            try:
                wait(futures)
            except KeyboardInterrupt:
                waiting.clear()
                for helper in self._helpers:
                    helper.stop()
                raise
