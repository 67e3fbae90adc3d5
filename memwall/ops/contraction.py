"""Matmuls.

- A matmul of ``[m, k]`` with ``[k, n]`` is ``2 * m * n * k`` FLOP, whatever is added to it: the adds of a bias and the
  multiplies by ``alpha`` and ``beta`` are not counted, the bytes of the bias are. A complex multiply-add is 8 FLOP.
- The pipe follows the dtype of the left operand: half, bfloat16, float8 (one pipe, ``tensor.fp8``) and int8 use the
  tensor engine, float64 its double-precision mode. float32 is ``tensor.tf32`` where the call's ``allow_tf32`` says so,
  else ``tensor.float32``, which only AMD's matrix cores have: elsewhere its ceiling is the vector engine's.
- Four-bit floats stand two to an element (torch's ``float4_e2m1fn_x2``): k is twice as long as the tensor says. Their
  matmuls are NVFP4's kernels, with scales of blocks of 16 or 32 as operands.
- A grouped matmul reads the weights of the groups that have rows. Where tokens choose among groups as among experts,
  as many have rows as the trace assumes of the choices, and the bound takes the fewest that may. Where it is not known
  which rows go to which group, each row goes to any by chance.

A matmul is one launch, a :class:`memwall.ops.product_launches.Gemm`, of full precision a
:class:`memwall.ops.product_launches.VectorGemm`; scalar and outer products, which use no matrix kernel, stream.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from memwall.core.graph import Pipe, TensorSpec
from memwall.ops.base import Call, Cost
from memwall.ops.domains import group_ends
from memwall.ops.launches import Launch, Stream
from memwall.ops.passes import pass_over
from memwall.ops.product_launches import Gemm, QuantisedGemm, VectorGemm
from memwall.ops.quantised import kernels_of
from memwall.ops.registry import define, formula
from memwall.ops.results import products as results
from memwall.ops.routing import expected_active

op = partial(formula, "contraction")

_TENSOR_PIPES = {
    "float16": "float16", "bfloat16": "bfloat16", "float32": "float32", "float64": "float64",
    "int8": "int8", "uint8": "int8",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
    "float8_e4m3fnuz": "fp8", "float8_e5m2fnuz": "fp8", "float4_e2m1fn_x2": "fp4",
}  # fmt: skip
#: dtype → numbers of an element
_PACKED = {"float4_e2m1fn_x2": 2}
#: the scheme of such operands (:mod:`memwall.ops.quantised`)
FOUR_BITS = "nvfp4"
_COMPLEX_PIPES = {"complex32": "float32", "complex64": "float32", "complex128": "float64"}
#: pipes whose matmuls are not made in the tiles of tensor cores
_FULL_PRECISION = frozenset(("float32", "float64"))


def product_pipe(dtype: str, attributes: Mapping[str, Any], allow_tf32: bool = False) -> Pipe:
    """The ceiling of a matmul of ``dtype`` operands; ``allow_tf32`` is torch's default for the op."""
    if dtype == "float32" and attributes.get("allow_tf32", allow_tf32):
        return Pipe("tensor", "tf32")
    if dtype in _TENSOR_PIPES:
        return Pipe("tensor", _TENSOR_PIPES[dtype])
    return Pipe("vector", _COMPLEX_PIPES.get(dtype, "float32"))


def product_flops(multiply_adds: int, dtype: str) -> int:
    """FLOPs of that many multiply-adds: 2 each, 8 where the operands are complex."""
    return multiply_adds * (8 if dtype in _COMPLEX_PIPES else 2)


def _flops(left: TensorSpec, multiply_adds: int, attributes: Mapping[str, Any]) -> dict[Pipe, int]:
    return {product_pipe(left.dtype, attributes): product_flops(multiply_adds, left.dtype)}


