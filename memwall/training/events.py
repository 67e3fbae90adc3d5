"""A training step under a layout in the Trace Event Format: two rows for each stage, and the end of the step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from memwall.record.profile import Profile
from memwall.report.events import Events, span_of, tasks, written
from memwall.simulate.pipeline import PipelineRun, StageTask
from memwall.training.step import TrainingStep


def render_stages(profile: Profile, step: TrainingStep) -> str:
    """A step under a layout: two rows for each stage, what it computes and what it sends. ``profile``: of its rank."""
    return written(profile, _stages(step))


def _sends(
    process: Events, name: str, run: PipelineRun, order: Iterable[StageTask], row: int
) -> Iterator[dict[str, Any]]:
    """What the tasks of a rank hand on, one after another."""
    yield from process.name("thread", name, row, row)
    free_s = 0.0
    for task in order:
        if sent_s := run.sent_s(task):
            begin_s = max(free_s, run.ends[task])
            free_s = begin_s + sent_s
            yield process.slice(row, f"result of {task}", "send", span_of(begin_s, free_s))


def _stages(step: TrainingStep) -> Iterator[dict[str, Any]]:
    """A stage's tasks and its sends, a row each; in the last one what comes after them."""
    run, process = step.pipeline, Events(1)
    ranks = len(run.busy_s)
    yield from process.name("process", f"{step.layout} on {step.cluster.name} (modeled)", process.pid)
    for rank in range(ranks):
        order = sorted((task for task in run.ends if task.stage % ranks == rank), key=run.span_s)
        yield from tasks(process, f"stage {rank}", run, order, 2 * rank + 2)
        if ranks > 1:
            yield from _sends(process, f"stage {rank}: sends", run, order, 2 * rank + 3)
    last, now_s = 2 * ranks + 2, run.time_s
    yield from process.name("thread", "all", last, last)
    for name, seconds in (("exposed messages between replicas", step.exposed_s), ("optimizer", step.optimizer_s)):
        yield process.slice(last, name, "step", span_of(now_s, now_s + seconds))
        now_s += seconds
