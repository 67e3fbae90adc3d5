"""The ops of a trace that matter: ops that own a kernel, the ops around them and the forward ops of backward ones."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from memwall.traces.events import Recording, in_order
from memwall.traces.fields import OP, is_op_name
from memwall.traces.nesting import Nesting
from memwall.traces.records import Numbered, OpKind, Ops

#: "autograd::engine::evaluate_function: AddmmBackward0", "CompiledFunctionBackward"
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$|^torch::autograd::AccumulateGrad$")
_OPTIMIZER = re.compile(r"^Optimizer\.|^aten::_(fused|foreach)_(adam|adamw|sgd|adagrad)")
#: most modules named in a path; real ones nest less than twenty deep
_MOST_MODULES = 64
#: most ops of one sequence number examined, the last first
_MOST_OPS = 1024
_NO_WORD = re.compile(r"\W")


class Owners:
    """Which spans become ops of the trace, and what is known of each."""

    def __init__(self, recording: Recording, nesting: Nesting, spans: Iterable[int], base: float) -> None:
        self._recording, self._nesting, self._base = recording, nesting, base
        self._spans = recording.spans
        self._phases: dict[int, str] = {}  # name -> what it says itself
        self._modules: dict[int, str] = {}  # path -> its text
        kept = bytearray(len(self._spans))
        self._keep(kept, spans)
        #: backward span -> forward span, or -1
        self._forward = self._forward_of(kept)
        self._keep(kept, self._forward)
        thread, place = self._spans.thread, nesting.place
        numbers = (span for span, is_kept in enumerate(kept) if is_kept)
        self._order = in_order(self._spans.start, numbers, lambda span: (thread[span], place[span]))
        #: span -> number in Trace.ops
        self.numbers = array("i", [-1]) * len(self._spans)
        for number, span in enumerate(self._order):
            self.numbers[span] = number

    def ops(self) -> Ops:
        """The ops, parents before children and forward ops before their backward ops."""
        made, known = Ops(), dict[tuple[Any, ...], int]()
        for number, span in enumerate(self._order):
            parent = self._number_of(self._nesting.parent[span])
            forward = self._number_of(self._forward[span])
            if not 0 <= forward < number:  # one that begins together with its backward op may come after it
                forward = made.forward[parent] if parent >= 0 else -1
            key, detail = self._kind(span, made, parent, forward), self._spans.detail[span]
            kind = known.setdefault((*key, detail), len(made.kinds))
            if kind == len(made.kinds):
                made.kinds.append(OpKind(*key, self._recording.details[detail]))
            made.kind.append(kind)
            made.parent.append(parent)
            made.forward.append(forward)
            made.start_us.append(self._spans.start[span] - self._base)
            made.dur_us.append(self._spans.dur[span])
        return made

    def _number_of(self, span: int) -> int:
        return self.numbers[span] if span >= 0 else -1

    def _keep(self, kept: bytearray, spans: Iterable[int]) -> None:
        """Keep some spans and the spans around them."""
        for span in spans:
            while span >= 0 and not kept[span]:
                kept[span] = True
                span = self._nesting.parent[span]

    def _kind(
        self, span: int, made: Ops, parent: int, forward: int
    ) -> tuple[str, tuple[str, str], str, str, str, bool]:
        """Name, thread, module, source, phase and whether it is an op; a missing module, source or phase is taken from
        the op around it, or from its forward op."""
        spans, texts, nesting = self._spans, self._recording.names.texts, self._nesting
        near = [made.kind_of(other) for other in (parent, forward) if other >= 0]
        module = self.module_of(nesting.module[span]) or next((other.module for other in near if other.module), "")
        source = self._recording.details[spans.detail[span]].source
        source = source or (texts[nesting.frame[span]] if nesting.frame[span] >= 0 else "")
        source = source or next((other.source for other in near if other.source), "")
        phase = self._phase(span) or (near[0].phase if parent >= 0 else "")
        phase = phase or ("forward" if module or spans.sequence[span] >= 0 else "")
        name = texts[spans.name[span]]
        is_op = spans.kind[span] == OP and is_op_name(name)
        return name, self._recording.threads[spans.thread[span]], module, source, phase, is_op

    def module_of(self, path: int) -> str:
        """The text of a module path, "" for -1."""
        if path not in self._modules:
            names = self._nesting.path_names(path)[:_MOST_MODULES]
            self._modules[path] = "/".join(self._recording.names.texts[name] for name in names)
        return self._modules[path]

    def _forward_of(self, kept: bytearray) -> array[int]:
        """Of each backward span the forward span that made its node, or -1: same process and sequence number, begun
        before.

        The counter advances when a node is made, so of several ops with one number the last that began made it,
        unless one has the node's name.
        """
        spans, found = self._spans, array("i", [-1]) * len(self._spans)
        numbers: Numbered[tuple[str, int]] = Numbered()
        nodes = [
            span
            for span, is_kept in enumerate(kept)
            if is_kept and spans.sequence[span] >= 0 and self._phase(span) == "backward"
        ]
        wanted = [numbers.number(self._node(span)) for span in nodes]
        if not wanted:
            return found
        node = array("i", [-1]) * len(spans)  # of what may have made one
        for span, sequence in enumerate(spans.sequence):
            if sequence >= 0 and self._phase(span) != "backward":
                node[span] = numbers.find(self._node(span))
        begun = in_order(spans.start, (span for span, number in enumerate(node) if number >= 0))
        order = in_order(node, begun)
        for span, number in zip(nodes, wanted, strict=True):
            low = bisect_left(order, number, key=node.__getitem__)
            high = bisect_right(order, number, low, key=node.__getitem__)
            high = bisect_right(order, spans.start[span], low, high, key=spans.start.__getitem__)
            found[span] = self._made(span, order[max(low, high - _MOST_OPS) : high])
        return found

    def _made(self, node: int, candidates: Sequence[int]) -> int:
        """The last of a node's name, else the last; -1 of none."""
        name = _bare(self._name(node))
        alike = (span for span in reversed(candidates) if _bare(self._name(span)) == name)
        return next(alike, candidates[-1] if candidates else -1)

    def _phase(self, span: int) -> str:
        if self._spans.backward[span]:
            return "backward"
        name = self._spans.name[span]
        if name not in self._phases:
            text = self._recording.names.texts[name]
            is_optimizer = "optimizer" if _OPTIMIZER.search(text) else ""
            self._phases[name] = "backward" if _BACKWARD.search(text) else is_optimizer
        return self._phases[name]

    def _node(self, span: int) -> tuple[str, int]:
        """Process and sequence number."""
        return self._recording.threads[self._spans.thread[span]][0], self._spans.sequence[span]

    def _name(self, span: int) -> str:
        return self._recording.names.texts[self._spans.name[span]]


@lru_cache(maxsize=1 << 12)
def _bare(name: str) -> str:
    """addmm of "aten::addmm" and of "autograd::engine::evaluate_function: AddmmBackward0"."""
    word = _NO_WORD.split(name)[-1].rstrip("0123456789")
    return word.removesuffix("Backward").replace("_", "").lower()
