"""What all loop nests share: stores, partial results, and the writer of one function."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memwall.codegen.index import Index, Variable, offset
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.lowering import Lowering
from memwall.codegen.ops.base import Scatter
from memwall.codegen.tensors import Body, Indices, Reduction, Tensor, cast
from memwall.codegen.writing import File, Function, Pointer, Touch

X, R = frozenset("x"), frozenset("r")


@dataclass(eq=False)
class Store:
    """A tensor that goes to memory: as a value of the graph, or a scatter into one."""

    value_id: int
    tensor: Tensor
    scatter: Scatter | None = None
    #: scratch that a scatter adds into, empty where it writes to its output
    target: str = ""

    @property
    def numel(self) -> int:
        return self.tensor.numel


@dataclass
class Partial:
    """A reduction whose stripes wait in scratch memory to be combined."""

    reduction: Reduction
    names: list[str]
    stripes: str
    #: elements of stripe ``s``, as an expression, where the kind counts them
    count: str = ""


class Missing(Exception):
    """A reduction is needed that is not computed yet."""

    def __init__(self, reduction: Reduction) -> None:
        super().__init__("a reduction is needed first")
        self.reduction = reduction


class Writer:
    """Writes one function; the :class:`~memwall.codegen.tensors.Memory` of its bodies."""

    def __init__(self, file: File, lowering: Lowering, name: str, is_large: bool) -> None:
        self.file, self.lowering, self.is_large = file, lowering, is_large
        self.function = Function(name)
        self.local: dict[tuple[int, int], str] = {}
        self.scratch: dict[tuple[int, int], tuple[str, str]] = {}
        self.x = Variable("x", 1, X)
        self.masks: dict[str, str] = {}
        self.hoists = True

    # -- the protocol of bodies --------------------------------------------------------------------------------------

    def pointer(self, value_id: int) -> str:
        name = self.file.outputs.get(value_id) or self.file.take(value_id)
        return self.point(name, name, self.spec_dtype(value_id), self.file.note(value_id))

    def point(self, name: str, argument: str, dtype: str, note: str = "") -> str:
        """A pointer parameter."""
        self.function.pointers.setdefault(name, Pointer(name, argument, dtype, note))
        return name

    def spec_dtype(self, value_id: int) -> str:
        return self.file.graph.values[value_id].spec.dtype

    def is_empty(self, value_id: int) -> bool:
        return self.file.graph.values[value_id].spec.numel == 0

    def reduced(self, body: Body, reduction: Reduction, kept: Index, component: int) -> str:
        key = (id(reduction), component)
        if key in self.local:
            if kept != Index.of(self.x):
                raise NotGenerated("a row's result is used at another row")
            return self.local[key]
        if key in self.scratch:
            name, dtype = self.scratch[key]
            return body.load_scratch(self.point(name, name, dtype), kept)
        raise Missing(reduction)

    def mask(self, axes: frozenset[str]) -> list[str]:
        return [self.masks[axis] for axis in sorted(axes, reverse=True) if axis in self.masks]

    def unique(self) -> str:
        return self.function.unique()

    # -- pieces of text ----------------------------------------------------------------------------------------------

    def program(self, axis: int) -> str:
        """Number of the thread block along an axis of the grid."""
        return f"tl.program_id({axis}){self.long}"

    @property
    def long(self) -> str:
        """The cast to 64 bits, where offsets need them."""
        return ".to(tl.int64)" if self.is_large else ""

    def store(self, body: Body, store: Store, indices: Indices, axes: frozenset[str]) -> None:
        """One element of a tensor to memory; ``axes`` are those along which the elements lie."""
        if store.scatter is not None:
            self._scatter(body, store, store.scatter, indices, axes)
            return
        value = self.file.graph.values[store.value_id]
        text = body.name(cast(store.tensor.at(body, indices), store.tensor.dtype, value.spec.dtype))
        place = offset(indices, value.spec.strides)
        is_read = any(read.value_id == store.value_id for read in self.function.reads)
        if is_read and "r" in self.masks and "r" not in place.axes:
            body.lines.append("tl.debug_barrier()")  # every warp holds a copy of what one of them overwrites
        self._put(body, store, "store", place, text, [], place.axes | X)

    def _target(self, store: Store) -> str:
        if store.target:
            return self.point(store.target, store.target, "float32")
        return self.pointer(store.value_id)

    def _scatter(self, body: Body, store: Store, scatter: Scatter, indices: Indices, axes: frozenset[str]) -> None:
        place, tests = scatter.place(body, indices)
        dtype = "float32" if store.target else scatter.dtype
        text = body.name(cast(scatter.source.at(body, indices), scatter.source.dtype, dtype))
        how = "atomic_add" if scatter.accumulate else "store"
        self._put(body, store, how, place, text, tests, axes)

    def _put(
        self, body: Body, store: Store, how: str, place: Index, text: str, tests: list[str], axes: frozenset[str]
    ) -> None:
        masks = [*self.mask(axes), *tests]
        where = f"{self._target(store)} + {body.spread(place, axes)}"
        if not store.target:
            self.function.writes.append(Touch(store.value_id, self.file.versions[store.value_id], place.text))
        order = ['sem="relaxed"'] if how == "atomic_add" else []
        given = [where, text, *([" & ".join(masks)] if masks else []), *order]
        body.lines.append(f"tl.{how}({', '.join(given)})")


def indented(lines: Iterable[str]) -> list[str]:
    """Lines of a loop's body."""
    return [f"    {line}" for line in lines]
