"""Ops that move, copy, gather, scatter, order or fill and compute next to nothing.

- 0 FLOP, except one add per element that is accumulated (``scatter_add``, ``index_add``, an embedding's gradient).
- A gather reads its indices and no more of its source than it fetches: an upper bound, min(fetched, source), since
  indices may repeat. An in-place scatter writes only what it touches, and reads that where it accumulates; a functional
  one also copies the whole tensor.
- The gradient of a gather is a whole tensor: zeros, then the scattered part (two kernels, the part written twice).
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
from memwall.ops.base import Call, Cost
from memwall.ops.domains import POSITIVE, ascending_to, nth_index, places, rows_counted, rows_of, sparse_rows
from memwall.ops.elementwise import launched, loop_instructions, pass_over, stream_of, streamed, vector_flops
from memwall.ops.recorded import same, shaped
from memwall.ops.registry import formula
from memwall.ops.results import movement as results
from memwall.ops.results.pointwise import no_elements, pointwise
from memwall.ops.results.rows import with_places
from memwall.ops.results.windows import like_input

op = partial(formula, "movement")


def _others(call: Call, *names: str) -> int:
    """Bytes of the inputs that are not passed as one of these arguments."""
    return sum(spec.nbytes for name, spec in zip(call.arguments, call.inputs, strict=True) if name not in names)


@op("_to_copy", loop=loops.point, results=same, preserves="values")
@op("clone", loop=loops.point, expression="{self}", results=same, preserves="values")
@op("copy", loop=loops.point, expression="{src}", results=same)
@op("copy_", loop=loops.point, expression="{src}", results=same, overwrites=True)
@op("contiguous", loop=loops.point, results=same)
def convert(call: Call) -> Cost:
    """Reads what it is given, writes what it returns, in a TensorIterator kernel (Copy.cu)."""
    output = call.outputs[0]
    return streamed(call.cost(), output.numel, instructions=loop_instructions(call.inputs[-1:], output))


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
    return _streamed(call.cost(read_bytes=min(call.read_bytes, returned)), call)


@op("tril tril_ triu triu_", loop=loops.point, results=same)
def triangle(call: Call) -> Cost:
    """Reads the triangle that it keeps and writes all; in place it only clears the other (TriangularOps.cu)."""
    output, upper = call.outputs[0], "triu" in call.name
    rows, columns = output.shape[-2:]
    below = pairs_up_to(rows, columns, call.attributes.get("diagonal", 0) - upper)
    kept = output.numel // max(rows * columns, 1) * (rows * columns - below if upper else below)
    if call.name.split(".")[1].endswith("_"):
        return _streamed(call.cost(read_bytes=0, write_bytes=(output.numel - kept) * output.itemsize), call)
    return _streamed(call.cost(read_bytes=min(kept * output.itemsize, call.read_bytes)), call)


def _streamed(cost: Cost, call: Call, **how: Any) -> Cost:
    return streamed(cost, sum(output.numel for output in call.outputs), **how)


@op("cat stack", loop=loops.point, results=results.concatenated, preserves="values")
@op("_chunk_cat", loop=loops.point, results=results.concatenated)
def concatenate(call: Call) -> Cost:
    """At most 128 tensors per launch (Shape.cu, CAT_ARRAY_BATCH_SIZE); inputs with gaps are indexed axis by axis."""
    strided = sum(loop_instructions((spec,), contiguous(spec.shape, spec.dtype)) for spec in call.inputs)
    cost = call.cost(kernels=max(math.ceil(len(call.inputs) / 128), 1))
    return _streamed(cost, call, instructions=strided)


@op("constant_pad_nd", loop=loops.point, results=results.padded)
def constant_pad(call: Call) -> Cost:
    """Eager fills the whole output, then copies the input into it (PadNd.cpp); a negative pad cuts the input, and
    where none is positive the cut is only copied."""
    data, pads = call.need("self"), tuple(call.attributes.get("pad", ()))
    sizes = list(data.shape)
    for i in range(len(pads) // 2):
        sizes[-1 - i] += min(pads[2 * i], 0) + min(pads[2 * i + 1], 0)
    kept = _gathered(data, math.prod(sizes))
    if pads and all(pad <= 0 for pad in pads):
        return _streamed(call.cost(read_bytes=kept), call)
    placed = _gathered(call.outputs[0], math.prod(sizes))
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


# Gathers.


def _gathered(source: TensorSpec, elements: int) -> int:
    """Bytes of the source that so many fetched elements can touch."""
    return min(elements * source.itemsize, source.nbytes)


#: integer instructions per element of ``indexSelectLargeIndex`` (Indexing.cu), which fetches one element per thread and
#: step and divides for each: embeddings of 768 and 4096 columns on an A100 (Liger) run at 84e9 elements/s; 4096 rows of
#: 5120 on an H100 take 136 us (pytorch issue 151612), 146 us by this. Of torch 2.7 on, aligned rows go by whole vectors
_SELECT_INSTRUCTIONS = 116
#: up to so many indices each thread takes all of them, one after another (Indexing.cu, indexSelectSmallIndex)
_FEW_INDICES = 16
#: loads in a row for each: a row's waits for its index, of which several come at once. 16 tokens take 12, 8 and
#: 10 us more than one, and 32 no more than two, on an A100, A40 and H100, whatever their width (Vidur)
_SELECT_WAITS = 1.4


def select_steps(indices: int) -> int:
    """Loads in a row of a thread of ``index_select``."""
    return math.ceil(_SELECT_WAITS * indices) if indices <= _FEW_INDICES else 2


def _gather_cost(call: Call, source: str, per_element: int = 0, steps: int = 0) -> Cost:
    count = call.outputs[0].numel
    read = _others(call, source) + _gathered(call.need(source), count)
    return streamed(call.cost(read_bytes=read), count, instructions=per_element * count, steps=steps, blocks=1)


@op("index", loop=loops.gather, results=results.indexed, preserves="values", domains={"indices": nth_index})
@op("_unsafe_index", loop=loops.gather, results=results.indexed)
@op("gather", loop=loops.gather, results=shaped("index", "self"), domains={"index": places(distinct=False)})
@op("take take_along_dim", loop=loops.gather, results=shaped("index", "self"))
def gather(call: Call) -> Cost:
    """``self`` at some indices: as many elements as the output has."""
    return _gather_cost(call, "self")


@op("index_select", loop=loops.gather, results=results.selected, preserves="values",
    domains={"index": places(distinct=False)})  # fmt: skip
def index_select(call: Call) -> Cost:
    """Slices of ``self`` at some indices."""
    return _gather_cost(call, "self", _SELECT_INSTRUCTIONS, select_steps(call.need("index").numel))


@op("embedding", loop=loops.gather, results=results.embedded, domains={"indices": rows_of("weight")})
def embedding(call: Call) -> Cost:
    """Rows of ``weight`` [rows, size] at ``indices``: an ``index_select`` (Embedding.cpp)."""
    return _gather_cost(call, "weight", _SELECT_INSTRUCTIONS, select_steps(call.need("indices").numel))


@op("masked_select nonzero argwhere unique_consecutive _unique2 unique_dim", results=results.unknown_count)
@op("nonzero_static")
def compact(call: Call) -> Cost:
    """Counts, then writes: about four kernels, one pass of compulsory bytes (Nonzero.cu)."""
    cost, small, count = call.cost(), pass_over(0, 0), call.inputs[0].numel
    return launched(cost, pass_over(cost.read_bytes, 0, count), small, small, stream_of(cost, count))


@op("_embedding_bag", results=results.bag, domains={"indices": rows_of("weight"), "offsets": ascending_to("indices")})
@op("_embedding_bag_forward_only", results=results.bag)
def embedding_bag(call: Call) -> Cost:
    """One add per fetched element, none where the mode is a maximum (2)."""
    weight, count = call.need("weight"), call.need("indices").numel
    fetched = count * math.prod(weight.shape[1:])
    adds = 0 if call.attributes.get("mode", 0) == 2 else fetched
    read = _others(call, "weight") + _gathered(weight, fetched)
    return streamed(call.cost(vector_flops(weight, adds), read_bytes=read), fetched)


#: index counts up to which Embedding.cu adds rows directly; above, it sorts the indices first
_DIRECT_INDICES = 3072
#: launches of the sort (keys and positions, in radix passes), the segment scan and the sums of Embedding.cu
_SORTED_KERNELS = 15
#: memory round trips in a row of each of these small kernels: what is left of embedding gradients on an A100 (Liger) at
#: the smallest table, 145 us
_SORT_ROUND_TRIPS = 20
#: integer instructions per element of the kernels that add up rows into segments, and segments into the table; for the
#: embeddings of 4096 columns of Liger's pairs on an A100, 0.60 ms (1024 rows) to 1.63 ms (16,384 rows) in all
_SUM_INSTRUCTIONS = 80
#: rows of the gradient that one segment adds up (EmbeddingBackwardKernel.cu, NROWS_PER_THREAD)
_SEGMENT_ROWS = 10


@op("embedding_dense_backward", loop=loops.scatter, results=results.embedding_gradient,
    domains={"indices": rows_counted})  # fmt: skip
@op("_embedding_bag_dense_backward", results=results.embedding_gradient)
def embedding_backward(call: Call) -> Cost:
    """The gradient of the whole table: zeros, then one add per element of each index's row."""
    grad = call.arg("grad_output") or call.need("grad")
    table, count = call.outputs[0], call.need("indices").numel
    size = math.prod(table.shape[1:])
    adds = count * size
    zeros = min(adds * grad.itemsize, table.nbytes)
    clear = pass_over(0, call.write_bytes, table.numel)
    if count <= _DIRECT_INDICES:
        return call.cost(vector_flops(table, adds), launches=(clear, pass_over(call.read_bytes, zeros, adds)))
    segments = min(count, table.shape[0]) + count // _SEGMENT_ROWS
    cost = call.cost(vector_flops(table, adds))
    sums = stream_of(
        cost, adds, instructions=_SUM_INSTRUCTIONS * (count + 2 * segments) * size,
        round_trips=_SORTED_KERNELS * _SORT_ROUND_TRIPS, count=_SORTED_KERNELS - 1,
    )  # fmt: skip
    sums_bytes = 2 * segments * size * 4  # in float32
    return launched(cost, clear, replace(sums, read_bytes=cost.read_bytes + sums_bytes, write_bytes=zeros))


