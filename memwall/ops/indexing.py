"""Ops that read or write elements and rows at the places that an index names: gathers, embeddings, scatters.

- 0 FLOP, except one add per element that is accumulated (``scatter_add``, ``index_add``, an embedding's gradient).
- A gather reads its indices and no more of its source than it fetches: an upper bound, min(fetched, source), since
  indices may repeat. An in-place scatter writes only what it touches, and reads that where it accumulates; a functional
  one also copies the whole tensor.
- The gradient of a gather is a whole tensor: zeros, then the scattered part (two kernels, the part written twice).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from memwall.core.graph import TensorSpec
from memwall.ops import loops
from memwall.ops.base import Call, Cost, fetched_bytes
from memwall.ops.domains import POSITIVE, ascending_to, nth_index, places, rows_counted, rows_of, sparse_rows
from memwall.ops.movement import one_pass, whole_pass
from memwall.ops.passes import launched, looped, pass_over, stream_of, streamed, vector_flops
from memwall.ops.recorded import same, shaped
from memwall.ops.registry import formula
from memwall.ops.results import movement as results
from memwall.ops.results.pointwise import pointwise

op = partial(formula, "movement")


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
    fetched, least = _fetched(call, call.need(source), count)
    cost = call.cost(read_bytes=call.bytes_except(source) + fetched, spared_read_bytes=fetched - least)
    return streamed(cost, count, instructions=per_element * count, steps=steps, blocks=1)


def _fetched(call: Call, source: TensorSpec, count: int) -> tuple[int, int]:
    """Bytes of the source that ``count`` elements are expected to touch, and the fewest that they may: choices of
    experts repeat (``slices``)."""
    places = sum(spec.numel for name in ("indices", "index") for spec in call.args(name))
    if not places:  # a trace says how many elements are written, and not by which indices
        whole = fetched_bytes(source, count)
        return whole, whole
    found, fewest = call.attributes.get("slices", (places, places))
    return tuple(fetched_bytes(source, each * count // places) for each in (found, fewest))  # type: ignore


@op("index", loop=loops.gather, results=results.indexed, preserves="values", domains={"indices": nth_index})
@op("_unsafe_index", loop=loops.gather, results=results.indexed)
@op("gather", loop=loops.gather, results=shaped("index", "self"), domains={"index": places(distinct=False)})
@op("take take_along_dim", loop=loops.gather, results=shaped("index", "self"))
@op("_unsafe_masked_index", results=pointwise)
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


@op(
    "masked_select nonzero argwhere unique_consecutive _unique2 _unique unique_dim unique_dim_consecutive",
    results=results.unknown_count,
)
@op("nonzero_static")
def compact(call: Call) -> Cost:
    """Counts, then writes: about four kernels, one pass of compulsory bytes (Nonzero.cu)."""
    cost, small, count = call.cost(), pass_over(0, 0), call.inputs[0].numel
    return launched(cost, pass_over(cost.read_bytes, 0, count), small, small, stream_of(cost, count))


#: columns of a bag that a warp sums, warps of a block, most blocks (EmbeddingBag.cu), and loads in a row of a turn: its
#: row, and one in a line of indices
_BAG_COLUMNS, _BAG_ROWS, _BAG_BLOCKS, _BAG_STEPS = 32, 8, 1024, 1 + 1 / 16


@op("_embedding_bag", results=results.bag, domains={"indices": rows_of("weight"), "offsets": ascending_to("indices")})
@op("_embedding_bag_forward_only", results=results.bag)
def embedding_bag(call: Call) -> Cost:
    """One add per fetched element, none where the mode is a maximum (2)."""
    weight, count = call.need("weight"), call.need("indices").numel
    fetched = count * math.prod(weight.shape[1:])
    adds = 0 if call.attributes.get("mode", 0) == 2 else fetched
    read = call.bytes_except("weight") + fetched_bytes(weight, fetched)
    cost = call.cost(vector_flops(weight, adds), read_bytes=read)
    offsets, size = call.arg("offsets"), math.prod(weight.shape[1:])
    bags = max(offsets.numel if offsets is not None else call.outputs[0].shape[0], 1)
    pieces = bags * math.ceil(size / _BAG_COLUMNS)
    turns = _BAG_STEPS * math.ceil(count / bags) * math.ceil(pieces / (_BAG_BLOCKS * _BAG_ROWS))
    threads = min(math.ceil(pieces / _BAG_ROWS), _BAG_BLOCKS) * _BAG_ROWS * _BAG_COLUMNS
    return looped(cost, fetched, threads, turns, f"a warp goes over the {math.ceil(count / bags)} rows of a bag")


#: index counts up to which Embedding.cu adds rows directly; above, it sorts the indices first
_DIRECT_INDICES = 3072
#: of the direct kernel: rows and columns of a block's turn, and its load latencies: a gradient, what the table has, and
#: two barriers (embedding_backward_feature_kernel)
_DIRECT_ROWS, _DIRECT_COLUMNS, _DIRECT_STEPS = 32, 32, 2.5
#: launches of the sort (keys and positions, in radix passes), the segment scan and the sums of Embedding.cu
_SORTED_KERNELS = 15
#: memory round trips in a row of each of these small kernels: what is left of embedding gradients on an A100 (Liger) at
#: the smallest table, 145 us
_SORT_ROUND_TRIPS = 20
#: integer instructions per element of a segment, which one kernel writes and another adds to the table, each; rows come
#: in at the bandwidth. For the embeddings of 4096 columns of Liger's pairs on an A100, 0.36 ms (1024 rows) to 1.40 ms
#: (16,384 rows) in all, without 0.41 ms for the gradient that is drawn
_SUM_INSTRUCTIONS = 80
#: rows of the gradient that one segment adds up (EmbeddingBackwardKernel.cu, NROWS_PER_THREAD)
_SEGMENT_ROWS = 10


#: the mode of a bag whose gradient goes to its largest element, by atomic additions; sums and means sort the
#: indices, few of them too (EmbeddingBag.cu, ``embedding_bag_backward_cuda_sum_avg``): their positions, a sort by one
#: block, the first of each row (2), segments of each, their sums (2), where each begins, partial sums, sums
_LARGEST, _FEW_SORTED_KERNELS = 2, 10


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
    of_bags = call.name.startswith("aten._embedding_bag")
    if count <= _DIRECT_INDICES and not of_bags:
        rows = replace(
            pass_over(call.read_bytes, zeros, adds),
            steps=_DIRECT_STEPS * math.ceil(count / _DIRECT_ROWS),
            blocks=math.ceil(size / _DIRECT_COLUMNS),
            block_threads=_DIRECT_ROWS * _DIRECT_COLUMNS,
            about=f"a block goes over all {count} rows for {_DIRECT_COLUMNS} columns",
        )
        return call.cost(vector_flops(table, adds), launches=(clear, rows))
    if of_bags and (count <= _DIRECT_INDICES or call.attributes.get("mode") == _LARGEST):
        kernels = 1 if call.attributes.get("mode") == _LARGEST else _FEW_SORTED_KERNELS
        rows = replace(pass_over(call.read_bytes, zeros, adds), count=kernels)
        return call.cost(vector_flops(table, adds), launches=(clear, rows))
    segments = min(count, table.shape[0]) + count // _SEGMENT_ROWS
    cost = call.cost(vector_flops(table, adds))
    sums = stream_of(
        cost,
        adds,
        instructions=_SUM_INSTRUCTIONS * 2 * segments * size,
        round_trips=_SORTED_KERNELS * _SORT_ROUND_TRIPS,
        count=_SORTED_KERNELS - 1,
    )
    sums_bytes = 2 * segments * size * 4  # in float32
    return launched(cost, clear, replace(sums, read_bytes=cost.read_bytes + sums_bytes, write_bytes=zeros))


@op("_embedding_bag_backward",
    domains={"indices": rows_counted, "offsets": ascending_to("indices"), "offset2bag": ascending_to("offsets"),
             "bag_size": POSITIVE})  # fmt: skip
def embedding_bag_backward(call: Call) -> Cost:
    """A sparse gradient is each index and its bag's row of ``grad``; a dense one is of the whole table."""
    return one_pass(call.cost(), call) if call.attributes.get("sparse") else embedding_backward(call)


