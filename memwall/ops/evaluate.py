"""Traced ops called again, one after another: on tensors, under a tracer, or as text (:func:`evaluate`).

A traced op becomes a call of the operator that it names, its arguments in the order of the schema. What a graph leaves
out is put back: dtypes from their names, the device, the memory format that gives the traced strides, a stand-in for a
tensor that lives on the host or that the op only takes the shape of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from memwall.core.errors import Unsupported
from memwall.core.graph import Graph, Op, TensorSpec
from memwall.ops.recorded import SCALAR_TYPES
from memwall.ops.signatures import Signature, signature_of

#: Ops as traced -> the form that a compiler sees: running statistics are written, and the schema says so.
_LEGIT_BATCH_NORM = "aten._native_batch_norm_legit"

#: Arguments that a graph does not hold because the traced form of the op has none: from the op's tensors by name.
_COMPLETED: Mapping[tuple[str, str], Callable[[Op], Any]] = {
    ("aten._fused_rms_norm_backward", "output_mask"): lambda op: [True, "weight" in op.arguments],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """An operator, what is known of its schema, and the types of its arguments by name."""

    function: Any
    signature: Signature
    types: tuple[tuple[str, str, bool], ...]


class Operators:
    """Looks operators up by the name that the trace gave them; each once."""

    def __init__(self) -> None:
        self._targets: dict[str, Target | None] = {}

    def find(self, op: Op) -> Target | None:
        """The operator of a traced op, or None when torch has none of that name."""
        name = _renamed(op)
        if name not in self._targets:
            self._targets[name] = _lookup(name)
        return self._targets[name]

    def overwritten(self, op: Op) -> tuple[int, ...]:
        """The outputs that the op writes into, rather than makes."""
        target = self.find(op)
        if target is None:
            return tuple(i for i in op.outputs if i in op.inputs)
        written = [a for a in target.signature.arguments if a.written]
        if not written:
            return ()
        into = [i for n, i in zip(op.arguments, op.inputs, strict=True) if any(n == a.name for a in written)]
        if any(a.unread for a in written):
            into += [i for i in op.outputs if i not in into]
        return tuple(into)


def _renamed(op: Op) -> str:
    if op.name == "aten.native_batch_norm":
        return _LEGIT_BATCH_NORM + ("" if "running_mean" in op.arguments else ".no_stats")
    return op.name


def _lookup(name: str) -> Target | None:
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    try:
        function = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        signature = signature_of(function)
    except (AttributeError, RuntimeError):
        return None
    types = tuple((a.name, str(a.real_type), a.kwarg_only) for a in function._schema.arguments)
    return Target(function, signature, types)


class Tensors(Protocol):
    """Where an evaluation keeps the representation of each value: tensors, or names in a text."""

    device: str

    def begin(self, op: Op, into: Sequence[int]) -> None:
        """An op is about to be called: there has to be memory for the values ``into`` that it writes over."""
        ...

    def tensor(self, value_id: int) -> Any:
        """The representation of a value."""
        ...


@dataclass(frozen=True)
class Call:
    """A traced op that is about to be called. ``into`` are those of its outputs that it writes over, ``made`` those
    that it makes."""

    graph: Graph
    op: Op
    into: tuple[int, ...]
    tensors: Tensors
    operator: Target | None

    @property
    def made(self) -> list[int]:
        """The outputs that are new."""
        return [i for i in self.op.outputs if i not in self.into]

    @property
    def target(self) -> Target:
        """The operator.

        Raises:
            Unsupported: torch has none of that name.
        """
        if self.operator is None:
            raise Unsupported(f"torch has no operator {self.op.name} here")
        return self.operator

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments.

        Raises:
            Unsupported: there is no operator, or an argument that its schema needs is not in the graph.
        """
        return arguments_of(self.graph, self.op, self.target, self.tensors.tensor, self.tensors.device)


def evaluate(
    graph: Graph, op_ids: Iterable[int], tensors: Tensors, call: Callable[[Call], None], operators: Operators
) -> None:
    """Call traced ops one after another.

    Args:
        op_ids: in the order in which they are called.
        tensors: holds the values that are there before, and what the ops make.
        call: does what a call is to do (runs it, records it, writes it), and hands what it made to ``tensors``.

    Raises:
        Unsupported: a saved record does not name the arguments of an op.
    """
    for op_id in op_ids:
        op = graph.ops[op_id]
        if len(op.arguments) != len(op.inputs):
            raise Unsupported(f"the record does not name the arguments of {op.name}")
        into = operators.overwritten(op)
        tensors.begin(op, into)
        call(Call(graph, op, into, tensors, operators.find(op)))


