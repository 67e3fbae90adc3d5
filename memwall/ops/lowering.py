"""Ops whose kernels depend on the GPU and on the version of torch: traced as one call, and lowered to what runs.

:data:`CALLS` is the one table: which ops these are, and the rules by which each kind of call takes its kernels on a
chip (:mod:`memwall.ops.sdpa`, :mod:`memwall.ops.grouped`). A trace records the calls and, for each kind of them, what
every choice launches that some GPU would take; :meth:`LowerableGraph.lower` gives the graph of one choice, without
torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from memwall.core.graph import Graph, Op, Storage, Value
from memwall.hardware.chips import Chip
from memwall.hardware.torch_versions import BACKENDS, FLASH, TorchVersion
from memwall.ops.grouped import CHOICES, GroupedCall
from memwall.ops.sdpa import BACKWARD, FORWARD, ORDER, AttentionCall, Backends

#: op -> the rules of its calls; a gradient that is one call with its forward op follows that
CALLS: Mapping[str, type[AttentionCall] | type[GroupedCall]] = {
    FORWARD: AttentionCall,
    "aten._grouped_mm": GroupedCall,
    "transformers.grouped_mm_fallback": GroupedCall,
    "transformers.grouped_mm_fallback_backward": GroupedCall,
}
#: every op that is lowered
LOWERED = (*CALLS, BACKWARD)


def call_of(graph: Graph, op: Op) -> AttentionCall | GroupedCall:
    """The call that a traced op is."""
    return CALLS[op.name].of(graph, op)


def kernels_said(backends: Sequence[str]) -> str:
    """``flash attention, grouped matmuls as loops``: the kernels of a graph in words."""
    names = dict.fromkeys(backends)
    attention = " and ".join(name for name in names if name in (*BACKENDS, *FLASH))
    return ", ".join([*([f"{attention} attention"] if attention else []), *(CHOICES[n] for n in names if n in CHOICES)])


@dataclass(frozen=True)
class CallKind:
    """Calls that are alike: the first forward op and its backward op in the traced graph, and what each backend
    launches: a graph from the call's inputs and its gradient to its result and the gradients of its inputs."""

    op: int
    backward: int | None
    forms: Mapping[str, Graph]


@dataclass(frozen=True)
class LowerableGraph:
    """A traced graph with ops of :data:`CALLS`, and the kinds of them. ``torch`` is the version whose kernels run;
    ``preferred`` is the backend of attention that the user chose for every GPU, empty where each GPU takes its own."""

    traced: Graph
    kinds: tuple[CallKind, ...]
    torch: TorchVersion
    preferred: str = ""

    def on(self, chip: Chip) -> Backends:
        """What decides on a chip."""
        return Backends(chip, self.torch, self.preferred)

    def backends(self, chip: Chip) -> tuple[str, ...]:
        """The backend of each kind on a chip; a UsageError as :meth:`AttentionCall.backend`."""
        found = [call_of(self.traced, self.traced.ops[kind.op]).backend(self.on(chip)) for kind in self.kinds]
        return tuple(
            # a record of an older memwall holds no other form of it
            name if name in kind.forms else next(each for each in ORDER[::-1] if each in kind.forms)
            for name, kind in zip(found, self.kinds, strict=True)
        )

    @cached_property
    def calls(self) -> Mapping[int, tuple[int, int]]:
        """Op that is lowered → the number of its kind, and its forward op; a record of an older memwall has no kinds of
        some."""
        graph = self.traced
        forward_of = _forward_of(graph)
        first = {of: op for op, of in reversed(forward_of.items()) if op != of}
        number_of = {_key(graph, kind.op, kind.backward): number for number, kind in enumerate(self.kinds)}
        keys = {op: _key(graph, of, first.get(of)) for op, of in forward_of.items()}
        return {op: (number_of[key], forward_of[op]) for op, key in keys.items() if key in number_of}

    def lower(self, backends: Sequence[str], label: str) -> Graph:
        """The graph with the kernels of one choice; values and storages of the traced graph keep their numbers.

        Args:
            backends: the backend of each kind.
            label: what the choice is called, in :attr:`Graph.attention`.
        """
        key = tuple(backends), label
        if key not in self._lowered:
            self._lowered[key] = _Lowered(self, backends).graph(label)
        return self._lowered[key]

    @cached_property
    def _lowered(self) -> dict[tuple[tuple[str, ...], str], Graph]:
        return {}

    def spans(self, graph: Graph) -> Iterator[tuple[Op, int, int]]:
        """Each op that is lowered, and the ops (from, to) that it is in a lowered graph."""
        shift = 0
        for op in self.traced.ops:
            if op.id in self.calls:
                kind = self.calls[op.id][0]
                length = len(_part(self.kinds[kind].forms[graph.backends[kind]], op.name))
                yield op, op.id + shift, op.id + shift + length
                shift += length - 1


def _forward_of(graph: Graph) -> dict[int, int]:
    """Op that is lowered → its forward op, itself but for attention's gradient: a backward op reads its result; of one
    that a hook on saved tensors has replaced, the last forward op that has none yet."""
    found: dict[int, int] = {}
    made: dict[int, int] = {}
    for op in graph.ops:
        if op.name in CALLS:
            found[op.id] = op.id
            if op.name == FORWARD:
                made[graph.values[op.outputs[0]].storage] = op.id
        elif op.name == BACKWARD:
            out = graph.values[op.inputs[op.arguments.index("out")]].storage
            found[op.id] = made[out] if out in made else _last_without_backward(found, made.values())
    return found


