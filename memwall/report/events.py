"""The Trace Event Format, which Perfetto and chrome://tracing open: its events, and the tasks of a pipeline as such."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from memwall.record.profile import Profile
from memwall.simulate.pipeline import PipelineRun, StageTask


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
            "ph": "X",
            "pid": self.pid,
            "tid": tid,
            "name": name,
            "cat": category,
            "ts": span.start_ns / 1000,
            "dur": (span.end_ns - span.start_ns) / 1000,
            **({"args": args} if args else {}),
        }

    def arrow(self, number: int, tail: tuple[int, int], head: tuple[int, int]) -> Iterator[dict[str, Any]]:
        """From a row and its nanosecond to another."""
        for (tid, ns), end in ((tail, {"ph": "s"}), (head, {"ph": "f", "bp": "e"})):
            yield {**end, "id": number, "pid": self.pid, "tid": tid, "ts": ns / 1000, "name": "launch", "cat": "launch"}

    def counter(self, name: str, ns: int, series: dict[str, int]) -> dict[str, Any]:
        """Numbers from a moment on."""
        return {"ph": "C", "pid": self.pid, "name": name, "ts": ns / 1000, "args": series}


def written(profile: Profile, events: Iterable[dict[str, Any]]) -> str:
    """The file of some events of a profile."""
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    lines = ",\n".join(map(encode, events))
    other = encode({"workload": profile.workload.name, "modeled": f"memwall {profile.memwall_version}"})
    return f'{{"displayTimeUnit":"ns","otherData":{other},"traceEvents":[\n{lines}\n]}}\n'


def tasks(
    process: Events, name: str, run: PipelineRun, order: Iterable[StageTask], row: int
) -> Iterator[dict[str, Any]]:
    """The tasks of a rank."""
    yield from process.name("thread", name, row, row)
    for task in order:
        yield process.slice(row, str(task), task.kind, span_of(*run.span_s(task)))
