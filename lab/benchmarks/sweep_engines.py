"""What engines of sweeps cost: seconds until the first task is done, seconds of an empty task, and of 204,800 points.

    python lab/benchmarks/sweep_engines.py [POINTS_WORKERS...]

Empty tasks run on 1, 2, 4 and 8 processes, of the pool and of a Dask cluster on this machine; the points of
``sweep_speed.py`` with four times as many contexts, whose traces are in the cache, on so many (default 2), the engines
in turn, three times, with the CPU that all processes take from the first task to the last, which other jobs change less
than seconds; 0 leaves out the empty tasks.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from benchmarks.sweep_speed import MODELS, VARY  # noqa: E402
from memwall.points import Task  # noqa: E402
from memwall.sweeping.axes import Space, axes_of  # noqa: E402
from memwall.sweeping.engines import Done, on_dask, pool  # noqa: E402
from memwall.sweeping.kinds import KINDS, evaluate  # noqa: E402
from memwall.sweeping.run import Question, _frame, _ids, _tasks  # noqa: E402
from memwall.trace_cache import Traces, trace_folder  # noqa: E402

EMPTY = 2000
LARGE = {**VARY, "context": list(range(512, 20_481, 512))}
WORKERS = (1, 2, 4, 8)


def timed(done: Done, count: int = 0) -> tuple[float, float, float, int, float]:
    """Seconds until the first task is done, from there to the last, to the end, the rows, and seconds of CPU from the
    first task to the last of ``count``."""
    start_s = time.monotonic()
    rows = len(next(done)[1])
    first_s = last_s = time.monotonic()
    first_cpu_s = last_cpu_s = cpu_s() if count else 0.0
    for number, (_, made) in enumerate(done, 2):
        rows += len(made)
        last_s = time.monotonic()
        if number == count:
            last_cpu_s = cpu_s()
    return first_s - start_s, last_s - first_s, time.monotonic() - last_s, rows, last_cpu_s - first_cpu_s


def cpu_s() -> float:
    """Seconds of CPU of this process and of all that it has started."""
    import psutil

    own = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (own, *own.children(recursive=True)))


def engines(tasks: Sequence[Task], workers: int) -> dict[str, Any]:
    folder = trace_folder()
    return {"pool": lambda: pool(tasks, folder, workers), "dask": lambda: on_dask(tasks, folder, workers, None)}


def started(tasks: Sequence[Task], workers: int) -> Done:
    """On a cluster whose workers run already and have imported memwall, and priced nothing."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0", host="127.0.0.1") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.run(importlib.import_module, "memwall.sweeping.engines")
        yield from on_dask(tasks, trace_folder(), None, cluster.scheduler_address)


def resident_bytes() -> int:
    import psutil

    found: int = psutil.Process().memory_info().rss
    return found


def empty_tasks() -> None:
    tasks = [Task(kind="decode", target="hf:nothing", points=()) for _ in range(EMPTY)]
    print(f"{EMPTY:,} empty tasks: workers, engine, s until the first, us of each further one, tasks/s")
    for workers in WORKERS:
        for name, run in engines(tasks, workers).items():
            first_s, rest_s, *_ = timed(run())
            print(f"{workers}  {name}  {first_s:.2f}  {rest_s / EMPTY * 1e6:,.0f}  {EMPTY / rest_s:,.0f}", flush=True)


def points(workers: int, targets: Sequence[str]) -> None:
    question, empty_bytes = Question(kind=KINDS["decode"]), resident_bytes()
    start_s = time.process_time()
    listed = [(target, point) for target in targets for point in Space(target, axes_of(LARGE)).points()]
    ids = _ids(listed, question)
    tasks, places = _tasks(range(len(listed)), listed, question)
    before_s, listed_bytes = time.process_time() - start_s, resident_bytes() - empty_bytes
    print(f"{len(listed):,} points, {len(tasks)} tasks, {workers} workers: s until the first, of the others, to close,"
          " and of CPU for the others")  # fmt: skip
    every = engines(tasks, workers) | {"dask, running": lambda: started(tasks, workers)}
    for _ in range(3):
        for name, run in every.items():
            first_s, rest_s, end_s, count, used_s = timed(run(), len(tasks))
            assert count == len(listed)
            print(f"{name}  {first_s:.2f}  {rest_s:.2f}  {end_s:.2f}  {used_s:.2f}", flush=True)
    traces = Traces(trace_folder())
    start_s = time.process_time()
    made = [evaluate(task, traces) for task in tasks]
    alone_s = time.process_time() - start_s
    rows: list[Any] = [""] * len(listed)
    before_bytes = resident_bytes()
    start_s = time.process_time()
    for own, some in zip(places, made, strict=True):
        for place, row in zip(own, some, strict=True):
            rows[place] = row
    _frame(listed, ids, rows, list(LARGE), question.kind)
    after_s = time.process_time() - start_s
    count = len(listed)
    print(f"us of CPU a point: {alone_s / count * 1e6:.0f} to evaluate; of the sweep's own process"
          f" {before_s / count * 1e6:.0f} before, {after_s / count * 1e6:.0f} after")  # fmt: skip
    kept_bytes = listed_bytes + resident_bytes() - before_bytes + sum(map(sizes, rows))
    print(f"memory of the sweep's own process: {kept_bytes / count:,.0f} bytes a point")


def sizes(row: Any) -> int:
    return sys.getsizeof(row) + sum(map(sys.getsizeof, row))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MEMWALL_CACHE"] = folder
        targets = []
        for name, config in MODELS.items():
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
            targets.append(f"hf:{Path(folder) / name}")
        counts = [*map(int, sys.argv[1:])] or [2]
        if 0 not in counts:
            empty_tasks()
        traces = Traces(trace_folder())
        for target in targets:
            traces.model(target)
        for workers in filter(None, counts):
            points(workers, targets)


if __name__ == "__main__":  # workers of Dask import this file
    main()
