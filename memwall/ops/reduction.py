"""Reductions, scans, and losses that end in a sum.

FLOPs per element of the input: a sum 1, a variance 4 (sum; subtract, square, sum), a norm 2 (square, sum); the few
FLOPs per output (the division of a mean) are not counted. Maximum, minimum, any, all and their arguments are
comparisons: 0. Integer results cost no FLOP.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from memwall.core.graph import Pipe, TensorSpec
from memwall.ops import loops
from memwall.ops.base import Call, Cost, fetched_bytes
from memwall.ops.launches import Reduction
from memwall.ops.passes import launched, looped, pass_over, stream_of, streamed, table_of, vector_flops
from memwall.ops.registry import formula
from memwall.ops.results import rows as results
from memwall.ops.results.pointwise import no_elements

op = partial(formula, "reduction")

#: FLOPs per element of the input
_REDUCTIONS = table_of({
    0: "max min amax amin aminmax _aminmax argmax argmin any all count_nonzero mode equal is_nonzero _is_all_true"
       " _is_any_true bincount histc",
    1: "sum nansum mean prod trace sum_to_size",
    2: "norm dist",
    4: "var std var_mean std_mean",
})  # fmt: skip
#: FLOPs per element of the input of running reductions, which write as much as they read
_SCANS = table_of(
    {0: "cummax cummin _cummax_helper _cummin_helper", 1: "cumsum cumsum_ cumprod cumprod_", 4: "logcumsumexp"}
)
#: FLOPs per element of the losses, without the reduction's add
_LOSSES = table_of({2: "mse_loss", 3: "huber_loss smooth_l1_loss soft_margin_loss", 5: "binary_cross_entropy"})


def _source(call: Call) -> TensorSpec:
    return call.arg("self") or call.inputs[0]


@op("sum mean", loop=loops.reduction, results=results.reduced, preserves="sign")
@op("amax amin prod all any nansum argmax argmin max min", loop=loops.reduction, results=results.reduced)
@op("var std var_mean", loop=loops.reduction, results=results.reduced, cpu_rate="variance")
@op("std_mean", results=results.reduced, cpu_rate="variance")
@op("aminmax _aminmax count_nonzero norm trace mode", results=results.reduced)
@op("equal dist", results=no_elements)
@op("is_nonzero _is_all_true _is_any_true bincount histc sum_to_size")
@op("cumsum cumprod logcumsumexp", results=results.scanned)
@op("cummax cummin", results=results.with_places)
@op("_cummax_helper _cummin_helper cumsum_ cumprod_")
def reduction(call: Call) -> Cost:
    """FLOPs of the table for each element of the input."""
    name = call.name.split(".")[1]
    per_element = _REDUCTIONS[name] if name in _REDUCTIONS else _SCANS[name]
    computed_in = call.outputs[0] if call.outputs and call.outputs[0].dtype != "bool" else _source(call)
    elements, read = _source(call).numel, None
    if name == "trace":  # the diagonal alone
        elements = min(_source(call).shape)
        read = fetched_bytes(_source(call), elements)
    cost = call.cost(vector_flops(computed_in, elements * per_element, name.rstrip("_")), read_bytes=read)
    return _scanned(call, cost) if name in _SCANS else _reduced(call, cost)


#: clocks of a thread to combine a value and its place, of which the place is an int64: 4096 outputs of 256 elements on
#: L40S and A10 (kernelbench_v0)
_PLACE_CLK = 70
#: the same for moments, where four chains of divisions go on at once
_MOMENTS_CLK = 90
_COMBINE_CLK = {"argmax": _PLACE_CLK, "argmin": _PLACE_CLK, "var": _MOMENTS_CLK, "std": _MOMENTS_CLK,
                "var_mean": _MOMENTS_CLK, "std_mean": _MOMENTS_CLK}  # fmt: skip
#: ops that do not run Reduce.cuh's kernel
_OTHER_KERNELS = frozenset(("mode", "equal", "bincount", "histc", "trace", "is_nonzero"))


def _reduced(call: Call, cost: Cost) -> Cost:
    """The cost as one reduction over the input."""
    data, name = _source(call), call.name.split(".")[1]
    if name in _OTHER_KERNELS:
        return streamed(cost, data.numel, kind="reduction")
    combine_clk = _COMBINE_CLK.get(name, _PLACE_CLK if name in ("max", "min") and len(call.outputs) > 1 else 0)
    work = reduction_of(data, call.attributes.get("dim"), cost.read_bytes, cost.write_bytes, combine_clk)
    pipe = max(cost.flops, key=cost.flops.__getitem__, default=None)
    return replace(cost, launches=(replace(work, flops=cost.total_flops, pipe=pipe),))


def reduction_of(data: TensorSpec, dims: object, read_bytes: int, write_bytes: int, combine_clk: int = 0) -> Reduction:
    """The launch that reduces ``data`` along ``dims``: all of them if there are none, one, or a list."""
    rank = len(data.shape)
    listed = [dims] if isinstance(dims, int) else list(dims) if isinstance(dims, list | tuple) else []
    reduced = {dim % rank for dim in listed} if rank and listed else set(range(rank))
    count = math.prod(data.shape[dim] for dim in reduced)
    inner = 1
    for dim in sorted((dim for dim in range(rank) if data.shape[dim] > 1), key=lambda dim: data.strides[dim]):
        if dim in reduced:
            break
        inner *= data.shape[dim]
    return Reduction(
        kind="reduction",
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        elements=data.numel,
        outputs=data.numel // max(count, 1),
        reduced=count,
        inner=inner,
        combine_clk=combine_clk,
    )


#: threads of a block of a scan (ScanUtils.cuh)
_SCAN_THREADS = 512
#: integer instructions per element of a scan along neighbours, counted in ScanUtils.cuh: to load and store it, and for
#: each doubling of the threads that share a row (Sklansky's network: shared memory and a barrier)
_SCAN_INSTRUCTIONS, _SCAN_DOUBLING = 20, 8
#: load latencies of such a doubling, whose place takes a division: 128 rows of 4000 take 2100 to 2400 clocks a turn of
#: 8 doublings on A10 and L40S (kernelbench_v0)
_DOUBLING_STEPS = 0.25


def _scanned(call: Call, cost: Cost) -> Cost:
    """The cost as one launch of blocks that loop over the axis and wait for a load in each iteration. A tensor of one
    long axis goes through CUB, which streams it."""
    data, dim = _source(call), call.attributes.get("dim", -1)
    length = data.shape[dim] if data.shape else 1
    rows = data.numel // length if length else 0
    if rows <= 1:
        return _reduced(call, cost)
    inner = math.prod(data.shape[dim % len(data.shape) + 1 :])
    if inner > 1:  # PyTorch issue 122170: 0.32 us a turn
        threads = min(inner, _SCAN_THREADS)
        about = f"a scan of {length} elements {inner} apart, by a thread for each of {rows} columns"
        columns = rows // inner * math.ceil(inner / threads) * threads
        return looped(cost, data.numel, columns, length, about, threads, kind="scan")
    doublings = _row_doublings(rows, length)
    turns = math.ceil(length / 2 ** (doublings + 1))  # two elements for each thread
    return streamed(
        cost,
        data.numel,
        kind="scan",
        instructions=(_SCAN_INSTRUCTIONS + _SCAN_DOUBLING * (doublings + 1)) * data.numel,
        steps=turns * (1 + _DOUBLING_STEPS * (doublings + 1)),
        blocks=math.ceil(rows * 2**doublings / _SCAN_THREADS),
        about=f"a scan of {rows} rows of {length}, by {2**doublings} threads each in {turns} turns of a load and"
        f" {doublings + 1} additions with a barrier",
    )


def _row_doublings(rows: int, length: int) -> int:
    """log2 of the threads that share a row: as the row's length is to their number, 16 to 512 (ScanUtils.cuh)."""
    whole = int(math.log2(_SCAN_THREADS))
    return min(max((whole + math.ceil(math.log2(length)) - math.ceil(math.log2(rows))) // 2, 4), whole)


def norm_flops(order: object) -> int:
    """FLOPs per element of a vector norm: a comparison (inf), an add (0, 1), a power and an add."""
    if order in (math.inf, -math.inf, "inf", "-inf"):
        return 0
    return 1 if order in (0, 1) else 2


@op("linalg_vector_norm", loop=loops.reduction, results=results.reduced)
def vector_norm(call: Call) -> Cost:
    """2 per element, fewer for the orders 0, 1 and infinity."""
    per_element = norm_flops(call.attributes.get("ord", 2))
    return _reduced(call, call.cost(vector_flops(call.outputs[0], _source(call).numel * per_element)))


@op("logsumexp", loop=loops.reduction, results=results.reduced)
def logsumexp(call: Call) -> Cost:
    """4 per element (max, subtract, exp, sum), as softmax counts.

    Eager stores the differences and their exponentials (ReduceOps.cpp): amax, subtract, exp_, sum, and small
    kernels.
    """
    data = call.need("self")
    largest = reduction_of(data, call.attributes.get("dim"), data.nbytes, call.write_bytes)
    middle, small = pass_over(data.nbytes, data.nbytes), pass_over(call.write_bytes, call.write_bytes)
    launches = (largest, middle, middle, largest, replace(small, count=3))
    return call.cost(vector_flops(data, 4 * data.numel), launches=launches)


@op(" ".join(_LOSSES), loop=loops.loss, results=results.loss)
def loss(call: Call) -> Cost:
    """Pointwise loss and its sum: eager stores the pointwise result and reads it back to reduce it."""
    data = call.need("self")
    reduced = call.attributes.get("reduction", 1) != 0
    per_element = _LOSSES[call.name.split(".")[1]] + reduced
    cost = call.cost(vector_flops(data, data.numel * per_element))
    if not reduced:
        return streamed(cost, data.numel)
    total = reduction_of(data, None, data.nbytes, cost.write_bytes)
    return launched(cost, pass_over(cost.read_bytes, data.nbytes, data.numel), total)


@op("segment_reduce")
def segment_reduce(call: Call) -> Cost:
    """One add per element (sum, mean, prod), none for the largest or smallest."""
    data, how = call.need("data"), call.attributes.get("reduce", "sum")
    return streamed(call.cost(vector_flops(data, data.numel * (how not in ("max", "min")))), data.numel)


@op("_segment_reduce_backward")
def segment_reduce_backward(call: Call) -> Cost:
    """The gradient of a segment for each of its elements; a mean divides it."""
    data = call.outputs[0]
    divides = call.attributes.get("reduce") in ("mean", "prod")
    return streamed(call.cost(vector_flops(data, data.numel * divides)), data.numel)


@op("renorm renorm_")
def renorm(call: Call) -> Cost:
    """A norm (2 per element) and the product with its quotient."""
    data = call.need("self")
    norms = pass_over(data.nbytes, 0, data.numel)
    return launched(call.cost(vector_flops(data, 3 * data.numel)), norms, pass_over(call.read_bytes, call.write_bytes))


@op("linalg__powsum", results=results.reduced)
def power_sum(call: Call) -> Cost:
    """A power and an add per element."""
    data = call.need("self")
    return _reduced(call, call.cost(vector_flops(data, 2 * data.numel)))


def _pair_flops(order: float) -> int:
    """FLOPs of one coordinate of a distance: a difference, a power (none for the orders 1 and infinity), an add."""
    return 1 if order in (math.inf, "inf") else 2 if order in (0, 1) else 3


@op("_cdist_forward")
def pair_distances(call: Call) -> Cost:
    """3 FLOP for each coordinate of each pair of rows (order 2), fewer for the orders 0, 1 and infinity."""
    left, out = call.need("x1"), call.outputs[0]
    flops = _pair_flops(call.attributes.get("p", 2)) * out.numel * left.shape[-1]
    return streamed(call.cost(vector_flops(out, flops)), out.numel)


@op("_cdist_backward")
def pair_distances_backward(call: Call) -> Cost:
    """4 FLOP for each coordinate of each pair: the difference, its share of the gradient (2), the sum. They are written
    for all pairs before they are summed (DistanceKernel.cu)."""
    pairs, size = call.need("cdist").numel, call.need("x1").shape[-1]
    cost = call.cost(vector_flops(call.outputs[0], 4 * pairs * size))
    moved = pairs * size * call.outputs[0].itemsize
    first = replace(stream_of(cost, pairs * size), write_bytes=moved)
    return launched(cost, first, pass_over(moved, cost.write_bytes, pairs * size))


@op("_euclidean_dist")
def euclidean_distances(call: Call) -> Cost:
    """Squares and their sums, then one product of [n, d + 2] with [d + 2, m], clamp and root (Distance.cpp)."""
    left, right, out = call.need("x1"), call.need("x2"), call.outputs[0]
    depth = left.shape[-1] + 2
    norms = 2 * (left.numel + right.numel)
    pipe = {Pipe("tensor", "float64" if out.dtype == "float64" else "float32"): 2 * out.numel * depth}
    widened = (left.nbytes + right.nbytes) * depth // max(left.shape[-1], 1)
    squares = pass_over(2 * call.read_bytes, widened, left.numel + right.numel)
    product = stream_of(Cost(pipe, widened, out.nbytes), out.numel)
    root = pass_over(out.nbytes, out.nbytes, out.numel)
    return call.cost({**pipe, **vector_flops(out, norms + out.numel)}, launches=(squares, squares, product, root, root))


@op("_pdist_forward _pdist_backward")
def own_distances(call: Call) -> Cost:
    """As ``cdist`` of each pair of different rows; the gradient 4 per coordinate."""
    data, backward = call.need("self"), "backward" in call.name
    rows = data.shape[0]
    each = 4 if backward else _pair_flops(call.attributes.get("p", 2))
    flops = each * rows * (rows - 1) // 2 * data.shape[-1]
    return streamed(call.cost(vector_flops(data, flops)), rows * (rows - 1) // 2)
