"""Group → Python: the ops of a kernel as calls of ``torch.ops``, one after another, in a function that can be run.

It takes the tensors that the kernel reads or overwrites and returns its outputs. Views between ops are explicit. Two
groups that do the same to other tensors give the same text, which identifies repeated kernels.
"""

from __future__ import annotations

import itertools
import keyword
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memwall.core import compat
from memwall.core.errors import Unsupported
from memwall.core.flow import Flow
from memwall.core.graph import ITEMSIZE, Graph, Op, TensorSpec, Value
from memwall.fusion import Group
from memwall.fusion.view_steps import ViewStep, view_steps
from memwall.ops.evaluate import EvaluatedCall, Operators, evaluate
from memwall.ops.registry import find_row

#: Results of one call that get a name each; more are taken from a list.
MAX_NAMED = 16

_TENSORS = '''
def tensors(result):
    """The tensors of a result; None and numbers are left out."""
    items = [t for item in result for t in (item if isinstance(item, (list, tuple)) else [item])]
    return [t for t in items if isinstance(t, torch.Tensor)]

'''


@dataclass(frozen=True)
class Reference:
    """A function ``run`` as text, and the values that it takes and returns, in order."""

    source: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Text:
    """An expression in the source."""

    text: str


def reference(graph: Graph, flow: Flow, group: Group, operators: Operators) -> Reference:
    """A group as a function of its tensors.

    Raises:
        Unsupported: one of its ops is not a torch operator.
    """
    return _Writer(graph, flow, group).write(operators)


class _Writer:
    #: represents the device among the arguments of a call
    device = "meta"

    def __init__(self, graph: Graph, flow: Flow, group: Group) -> None:
        self.graph, self.flow, self.group = graph, flow, group
        self.op_ids = sorted((*group.op_ids, *group.recomputes))
        #: storage -> the variables in it, with the value that each holds
        self.pieces: dict[int, list[tuple[str, Value]]] = {}
        #: value id -> its parameter
        self.parameters: dict[int, str] = {}
        self.lines: list[str] = []
        self.names = {"torch", "tensors", "run", "device"}
        #: of the current op: the values that it writes into, and whether it takes a tensor only for its shape
        self.targets: tuple[int, ...] = ()
        self.shape_only = False
        self.hosts: list[str] = []

    def write(self, operators: Operators) -> Reference:
        evaluate(self.graph, self.op_ids, self, self._call, operators)
        outputs = [self._read(i) for i in self.group.writes]
        body = [*self.lines, f"return ({', '.join(outputs)}{',' * (len(outputs) == 1)})"]
        text = "\n".join(f"    {line}" for line in body)
        parameters = []
        for value_id, name in self.parameters.items():
            value = self.graph.values[value_id]
            strides = "" if value.spec.is_contiguous else f" strides {[*value.spec.strides]}"
            role = self.graph.storages[value.storage].role
            parameters.append(f"    {name},  # {value.spec.dtype}{[*value.spec.shape]}{strides} {role}\n")
        parameters += [f"    {name},  # a number on the host, which is not in the trace\n" for name in self.hosts]
        if re.search(r"\bdevice\b", text):
            parameters += ["    *,\n", '    device="cuda",\n']
        helper = _TENSORS if "tensors(" in text else ""
        source = f"import torch\n\n{helper}\ndef run(\n{''.join(parameters)}):\n{text}\n"
        return Reference(source, tuple(self.parameters), self.group.writes)

    # -- one op ------------------------------------------------------------------------------------------------------

    def begin(self, op: Op, into: Sequence[int]) -> None:
        """Make parameters of what the op reads from outside the group, and allocate what it writes into."""
        for value_id, version in self.flow.reads[op.id]:
            if self.flow.writer[version] not in self.op_ids and value_id not in self.parameters:
                self._take(value_id)
        self.targets = tuple(into)
        self.shape_only = (row := find_row(op.name)) is not None and row.shape_only
        for value_id in into:
            self._open(op, value_id)

    def _call(self, call: EvaluatedCall) -> None:
        """The line of a call, its fresh results named."""
        positional, keywords = call.arguments()
        given = [*map(self._text, positional)]
        given += [f"{name}={self._text(value)}" for name, value in keywords.items() if value is not None]
        text, made = f"torch.ops.{call.target.function}({', '.join(given)})", call.made
        returns = compat.schema(call.target.function).returns
        fresh = [n for n, item in enumerate(returns) if not (item.alias_info and item.alias_info.is_write)]
        names: list[str] = []
        if not made:
            self.lines.append(text)
        elif len(returns) == 1 and "List" not in str(returns[0].real_type):
            if len(made) > 1:
                raise Unsupported(f"{call.op.name} makes a sparse tensor")
            names = [self._name(call.op.name)]
            self.lines.append(f"{names[0]} = {text}")
        elif len(made) <= MAX_NAMED and len(fresh) == len(returns):
            names = [self._name(call.op.name) for _ in made]
            more = "" if len(made) == len(returns) else ", *_"
            self.lines.append(f"{', '.join(names)}{more or ',' * (len(names) == 1)} = tensors({text})")
        else:
            result = self._name("results")
            mixed = len(fresh) < len(returns)
            self.lines.append(f"{result} = {text}" if mixed else f"{result} = tensors({text})")
            names = [f"{result}[{fresh[n] if mixed else n}]" for n in range(len(made))]
        for name, value_id in zip(names, made, strict=True):
            self._hold(name, self.graph.values[value_id])
        self.targets = ()

    def _hold(self, name: str, value: Value) -> None:
        self.pieces.setdefault(value.storage, []).append((name, value))

    # -- tensors -----------------------------------------------------------------------------------------------------

    def _take(self, value_id: int) -> None:
        """Make a value a parameter."""
        value = self.graph.values[value_id]
        storage = self.graph.storages[value.storage]
        name = self._name(storage.name.rpartition(".")[2] or "x")
        self.parameters[value_id] = name
        self._hold(name, value)

    def _open(self, op: Op, value_id: int) -> None:
        """Ensure a target to write into: a parameter, or new memory where the op is the first to write."""
        value = self.graph.values[value_id]
        if value.storage in self.pieces:
            return
        version = next(n for v, n in self.flow.writes[op.id] if v == value_id)
        storage = self.graph.storages[value.storage]
        if self.flow.first[value.storage] < version or storage.is_persistent:
            self._take(value_id)
            return
        spec = TensorSpec((storage.nbytes // value.spec.itemsize,), (1,), value.spec.dtype)
        name = self._name("new")
        self.lines.append(f"{name} = {_empty(spec)}")
        self._hold(name, Value(value_id, spec, value.storage, 0))

    def tensor(self, value_id: int) -> _Text:
        """The expression of a value, as an argument."""
        return _Text(self._read(value_id))

    def _read(self, value_id: int) -> str:
        """The expression of a value: a variable, or a view of one."""
        value = self.graph.values[value_id]
        pieces = self.pieces.get(value.storage, [])[::-1]
        for name, piece in pieces:
            if (piece.spec, piece.offset) == (value.spec, value.offset):
                return name
        low, high = value.byte_range
        for name, piece in pieces:
            if piece.byte_range[0] <= low and high <= piece.byte_range[1]:
                return self._view(name, piece, value)
        self._take(value_id)
        return self.parameters[value_id]

    def _view(self, name: str, piece: Value, value: Value) -> str:
        spec, offset = piece.spec, piece.offset
        if spec.dtype != value.spec.dtype:
            name, spec, offset = _in_dtype(name, spec, offset, value.spec.dtype)
        reshape = "view" if value.id in self.targets else "reshape"
        for step in view_steps(spec, offset, value.spec, value.offset):
            name += _step(step, name, value.offset - offset, reshape)
        return name

    def _name(self, wanted: str) -> str:
        parts = wanted.split(".")
        base = parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[-1]
        base = re.sub(r"\W", "_", base).strip("_") or "x"
        if base[0].isdigit() or keyword.iskeyword(base):
            base = f"x_{base}"
        names = itertools.chain((base,), (f"{base}_{i}" for i in itertools.count(2)))
        name = next(n for n in names if n not in self.names)
        self.names.add(name)
        return name

    # -- arguments as text -------------------------------------------------------------------------------------------

    def _text(self, value: Any) -> str:
        if isinstance(value, _Text):
            return value.text
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self._text, value))}]"
        if isinstance(value, torch.device):
            return "device"
        if isinstance(value, torch.Tensor):
            return self._stand_in(value)
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        return str(value) if type(value).__module__ == "torch" else repr(value)

    def _stand_in(self, tensor: torch.Tensor) -> str:
        """A tensor that is not in the graph: one of which only the shape counts, or a number on the host."""
        if not tensor.dim() and not self.shape_only:
            self.hosts.append(self._name("number"))
            return self.hosts[-1]
        dtype = str(tensor.dtype).removeprefix("torch.")
        return _empty(TensorSpec(tuple(tensor.shape), tuple(tensor.stride()), dtype))


