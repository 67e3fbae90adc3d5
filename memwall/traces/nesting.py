"""What was running on a CPU thread at a moment: the innermost op, the modules and the user's line around it.

One sweep per thread over spans and moments in order of time, with a stack. Clocks are rounded to microseconds in old
traces, so a span that ends up to :data:`JITTER_US` after its parent still counts as inside it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator

from memwall.traces.events import Recording, Spans, in_order
from memwall.traces.fields import ANNOTATION, FRAME, MODULE, OP

JITTER_US = 1.0

#: deeper nesting than this is treated as this deep; real programs stay far below
_DEEPEST = 500

#: how many spans outward are tried where spans overlap without nesting
_MOST_TRIED = 64

_NONE = -1


class Moments:
    """When and where each activity was launched; ``thread`` is -1 if that is not known."""

    def __init__(self) -> None:
        self.thread, self.begin, self.end = array("i"), array("d"), array("d")

    def by_thread(self) -> dict[int, array[int]]:
        """Thread -> its moments, in order of time; moments of no known thread are left out."""
        threads: dict[int, array[int]] = {}
        for moment, thread in enumerate(self.thread):
            if thread >= 0:
                threads.setdefault(thread, array("i")).append(moment)
        return {thread: in_order(self.begin, own, self.end.__getitem__) for thread, own in threads.items()}


class Nesting:
    """For each span of a recording: the innermost op around it, its module path, its line; -1 if none."""

    def __init__(self, recording: Recording) -> None:
        self._spans = recording.spans
        self.parent, self.module, self.frame = (array("i", [_NONE]) * len(self._spans) for _ in range(3))
        #: position in the order of the sweep: parents before children
        self.place = array("i", [0]) * len(self._spans)
        #: of each moment the op around it, and of one outside any op the module path and the frame's name
        self.around, self.outer_module, self.outer_frame = array("i"), array("i"), array("i")
        #: (path around it or -1, name) -> path; paths are the nodes of a tree
        self._paths: dict[tuple[int, int], int] = {}
        self._path_nodes: list[tuple[int, int]] = []

    def sweep(self, moments: Moments) -> None:
        """Nest all spans, and find the op around each moment."""
        self.around, self.outer_module, self.outer_frame = (array("i", [_NONE]) * len(moments.thread) for _ in range(3))
        known, place = moments.by_thread(), 0
        for thread, order in _by_thread(self._spans):
            place = self._thread(order, moments, known.get(thread, array("i"))[::-1], place)

    def _thread(self, order: Iterable[int], moments: Moments, own: array[int], place: int) -> int:
        """Nest the spans of one thread, and take its own moments, the last first, off their list as they pass."""
        spans, begins = self._spans, moments.begin
        starts, durs, kinds, names = spans.start, spans.dur, spans.kind, spans.name
        ops: list[tuple[float, int]] = []  # (end, span): ops and annotations that have begun and not ended
        modules: list[tuple[float, int]] = []  # (end, path)
        frames: list[tuple[float, int]] = []  # (end, name)

        def answer(before: float) -> None:
            while own and begins[own[-1]] < before:
                moment = own.pop()
                begin, end = begins[moment], moments.end[moment]
                self.around[moment] = _around(ops, begin, end)
                if self.around[moment] == _NONE:
                    self.outer_module[moment] = _top(modules, begin, end)
                    self.outer_frame[moment] = _top(frames, begin, end)

        for span in order:
            start = starts[span]
            if own and begins[own[-1]] < start:
                answer(start)
            end = start + durs[span]
            kind = kinds[span]
            if kind in (OP, ANNOTATION):
                self.parent[span] = _around(ops, start, end)
                self.module[span] = _top(modules, start, end)
                self.frame[span] = _top(frames, start, end)
                self.place[span] = place
                place += 1
                _open(ops, end, span)
            elif kind == MODULE:
                _open(modules, end, self._path(_top(modules, start, end), names[span]))
            elif kind == FRAME:
                _top(frames, start, end)
                _open(frames, end, names[span])
        answer(math.inf)
        return place

    def _path(self, outer: int, name: int) -> int:
        known = self._paths.get((outer, name))
        if known is None:
            known = self._paths[outer, name] = len(self._path_nodes)
            self._path_nodes.append((outer, name))
        return known

    def path_names(self, path: int) -> list[int]:
        """The names of the modules of a path, outermost first."""
        names: list[int] = []
        while path != _NONE:
            path, name = self._path_nodes[path]
            names.append(name)
        return names[::-1]


def _by_thread(spans: Spans) -> Iterator[tuple[int, Iterator[int]]]:
    """Each thread and its spans in the order in which they open: by start, the longer first, then by number."""
    threads: dict[int, array[int]] = {}
    for span, thread in enumerate(spans.thread):
        threads.setdefault(thread, array("i")).append(span)
    for thread, own in threads.items():
        order = in_order(spans.start, own, lambda span: (-spans.dur[span], spans.external[span], spans.name[span]))
        yield thread, (span for at, span in enumerate(order) if not at or not _same(spans, order[at - 1], span))


def _same(spans: Spans, first: int, second: int) -> bool:
    """Whether a span is a duplicate; two ops of one name and time may be distinct if they have no number."""
    if spans.start[first] != spans.start[second] or spans.dur[first] != spans.dur[second]:
        return False
    alike = all(column[first] == column[second] for column in (spans.name, spans.kind, spans.external))
    return alike and (spans.external[first] > 0 or spans.kind[first] in (MODULE, FRAME))


def _open(stack: list[tuple[float, int]], end: float, item: int) -> None:
    if len(stack) < _DEEPEST:
        stack.append((end, item))


def _around(stack: list[tuple[float, int]], start: float, end: float) -> int:
    """The span on the stack that contains [start, end]; else the innermost in which it starts; else -1."""
    _close(stack, start, end)
    if not stack:
        return _NONE
    if end <= stack[-1][0] + JITTER_US:
        return stack[-1][1]
    outward: Iterable[tuple[float, int]] = stack[-1 : -_MOST_TRIED - 1 : -1]
    return next((item for last, item in outward if end <= last + JITTER_US), stack[-1][1])


def _top(stack: list[tuple[float, int]], start: float, end: float) -> int:
    _close(stack, start, end)
    return stack[-1][1] if stack else _NONE


def _close(stack: list[tuple[float, int]], start: float, end: float) -> None:
    """Drop spans that ended, also at ``start`` itself unless the new span has no length."""
    while stack and (stack[-1][0] < start or (stack[-1][0] == start and end > start)):
        stack.pop()
