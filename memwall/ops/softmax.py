"""Softmax and log-softmax.

FLOPs per element, after Ivanov et al., "Data Movement Is All You Need" (spcl/substation): 5 (max, subtract, exp, sum,
divide), and 4 of the gradients (multiply, sum, subtract, multiply). Sources of what eager CUDA kernels read again are
named next to each rule.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from memwall.core.graph import TensorSpec
from memwall.ops import loops
from memwall.ops.base import Call, Cost
from memwall.ops.domains import along_dim
from memwall.ops.launches import Launch, Rows, Stream
from memwall.ops.passes import in_one_piece, pass_over, per_element, vector_flops
from memwall.ops.recorded import same
from memwall.ops.registry import formula
from memwall.ops.results import rows as results

op = partial(formula, "normalization")

#: shared memory that a block may use without opting in to more (cudaDeviceProp.sharedMemPerBlock)
_SHARED_BYTES = 48 * 1024
#: blocks of 1024 threads on a multiprocessor of 2048
_BLOCKS_PER_SM = 2
#: most threads of a block of a softmax along an axis whose neighbours are apart (SoftMax.cu)
_SPATIAL_THREADS = 1024


def _softmax_launch(spec: TensorSpec, dim: int, read_bytes: int, write_bytes: int, second_pass_bytes: int) -> Launch:
    """The launch of a softmax kernel over a tensor like ``spec``; ``second_pass_bytes`` are its second and third reads
    where a row does not stay on chip."""
    axis = dim % len(spec.shape) if spec.shape else 0
    length = spec.shape[axis] if spec.shape else 1
    row_bytes = length * spec.itemsize
    if not length:
        return pass_over(read_bytes, write_bytes)
    inner = math.prod(spec.shape[axis + 1 :])
    if inner != 1:
        return _spatial_softmax(spec, length, inner, read_bytes + second_pass_bytes, write_bytes)
    in_warp = length <= 1024 and row_bytes <= 4096  # in registers (PersistentSoftmax.cuh); else a block of 1024 threads
    return Rows(
        kind="softmax_warp" if in_warp else "softmax_block",
        rows=spec.numel // length,
        columns=length,
        itemsize=spec.itemsize,
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        # a block holds the row in shared memory, or where it is no multiple of 16 bytes in L1 (SoftMax.cu)
        second_pass_bytes=0 if in_warp or row_bytes < _SHARED_BYTES else second_pass_bytes,
        rows_per_sm=2 * _BLOCKS_PER_SM,  # a row and its result
    )


def _spatial_softmax(spec: TensorSpec, length: int, inner: int, read_bytes: int, write_bytes: int) -> Stream:
    """A softmax of elements ``inner`` apart (SoftMax.cu, ``cunn_SpatialSoftMax*``): a thread goes along the axis once
    for each time that it is read; where there are few such threads in a block, more share an axis."""
    across = min(inner, _SPATIAL_THREADS)
    along = 1
    while across <= 64 <= length and across * along < _SPATIAL_THREADS and along < length:
        along *= 2
    columns, passes = spec.numel // length, max(math.ceil(read_bytes / max(spec.nbytes, 1)), 1)
    return Stream(
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        elements=spec.numel,
        steps=passes * math.ceil(length / along),
        blocks=columns // inner * math.ceil(inner / across),
        block_threads=across * along,
        about=f"a thread goes along {math.ceil(length / along)} elements {inner} apart, {passes} times",
    )


@op("_softmax", loop=loops.softmax, results=results.softmax, cpu_rate="softmax", is_softmax=True)
@op("_log_softmax", loop=loops.softmax, results=results.softmax, cpu_rate="log_softmax")
@op("_masked_softmax", results=results.softmax)
def softmax(call: Call) -> Cost:
    """5 per element. A row too long for the chip is read three times: for its max, its sum and its result."""
    data, given = call.need("self"), call.attributes.get("dim")
    dim = -1 if given is None else given
    launch = _softmax_launch(data, dim, call.read_bytes, call.write_bytes, 2 * data.nbytes)
    return call.cost(vector_flops(data, 5 * data.numel), launches=(launch,))


@op("_safe_softmax", loop=loops.softmax, results=results.softmax, cpu_rate="softmax", is_softmax=True)
def safe_softmax(call: Call) -> Cost:
    """Softmax, then three kernels that zero the rows that are all -inf (native/transformers/attention.cpp): compare
    with -inf, reduce to a row's truth, select."""
    data, (out,) = call.need("self"), call.outputs
    mask_bytes, rows = data.numel, data.numel // max(data.shape[call.attributes["dim"]] if data.shape else 1, 1)
    compare, reduce = pass_over(data.nbytes, mask_bytes), pass_over(mask_bytes, rows)
    select = pass_over(rows + out.nbytes, out.nbytes)
    plain = softmax(call)
    return replace(plain, launches=(*plain.launches, compare, reduce, select))


@op("_log_softmax_backward_data", loop=loops.softmax, results=same, cpu_rate="softmax_backward",
    domains={"output": along_dim("log_probabilities")})  # fmt: skip
def log_softmax_backward(call: Call) -> Cost:
    """4 per element. A long row's ``grad_output`` is read twice."""
    grad = call.need("grad_output")
    whole, written = in_one_piece(grad)  # SoftMax.cu, ``contiguous``
    read_bytes = call.read_bytes + whole - grad.nbytes
    launch = _softmax_launch(grad, call.attributes["dim"], read_bytes, call.write_bytes, whole)
    return call.cost(vector_flops(grad, 4 * grad.numel), launches=(*written, launch))


@op("_softmax_backward_data", loop=loops.softmax, results=same, cpu_rate="softmax_backward",
    domains={"output": along_dim("probabilities")})  # fmt: skip
def softmax_backward(call: Call) -> Cost:
    """4 per element. Eager first stores ``grad_output * output`` with a kernel of its own (SoftMax.cu), so
    that is written and read, and ``output`` read again; a long row's product is read twice."""
    grad, output = call.need("grad_output"), call.need("output")
    product = pass_over(grad.nbytes + output.nbytes, grad.nbytes, grad.numel)
    rows = _softmax_launch(grad, call.attributes["dim"], product.read_bytes, call.write_bytes, grad.nbytes)
    return call.cost(vector_flops(grad, 4 * grad.numel), launches=(product, rows))


op("_masked_softmax_backward", results=same)(per_element("grad_output", 4))
