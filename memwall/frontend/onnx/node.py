"""One node of a file as its row sees it: operands, attributes, and the calls that it writes into the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from memwall.core.errors import UsageError
from memwall.core.graph import TensorSpec
from memwall.frontend.writing import GraphWriter, reshape_strides
from memwall.hardware.chips import Chip

#: dtypes of less than a byte: elements of one
PACKED = {"int4": 2, "uint4": 2, "int2": 4, "uint2": 4, "float4_e2m1fn_x2": 2}
#: names of floating dtypes
FLOATS = ("float32", "float16", "bfloat16", "float64")


@dataclass(slots=True)
class OnnxTensor:
    """A value of the file: shape and dtype; its id in the graph once a kernel makes or takes it; its numbers where they
    are known. ``role`` is its storage's where it exists before the step; ``fixed``: it is the same in every step.
    ``stored``: what it is dequantized from, its scales and zero points; ``make`` writes that, where a kernel takes it.
    """

    shape: tuple[int, ...]
    dtype: str
    value: int | None = None
    numbers: Any = None
    role: str = "buffer"
    name: str = ""
    fixed: bool = False
    stored: tuple[OnnxTensor, ...] = ()
    make: Callable[[], int] | None = None

    @property
    def scalar(self) -> Any:
        """The number of a known tensor of one element, else None."""
        return None if self.numbers is None or self.numbers.size != 1 else self.numbers.reshape(()).item()


#: what the nodes of a graph can name
Scope = dict[str, OnnxTensor]


@dataclass
class Node:
    """A node: ``inputs`` in order, None where one is left out; ``made`` are shape and dtype of its outputs, None where
    the file does not use one. What it writes goes to ``writer``; ``chip`` is the chip of the GPU that decides
    kernels."""

    op: str
    name: str
    inputs: Sequence[OnnxTensor | None]
    made: Sequence[tuple[tuple[int, ...], str] | None]
    attributes: Mapping[str, Any]
    writer: GraphWriter
    chip: Chip
    notes: dict[str, None] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first output."""
        return self._first[0]

    @property
    def dtype(self) -> str:
        """Dtype of the first output."""
        return self._first[1]

    @property
    def _first(self) -> tuple[tuple[int, ...], str]:
        if not self.made or self.made[0] is None:
            raise self.wrong("its first output is unused")
        return self.made[0]

    def wrong(self, why: str) -> UsageError:
        """The error that a node cannot be modeled for this reason."""
        return UsageError(f"the node {self.name or '(unnamed)'} ({self.op}) cannot be read: {why}")

    def has(self, i: int) -> bool:
        """Whether an operand is given."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def need(self, i: int) -> OnnxTensor:
        """An operand; a UsageError where it is missing."""
        found = self.inputs[i] if i < len(self.inputs) else None
        if found is None:
            raise self.wrong(f"it has no input {i}")
        return found

    def numbers(self, i: int, default: Sequence[int] | None = None) -> list[int]:
        """The whole numbers of an operand whose contents say a shape, axes or places; ``default`` where it is not
        given."""
        if not self.has(i):
            if default is None:
                raise self.wrong(f"it has no input {i}")
            return list(default)
        found = self.need(i).numbers
        if found is None:
            raise self.wrong(f"its input {i} ({self.need(i).name}) depends on data, and says a shape")
        return [int(n) for n in found.reshape(-1)]

    # -- values -------------------------------------------------------------------------------------------------------

    def id(self, i: int) -> int:
        """The id of an operand, which a constant gets where a kernel first takes it."""
        return self.placed(self.need(i))

    def placed(self, tensor: OnnxTensor) -> int:
        """The id of a tensor's value in the graph."""
        return placed(self.writer, tensor)

    def spec(self, value: int) -> TensorSpec:
        """Shape, strides and dtype of a value."""
        return self.writer.spec(value)

    def new(self, shape: Sequence[int] | None = None, dtype: str | None = None) -> int:
        """A new array; by default as the first output."""
        return self.writer.array(self.shape if shape is None else shape, dtype or self.dtype)

    def news(self) -> list[int]:
        """New arrays for all outputs that are used."""
        return [self.writer.array(*made) for made in self.made if made is not None]

    def run(
        self,
        op: str,
        inputs: Sequence[int],
        arguments: str | Sequence[str],
        attributes: Mapping[str, Any] | None = None,
        outputs: Sequence[int] | None = None,
    ) -> int:
        """A call of an op, of aten unless its name says another library, into new arrays of all outputs unless others
        are given; the id of the first."""
        made = self.news() if outputs is None else list(outputs)
        names = arguments.split() if isinstance(arguments, str) else arguments
        full = op if "." in op else f"aten.{op}"
        self.writer.op(full, inputs, made, arguments=names, attributes=attributes)
        return made[0]

    # -- views --------------------------------------------------------------------------------------------------------

    def view(self, value: int, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> int:
        """A view of a value, which no kernel makes."""
        return self.writer.view(value, shape, strides, offset)

    def reshape(self, value: int, shape: Sequence[int]) -> int:
        """A value in another shape: a view where its strides allow one, else of a copy, as torch's ``reshape``."""
        spec = self.spec(value)
        strides = reshape_strides(spec, shape)
        if strides is None:
            value = self.run("clone", [value], "self", outputs=[self.new(spec.shape, spec.dtype)])
            strides = reshape_strides(self.spec(value), shape)
        if strides is None:
            raise self.wrong(f"{list(spec.shape)} has not as many elements as {list(shape)}")
        return self.view(value, shape, strides)

    def permute(self, value: int, order: Sequence[int]) -> int:
        """A value with its axes in another order."""
        spec = self.spec(value)
        return self.view(value, [spec.shape[i] for i in order], [spec.strides[i] for i in order])

    def swapped(self, value: int) -> int:
        """A value with its last two axes swapped."""
        rank = len(self.spec(value).shape)
        return self.permute(value, [*range(rank - 2), rank - 1, rank - 2])

    def expand(self, value: int, shape: Sequence[int]) -> int:
        """A value repeated along axes of one element, and along new ones in front."""
        spec = self.spec(value)
        ahead = len(shape) - len(spec.shape)
        if (*shape[ahead:],) == spec.shape and not ahead:
            return value
        strides = [0] * ahead
        strides += [
            0 if n == 1 and m != 1 else s for n, m, s in zip(spec.shape, shape[ahead:], spec.strides, strict=True)
        ]
        return self.view(value, shape, strides)

    def part(self, value: int, axis: int, start: int, length: int, step: int = 1) -> int:
        """Every ``step``-th of some elements along an axis."""
        spec = self.spec(value)
        shape, strides = list(spec.shape), list(spec.strides)
        offset = start * strides[axis] if length else 0
        shape[axis], strides[axis] = length, strides[axis] * step
        return self.view(value, shape, strides, offset)

    def made_of(self, values: Iterable[int]) -> list[OnnxTensor]:
        """Tensors of some values."""
        return [OnnxTensor(self.spec(v).shape, self.spec(v).dtype, v) for v in values]


def called(proto: Any) -> str:
    """A node of the file, by its op and its name where it has one."""
    return f"{proto.op_type} {proto.name}".rstrip()


def placed(writer: GraphWriter, tensor: OnnxTensor) -> int:
    """The id of a tensor's value, which gets one where a kernel or the caller first takes it."""
    if tensor.value is None and tensor.make is not None:
        tensor.value = tensor.make()
    if tensor.value is None:
        tensor.value = new_array(writer, tensor.shape, tensor.dtype, tensor.role, tensor.name)
    return tensor.value


def new_array(writer: GraphWriter, shape: Sequence[int], dtype: str, role: str = "activation", name: str = "") -> int:
    """An array; of elements of less than a byte, as many bytes as hold them."""
    if dtype in PACKED:
        shape = (-(-prod(shape) // PACKED[dtype]),)
        dtype = dtype if dtype == "float4_e2m1fn_x2" else "uint8"
    return writer.array(shape, dtype, role, name)