@op("sparse::add_", preserves="sign", domains={"other": sparse_rows})
def sparse_add(call: Call) -> Cost:
    """A sparse tensor (its indices and values) added to a dense one in place: only its rows are read and written."""
    target, (indices, values) = call.need("self"), call.args("other")
    rows = fetched_bytes(target, values.numel)
    scaled = 2 if call.attributes.get("alpha", 1) != 1 else 1
    read = indices.nbytes + values.nbytes + rows
    cost = call.cost(vector_flops(values, scaled * values.numel), read_bytes=read, write_bytes=rows)
    return streamed(cost, values.numel)


#: DRAM traffic that takes as long as one atomic add of a float32: L2 serves each by itself, 33e9 to 37e9 in a second in
#: the embedding gradients of Liger's pairs on an A100, which moves 1.7e12 bytes meanwhile
ATOMIC_BYTES = 48


# Scatters: which argument holds the indices or the new values, so how many elements are touched.


def _scatter_cost(call: Call, touched: int, source_bytes: int, reads: bool = False, adds: bool = False) -> Cost:
    """``touched`` elements of ``self`` change, from ``source_bytes`` of values and indices.

    ``reads``: what stood there enters the result; ``adds``: with one FLOP each, by atomic additions.
    """
    target = call.outputs[0]
    part = fetched_bytes(target, touched)
    flops, read = vector_flops(target, touched if adds else 0), source_bytes + part * reads
    slower = max(ATOMIC_BYTES * touched - read - part, 0) if adds else 0
    changed = pass_over(read + slower, part, touched)
    if call.name.split(".")[1].endswith("_"):
        return call.cost(flops, read_bytes=read, write_bytes=part, launches=(changed,))
    whole = call.need("self").nbytes  # copied first, then changed in place
    copied = pass_over(whole, call.write_bytes, target.numel)
    return call.cost(flops, read_bytes=source_bytes + whole, launches=(copied, changed))