def _empty(spec: TensorSpec) -> str:
    return f"torch.empty_strided({[*spec.shape]}, {[*spec.strides]}, dtype=torch.{spec.dtype}, device=device)"


def _step(step: ViewStep, name: str, distance: int, reshape: str) -> str:
    """A view operator as a method call."""
    if step.name == "as_strided":
        shape, strides, _ = step.arguments
        return f".as_strided({[*shape]}, {[*strides]}, {name}.storage_offset() + {distance})"
    if step.name == "slice":
        axis, start, stop = step.arguments
        return f".narrow({axis}, {start}, {stop - start})"
    given = ", ".join(str([*a]) if isinstance(a, Sequence) else str(a) for a in step.arguments)
    return f".{reshape if step.name == 'view' else step.name}({given})"


def _in_dtype(name: str, spec: TensorSpec, offset: int, dtype: str) -> tuple[str, TensorSpec, int]:
    """A variable as elements of another dtype; real and imaginary parts are a last axis of two."""
    if spec.dtype.startswith("complex") and not dtype.startswith("complex"):
        strides = (*(2 * s for s in spec.strides), 1)
        return f"torch.view_as_real({name})", TensorSpec((*spec.shape, 2), strides, dtype), 2 * offset
    if dtype.startswith("complex"):
        flat = TensorSpec((spec.numel // 2,), (1,), dtype)
        return f"torch.view_as_complex({name}.reshape(-1, 2))", flat, offset // 2
    itemsize = ITEMSIZE[dtype]
    flat = TensorSpec((spec.numel * spec.itemsize // itemsize,), (1,), dtype)
    return f"{name}.reshape(-1).view(torch.{dtype})", flat, offset * spec.itemsize // itemsize
