"""A worker process seen from outside: asked with a time limit, killed when it hangs, started again when it dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from memwall.bench.kernels.messages import Ran, Rest, Run, Setup, Started
from memwall.core.errors import MemwallError, MissingError

#: seconds that a worker may take to import torch and open its device
START_LIMIT_S = 180.0
#: how often a worker that cannot be started again is tried, with one kernel lost each time
MOST_STARTS = 2

#: fresh memory would be paid for with a page fault at every call: glibc is told to keep it
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_TOP_PAD_": str(1 << 28)}
#: torch.compile starts a pool of compilers in every process; here the processes themselves are the pool
COMPILERS = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class WorkerFailed(MemwallError):
    """The worker could not be started."""


class Worker:
    """One process that runs kernels, started when it is first asked.

    A kernel that takes it down or keeps it longer than its time limit is lost alone: the next question starts a new
    process.
    """

    def __init__(self, setup: Setup | None = None) -> None:
        self.setup = setup
        self.environment: dict[str, Any] = {}
        #: how often it could not be started again since :meth:`begin`
        self._failures = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection[Any, Any] | None = None

    @property
    def pid(self) -> int | None:
        """The process, where one runs."""
        return None if self._process is None else self._process.pid

    @property
    def is_given_up(self) -> bool:
        """Whether it could not be started again so often that it is not tried any more."""
        return self._failures >= MOST_STARTS

    def begin(self, setup: Setup) -> None:
        """Turn to another graph, in the same process where one runs.

        Raises:
            MissingError, WorkerFailed: as :meth:`start`.
        """
        self.setup = setup
        self._failures = 0
        if self._process is not None:
            with contextlib.suppress(MemwallError):  # the last graph has broken it: a new one may do
                self._set_up(self._ask(setup, START_LIMIT_S))
        self.start()

    def start(self) -> None:
        """Start the process and open its device.

        Raises:
            MissingError: there is no such device.
            WorkerFailed: it could not start.
        """
        if self._process is not None:
            return
        assert self.setup is not None, "begin() comes first"
        ours, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-m", "memwall.bench.kernels.worker", str(theirs.fileno()), str(os.getpid())]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=worker_environment(self.setup.kind), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=sys.stderr if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
        )  # fmt: skip
        theirs.close()
        self._pipe = ours
        self._set_up(self._ask(self.setup, START_LIMIT_S))

    def _set_up(self, answer: Any) -> None:
        if isinstance(answer, Started) and not answer.error:
            self.environment = dict(answer.environment)
            return
        self.stop()
        if isinstance(answer, Started):
            raise (MissingError if answer.missing else WorkerFailed)(answer.error)
        raise WorkerFailed(f"the measuring process did not start: {answer.reason}")

    def ask(self, question: Any, limit_s: float) -> Any:
        """The answer to a question: what the worker sends, or a :class:`Ran` that says how it was lost: also where no
        process could be started in place of one that ended. That is tried ``MOST_STARTS`` times."""
        if self.is_given_up:
            return Ran("skipped", "the measuring process could not be started again")
        try:
            self.start()
        except MemwallError as error:
            self._failures += 1
            return Ran("skipped", f"the measuring process could not be started again: {error}")
        answer = self._ask(question, limit_s)
        if isinstance(answer, Ran) and answer.fatal:
            self.stop()
        return answer

    def _ask(self, question: Any, limit_s: float) -> Any:
        pipe = self._pipe
        assert pipe is not None
        try:
            pipe.send(question)
            if not pipe.poll(limit_s):
                return Ran("timeout", f"took longer than its limit of {limit_s:.0f} s", fatal=True)
            return pipe.recv()
        except (EOFError, OSError):
            return Ran(*self._obituary(), fatal=True)

    def _obituary(self) -> tuple[str, str]:
        """Status and reason of a worker that is gone."""
        process = self._process
        if process is None:
            return "failed", "the process was stopped"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        code = process.returncode
        if code == -signal.SIGKILL:
            return "out of memory", "the system killed the process, as it does when memory runs out"
        if code is not None and code < 0:
            return "failed", f"the process crashed: {signal.Signals(-code).name}"
        return "failed", f"the process ended with exit code {code}"

    def stop(self) -> None:
        """End the process, whatever it does."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if pipe is not None:
            pipe.close()
        if process is not None:
            process.kill()
            process.wait()


class Crew:
    """The workers of one or more measurements: one for each executor, and helpers that compile ahead. Use it in a
    ``with``: they are stopped at its end, whatever they do."""

    def __init__(self, helpers: int = 0) -> None:
        self._workers: dict[str, Worker] = {}
        self._helpers = [Worker() for _ in range(helpers)]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in (*self._workers.values(), *self._helpers):
            worker.stop()

    def begin(self, executors: Sequence[str], setup: Setup) -> dict[str, Worker]:
        """The worker of each executor, turned to a graph.

        Raises:
            MissingError, WorkerFailed: as :meth:`Worker.start`.
        """
        for name in executors:
            self._workers.setdefault(name, Worker()).begin(setup)
        return {name: self._workers[name] for name in executors}

    def compile_ahead(self, setup: Setup, questions: Sequence[Run], limit_s: float, deadline: float) -> None:
        """Have the helpers compile kernels side by side, so that the workers find them in the caches on disk.

        One that fails here fails again where it counts. What is not begun at ``deadline`` (of :func:`time.monotonic`)
        is left out.
        """
        if not self._helpers:
            return
        waiting = deque(questions)

        def work(helper: Worker) -> None:
            with contextlib.suppress(MemwallError):
                helper.begin(setup)
                while waiting and not helper.is_given_up and time.monotonic() < deadline:
                    with contextlib.suppress(IndexError):  # another took the last one
                        helper.ask(waiting.popleft(), limit_s)
                helper.ask(Rest(), limit_s)

        with ThreadPoolExecutor(len(self._helpers)) as pool:
            futures = [pool.submit(work, helper) for helper in self._helpers]
            try:
                wait(futures)
            except KeyboardInterrupt:
                waiting.clear()
                for helper in self._helpers:
                    helper.stop()
                raise


def worker_environment(kind: str) -> dict[str, str]:
    """The environment variables of a worker: this package is found, and memory behaves (on the CPU)."""
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    fixed = {**MALLOC, **ONE_THREAD} if kind == "cpu" else {}
    return {**COMPILERS, **os.environ, **fixed, "PYTHONPATH": path}


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
