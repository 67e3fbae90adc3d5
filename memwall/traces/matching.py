"""Matches each row of the GPU to the call that launched it, and that call to the op around it.

The path is kernel -> correlation -> runtime call -> innermost op on the call's thread. ``External id`` names an op only
in some traces (in others it repeats the correlation, and would match a wrong op), so it is used only if no call
correlates and only in a trace where the two differ. Arrows (``ac2g``) are the last resort.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from memwall.traces.events import Recording, in_order
from memwall.traces.nesting import Moments, Nesting

#: CPU and GPU clocks are aligned to some microseconds
_SKEW_US = 100.0


class Matches(NamedTuple):
    """For each activity the call that launched it and the span around the call; -1 if unknown."""

    call: array[int]
    span: array[int]


def match(recording: Recording, nesting: Nesting) -> Matches:
    """The matches of all activities; also nests the spans of the recording."""
    rows, starts = recording.activities, recording.spans.start
    calls = _calls_of(recording)
    arrows = _arrows_of(recording, calls)
    nesting.sweep(_moments(recording, calls, arrows))
    spans = array("i", (span if call >= 0 else -1 for span, call in zip(nesting.around, calls, strict=True)))
    by_external = _SpansByExternal(recording)
    for row, call in enumerate(calls):
        if spans[row] < 0:
            external = rows.external[row]
            if external <= 0 and call >= 0:
                external = recording.calls.external[call]
            span = by_external.get(external)
            if span >= 0 and starts[span] <= rows.start[row] + _SKEW_US:  # else it had not begun by then
                spans[row] = span
        if spans[row] < 0 <= arrows[row]:
            spans[row] = nesting.around[row]
    return Matches(calls, spans)


class _Index:
    """The positions of positive numbers, by number and then by time."""

    def __init__(
        self, numbers: Sequence[int], starts: Sequence[float], ties: Callable[[int], int] | None = None
    ) -> None:
        self._number = numbers.__getitem__
        placed = in_order(starts, (place for place, number in enumerate(numbers) if number > 0), ties)
        self.order = in_order(numbers, placed)

    def of(self, number: int) -> tuple[int, int]:
        """Which part of ``order`` has a number."""
        if number <= 0:
            return 0, 0
        low = bisect_left(self.order, number, key=self._number)
        return low, bisect_right(self.order, number, low, key=self._number)


def _calls_of(recording: Recording) -> array[int]:
    """The call of the same correlation, or of the same ``External id`` for an activity without a correlation.

    Of several (merged traces, an op with several launches) it is the last that began before the activity.
    """
    calls, rows = recording.calls, recording.activities
    by_correlation = _Index(calls.correlation, calls.start)
    is_bare = any(number <= 0 for number in rows.correlation)
    by_external = _Index(calls.external if is_bare else (), calls.start)
    found = array("i")
    for correlation, external, start in zip(rows.correlation, rows.external, rows.start, strict=True):
        index, number = (by_correlation, correlation) if correlation > 0 else (by_external, external)
        found.append(_nearest(index.order, *index.of(number), calls.start, start))
    return found


def _nearest(order: Sequence[int], low: int, high: int, starts: Sequence[float], start: float) -> int:
    if high - low < 2:
        return order[low] if high > low else -1
    begins = starts.__getitem__
    last = order[max(low, bisect_right(order, start + _SKEW_US, low, high, key=begins) - 1)]
    return order[bisect_left(order, starts[last], low, high, key=begins)]  # the first of the calls that begin together


def _arrows_of(recording: Recording, calls: Sequence[int]) -> array[int]:
    """For activities without a call: the arrow that ends where they begin, or has their correlation; -1 if none."""
    rows, ends, starts = recording.activities, recording.flow_ends, recording.flow_starts
    found = array("i", [-1]) * len(calls)
    bare = [row for row, call in enumerate(calls) if call < 0] if len(starts.number) else []
    if not bare:
        return found
    places = {(rows.thread[row], rows.start[row]) for row in bare}
    numbers: dict[tuple[int, float], int] = {}
    for thread, start, number in zip(ends.thread, ends.start, ends.number, strict=True):
        if (thread, start) in places:
            numbers[thread, start] = number
    wanted = {numbers.get((rows.thread[row], rows.start[row]), rows.correlation[row]): -1 for row in bare}
    for arrow, number in enumerate(starts.number):
        if number in wanted:
            wanted[number] = arrow
    for row in bare:
        found[row] = wanted[numbers.get((rows.thread[row], rows.start[row]), rows.correlation[row])]
    return found


def _moments(recording: Recording, calls: Sequence[int], arrows: Sequence[int]) -> Moments:
    """When and where each activity was launched: by its call, or where its arrow begins."""
    moments, made, flows = Moments(), recording.calls, recording.flow_starts
    for call, arrow in zip(calls, arrows, strict=True):
        rows, place = (made, call) if call >= 0 else (flows, arrow)
        begin = rows.start[place] if place >= 0 else 0.0
        moments.thread.append(rows.thread[place] if place >= 0 else -1)
        moments.begin.append(begin)
        moments.end.append(begin + (made.dur[call] if call >= 0 else 0.0))
    return moments


class _SpansByExternal:
    """``External id`` -> span, without ids that different spans share (merged traces); none if the id only repeats the
    correlation."""

    def __init__(self, recording: Recording) -> None:
        rows, self._spans = recording.activities, recording.spans
        says = any(0 < external != number for external, number in zip(rows.external, rows.correlation, strict=True))
        self._index = _Index(self._spans.external if says else (), self._spans.start, self._spans.name.__getitem__)

    def get(self, external: int) -> int:
        """The span of a number; -1 if none."""
        low, high = self._index.of(external)
        if low == high:
            return -1
        first, last = self._index.order[low], self._index.order[high - 1]
        alike = all(column[first] == column[last] for column in (self._spans.start, self._spans.name))
        return first if alike else -1
