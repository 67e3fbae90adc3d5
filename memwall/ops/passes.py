"""Costs as passes over memory: one launch that streams what an op reads and writes, and what its threads compute on the
way. Any family's cost is made of these; FLOPs are counted as :mod:`memwall.ops.elementwise` states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from memwall.core.graph import Pipe, TensorSpec
from memwall.ops.base import Call, Cost
from memwall.ops.launches import Launch, Stream
from memwall.ops.registry import Formula

_DOUBLE = frozenset({"float64", "complex128"})
_COMPLEX = frozenset({"complex32", "complex64", "complex128"})
#: ops that are linear in their operands: a complex one is two real ones
_ADDS = frozenset({"add", "sub", "rsub", "sum", "mean", "cumsum"})


def vector_flops(spec: TensorSpec, count: int, name: str = "") -> dict[Pipe, int]:
    """``count`` FLOPs of elements like ``spec`` on the vector engine; none where it holds integers."""
    dtype = spec.dtype
    if dtype in _COMPLEX:
        count *= 2 if name in _ADDS else 6
    elif not dtype.startswith(("float", "bfloat")):
        return {}
    return {Pipe("vector", "float64" if dtype in _DOUBLE else "float32"): count}


def table_of(rows: dict[int, str]) -> dict[str, int]:
    """``{1: "add sub"}`` -> ``{"add": 1, "sub": 1}``."""
    return {name: flops for flops, names in rows.items() for name in names.split()}


def stream_of(cost: Cost, elements: int, **how: Any) -> Stream:
    """The launch that does all of a cost's compulsory work at once; ``how`` are further fields of the stream."""
    pipe = max(cost.flops, key=cost.flops.__getitem__, default=None)
    return Stream(
        read_bytes=cost.read_bytes,
        write_bytes=cost.write_bytes,
        elements=elements,
        flops=cost.total_flops,
        pipe=pipe,
        **how,
    )


def streamed(cost: Cost, elements: int, **how: Any) -> Cost:
    """The cost with a stream for its launch, whose bytes beyond the compulsory ones are reads."""
    work = stream_of(cost, elements, **how)
    read_bytes = cost.read_bytes + cost.extra_bytes
    return replace(cost, launches=(replace(work, read_bytes=read_bytes, count=cost.kernels),))


def looped(
    cost: Cost, elements: int, threads: int, steps: float, about: str, block_threads: int = 256, **how: Any
) -> Cost:
    """The cost as one launch of so many threads, each of which waits for ``steps`` loads one after another."""
    blocks = -(-threads // block_threads)
    return streamed(cost, elements, steps=steps, blocks=blocks, block_threads=block_threads, about=about, **how)


def per_element(of: str | Callable[[Call], TensorSpec], flops: int) -> Formula:
    """So many FLOPs for each element of an argument, or of what is found of the call, in one pass."""

    def cost(call: Call) -> Cost:
        spec = call.need(of) if isinstance(of, str) else of(call)
        return streamed(call.cost(vector_flops(spec, flops * spec.numel)), spec.numel)

    return cost


def first_result(call: Call) -> TensorSpec:
    return call.outputs[0]


def of_scalars(call: Call) -> Cost:
    """The cost of an op on a few numbers."""
    return streamed(call.cost(), 1)


def pass_over(read_bytes: int, write_bytes: int, elements: int = 0) -> Stream:
    """A launch that streams so many bytes and computes next to nothing."""
    return Stream(read_bytes=int(read_bytes), write_bytes=int(write_bytes), elements=elements)


def in_one_piece(spec: TensorSpec) -> tuple[int, tuple[Stream, ...]]:
    """Bytes of a tensor that a library's kernel wants in one piece, and the pass that writes it out where it is
    expanded, as the gradient of a sum is."""
    whole = spec.numel * spec.itemsize
    return whole, (pass_over(spec.nbytes, whole, spec.numel),) if spec.nbytes < whole else ()


def launched(cost: Cost, *launches: Launch) -> Cost:
    """The cost with these launches; kernels of it that none of them describes count with the last."""
    left = cost.kernels - sum(launch.count for launch in launches)
    if left > 0:
        launches = (*launches[:-1], replace(launches[-1], count=launches[-1].count + left))
    return replace(cost, launches=launches)


#: integer instructions per element of a kernel that finds each place by itself: per axis a fast division and the
#: operands' offsets, and the loop around (Loops.cuh, IntegerDivider.cuh); estimated from the code, and right for the
#: rotary embeddings of Liger's pairs on an A100 (198e9 elements/s over kernels of two and three axes)
_PER_AXIS, _PER_ELEMENT = 12, 12
#: where operands differ in dtype: a switch on it at each load and store (MemoryAccess.cuh, LoadWithCast); from the
#: bfloat16 RMS norm of Liger's pairs on an A100 (183e9 elements/s in its three casting kernels)
_PER_CAST = 53


def loop_instructions(operands: Sequence[TensorSpec], output: TensorSpec) -> int:
    """Integer instructions of a TensorIterator kernel over ``output``: none where it loads whole vectors, which takes
    operands of one dtype and one dense layout."""
    tensors = [spec for spec in operands if spec.numel > 1]
    if output.numel <= 1 or not tensors:
        return 0
    axes = _axes((output, *tensors), output)
    per_element = 0
    if axes > 1:
        per_element = broadcast_instructions(axes)
    if len({spec.dtype for spec in (output, *tensors)} - {"bool"}) > 1:  # a mask is read as it is
        per_element = max(per_element, _PER_CAST)
    return per_element * output.numel


#: threads of a warp, and bytes of a sector, the least that L2 serves (NVIDIA's guide to Nsight Compute)
_WARP, _SECTOR_BYTES = 32, 32


def sector_bytes(operand: TensorSpec, output: TensorSpec) -> int:
    """Bytes of the sectors that the warps of a TensorIterator kernel over ``output`` read of an operand, as for keys
    that are copied transposed: 32 results in a row lie in as many sectors, which other warps read again. 0 where a warp
    uses at least half of its sectors."""
    strides = [0] * (len(output.shape) - len(operand.shape)) + list(operand.strides)
    covered, sectors = 1, 1.0
    for axis in sorted(range(len(output.shape)), key=output.strides.__getitem__):
        taken = min(output.shape[axis], -(-_WARP // covered))
        step = strides[axis] * operand.itemsize / _SECTOR_BYTES
        sectors *= taken if step >= 1 else max(taken * step, 1.0)
        covered *= taken
    return int(output.numel * sectors) if sectors > 2 * operand.itemsize else 0


def broadcast_instructions(axes: int) -> int:
    """Integer instructions per element of a TensorIterator kernel over so many axes."""
    return _PER_ELEMENT + _PER_AXIS * axes


def _axes(tensors: Sequence[TensorSpec], output: TensorSpec) -> int:
    """Axes that are left of the output's once axes that lie in one run in every tensor are joined; 2 where one tensor
    has gaps along the only one."""
    rank = len(output.shape)
    strides = [tuple(0 if n == 1 else s for n, s in zip(t.shape, t.strides, strict=True)) for t in tensors]
    rows = [(0,) * (rank - len(row)) + row for row in strides]  # along the output's axes: 0 where it is broadcast
    real = [axis for axis in range(rank) if output.shape[axis] > 1]
    order = sorted(real, key=lambda axis: output.strides[axis])
    count, previous = 0, -1
    for axis in order:
        joins = previous >= 0 and all(row[axis] == row[previous] * output.shape[previous] for row in rows)
        count += not joins
        previous = axis
    dense = all(row[order[0]] == 1 for row in rows) if order else True
    return count if dense else max(count, 2)
