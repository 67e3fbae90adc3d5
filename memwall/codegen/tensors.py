"""Tensors as functions of an index, and the body of a kernel into which they are evaluated.

A :class:`Tensor` knows how to write the expression of one of its elements. Evaluating it at an index evaluates its
inputs, down to loads from memory; expressions already written for the same index are reused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from memwall.codegen.index import Index, Variable
from memwall.codegen.kernel import TRITON_TYPES, NotGenerated
from memwall.codegen.writing import Function, Touch

Indices = tuple[Index, ...]
Rule = Callable[["Body", Indices], str]


def compute_dtype(dtype: str) -> str:
    """The dtype in which elements of a dtype are computed: float32 for the shorter floats."""
    if dtype in ("float16", "bfloat16") or dtype.startswith("float8"):
        return "float32"
    if dtype not in TRITON_TYPES:
        raise NotGenerated(f"elements of {dtype}")
    return dtype


def triton_dtype(dtype: str) -> str:
    """``tl.float32`` for ``float32``."""
    return f"tl.{'int1' if dtype == 'bool' else dtype}"


@dataclass(eq=False)
class Tensor:
    """A tensor, not necessarily in memory: shape, dtype and the expression of its element at an index."""

    shape: tuple[int, ...]
    dtype: str
    rule: Rule

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    def at(self, body: Body, indices: Indices) -> str:
        """The element at an index, as a name or number of its compute dtype in a body."""
        return body.compute(self, indices)


@dataclass(eq=False)
class Reduction:
    """Elements of ``source`` reduced along the axes ``dims`` to ``components`` numbers each, by ``kind``."""

    kind: str
    source: Tensor
    dims: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """Sizes of the axes that remain."""
        return tuple(n for i, n in enumerate(self.source.shape) if i not in self.dims)

    @property
    def reduced(self) -> tuple[int, ...]:
        """Sizes of the axes that are reduced."""
        return tuple(self.source.shape[i] for i in self.dims)

    def source_indices(self, kept: Indices, reduced: Indices) -> Indices:
        """Where the source is read."""
        kept_left, reduced_left = iter(kept), iter(reduced)
        return tuple(next(reduced_left) if i in self.dims else next(kept_left) for i in range(len(self.source.shape)))


class Memory(Protocol):
    """The source of what a body does not compute: the function that is being written."""

    function: Function

    def pointer(self, value_id: int) -> str:
        """Name of the pointer to a value's first element."""

    def spec_dtype(self, value_id: int) -> str:
        """Dtype of its elements in memory."""

    def reduced(self, body: Body, reduction: Reduction, kept: Index, component: int) -> str:
        """A result of a reduction."""

    def is_empty(self, value_id: int) -> bool:
        """Whether it has no elements."""

    @property
    def hoists(self) -> bool:
        """Whether loop-invariant expressions may be hoisted."""

    def mask(self, axes: frozenset[str]) -> list[str]:
        """The condition that an index along these axes is within the loop."""

    def unique(self) -> str:
        """A name that is not taken."""


_SIMPLE = re.compile(r"[A-Za-z_]\w*|-?[\d.]+(e-?\d+)?")


@dataclass
class Body:
    """Lines of a kernel at one depth of its loops. ``axes`` are the loop variables that are known there.

    ``condition`` is what must hold for the element at hand to exist (one part of a concatenation, a window's inside).
    """

    memory: Memory
    axes: frozenset[str]
    parent: Body | None = None
    lines: list[str] = field(default_factory=list)
    known: dict[tuple, str] = field(default_factory=dict)
    #: the tensors whose addresses are keys of ``known``, kept alive so that no address is reused
    kept: list[Tensor] = field(default_factory=list)
    conditions: tuple[tuple[str, frozenset[str]], ...] = ()

    def compute(self, tensor: Tensor, indices: Indices) -> str:
        """The element of a tensor, written once."""
        axes = frozenset().union(*(i.axes for i in indices))
        home = self.home(axes)
        key = (id(tensor), tuple([i.text for i in indices]), self.conditions)
        found = home.find(key)
        if found is None:
            found = home.name(tensor.rule(home, indices))
            home.known[key] = found
            home.kept.append(tensor)
        return found

    def home(self, axes: frozenset[str]) -> Body:
        """The outermost body where an expression of these axes is valid."""
        body = self
        if self.conditions or not self.memory.hoists:
            return self
        while body.parent is not None and axes <= body.parent.axes:
            body = body.parent
        return body

    def find(self, key: tuple) -> str | None:
        """The name written for a key, here or further out."""
        body: Body | None = self
        while body is not None:
            if key in body.known:
                return body.known[key]
            body = body.parent
        return None

    def name(self, text: str) -> str:
        """A name for an expression; equal expressions share one."""
        if _SIMPLE.fullmatch(text):
            return text
        found = self.find((text,))
        if found is None:
            found = self.memory.unique()
            self.known[(text,)] = found
            self.lines.append(f"{found} = {text}")
        return found

    def load(self, value_id: int, version: int, place: Index) -> str:
        """An element from memory, in its compute dtype, at a ``version`` of its storage."""
        self.memory.function.reads.append(Touch(value_id, version, place.text))
        home = self.home(place.axes)
        pointer, dtype = self.memory.pointer(value_id), self.memory.spec_dtype(value_id)
        if self.memory.is_empty(value_id):
            return home.name(f"tl.full([1], 0, {triton_dtype(compute_dtype(dtype))})")
        text = home._load(pointer, place)
        if compute_dtype(dtype) != dtype:
            text += f".to({triton_dtype(compute_dtype(dtype))})"
        return home.name(text)

    def load_scratch(self, pointer: str, place: Index) -> str:
        """An element of scratch memory."""
        home = self.home(place.axes)
        return home.name(home._load(pointer, place))

    def _load(self, pointer: str, place: Index) -> str:
        axes = place.axes.union(*(axes for _, axes in self.conditions))
        where = f"{pointer} + {self.spread(place, axes)}"
        masks = [*self.memory.mask(axes), *(text for text, _ in self.conditions)]
        return f"tl.load({where}, {' & '.join(masks)}, other=0)" if masks else f"tl.load({where})"

    def spread(self, place: Index, axes: frozenset[str]) -> str:
        """The text of an index as a tile that varies along the given axes, so that a mask along them fits it."""
        missing = sorted(axes - place.axes)
        return " + ".join([place.text, *(f"0 * {axis}" for axis in missing)])

    @contextmanager
    def where(self, text: str, axes: frozenset[str]) -> Iterator[None]:
        """While open, evaluations hold only under a condition: it masks their loads."""
        before = self.conditions
        self.conditions = (*before, (text, axes))
        try:
            yield
        finally:
            self.conditions = before

    def variable(self, text: str, size: int, axes: frozenset[str]) -> Index:
        """A number found in data as an index."""
        return Index.of(Variable(text, size, axes))


def cast(text: str, given: str, wanted: str) -> str:
    """An expression of one dtype's compute dtype in that of another."""
    source, target = compute_dtype(given), compute_dtype(wanted)
    if source == target:
        return text
    if target == "bool":
        return f"({text} != 0)"
    return f"{text}.to({triton_dtype(target)})"


def axes_of(indices: Sequence[Index]) -> frozenset[str]:
    """The axes along which any of them varies."""
    return frozenset().union(*(i.axes for i in indices))
