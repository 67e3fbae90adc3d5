"""The GPU's own time: when a device was busy, when it waited and for what, how much communication was exposed."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from memwall.traces.events import Calls, Recording, Spans
from memwall.traces.fields import ANNOTATION, OP, wait_of
from memwall.traces.nesting import Nesting
from memwall.traces.records import Gap, TracedKernel, TracedOp

Kernels = Sequence[TracedKernel]

#: a call or an overhead explains a gap if it fills at least this share of it
_EXPLAINS = 0.5

#: most calls and ops examined for one gap, and those of them that began before it: a thread's calls hardly overlap, so
#: one of the last few is the one that still ran
_MOST_CALLS, _MOST_BEFORE = 1024, 8


def _covered_us(kernels: Iterable[TracedKernel]) -> float:
    """Time in which at least one of some kernels, sorted by start, ran."""
    spans: list[tuple[float, float]] = []
    for kernel in kernels:
        if spans and kernel.start_us <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], kernel.end_us))
        else:
            spans.append((kernel.start_us, kernel.end_us))
    return sum(end - start for start, end in spans)


def busy_us(kernels: Kernels) -> dict[int, float]:
    """Device -> time in which at least one of its streams ran something."""
    return {device: _covered_us(rows) for device, rows in _by_device(kernels).items()}


def exposed_communication_us(kernels: Kernels) -> dict[int, float]:
    """Device -> time in which communication ran and neither a kernel nor a copy."""
    return {
        device: _covered_us(rows) - _covered_us(row for row in rows if row.category != "communication")
        for device, rows in _by_device(kernels).items()
    }


def gaps(
    kernels: Kernels, ops: Sequence[TracedOp], recording: Recording, nesting: Nesting, base: float
) -> tuple[Gap, ...]:
    """Every time in which a device ran nothing between its first and its last kernel, in order of time."""
    causes = _Causes(kernels, ops, recording, nesting, base)
    found = []
    for device, rows in _by_device(kernels).items():
        busy_until = rows[0].start_us
        for kernel in rows:
            if kernel.start_us > busy_until:
                cause = sys.intern(causes.of(busy_until, kernel))
                found.append(Gap(device, busy_until, kernel.start_us - busy_until, cause))
            busy_until = max(busy_until, kernel.end_us)
    return tuple(sorted(found, key=lambda gap: (gap.start_us, gap.device)))


def _by_device(kernels: Kernels) -> dict[int, list[TracedKernel]]:
    devices: dict[int, list[TracedKernel]] = {}
    for kernel in kernels:
        devices.setdefault(kernel.device, []).append(kernel)
    return dict(sorted(devices.items()))


class _Causes:
    """Why a device waited for a kernel: what the CPU did between the gap's begin and the kernel's launch."""

    def __init__(
        self, kernels: Kernels, ops: Sequence[TracedOp], recording: Recording, nesting: Nesting, base: float
    ) -> None:
        self._ops = ops
        self._base = base
        self._recording = recording
        self._names = recording.names.texts
        calls, overheads = recording.calls, recording.overheads
        self._waits = {name: wait_of(self._names[name]) for name in {*calls.name, *overheads.name}}
        self._calls = _sorted(range(len(calls.start)), calls.thread, calls.start)
        spans = recording.spans
        parents = enumerate(nesting.parent)  # ops with no op around them; annotations do not count
        roots = [n for n, up in parents if spans.kind[n] == OP and (up < 0 or spans.kind[up] == ANNOTATION)]
        self._roots = _sorted(roots, spans.thread, spans.start)
        order = sorted(range(len(overheads.start)), key=overheads.start.__getitem__)
        self._overheads = order, [overheads.start[index] for index in order]
        self._threads = {thread: index for index, thread in enumerate(recording.threads)}
        self._first: dict[str, int] = {}
        for kernel in kernels:
            self._first.setdefault(kernel.name, kernel.id)

    def of(self, begin: float, kernel: TracedKernel) -> str:
        """The cause of a gap from ``begin`` to the kernel's start, both since the trace's first event."""
        if kernel.launch_us is None:
            return "unknown: no launch of the next kernel was recorded"
        queued = kernel.launch_us < begin
        if "Graph" in kernel.launch:
            return f"{'inside a graph' if queued else 'graph launch'}: {kernel.launch}"
        if queued:
            return "queued: launched before the gap, waited on the GPU"
        if kernel.op is None:
            return "host: outside any op"
        begin, end, launch = begin + self._base, kernel.start_us + self._base, kernel.launch_us + self._base
        return self._overhead(begin, end) or self._on_host(begin, end, launch, kernel, self._ops[kernel.op])

    def _overhead(self, begin: float, end: float) -> str:
        """The profiler's own overhead in the gap."""
        rows = self._recording.overheads
        for index in _within(self._overheads, begin, end, _MOST_BEFORE):
            if _fills(rows, index, begin, end):
                return f"{self._waits[rows.name[index]] or 'profiler'}: {self._names[rows.name[index]]}"
        return ""

    def _on_host(self, begin: float, end: float, launch: float, kernel: TracedKernel, op: TracedOp) -> str:
        """The call that blocked the thread for most of the gap; else the op that ran in most of it or launched.

        A call that waited for the GPU until the gap began is named too: the queue was empty after it.
        """
        rows = self._recording.calls
        thread = self._threads[op.thread]
        order, starts = self._calls.get(thread, ([], []))
        place = bisect_left(starts, launch)
        if place < len(order) and _fills(rows, order[place], begin, end) and self._first[kernel.name] == kernel.id:
            return f"first launch: {op.name}"
        drained = ""
        first = max(place - _MOST_CALLS, bisect_left(starts, begin, hi=place) - _MOST_BEFORE, 0)
        for call in reversed(order[first:place]):
            if rows.start[call] + rows.dur[call] <= begin:
                break
            wait, name = self._waits[rows.name[call]], self._names[rows.name[call]]
            if wait and _fills(rows, call, begin, end):
                return f"{wait}: {name}"
            if wait == "sync" and rows.start[call] < begin:
                drained = f", after {name}"
        return f"host: {self._root(thread, begin, end) or op.name}{drained}"

    def _root(self, thread: int, begin: float, end: float) -> str:
        """The outermost op that ran on the thread for most of the gap."""
        spans = self._recording.spans
        for span in _within(self._roots.get(thread, ([], [])), begin, end, 1):
            if _fills(spans, span, begin, end):
                return self._names[spans.name[span]]
        return ""


def _within(ordered: tuple[list[int], list[float]], begin: float, end: float, before: int) -> list[int]:
    """Rows that begin between two times, and the last few ``before``."""
    order, starts = ordered
    first = max(0, bisect_left(starts, begin) - before)
    return order[first : min(bisect_left(starts, end), first + _MOST_CALLS)]


def _fills(rows: Calls | Spans, index: int, begin: float, end: float) -> bool:
    """Whether a row lasts for most of [begin, end]."""
    start = rows.start[index]
    return min(end, start + rows.dur[index]) - max(begin, start) >= _EXPLAINS * (end - begin)


def _sorted(
    indices: Iterable[int], thread_of: Sequence[int], starts: Sequence[float]
) -> dict[int, tuple[list[int], list[float]]]:
    """Thread -> its rows by start, and their starts."""
    threads: dict[int, list[int]] = {}
    for index in indices:
        threads.setdefault(thread_of[index], []).append(index)
    for order in threads.values():
        order.sort(key=starts.__getitem__)
    return {thread: (order, [starts[index] for index in order]) for thread, order in threads.items()}