@op("_embedding_bag_backward",
    domains={"indices": rows_counted, "offsets": ascending_to("indices"), "offset2bag": ascending_to("offsets"),
             "bag_size": POSITIVE})  # fmt: skip
def embedding_bag_backward(call: Call) -> Cost:
    """A sparse gradient is each index and its bag's row of ``grad``; a dense one is that of the whole table."""
    return _streamed(call.cost(), call) if call.attributes.get("sparse") else embedding_backward(call)


@op("sparse::add_", preserves="sign", domains={"other": sparse_rows})
def sparse_add(call: Call) -> Cost:
    """A sparse tensor (its indices and values) added to a dense one in place: only its rows are read and written."""
    target, (indices, values) = call.need("self"), call.args("other")
    rows = _gathered(target, values.numel)
    scaled = 2 if call.attributes.get("alpha", 1) != 1 else 1
    read = indices.nbytes + values.nbytes + rows
    cost = call.cost(vector_flops(values, scaled * values.numel), read_bytes=read, write_bytes=rows)
    return streamed(cost, values.numel)


#: DRAM traffic that takes as long as one atomic add of a float32: L2 serves each by itself, 33e9 to 37e9 in a second in
#: the embedding gradients of Liger's pairs on an A100, which moves 1.7e12 bytes meanwhile
_ATOMIC_BYTES = 48


