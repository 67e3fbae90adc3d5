"""How values pass through operators: tables of the operators that are not as most are."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from memwall.core import compat
from memwall.frontend.torch.dispatch.tensors import flat_tensors
from memwall.ops.signatures import Signature

#: Elements up to which values are kept: integers and booleans, floating numbers, and floating numbers made of those.
MOST_INTEGERS = 1 << 23
MOST_FLOATS = 1 << 14
MOST_OF_INTEGERS = 1 << 20
#: Ops that take tensors on the host and the device alike.
COPIES = frozenset(("aten.copy_", "aten._to_copy"))
#: Ops whose result's memory is not set: what a program reads of it, it has written.
UNSET = frozenset(
    f"aten.{name}" for name in ("empty.memory_format", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
)
#: Ops that take a number of the host on a GPU, but not on ``meta``.
NUMBERED = frozenset(
    ("aten.masked_fill.Tensor", "aten.masked_fill_.Tensor", "aten.index_fill.int_Tensor",
     "aten.index_fill_.int_Tensor", "aten.copysign.Tensor")
)  # fmt: skip
#: Ops that keep some of their rows.
SELECTING = ("torchvision.nms", "torchvision.qnms")
#: Ops whose results are as long as values say, and whose schemas do not say so.
UNTAGGED = (
    *SELECTING, "aten._to_sparse", "aten._to_sparse.sparse_dim", "aten._to_sparse_csr",
    "aten._to_sparse_csc", "aten._to_sparse_bsr", "aten._to_sparse_bsc",
)  # fmt: skip
NONZERO = torch.ops.aten.nonzero.default
#: Ops that take masks as indices, which the recorder turns into places first; and the dtypes of masks.
INDEXED = frozenset(
    ("aten.index.Tensor", "aten._unsafe_index.Tensor", "aten.index_put", "aten.index_put_", "aten._index_put_impl_",
     "aten._unsafe_index_put")
)  # fmt: skip
MASKS = (torch.bool, torch.uint8)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
INTEGERS = (torch.bool, *WHOLE)
#: Ops that move elements one by one.
COPYING = frozenset(("aten._to_copy", "aten.clone"))
#: Reductions to one number; of equal elements it is the element.
SAME_OF_ONE = frozenset(getattr(torch.ops.aten, name).default for name in ("all", "any", "max", "min"))
#: Sums over some axes, and copies.
SUMS = frozenset(
    (torch.ops.aten.sum.default, torch.ops.aten.sum.dim_IntList,
     torch.ops.aten.count_nonzero.default, torch.ops.aten.count_nonzero.dim_IntList)
)  # fmt: skip
TO_COPY = torch.ops.aten._to_copy.default
#: Ops of large tensors that ``by_few`` runs without their size.
BY_FEW = frozenset((*SAME_OF_ONE, *SUMS, NONZERO, TO_COPY))
#: Ops that leave out what is repeated.
UNIQUE = frozenset(("aten._unique2", "aten.unique_consecutive", "aten.unique_dim"))
#: Ops that pick rows of a table by number -> how many there are, and the numbers.
PICKS: Mapping[str, Callable[[tuple], tuple[int, torch.Tensor]]] = {
    "aten.embedding": lambda args: (args[0].shape[0], args[1]),
    "aten.index_select": lambda args: (args[0].shape[args[1]] if args[0].dim() else 1, args[2]),
}


def _groups_with_rows(ends: torch.Tensor) -> int:
    return int((ends.diff(prepend=ends.new_zeros(1)) > 0).sum())


def _different(places: torch.Tensor) -> int:
    least, most = map(int, torch.aminmax(places))
    met = torch.zeros(most - least + 1, dtype=torch.bool)
    return int(met.index_fill_(0, (places - least).flatten(), True).sum())


#: The argument that says where groups end.
ENDS = "offs"
#: Ops that touch some slices of an operand → the argument whose values say which, and how many these are.
SLICES: Mapping[str, tuple[str, Callable[[torch.Tensor], int]]] = {
    **{f"aten.{name}": (ENDS, _groups_with_rows)
       for name in ("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2")},
    **{f"transformers.grouped_mm_fallback{end}": (ENDS, _groups_with_rows) for end in ("", "_backward")},
    **dict.fromkeys(("aten.index.Tensor", "aten.index_put", "aten.index_put_", "aten._index_put_impl_"),
                    ("indices", _different)),
    "aten.index_select": ("index", _different), "aten.embedding": ("indices", _different),
}  # fmt: skip


def _as_floats(func: Any) -> Callable[..., torch.Tensor]:
    return lambda tensor, *args, **kwargs: func(tensor.double(), *args, **kwargs).to(tensor.dtype)


#: Ops that a GPU runs on integers, and a CPU on floating numbers alone → what gives the same on the host.
OF_FLOATS: Mapping[Any, Callable[..., torch.Tensor]] = {
    torch.ops.aten.histc.default: _as_floats(torch.ops.aten.histc.default)
}
#: What activations are, element by element: finite.
FINITE: Mapping[str, bool] = {"aten.isnan": False, "aten.isinf": False, "aten.isfinite": True}
#: Ops that round activations, a cast to integers among them.
ROUNDED = frozenset(("aten.round", "aten.ceil", "aten.floor", "aten.trunc", *COPYING))
#: Ops that count a mask.
COUNTS = frozenset(("aten.sum", "aten.sum.dim_IntList", "aten.count_nonzero", "aten.count_nonzero.dim_IntList"))
#: Comparisons with zero, as of images with padding: what they find of random normal numbers.
ARE_ZERO: Mapping[str, bool] = {"aten.eq.Scalar": False, "aten.ne.Scalar": True}
#: Operators that one operand decides alone where all of it is that truth value, whatever the other.
DECIDED: Mapping[str, bool] = {
    "aten.bitwise_and.Tensor": False, "aten.logical_and": False,
    "aten.bitwise_or.Tensor": True, "aten.logical_or": True,
}  # fmt: skip
#: What makes tensors of one number -> that number.
FILLS: Mapping[str, Callable[[tuple], Any]] = {
    "zeros": lambda args: 0, "ones": lambda args: 1, "full": lambda args: args[-1],
}  # fmt: skip
#: Ops that choose among scores -> the axis.
CHOICES: Mapping[str, Callable[[tuple, Mapping[str, Any]], int | None]] = {
    "aten.topk": lambda args, kwargs: args[2] if len(args) > 2 else kwargs.get("dim", -1),
    "aten.argmax": lambda args, kwargs: args[1] if len(args) > 1 else kwargs.get("dim"),
    "aten.max.dim": lambda args, kwargs: args[1],
}


def is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor is small enough for its value to be kept."""
    floats = tensor.is_floating_point() or tensor.is_complex()
    return tensor.numel() <= (MOST_FLOATS if floats else MOST_INTEGERS)


