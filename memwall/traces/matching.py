"""Matches each row of the GPU to the call that launched it, and that call to the op around it.

The path is kernel -> correlation -> runtime call -> innermost op on the call's thread. ``External id`` names an op only
in some traces (in others it repeats the correlation, and would match a wrong op), so it is used only if no call
correlates and only in a trace where the two differ. Arrows (``ac2g``) are the last resort.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from memwall.traces.events import Activity, Recording
from memwall.traces.nesting import Nesting

#: CPU and GPU clocks are aligned to some microseconds
_SKEW_US = 100.0


class Match(NamedTuple):
    """The call that launched an activity and the span around the call; None if unknown."""

    call: int | None
    span: int | None


def match(recording: Recording, activities: Sequence[Activity], nesting: Nesting) -> list[Match]:
    """A match for each activity, in order; also nests the spans of the recording."""
    calls = _calls_of(recording, activities)
    arrows = _arrows_of(recording, activities, calls)
    first_arrow = len(recording.calls.start)
    found = nesting.sweep(_moments(recording, calls, arrows, first_arrow))
    by_external = _spans_by_external(recording, activities)
    matches = []
    for activity, call, arrow in zip(activities, calls, arrows, strict=True):
        span = None if call is None else found.get(call)
        if span is None:
            external = activity.external
            if external <= 0 and call is not None:
                external = recording.calls.external[call]
            span = by_external.get(external)
            if span is not None and recording.spans.start[span] > activity.start + _SKEW_US:  # it had not begun by then
                span = None
        if span is None and arrow is not None:
            span = found.get(first_arrow + arrow)
        matches.append(Match(call, span))
    return matches


def _calls_of(recording: Recording, activities: Sequence[Activity]) -> list[int | None]:
    """The call of the same correlation, or of the same ``External id`` for an activity without a correlation.

    Of several (merged traces, an op with several launches) it is the last that began before the activity.
    """
    calls = recording.calls
    by_correlation = _indexed(calls.correlation, calls.start, {a.correlation for a in activities})
    by_external = _indexed(calls.external, calls.start, {a.external for a in activities if a.correlation <= 0})
    return [
        _nearest(
            by_correlation.get(a.correlation, ()) if a.correlation > 0 else by_external.get(a.external, ()),
            calls.start, a.start,
        )
        for a in activities
    ]  # fmt: skip


def _indexed(numbers: Sequence[int], starts: Sequence[float], wanted: set[int]) -> dict[int, list[int]]:
    """Number -> its positions in order of time, for the wanted positive numbers."""
    places: dict[int, list[int]] = {}
    for place, number in enumerate(numbers):
        if number > 0 and number in wanted:
            places.setdefault(number, []).append(place)
    for found in places.values():
        if len(found) > 1:
            found.sort(key=starts.__getitem__)
    return places


def _nearest(candidates: Sequence[int], starts: Sequence[float], start: float) -> int | None:
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    begins = starts.__getitem__
    last = candidates[max(0, bisect_right(candidates, start + _SKEW_US, key=begins) - 1)]
    return candidates[bisect_left(candidates, starts[last], key=begins)]  # the first of those that begin together


def _arrows_of(recording: Recording, activities: Sequence[Activity], calls: Sequence[int | None]) -> list[int | None]:
    """For activities without a call: the arrow that ends where they begin, or has their correlation."""
    if None not in calls or not len(recording.flow_starts.number):
        return [None] * len(calls)
    ends, starts = recording.flow_ends, recording.flow_starts
    number_at = dict(zip(zip(ends.thread, ends.start, strict=True), ends.number, strict=True))
    start_of = {number: arrow for arrow, number in enumerate(starts.number)}
    return [
        None if call is not None else start_of.get(number_at.get((a.thread, a.start), a.correlation))
        for a, call in zip(activities, calls, strict=True)
    ]


def _moments(
    recording: Recording, calls: Sequence[int | None], arrows: Sequence[int | None], first_arrow: int
) -> dict[int, list[tuple[float, float, int]]]:
    """Thread -> (begin, end, key) of the calls and arrows; the keys of arrows follow those of calls."""
    moments: dict[int, list[tuple[float, float, int]]] = {}
    made, flows = recording.calls, recording.flow_starts
    for call in {call for call in calls if call is not None}:
        end = made.start[call] + made.dur[call]
        moments.setdefault(made.thread[call], []).append((made.start[call], end, call))
    for arrow in {arrow for arrow in arrows if arrow is not None}:
        begin = flows.start[arrow]
        moments.setdefault(flows.thread[arrow], []).append((begin, begin, first_arrow + arrow))
    return moments


def _spans_by_external(recording: Recording, activities: Sequence[Activity]) -> dict[int, int]:
    """``External id`` -> span, without ids that different spans share (merged traces); empty if the id only repeats the
    correlation."""
    if not any(0 < a.external != a.correlation for a in activities):
        return {}
    spans = recording.spans
    found: dict[int, int] = {}
    shared = set()
    for span, external in enumerate(spans.external):
        if external <= 0:
            continue
        known = found.setdefault(external, span)
        if spans.start[known] != spans.start[span] or spans.name[known] != spans.name[span]:
            shared.add(external)
    return {external: span for external, span in found.items() if external not in shared}
