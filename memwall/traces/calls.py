"""A recorded op → the call that the cost formulas take: specs of its tensors, attributes, and results; and what the
trace says about an op beyond its own record (its kernels' names, its gradient, the ops after it).

Where a trace is ambiguous, it is read so that no count is too high:

- Strides that were not recorded are assumed dense.
- Two inputs that look alike (shape, strides, dtype) may be one tensor (``x * x``); they count twice, and
  :attr:`ReadCall.twin_bytes` says how much less it is if they are one.
- The results are not in a trace: :mod:`memwall.ops.results` derives them.
- The dtype of a tensor list is not in a trace: it follows from the launched kernel's name, else from another tensor of
  the op, else the op has no cost.
"""

from __future__ import annotations

import bisect
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from memwall.core.errors import Unsupported
from memwall.core.graph import TensorSpec, contiguous
from memwall.ops import Call
from memwall.ops.libraries import RESULTS_ONLY
from memwall.ops.recorded import Recorded, Specs
from memwall.ops.registry import find_row
from memwall.ops.results import attributes_of, results_of, unrecorded_inputs
from memwall.ops.schemas import Schema, parse_value
from memwall.traces.records import Numbered, ProfilerTrace, TracedKernel, TracedOp
from memwall.traces.schemas import DTYPES, SCALAR_TYPES, bind, schemas_of


@dataclass(frozen=True, slots=True)
class Hints:
    """What the trace around an op says about it.

    ``list_dtype`` is the dtype of the op's tensor lists, from the launched kernels; ``gradient`` the specs that its
    autograd node took, so the shapes of its results; ``forward`` the op whose gradient it makes; ``consumers`` what the
    next ops read; ``parent`` the call around it; ``elements`` how many the launched kernels process at least, and
    ``slices`` how many slices they gather, if their names and grids say so.
    """

    list_dtype: str = ""
    allow_tf32: bool = True
    gradient: tuple[TensorSpec, ...] = ()
    forward: TracedOp | None = None
    consumers: tuple[TensorSpec, ...] = ()
    parent: TracedOp | None = None
    elements: int = 0
    slices: int = 0


class ReadCall(NamedTuple):
    """A call as a trace has it; ``twin_bytes`` are read once less if inputs that look alike are one tensor."""

    call: Call
    twin_bytes: int
    notes: tuple[str, ...] = ()


def record_of(op: TracedOp, hints: Hints) -> Recorded | None:
    """An op's tensors and values under the names of its schema; None if it has no known schema."""
    bound = bind(op)
    if bound is None:
        return None
    op, schema, places, out = bound
    given: dict[str, Specs | Unsupported] = {}
    for argument in schema.arguments:
        place = places.get(argument.name)
        if place is None or argument.kind == "value":
            continue
        try:
            given[argument.name] = (
                _list_of(op, schema, place, hints) if argument.kind == "list" else _present([spec_of(op, place)])
            )
        except Unsupported as error:
            given[argument.name] = error
    parent = hints.parent if hints.parent is not None and "convolution_backward" in hints.parent.name else None
    parent = parent and as_floats(parent)
    forward = None
    if hints.forward is not None and "::" not in op.name and schemas_of(hints.forward.name):
        forward = record_of(hints.forward, Hints())
    return Recorded(
        name=schema.name,
        recorded_name=op.name,
        counted_as=schema.counted_as,
        given=given,
        arguments=tuple(places),
        values={name: parse_value(op.concrete[place]) for name, place in places.items() if place < len(op.concrete)},
        defaults={argument.name: argument.default for argument in schema.arguments if argument.kind == "value"},
        written=frozenset(argument.name for argument in schema.arguments if argument.written),
        results=schema.results,
        out=_present(spec_of(op, place) for place in out),
        beyond=_present(_readable(op, place) for place in range(len(places), len(op.dims))),
        allow_tf32=hints.allow_tf32,
        gradient=hints.gradient,
        consumers=hints.consumers,
        parent=() if parent is None else tuple(_readable(parent, place) for place in range(len(parent.dims))),
        elements=hints.elements,
        slices=hints.slices,
        forward=forward,
    )


def _present(specs: Iterable[TensorSpec | None]) -> Specs:
    return tuple(spec for spec in specs if spec is not None)


def _readable(op: TracedOp, place: int) -> TensorSpec | None:
    """The tensor at a position; None also if its record makes no sense."""
    try:
        return spec_of(op, place)
    except Unsupported:
        return None


def as_floats(op: TracedOp) -> TracedOp:
    """An op; one whose dtypes were not recorded, as if its tensors were of float32."""
    if any(op.types):
        return op
    kinds = ("TensorList" if dims and isinstance(dims[0], tuple) else "float" if dims else "" for dims in op.dims)
    return replace(op, types=tuple(kinds))


