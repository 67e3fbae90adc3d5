"""Ops that move, copy, order or fill and compute nothing.

- 0 FLOP.
- Sorting counts one pass of compulsory bytes; the radix passes of long rows go in ``extra_bytes``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from memwall.core.graph import TensorSpec, contiguous
from memwall.ops import loops
from memwall.ops.attention import pairs_up_to
from memwall.ops.base import Call, Cost, fetched_bytes
from memwall.ops.passes import (
    launched,
    loop_instructions,
    looped,
    pass_over,
    sector_bytes,
    stream_of,
    streamed,
    vector_flops,
)
from memwall.ops.recorded import same
from memwall.ops.registry import formula
from memwall.ops.results import movement as results
from memwall.ops.results.pointwise import no_elements
from memwall.ops.results.rows import reduced, with_places
from memwall.ops.results.windows import like_input

op = partial(formula, "movement")


@op("_to_copy", loop=loops.point, results=same, preserves="values")
@op("clone", loop=loops.point, expression="{self}", results=same, preserves="values")
@op("copy", loop=loops.point, expression="{src}", results=same)
@op("copy_", loop=loops.point, expression="{src}", results=same, overwrites=True)
@op("contiguous", loop=loops.point, results=same)
def convert(call: Call) -> Cost:
    """Reads what it is given, writes what it returns, in a TensorIterator kernel (Copy.cu)."""
    output, operand = call.outputs[0], call.inputs[-1]
    places = loop_instructions((operand,), output)
    return streamed(call.cost(), output.numel, instructions=places, sector_bytes=sector_bytes(operand, output))


@op("_jagged_to_padded_dense_forward _padded_dense_to_jagged_forward")
@op("_cudnn_rnn_flatten_weight _conj_copy _neg_view_copy _stack"
    " indices_copy values_copy _indices_copy _values_copy crow_indices_copy col_indices_copy _reshape_alias_copy"
    " range _fw_primal_copy resize_as resize_as_")  # fmt: skip
@op("detach_copy diagonal_copy as_strided_copy unfold_copy _reshape_copy narrow_copy split_copy split_with_sizes_copy"
    " unbind_copy repeat_interleave diag_embed block_diag _pack_padded_sequence zero tril_indices triu_indices"
    " fill_diagonal_")  # fmt: skip
@op("lift_fresh_copy alias_copy rot90", results=same)
@op("expand_copy slice_copy select_copy unsqueeze_copy squeeze_copy eye", loop=loops.point)
@op("view_copy fill", loop=loops.point, results=same)
@op("fill_", loop=loops.point, results=same, overwrites=True)
@op("zero_", loop=loops.point, overwrites=True)
@op("zeros_like ones_like full_like", loop=loops.point, results=same, shape_only=True)
@op("new_zeros new_ones new_full", loop=loops.point, results=results.filled, shape_only=True)
@op("zeros ones full", loop=loops.point, results=results.filled)
@op("arange", loop=loops.point, results=results.counted)
@op("linspace", loop=loops.point, results=results.permuted)
@op("logspace", results=results.permuted)
@op("scalar_tensor", loop=loops.point, results=no_elements)
@op("roll flip pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle", loop=loops.point, moves=True,
    results=same)  # fmt: skip
@op("repeat", loop=loops.point, moves=True, results=results.repeated)
@op("permute_copy transpose_copy t_copy", loop=loops.point, moves=True)
@op("im2col", loop=loops.gather)
@op("reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d", loop=loops.gather, results=results.padded)
@op("reflection_pad3d replication_pad3d", results=results.padded)
def copy(call: Call) -> Cost:
    """Reads what it is given, no more of it than it returns (a copy of a part reads that part), and writes that."""
    returned = sum(output.numel * output.itemsize for output in call.outputs)
    return one_pass(call.cost(read_bytes=min(call.read_bytes, returned)), call)


@op("_assert_async _functional_assert_async")
def check(call: Call) -> Cost:
    """A thread reads the condition (TensorCompare.cu)."""
    return streamed(call.cost(write_bytes=0), 1)


@op("tril tril_ triu triu_", loop=loops.point, results=same)
def triangle(call: Call) -> Cost:
    """Reads the triangle that it keeps and writes all; in place it only clears the other (TriangularOps.cu)."""
    output, upper = call.outputs[0], "triu" in call.name
    rows, columns = output.shape[-2:]
    below = pairs_up_to(rows, columns, call.attributes.get("diagonal", 0) - upper)
    kept = output.numel // max(rows * columns, 1) * (rows * columns - below if upper else below)
    if call.name.split(".")[1].endswith("_"):
        return one_pass(call.cost(read_bytes=0, write_bytes=(output.numel - kept) * output.itemsize), call)
    return one_pass(call.cost(read_bytes=min(kept * output.itemsize, call.read_bytes)), call)


def whole_pass(call: Call) -> Cost:
    """One stream over all that the call reads and returns."""
    return one_pass(call.cost(), call)


def one_pass(cost: Cost, call: Call, **how: Any) -> Cost:
    """The cost as one stream over all that the call returns."""
    return streamed(cost, sum(output.numel for output in call.outputs), **how)


@op("cat stack", loop=loops.point, results=results.concatenated, preserves="values")
@op("_chunk_cat", loop=loops.point, results=results.concatenated)
def concatenate(call: Call) -> Cost:
    """At most 128 tensors per launch (Shape.cu, CAT_ARRAY_BATCH_SIZE); inputs with gaps are indexed axis by axis."""
    strided = sum(loop_instructions((spec,), contiguous(spec.shape, spec.dtype)) for spec in call.inputs)
    cost = call.cost(kernels=max(math.ceil(len(call.inputs) / 128), 1))
    return one_pass(cost, call, instructions=strided)


@op("constant_pad_nd", loop=loops.point, results=results.padded)
def constant_pad(call: Call) -> Cost:
    """Eager fills the whole output, then copies the input into it (PadNd.cpp); a negative pad cuts the input, and
    where none is positive the cut is only copied."""
    data, pads = call.need("self"), tuple(call.attributes.get("pad", ()))
    sizes = list(data.shape)
    for i in range(len(pads) // 2):
        sizes[-1 - i] += min(pads[2 * i], 0) + min(pads[2 * i + 1], 0)
    kept = fetched_bytes(data, math.prod(sizes))
    if pads and all(pad <= 0 for pad in pads):
        return one_pass(call.cost(read_bytes=kept), call)
    placed = fetched_bytes(call.outputs[0], math.prod(sizes))
    fill, copied = pass_over(0, call.write_bytes), pass_over(kept, placed, math.prod(sizes))
    return call.cost(read_bytes=kept, launches=(fill, copied))


@op("col2im")
@op("reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward"
    " replication_pad2d_backward replication_pad3d_backward unfold_backward", results=like_input)  # fmt: skip
def overlap_add(call: Call) -> Cost:
    """One add per element of what overlaps into a zeroed output; of ``self`` only the shape is asked."""
    grad = call.arg("grad_output") or call.inputs[0]
    cost = call.cost(vector_flops(grad, grad.numel), read_bytes=grad.nbytes)
    return launched(cost, pass_over(0, cost.write_bytes), stream_of(cost, grad.numel))


@op("slice_backward select_backward diagonal_backward", loop=loops.point, results=like_input)
def view_backward(call: Call) -> Cost:
    """Zeros of the full size, then the gradient copied in."""
    part = call.inputs[0]
    copied = pass_over(call.read_bytes, part.nbytes, part.numel)
    return call.cost(launches=(pass_over(0, call.write_bytes), copied))


@op("slice_scatter select_scatter", loop=loops.point, results=same)
@op("diagonal_scatter as_strided_scatter", results=same)
def view_scatter(call: Call) -> Cost:
    """A copy of ``self`` with ``src`` in a part of it; eager copies all of ``self`` first."""
    part, whole = call.need("src"), call.need("self").nbytes
    copied = pass_over(part.nbytes, part.nbytes, part.numel)
    return call.cost(read_bytes=whole, launches=(pass_over(whole, call.write_bytes), copied))


#: kernels and FLOPs per element of a window: a range, scaled; one or two cosines, scaled, and their sum
_WINDOWS = {"bartlett_window": 3, "hann_window": 4, "hamming_window": 4, "blackman_window": 8, "kaiser_window": 8}


@op(" ".join(_WINDOWS), results=results.counted)
def window(call: Call) -> Cost:
    """A window function in pointwise kernels, of an FLOP each (TensorFactories.cpp)."""
    output, steps = call.outputs[0], _WINDOWS[call.name.split(".")[1]]
    cost = call.cost(vector_flops(output, steps * output.numel))
    return launched(cost, pass_over(0, output.nbytes), *[pass_over(output.nbytes, output.nbytes)] * steps)


# Order.


#: bits of a pass of the block that sorts a row, and integer instructions per element and pass, whose few warps wait for
#: shared memory: 2048 rows of 2048 take 0.65 ms on an RTX 3090 (sparsemax of liger_fused_vs_unfused.csv); rows of 4096,
#: which were not fitted to, take twice that
_BLOCK_BITS, _BLOCK_INSTRUCTIONS = 4, 172
#: elements that such a block sorts: rows are filled up to them (Sort.cu, sortKeyValueInplace)
_BLOCK_ROWS = (32, 128, 1024, 2048, 4096)
#: rows from which each is sorted by itself (SortStable.cu); fewer are sorted as one, twice: by key, then by row
_MANY_ROWS = 128
#: bits of a pass over long rows, a block for each (cub::DeviceSegmentedRadixSort), and over the whole (DeviceRadixSort)
_SEGMENT_BITS, _RADIX_BITS = 5, 8


@op("sort", results=with_places)
@op("argsort msort", results=same)
def sort(call: Call) -> Cost:
    """Rows up to 4096 are sorted by a block each (Sort.cu); longer ones take radix passes over the keys, each of which
    moves them and int64 positions both ways, in ``extra_bytes``."""
    data, row = call.need("self"), _row(call)
    rows, key_bits = data.numel // max(row, 1), 8 * data.itemsize
    if row <= _BLOCK_ROWS[-1]:
        filled = rows * next(size for size in _BLOCK_ROWS if row <= size)
        passes = math.ceil(key_bits / _BLOCK_BITS)
        about = f"a block sorts each row of {row} in {passes} passes of {_BLOCK_BITS} bits"
        return streamed(call.cost(), data.numel, instructions=passes * _BLOCK_INSTRUCTIONS * filled, about=about)
    moved = data.numel * (data.itemsize + 8)
    if rows >= _MANY_ROWS:  # the keys are read once more, to be counted
        each, passes = pass_over(moved + data.nbytes, moved, data.numel), math.ceil(key_bits / _SEGMENT_BITS)
    else:
        each, passes = pass_over(moved, moved, data.numel), key_bits // _RADIX_BITS * (1 if rows == 1 else 2)
    cost = call.cost(kernels=passes + 2)
    return launched(cost, stream_of(cost, data.numel), *[each] * (passes - 1))


def _row(call: Call) -> int:
    """Elements along the axis of the call."""
    data = call.need("self")
    return data.shape[call.attributes.get("dim", -1)] if data.shape else 1


#: (rows up to, their least length) from which several blocks select from a row (TensorTopK.cu, should_use_multiblock)
_SHARED_ROWS = ((20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800), (math.inf, 400))
#: bits of the key of a pass of the block that selects from a row alone (SortingRadixSelect.cuh), its most threads, and
#: load latencies of a turn of the later passes, which find the row in L2
_SELECT_BITS, _SELECT_THREADS, _CACHED_STEPS = 2, 1024, 0.4


#: launches of several blocks' select (TensorTopK.cu, mbtopk::launch): what is wanted is filled in; of each of four
#: digits a count and a choice; what each block found of both kinds; two scans of two kernels; the gathering
_SHARED_KERNELS = 1 + 2 * 4 + 1 + 4 + 1


@op("topk", results=with_places)
def topk(call: Call) -> Cost:
    """A radix select (TensorTopK.cu), by a block for each row, or by several that read a long row once per 8 bits of
    the key, and once to gather; 48 KB stay in cache. Then what was found is sorted in place."""
    data, row = call.need("self"), _row(call)
    rows = data.numel // max(row, 1)
    order = pass_over(call.write_bytes, call.write_bytes, call.outputs[0].numel)
    if row < next(least for most, least in _SHARED_ROWS if rows <= most):
        alone = select(call, row)
        return replace(alone, launches=(*alone.launches, order))
    again = data.itemsize * data.nbytes if row * data.itemsize > 48 * 1024 else 0
    passes = replace(pass_over(data.nbytes + again, call.write_bytes, data.numel), count=_SHARED_KERNELS)
    return call.cost(launches=(passes, order))


@formula("reduction", "median nanmedian kthvalue", results=reduced)
def place_in_order(call: Call) -> Cost:
    """An element by its place in order: a block selects from each row, or from all elements where no axis is given."""
    return select(call, _row(call) if "dim" in call.attributes else call.need("self").numel)


def select(call: Call, row: int) -> Cost:
    """The cost as a radix select from rows, a block for each: a pass for every 2 bits of the key, and two to gather."""
    data = call.need("self")
    passes = 8 * data.itemsize // _SELECT_BITS + 2
    threads = min(max(math.ceil(row / 32) * 32, 32), _SELECT_THREADS)
    turns = math.ceil(row / threads)
    about = f"a block selects from each row of {row} in {passes} passes"
    steps = turns * (1 + _CACHED_STEPS * (passes - 1))
    return looped(call.cost(), data.numel, data.numel // max(row, 1) * threads, steps, about, threads)


@formula("other", "_fft_c2c _fft_r2c _fft_c2r", results=results.transformed)
def fourier(call: Call) -> Cost:
    """``5 n log2 n`` per complex transform of n points, half where one side is real (FFTW's convention)."""
    data, output = call.need("self"), call.outputs[0]
    side = output if call.name.startswith("aten._fft_c2r") else data
    points = math.prod(side.shape[axis] for axis in call.attributes["dim"])
    flops = side.numel * math.log2(points) * (5 if "c2c" in call.name else 2.5) if points > 1 else 0
    real = TensorSpec((), (), "float64" if output.itemsize == 16 or data.itemsize == 16 else "float32")
    return streamed(call.cost(vector_flops(real, round(flops))), side.numel)