def launch(
    call: Call, left: TensorSpec, sizes: tuple[int, int, int, int], right: TensorSpec | None = None, bias: bool = False
) -> Gemm:
    """The launch of ``sizes``, (batch, m, n, k), in the dtype of ``left``, with the bytes of the call; a complex
    multiply-add is four real ones.

    ``bias``: a vector is added in the same launch. Without ``right``, the other operand, the rows count as aligned.
    """
    pipe = product_pipe(left.dtype, call.attributes)
    parts = product_flops(1, left.dtype) // 2
    batch, m, n, k = sizes
    if pipe.dtype == "fp4":
        each = 1 / _PACKED[left.dtype]
        return QuantisedGemm(
            pipe=pipe,
            batch=batch,
            m=m,
            n=n,
            k=k,
            itemsize=each,
            weight_itemsize=each,
            scheme=FOUR_BITS,
            kernel=kernels_of(FOUR_BITS).product,
            read_bytes=call.read_bytes,
            write_bytes=call.write_bytes,
        )
    gemm = Gemm(
        pipe=pipe,
        batch=batch,
        m=m,
        n=n,
        k=parts * k,
        itemsize=max(left.itemsize // parts, 1),
        read_bytes=call.read_bytes,
        write_bytes=call.write_bytes,
        aligned=right is None or (is_aligned(left) and is_aligned(right)),
    )
    if pipe.dtype not in _FULL_PRECISION:
        return gemm
    return VectorGemm(**{field.name: getattr(gemm, field.name) for field in fields(gemm)}, bias=bias)


#: bytes that a tensor core's kernel copies at once, and of which TMA wants each stride to be a multiple
#: (``cuTensorMapEncodeTiled``)
_COPIED_BYTES = 16


def is_aligned(operand: TensorSpec) -> bool:
    """Whether all rows of an operand begin at multiples of what is copied at once. What lies otherwise than as a matrix
    is copied before, and a vector has one row."""
    strides = [n for size, n in zip(operand.shape, operand.strides, strict=True) if size > 1]
    if len(strides) < 2 or 1 not in strides[-2:]:
        return True
    return all(n * operand.itemsize % _COPIED_BYTES == 0 for n in strides if n != 1)


#: op -> its left and right operand. The output is [..., m, n], the left operand [..., m, k].
_PRODUCTS = {
    "_int_mm": ("self", "mat2"), "_scaled_mm_v2": ("self", "mat2"), "_weight_int4pack_mm": ("self", "mat2"),
    "linear": ("input", "weight"), "mm": ("self", "mat2"), "bmm": ("self", "mat2"), "_scaled_mm": ("self", "mat2"),
    "_weight_int8pack_mm": ("self", "mat2"), "matmul": ("self", "other"), "mv": ("self", "vec"),
    "dot": ("self", "tensor"), "vdot": ("self", "other"),
}  # fmt: skip
#: the same with an addend ``self``, which is not read where ``beta`` is 0
_PRODUCTS_WITH_ADDEND = {
    "addmm": ("mat1", "mat2"), "addmm_": ("mat1", "mat2"), "_addmm_activation": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"), "baddbmm_": ("batch1", "batch2"),
    "addmv": ("mat", "vec"), "addmv_": ("mat", "vec"),
}  # fmt: skip


def _operands(call: Call, table: Mapping[str, tuple[str, str]]) -> tuple[TensorSpec, TensorSpec]:
    left, right = table[call.name.split(".")[1]]
    return call.need(left), call.need(right)


def _depth(left: TensorSpec) -> int:
    return left.shape[-1] * _packed(left) if left.shape else 1


def _packed(left: TensorSpec) -> int:
    """Numbers of an element."""
    return _PACKED.get(left.dtype, 1)


def _sizes(call: Call, left: TensorSpec, right: TensorSpec) -> tuple[int, int, int, int]:
    """(batch, m, n, k): a matrix on the right meets all rows of a batch at once, as does one row each a vector."""
    out = call.outputs[0]
    matrices = len(right.shape) > 2 and len(out.shape) > 2
    n = out.shape[-1] if len(right.shape) > 1 and out.shape else 1
    batch = math.prod(out.shape[:-2]) if matrices else 1
    return batch, out.numel // max(batch * n, 1), n, _depth(left)


@op(" ".join(_PRODUCTS))
def product(call: Call) -> Cost:
    """``[..., m, k] x [..., k, n]``: 2mnk per matrix."""
    left, right = _operands(call, _PRODUCTS)
    flops = _flops(left, call.outputs[0].numel * _depth(left), call.attributes)
    if call.outputs[0].shape:
        work: Launch = launch(call, left, _sizes(call, left, right), right, call.arg("bias") is not None)
    else:
        work = Stream(read_bytes=call.read_bytes, write_bytes=call.write_bytes, elements=_depth(left))
    return call.cost(flops, launches=(work,))


@op(" ".join(_PRODUCTS_WITH_ADDEND))
def product_with_addend(call: Call) -> Cost:
    """``beta * self + alpha * (left x right)``.

    A matrix as addend is first copied into the output (Blas.cpp, ``addmm_out_cuda_impl``); a bias vector is
    not.
    """
    left, right = _operands(call, _PRODUCTS_WITH_ADDEND)
    flops = _flops(left, call.outputs[0].numel * _depth(left), call.attributes)
    sizes = _sizes(call, left, right)
    if call.attributes.get("beta", 1) == 0:
        read_bytes = min(call.read_bytes, left.nbytes + right.nbytes)
        lone = replace(launch(call, left, sizes, right), read_bytes=read_bytes)
        return call.cost(flops, read_bytes=read_bytes, launches=(lone,))
    addend, output = call.need("self"), call.outputs[0]
    in_place = call.name.split(".")[1].endswith("_")
    bias = len(addend.shape) < len(output.shape)
    whole = launch(call, left, sizes, right, bias)
    if not in_place and addend.shape == output.shape and addend.nbytes == output.nbytes:
        copy = Stream(read_bytes=addend.nbytes, write_bytes=output.nbytes, elements=output.numel)
        return call.cost(flops, launches=(copy, whole))
    return call.cost(flops, launches=(whole,))


@op("addbmm addbmm_")
def addbmm(call: Call) -> Cost:
    """``[b, m, k] x [b, k, n]`` summed over b."""
    left, right = call.need("batch1"), call.need("batch2")
    sizes = (1, left.shape[1], right.shape[2], left.shape[0] * left.shape[2])
    return call.cost(_flops(left, left.numel * right.shape[-1], call.attributes), launches=(launch(call, left, sizes),))


@op("addr addr_")
def addr(call: Call) -> Cost:
    """Outer product: k = 1, 2mn."""
    vector, results = call.need("vec1"), call.outputs[0].numel
    return call.cost(
        _flops(vector, vector.numel * call.need("vec2").numel, call.attributes),
        launches=(Stream(read_bytes=call.read_bytes, write_bytes=call.write_bytes, elements=results),),
    )


@op("_trilinear")
def trilinear(call: Call) -> Cost:
    """Three tensors multiplied over the axes of all and summed over some (``nn.Bilinear``: x1 W x2): for each slice of
    ``unroll_dim`` a matmul of the first two, summed over what the third lacks, and one with the third (Linear.cpp)."""
    tensors = [call.need(name) for name in ("i1", "i2", "i3")]
    expands = [set(call.attributes.get(f"expand{i}", ())) for i in (1, 2, 3)]
    rank = len(tensors[0].shape) + len(expands[0])
    sizes, present = [1] * rank, []
    for tensor, missing in zip(tensors, expands, strict=True):
        axes = sorted(set(range(rank)) - missing)
        present.append(axes)
        for axis, size in zip(axes, tensor.shape, strict=True):
            sizes[axis] = max(sizes[axis], size)
    first = {*present[0], *present[1]}
    summed = [axis for axis in call.attributes.get("sumdim", ()) if axis not in present[2]]
    one = math.prod(sizes[axis] for axis in first)
    two = math.prod(size for axis, size in enumerate(sizes) if axis not in summed)
    return call.cost(
        _flops(tensors[0], one + two, call.attributes), kernels=2 * max(sizes[call.attributes["unroll_dim"]], 1)
    )


@op("linear_backward", results=results.linear_backward)
def linear_backward(call: Call) -> Cost:
    """One matmul each for the gradients of input and weight; the bias sum is not counted."""
    grad, weight = call.need("grad_output"), call.need("weight")
    wanted = tuple(map(bool, call.attributes.get("output_mask", (True, True))[:2]))
    n, k = weight.shape
    rows = grad.numel // n
    input_bytes = rows * k * grad.itemsize
    launches = (
        replace(launch(call, grad, (1, rows, k, n)), read_bytes=grad.nbytes + weight.nbytes, write_bytes=input_bytes),
        replace(launch(call, grad, (1, n, k, rows)), read_bytes=grad.nbytes + input_bytes, write_bytes=weight.nbytes),
    )
    return call.cost(
        _flops(grad, sum(wanted) * grad.numel * k, call.attributes),
        launches=tuple(one for one, asked in zip(launches, wanted, strict=True) if asked),
    )


@op("_grouped_mm _scaled_grouped_mm", results=results.grouped_product, domains={"offs": group_ends})
@op("_scaled_grouped_mm_v2")
def grouped_product(call: Call) -> Cost:
    """Groups of rows (2D x 3D), of columns (3D x 2D) or of the summed axis (2D x 2D, a weight gradient), in one launch
    or ``looped``: in one for each group that has any."""
    left, right, out = call.need("self"), call.need("mat2"), call.outputs[0]
    if len(left.shape) == len(right.shape):  # [m, K] x [K, n] with K split over the groups, or a plain batch
        return _summed_in_groups(call, left, right, out)
    if len(right.shape) == 3:
        stacked, scales, rows, width = right, "scale_b", out.shape[0], out.shape[1]
    else:
        stacked, scales, rows, width = left, "scale_a", out.shape[1], out.shape[0]
    groups, depth = stacked.shape[0], _depth(left)
    touched, fewest = _groups(call, groups, rows)
    each = (stacked.nbytes + sum(spec.nbytes for spec in call.args(scales) if spec.shape[:1] == (groups,))) // groups
    read_bytes = call.read_bytes - (groups - touched) * each
    tall = math.ceil(rows / max(touched, 1))
    if call.attributes.get("looped"):
        sizes = (tall, width, depth) if stacked is right else (width, tall, depth)
        moved = out.itemsize * tall
        one = replace(launch(call, left, (1, *sizes)), read_bytes=moved * depth + each, write_bytes=moved * width)
        launches: tuple[Launch, ...] = (one,) * max(touched, 1)
    else:
        work = launch(call, left, (max(touched, 1), tall, width, depth))
        launches = (replace(work, read_bytes=read_bytes, rows=rows),)
    return call.cost(
        _flops(left, out.numel * depth, call.attributes),
        read_bytes=read_bytes,
        launches=launches,
        spared_read_bytes=(touched - fewest) * each,
    )


def _summed_in_groups(call: Call, left: TensorSpec, right: TensorSpec, out: TensorSpec) -> Cost:
    """[m, K] x [K, n], K split over the groups; looped, zeros are written for groups that have none of it
    (``addmm_out_cuda_impl``). Or a batch of [m, k] x [k, n], which is one product however groups run."""
    groups, m, n = out.shape[0], out.shape[-2], out.shape[-1]
    multiply_adds = left.numel * _packed(left) * n
    flops = _flops(left, multiply_adds, call.attributes)
    if not call.attributes.get("looped"):
        sizes = (groups, m, n, math.ceil(multiply_adds / max(groups * m * n, 1)))
        return call.cost(flops, launches=(launch(call, left, sizes),))
    summed, written = left.shape[-1], m * n * out.itemsize
    touched = max(_groups(call, groups, summed)[0], 1)
    deep = math.ceil(summed / touched)
    one = replace(launch(call, left, (1, m, n, deep)), read_bytes=deep * (m + n) * left.itemsize, write_bytes=written)
    return call.cost(flops, launches=(one,) * touched + (pass_over(0, written, m * n),) * (groups - touched))


@op("transformers::grouped_mm_fallback transformers::grouped_mm_fallback_backward")
def product_of_each_group(call: Call) -> Cost:
    """transformers' grouped matmul where torch has none: a matmul [rows, k] x [k, n] for each group that has rows,
    into zeros; backward two, for the gradients of the rows and of the weights."""
    left, stacked = call.need("input"), call.need("weight")
    groups, k, n = stacked.shape
    touched, fewest = _groups(call, groups, left.shape[0])
    rows, each, of_rows = math.ceil(left.shape[0] / max(touched, 1)), stacked.nbytes // groups, left.itemsize
    sizes = [((rows, n, k), of_rows * rows * k + each, of_rows * rows * n)]
    if call.name.endswith("_backward"):
        sizes = [
            ((rows, k, n), of_rows * rows * n + each, of_rows * rows * k),
            ((k, n, rows), of_rows * rows * (k + n), each),
        ]
    products = tuple(
        replace(launch(call, left, (1, *size)), read_bytes=read, write_bytes=written) for size, read, written in sizes
    )
    zeros = tuple(pass_over(0, made.nbytes, made.numel) for made in call.outputs)
    read_bytes = call.read_bytes - (groups - touched) * each
    return call.cost(
        _flops(left, len(sizes) * left.numel * n, call.attributes),
        read_bytes=read_bytes,
        launches=zeros + products * max(touched, 1),
        spared_read_bytes=(touched - fewest) * each,
    )


def _groups(call: Call, groups: int, rows: int) -> tuple[int, int]:
    """How many groups are expected to have rows, and the fewest that may."""
    known: Sequence[int] | None = call.attributes.get("slices")
    if known is not None:
        return min(known[0], groups), min(known[1], groups)
    return round(expected_active(rows, groups, 1)), min(rows, 1)


@op("_foreach_mm")
def foreach_product(call: Call) -> Cost:
    """A list of independent matmuls, one launch each."""
    lefts, rights = call.args("self"), call.args("mat2")
    pairs = tuple(zip(lefts, rights, strict=True))
    multiply_adds = sum(left.numel * right.shape[-1] for left, right in pairs)
    launches = tuple(
        replace(
            launch(call, left, (1, left.shape[0], right.shape[1], left.shape[1])),
            read_bytes=left.nbytes + right.nbytes,
            write_bytes=left.shape[0] * right.shape[1] * left.itemsize,
        )
        for left, right in pairs
    )
    return call.cost(_flops(lefts[0], multiply_adds, call.attributes), launches=launches)


# -- results of recorded calls -----------------------------------------------------------------------------------------

for _name, (_left, _right) in {**_PRODUCTS, **_PRODUCTS_WITH_ADDEND}.items():
    if _name not in ("_int_mm", "linear", "_scaled_mm_v2", "_weight_int4pack_mm"):
        define(_name, results=results.product(_left, _right))
define("sgl_kernel::fp8_scaled_mm", results=results.product("self", "mat2"))
define("_int_mm", results=results.integer_product)
define("linear vllm::rocm_unquantized_gemm", results=results.linear)

# -- operands and TF32 ------------------------------------------------------------------------------------------------

for _name in ("mm", "bmm", "mv"):
    define(_name, operands=_PRODUCTS[_name], tf32_switch="matmul")
for _name in ("addmm", "baddbmm", "addmv"):
    define(_name, operands=(*_PRODUCTS_WITH_ADDEND[_name], "self"), tf32_switch="matmul")
define("dot", operands=_PRODUCTS["dot"])
define("linear", operands=(*_PRODUCTS["linear"], "bias"))
