"""Streams of a traced program: which one each op is issued to, and which ops of others it waits for.

A stream runs its ops in order. Events and ``wait_stream`` order streams as CUDA's do. A collective that is asynchronous
runs on a stream of its process group, as NCCL's do, after what the issuing stream has to run before it; the issuing
stream waits where the program calls ``wait()``, or where it touches what the collective writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, ClassVar
from unittest.mock import patch

import torch
import torch.distributed as dist

from memwall.core import compat
from memwall.core.graph import Value

#: of streams, whoever makes them
_IDS = count(1)


class Streams:
    """The streams of one trace. Ops are numbers in the order in which they are issued."""

    #: the streams of the trace that is running; what is asked outside of one concerns none
    active: ClassVar[Streams]

    def __init__(self) -> None:
        self.current = 0
        self.issued = 0
        #: streams are numbered as ops come to them; streams of process groups have ids below 0
        self._numbers = {0: 0}
        self._last: dict[int, int] = {}
        self._stream_of: dict[int, int] = {}
        #: stream → the ops that its next one waits for; stream → stream → the last op that it has waited for
        self._waits: dict[int, set[int]] = {}
        self._reached: dict[int, dict[int, int]] = {}
        self._of_group: dict[Hashable, int] = {}
        #: the stream of a process group that ops are issued to now
        self._target: int | None = None
        #: storage → the op of a group's stream that writes it, or that reads it
        self._written: dict[int, int] = {}
        self._read: dict[int, int] = {}
        self._works: dict[int, tuple[Any, int]] = {}
        #: messages in and out are one group of NCCL's
        self.in_batch = False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The streams of the trace that is running while open, whose ``wait()`` orders them."""
        before, Streams.active = Streams.active, self
        fake = getattr(compat.c10d, "FakeWork", None) if dist.is_available() else None
        waiting = patch.object(fake, "wait", _wait) if fake is not None else contextlib.nullcontext()
        try:
            with waiting:
                yield
        finally:
            Streams.active = before

    def last(self, stream: int) -> int | None:
        """The op that was issued last to a stream."""
        return self._last.get(stream)

    def wait(self, stream: int, op: int | None) -> None:
        """The next op of a stream waits for another one."""
        if op is not None:
            self._waits.setdefault(stream, set()).add(op)

    def wait_for_storage(self, storage: int) -> None:
        """The current stream waits for the collective that writes a storage."""
        self.wait(self.current, self._written.get(storage))

    def hold(self, work: Any) -> None:
        """Remember the handle that the program gets of the op that was issued last."""
        self._works[id(work)] = work, self.issued - 1

    def wait_for_work(self, work: Any) -> None:
        """The current stream waits for the op of a handle."""
        if id(work) in self._works:
            self.wait(self.current, self._works[id(work)][1])

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """While open, messages in and out run next to each other, as the messages of one group of NCCL's do."""
        self.in_batch = True
        try:
            yield
        finally:
            self.in_batch = False

    @contextlib.contextmanager
    def issuing_to(self, group: Hashable) -> Iterator[None]:
        """Ops of the body run on the stream of a process group."""
        self._target = self._of_group.setdefault(group, -1 - len(self._of_group))
        try:
            yield
        finally:
            self._target = None

    def issue(
        self,
        values: Sequence[Value],
        inputs: Iterable[int],
        outputs: Iterable[int],
        like: tuple[int, Iterable[int]] | None = None,
    ) -> tuple[int, tuple[int, ...]]:
        """Issue the next op: the number of its stream, and the ops that it waits for, the last of each other stream;
        ``like`` has the number and some of these ops where they are known."""
        stream = self.current if self._target is None else self._target
        number, waits = like or (self._numbers.setdefault(stream, len(self._numbers)), ())
        op, stream = self.issued, [*self._numbers][number]
        self.issued += 1
        if len(self._numbers) > 1:
            wanted = {*waits, *self._waits.pop(stream, ())}
            if self._of_group:
                reads, writes = ([values[i].storage for i in ids] for ids in (inputs, outputs))
                wanted |= self._hazards(op, stream, reads, writes)
            self._stream_of[op], waits = number, sorted(self._new(number, wanted))
        self._last[stream] = op
        return number, tuple(waits)

    def _hazards(self, op: int, stream: int, reads: Sequence[int], writes: Sequence[int]) -> set[int]:
        """The collectives that write what an op touches, or read what it writes; what is issued before a collective."""
        found = {self._written[storage] for storage in (*reads, *writes) if storage in self._written}
        found |= {self._read[storage] for storage in writes if storage in self._read}
        if stream < 0:
            self._written |= dict.fromkeys(writes, op)
            self._read |= dict.fromkeys(reads, op)
            found |= {self._last[self.current]} if self.current in self._last else set()
        return found

    def _new(self, stream: int, wanted: Iterable[int]) -> Iterator[int]:
        """The ops that a stream has not waited for yet, neither for a later one of their stream."""
        reached = self._reached.setdefault(stream, {})
        for op in sorted(wanted, reverse=True):
            other = self._stream_of.get(op, 0)
            if other != stream and reached.get(other, -1) < op:
                reached[other] = op
                yield op


