"""Events of XLA's profiler in the words of Kineto's, so that what reads these reads both.

Of a GPU the streams count (``Stream #13(Compute)``), of a TPU the lane ``XLA Ops``, in which loops, branches and calls
lie around what they run and are left out; of the host the calls of the driver, the steps and what a thread runs. Lanes
that XLA derives from these are skipped. The fields are as in ``cupti_collector.cc``, ``xplane_schema.cc`` and
``xplane_to_trace_events.cc`` of XLA; of ``.trace.json`` all values are texts.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from memwall.traces.events import Recording
from memwall.traces.values import time_us
from memwall.traces.xla.space import XEvent, XLine, XPlane

_DEVICE = re.compile(r"/device:(GPU|TPU):(\d+)$")
_SPARSE_CORE = re.compile(r"/device:TPU:\d+ SparseCore")
_HOST = re.compile(r"/host:(CPU|CUPTI|ROCTRACER)$")
_STREAM = re.compile(r"Stream #(\d+)")
#: kind of device, and lane → what its events are; a GPU's other lanes are derived from its streams
_LANES: Mapping[tuple[str, str], str] = {
    ("TPU", "XLA Ops"): "ops", ("TPU", "XLA Modules"): "modules", ("TPU", "Steps"): "steps", ("GPU", "Steps"): "steps",
}  # fmt: skip
#: what a trace says of an event → its name in Kineto's words
_SAID: Mapping[str, str] = {
    "hlo_op": "hlo op", "hlo_module": "hlo module", "program_id": "program id", "name": "op name", "tf_op": "tf op",
    "hlo_category": "hlo category", "long_name": "long name", "flops": "xla flops", "model_flops": "model flops",
    "bytes_accessed": "bytes accessed", "correlation_id": "correlation", "source": "xla source",
}  # fmt: skip
#: rows of a GPU that are no work
_NO_WORK = ("MemoryAlloc", "MemFree", "MemoryFree", "MemoryResidency", "CUPTI", "Overhead", "NVTX:")
_SIZES = re.compile(r"(grid|block):(\d+),(\d+),(\d+)")
_BYTES = re.compile(r"\b(?:size|num_bytes):(\d+)")
#: what a host's thread does that says nothing of the program: Python's own frames, locks, thread pools
_NOISE = ("$", "MutexLock", "ThreadpoolListener", "end: ")
#: instructions of a TPU that other instructions run in, halves of what runs aside, messages
_AROUND = re.compile(r"(?:while|conditional|call)(?:\.\d+)*$")
_HALF = re.compile(r".*-(?:start|done|update)(?:\.\d+)*$")
_MESSAGE = re.compile(r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-\w+)(?:-start|-done)?(?:\.\d+)*$")


class XLane(NamedTuple):
    """What a line holds (``stream``, ``ops``, ``modules``, ``steps``, ``host``), of which device, and its number."""

    holds: str
    device: int = -1
    number: int = 0


@lru_cache(maxsize=1 << 14)
def lane_of(plane: str, line: str) -> XLane | None:
    """What a line holds; None for a line that memwall does not read."""
    if _HOST.match(plane):
        return XLane("host")
    if _SPARSE_CORE.match(plane):
        return XLane("sparse")
    device = _DEVICE.match(plane)
    if device is None:
        return None
    stream = _STREAM.match(line)
    if stream is not None:
        return XLane("stream", int(device[2]), int(stream[1]))
    holds = _LANES.get((device[1], line))
    return XLane(holds, int(device[2])) if holds else None


class ModuleRuns:
    """When programs ran on a device: begins, ends, and their names, ``jit_step(123)``."""

    def __init__(self) -> None:
        self.start_us, self.end_us = array("d"), array("d")
        self.names: list[str] = []


class XlaLanes:
    """Takes events of XLA's profiler and hands them on to a recording."""

    def __init__(self) -> None:
        self.recording = Recording()
        #: device → runs of programs on it, where a lane has them
        self.runs: dict[int, ModuleRuns] = {}
        #: whether instructions ran on the host
        self.ran_on_host = False
        self._events = 0
        self._steps: list[tuple[str, float, float]] = []
        self._processes: dict[object, str] = {}
        self._threads: dict[tuple[object, object], str] = {}

    # -- the two formats

    def keep(self, event: dict[str, Any]) -> None:
        """Take an event of ``.trace.json``."""
        phase, name, process = event.get("ph"), event.get("name"), str(event.get("pid"))
        arguments = event.get("args")
        said = arguments if isinstance(arguments, dict) else {}
        if phase == "M" and name == "process_name":
            self._processes[process] = str(said.get("name", ""))
        elif phase == "M" and name == "thread_name":
            self._threads[process, str(event.get("tid"))] = str(said.get("name", ""))
        elif phase == "X":
            line = self._threads.get((process, str(event.get("tid"))), "")
            lane = lane_of(self._processes.get(process, ""), line)
            if lane is not None:
                self._take(lane, event, said)
        self._events += 1

    def keep_plane(self, plane: XPlane) -> None:
        """Take the events of a plane of an XSpace."""
        for line in plane.lines():
            lane = lane_of(plane.name, line.name)
            if lane is None:
                continue
            for event in plane.events(line):
                self._keep_event(plane, line, event, lane)
                self._events += 1

    def _keep_event(self, plane: XPlane, line: XLine, event: XEvent, lane: XLane) -> None:
        if lane.holds == "host" and event.kind.name.startswith(_NOISE):
            return
        said = {**event.kind.stats, **plane.values(event.own)}
        if event.kind.long_name:
            said["long_name"] = event.kind.long_name
        thread = f"{line.name or line.number}"
        whole = {"name": event.kind.name, "ts": event.start_us, "dur": event.dur_us, "pid": plane.name, "tid": thread}
        self._take(lane, whole, said)

    # -- what is taken of an event

    def _take(self, lane: XLane, event: dict[str, Any], said: Mapping[str, Any]) -> None:
        _KEEP[lane.holds](self, lane, event, said)

    def _hand_on(self, category: str, event: Mapping[str, Any], arguments: Mapping[str, Any], **other: Any) -> None:
        self.recording.keep({**event, "ph": "X", "cat": category, "args": arguments, **other})

    def _stream(self, lane: XLane, event: dict[str, Any], said: Mapping[str, Any]) -> None:
        """What ran on a stream of a GPU."""
        name = str(event.get("name"))
        if name.startswith(_NO_WORK):
            return
        copies = next((kind for kind in ("Memcpy", "Memset") if name.startswith(kind)), "")
        details = str(said.get("kernel_details") or said.get("memcpy_details") or said.get("Memset_details") or "")
        arguments = {**_renamed(said), "device": lane.device, "stream": lane.number}
        arguments.update((kind, [int(n) for n in sizes]) for kind, *sizes in _SIZES.findall(details))
        if copies and (moved := _BYTES.search(details)):
            arguments["bytes"] = int(moved[1])
        self._hand_on(f"gpu_{copies.lower()}" if copies else "kernel", event, arguments)

    def _op(self, lane: XLane, event: dict[str, Any], said: Mapping[str, Any]) -> None:
        """An instruction that ran on a TPU."""
        name, arguments = str(event.get("name")), _renamed(said)
        if name.startswith("%"):
            name, arguments["long name"] = name[1:].split(" ")[0], name
        if _AROUND.match(name) or said.get("hlo_category") in ("while", "conditional", "call"):
            return
        arguments.update({"hlo op": name, "device": lane.device, "stream": 0})
        if _HALF.match(name):
            arguments["asynchronous"] = True
        if message := _MESSAGE.match(name):
            arguments["Collective name"] = message[1].replace("-", "_")
        self._hand_on("kernel", event, arguments, name=name)

    def _module(self, lane: XLane, event: dict[str, Any], said: Mapping[str, Any]) -> None:
        """A run of a program on a device."""
        start, duration = time_us(event.get("ts")), time_us(event.get("dur"))
        if start is None or duration is None:
            return
        runs = self.runs.setdefault(lane.device, ModuleRuns())
        runs.start_us.append(start)
        runs.end_us.append(start + duration)
        runs.names.append(str(event.get("name")))

    def _step(self, lane: XLane, event: dict[str, Any], said: Mapping[str, Any]) -> None:
        """A step as a device has it; steps of one device count, where the host marks none."""
        first = self._steps[0][0] if self._steps else str(event.get("pid"))
        start, duration = time_us(event.get("ts")), time_us(event.get("dur"))
        if str(event.get("pid")) == first and start is not None and duration is not None:
            self._steps.append((first, start, duration))

    def _host(self, lane: XLane, event: dict[str, Any], said: Mapping[str, Any]) -> None:
        """What a thread of the host did."""
        name = str(event.get("name"))
        self.ran_on_host |= "hlo_op" in said
        if "step_num" in said:
            self._hand_on("user_annotation", event, {}, name=f"ProfilerStep#{said['step_num']}")
        elif "correlation_id" in said:  # of CUDA's or ROCm's driver, whatever it is called
            self._hand_on("cuda_driver", event, {"correlation": said["correlation_id"]})
        elif not name.startswith(_NOISE):
            self._hand_on("cpu_op", event, {})

    def _sparse(self, lane: XLane, event: dict[str, Any], said: Mapping[str, Any]) -> None:
        """A row of a SparseCore, which is not modeled."""
        self.recording.dropped["of SparseCores"] += 1

    def finished(self) -> Recording:
        """The recording, with the steps of a device where the host marked none."""
        self.recording.events = self._events
        if not self.recording.steps:
            self.recording.steps += [(start, dur, f"ProfilerStep#{n}") for n, (_, start, dur) in enumerate(self._steps)]
        return self.recording


_Keep = Callable[[XlaLanes, XLane, dict[str, Any], Mapping[str, Any]], None]

_KEEP: Mapping[str, _Keep] = {
    "stream": XlaLanes._stream,
    "ops": XlaLanes._op,
    "modules": XlaLanes._module,
    "steps": XlaLanes._step,
    "host": XlaLanes._host,
    "sparse": XlaLanes._sparse,
}


def _renamed(said: Mapping[str, Any]) -> dict[str, Any]:
    """What is used of an event's stats, under Kineto's words."""
    return {name: said[key] for key, name in _SAID.items() if key in said}
