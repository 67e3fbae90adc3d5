"""The Trace Event Format, which Perfetto and chrome://tracing open: its events, and the tasks of a pipeline as such."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from memwall.record.profile import Profile
from memwall.simulate.pipeline import PipelineRun, Task
from memwall.simulate.training import TrainingStep


class Span(NamedTuple):
    """Nanoseconds from the start of the step."""

    start_ns: int
    end_ns: int


def span_of(start_s: float, end_s: float) -> Span:
    """Rounding keeps the order of times, so what did not overlap does not."""
    return Span(round(start_s * 1e9), round(end_s * 1e9))


@dataclass(frozen=True, slots=True)
class Events:
    """Makes the events of the process that is number ``pid``."""

    pid: int

    def name(self, kind: str, name: str, place: int, tid: int | None = None) -> Iterator[dict[str, Any]]:
        """What a ``process`` or ``thread`` is called, and its place among the others."""
        of = {"ph": "M", "pid": self.pid} | ({} if tid is None else {"tid": tid})
        yield {**of, "name": f"{kind}_name", "args": {"name": name}}
        yield {**of, "name": f"{kind}_sort_index", "args": {"sort_index": place}}

    def slice(self, tid: int, name: str, category: str, span: Span, **args: Any) -> dict[str, Any]:
        """Something that lasts, in a row."""
        return {
            "ph": "X", "pid": self.pid, "tid": tid, "name": name, "cat": category, "ts": span.start_ns / 1000,
            "dur": (span.end_ns - span.start_ns) / 1000, **({"args": args} if args else {})}  # fmt: skip

    def arrow(self, number: int, tail: tuple[int, int], head: tuple[int, int]) -> Iterator[dict[str, Any]]:
        """From a row and its nanosecond to another."""
        for (tid, ns), end in ((tail, {"ph": "s"}), (head, {"ph": "f", "bp": "e"})):
            yield {
                **end, "id": number, "pid": self.pid, "tid": tid, "ts": ns / 1000, "name": "launch", "cat": "launch",
            }  # fmt: skip

    def counter(self, name: str, ns: int, series: dict[str, int]) -> dict[str, Any]:
        """Numbers from a moment on."""
        return {"ph": "C", "pid": self.pid, "name": name, "ts": ns / 1000, "args": series}


def written(profile: Profile, events: Iterable[dict[str, Any]]) -> str:
    """The file of some events of a profile."""
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    lines = ",\n".join(map(encode, events))
    other = encode({"workload": profile.workload.name, "modeled": f"memwall {profile.memwall_version}"})
    return f'{{"displayTimeUnit":"ns","otherData":{other},"traceEvents":[\n{lines}\n]}}\n'


def render_stages(profile: Profile, step: TrainingStep) -> str:
    """A step under a layout: two rows for each stage, what it computes and what it sends. ``profile``: of its rank."""
    return written(profile, _stages(step))


def tasks(process: Events, name: str, run: PipelineRun, order: Iterable[Task], row: int) -> Iterator[dict[str, Any]]:
    """The tasks of a rank."""
    yield from process.name("thread", name, row, row)
    for task in order:
        yield process.slice(row, str(task), task.kind, span_of(*run.span_s(task)))


def _sends(process: Events, name: str, run: PipelineRun, order: Iterable[Task], row: int) -> Iterator[dict[str, Any]]:
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
