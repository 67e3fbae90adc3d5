"""Hand-made profiler events for tests, and where the real traces lie."""

import functools
import json
from pathlib import Path
from typing import Any

from memwall.traces.reading import read_trace
from memwall.traces.records import ProfilerTrace
from tests.unit.places import shared

Event = dict[str, Any]


def real_traces() -> list[Path]:
    """The real traces, none where the folder is not here."""
    folder = shared("traces")
    return sorted(folder.glob("*.json.gz")) if folder else []


@functools.cache
def real_trace(path: Path) -> ProfilerTrace:
    """A real trace, which several tests look at."""
    return read_trace(path)


def op(name: str, ts: float, dur: float, tid: Any = 1, **args: Any) -> Event:
    """An op of the CPU; ``args`` are its arguments, blanks written as ``__``."""
    return _event("cpu_op", name, ts, dur, 10, tid, args)


def annotation(name: str, ts: float, dur: float, tid: Any = 1) -> Event:
    """A range of ``record_function``."""
    return _event("user_annotation", name, ts, dur, 10, tid, {})


def frame(name: str, ts: float, dur: float, tid: Any = 1) -> Event:
    """A Python frame or, as "nn.Module: Linear_0", a module's call."""
    return _event("python_function", name, ts, dur, 10, tid, {})


def call(name: str, ts: float, dur: float, correlation: int, tid: Any = 1, **args: Any) -> Event:
    """A call of the CUDA or HIP runtime."""
    return _event("cuda_runtime", name, ts, dur, 10, tid, {"correlation": correlation, **args})


def kernel(name: str, ts: float, dur: float, correlation: int, stream: int = 7, **args: Any) -> Event:
    """A kernel of device 0."""
    known = {"device": 0, "stream": stream, "correlation": correlation}
    return _event("kernel", name, ts, dur, 0, stream, {**known, **args})


def _event(cat: str, name: str, ts: float, dur: float, pid: Any, tid: Any, args: dict[str, Any]) -> Event:
    spelled = {key.replace("__", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": spelled}


def write(folder: Path, events: list[Event], **header: Any) -> Path:
    """A trace of these events, as ``folder/trace.json``."""
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": events}), encoding="utf-8")
    return path
