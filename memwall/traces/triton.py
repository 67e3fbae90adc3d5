"""What an Inductor kernel moves: from the arguments that its op recorded and the sizes that it iterates over.

The record of ``triton_poi_fused_add_cos_sin_0`` holds the shapes of its pointers and, as the last values, how many
elements it iterates over (``xnumel``, of a reduction ``rnumel`` too). Which pointer is read and which is written is not
recorded, so each is counted once, and no more of it than the kernel iterates over: a tensor updated in place moves
twice that, an indexed table no more. FLOPs are of the ops in the kernel's name, each once for each element: a
lower bound, since a name lists what was fused but not how often.
"""

from __future__ import annotations

import math
import re
from functools import cache
from itertools import permutations

from memwall.core.errors import Unsupported
from memwall.core.graph import Pipe, TensorSpec, contiguous
from memwall.ops import Call, Cost, cost_of
from memwall.ops.contraction import product_pipe
from memwall.ops.elementwise import flops_by_name
from memwall.ops.passes import streamed
from memwall.ops.schemas import parse_value
from memwall.traces.calls import spec_of
from memwall.traces.records import TracedOp

_NAME = re.compile(r"triton_(poi|red|per|tem)_fused_(\w+?)(?:_\d+)?$")
#: ops other than pointwise ones that have their own name in a fused kernel
_ROWS = ("sum", "mean", "prod", "cumsum", "var", "std", "var_mean", "norm", "linalg_vector_norm", "native_layer_norm",
         "_softmax", "_log_softmax", "native_group_norm")  # fmt: skip
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
        has_dims = place < len(op.dims) and op.dims[place]
        value = None if has_dims else parse_value(op.concrete[place])
        if type(value) is not int or value <= 0:
            break
        sizes.append(value)
    return math.prod(sizes[: axes + reduces]) if sizes else 0


def _template(names: str, specs: list[TensorSpec]) -> tuple[Cost, str]:
    """A product from Inductor's templates: the FLOPs of the three matrices whose sizes match."""
    if "mm" not in names.split("_") and "addmm" not in names and "bmm" not in names:
        raise Unsupported("a template kernel that is no matmul")
    out = specs[-1]
    for left, right in permutations([spec for spec in specs if len(spec.shape) in (2, 3)], 2):
        if len(left.shape) != len(right.shape) or left.shape[-1] != right.shape[-2]:
            continue
        if out.numel == math.prod(left.shape[:-1]) * right.shape[-1]:
            flops = {product_pipe(left.dtype, {}, allow_tf32=True): 2 * out.numel * left.shape[-1]}
            return Cost(flops, sum(spec.nbytes for spec in specs[:-1]), out.nbytes), "a matmul from a template"
    raise Unsupported("no three of its arguments make a matmul")


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
    rows = {name.strip("_"): _per_element(f"aten.{name}") for name in _ROWS}
    return {**flops_by_name(), **dict.fromkeys(_MOVES, 0), **rows}


def _per_element(name: str) -> int:
    """FLOPs for each element of its input, by the op's own formula for one long row."""
    row = contiguous((1, 1000), "float32")
    attributes = {"normalized_shape": row.shape[1:], "group": 1, "dim": 1}
    call = Call(name, (row, row), ("self", "input"), (row,), attributes, row.nbytes, row.nbytes)
    return cost_of(call).total_flops // row.numel