def _wait(work: Any, *timeout: Any) -> bool:
    Streams.active.wait_for_work(work)
    return True


Streams.active = Streams()


class TracedStream:
    """``torch.cuda.Stream`` in a trace, where all that was issued is over; also its own context."""

    device, device_index, device_type = torch.device("cuda", 0), 0, 1
    cuda_stream = priority = 0

    def __init__(self, *args: Any, number: int | None = None, **kwargs: Any) -> None:
        self.stream_id = next(_IDS) if number is None else number
        self._before: list[int] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TracedStream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __enter__(self) -> TracedStream:
        self._before.append(Streams.active.current)
        Streams.active.current = self.stream_id
        return self

    def __exit__(self, *exc: object) -> None:
        Streams.active.current = self._before.pop()

    def is_capturing(self) -> bool:
        return False

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None: ...

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        Streams.active.wait(self.stream_id, Streams.active.last(stream.stream_id))


def current_stream(*args: Any) -> TracedStream:
    """``torch.cuda.current_stream``."""
    return TracedStream(number=Streams.active.current)


def default_stream(*args: Any) -> TracedStream:
    """``torch.cuda.default_stream``."""
    return TracedStream(number=0)


def set_stream(stream: TracedStream) -> None:
    """``torch.cuda.set_stream``."""
    Streams.active.current = stream.stream_id


class StreamContext:
    """``torch.cuda.stream``: a context in which a stream is the current one; None leaves it. A class, as TorchDynamo
    asks of each value whether it is one."""

    def __init__(self, stream: Any = None) -> None:
        self._stream: Any = stream if isinstance(stream, TracedStream) else contextlib.nullcontext()

    def __enter__(self) -> Any:
        return self._stream.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._stream.__exit__(*error)


class Event:
    """``torch.cuda.Event`` in a trace: over for the host; a stream that waits for it runs after what it recorded."""

    device = torch.device("cuda", 0)
    cuda_event = 0
    #: milliseconds between any two events: not 0, as models divide by it
    ELAPSED_MS = 1.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._recorded: tuple[Streams, int | None] | None = None

    def elapsed_time(self, end: Any) -> float:
        return self.ELAPSED_MS

    def query(self) -> bool:
        return True

    def record(self, stream: Any = None) -> None:
        self._recorded = Streams.active, Streams.active.last((stream or current_stream()).stream_id)

    def synchronize(self) -> None: ...

    def wait(self, stream: Any = None) -> None:
        if self._recorded and self._recorded[0] is Streams.active:
            Streams.active.wait((stream or current_stream()).stream_id, self._recorded[1])