def arguments_of(
    graph: Graph, op: Op, target: Target, tensor: Callable[[int], Any], device: str
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments of the call; ``tensor``: value id -> its representation.

    Raises:
        Unsupported: an argument that the schema needs is not in the graph.
    """
    by_name: dict[str, list[int]] = {}
    for name, value_id in zip(op.arguments, op.inputs, strict=True):
        by_name.setdefault(name, []).append(value_id)
    unread = _unread(op, target)
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for argument, (name, kind, keyword_only) in zip(target.signature.arguments, target.types, strict=True):
        if "Tensor" in kind and argument.unread and argument.written:
            given: Any = next(unread) if "List" not in kind else list(unread)
            value = tensor(given) if "List" not in kind else [tensor(i) for i in given]
        elif "Tensor" in kind:
            value = _tensors(graph, op, name, kind, by_name.get(name, []), tensor, device)
        else:
            value = _plain(graph, op, name, kind, argument.default, device)
        if keyword_only:
            keywords[name] = value
        else:
            positional.append(value)
    return positional, keywords


def _unread(op: Op, target: Target) -> Iterator[int]:
    """The outputs that unread arguments (``out=``, the target of ``copy_``) were, in order."""
    read = set(op.inputs)
    written_and_read = {a.name for a in target.signature.arguments if a.written and not a.unread}
    taken = {i for n, i in zip(op.arguments, op.inputs, strict=True) if n in written_and_read}
    return iter([i for i in op.outputs if i not in taken or i not in read])


def _tensors(
    graph: Graph, op: Op, name: str, kind: str, ids: list[int], tensor: Callable[[int], Any], device: str
) -> Any:
    if "List" in kind:
        mask = op.attributes.get(f"{name}_given")
        if mask is None:
            return [tensor(i) for i in ids] if ids or not kind.startswith("Optional") else None
        remaining = iter(ids)
        return [tensor(next(remaining)) if given else None for given in mask]
    if ids:
        return tensor(ids[0])
    if name in op.attributes:  # x + 1: a number where the schema has a tensor
        return _number(op.attributes[name])
    if kind.startswith("Optional"):
        return None
    spec = graph.values[op.outputs[0]].spec
    if name == "self":  # zeros_like and its kin: only the shape counts
        return empty(spec, device)
    return torch.zeros((), dtype=dtype_of(spec.dtype), device=device)  # a number on the host


def _plain(graph: Graph, op: Op, name: str, kind: str, default: Any, device: str) -> Any:
    if name == "device":
        return None if op.inputs else torch.device(device)
    if name == "memory_format":
        return _memory_format(graph, op)
    if "ScalarType" in kind:
        value = op.attributes.get(name)
        return None if value is None else dtype_of(value)
    if name in op.attributes:
        value = op.attributes[name]
        if "str" in kind:
            return value
        return list(value) if isinstance(value, tuple) else _number(value)
    completed = _COMPLETED.get((op.name, name))
    if completed is not None:
        return completed(op)
    if default is None and not kind.startswith("Optional"):
        raise Unsupported(f"{op.name} needs {name}")
    return default


def _number(value: Any) -> Any:
    """A number that a graph may store as text (infinities and NaN)."""
    return float(value) if isinstance(value, str) else value


def _memory_format(graph: Graph, op: Op) -> torch.memory_format | None:
    """The format that gives the traced strides; None keeps the input's."""
    made = graph.values[op.outputs[0]].spec if op.outputs else None
    if made is None or not op.inputs:
        return None
    given = graph.values[op.inputs[0]].spec
    if (given.shape, given.strides) == (made.shape, made.strides) or op.outputs[0] in op.inputs:
        return None
    if made.is_contiguous:
        return torch.contiguous_format
    return {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(made.shape)) if _channels_last(made) else None


def _channels_last(spec: TensorSpec) -> bool:
    order = (0, *range(2, len(spec.shape)), 1)
    strides = [spec.strides[i] for i in order]
    expected = 1
    for axis, stride in zip(reversed(order), reversed(strides), strict=True):
        if stride != expected:
            return False
        expected *= spec.shape[axis]
    return True


def dtype_of(name: str | int) -> torch.dtype:
    """``torch.float16`` for ``float16``, or for the number that C++ calls it by."""
    dtype: torch.dtype = getattr(torch, SCALAR_TYPES[name] if isinstance(name, int) else name)
    return dtype


def empty(spec: TensorSpec, device: str) -> torch.Tensor:
    """A tensor of that spec with nothing in it."""
    return torch.empty_strided(spec.shape, spec.strides, dtype=dtype_of(spec.dtype), device=device)