def _last_without_backward(forward_of: Mapping[int, int], forwards: Iterable[int]) -> int:
    done = {of for op, of in forward_of.items() if op != of}
    return max(of for of in forwards if of not in done)


def _key(graph: Graph, *ops: int | None) -> tuple[Any, ...]:
    """What calls of one kind share: arguments, attributes and the specs of their tensors."""
    called = [graph.ops[number] for number in ops if number is not None]
    return tuple(
        [(o.name, o.arguments, repr(o.attributes), graph.specs(o.inputs), graph.specs(o.outputs)) for o in called]
    )


def kinds_of(graph: Graph) -> list[tuple[int, int | None]]:
    """The first forward op of each kind, and its first backward op if it has one."""
    forward_of = _forward_of(graph)
    first = {of: op for op, of in reversed(forward_of.items()) if op != of}
    found: dict[tuple[Any, ...], tuple[int, int | None]] = {}
    for of in dict.fromkeys(forward_of.values()):
        found.setdefault(_key(graph, of, first.get(of)), (of, first.get(of)))
    return list(found.values())


def _part(form: Graph, name: str) -> list[Op]:
    phase = "backward" if name == BACKWARD else "forward"
    return [op for op in form.ops if op.phase == phase]


class _Lowered:
    """A graph while the ops of its calls are replaced."""

    def __init__(self, choices: LowerableGraph, backends: Sequence[str]) -> None:
        self.choices, self.backends, self.traced = choices, tuple(backends), choices.traced
        self.forms = [kind.forms[name] for kind, name in zip(choices.kinds, backends, strict=True)]
        self.parts = {(i, n): _part(form, n) for i, form in enumerate(self.forms) for n in LOWERED}
        self.values, self.storages = list(self.traced.values), list(self.traced.storages)
        calls = [self.traced.ops[number] for number in choices.calls]
        touched = {self.values[i].storage for op in calls for i in (*op.inputs, *op.outputs)}
        self.numbers = {(v.storage, v.offset, v.spec): v.id for v in self.values if v.storage in touched}
        self.ops: list[Op] = []
        #: forward op → storage of its form → (storage, elements from there to here)
        self.bound: dict[int, dict[int, tuple[int, int]]] = {}

    def graph(self, label: str) -> Graph:
        free_calls = Counter(self.traced.free_calls)
        ends: list[int] = []  # the last op here of each traced one
        for op in self.traced.ops:
            kind, of = self.choices.calls.get(op.id, (None, op.id))
            waits = tuple([ends[number] for number in op.waits])
            if kind is None:
                same = op.id == len(self.ops) and op.waits == waits
                self.ops.append(op if same else replace(op, id=len(self.ops), waits=waits))
            else:
                if op.id == of:
                    free_calls.update(self.forms[kind].free_calls)
                self._splice(replace(op, waits=waits), of, self.forms[kind], self.parts[kind, op.name])
            ends.append(len(self.ops) - 1)
        return replace(
            self.traced,
            values=tuple(self.values),
            storages=tuple(self.storages),
            ops=tuple(self.ops),
            free_calls=dict(free_calls),
            attention=label,
            backends=self.backends,
        )

    def _splice(self, op: Op, of: int, form: Graph, part: Sequence[Op]) -> None:
        bound = self.bound.setdefault(of, {})
        given = len(self.traced.ops[of].inputs)
        if op.name != BACKWARD:
            pairs = [*zip(form.inputs[:given], op.inputs, strict=True), *zip(form.outputs, op.outputs, strict=False)]
        else:  # a hook on saved tensors may hand back others than forward had
            kept = dict(zip(op.arguments, op.inputs, strict=True))
            names = self.traced.ops[of].arguments
            pairs = [(form.inputs[i], kept[name]) for i, name in enumerate(names) if name in kept]
            pairs += [(form.inputs[given], kept["grad_out"]), (form.outputs[0], kept["out"])]
            pairs += zip(form.outputs[1:], op.outputs, strict=True)
        for inner, outer in pairs:
            value = self.traced.values[outer]
            bound[form.values[inner].storage] = value.storage, value.offset - form.values[inner].offset
        for step in part:
            self.ops.append(
                Op(
                    len(self.ops),
                    step.name,
                    step.op_class,
                    op.phase,
                    op.module,
                    tuple([self._value(form, i, bound) for i in step.inputs]),
                    tuple([self._value(form, i, bound) for i in step.outputs]),
                    step.arguments,
                    step.attributes,
                    op.source,
                    op.stream,
                    op.waits if step is part[0] else (),
                    op.again,
                )
            )

    def _value(self, form: Graph, number: int, bound: dict[int, tuple[int, int]]) -> int:
        value = form.values[number]
        if value.storage not in bound:
            bound[value.storage] = len(self.storages), 0
            self.storages.append(Storage(len(self.storages), form.storages[value.storage].nbytes, "activation"))
        storage, shift = bound[value.storage]
        key = (storage, value.offset + shift, value.spec)
        known = self.numbers.get(key)
        if known is None:
            known = self.numbers[key] = len(self.values)
            self.values.append(Value(known, value.spec, storage, value.offset + shift))
        return known
