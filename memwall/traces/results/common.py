"""What rules of all kinds share: a rule's type, broadcasting, promotion of dtypes, dense layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from memwall.core.graph import TensorSpec, contiguous
from memwall.traces.calls import Recorded, UnknownCall

Specs = tuple[TensorSpec, ...]
Rule = Callable[[Recorded], Specs]

#: torch's numbers of dtypes, as ``out_dtype`` and ``dtype`` are recorded
_SCALAR_TYPES = {0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
                 8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16", 23: "float8_e5m2",
                 24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz"}  # fmt: skip


def each(names: str, rule: Rule) -> dict[str, Rule]:
    """The same rule for several ops."""
    return dict.fromkeys(names.split(), rule)


def broadcast(shapes: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The shape that some shapes broadcast to."""
    result: list[int] = []
    for shape in shapes:
        aligned = [1] * (len(shape) - len(result)) + result
        offset = len(aligned) - len(shape)
        for i, n in enumerate(shape):
            here = aligned[offset + i]
            if here != n and 1 not in (here, n):
                raise UnknownCall("the recorded shapes do not broadcast")
            aligned[offset + i] = n if here == 1 else here
        result = aligned
    return tuple(result)


FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")


def promote(specs: Sequence[TensorSpec]) -> str:
    """The dtype of arithmetic on tensors of several: those with dims decide, as torch has it."""
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
        if spec.shape == shape and spec.distinct_elements == spec.numel:
            span = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.strides, strict=True) if n)
            if span == spec.numel:
                return TensorSpec(shape, spec.strides, dtype)
    return contiguous(shape, dtype)


def first_tensor(call: Recorded) -> TensorSpec:
    specs = call.inputs()
    if not specs:
        raise UnknownCall("no tensor was recorded")
    return specs[0]


def same(call: Recorded) -> Specs:
    """Like the first tensor, dense."""
    spec = first_tensor(call)
    return (dense(spec.shape, stated_dtype(call, spec.dtype), [spec]),)


def stated_dtype(call: Recorded, default: str) -> str:
    for name in ("dtype", "out_dtype", "output_dtype"):
        value = call.value(name) if name in call.bound.places else None
        if type(value) is int and value in _SCALAR_TYPES:
            return _SCALAR_TYPES[value]
    return default


def taken_elsewhere(call: Recorded, fits: Callable[[TensorSpec], bool]) -> TensorSpec | None:
    """The result as the op's autograd node, else the next op, took it; only what can be nothing else."""
    return next((spec for spec in (*call.hints.gradient, *call.hints.consumers) if fits(spec)), None)