def argument_bytes(op: TracedOp) -> int:
    """The bytes of the tensors that an op took, each once; 0 if the record of one makes no sense."""
    try:
        return sum(spec.nbytes for place in range(len(op.dims)) for spec in _any_specs(op, place))
    except Unsupported:
        return 0


def _any_specs(op: TracedOp, place: int) -> Specs:
    """The tensors at a position, of a list too."""
    if op.dims[place] and isinstance(op.dims[place][0], tuple):
        return list_specs(op, place, "")
    return _present([spec_of(op, place)])


def _list_of(op: TracedOp, schema: Schema, place: int, hints: Hints) -> Specs:
    """The tensors of a list; tensors that are concatenated have the dtype of the result, which another op took."""
    dtype = hints.list_dtype
    if not dtype and schema.name.split(".")[1] in ("cat", "stack"):
        total = sum(math.prod(shape) for shape in op.dims[place] if isinstance(shape, tuple))
        taken = (*hints.gradient, *hints.consumers)
        dtype = next((spec.dtype for spec in taken if spec.numel == total), "")
    return list_specs(op, place, dtype)


def spec_of(op: TracedOp, place: int) -> TensorSpec | None:
    """The tensor at a position of the recorded values; None if that is not a tensor."""
    if place >= len(op.types) or place >= len(op.dims):
        return None
    dtype = DTYPES.get(op.types[place]) or (SCALAR_TYPES.get(op.types[place]) if op.dims[place] else None)
    if dtype is None:
        if op.dims[place] and op.types[place] not in ("", "Scalar"):
            raise Unsupported(f"the size of the dtype {op.types[place][:60]!r} is not known")
        return None
    strides = op.strides[place] if op.strides is not None and place < len(op.strides) else None
    return _spec(op.dims[place], strides, dtype)


#: more elements than any tensor has: 256 TB of bytes
_MOST = 2**48


def _spec(dims: Sequence[Any], strides: Sequence[Any] | None, dtype: str) -> TensorSpec:
    if any(type(n) is not int or not 0 <= n <= _MOST for n in dims) or math.prod(dims) > _MOST:
        raise Unsupported("a recorded shape is none")
    if strides is not None and len(strides) == len(dims) and all(type(n) is int and n >= 0 for n in strides):
        return TensorSpec(tuple(dims), tuple(strides), dtype)
    return contiguous(tuple(dims), dtype)


def list_specs(op: TracedOp, place: int, dtype: str) -> tuple[TensorSpec, ...]:
    """The tensors of a recorded list, which has no dtype of its own."""
    dims = op.dims[place] if place < len(op.dims) else ()
    shapes = [shape for shape in dims if isinstance(shape, tuple)]
    if not shapes:
        return ()
    dtype = dtype or next((DTYPES[name] for name in op.types if name in DTYPES), "")
    if not dtype:
        raise Unsupported("the dtype of a tensor list is not recorded, and no kernel's name says it")
    strides = op.strides[place] if op.strides is not None and place < len(op.strides) else ()
    paired = list(strides) if len(strides) == len(shapes) else [None] * len(shapes)
    return tuple(_spec(shape, own, dtype) for shape, own in zip(shapes, paired, strict=True))


def read_call(op: TracedOp, hints: Hints) -> ReadCall:
    """The call of a recorded op.

    Raises:
        Unsupported: no schema is known, or the trace lacks information; says which.
    """
    if not op.dims:
        raise Unsupported("shapes were not recorded")
    recorded = record_of(op, hints)
    if recorded is None:
        raise Unsupported("no schema of this op is known")
    outputs = results_of(recorded)
    inputs = [(argument, spec) for argument, spec in recorded.named() if not _unread(recorded, argument)]
    inputs += unrecorded_inputs(recorded)
    attributes = attributes_of(recorded)
    specs = tuple(spec for _, spec in inputs)
    call = Call(
        recorded.counted_as or recorded.name,
        specs,
        tuple(argument for argument, _ in inputs),
        outputs,
        attributes,
        sum(spec.nbytes for spec in specs),
        sum(spec.nbytes for spec in outputs),
    )
    alike = Counter(spec for argument, spec in inputs if argument not in recorded.written)
    twins = sum((count - 1) * spec.nbytes for spec, count in alike.items())
    return ReadCall(call, twins, tuple(recorded.notes))


def _unread(recorded: Recorded, argument: str) -> bool:
    """Whether a tensor is passed for its shape, or to be overwritten."""
    row = find_row(recorded.name)
    if argument == "self" and row and (row.overwrites or row.shape_only):
        return True
    if recorded.name.startswith("aten.") or argument not in RESULTS_ONLY:
        return False
    return argument != "out" or not recorded.name.endswith(("backward.default", "bwd.default"))


#: dtypes by the bytes that a copying kernel's name states
_BY_SIZE = {1: "uint8", 2: "float16", 4: "float32", 8: "float64"}
_OPAQUE = re.compile(r"OpaqueType<(\d+)")
_NAMED = re.compile(
    r"c10::(?:BFloat16|Half|Float8_e\w+|complex<\w+>)|(?<![\w:])(?:float|double|long|int|bool)(?=[,<> ])"
)


