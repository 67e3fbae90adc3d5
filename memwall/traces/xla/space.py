"""An XSpace (``tsl/profiler/protobuf/xplane.proto``): planes (a device, the host), their lines, and events on these.

What events share (their name, a TPU's FLOPs and bytes) is stated once, as metadata of the plane; its stats come before
the stats of the event itself. Times are picoseconds since the line's begin.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from memwall.core.errors import UsageError
from memwall.traces.xla.wire import Damaged, Piece, double, fields, signed, text

_NS_PER_US, _PS_PER_US = 1e3, 1e6
#: most texts that are kept decoded, and the bytes of a stat of one at most: most events repeat the texts of others
_MOST_KNOWN, _SHORT = 1 << 16, 64


class EventKind(NamedTuple):
    """What events of one kind share: the name that is shown, the whole one where it differs, and stats."""

    name: str
    long_name: str
    stats: Mapping[str, Any]


class XEvent(NamedTuple):
    """An event, in microseconds."""

    kind: EventKind
    start_us: float
    dur_us: float
    own: tuple[Piece, ...]


@dataclass(frozen=True)
class XLine:
    """A stream of a device, a thread of the host, or a lane that XLA derives."""

    name: str
    number: int
    start_us: float
    body: Piece


@dataclass
class XPlane:
    """A device or the host: its lines, its own stats (a GPU's name), what kinds of events it has."""

    name: str
    _lines: list[Piece] = field(default_factory=list)
    _stats: list[Piece] = field(default_factory=list)
    _kinds: list[Piece] = field(default_factory=list)
    _names: list[Piece] = field(default_factory=list)

    @cached_property
    def names(self) -> Mapping[int, str]:
        """Number of a stat, or of a text that stats refer to → the text."""
        return {key: _field_text(value, 2) for key, value in map(_entry, self._names)}

    @cached_property
    def stats(self) -> Mapping[str, Any]:
        """What the plane says of itself."""
        return self.values(self._stats)

    @cached_property
    def _kind_of(self) -> Mapping[int, Piece]:
        return dict(map(_entry, self._kinds))

    @cached_property
    def _read(self) -> dict[int, EventKind]:
        return {}

    def kinds(self) -> Iterator[EventKind]:
        """All kinds of events, also kinds without an event."""
        return map(self.kind, self._kind_of)

    def kind(self, number: int) -> EventKind:
        """The kind of a number; an empty one where it has none."""
        known = self._read.get(number)
        if known is None:
            name = shown = ""
            stats = []
            for place, value in fields(self._kind_of.get(number, memoryview(b""))):
                if place == 2:
                    name = text(value)
                elif place == 4:
                    shown = text(value)
                elif place == 5 and not isinstance(value, int):
                    stats.append(value)
            long_name = name if shown and shown != name else ""
            known = self._read[number] = EventKind(shown or name, long_name, self.values(stats))
        return known

    @cached_property
    def _known(self) -> dict[bytes, tuple[str, Any]]:
        return {}

    def values(self, stats: Sequence[Piece]) -> dict[str, Any]:
        """Stats by name: numbers, texts, pieces of bytes."""
        found = {}
        for stat in stats:
            own = bytes(stat) if len(stat) <= _SHORT else b""
            known = self._known.get(own)
            name, value = known or self._value(stat)
            if known is None and own and isinstance(value, str) and len(self._known) < _MOST_KNOWN:
                self._known[own] = name, value
            if name:
                found[name] = value
        return found

    def _value(self, stat: Piece) -> tuple[str, Any]:
        name, value = "", None
        for place, found in fields(stat):
            if place == 1 and isinstance(found, int):
                name = self.names.get(found, "")
            elif place == 7 and isinstance(found, int):
                value = self.names.get(found, "")
            elif place in _READ:
                value = _READ[place](found)
        return name, value

    def lines(self) -> Iterator[XLine]:
        """The lines."""
        for piece in self._lines:
            name, number, start_ns = "", 0, 0
            for place, value in fields(piece):
                if place in (2, 11):
                    name = text(value) or name
                elif place == 1:
                    number = signed(value)
                elif place == 3:
                    start_ns = signed(value)
            yield XLine(name, number, start_ns / _NS_PER_US, piece)

    def events(self, line: XLine) -> Iterator[XEvent]:
        """The events of a line, in order; of their own stats :meth:`values` tells."""
        for of_line, event in fields(line.body):
            if of_line != 4 or isinstance(event, int):
                continue
            number = offset = duration = 0
            own = []
            for place, value in fields(event):
                if not isinstance(value, int):
                    if place == 4:
                        own.append(value)
                elif place == 1:
                    number = value
                elif place == 2:
                    offset = signed(value)
                elif place == 3:
                    duration = signed(value)
            yield XEvent(self.kind(number), line.start_us + offset / _PS_PER_US, duration / _PS_PER_US, tuple(own))


#: field of a stat → how it is read
_READ: Mapping[int, Any] = {2: double, 3: signed, 4: signed, 5: text, 6: lambda value: value}


def read_space(path: str | os.PathLike[str]) -> list[XPlane]:
    """The planes of a file; nothing of their lines is decoded, nor in memory, until it is asked for.

    Raises:
        UsageError: no such file, or it names no plane.
        Damaged: it is cut off, or no XSpace.
    """
    try:
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise UsageError(f"{path} is empty")
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"no such file: {path}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    found = [_plane(value) for place, value in fields(whole) if place == 1 and not isinstance(value, int)]
    if not any(plane.name for plane in found):
        raise UsageError(f"{path} is no profile of XLA: it has no named plane")
    return found


@contextmanager
def refusing(path: str | os.PathLike[str]) -> Iterator[None]:
    """What is damaged is the user's mistake within: says which file."""
    try:
        yield
    except Damaged as error:
        raise UsageError(
            f"{path} is cut off or no profile of XLA (an XSpace): {error}; copy or record it again"
        ) from None


def _plane(piece: Piece) -> XPlane:
    plane = XPlane("")
    taken = {3: plane._lines, 4: plane._kinds, 5: plane._names, 6: plane._stats}
    for place, value in fields(piece):
        if place == 2:
            plane.name = text(value)
        elif place in taken and not isinstance(value, int):
            taken[place].append(value)
    return plane


def _entry(piece: Piece) -> tuple[int, Piece]:
    """Key and value of an entry of a map."""
    key, value = 0, memoryview(b"")
    for place, found in fields(piece):
        if place == 1:
            key = signed(found)
        elif place == 2 and not isinstance(found, int):
            value = found
    return key, value


def _field_text(piece: Piece, wanted: int) -> str:
    return next((text(value) for place, value in fields(piece) if place == wanted), "")
