"""The ops of a trace that matter: those that own a kernel, the ops around them and the forward ops of backward ones."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from memwall.traces.events import Recording
from memwall.traces.nesting import Nesting
from memwall.traces.records import TracedOp

#: "autograd::engine::evaluate_function: AddmmBackward0", "CompiledFunctionBackward"
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$|^torch::autograd::AccumulateGrad$")
_OPTIMIZER = re.compile(r"^Optimizer\.|^aten::_(fused|foreach)_(adam|adamw|sgd|adagrad)")
#: most modules named in a path; real ones nest less than twenty deep
_MOST_MODULES = 64
_NO_WORD = re.compile(r"\W")


class Owners:
    """Which spans become :class:`TracedOp`, and what is known of each."""

    def __init__(self, recording: Recording, nesting: Nesting, spans: Iterable[int], base: float) -> None:
        self._recording = recording
        self._spans = recording.spans
        self._nesting = nesting
        self._base = base
        self._phases: dict[int, str] = {}  # name -> what it says itself
        self._modules: dict[int, str] = {}  # path -> its text
        kept = self._with_parents(set(spans))
        forward = self._forward_of(kept)
        kept |= self._with_parents(set(forward.values()))
        start, place = self._spans.start, nesting.place
        self._order = sorted(kept, key=lambda span: (start[span], self._spans.thread[span], place[span]))
        #: backward span -> forward span
        self._forward = forward
        #: span -> id in Trace.ops
        self.ids = {span: index for index, span in enumerate(self._order)}

    def ops(self) -> tuple[TracedOp, ...]:
        """The ops, parents before children and forward ops before their backward ops."""
        made: list[TracedOp] = []
        for span in self._order:
            made.append(self._op(span, made))
        return tuple(made)

    def _with_parents(self, spans: set[int]) -> set[int]:
        found: set[int] = set()
        for span in spans:
            while span >= 0 and span not in found:
                found.add(span)
                span = self._nesting.parent[span]
        return found

    def _op(self, span: int, made: list[TracedOp]) -> TracedOp:
        """One op; missing fields are taken from the op around it, or from its forward op."""
        spans, texts, nesting = self._spans, self._recording.names.texts, self._nesting
        detail = self._recording.details[spans.detail[span]]
        parent = made[self.ids[nesting.parent[span]]] if nesting.parent[span] >= 0 else None
        origin = made[self.ids[self._forward[span]]] if span in self._forward else None
        if origin is None and parent is not None and parent.forward is not None:
            origin = made[parent.forward]
        near = [other for other in (parent, origin) if other is not None]
        module = self.module_of(nesting.module[span]) or next((other.module for other in near if other.module), "")
        source = detail.source or (texts[nesting.frame[span]] if nesting.frame[span] >= 0 else "")
        phase = self._phase(span) or (parent.phase if parent else "")
        return TracedOp(
            id=self.ids[span], name=texts[spans.name[span]], thread=self._recording.threads[spans.thread[span]],
            start_us=spans.start[span] - self._base, dur_us=spans.dur[span],
            dims=detail.dims, types=detail.types, strides=detail.strides, concrete=detail.concrete,
            parent=parent.id if parent else None, module=module,
            source=source or next((other.source for other in near if other.source), ""),
            phase=phase or ("forward" if module or spans.sequence[span] >= 0 else ""),
            forward=origin.id if origin else None, attributes=detail.attributes,
        )  # fmt: skip

    def module_of(self, path: int) -> str:
        """The text of a module path, "" for -1."""
        if path not in self._modules:
            names = self._nesting.path_names(path)[:_MOST_MODULES]
            self._modules[path] = "/".join(self._recording.names.texts[name] for name in names)
        return self._modules[path]

    def _forward_of(self, kept: set[int]) -> dict[int, int]:
        """Backward span -> the forward span that made its node: same sequence number, begun before.

        The counter advances when a node is made, so of several ops with one number the last that began made it,
        unless one has the node's name.
        """
        spans = self._spans
        nodes = {span for span in kept if spans.sequence[span] >= 0 and self._phase(span) == "backward"}
        if not nodes:
            return {}
        numbers = {self._number(span) for span in nodes}
        #: the ops of a number, and of these the ops of one name, in order of time
        candidates: dict[tuple[tuple[str, int], str | None], list[int]] = {}
        for span, sequence in enumerate(spans.sequence):
            if sequence >= 0 and (number := self._number(span)) in numbers and self._phase(span) != "backward":
                for name in (None, _bare(self._name(span))):
                    candidates.setdefault((number, name), []).append(span)
        for found in candidates.values():
            found.sort(key=spans.start.__getitem__)
        pairs = ((node, self._made(node, candidates)) for node in nodes)
        return {node: made for node, made in pairs if made is not None}

    def _made(
        self, backward: int, candidates: Mapping[tuple[tuple[str, int], str | None], Sequence[int]]
    ) -> int | None:
        begins = self._spans.start.__getitem__
        for name in (_bare(self._name(backward)), None):
            found = candidates.get((self._number(backward), name), ())
            if count := bisect_right(found, begins(backward), key=begins):
                return found[count - 1]
        return None

    def _phase(self, span: int) -> str:
        if self._spans.forward_thread[span] > 0:
            return "backward"
        name = self._spans.name[span]
        if name not in self._phases:
            text = self._recording.names.texts[name]
            is_optimizer = "optimizer" if _OPTIMIZER.search(text) else ""
            self._phases[name] = "backward" if _BACKWARD.search(text) else is_optimizer
        return self._phases[name]

    def _number(self, span: int) -> tuple[str, int]:
        return self._recording.threads[self._spans.thread[span]][0], self._spans.sequence[span]

    def _name(self, span: int) -> str:
        return self._recording.names.texts[self._spans.name[span]]


@lru_cache(maxsize=1 << 12)
def _bare(name: str) -> str:
    """addmm of "aten::addmm" and of "autograd::engine::evaluate_function: AddmmBackward0"."""
    word = _NO_WORD.split(name)[-1].rstrip("0123456789")
    return word.removesuffix("Backward").replace("_", "").lower()
