"""The GPU's own time: when a device was busy, when it waited and for what, how much communication was exposed."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from memwall.traces.events import Calls, Recording, Spans, in_order
from memwall.traces.fields import ANNOTATION, OP, wait_of
from memwall.traces.nesting import Nesting
from memwall.traces.records import Gaps, Ops, TraceKernels

#: a call or an overhead explains a gap if it fills at least this share of it
_EXPLAINS = 0.5

#: most calls and ops examined for one gap, and how many of them began before it: a thread's calls hardly overlap, so
#: one of the last few still ran
_MOST_CALLS, _MOST_BEFORE = 1024, 8


def _covered(kernels: TraceKernels, numbers: Iterable[int]) -> Iterator[tuple[float, float]]:
    """The times (begin, end) in which at least one of some kernels, sorted by start, ran."""
    begin = end = None
    for number in numbers:
        start = kernels.start_us[number]
        if begin is not None and end is not None and start <= end:
            end = max(end, kernels.end_us(number))
            continue
        if begin is not None and end is not None:
            yield begin, end
        begin, end = start, kernels.end_us(number)
    if begin is not None and end is not None:
        yield begin, end


def _covered_us(kernels: TraceKernels, numbers: Iterable[int]) -> float:
    return sum(end - begin for begin, end in _covered(kernels, numbers))


def busy_us(kernels: TraceKernels) -> dict[int, float]:
    """Device -> time in which at least one of its streams ran something."""
    return {device: _covered_us(kernels, own) for device, own in kernels.by_device().items()}


def exposed_communication_us(kernels: TraceKernels) -> dict[int, float]:
    """Device -> time in which communication ran and neither a kernel nor a copy."""
    computes = [kind.category != "communication" for kind in kernels.kinds]
    return {
        device: _covered_us(kernels, own) - _covered_us(kernels, (n for n in own if computes[kernels.kind[n]]))
        for device, own in kernels.by_device().items()
    }


def gaps(kernels: TraceKernels, ops: Ops, recording: Recording, nesting: Nesting, base: float) -> Gaps:
    """Every time in which a device ran nothing between its first and its last kernel, in order of time."""
    causes, found = _Causes(kernels, ops, recording, nesting, base), Gaps()
    rows = [(device, kernels.start_us[own[0]], own) for device, own in kernels.by_device().items()]
    for device, busy_until, own in rows:
        for number in own:
            start = kernels.start_us[number]
            if start > busy_until:
                found.device.append(device)
                found.start_us.append(busy_until)
                found.dur_us.append(start - busy_until)
                found.cause.append(found.causes.number(causes.of(busy_until, number)))
            busy_until = max(busy_until, kernels.end_us(number))
    if len(rows) > 1:
        found.take(in_order(found.start_us, range(len(found)), found.device.__getitem__))
    return found


class _Causes:
    """Why a device waited for a kernel: what the CPU did between the gap's begin and the kernel's launch."""

    def __init__(self, kernels: TraceKernels, ops: Ops, recording: Recording, nesting: Nesting, base: float) -> None:
        self._kernels, self._ops, self._recording, self._base = kernels, ops, recording, base
        self._names = recording.names.texts
        calls, overheads, spans = recording.calls, recording.overheads, recording.spans
        self._waits = {name: wait_of(self._names[name]) for name in {*calls.name, *overheads.name}}
        self._calls = _by_thread(range(len(calls.start)), calls)
        parents = enumerate(nesting.parent)  # ops with no op around them; annotations do not count
        roots = (n for n, up in parents if spans.kind[n] == OP and (up < 0 or spans.kind[up] == ANNOTATION))
        self._roots = _by_thread(roots, spans)
        self._overheads = in_order(overheads.start, range(len(overheads.start)))
        self._threads = {thread: index for index, thread in enumerate(recording.threads)}
        self._first: dict[str, int] = {}
        for number, kind in enumerate(kernels.kind):
            self._first.setdefault(kernels.kinds[kind].name, number)

    def of(self, begin: float, number: int) -> str:
        """The cause of a gap from ``begin`` to a kernel's start, both since the trace's first event."""
        kernels = self._kernels
        launch_us, launch, op = kernels.launch_us[number], kernels.kind_of(number).launch, kernels.op[number]
        if math.isnan(launch_us):
            return "unknown: no launch of the next kernel was recorded"
        queued = launch_us < begin
        if "Graph" in launch:
            return f"{'inside a graph' if queued else 'graph launch'}: {launch}"
        if queued:
            return "queued: launched before the gap, waited on the GPU"
        if op < 0:
            return "host: outside any op"
        begin, end = begin + self._base, kernels.start_us[number] + self._base
        return self._overhead(begin, end) or self._on_host(begin, end, launch_us + self._base, number)

    def _overhead(self, begin: float, end: float) -> str:
        """The profiler's own overhead in the gap."""
        rows = self._recording.overheads
        for index in _within(self._overheads, rows, begin, end, _MOST_BEFORE):
            if _fills(rows, index, begin, end):
                return f"{self._waits[rows.name[index]] or 'profiler'}: {self._names[rows.name[index]]}"
        return ""

    def _on_host(self, begin: float, end: float, launch: float, kernel: int) -> str:
        """The call that blocked the thread for most of the gap; else the op that ran in most of it or launched.

        A call that waited for the GPU until the gap began is named too: the queue was empty after it.
        """
        rows, op = self._recording.calls, self._ops.kind_of(self._kernels.op[kernel])
        thread, starts = self._threads[op.thread], rows.start.__getitem__
        order = self._calls.get(thread, array("i"))
        place = bisect_left(order, launch, key=starts)
        is_first = self._first[self._kernels.kind_of(kernel).name] == kernel
        if place < len(order) and _fills(rows, order[place], begin, end) and is_first:
            return f"first launch: {op.name}"
        drained = ""
        first = max(place - _MOST_CALLS, bisect_left(order, begin, hi=place, key=starts) - _MOST_BEFORE, 0)
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
        for span in _within(self._roots.get(thread, array("i")), spans, begin, end, 1):
            if _fills(spans, span, begin, end):
                return self._names[spans.name[span]]
        return ""


def _within(order: array[int], rows: Calls | Spans, begin: float, end: float, before: int) -> array[int]:
    """Rows that begin between two times, and the last few ``before``."""
    starts = rows.start.__getitem__
    first = max(0, bisect_left(order, begin, key=starts) - before)
    return order[first : min(bisect_left(order, end, key=starts), first + _MOST_CALLS)]


def _fills(rows: Calls | Spans, index: int, begin: float, end: float) -> bool:
    """Whether a row lasts for most of [begin, end]."""
    start = rows.start[index]
    return min(end, start + rows.dur[index]) - max(begin, start) >= _EXPLAINS * (end - begin)


def _by_thread(numbers: Iterable[int], rows: Calls | Spans) -> dict[int, array[int]]:
    """Thread -> its rows by start."""
    threads: dict[int, array[int]] = {}
    for number in numbers:
        threads.setdefault(rows.thread[number], array("i")).append(number)
    return {thread: in_order(rows.start, own) for thread, own in threads.items()}
