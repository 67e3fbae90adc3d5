"""Where tasks run: in this process, in a pool of processes, or on a Dask cluster. All yield the same rows."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from memwall.core.errors import need
from memwall.core.process import Child, Lost, environment
from memwall.sweeping.kinds import KINDS, Row, Task, evaluate
from memwall.sweeping.traces import Traces

#: number of a task, its rows
Done = Iterator[tuple[int, list[Row]]]
#: how often a task is tried whose process dies, by the system's hand or the model's
_TRIES = 3


def here(tasks: Sequence[Task], folder: Path | None) -> Done:
    """One after another in this process."""
    traces = Traces(folder)
    for number, task in enumerate(tasks):
        yield number, evaluate(task, traces)


class Worker:
    """What a process of a pool runs: tasks, with the traces of those before them."""

    def __init__(self) -> None:
        self._traces: dict[Path | None, Traces] = {}

    def __call__(self, task: Task, folder: Path | None) -> list[Row]:
        return evaluate(task, self._traces.setdefault(folder, Traces(folder)))


def pool(tasks: Sequence[Task], folder: Path | None, workers: int) -> Done:
    """In so many processes; a task whose process dies is tried again in another, and a few deaths are its rows."""
    waiting = deque((number, 1) for number in range(len(tasks)))
    idle: list[Child] = []
    busy: dict[Any, tuple[int, int]] = {}  # by its process
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                number, tries = waiting.popleft()
                child = idle.pop() if idle else Child(f"{__name__}:Worker", environment(), shown=True)
                busy[child] = number, tries
                child.send(tasks[number], folder)
            done = wait([*busy])
            for child in [child for child in busy if child in done]:
                number, tries = busy.pop(child)
                try:
                    yield number, child.receive(None)
                    idle.append(child)
                except Lost as lost:
                    child.stop()
                    if tries < _TRIES:
                        waiting.append((number, tries + 1))
                    else:
                        yield number, [f"{lost}, {tries} times"] * len(tasks[number].points)
    finally:
        for child in (*busy, *idle):
            child.stop()


def local(tasks: Sequence[Task], folder: Path | None, workers: int | None) -> Done:
    """In this process where one trace serves all, or ``workers`` is 0; else in a pool of processes, as many as there
    are cores unless a number is named."""
    several = len({(task.target, *_trace_of(task)) for task in tasks}) > 1
    count = (os.cpu_count() or 1) * several if workers is None else workers
    if count < (2 if workers is None else 1):
        return here(tasks, folder)
    return pool(tasks, folder, count)


def _trace_of(task: Task) -> tuple[Any, ...]:
    return KINDS[task.kind].trace_key(task.points[0])


def on_dask(tasks: Sequence[Task], folder: Path | None, workers: int | None, scheduler: str | None) -> Done:
    """On the workers of a Dask scheduler; without one, on a cluster of processes of this machine. Workers on other
    machines need memwall and the targets' files at the same paths.

    Raises:
        MissingError: Dask is not installed.
    """
    distributed: Any = need("distributed", "dask")
    count = workers or os.cpu_count() or 1
    options = {"n_workers": count, "threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
    cluster = None if scheduler else distributed.LocalCluster(**options)
    with distributed.Client(scheduler or cluster, set_as_default=False) as client:
        send = lambda task: client.submit(_on_worker, task, folder, pure=False, retries=_TRIES - 1)  # noqa: E731
        futures = {send(task): number for number, task in enumerate(tasks)}
        lost: list[int] = []
        try:
            for future in distributed.as_completed(futures, loop=client.loop):
                if future.exception() is None:
                    yield futures[future], future.result()
                else:  # its worker died, perhaps by another task that it had
                    lost.append(futures[future])
                future.release()
            for number in sorted(lost):
                future = send(tasks[number])
                error = future.exception()
                said = f"no Dask worker survived it: {type(error).__name__}"
                yield number, future.result() if error is None else [said] * len(tasks[number].points)
        finally:
            client.cancel(list(futures))
            if cluster is not None:
                cluster.close()


_worker: Callable[[Task, Path | None], list[Row]] | None = None


def _on_worker(task: Task, folder: Path | None) -> list[Row]:
    """A task on a Dask worker, which keeps its traces."""
    global _worker
    _worker = _worker or Worker()
    return _worker(task, folder)