@op("scatter scatter_ scatter_add scatter_add_", loop=loops.scatter, results=same,
    domains={"index": places(distinct=True)})  # fmt: skip
@op("scatter_reduce", results=same)
@op("scatter_reduce_")
def scatter(call: Call) -> Cost:
    """One element of ``self`` per element of ``index``; no more of ``src`` is read than that."""
    index, values, how = call.need("index"), call.arg("src"), call.attributes.get("reduce")
    source = index.nbytes + (fetched_bytes(values, index.numel) if values is not None else 0)
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
    return _scatter_cost(call, touched, call.bytes_except("self"), reads=adds, adds=adds)


@op("index_put index_put_", loop=loops.scatter, results=same, domains={"indices": nth_index})
@op("_unsafe_index_put", loop=loops.scatter, results=same)
@op("_index_put_impl_", loop=loops.scatter)
def index_put(call: Call) -> Cost:
    """``self[indices] = values``: every element that is indexed, to which ``values`` are broadcast."""
    target, adds = call.outputs[0], bool(call.attributes.get("accumulate"))
    touched = min(_indexed(call, target), target.numel)
    return _scatter_cost(call, touched, call.bytes_except("self"), reads=adds, adds=adds)


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


# where each row of sorted places begins, or the rows of such bounds
op("_convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo")(whole_pass)


@op("index_reduce index_reduce_", results=same)
def index_reduce(call: Call) -> Cost:
    """Slices of ``source`` combined with slices of ``self``: an add or a multiply each, none for the extrema."""
    values, how = call.need("source"), call.attributes.get("reduce")
    return _scatter_cost(
        call, values.numel, call.bytes_except("self"), reads=True, adds=how not in ("amax", "amin", "max", "min")
    )


@op("put", results=same)
def put(call: Call) -> Cost:
    """Numbered elements of a copy."""
    adds = bool(call.attributes.get("accumulate"))
    return _scatter_cost(call, call.need("index").numel, call.bytes_except("self"), reads=adds, adds=adds)


@op("max_unpool2d max_unpool3d")
def max_unpool(call: Call) -> Cost:
    """Zeros, and each element at the place of its maximum."""
    data = call.need("self")
    placed = pass_over(call.read_bytes, fetched_bytes(call.outputs[0], data.numel), data.numel)
    return call.cost(launches=(pass_over(0, call.write_bytes), placed))


@op("_unsafe_masked_index_put_accumulate masked_scatter_backward")
def masked_index_put(call: Call) -> Cost:
    """One add per element into a copy of ``self``; masked_scatter's gradient only picks."""
    values, adds = call.arg("values") or call.inputs[0], "accumulate" in call.name
    if not adds:
        return one_pass(call.cost(), call)
    return _scatter_cost(call, values.numel, call.bytes_except("self"), reads=True, adds=True)


@op("_embedding_bag_per_sample_weights_backward")
def embedding_bag_weights(call: Call) -> Cost:
    """Each sample's row times its bag's gradient: a dot product."""
    weight, count = call.need("weight"), call.need("indices").numel
    read = call.bytes_except("weight") + fetched_bytes(weight, count * weight.shape[-1])
    return streamed(call.cost(vector_flops(weight, 2 * count * weight.shape[-1]), read_bytes=read), count)


@op("embedding_renorm_")
def embedding_renorm(call: Call) -> Cost:
    """The norm of each row that is looked up (2 per element), and those rows scaled in place."""
    weight, count = call.need("self"), call.need("indices").numel
    rows = fetched_bytes(weight, count * weight.shape[-1])
    cost = call.cost(
        vector_flops(weight, 3 * min(count * weight.shape[-1], weight.numel)),
        read_bytes=call.need("indices").nbytes + rows,
        write_bytes=rows,
    )
    return streamed(cost, count * weight.shape[-1])


# writes under a mask: charged in full, since the mask's content is not known
op("masked_scatter", results=pointwise)(whole_pass)
op("masked_scatter_ put_")(whole_pass)
