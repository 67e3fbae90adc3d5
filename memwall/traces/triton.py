"""What an Inductor kernel moves: from the arguments that its op recorded and the sizes that it iterates over.

The record of ``triton_poi_fused_add_cos_sin_0`` holds the shapes of its pointers and, as the last values, how many
elements it iterates over (``xnumel``, of a reduction ``rnumel`` too). Which pointer is read and which is written is not
recorded, so each is counted once, and no more of it than the kernel iterates over: a tensor updated in place moves
twice that, an indexed table no more. FLOPs are those of the ops in the kernel's name, each once for each element: a
lower bound, since a name lists what was fused but not how often.
"""

from __future__ import annotations

import math
import re
from functools import cache

from memwall.core.errors import Unsupported
from memwall.core.graph import Pipe, TensorSpec
from memwall.ops import Cost
from memwall.ops.elementwise import flops_by_name, streamed
from memwall.traces.calls import spec_of
from memwall.traces.records import TracedOp
from memwall.traces.schemas import parse_value

_NAME = re.compile(r"triton_(poi|red|per|tem)_fused_(\w+?)(?:_\d+)?$")
#: FLOPs per element of the input of reductions
_REDUCTIONS = {"sum": 1, "mean": 1, "prod": 1, "cumsum": 1, "var": 4, "std": 4, "var_mean": 4, "norm": 2,
               "linalg_vector_norm": 2}  # fmt: skip
#: FLOPs per element of ops that have their own name in a fused kernel
_WHOLE = {"native_layer_norm": 7, "_softmax": 5, "_log_softmax": 5, "native_group_norm": 7, "native_dropout": 1}
#: names of more than one word that begin with what looks like another op
_MOVES = ("unsafe_view", "unsafe_index", "to_copy")


def is_triton(op: TracedOp) -> bool:
    """Whether an op is the call of a Triton kernel."""
    return op.attributes.get("kernel_backend") == "triton" or op.name.startswith("triton_")


def triton_cost(op: TracedOp) -> tuple[Cost, str]:
    """The cost of a call of an Inductor kernel, and what it leaves open.

    Raises:
        Unsupported: shapes were not recorded, or it is not a kernel of Inductor.
    """
    match = _NAME.match(op.name)
    if match is None:
        raise Unsupported("a Triton kernel of no known kind")
    specs = [spec for place in range(len(op.dims)) if (spec := spec_of(op, place)) is not None]
    if not specs:
        raise Unsupported("the shapes of its arguments were not recorded")
    kind, names = match.groups()
    if kind == "tem":
        return _template(names, specs)
    elements = _elements(op) or max(spec.numel for spec in specs)
    moved = [min(spec.nbytes, elements * spec.itemsize) for spec in specs]
    written = moved[-1]  # results come last
    flops = elements * flops_per_element(names)
    pipe = Pipe("vector", "float64" if any(spec.dtype == "float64" for spec in specs) else "float32")
    cost = Cost({pipe: flops} if flops else {}, sum(moved) - written, written)
    return streamed(cost, elements), "each argument counted once, FLOPs from the name of the kernel"


def _elements(op: TracedOp) -> int:
    """How many elements the kernel iterates over: the product of its sizes, which come last; 0 if not recorded. There
    are as many sizes as axes, which follow from the blocks of its launch."""
    blocks = str(op.attributes.get("kernel_kwargs", ""))
    reduces = op.name.startswith(("triton_red", "triton_per"))
    axes = sum(f"{axis}BLOCK" in blocks for axis in "XYZ") or (1 if reduces else 2)
    sizes: list[int] = []
    for place in range(len(op.concrete) - 1, -1, -1):
        value = parse_value(op.concrete[place]) if not _has_dims(op, place) else None
        if type(value) is not int or value <= 0:
            break
        sizes.append(value)
    return math.prod(sizes[: axes + reduces]) if sizes else 0


def _has_dims(op: TracedOp, place: int) -> bool:
    return place < len(op.dims) and bool(op.dims[place])


def _template(names: str, specs: list[TensorSpec]) -> tuple[Cost, str]:
    """A product from Inductor's templates: the FLOPs of the three matrices whose sizes match."""
    matrices = [spec for spec in specs if len(spec.shape) in (2, 3)]
    if "mm" not in names.split("_") and "addmm" not in names and "bmm" not in names:
        raise Unsupported("a template kernel that is no product")
    read = sum(spec.nbytes for spec in specs[:-1])
    for left in matrices:
        for right in matrices:
            out = specs[-1]
            if left is right or len(left.shape) != len(right.shape):
                continue
            if left.shape[-1] == right.shape[-2] and out.numel == math.prod(left.shape[:-1]) * right.shape[-1]:
                dtype = "tf32" if left.dtype == "float32" else left.dtype
                flops = {Pipe("tensor", dtype): 2 * out.numel * left.shape[-1]}
                return Cost(flops, read, out.nbytes), "a product from a template"
    raise Unsupported("no three of its arguments make a product")


@cache
def flops_per_element(names: str) -> int:
    """FLOPs of the ops that a kernel's name lists, each once: ``_unsafe_view_mul_silu`` → 5."""
    table = _table()
    words = names.split("_")
    total, i = 0, 0
    while i < len(words):
        for length in range(min(6, len(words) - i), 0, -1):
            name = "_".join(words[i : i + length])
            if name in table:
                total += table[name]
                i += length
                break
        else:
            i += 1
    return total


@cache
def _table() -> dict[str, int]:
    whole = {name.strip("_"): flops for name, flops in _WHOLE.items()}
    return {**flops_by_name(), **_REDUCTIONS, **dict.fromkeys(_MOVES, 0), **whole}
