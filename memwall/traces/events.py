"""One pass over a trace: the needed fields of each event go into columns, the rest is dropped as it is read.

An op takes 46 bytes here, a row of the GPU 53, a runtime call 40 and an arrow 20; names and arguments (shapes, types,
grids) are stored once for all events that share them. Python frames are kept only where they are modules or the user's
own lines.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import merge
from itertools import chain, islice, pairwise
from typing import Any

from memwall.traces import fields
from memwall.traces.fields import ANNOTATION, KERNEL, OP, OVERHEAD, PYTHON, RUNTIME
from memwall.traces.records import Detail, Numbered
from memwall.traces.values import last_number, printable, read_detail, time_us, whole_number

_MODULE_PREFIX = "nn.Module: "
_STEP_PREFIX = "ProfilerStep"


class Names:
    """Text stored once: index by text, text by index. Unprintable characters are escaped."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._index: dict[str, int] = {}

    def index(self, text: str) -> int:
        """The index of a text, added if it is new."""
        found = self._index.get(text)
        if found is None:
            found = self._index[text] = len(self.texts)
            self.texts.append(printable(text))
        return found


#: of a row of the GPU, by its number
CATEGORIES = ("kernel", "memcpy", "memset", "communication")
_CATEGORY = {KERNEL: 0, fields.MEMCPY: 1, fields.MEMSET: 2}


class Spans:
    """What nests on CPU threads: ops, annotations, modules, frames. One row per span, in the order of the file."""

    def __init__(self) -> None:
        #: ``backward``: whether the profiler names a forward thread
        self.kind, self.backward = array("b"), array("b")
        self.start, self.dur = array("d"), array("d")
        self.name, self.thread, self.detail = array("i"), array("i"), array("i")
        self.external, self.sequence = array("q"), array("q")

    def __len__(self) -> int:
        return len(self.kind)


class Calls:
    """Runtime and driver calls, and the profiler's own ``overhead``, on CPU threads."""

    def __init__(self) -> None:
        self.start, self.dur = array("d"), array("d")
        self.name, self.thread = array("i"), array("i")
        self.correlation, self.external = array("q"), array("q")


class Flows:
    """Arrows: ends of one kind, by the number that both ends share."""

    def __init__(self) -> None:
        self.start, self.number, self.thread = array("d"), array("q"), array("i")


class Activities:
    """Rows of GPU streams before they are linked. ``lane`` is a device and stream."""

    def __init__(self) -> None:
        self.start, self.dur = array("d"), array("d")
        self.category = array("b")
        self.name, self.lane, self.thread, self.detail = array("i"), array("i"), array("i"), array("i")
        self.correlation, self.external = array("q"), array("q")

    def __len__(self) -> int:
        return len(self.start)

    def take(self, order: Sequence[int]) -> None:
        """Keep the rows of these numbers, in this order."""
        for name, column in vars(self).items():
            setattr(self, name, array(column.typecode, map(column.__getitem__, order)))


def in_order(starts: Sequence[float], numbers: Iterable[int], ties: Callable[[int], Any] | None = None) -> array[int]:
    """Some rows by their start; rows that begin together by ``ties``, else as they were.

    Blocks are sorted and merged: a list of all would take 36 bytes for each row, ten times the result.
    """
    taken, begin = iter(numbers), starts.__getitem__
    blocks = [array("i", sorted(block, key=begin)) for block in iter(lambda: list(islice(taken, _BLOCK)), [])]
    meets = all(begin(one[-1]) <= begin(next_one[0]) for one, next_one in pairwise(blocks))  # as most files have them
    order = array("i", chain.from_iterable(blocks) if meets else merge(*blocks, key=begin))
    first = 0
    for at in range(1, len(order) + 1 if ties else 0):
        if at == len(order) or starts[order[at]] != starts[order[first]]:
            if at - first > 1:
                order[first:at] = array("i", sorted(order[first:at], key=ties))
            first = at
    return order


#: rows sorted at a time
_BLOCK = 1 << 16


