"""Tensors as functions of an index, the body of a kernel into which they are evaluated, and the writer of a function.

A :class:`Tensor` knows how to write the expression of one of its elements. Evaluating it at an index evaluates its
inputs, down to loads from memory; expressions already written for the same index are reused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from memwall.codegen.index import AffineIndex, Variable, offset
from memwall.codegen.kernel import TRITON_TYPES, NotGenerated
from memwall.codegen.writing import File, Function, Pointer, Touch

Indices = tuple[AffineIndex, ...]
Rule = Callable[["Body", Indices], str]
#: loop variables of a tile: what is kept, and what is reduced
X, R = frozenset("x"), frozenset("r")


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
        return math.prod(self.shape)

    def at(self, body: Body, indices: Indices) -> str:
        """The element at an index, as a name or number of its compute dtype in a body."""
        return body.compute(self, indices)


@dataclass(eq=False)
class TensorReduction:
    """Elements of ``source`` reduced along the axes ``dims`` to some numbers each, by a kind of
    :mod:`memwall.codegen.kinds`."""

    kind: str
    source: Tensor
    dims: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """What it is computed in."""
        return compute_dtype(self.source.dtype)

    @property
    def kept(self) -> tuple[int, ...]:
        """Sizes of the axes that remain."""
        return tuple(n for i, n in enumerate(self.source.shape) if i not in self.dims)

    @property
    def reduced(self) -> tuple[int, ...]:
        """Sizes of the axes that are reduced."""
        return tuple(self.source.shape[i] for i in self.dims)

    @property
    def sizes(self) -> tuple[int, int]:
        """Elements that remain, and that are reduced to each."""
        return math.prod(self.kept), math.prod(self.reduced)

    def source_indices(self, kept: Indices, reduced: Indices) -> Indices:
        """Where the source is read."""
        kept_left, reduced_left = iter(kept), iter(reduced)
        return tuple(next(reduced_left) if i in self.dims else next(kept_left) for i in range(len(self.source.shape)))


@dataclass
class Scatter:
    """Elements of ``source`` added (or written) to an output at data-dependent positions.

    ``place(body, indices)`` is the element of the output, in row-major order, that the source's element at ``indices``
    goes to, with what must hold for it to go anywhere. The output starts as ``start``, or as zeros.
    """

    source: Tensor
    place: Callable[[Body, Indices], tuple[AffineIndex, list[str]]]
    shape: tuple[int, ...]
    dtype: str
    start: Tensor | None
    accumulate: bool


@dataclass(eq=False)
class Store:
    """A tensor that goes to memory: as a value of the graph, or a scatter into one."""

    value_id: int
    tensor: Tensor
    scatter: Scatter | None = None
    #: scratch that a scatter adds into, empty where it writes to its output
    target: str = ""
    #: the same as stores of what it copies in another order, each element to where the copy has it
    copied: Scatter | None = None

    @property
    def numel(self) -> int:
        return self.tensor.numel


# -- evaluation --------------------------------------------------------------------------------------------------------

_SIMPLE = re.compile(r"[A-Za-z_]\w*|-?[\d.]+(e-?\d+)?")


@dataclass
class Body:
    """Lines of a kernel at one depth of its loops. ``axes`` are the loop variables that are known there.

    ``conditions`` must hold for the element at hand to exist (one part of a concatenation, a window's inside).
    """

    writer: Writer
    axes: frozenset[str]
    parent: Body | None = None
    lines: list[str] = field(default_factory=list)
    known: dict[tuple, str] = field(default_factory=dict)
    #: the tensors whose addresses are keys of ``known``, kept alive so that no address is reused
    kept: list[Tensor] = field(default_factory=list)
    conditions: tuple[tuple[str, frozenset[str]], ...] = ()

    def compute(self, tensor: Tensor, indices: Indices) -> str:
        """The element of a tensor, written once."""
        home = self.home(axes_of(indices))
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
        if self.conditions or not self.writer.hoists:
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
            found = self.writer.unique()
            self.known[(text,)] = found
            self.lines.append(f"{found} = {text}")
        return found

    def load(self, value_id: int, version: int, place: AffineIndex) -> str:
        """An element from memory, in its compute dtype, at a ``version`` of its storage."""
        self.writer.function.reads.append(Touch(value_id, version, place.text))
        home, pointer = self.home(place.axes), self.writer.pointer(value_id)
        spec = self.writer.file.graph.values[value_id].spec
        computed = compute_dtype(spec.dtype)
        if spec.numel == 0:
            return home.name(f"tl.full([1], 0, {triton_dtype(computed)})")
        text = home._load(pointer, place)
        return home.name(text if computed == spec.dtype else f"{text}.to({triton_dtype(computed)})")

    def load_scratch(self, name: str, dtype: str, place: AffineIndex) -> str:
        """An element of scratch memory."""
        home = self.home(place.axes)
        return home.name(home._load(self.writer.point(name, dtype), place))

    def _load(self, pointer: str, place: AffineIndex) -> str:
        axes = place.axes.union(*(axes for _, axes in self.conditions))
        where = f"{pointer} + {self.spread(place, axes)}"
        masks = [*self.writer.mask(axes), *(text for text, _ in self.conditions)]
        return f"tl.load({where}, {' & '.join(masks)}, other=0)" if masks else f"tl.load({where})"

    def spread(self, place: AffineIndex, axes: frozenset[str]) -> str:
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

    def variable(self, text: str, size: int, axes: frozenset[str]) -> AffineIndex:
        """A number found in data as an index."""
        return AffineIndex.of(Variable(text, size, axes))


def cast(text: str, given: str, wanted: str) -> str:
    """An expression of one dtype's compute dtype in another's."""
    source, target = compute_dtype(given), compute_dtype(wanted)
    if source == target:
        return text
    if target == "bool":
        return f"({text} != 0)"
    return f"{text}.to({triton_dtype(target)})"


def axes_of(indices: Sequence[AffineIndex]) -> frozenset[str]:
    """The axes along which any of them varies."""
    return frozenset().union(*(i.axes for i in indices))


# -- one function ------------------------------------------------------------------------------------------------------


class Writer:
    """Writes one function: its pointers, masks and stores, and the results of reductions.

    ``local`` are results that are variables of the function, ``scratch`` results in memory, as name and dtype.
    """

    def __init__(self, file: File, name: str, is_large: bool = False) -> None:
        self.file = file
        self.function = Function(name)
        self.local: dict[tuple[int, int], str] = {}
        self.scratch: dict[tuple[int, int], tuple[str, str]] = {}
        self.x = Variable("x", 1, X)
        self.masks: dict[str, str] = {}
        #: whether loop-invariant expressions may be hoisted
        self.hoists = True
        #: the cast to 64 bits, where offsets need them
        self.long = ".to(tl.int64)" if is_large else ""

    def pointer(self, value_id: int) -> str:
        """Name of the pointer to a value's first element."""
        name = self.file.outputs.get(value_id) or self.file.take(value_id)
        return self.point(name, self.file.graph.values[value_id].spec.dtype, self.file.note(value_id))

    def point(self, name: str, dtype: str, note: str = "") -> str:
        """A pointer parameter, which is called as what ``run()`` passes for it."""
        self.function.pointers.setdefault(name, Pointer(name, dtype, note))
        return name

    def new_scratch(self, dtype: str, count: str) -> str:
        """The pointer to new memory between two launches."""
        return self.point(self.file.new_scratch(dtype, count), dtype)

    def reduced(self, body: Body, reduction: TensorReduction, kept: AffineIndex, component: int) -> str:
        """A result of a reduction."""
        key = (id(reduction), component)
        if key in self.local:
            if kept != AffineIndex.of(self.x):
                raise NotGenerated("a row's result is used at another row")
            return self.local[key]
        return body.load_scratch(*self.scratch[key], kept)

    def mask(self, axes: frozenset[str]) -> list[str]:
        """The conditions that an index along these axes is within the loop."""
        return [self.masks[axis] for axis in sorted(axes, reverse=True) if axis in self.masks]

    def unique(self) -> str:
        """A name that is not taken."""
        return self.function.unique()

    def program(self, axis: int) -> str:
        """Number of the thread block along an axis of the grid."""
        return f"tl.program_id({axis}){self.long}"

    def store(self, body: Body, store: Store, indices: Indices, axes: frozenset[str]) -> None:
        """One element of a tensor to memory; ``axes`` are the axes along which the elements lie."""
        scatter = store.scatter
        if scatter is not None:
            place, tests = scatter.place(body, indices)
            dtype = "float32" if store.target else scatter.dtype
            text = body.name(cast(scatter.source.at(body, indices), scatter.source.dtype, dtype))
        else:
            spec, tests = self.file.graph.values[store.value_id].spec, []
            text = body.name(cast(store.tensor.at(body, indices), store.tensor.dtype, spec.dtype))
            place = offset(indices, spec.strides)
            axes = place.axes | X
            is_read = any(read.value_id == store.value_id for read in self.function.reads)
            if is_read and "r" in self.masks and "r" not in place.axes:
                body.lines.append("tl.debug_barrier()")  # every warp holds a copy of what one of them overwrites
        pointer = self.point(store.target, "float32") if store.target else self.pointer(store.value_id)
        if not store.target:
            self.function.writes.append(Touch(store.value_id, self.file.versions[store.value_id], place.text))
        adds = scatter is not None and scatter.accumulate
        masks = " & ".join([*self.mask(axes), *tests])
        given = [f"{pointer} + {body.spread(place, axes)}", text, *([masks] if masks else [])]
        given += ['sem="relaxed"'] if adds else []
        body.lines.append(f"tl.{'atomic_add' if adds else 'store'}({', '.join(given)})")


def indented(lines: Iterable[str]) -> list[str]:
    """Lines of a loop's body."""
    return [f"    {line}" for line in lines]
