"""Traced ops called again, one after another: on tensors, under a tracer, or as text (:func:`evaluate`).

A traced op becomes a call of the operator that it names, its arguments in the order of the schema. What a graph leaves
out is put back: dtypes from their names, the device, the memory format that gives the traced strides, a stand-in for a
tensor that lives on the host or that the op only takes the shape of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from memwall.core import compat
from memwall.core.errors import Unsupported
from memwall.core.graph import Graph, Op, TensorSpec, contiguous
from memwall.ops.recorded import SCALAR_TYPES
from memwall.ops.signatures import Signature, SignatureArgument, signature_of

#: Ops as traced -> the form that a compiler sees: running statistics are written, and the schema says so.
_LEGIT_BATCH_NORM = "aten._native_batch_norm_legit"


class Operators:
    """Looks operators up by the name that the trace gave them; each once."""

    def __init__(self) -> None:
        self._found: dict[str, Signature | None] = {}

    def find(self, op: Op) -> Signature | None:
        """The operator of a traced op, or None when torch has none of that name."""
        name = op.name
        if name == "aten.native_batch_norm":
            name = _LEGIT_BATCH_NORM + ("" if "running_mean" in op.arguments else ".no_stats")
        if name not in self._found:
            namespace, _, rest = name.partition(".")
            packet, _, overload = rest.partition(".")
            try:
                function = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
                self._found[name] = signature_of(function)
            except (AttributeError, RuntimeError):
                self._found[name] = None
        return self._found[name]

    def overwritten(self, op: Op) -> tuple[int, ...]:
        """The outputs that the op writes into, rather than makes."""
        operator = self.find(op)
        if operator is None:
            return tuple(i for i in op.outputs if i in op.inputs)
        written = {a.name: a for a in operator.arguments if a.written}
        into = [i for n, i in zip(op.arguments, op.inputs, strict=True) if n in written]
        if any(a.unread for a in written.values()):
            into += [i for i in op.outputs if i not in into]
        return tuple(into)


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
class EvaluatedCall:
    """A traced op that is about to be called. ``into`` are its outputs that it writes over, ``made`` the outputs
    that it makes."""

    graph: Graph
    op: Op
    into: tuple[int, ...]
    tensors: Tensors
    operator: Signature | None

    @property
    def made(self) -> list[int]:
        """The outputs that are new."""
        return [i for i in self.op.outputs if i not in self.into]

    @property
    def target(self) -> Signature:
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
        op, tensor = self.op, self.tensors.tensor
        by_name: dict[str, list[int]] = {}
        for name, value_id in zip(op.arguments, op.inputs, strict=True):
            by_name.setdefault(name, []).append(value_id)
        unread = _unread(op, self.target)
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for argument in self.target.arguments:
            if "Tensor" not in argument.kind:
                value = _plain(self.graph, op, argument, self.tensors.device)
            elif argument.unread and argument.written:
                value = [*map(tensor, unread)] if "List" in argument.kind else tensor(next(unread))
            else:
                ids = by_name.get(argument.name, [])
                value = _tensors(self.graph, op, argument, ids, tensor, self.tensors.device)
            if argument.keyword_only:
                keywords[argument.name] = value
            else:
                positional.append(value)
        return positional, keywords


def evaluate(
    graph: Graph, op_ids: Iterable[int], tensors: Tensors, call: Callable[[EvaluatedCall], None], operators: Operators
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
        call(EvaluatedCall(graph, op, into, tensors, operators.find(op)))


def misfit(graph: Graph) -> Op | None:
    """The first op that torch refuses with the attributes that it has here, or whose results then have other shapes;
    None if all fit, or if torch cannot say."""
    operators, tensors = Operators(), _Described(graph)
    checked = set()
    for op in graph.ops:
        same = (op.name, graph.specs(op.inputs), graph.specs(op.outputs), op.arguments, repr(op.attributes))
        if same in checked or operators.find(op) is None or len(op.arguments) != len(op.inputs):
            continue
        checked.add(same)
        try:
            evaluate(graph, (op.id,), tensors, _check, operators)
        except NotImplementedError:
            continue
        except Exception:
            return op
    return None


@dataclass
class _Described:
    """Tensors as the graph describes them, with nothing in them."""

    graph: Graph
    device: str = "meta"

    def begin(self, op: Op, into: Sequence[int]) -> None:
        pass

    def tensor(self, value_id: int) -> torch.Tensor:
        return empty(self.graph.values[value_id].spec, self.device)


def _check(call: EvaluatedCall) -> None:
    """Call an op; a ValueError if its results have not the shapes of the graph."""
    positional, keywords = call.arguments()
    found = call.target.function(*positional, **keywords)
    made = [tensor for tensor in compat.tree_leaves(found) if isinstance(tensor, torch.Tensor)]
    shapes = [call.graph.values[i].spec.shape for i in call.op.outputs]
    if len(made) == len(shapes) and any(tuple(t.shape) != shape for t, shape in zip(made, shapes, strict=True)):
        raise ValueError("other shapes")


def _unread(op: Op, target: Signature) -> Iterator[int]:
    """The outputs that unread arguments (``out=``, the target of ``copy_``) were, in order."""
    written_and_read = {a.name for a in target.arguments if a.written and not a.unread}
    taken = {i for n, i in zip(op.arguments, op.inputs, strict=True) if n in written_and_read}
    return iter([i for i in op.outputs if i not in taken or i not in op.inputs])


#: arguments that no schema calls optional, undefined unless sequences of several lengths are packed into one tensor
_UNDEFINED = frozenset(("cum_seq_q", "cum_seq_k"))


def _tensors(
    graph: Graph, op: Op, argument: SignatureArgument, ids: list[int], tensor: Callable[[int], Any], device: str
) -> Any:
    name, optional = argument.name, argument.kind.startswith("Optional")
    if "List" in argument.kind:
        mask = op.attributes.get(f"{name}_given")
        if mask is None:
            return [tensor(i) for i in ids] if ids or not optional else None
        remaining = iter(ids)
        return [tensor(next(remaining)) if given else None for given in mask]
    if ids:
        return tensor(ids[0])
    if name in op.attributes:  # x + 1: a number where the schema has a tensor
        return _number(op.attributes[name])
    if optional or name in _UNDEFINED:
        return None
    spec = graph.values[op.outputs[0]].spec
    if name == "self":  # zeros_like and its kin: only the shape counts
        return empty(spec, device)
    return torch.zeros((), dtype=dtype_of(spec.dtype), device=device)  # a number on the host


def _plain(graph: Graph, op: Op, argument: SignatureArgument, device: str) -> Any:
    name, kind = argument.name, argument.kind
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
    if (op.name, name) == ("aten._fused_rms_norm_backward", "output_mask"):  # its traced form has none
        return [True, "weight" in op.arguments]
    if argument.default is None and not kind.startswith("Optional"):
        raise Unsupported(f"{op.name} needs {name}")
    return argument.default


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
    order, formats = (0, *range(2, len(made.shape)), 1), {4: torch.channels_last, 5: torch.channels_last_3d}
    if len(made.shape) in formats:
        shape, strides = (tuple(given[i] for i in order) for given in (made.shape, made.strides))
        return formats[len(made.shape)] if strides == contiguous(shape, made.dtype).strides else None
    return None


def dtype_of(name: str | int) -> torch.dtype:
    """``torch.float16`` for ``float16``, or for the number that C++ calls it by."""
    dtype: torch.dtype = getattr(torch, SCALAR_TYPES[name] if isinstance(name, int) else name)
    return dtype


def empty(spec: TensorSpec, device: str) -> torch.Tensor:
    """A tensor of that spec with nothing in it."""
    return torch.empty_strided(spec.shape, spec.strides, dtype=dtype_of(spec.dtype), device=device)