class Recording:
    """Everything kept of a trace, unlinked. :meth:`keep` takes one event."""

    def __init__(self) -> None:
        self.names = Names()
        self.threads: list[tuple[str, str]] = []
        self.details: list[Detail] = [Detail()]
        self.spans = Spans()
        self.calls = Calls()
        self.overheads = Calls()
        self.flow_starts = Flows()
        self.flow_ends = Flows()
        self.activities = Activities()
        self.lanes: Numbered[tuple[int, int]] = Numbered()
        self.steps: list[tuple[float, float, str]] = []
        self.dropped: Counter[str] = Counter()
        #: events of the file, kept or not
        self.events = 0
        self._threads: dict[tuple[object, object], int] = {}
        self._by_text: dict[tuple[str, str], int] = {}
        self._details: dict[str, int] = {"{}": 0}
        self._flow_numbers: dict[str, int] = {}
        self._spelled = fields.Spellings()

    def keep(self, event: dict[str, Any]) -> None:
        """Store the needed fields of an event; count it if it cannot be trusted."""
        self.events += 1
        phase = event.get("ph")
        if phase == "X":
            self._keep_span(event)
        elif phase in ("s", "f") and fields.is_launch_flow(str(event.get("cat"))):
            self._keep_flow(event, self.flow_starts if phase == "s" else self.flow_ends)

    def _keep_span(self, event: dict[str, Any]) -> None:
        category, name = event.get("cat") or event.get("pid"), event.get("name")
        kind = fields.kind_of(category) if isinstance(category, str) else None
        if kind is None:
            return
        start, dur = time_us(event.get("ts")), time_us(event.get("dur"))
        if start is None or dur is None:
            self.dropped["without a time or a duration"] += 1
        elif dur < 0:
            self.dropped["of negative duration"] += 1
        elif not isinstance(name, str):
            self.dropped["without a name"] += 1
        elif kind == PYTHON:
            is_module = name.startswith(_MODULE_PREFIX)
            is_builtin = name.startswith("<")  # "<built-in method ... at 0x7f...>": most of them, and no two alike
            text = name[len(_MODULE_PREFIX) :] if is_module else "" if is_builtin else fields.user_frame(name)
            if text:
                self._add_span(event, fields.MODULE if is_module else fields.FRAME, text, start, dur, {})
        elif kind not in (OP, ANNOTATION, RUNTIME, OVERHEAD):
            self._keep_activity(event, kind, name, start, dur)
        elif kind in (RUNTIME, OVERHEAD):
            self._keep_call(event, self.calls if kind == RUNTIME else self.overheads, name, start, dur)
        elif name.startswith(_STEP_PREFIX):
            self.steps.append((start, dur, printable(name)))
        else:
            found = self._arguments(event)
            stack = found.pop("stack", None)
            if isinstance(stack, str) and (source := fields.user_frame_of_stack(stack)):
                found["source"] = source
            self._add_span(event, kind, name, start, dur, found)

    def _add_span(
        self, event: dict[str, Any], kind: int, name: str, start: float, dur: float, found: dict[str, Any]
    ) -> None:
        spans = self.spans
        found.pop("correlation", None)  # its own in each event: nothing to share
        spans.kind.append(kind)
        spans.start.append(start)
        spans.dur.append(dur)
        spans.name.append(self.names.index(name))
        spans.thread.append(self._thread(event))
        spans.external.append(whole_number(found.pop("external", None)))
        spans.sequence.append(whole_number(found.pop("sequence", None)))
        spans.backward.append(whole_number(found.pop("forward_thread", None)) > 0)
        spans.detail.append(self._detail(found) if found else 0)

    def _keep_call(self, event: dict[str, Any], calls: Calls, name: str, start: float, dur: float) -> None:
        found = self._arguments(event)
        calls.start.append(start)
        calls.dur.append(dur)
        calls.name.append(self.names.index(name))
        calls.thread.append(self._thread(event))
        calls.correlation.append(whole_number(found.get("correlation")))
        calls.external.append(whole_number(found.get("external")))

    def _keep_activity(self, event: dict[str, Any], kind: int, name: str, start: float, dur: float) -> None:
        found, rows = self._arguments(event), self.activities
        index = self.names.index(name)
        category = _CATEGORY[kind]
        if kind == KERNEL and ("Collective name" in found or fields.is_communication(self.names.texts[index])):
            category = CATEGORIES.index("communication")
        device, stream = found.pop("device", None), found.pop("stream", None)
        rows.start.append(start)
        rows.dur.append(dur)
        rows.name.append(index)
        rows.category.append(category)
        rows.lane.append(
            self.lanes.number(
                (
                    max(0, whole_number(event.get("pid") if device is None else device)),
                    max(0, whole_number(last_number(event.get("tid")) if stream is None else stream)),
                )
            )
        )
        rows.correlation.append(whole_number(found.pop("correlation", None)))
        rows.external.append(whole_number(found.pop("external", None)))
        rows.thread.append(self._thread(event))
        rows.detail.append(self._detail(found) if found else 0)

    def _keep_flow(self, event: dict[str, Any], flows: Flows) -> None:
        start, shared = time_us(event.get("ts")), event.get("id")
        if start is None or shared is None:
            return
        number = whole_number(shared)
        if number < 0:  # a text: numbered downwards, so that it meets no correlation
            number = self._flow_numbers.setdefault(str(shared)[:64], -2 - len(self._flow_numbers))
        flows.number.append(number)
        flows.thread.append(self._thread(event))
        flows.start.append(start)

    def _arguments(self, event: dict[str, Any]) -> dict[str, Any]:
        """The arguments that are used, under this package's names."""
        arguments = event.get("args")
        if not isinstance(arguments, dict):
            return {}
        spelled = self._spelled
        return {name: value for key, value in arguments.items() if (name := spelled[key])}

    def _thread(self, event: dict[str, Any]) -> int:
        """Process and thread as one index; profilers write one thread as 25772 here and "25772" there."""
        process, thread = event.get("pid"), event.get("tid")
        try:
            known = self._threads.get((process, thread))
        except TypeError:  # a list where a number should be
            process, thread = str(process)[:64], str(thread)[:64]
            known = self._threads.get((process, thread))
        if known is None:
            text = (printable(str(process)[:64]), printable(str(thread)[:64]))
            known = self._by_text.get(text)
            if known is None:
                known = self._by_text[text] = len(self.threads)
                self.threads.append(text)
            self._threads[process, thread] = known
        return known

    def _detail(self, found: dict[str, Any]) -> int:
        text = repr(found)
        known = self._details.get(text)
        if known is None:
            known = self._details[text] = len(self.details)
            self.details.append(read_detail(found))
        return known
