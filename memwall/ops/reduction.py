"""Reductions, scans, losses that end in a sum, and pooling.

FLOPs per element of the input: a sum 1, a variance 4 (sum; subtract, square, sum), a norm 2 (square, sum); the few
FLOPs per output (the division of a mean) are not counted. Maximum, minimum, any, all and their arguments are
comparisons: 0. Pooling: an average is one add per window element, a maximum none. Integer results cost no FLOP.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from memwall.core.graph import Pipe, TensorSpec
from memwall.ops import loops
from memwall.ops.base import Call, Cost, fetched_bytes, per_axis, touched_bytes
from memwall.ops.domains import pooled_places
from memwall.ops.elementwise import launched, pass_over, per_element, stream_of, streamed, table_of, vector_flops
from memwall.ops.registry import formula
from memwall.ops.results import rows as results
from memwall.ops.results import windows
from memwall.ops.results.pointwise import no_elements

op = partial(formula, "reduction")

#: FLOPs per element of the input
_REDUCTIONS = table_of({
    0: "max min amax amin aminmax _aminmax argmax argmin any all count_nonzero median nanmedian mode"
       " kthvalue equal is_nonzero _is_all_true _is_any_true bincount histc",
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
@op("aminmax _aminmax count_nonzero norm median nanmedian trace kthvalue mode", results=results.reduced)
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


#: dependent memory round trips of a grid sum: partial results out, a counter, the last block reads them (Reduce.cuh)
_MEETING = 3


def _reduced(call: Call, cost: Cost) -> Cost:
    """The cost as one launch over the input whose blocks synchronize at the end."""
    return streamed(cost, _source(call).numel, kind="reduction", round_trips=_MEETING)


#: threads of a block of a scan (ScanUtils.cuh)
_SCAN_THREADS = 512
#: integer instructions per element of a scan along neighbours, counted in ScanUtils.cuh: to load and store it, and for
#: each doubling of the threads that share a row (Sklansky's network: shared memory and a barrier)
_SCAN_INSTRUCTIONS, _SCAN_DOUBLING = 20, 8


def _scanned(call: Call, cost: Cost) -> Cost:
    """The cost as one launch of blocks that loop over the axis and wait for a load in each iteration. A tensor of one
    long axis goes through CUB, which streams it."""
    data, dim = _source(call), call.attributes.get("dim", -1)
    length = data.shape[dim] if data.shape else 1
    rows = data.numel // length if length else 0
    if rows <= 1:
        return _reduced(call, cost)
    inner = math.prod(data.shape[dim % len(data.shape) + 1 :])
    if inner > 1:  # a thread goes along the axis for each of the others' places (PyTorch issue 122170: 0.32 us a turn)
        blocks = rows // inner * math.ceil(inner / _SCAN_THREADS)
        return streamed(cost, data.numel, kind="scan", steps=length, blocks=blocks)
    doublings = _row_doublings(rows, length)
    return streamed(
        cost, data.numel, kind="scan",
        instructions=(_SCAN_INSTRUCTIONS + _SCAN_DOUBLING * (doublings + 1)) * data.numel,
        steps=math.ceil(length / 2 ** (doublings + 1)),  # two elements for each thread
        blocks=math.ceil(rows * 2**doublings / _SCAN_THREADS),
    )  # fmt: skip


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
    largest = pass_over(data.nbytes, call.write_bytes, data.numel)
    middle, last = pass_over(data.nbytes, data.nbytes), replace(largest, count=4)
    return call.cost(vector_flops(data, 4 * data.numel), launches=(largest, middle, middle, last))


@op(" ".join(_LOSSES), loop=loops.loss, results=results.loss)
def loss(call: Call) -> Cost:
    """Pointwise loss and its sum: eager stores the pointwise result and reads it back to reduce it."""
    data = call.need("self")
    reduced = call.attributes.get("reduction", 1) != 0
    per_element = _LOSSES[call.name.split(".")[1]] + reduced
    cost = call.cost(vector_flops(data, data.numel * per_element))
    if not reduced:
        return streamed(cost, data.numel)
    return launched(cost, pass_over(cost.read_bytes, data.nbytes), pass_over(data.nbytes, cost.write_bytes))


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


@op("max_pool2d_with_indices max_pool2d", loop=loops.window, results=windows.pool, cpu_rate="max_pool")
@op("max_pool3d_with_indices", loop=loops.window, results=windows.pool)
@op("adaptive_max_pool2d adaptive_max_pool3d", results=windows.resized)
@op("max_pool3d fractional_max_pool2d fractional_max_pool3d")
def max_pool(call: Call) -> Cost:
    """No FLOP; windows that overlap are read once, what lies between windows is not read."""
    if "kernel_size" not in call.attributes or "fractional" in call.name:
        return streamed(call.cost(), call.outputs[0].numel)
    cost = call.cost(read_bytes=_window_bytes(call, 2 if "2d" in call.name else 3))
    return streamed(cost, call.outputs[0].numel)


def _window_bytes(call: Call, rank: int) -> int:
    """Bytes of the input that the windows touch."""
    attributes = call.attributes
    size = attributes["kernel_size"]
    return touched_bytes(
        _source(call), per_axis(size, rank), call.outputs[0].shape[-rank:], attributes.get("stride") or size,
        attributes.get("padding", 0), attributes.get("dilation", 1),
    )  # fmt: skip


@op("max_pool2d_with_indices_backward", loop=loops.window, results=windows.like_input,
    domains={"indices": pooled_places})  # fmt: skip
@op("max_pool3d_with_indices_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward",
    results=windows.like_input)  # fmt: skip
@op("fractional_max_pool2d_backward fractional_max_pool3d_backward")
def max_pool_backward(call: Call) -> Cost:
    """One add per ``grad_output`` element into zeros; of the input only the shape is used, not its values."""
    grad = call.need("grad_output")
    indices = call.arg("indices")
    read = grad.nbytes + (indices.nbytes if indices is not None else 0)
    cost = call.cost(vector_flops(grad, grad.numel), read_bytes=read)
    return launched(cost, pass_over(0, cost.write_bytes), stream_of(cost, grad.numel))


@op("avg_pool2d avg_pool3d", loop=loops.window, results=windows.pool)
def average_pool(call: Call) -> Cost:
    """One add per window element."""
    output, rank = call.outputs[0], 2 if "2d" in call.name else 3
    cost = call.cost(
        vector_flops(output, output.numel * math.prod(per_axis(call.attributes["kernel_size"], rank))),
        read_bytes=_window_bytes(call, rank),
    )
    return streamed(cost, output.numel)


@op("avg_pool2d_backward", loop=loops.window, results=windows.like_input)
@op("avg_pool3d_backward", results=windows.like_input)
def average_pool_backward(call: Call) -> Cost:
    """One add per window element; of the input only the shape is used."""
    grad, rank = call.need("grad_output"), 2 if "2d" in call.name else 3
    flops = grad.numel * math.prod(per_axis(call.attributes["kernel_size"], rank))
    return streamed(call.cost(vector_flops(grad, flops), read_bytes=grad.nbytes), call.outputs[0].numel)


#: one add per input element (rows in two overlapping windows count once)
op("_adaptive_avg_pool2d", loop=loops.window, results=windows.resized)(per_element("self", 1))
op("_adaptive_avg_pool3d", results=windows.resized)(per_element("self", 1))


@op("_adaptive_avg_pool2d_backward", loop=loops.window, results=windows.like_input)
@op("_adaptive_avg_pool3d_backward", results=windows.like_input)
def adaptive_average_pool_backward(call: Call) -> Cost:
    """One multiply per element of the gradient; of the input only the shape is used."""
    output = call.outputs[0]
    cost = call.cost(vector_flops(output, output.numel), read_bytes=call.need("grad_output").nbytes)
    return streamed(cost, output.numel)