def is_of_integers(result: torch.Tensor, read: list[torch.Tensor]) -> bool:
    """Whether floating numbers are made of integers or booleans, as masks that are added to attention's scores and
    choices of experts that are counted by ``histc``."""
    if result.numel() > MOST_OF_INTEGERS or not result.is_floating_point():
        return False
    large = [tensor for tensor in read if tensor.numel() > MOST_FLOATS]
    return bool(large) and all(tensor.dtype in INTEGERS for tensor in large)


def elements(tensor: torch.Tensor) -> int:
    """Elements of a tensor, where elements along expanded axes count once."""
    return math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)


def distinct(tensor: torch.Tensor) -> tuple[slice, ...]:
    """The index of one of the equal elements along each axis that was expanded."""
    return tuple(slice(None) if stride else slice(1) for stride in tensor.stride())


def once(tensor: torch.Tensor) -> torch.Tensor:
    """A view with one of the equal elements along each axis that was expanded."""
    return tensor[distinct(tensor)]


def count_true(mask: torch.Tensor) -> int:
    """How many elements of a host tensor are not zero."""
    few = once(mask)
    return int(few.count_nonzero()) * (mask.numel() // max(few.numel(), 1))


def selected(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``masked_select`` of a tensor without data by a known mask."""
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    return torch.empty(count_true(mask.expand(shape)), dtype=tensor.dtype, device="meta")


def by_few(func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """An op of ``BY_FEW`` on a large host tensor, by one of the equal elements along each axis that was expanded."""
    few = once(tensor)
    if func in SAME_OF_ONE:
        return func(few)
    if func is NONZERO:
        return torch.empty((count_true(tensor), tensor.dim()), dtype=torch.int64, device="meta")
    if func in SUMS:
        found = func(few, *args, **kwargs)
        shape = func(torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"), *args, **kwargs).shape
        return (found * (tensor.numel() * found.numel() // (few.numel() * shape.numel()))).expand(shape)
    if few.numel() == 1 and not few.is_complex() and not few.item():
        dtype = kwargs.get("dtype") or tensor.dtype
        pages = mmap.mmap(-1, tensor.numel() * dtype.itemsize)  # zeros, which take memory once they are written
        return torch.frombuffer(pages, dtype=dtype).view(tensor.shape)
    return func(tensor, *args, **kwargs)


def wrong_picks(known: Any, name: str, args: tuple) -> dict[str, None]:
    """What is wrong with the ``known`` numbers of rows that are picked, where none is assumed."""
    rows, places = PICKS[name](args)
    numbers = None if known.assumed(places) else known.of(places)
    if numbers is None or numbers.is_meta or not numbers.numel():
        return {}
    least, most = map(int, torch.aminmax(once(numbers)))
    if least >= 0 and most < rows:
        return {}
    return {f"index {least if least < 0 else most} is outside a table of {rows} rows: the step fails on a GPU": None}


def is_uniform(value: torch.Tensor) -> bool:
    """Whether all elements of a host tensor are equal; of floating ones, whether they are one element."""
    if value.is_complex() or not value.numel():
        return False
    if value.is_floating_point() or not any(value.stride()):
        return not any(value.stride())
    value = once(value)
    return bool((value == value[(0,) * value.dim()]).all())


def decides(truth: bool, value: torch.Tensor | None) -> bool:
    """Whether all of a value on the host is that truth value."""
    if value is None or value.is_meta or value.dtype is not torch.bool or not value.numel():
        return False
    return bool((once(value) == truth).all())


class ValueRule(NamedTuple):
    """How values pass through an operator: the arguments (by position and name) that it reads and the arguments that it
    writes; whether it moves no data, whether its result or its result's shape depends on values, whether it draws
    random numbers, whether it treats element by element, whether it reduces; whether its results are always new
    tensors; whether it sends to other ranks."""

    reads: tuple[tuple[int, str], ...]
    writes: tuple[tuple[int, str], ...]
    free: bool
    asks: bool
    random: bool
    pointwise: bool
    reduces: bool
    fresh: bool
    sends: bool

    @classmethod
    def of(cls, signature: Signature) -> ValueRule:
        tags = signature.function.tags
        tagged = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
        asks = (tagged and signature.name not in INDEXED) or signature.name in UNTAGGED
        schema = compat.schema(signature.function)
        aliases = any(item.alias_info is not None for item in (*schema.arguments, *schema.returns))
        plain = signature.function.namespace == "aten" and not (signature.composite or signature.free or tagged)
        numbered = [(place, argument.name, argument) for place, argument in enumerate(signature.arguments)]
        return cls(
            tuple((place, name) for place, name, a in numbered if not a.unread and "Tensor" in a.kind),
            tuple((place, name) for place, name, a in numbered if a.written),
            signature.free and not asks,
            asks,
            torch.Tag.nondeterministic_seeded in tags,
            torch.Tag.pointwise in tags or signature.name in COPYING,
            torch.Tag.reduction in tags,
            plain and not aliases,
            signature.sends,
        )


def arguments_at(places: tuple[tuple[int, str], ...], args: tuple, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments at some places."""
    return flat_tensors([args[place] if place < len(args) else kwargs.get(name) for place, name in places])
