"""A call in a profiler's trace, and what the rules for its results share.

A trace records what goes into an op: shapes, dtypes, strides, values. What comes out is in no record: a rule for each
kind of op (:mod:`memwall.ops.results`) derives it. A rule takes a :class:`Recorded` and returns the results' specs, or
raises :class:`Unsupported`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memwall.core.errors import Unsupported
from memwall.core.graph import TensorSpec, contiguous

Specs = tuple[TensorSpec, ...]


@dataclass(kw_only=True)
class Recorded:
    """A recorded call: tensors and values by argument name, and what the trace around it says."""

    #: with its overload: ``aten.add.Tensor``
    name: str
    #: as the trace has it: ``aten::add``
    recorded_name: str
    #: the op whose formula counts it, or a rule's name, where it has no formula of its own
    counted_as: str = ""
    #: tensors that were passed, by argument in the order of the schema; an Unsupported where a record makes no sense
    given: Mapping[str, Specs | Unsupported]
    #: arguments that the record reaches, whether a value was recorded or not
    arguments: tuple[str, ...]
    #: values that were recorded, None among them
    values: Mapping[str, Any]
    #: the schema's arguments that are not tensors, with their defaults
    defaults: Mapping[str, Any]
    #: arguments that the call writes
    written: frozenset[str] = frozenset()
    #: how many results the schema has
    results: int = 1
    #: the results of an ``out=`` call
    out: Specs = ()
    #: all tensors after the schema's arguments, ``out`` among them
    beyond: Specs = ()
    allow_tf32: bool = True
    #: specs that the call's autograd node took, so specs of its results
    gradient: Specs = ()
    #: tensors that the next ops read, in order
    consumers: Specs = ()
    #: operands of the convolution's gradient that the call is a part of, by their places
    parent: tuple[TensorSpec | None, ...] = ()
    #: least elements that the launched kernels process, and slices that they gather, if names and grids say so
    elements: int = 0
    slices: int = 0
    #: the call whose gradient this one makes
    forward: Recorded | None = None
    #: what was not recorded, and what is counted instead; rules add to it
    notes: list[str] = field(default_factory=list)

    @property
    def packet(self) -> str:
        """The op's name without namespace and overload: ``add``."""
        return self.name.split(".")[1]

    def tensors(self, name: str) -> Specs:
        """The tensors passed as ``name``, one or a list of them."""
        found = self.given.get(name, ())
        if isinstance(found, Unsupported):
            raise found
        return found

    def tensor(self, name: str) -> TensorSpec | None:
        """The tensor passed as ``name``; None if it was not passed."""
        return next(iter(self.tensors(name)), None)

    def need(self, name: str) -> TensorSpec:
        """The same; raises :class:`Unsupported` if it was not passed."""
        found = self.tensor(name)
        if found is None:
            raise Unsupported(f"the shape of {name} was not recorded")
        return found

    def named(self) -> list[tuple[str, TensorSpec]]:
        """(argument, tensor) of all that are passed; the items of a list share its name."""
        return [(name, spec) for name in self.given for spec in self.tensors(name)]

    def inputs(self) -> list[TensorSpec]:
        """All tensors that are passed, in order."""
        return [spec for _, spec in self.named()]

    def value(self, name: str, default: Any = None) -> Any:
        """A value that is not a tensor: as recorded, else the schema's default, else ``default``."""
        found = self.values[name] if name in self.values else self.defaults.get(name)
        return default if found is None else found

    def sizes(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers, where it was recorded and is one."""
        value: Any = self.values.get(name)
        if type(value) is int:
            return (value,)
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return tuple(value) if is_list and all(type(n) is int for n in value) else None


Rule = Callable[[Recorded], Specs]


#: torch's numbers of dtypes (c10::ScalarType), as traces and some calls from C++ have them
SCALAR_TYPES = {0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
                 8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16", 23: "float8_e5m2",
                 24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz"}  # fmt: skip


def broadcast(shapes: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The shape that some shapes broadcast to."""
    result: list[int] = []
    for shape in shapes:
        aligned = [1] * (len(shape) - len(result)) + result
        offset = len(aligned) - len(shape)
        for i, n in enumerate(shape):
            here = aligned[offset + i]
            if here != n and 1 not in (here, n):
                raise Unsupported("the recorded shapes do not broadcast")
            aligned[offset + i] = n if here == 1 else here
        result = aligned
    return tuple(result)


FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")


def promote(specs: Sequence[TensorSpec]) -> str:
    """The dtype of arithmetic on tensors of several: tensors with dims decide, as torch has it."""
    with_dims = [spec.dtype for spec in specs if spec.shape] or [spec.dtype for spec in specs]
    complex_types = [dtype for dtype in with_dims if dtype.startswith("complex")]
    floats = [dtype for dtype in with_dims if dtype in FLOATS]
    if complex_types:
        return max(complex_types, key=("complex32", "complex64", "complex128").index)
    if floats:
        mixed_halves = {"float16", "bfloat16"} <= set(floats)
        return max([*floats, *(["float32"] if mixed_halves else [])], key=FLOATS.index)
    if any(spec.dtype in FLOATS for spec in specs):
        return "float32"
    integers = [dtype for dtype in with_dims if dtype in INTEGERS]
    return max(integers, key=INTEGERS.index) if integers else with_dims[0]


def dense(shape: tuple[int, ...], dtype: str, like: Sequence[TensorSpec] = ()) -> TensorSpec:
    """A dense tensor, in the layout of the first that has the shape and no gaps."""
    for spec in like:
        if spec.shape == shape and spec.is_dense:
            return TensorSpec(shape, spec.strides, dtype)
    return contiguous(shape, dtype)


def first_tensor(call: Recorded) -> TensorSpec:
    specs = call.inputs()
    if not specs:
        raise Unsupported("no tensor was recorded")
    return specs[0]


def shaped(shape: str, dtype: str = "") -> Rule:
    """In the shape of one argument and the dtype of that or another."""
    return lambda call: (contiguous(call.need(shape).shape, call.need(dtype or shape).dtype),)


def same(call: Recorded) -> Specs:
    """Like the first tensor, dense."""
    spec = first_tensor(call)
    return (dense(spec.shape, stated_dtype(call, spec.dtype), [spec]),)


def stated_dtype(call: Recorded, default: str) -> str:
    for name in ("dtype", "out_dtype", "output_dtype"):
        value = call.value(name) if name in call.arguments else None
        if type(value) is int and value in SCALAR_TYPES:
            return SCALAR_TYPES[value]
    return default


def taken_elsewhere(call: Recorded, fits: Callable[[TensorSpec], bool]) -> TensorSpec | None:
    """The result as the op's autograd node, else the next op, took it, if unambiguous."""
    return next((spec for spec in (*call.gradient, *call.consumers) if fits(spec)), None)
