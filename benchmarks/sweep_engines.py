"""What engines of sweeps cost: seconds until the first task is done, seconds of an empty task, and of 51,200 points.

    python benchmarks/sweep_engines.py [POINTS_WORKERS...]

Empty tasks run on 1, 2, 4 and 8 processes, of the pool and of a Dask cluster on this machine; the points of
``sweep_speed.py``, whose traces are in the cache, on so many (default 2), the engines in turn, three times.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.sweep_speed import MODELS, VARY  # noqa: E402
from memwall.analysis.sweep.axes import Space, axes_of  # noqa: E402
from memwall.sweeping.engines import Done, on_dask, pool  # noqa: E402
from memwall.sweeping.kinds import KINDS, Task, evaluate  # noqa: E402
from memwall.sweeping.run import Question, _frame, _ids, _tasks  # noqa: E402
from memwall.sweeping.traces import Traces, trace_folder  # noqa: E402

EMPTY = 2000
WORKERS = (1, 2, 4, 8)


def timed(done: Done) -> tuple[float, float, float, int]:
    """Seconds until the first task is done, from there to the last, to the end, and the rows."""
    start_s = time.monotonic()
    rows = len(next(done)[1])
    first_s = last_s = time.monotonic()
    for _, made in done:
        rows += len(made)
        last_s = time.monotonic()
    return first_s - start_s, last_s - first_s, time.monotonic() - last_s, rows


def engines(tasks: Sequence[Task], workers: int) -> dict[str, Any]:
    folder = trace_folder()
    return {"pool": lambda: pool(tasks, folder, workers), "dask": lambda: on_dask(tasks, folder, workers, None)}


def running(tasks: Sequence[Task], workers: int) -> dict[str, Any]:
    """A cluster that runs already, whose workers have been used."""
    from distributed import LocalCluster

    cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, host="127.0.0.1")
    run = lambda: on_dask(tasks, trace_folder(), None, cluster.scheduler_address)  # noqa: E731
    timed(run())
    return {"dask, running": run}


def empty_tasks() -> None:
    tasks = [Task(kind="decode", target="hf:nothing", points=()) for _ in range(EMPTY)]
    print(f"{EMPTY:,} empty tasks: workers, engine, s until the first, us of each further one, tasks/s")
    for workers in WORKERS:
        for name, run in engines(tasks, workers).items():
            first_s, rest_s, *_ = timed(run())
            print(f"{workers}  {name}  {first_s:.2f}  {rest_s / EMPTY * 1e6:,.0f}  {EMPTY / rest_s:,.0f}", flush=True)


def points(workers: int, targets: Sequence[str]) -> None:
    question = Question(kind=KINDS["decode"])
    start_s = time.process_time()
    listed = [(target, point) for target in targets for point in Space(target, axes_of(VARY)).points()]
    ids = _ids(listed, question)
    tasks, places = _tasks(range(len(listed)), listed, question)
    before_s = time.process_time() - start_s
    print(f"{len(listed):,} points, {len(tasks)} tasks, {workers} workers: s until the first, of the others, to close")
    every = engines(tasks, workers) | running(tasks, workers)
    for _ in range(3):
        for name, run in every.items():
            first_s, rest_s, end_s, count = timed(run())
            assert count == len(listed)
            print(f"{name}  {first_s:.2f}  {rest_s:.2f}  {end_s:.2f}", flush=True)
    traces = Traces(trace_folder())
    start_s = time.process_time()
    made = [evaluate(task, traces) for task in tasks]
    alone_s = time.process_time() - start_s
    rows: list[Any] = [""] * len(listed)
    start_s = time.process_time()
    for own, some in zip(places, made, strict=True):
        for place, row in zip(own, some, strict=True):
            rows[place] = row
    _frame(listed, ids, rows, list(VARY), question.kind)
    after_s = time.process_time() - start_s
    count = len(listed)
    print(f"us of CPU a point: {alone_s / count * 1e6:.0f} to evaluate; of the sweep's own process"
          f" {before_s / count * 1e6:.0f} before, {after_s / count * 1e6:.0f} after")  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak resident memory of this process: {peak / 2**20:,.0f} MiB, {peak / count:,.0f} bytes a point")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MEMWALL_CACHE"] = folder
        targets = []
        for name, config in MODELS.items():
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
            targets.append(f"hf:{Path(folder) / name}")
        empty_tasks()
        traces = Traces(trace_folder())
        for target in targets:
            traces.model(target)
        for workers in map(int, sys.argv[1:] or ["2"]):
            points(workers, targets)


if __name__ == "__main__":  # workers of Dask import this file
    main()