# Scatters: which argument holds the indices or the new values, so how many elements are touched.


def _scatter_cost(call: Call, touched: int, source_bytes: int, reads: bool = False, adds: bool = False) -> Cost:
    """``touched`` elements of ``self`` change, from ``source_bytes`` of values and indices.

    ``reads``: what stood there enters the result; ``adds``: with one FLOP each.
    """
    target = call.outputs[0]
    part = _gathered(target, touched)
    flops = vector_flops(target, touched if adds else 0)
    if call.name.split(".")[1].endswith("_"):
        return streamed(call.cost(flops, read_bytes=source_bytes + part * reads, write_bytes=part), touched)
    whole = call.need("self").nbytes  # copied first, then changed in place
    copied = pass_over(whole, call.write_bytes, target.numel)
    changed = pass_over(source_bytes + part * reads, part, touched)
    return call.cost(flops, read_bytes=source_bytes + whole, launches=(copied, changed))


@op("scatter scatter_ scatter_add scatter_add_", loop=loops.scatter, results=same,
    domains={"index": places(distinct=True)})  # fmt: skip
@op("scatter_reduce", results=same)
@op("scatter_reduce_")
def scatter(call: Call) -> Cost:
    """One element of ``self`` per element of ``index``; no more of ``src`` is read than that."""
    index, values, how = call.need("index"), call.arg("src"), call.attributes.get("reduce")
    source = index.nbytes + (_gathered(values, index.numel) if values is not None else 0)
    accumulates = "scatter_add" in call.name
    adds = accumulates or how in ("add", "multiply", "sum", "mean", "prod")
    return _scatter_cost(call, index.numel, source, reads=accumulates or how is not None, adds=adds)


@op("index_add index_add_", loop=loops.scatter, results=same, domains={"index": places(distinct=False)})
@op("index_copy index_fill", results=same)
@op("index_copy_ index_fill_")
def index_scatter(call: Call) -> Cost:
    """Whole slices of ``self`` along one axis, as many as ``index`` has."""
    target, index, values = call.outputs[0], call.need("index"), call.arg("source")
    axis = target.shape[call.attributes["dim"]] if target.shape else 1
    touched = values.numel if values is not None else index.numel * target.numel // max(axis, 1)
    adds = "index_add" in call.name
    plain = _scatter_cost(call, touched, _others(call, "self"), reads=adds, adds=adds)
    slower = max(_ATOMIC_BYTES * touched - plain.bytes if adds else 0, 0)
    last = replace(plain.launches[-1], read_bytes=plain.launches[-1].read_bytes + slower)
    return replace(plain, launches=(*plain.launches[:-1], last))


