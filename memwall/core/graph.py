"""What a model computes: values that live in storages, and ops that read and write them. Knows no torch.

A :class:`Value` is one view of one storage: two values that share a storage alias each other, so the data flow through
views and in-place ops is exact. Ops are in call order. View ops move nothing and are not
in the list; :attr:`Graph.free_calls` counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

#: dtype name -> bytes per element. ``bool`` is one byte.
ITEMSIZE: Mapping[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1,
    "complex32": 4, "complex64": 8, "complex128": 16,
    "qint8": 1, "quint8": 1, "qint32": 4, "quint4x2": 1, "quint2x4": 1, "float4_e2m1fn_x2": 1,
    "bits8": 1, "bits16": 2, "bits1x8": 1, "bits2x4": 1, "bits4x2": 1,
    **{f"{sign}int{bits}": 1 for sign in ("", "u") for bits in range(1, 8)},
}  # fmt: skip

#: first and one-past-last byte within a storage, and the distinct bytes between them
Span = tuple[int, int, int]

PHASES = ("forward", "backward", "optimizer")
#: modes in which forward fills or reads a cache of keys and values, and what its phase is called there
SERVING = ("prefill", "decode")
#: what a storage holds for the model; ``kv_cache``: keys, values and states that earlier steps left, ``kv_made``: those
#: that this step makes anew; ``replaced``: another input or buffer that no object and no module holds after the step
ROLES = ("parameter", "buffer", "input", "replaced", "gradient", "optimizer_state", "activation", "kv_cache", "kv_made")


ENGINES = ("tensor", "vector")
#: what they multiply. ``fp4``: 4-bit floats with a scale for each block (NVFP4, MXFP4)
DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "fp8", "fp4", "int8")


class Pipe(NamedTuple):
    """One compute ceiling: an engine of :data:`ENGINES` and the dtype of :data:`DTYPES` that it multiplies."""

    engine: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.engine}.{self.dtype}"

    @classmethod
    def parse(cls, text: str) -> Pipe:
        """The pipe that ``str(pipe)`` writes: ``tensor.float16``.

        Raises:
            ValueError: it is not a pipe.
        """
        engine, _, dtype = text.partition(".")
        return cls(engine, dtype).known

    @property
    def known(self) -> Pipe:
        """The pipe itself.

        Raises:
            ValueError: there is no such engine or dtype.
        """
        if self.engine not in ENGINES or self.dtype not in DTYPES:
            raise ValueError(
                f"not a pipe: {str(self).removesuffix('.')!r} (want one of {', '.join(ENGINES)}, a dot, and one of"
                f" {', '.join(DTYPES)})"
            )
        return self


#: attributes that a loop changes from step to step, without another cost: where it picks, and a number to compute with
STEPPING = frozenset(("index", "start", "end", "storage_offset", "other", "fill_value"))

#: region of an op that runs eagerly, between two graphs of a compiler
EAGER = -1


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, strides (both in elements) and dtype name of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return ITEMSIZE[self.dtype]

    @property
    def numel(self) -> int:
        """Number of elements, broadcast axes included."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def distinct_elements(self) -> int:
        """Elements at different addresses: a stride-0 axis counts once, overlapping windows their union."""
        count, span = 1, 1
        for size, stride in zip(self.shape, self.strides, strict=True):
            if size == 0:
                return 0
            if stride:
                count *= size
                span += (size - 1) * abs(stride)
        return min(count, span)

    @property
    def span(self) -> int:
        """Elements from the first to the last, with the gaps between them."""
        return 0 if 0 in self.shape else 1 + sum([(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)])

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill a run of memory, in any order."""
        return self.distinct_elements == self.numel == self.span

    @property
    def nbytes(self) -> int:
        """Distinct bytes: what a kernel must move to read or write this tensor once."""
        return self.distinct_elements * self.itemsize

    @property
    def is_contiguous(self) -> bool:
        """True when the elements lie in row-major order without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1:
                if stride != expected:
                    return False
                expected *= size
        return True


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether strides say NHWC (or NDHWC); strides that say NCHW as well, as one channel's do, count as NCHW
    (``is_channels_last_strides_2d`` in c10's MemoryFormat.h)."""
    if len(shape) not in (4, 5) or strides[1] == 0:
        return False
    least = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(shape[axis], 1)
    return True


def contiguous(shape: Sequence[int], dtype: str) -> TensorSpec:
    """The row-major spec of a shape."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return TensorSpec(tuple(shape), tuple(reversed(strides)), dtype)


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor that an op reads or writes: ``spec`` at ``offset`` elements into storage number ``storage``."""

    id: int
    spec: TensorSpec
    storage: int
    offset: int

    @property
    def byte_range(self) -> tuple[int, int]:
        """First and one-past-last byte touched within the storage."""
        span, itemsize = self.spec.span, self.spec.itemsize
        return (self.offset * itemsize, (self.offset + span) * itemsize) if span else (0, 0)

    @property
    def span(self) -> Span:
        """Where it begins and ends in its storage, and its bytes."""
        return *self.byte_range, self.spec.nbytes

    def overlaps(self, other: Value) -> bool:
        """Whether two values of one storage may have a byte in common."""
        (low, high), (start, stop) = self.byte_range, other.byte_range
        return self.storage == other.storage and low < stop and start < high


#: name of a storage that the backward pass does not read and frees at its end: whole weights of shards
HELD = "held through backward"


@dataclass(frozen=True, slots=True)
class Storage:
    """A block of device memory: its size in bytes and what it holds for the model (one of ``ROLES``)."""

    id: int
    nbytes: int
    role: str
    name: str = ""

    @property
    def is_persistent(self) -> bool:
        """Whether it exists before the step, and after it unless it is replaced."""
        return self.role in ("parameter", "buffer", "input", "replaced", "optimizer_state", "kv_cache")


@dataclass(frozen=True, slots=True)
class Op:
    """One traced call that does work on the device.

    ``inputs`` are ids of the values read, ``outputs`` of the values written; an in-place op has its target in both, an
    op that overwrites its target without reading it (``copy_``, ``zero_``, ``out=``) only in ``outputs``.
    ``arguments`` names, for each input, the schema argument that it was passed as; ``attributes`` holds the
    other arguments by name. ``source`` is the line of the user's code that made the call, or the forward op's line in
    backward, as ``path:line``; empty if no such line exists, as in the optimizer's own step. Streams run their ops in
    order, stream 0 most of them; ``waits`` are ops of other streams that are over before it begins. ``again``: backward
    computes again what forward did and did not keep.
    """

    id: int
    name: str
    op_class: str
    phase: str
    module: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arguments: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    source: str = field(default="", compare=False)
    stream: int = 0
    waits: tuple[int, ...] = ()
    again: bool = False

    @property
    def is_view(self) -> bool:
        """Whether its result is a view, which only a run without a compiler copies: it writes nothing here."""
        return not self.outputs and "view" in (self.attributes or ())


@dataclass(frozen=True)
class Graph:
    """A traced workload: values, storages and ops in call order.

    ``inputs``, ``parameters`` and ``outputs`` are value ids. ``free_calls`` counts, by name, the calls that launch
    nothing (views, allocations, queries). ``attention`` is the SDPA backend that its GPU prefers, ``backends`` how its
    kinds of lowered calls run (:class:`memwall.ops.lowering.LowerableGraph`). ``gradients``: it ran with gradients
    enabled, which a backward pass shows too. ``one_program``: a compiler gets forward and backward together, as
    ``jax.jit`` hands them over; else each on its own."""

    values: Sequence[Value]
    storages: Sequence[Storage]
    ops: Sequence[Op]
    inputs: tuple[int, ...] = ()
    parameters: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    free_calls: Mapping[str, int] = field(default_factory=dict)
    attention: str = "flash"
    backends: tuple[str, ...] = ()
    gradients: bool = False
    one_program: bool = False

    def specs(self, ids: Iterable[int]) -> tuple[TensorSpec, ...]:
        """The specs of some values."""
        return tuple(self.values[i].spec for i in ids)

    @cached_property
    def first_writers(self) -> Mapping[int, int]:
        """Storage → the first op that writes it."""
        made: dict[int, int] = {}
        for op in self.ops:
            for i in op.outputs:
                made.setdefault(self.values[i].storage, op.id)
        return made

    @cached_property
    def alike(self) -> Sequence[int]:
        """For each op the first one that makes the same call: the same name, arguments and attributes, on tensors of
        the same specs that overlap in the same way. Equal ops have equal costs, loops and kernels.
        """
        return self._classes(repr)

    @cached_property
    def alike_in_loops(self) -> Sequence[int]:
        """As :attr:`alike`, but an op is also equal to one in the same module and phase that differs in
        :data:`STEPPING` attributes alone: what a loop in Python does in its next step."""
        first: dict[tuple[Any, ...], int] = {}
        calls = self._classes(_without_steps)
        return [first.setdefault((calls[op.id], op.module, op.phase), op.id) for op in self.ops]

    def _classes(self, text_of: Callable[[Mapping[str, Any]], str]) -> Sequence[int]:
        """For each op the first one with the same call; ``text_of`` says what the attributes are compared by."""
        first: dict[tuple[Any, ...], int] = {}
        texts: dict[int, str] = {}
        kinds: dict[TensorSpec, int] = {}
        by_id: dict[int, int] = {}  # most values share the object of their spec, which is hashed once
        kind = []
        for value in self.values:
            number = by_id.get(id(value.spec))
            if number is None:
                number = by_id[id(value.spec)] = kinds.setdefault(value.spec, len(kinds))
            kind.append(number)
        found: list[int] = []
        for op in self.ops:
            attributes = texts.get(id(op.attributes))
            if attributes is None:
                attributes = texts[id(op.attributes)] = text_of(op.attributes)
            call = (
                op.name,
                op.arguments,
                attributes,
                tuple([kind[i] for i in op.inputs]),
                tuple([kind[i] for i in op.outputs]),
                self._overlaps(op.inputs),
                self._overlaps(op.outputs),
            )
            found.append(first.setdefault(call, len(found)))
        return found

    def _overlaps(self, ids: Sequence[int]) -> tuple[tuple[int, int], ...] | None:
        """The storage of each value and its offset there, counted from the first; None where no two share a storage."""
        if len(ids) < 2:
            return None
        values = [self.values[i] for i in ids]
        first = {v.storage: v.offset for v in reversed(values)}
        if len(first) == len(values):
            return None
        order = {storage: i for i, storage in enumerate(dict.fromkeys(v.storage for v in values))}
        return tuple([(order[v.storage], v.offset - first[v.storage]) for v in values])

    def program_of(self, op: Op) -> str:
        """What holds the kernels that an op may share: its phase, empty for forward and backward of one program. The
        optimizer's stay apart: joined with kernels of gradients they would leave no room for what backward
        recomputes."""
        return "" if self.one_program and op.phase != "optimizer" else op.phase

    @cached_property
    def takes_gradients(self) -> bool:
        """Whether autograd makes a node for each op that depends on a parameter."""
        return self.gradients or any(op.phase == "backward" for op in self.ops)

    @cached_property
    def role_bytes(self) -> dict[str, int]:
        """Bytes held per role, over all storages."""
        total = dict.fromkeys(ROLES, 0)
        for storage in self.storages:
            total[storage.role] += storage.nbytes
        return total


def _without_steps(attributes: Mapping[str, Any]) -> str:
    stepping = STEPPING.intersection(attributes or ())  # an old record need not have any
    return repr({**attributes, **dict.fromkeys(stepping)} if stepping else attributes)


def distinct_bytes(values: Sequence[Value]) -> int:
    """Bytes at different addresses that the values cover together. Values of one storage are united: exactly where each
    is one dense run, else by the sum of their distinct bytes, never more than the span that they cover."""
    by_storage: dict[int, dict[int, Value]] = {}
    for value in values:
        by_storage.setdefault(value.storage, {})[value.id] = value
    return sum(
        one.spec.nbytes if not more else union_bytes([v.span for v in (one, *more)])
        for one, *more in (group.values() for group in by_storage.values())
    )


def left_in(sizes: Sequence[int], left_bytes: int) -> int:
    """The position of the tensor of an op that leaves bytes of its tensors unread: the first so large, since ops name
    first what they look things up in; 0 if none alone is."""
    return next((place for place, size in enumerate(sizes) if size >= left_bytes), 0)


def union_bytes(spans: Iterable[Span]) -> int:
    """Bytes that values of one storage cover together, as :func:`distinct_bytes` counts them."""
    total, reach, in_run = 0, 0, 0
    start = 0
    for low, high, nbytes in sorted(spans):
        if low >= reach:  # a new run of overlapping spans begins
            total += min(in_run, reach - start)
            start, reach, in_run = low, high, 0
        reach = max(reach, high)
        in_run += nbytes
    return total + min(in_run, reach - start)