def list_dtype(kernel_names: Iterable[str]) -> str:
    """The dtype in the names of copying and multi-tensor kernels; empty if none has one."""
    for name in kernel_names:
        if size := _OPAQUE.search(name):
            return _BY_SIZE.get(int(size[1]), "")
        if found := _NAMED.search(name.partition("(")[0] if "<" in name.partition("(")[0] else name):
            return DTYPES.get(found[0], "")
    return ""


# -- what the trace says beyond the record ----------------------------------------------------------------------------

#: how many following ops are searched for the reader of a result
_NEXT = 4
#: an indexing kernel's threads and elements per thread (``index_elementwise_kernel<128, 4, ...>``)
_INDEXING = re.compile(r"index_elementwise_kernel<(\d+), ?(\d+)")
#: float32 products that ran on plain FP32 units
_FULL_FLOAT32 = re.compile(
    r"_sgemm|^sgemm|sgemv|simt|ffma|f32f32_f32f32|scudnn|_SB_|_S_B_|winograd|gemv|fft|wgrad_alg0"
)


class Surroundings:
    """Look-ups in one trace. ``known`` caches equal calls."""

    def __init__(self, trace: ProfilerTrace) -> None:
        self.trace = trace
        self.known: dict[tuple[Any, ...], Any] = {}
        ops = trace.ops
        self._gradients = array("i", [-1]) * len(ops)
        chains: Numbered[tuple[int, int]] = Numbered()
        #: of each op the number of its kind and the numbers of all around it
        self._chain = array("i")
        self._by_thread: dict[tuple[str, str], array[int]] = {}
        for op, (kind, parent, forward) in enumerate(zip(ops.kind, ops.parent, ops.forward, strict=True)):
            self._chain.append(chains.number((kind, self._chain[parent] if parent >= 0 else -1)))
            if not ops.kinds[kind].detail.dims:
                continue
            self._by_thread.setdefault(ops.kinds[kind].thread, array("i")).append(op)
            if forward >= 0 > self._gradients[forward]:  # an autograd node comes before the ops inside it
                self._gradients[forward] = op

    def signature(self, op: int, kernels: Iterable[int]) -> tuple[int, ...]:
        """Equal for launches that memwall can tell apart by nothing but their time and the ops that follow: the kinds
        of the op (-1 for none) and of all around it, of its forward op, its gradient and its kernels."""
        ops, kind = self.trace.ops, self.trace.kernels.kind.__getitem__
        if op < 0:
            return (-1, *map(kind, kernels))
        forward, gradient = ops.forward[op], self._gradient(op)
        near = (ops.kind[other] if other >= 0 else -1 for other in (forward, gradient))
        return self._chain[op], *near, *map(kind, kernels)

    def hints(self, op: TracedOp, kernels: Sequence[TracedKernel]) -> Hints:
        """What is known without looking at the ops after it."""
        names = [kernel.name for kernel in kernels]
        gradient = self._gradient(op.id)
        return Hints(
            list_dtype=list_dtype(names),
            allow_tf32=not any(map(_FULL_FLOAT32.search, names)),
            gradient=_specs(self.trace.ops[gradient]) if gradient >= 0 else (),
            forward=self.trace.ops[op.forward] if op.forward is not None else None,
            parent=self.trace.ops[op.parent] if op.parent is not None else None,
            elements=next(filter(None, map(_covered, kernels)), 0),
            slices=next((k.grid[0] for k in kernels if "vectorized_gather_kernel" in k.name and k.grid), 0),
        )

    def _gradient(self, op: int) -> int:
        """The autograd node that took the gradients of the op's results; -1 if none is known."""
        for outer in self.trace.ops.around(op):
            if self._gradients[outer] >= 0:
                return self._gradients[outer]
            if "::" not in self.trace.ops.kind_of(outer).name:
                break
        return -1

    def consumers(self, op: TracedOp) -> Specs:
        """What the next ops of the thread that launch something read, in order."""
        own = self._by_thread.get(op.thread, array("i"))
        after = bisect.bisect_left(own, op.end_us, key=self.trace.ops.start_us.__getitem__)
        return tuple(spec for other in own[after : after + _NEXT] for spec in _specs(self.trace.ops[other]))


def _specs(op: TracedOp) -> Specs:
    op = as_floats(op)
    return tuple(spec for place in range(len(op.dims)) if (spec := _readable(op, place)) is not None and spec.shape)


def _covered(kernel: TracedKernel) -> int:
    """The fewest elements for which an indexing kernel is launched with its grid; 0 for another."""
    match = _INDEXING.search(kernel.name)
    return (kernel.grid[0] - 1) * int(match[1]) * int(match[2]) + 1 if match and kernel.grid else 0
