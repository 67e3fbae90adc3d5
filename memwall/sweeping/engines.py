"""Where tasks run: in this process, in a pool of processes, or on a Dask cluster. All yield the same rows."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import pickle
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError, message_of, need
from memwall.core.process import Child, Lost, environment
from memwall.core.progress import tell
from memwall.core.scratch import scratch
from memwall.points import Row, Task
from memwall.sweeping.kinds import KINDS, evaluate
from memwall.trace_cache import Traces

#: number of a task, its rows
Done = Iterator[tuple[int, list[Row]]]
#: tasks that a Dask cluster has at once, and seconds in which its scheduler answers
_AHEAD, _ANSWERS_S = 256, 10
#: addresses of schedulers that ask for a key
_ENCRYPTED = ("tls://", "wss://")
#: of a cluster here: workers do not profile themselves and seldom look at their memory and the time, which took a tenth
#: of it where cores are shared; they have tasks before they ask, keep freed memory, and may take long to start again
_SETTINGS = {
    "distributed.admin.tick.interval": "1s", "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.memory.monitor-interval": "1s",
    "distributed.worker.profile.enabled": False, "distributed.scheduler.worker-saturation": "inf",
    "distributed.nanny.pre-spawn-environ": {"OMP_NUM_THREADS": 1}, "distributed.deploy.lost-worker-timeout": "60s",
}  # fmt: skip
#: how often a cluster here is asked for workers in the place of workers that it has given up
_RENEWED_MS = 5000
#: how often a task is tried whose process dies, by the system's hand or the model's
_TRIES = 3


def here(tasks: Sequence[Task], folder: Path | None) -> Done:
    """One after another in this process."""
    traces = Traces(folder)
    for number, task in enumerate(tasks):
        yield number, evaluate(task, traces)


class SweepWorker:
    """What a process of a sweep runs: tasks, with the traces of tasks before them."""

    def __init__(self) -> None:
        self._traces: dict[Path | None, Traces] = {}

    def __call__(self, task: Task, folder: Path | None) -> list[Row]:
        traces = self._traces.setdefault(folder, Traces(folder))
        known = len(traces)
        rows = evaluate(task, traces)
        if len(traces) > known:  # what a trace leaves is looked through once, and what is kept no more
            gc.collect()
            gc.freeze()
        return rows


def pool(tasks: Sequence[Task], folder: Path | None, workers: int) -> Done:
    """In so many processes; a task whose process dies is tried again in another, and a few deaths are its rows."""
    waiting = deque((number, 1) for number in range(len(tasks)))
    idle: list[Child] = []
    busy: dict[Any, tuple[int, int]] = {}  # by its process
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                number, tries = waiting.popleft()
                child = idle.pop() if idle else Child(SweepWorker, environment(), shown=True)
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
    """On the workers of a Dask scheduler; without one, on a cluster of processes of this machine that nobody else can
    talk to. Workers on other machines need memwall and the targets' files at the same paths.

    Raises:
        MissingError: Dask is not installed.
        UsageError: no scheduler answers, or it is lost.
    """
    distributed: Any = need("distributed", "dask")
    if scheduler and not scheduler.startswith(_ENCRYPTED):
        tell(
            f"the Dask scheduler {scheduler} is not encrypted: whoever reaches its port can run code as you, here and"
            " on its workers; a tls:// address with keys (distributed.comm.tls of its settings) lets nobody else in"
        )
    with ExitStack() as stack:
        _silence(stack)
        client = _client(distributed, workers or os.cpu_count() or 1, scheduler, stack)
        send = partial(client.map, _on_worker, folder=folder, pure=False, retries=_TRIES - 1, batch_size=_AHEAD)
        numbers: dict[Any, int] = {}
        waiting, lost = iter(range(len(tasks))), list[int]()
        done = distributed.as_completed(loop=client.loop)
        stack.callback(lambda: client.cancel(list(numbers)) if client.status == "running" else None)
        finished: list[Any] = [None] * _AHEAD
        while finished:
            more = list(islice(waiting, len(finished)))
            futures = send([pickle.dumps(tasks[number], 5) for number in more]) if more else []
            numbers.update(zip(futures, more, strict=True))
            done.update(futures)
            finished = done.next_batch() if numbers else []
            states = defaultdict[str, list[Any]](list)
            for future in finished:
                states[future.status].append(future)
            if states.pop("cancelled", []):
                raise _gone(scheduler)
            lost += map(numbers.pop, states.pop("error", []))
            good = states.pop("finished", [])
            done.update(chain(*states.values()))  # results that went with their worker are made again
            try:
                results = client.gather(good)
            except (CancelledError, OSError):  # it was lost after it had said that they are finished
                raise _gone(scheduler) from None
            yield from zip(map(numbers.pop, good), map(pickle.loads, results), strict=True)
        for number in sorted(lost):  # its worker died, perhaps by another task that it had
            (future,) = send([pickle.dumps(tasks[number], 5)])
            error = future.exception()
            said = f"no Dask worker survived it: {type(error).__name__}"
            yield number, pickle.loads(future.result()) if error is None else [said] * len(tasks[number].points)


def _silence(stack: ExitStack) -> None:
    """What Dask logs where it is lost, tracebacks among it, says less than the line that memwall ends with."""
    for name in [*logging.root.manager.loggerDict]:
        if name.partition(".")[0] in ("distributed", "tornado", "asyncio"):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL + 1)


def _gone(scheduler: str | None) -> UsageError:
    return UsageError(
        f"the Dask scheduler {scheduler or ''} is lost; with --keep FOLDER the finished points are there, and --resume"
        " evaluates the others"
    )


def _client(distributed: Any, workers: int, scheduler: str | None, stack: ExitStack) -> Any:
    """A client of the scheduler, or of a cluster here."""
    if scheduler is None:
        dask: Any = need("dask", "dask")
        stack.enter_context(dask.config.set(_SETTINGS))
        need("cryptography", "dask")
        from memwall.sweeping.dask_cluster import cluster as cluster_of

        cluster = stack.enter_context(cluster_of(workers, str(stack.enter_context(scratch("dask")))))
        client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
        loops: Any = need("tornado.ioloop", "dask")
        renewing = loops.PeriodicCallback(partial(cluster.scale, workers), _RENEWED_MS)
        client.loop.add_callback(renewing.start)
        stack.callback(client.loop.add_callback, renewing.stop)
        client.run(atexit.register, os._exit, 0)  # a worker would take seconds to free its traces one by one
        return client
    try:
        return stack.enter_context(distributed.Client(scheduler, set_as_default=False, timeout=_ANSWERS_S))
    except (OSError, ValueError) as error:
        raise UsageError(f"no Dask scheduler answers at {scheduler}: {message_of(error)}") from None


_worker: Callable[[Task, Path | None], list[Row]] | None = None


def _on_worker(packed: bytes, folder: Path | None) -> bytes:
    """A task on a Dask worker, which keeps its traces. Both ways go bytes: Dask looks through any other object, which
    takes it tens of milliseconds for one of thousands of points."""
    global _worker
    _worker = _worker or SweepWorker()
    return pickle.dumps(_worker(pickle.loads(packed), folder), 5)
