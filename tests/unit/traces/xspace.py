"""XSpaces for tests, written field by field after ``tsl/profiler/protobuf/xplane.proto``, and the JSON that XLA makes
of them (``xplane_to_trace_events.cc``: values are texts, ``flops`` and ``program_id`` are left out)."""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Stat = int | float | str | bytes


@dataclass
class Event:
    """An event on a line, in microseconds; ``kind``: stats that its metadata state once."""

    name: str
    start_us: float
    dur_us: float
    stats: Mapping[str, Stat] = field(default_factory=dict)
    kind: Mapping[str, Stat] = field(default_factory=dict)
    long_name: str = ""


@dataclass
class Plane:
    """A device or the host: its lines by name, its stats, and kinds that no event has (programs)."""

    name: str
    lines: Mapping[str, Sequence[Event]] = field(default_factory=dict)
    stats: Mapping[str, Stat] = field(default_factory=dict)
    unused: Sequence[Event] = ()


def varint(number: int) -> bytes:
    """A number of variable length."""
    number &= (1 << 64) - 1
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


def piece(place: int, body: bytes | str) -> bytes:
    """A field that is a message or a text."""
    body = body.encode() if isinstance(body, str) else body
    return varint(place << 3 | 2) + varint(len(body)) + body


def number(place: int, value: int) -> bytes:
    """A field that is a number."""
    return varint(place << 3) + varint(value)


#: stats whose texts CUPTI's collector writes once, as names that others refer to
_REFERRED = ("hlo_op", "hlo_module", "kernel_details", "memcpy_details", "name")


class _Writer:
    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.kinds: dict[str, tuple[int, bytes]] = {}

    def stat(self, name: str, value: Stat) -> bytes:
        key = number(1, self.names.setdefault(name, len(self.names) + 1))
        if isinstance(value, int):
            return key + number(4, value)
        if name in _REFERRED:
            return key + number(7, self.names.setdefault(str(value), len(self.names) + 1))
        return key + piece(6 if isinstance(value, bytes) else 5, value)  # type: ignore[arg-type]

    def kind(self, event: Event) -> int:
        if event.name not in self.kinds:
            shown = piece(2, event.long_name) + piece(4, event.name) if event.long_name else piece(2, event.name)
            stats = b"".join(piece(5, self.stat(*item)) for item in event.kind.items())
            place = len(self.kinds) + 1
            self.kinds[event.name] = place, number(1, place) + shown + stats
        return self.kinds[event.name][0]

    def event(self, event: Event) -> bytes:
        stats = b"".join(piece(4, self.stat(*item)) for item in event.stats.items())
        times = number(2, round(event.start_us * 1e6)) + number(3, round(event.dur_us * 1e6))
        return number(1, self.kind(event)) + times + stats

    def plane(self, plane: Plane) -> bytes:
        body = piece(2, plane.name)
        for place, (name, events) in enumerate(plane.lines.items(), 1):
            line = number(1, place) + piece(2, name) + b"".join(piece(4, self.event(event)) for event in events)
            body += piece(3, line)
        for event in plane.unused:
            self.kind(event)
        body += b"".join(piece(6, self.stat(*item)) for item in plane.stats.items())
        body += b"".join(piece(4, number(1, place) + piece(2, kind)) for place, kind in self.kinds.values())
        texts = self.names.items()
        return body + b"".join(
            piece(5, number(1, place) + piece(2, number(1, place) + piece(2, name))) for name, place in texts
        )


def write_space(path: Path, *planes: Plane) -> Path:
    """An XSpace of these planes."""
    path.write_bytes(b"".join(piece(1, _Writer().plane(plane)) for plane in planes))
    return path


#: what XLA leaves out of the JSON
_INTERNAL = ("flops", "program_id")


def write_json(path: Path, *planes: Plane) -> Path:
    """The same planes as ``.trace.json.gz``."""
    events: list[dict[str, Any]] = []
    for pid, plane in enumerate(planes, 1):
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": plane.name}})
        for tid, line in enumerate(plane.lines, 1):
            events.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": line}})
    for pid, plane in enumerate(planes, 1):
        for tid, of_line in enumerate(plane.lines.values(), 1):
            for event in of_line:
                said = {**event.kind, **event.stats, **({"long_name": event.long_name} if event.long_name else {})}
                arguments = {name: str(value) for name, value in said.items() if name not in _INTERNAL}
                times = {"ts": event.start_us, "dur": event.dur_us}
                events.append({"ph": "X", "pid": pid, "tid": tid, "name": event.name, **times, "args": arguments})
    text = json.dumps({"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events})
    with gzip.open(path, "wt") as file:
        file.write(text)
    return path