@op("index_put index_put_", loop=loops.scatter, results=same, domains={"indices": nth_index})
@op("_unsafe_index_put", loop=loops.scatter, results=same)
@op("_index_put_impl_", loop=loops.scatter)
def index_put(call: Call) -> Cost:
    """``self[indices] = values``: every element that is indexed, to which ``values`` are broadcast."""
    target, adds = call.outputs[0], bool(call.attributes.get("accumulate"))
    touched = min(_indexed(call, target), target.numel)
    return _scatter_cost(call, touched, _others(call, "self"), reads=adds, adds=adds)


def _indexed(call: Call, target: TensorSpec) -> int:
    """Elements of ``target`` under the indices. How many a mask picks is not known: as many as ``values`` says, else
    all that it covers."""
    values, indices = call.arg("values"), call.args("indices")  # a number comes as a tensor of the host
    given = call.attributes.get("indices_given") or (True,) * len(indices)
    if sum(given) != len(indices) or not indices:  # indices on the host
        return 1 if values is None else values.numel
    shapes: list[tuple[int, ...]] = []
    kept: list[int] = []
    axis, masked, remaining = 0, False, iter(indices)
    for is_given in given:
        if not is_given:
            kept.append(target.shape[axis])
            axis += 1
            continue
        index = next(remaining)
        if index.dtype in ("bool", "uint8"):  # takes as many axes as it has
            masked, axis = True, axis + len(index.shape)
            shapes.append((index.numel,))
        else:
            axis += 1
            shapes.append(index.shape)
    kept += target.shape[axis:]
    if masked and values is not None and values.numel > 1 and len(values.shape) > len(kept):
        return values.numel
    return _broadcast_numel(shapes) * math.prod(kept)


def _broadcast_numel(shapes: list[tuple[int, ...]]) -> int:
    """Elements of the shape that some shapes broadcast to."""
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return math.prod(next((n for n in sizes if n != 1), 1) for sizes in zip(*aligned, strict=True))


@op("masked_scatter", results=pointwise)
@op("masked_scatter_ put_")
def masked_scatter(call: Call) -> Cost:
    """Writes under a mask: charged in full, since the mask's content is not known."""
    return _streamed(call.cost(), call)


# Order.


@op("sort", results=with_places)
@op("argsort msort", results=same)
def sort(call: Call) -> Cost:
    """Rows up to 4096 are sorted in one kernel (SortStable.cu); longer ones take a radix pass per 8 bits of
    the key, each moving keys and int64 positions both ways."""
    data, dim = call.need("self"), call.attributes.get("dim", -1)
    row = data.shape[dim] if data.shape else 1
    if row <= 4096:
        return streamed(call.cost(), data.numel)
    passes, moved = data.itemsize, data.numel * (data.itemsize + 8)
    cost = call.cost(kernels=passes + 2)
    return launched(cost, stream_of(cost, data.numel), *[pass_over(moved, moved, data.numel)] * (passes - 1))


@op("topk", results=with_places)
def topk(call: Call) -> Cost:
    """A radix select (TensorTopK.cu): a read per 8 bits of the key, one to gather; 48 KB stay in cache. Then what was
    found is sorted in place."""
    data, dim = call.need("self"), call.attributes.get("dim", -1)
    row_bytes = (data.shape[dim] if data.shape else 1) * data.itemsize
    again = data.itemsize * data.nbytes if row_bytes > 48 * 1024 else 0
    select = pass_over(data.nbytes + again, call.write_bytes, data.numel)
    order = pass_over(call.write_bytes, call.write_bytes, call.outputs[0].numel)
    return call.cost(launches=(select, order))


@formula("other", "_fft_c2c _fft_r2c _fft_c2r", results=results.transformed)
def fourier(call: Call) -> Cost:
    """``5 n log2 n`` per complex transform of n points, half where one side is real (FFTW's convention)."""
    data, output = call.need("self"), call.outputs[0]
    side = output if call.name.startswith("aten._fft_c2r") else data
    points = math.prod(side.shape[axis] for axis in call.attributes["dim"])
    flops = side.numel * math.log2(points) * (5 if "c2c" in call.name else 2.5) if points > 1 else 0
    real = TensorSpec((), (), "float64" if output.itemsize == 16 or data.itemsize == 16 else "float32")
    return streamed(call.cost(vector_flops(real, round(flops))), side.numel)
