"""A graph of HLO while it is written, kernel by kernel: values with layouts, constants, streams that wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from memwall.core.graph import Graph
from memwall.frontend.hlo.module import HloArray, HloInstruction, HloModule, HloShape
from memwall.frontend.hlo.names import is_again, module_of, phase_of
from memwall.frontend.jax.views import View
from memwall.frontend.writing import GraphWriter


@dataclass(frozen=True, slots=True)
class HloConstant:
    """A scalar, or copies of one, that the compiler knows: no memory holds it. ``number``: None where none is told."""

    number: float | None = None


#: what an instruction yields: a value of the graph, a constant, or a tuple of these
Node = int | HloConstant | tuple["Node", ...]


class HloArgument(NamedTuple):
    """What the caller knows of an argument of the program: its role of :data:`memwall.core.graph.ROLES`, its name, and
    its bytes, where they are known."""

    role: str = "input"
    name: str = ""
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class HloKernel:
    """What one instruction launches: ``kind`` is the kind of a fusion (``loop``, ``input``, ``output``, ``custom``),
    the target of a custom call, else the opcode; ``cycles`` what a TPU's compiler estimates."""

    name: str
    kind: str
    op_ids: tuple[int, ...]
    cycles: int | None = None


@dataclass(frozen=True)
class HloGraph:
    """The graph, its kernels in the order of the program, how values in memory are laid out, and what was assumed."""

    graph: Graph
    kernels: tuple[HloKernel, ...]
    layouts: Mapping[int, HloArray] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


#: streams: of messages and of copies that the program waits for later
MESSAGES, COPIES = 1, 2


def values_of(node: Node) -> Iterator[int]:
    """The values of a node, in order."""
    if isinstance(node, int):
        yield node
    elif isinstance(node, tuple):
        for each in node:
            yield from values_of(each)


class Sheet(GraphWriter):
    """A graph as it is written, kernel by kernel: values with layouts, constants, streams that wait for each other."""

    def __init__(self, module: HloModule, max_ops: int) -> None:
        super().__init__(max_ops)
        self.program = module
        self.kernels: list[HloKernel] = []
        self.layouts: dict[int, HloArray] = {}
        self.notes: list[str] = []
        #: values of scalars that can be told: counters of loops
        self.numbers: dict[int, float] = {}
        self._writer: dict[int, int] = {}
        self._begin: int | None = None
        self._stream = 0
        #: values that this kernel returns as they are: written in part, or scratch memory
        self.left: set[int] = set()

    def given(self, one: HloInstruction, known: HloArgument) -> Node:
        """The value, or values, of a parameter of the entry."""
        name = known.name or one.metadata.get("op_name", "") or one.name
        return self._filled(one.shape, lambda array: self.new(array, known.role, name))

    def _filled(self, shape: HloShape, make: Any) -> Node:
        if isinstance(shape, HloArray):
            made: int = make(shape)
            self.layouts[made] = shape
            return made
        return tuple(self._filled(each, make) for each in shape)

    @contextmanager
    def kernel(self, one: HloInstruction, stream: int = 0) -> Iterator[None]:
        """What is written within is launched by one instruction."""
        began, self._begin, self._stream = len(self.ops), len(self.ops), stream
        self.left.clear()
        yield
        self._begin, self._stream = None, 0
        if len(self.ops) > began:
            kind = one.attributes.get("kind", f"k{one.opcode}")[1:].lower()
            kind = one.attributes.get("custom_call_target", kind).strip('"')
            cycles = one.backend_config.get("window_config", {}).get("estimated_cycles")
            ids = tuple(range(began, len(self.ops)))
            self.kernels.append(HloKernel(one.name, kind, ids, int(cycles) if cycles else None))

    @property
    def is_in_kernel(self) -> bool:
        """Whether a kernel is being written."""
        return self._begin is not None

    def is_made_here(self, value: int) -> bool:
        """Whether the kernel that is being written made a value."""
        writer = self._writer.get(self.values[value].storage, -1)
        return self._begin is not None and writer >= self._begin

    def place(self, one: HloInstruction) -> None:
        """Say of the ops that follow where in the program they are from; an instruction that does not say is from
        where the last was."""
        name = one.metadata.get("op_name", "")
        if name:
            self.module, self.phase, self.again = module_of(name), phase_of(name), is_again(name)
            self.again = self.again and self.phase == "backward"
            source = self.program.source_of(one)
            self.source = source if not source.startswith("<") else ""

    def new(self, array: HloArray, role: str = "activation", name: str = "") -> int:
        """A value that fills a new storage, in the array's layout."""
        physical = tuple(array.shape[axis] for axis in reversed(array.minor_to_major))
        made = self.array(physical, array.dtype, role, name)
        if physical != array.shape or array.strides != self.spec(made).strides:
            made = self.view(made, array.shape, array.strides)
        return made

    def value(self, node: Node, array: HloArray) -> int:
        """A value of a node: a constant is written."""
        if isinstance(node, int):
            return node
        made = self.new(array)
        self.op("lax.full", (), (made,))
        if isinstance(node, HloConstant) and node.number is not None and not array.shape:
            self.numbers[made] = node.number
        return made

    def op(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        *,
        arguments: Sequence[str] = (),
        attributes: Mapping[str, Any] | None = None,
        **said: Any,
    ) -> int:
        """A call, on the stream of the kernel; it waits for what other streams make of what it reads."""
        of_storage = [self._writer.get(self.values[i].storage, -1) for i in inputs]
        waits = {i for i in of_storage if i >= 0 and self.ops[i].stream != self._stream}
        names = (*arguments, *("operand",) * len(inputs))[: len(inputs)]
        said |= {"stream": self._stream, "waits": tuple(sorted(waits))}
        made = super().op(name, inputs, outputs, arguments=names, attributes=attributes, **said)
        for i in outputs:
            self._writer[self.values[i].storage] = made
        return made

    def seen(self, value: int, view: View | None, array: HloArray, name: str) -> int:
        """Another view of a value; where strides cannot say it, a copy."""
        if view is None or self.spec(value).itemsize != _itemsize(array):
            made = self.new(array)
            self.op(name, (value,), (made,))
        else:
            made = self.view(value, view.shape, view.strides, view.offset, array.dtype)
        if value in self.numbers:
            self.numbers[made] = self.numbers[value]
        return made

    def settled(self, node: Node, shape: HloShape, copy: str) -> Node:
        """What a kernel returns: values that are written whole, in the layout of their shape. Inputs, parts and
        constants are copied there, by an op of the name ``copy``."""
        if not isinstance(shape, HloArray):
            nodes = node if isinstance(node, tuple) else (node,) * len(shape)
            return tuple(self.settled(each, one, copy) for each, one in zip(nodes, shape, strict=True))
        value = self.value(node, shape)
        spec = self.spec(value)
        held = self.storages[self.values[value].storage].nbytes
        is_whole = self.is_made_here(value) and spec.nbytes == held
        laid = spec.strides if 1 not in spec.shape else _strides(spec.shape, spec.strides)
        wanted = shape.strides if 1 not in shape.shape else _strides(shape.shape, shape.strides)
        if value not in self.left and not (is_whole and laid == wanted and spec.shape == shape.shape):
            copied = self.new(shape)
            self.op(copy, (value,), (copied,))
            if value in self.numbers:
                self.numbers[copied] = self.numbers[value]
            value = copied
        self.layouts[value] = shape
        return value


def _strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides of axes that have more than one element."""
    return tuple(0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True))


def _itemsize(array: HloArray) -> int:
    return array.spec.itemsize
