"""The memwall policy by hand: what it fuses, what that moves, and each rule refusing once.

The GPU of these tests moves 1 TB/s, takes 2 us a launch and has 100 multiprocessors and no L2. Tensors are float32
where nothing else is said; N is the bytes of one of 4096 × 1024: 16,777,216.
"""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from memwall.core.graph import EAGER
from memwall.fusion.planner import memwall_plan
from memwall.fusion.pricing import Pricer
from memwall.fusion.recompute import _Recompute, recompute
from memwall.fusion.rules import MAX_OPS, RULES
from memwall.ops import Cost, graph_costs
from tests.unit.fusion_graphs import Builder, groups_of, moved, plan, round_gpu

ROWS, COLS = 4096, 1024
N = ROWS * COLS * 4


@pytest.fixture
def b():
    """A graph to build."""
    return Builder()


def full(b, dtype="float32", role="input"):
    return b.given(ROWS, COLS, dtype=dtype, role=role)


def only(graph, gpu=None):
    """The one group of a graph that is planned as one."""
    groups = plan("memwall", graph, gpu).groups
    assert len(groups) == 1, [group.op_ids for group in groups]
    return groups[0]


def refusal(graph, gpu=None, regions=None):
    """The one refusal of a graph, as (rule, reason)."""
    refusals = plan("memwall", graph, gpu, regions).refusals
    assert len(refusals) == 1, refusals
    return refusals[0].rule, refusals[0].reason


# -- bytes


def test_a_chain_reads_its_first_tensor_and_writes_its_last(b):
    x = full(b)
    y = b.like("aten.gelu", ("self", b.like("aten.exp", ("self", b.like("aten.neg", ("self", x))))))
    group = only(b.graph(y))
    assert (group.reads, group.writes) == ((x,), (y,))
    assert (group.cost.read_bytes, group.cost.write_bytes, group.cost.kernels) == (N, N, 1)
    assert moved(plan("eager", b.graph(y))) == 6 * N


def test_what_the_outside_needs_is_written_on_the_way(b):
    x = full(b)
    middle = b.like("aten.exp", ("self", x))
    y = b.like("aten.neg", ("self", middle))
    group = only(b.graph(middle, y))
    assert (group.cost.read_bytes, group.cost.write_bytes) == (N, 2 * N)


def test_a_bias_is_read_once(b):
    x, bias = full(b), b.given(COLS, role="parameter")
    y = b.like("aten.relu", ("self", b.like("aten.add.Tensor", ("self", x), ("other", bias))))
    assert only(b.graph(y)).cost.read_bytes == N + COLS * 4


def test_a_softmax_takes_a_prologue_and_an_epilogue(b):
    x, mask = full(b), b.given(ROWS, COLS, dtype="bool")
    scores = b.like("aten.masked_fill.Scalar", ("self", x), ("mask", mask), value=-1e9)
    probabilities = b.like("aten._softmax", ("self", scores), dim=-1, half_to_float=False)
    half = b.call("aten._to_copy", [("self", probabilities)], ROWS, COLS, dtype="float16")
    cost = only(b.graph(half)).cost
    assert (cost.read_bytes, cost.write_bytes) == (N + ROWS * COLS, N // 2)
    assert (cost.kernels, cost.extra_bytes) == (1, 0)  # a row of 4 KiB stays on chip between the passes
    assert cost.launches[0].thread_blocks == ROWS


def rms_norm(b, x, weight, rows=ROWS, cols=COLS):
    """x · rsqrt(mean(x²) + eps) · weight, spelled out."""
    square = b.like("aten.pow.Tensor_Scalar", ("self", x), exponent=2)
    mean = b.call("aten.mean.dim", [("self", square)], rows, 1, dim=[-1], keepdim=True)
    scale = b.like("aten.rsqrt", ("self", b.like("aten.add.Tensor", ("self", mean), other=1e-5)))
    return b.like(
        "aten.mul.Tensor", ("self", b.like("aten.mul.Tensor", ("self", x), ("other", scale))), ("other", weight)
    )


def test_a_norm_spelled_out_is_one_kernel(b):
    x, weight = full(b), b.given(COLS, role="parameter")
    cost = only(b.graph(rms_norm(b, x, weight))).cost
    assert (cost.read_bytes, cost.write_bytes, cost.kernels) == (N + COLS * 4, N, 1)


def test_siblings_read_their_input_once(b):
    x = full(b)
    sine, cosine = b.like("aten.sin", ("self", x)), b.like("aten.cos", ("self", x))
    cost = only(b.graph(sine, cosine)).cost
    assert (cost.read_bytes, cost.write_bytes, cost.kernels) == (N, 2 * N, 1)


def test_column_sums_beside_a_pointwise_op_pass_through_partial_sums(b):
    """The bias gradient of a ReLU: the sums of one block on each of 100 multiprocessors, 1,024 of 4 bytes, written
    and read again by a second launch."""
    grad, y = full(b), full(b)
    inner = b.like("aten.threshold_backward", ("grad_output", grad), ("self", y), threshold=0)
    bias = b.call("aten.sum.dim_IntList", [("self", inner)], COLS, dim=[0])
    cost = only(b.graph(inner, bias)).cost
    assert (cost.read_bytes, cost.write_bytes) == (2 * N, N + COLS * 4)
    assert (cost.kernels, cost.extra_bytes) == (2, 2 * 100 * COLS * 4)


def test_the_backward_of_a_norm_keeps_its_column_sums_beside_its_rows(b):
    grad, x, mask = full(b), full(b), b.given(ROWS, COLS, dtype="bool")
    mean, rstd, weight = b.given(ROWS, 1), b.given(ROWS, 1), b.given(COLS, role="parameter")
    out = [b.tensor(ROWS, COLS), b.tensor(COLS), b.tensor(COLS)]
    inputs = zip(("grad_out", "input", "mean", "rstd", "weight"), (grad, x, mean, rstd, weight), strict=True)
    b.op("aten.native_layer_norm_backward", list(inputs), out, normalized_shape=[COLS], output_mask=[True, True, True])
    dropped = b.like("aten.native_dropout_backward", ("grad_output", out[0]), ("mask", mask), scale=1.1)
    cost = only(b.graph(*out[1:], dropped)).cost
    small = 2 * ROWS * 4 + COLS * 4
    assert (cost.read_bytes, cost.write_bytes) == (2 * N + ROWS * COLS + small, N + 2 * COLS * 4)
    assert (cost.kernels, cost.extra_bytes) == (2, 2 * 100 * 2 * COLS * 4)


def test_a_row_that_no_block_holds_is_read_twice():
    """262,144 columns of float32 are 1 MiB; a thread block holds 128 KiB."""
    for cols, again in ((16384, 0), (262144, 1)):
        b = Builder()
        x = b.given(1024, cols)
        scaled = b.like("aten.mul.Tensor", ("self", x), other=0.5)
        y = b.like("aten._softmax", ("self", scaled), dim=-1, half_to_float=False)
        cost = only(b.graph(y)).cost
        assert (cost.bytes, cost.extra_bytes) == (2 * 1024 * cols * 4, again * 1024 * cols * 4)


def batch_norm(b, x):
    """Training statistics over 64 × 56 × 56 of each of 32 images."""
    out = [b.tensor(32, 64, 56, 56), b.tensor(64), b.tensor(64)]
    affine = [b.given(64, role="parameter") for _ in range(2)]
    running = [b.given(64, role="buffer") for _ in range(2)]
    names = ("input", "weight", "bias", "running_mean", "running_var")
    b.op("aten.native_batch_norm", list(zip(names, (x, *affine, *running), strict=True)), out,
         training=True, momentum=0.1, eps=1e-5)  # fmt: skip
    return out


def test_a_batch_norm_reads_its_input_twice_and_takes_the_relu_along(b):
    x = b.given(32, 64, 56, 56)
    size = 32 * 64 * 56 * 56 * 4
    out = batch_norm(b, x)
    y = b.like("aten.relu", ("self", out[0]))
    cost = only(b.graph(y, *out[1:])).cost
    assert cost.read_bytes == size + 4 * 64 * 4
    assert cost.write_bytes == size + 2 * 64 * 4 + 2 * 64 * 4  # the running statistics too, which are updated unsaid
    assert cost.extra_bytes == size


def test_the_second_pass_of_a_batch_norm_reads_what_the_kernel_reads():
    """The sum of two tensors is made in both passes, a cast reads its float16 source twice."""
    size = 32 * 64 * 56 * 56 * 4
    b = Builder()
    total = b.like("aten.add.Tensor", ("self", b.given(32, 64, 56, 56)), ("other", b.given(32, 64, 56, 56)))
    assert only(b.graph(*batch_norm(b, total))).cost.extra_bytes == 2 * size + 4 * 64 * 4
    b = Builder()
    half = b.given(32, 64, 56, 56, dtype="float16")
    wide = b.call("aten._to_copy", [("self", half)], 32, 64, 56, 56)
    assert only(b.graph(*batch_norm(b, wide))).cost.extra_bytes == size // 2 + 4 * 64 * 4


def test_two_batch_norms_in_a_row_are_two_kernels(b):
    first = batch_norm(b, b.given(32, 64, 56, 56))
    second = batch_norm(b, first[0])
    assert refusal(b.graph(*first[1:], *second))[0] == "reduction axes differ"


def test_an_embedding_fetches_its_rows_into_the_norm_that_follows(b):
    table, places = b.given(30000, COLS, role="parameter"), b.given(ROWS, dtype="int64")
    other, weight = full(b), b.given(COLS, role="parameter")
    rows = b.call("aten.embedding", [("weight", table), ("indices", places)], ROWS, COLS)
    cost = only(b.graph(rms_norm(b, b.like("aten.add.Tensor", ("self", rows), ("other", other)), weight))).cost
    assert (cost.read_bytes, cost.write_bytes) == (2 * N + ROWS * 8 + COLS * 4, N)


def test_rotary_embedding_is_one_kernel(b):
    """q·cos + cat(-q2, q1)·sin over [heads × tokens, 128]: the halves are read through views of q."""
    rows, size = 32 * ROWS, 32 * ROWS * 128 * 2
    q = b.given(rows, 128, dtype="bfloat16")
    cos, sin = (b.given(rows, 128, dtype="bfloat16") for _ in range(2))
    low, high = (b.view(q, (rows, 64), (128, 1), start) for start in (0, 64))
    turned = b.call("aten.neg", [("self", high)], rows, 64, dtype="bfloat16")
    joined = b.call("aten.cat", [("tensors", turned), ("tensors", low)], rows, 128, dtype="bfloat16", dim=-1)
    left = b.like("aten.mul.Tensor", ("self", q), ("other", cos))
    right = b.like("aten.mul.Tensor", ("self", joined), ("other", sin))
    cost = only(b.graph(b.like("aten.add.Tensor", ("self", left), ("other", right)))).cost
    assert (cost.read_bytes, cost.write_bytes, cost.kernels) == (3 * size, size, 1)


def test_a_multi_tensor_optimizer_step_reads_each_state_once():
    """SGD with momentum over three tensors: m ← 0.9 m + g, p ← p - lr m."""
    b = Builder("optimizer")
    shapes = ((1000, 1000), (1000,), (500, 300))
    size = sum(4 * a * (c[0] if c else 1) for a, *c in shapes)
    parameters, gradients, momenta = (
        [b.given(*shape, role=role) for shape in shapes] for role in ("parameter", "gradient", "optimizer_state")
    )
    own = [("self", m) for m in momenta]
    b.op("aten._foreach_mul_.Scalar", own, momenta, scalar=0.9)
    b.op("aten._foreach_add_.List", [*own, *(("other", g) for g in gradients)], momenta)
    inputs = [*(("self", p) for p in parameters), *(("other", m) for m in momenta)]
    b.op("aten._foreach_add_.List", inputs, parameters, alpha=-0.1)
    cost = only(b.graph()).cost
    assert (cost.read_bytes, cost.write_bytes) == (3 * size, 2 * size)


def test_an_in_place_relu_saves_the_round_trip(b):
    x, y = full(b), full(b)
    total = b.like("aten.add.Tensor", ("self", x), ("other", y))
    b.op("aten.relu_", [("self", total)], [total])
    cost = only(b.graph(total)).cost
    assert (cost.read_bytes, cost.write_bytes) == (2 * N, N)


def test_a_product_adds_into_the_residual(b):
    """GEMM's own epilogue: β·C. Reads a, w and the residual, writes the sum."""
    a, w, residual = full(b), b.given(COLS, COLS, role="parameter"), full(b)
    product = b.call("aten.mm", [("self", a), ("mat2", w)], ROWS, COLS)
    y = b.like("aten.add.Tensor", ("self", residual), ("other", product), alpha=1)
    cost = only(b.graph(y)).cost
    assert (cost.read_bytes, cost.write_bytes) == (2 * N + COLS * COLS * 4, N)


def test_the_halves_of_a_biased_projection_are_gated_in_one_kernel(b):
    """silu(x1 + b1) · (x2 + b2): the sum of 2 F columns is read by halves, each element once."""
    x, bias = b.given(ROWS, 2 * COLS), b.given(2 * COLS, role="parameter")
    y = b.like("aten.add.Tensor", ("self", x), ("other", bias))
    left, right = (b.view(y, (ROWS, COLS), (2 * COLS, 1), start) for start in (0, COLS))
    gate = b.call("aten.silu", [("self", left)], ROWS, COLS)
    cost = only(b.graph(b.call("aten.mul.Tensor", [("self", gate), ("other", right)], ROWS, COLS))).cost
    assert (cost.read_bytes, cost.write_bytes) == (2 * N + 2 * COLS * 4, N)


def test_a_norm_is_written_where_its_transposed_copy_has_it(b):
    """softmax(x).t().contiguous(): each row's elements go to a column of the result."""
    cost = only(b.graph(turned_norm(b, "aten.clone"))).cost
    assert (cost.read_bytes, cost.write_bytes, cost.kernels) == (N, N, 1)


def test_what_reads_a_transposed_copy_is_another_kernel(b):
    """The copy is whole only when the kernel that writes it in another order ends."""
    made = plan("memwall", b.graph(b.like("aten.neg", ("self", turned_norm(b, "aten.clone")))))
    assert groups_of(made) == [(0, 1), (2,)]
    assert "in another order than the kernel computes it in" in made.refusals[0].reason


def test_rows_are_looked_up_where_a_transposed_copy_needs_them(b):
    """A table of 64 rows, 4096 of them by index, transposed: the indices and no more than the table are read."""
    table, places = b.given(64, COLS, role="parameter"), b.given(ROWS, dtype="int64")
    rows = b.call("aten.embedding", [("weight", table), ("indices", places)], ROWS, COLS)
    copy = b.call("aten.clone", [("self", b.view(rows, (COLS, ROWS), (1, COLS)))], COLS, ROWS)
    cost = only(b.graph(copy)).cost
    assert (cost.read_bytes, cost.write_bytes) == (64 * COLS * 4 + ROWS * 8, N)


# -- computing again


def test_rows_of_a_small_table_are_looked_up_again(b):
    """Two kernels that share no loop look the rows up; stored, they would move N and 2 N."""
    table, places = b.given(64, COLS, role="parameter"), b.given(ROWS, dtype="int64")
    found = b.call("aten.embedding", [("weight", table), ("indices", places)], ROWS, COLS)
    rows = b.like("aten._softmax", ("self", found), dim=1, half_to_float=False)
    columns = b.like("aten._softmax", ("self", found), dim=0, half_to_float=False)
    groups = plan("memwall", b.graph(rows, columns)).groups
    assert [(g.cost.read_bytes, g.cost.write_bytes) for g in groups] == [(64 * COLS * 4 + ROWS * 8, N)] * 2


def test_a_cheap_cast_is_computed_again_where_that_reads_fewer_bytes(b):
    """Rows and columns of a float16 tensor are normalised: two kernels that share no loop. Stored as float32 the
    cast moves N/2 + N + N; computed in both N/2 + N/2."""
    x = full(b, "float16")
    wide = b.call("aten._to_copy", [("self", x)], ROWS, COLS)
    rows = b.like("aten._softmax", ("self", wide), dim=1, half_to_float=False)
    columns = b.like("aten._softmax", ("self", wide), dim=0, half_to_float=False)
    groups = plan("memwall", b.graph(rows, columns)).groups
    assert sorted((*g.op_ids, *g.recomputes) for g in groups) == [(0, 1), (2, 0)]
    assert [(g.cost.read_bytes, g.cost.write_bytes) for g in groups] == [(N // 2, N), (N // 2, N)]
    assert {g.reads for g in groups} == {(x,)}


def test_dropout_is_stored_since_it_would_draw_other_numbers(b):
    out, mask = b.tensor(ROWS, COLS), b.tensor(ROWS, COLS, dtype="bool")
    b.op("aten.native_dropout", [("input", full(b))], [out, mask], p=0.1, train=True)
    rows = b.like("aten._softmax", ("self", out), dim=1, half_to_float=False)
    columns = b.like("aten._softmax", ("self", out), dim=0, half_to_float=False)
    groups = plan("memwall", b.graph(rows, columns)).groups
    assert not any(group.recomputes for group in groups)
    assert sum(out in group.writes for group in groups) == 1


def test_an_op_that_others_compute_again_is_no_kernel_of_its_own(b):
    """Forward's chain is normalised on the way; its end is read, flipped, by backward alone, which makes it again."""
    x = b.given(4, 8)
    middle = b.like("aten.relu", ("self", b.like("aten.relu", ("self", x))))
    end = b.like("aten.relu", ("self", middle))
    out = [b.tensor(4, 8), b.tensor(8), b.tensor(8)]
    b.op("aten.native_batch_norm", [("input", middle)], out, training=True)
    flipped = b.like("aten.flip", ("self", end), dims=[0])
    b.phase = "backward"
    last = b.like("aten.relu", ("self", flipped))
    made = plan("memwall", b.graph(*out, last))
    assert all(group.writes for group in made.groups)


def test_kernels_that_others_have_emptied_cost_nothing(b):
    """A chain of sums, each a kernel of its own until the last one computes them all: twice the chain, twice the
    groups that are looked at."""
    looked_at = []
    for length in (20, 40):
        chain = Builder()
        value = full(chain)
        for _ in range(length):
            value = chain.like("aten.add.Tensor", ("self", value), ("other", chain.given(COLS)))
        graph = chain.graph(value)
        pricer = Pricer(graph, graph_costs(graph), round_gpu())
        predict = _Recompute._predict
        with patch.object(_Recompute, "_predict", autospec=True, side_effect=predict) as predicted:
            parts, _ = recompute(pricer, [[op.id] for op in graph.ops], None, {})
        assert len(parts) == 1
        looked_at.append(predicted.call_count)
    assert looked_at[1] < 2.2 * looked_at[0]


def test_no_kernel_computes_more_ops_again_than_it_may_hold(b):
    """Five concatenations of the same 100 activations: each could make them all again."""
    parts = [b.like("aten.relu", ("self", b.given(64, 64))) for _ in range(100)]
    pairs = [("tensors", part) for part in parts]
    joined = [b.call("aten.cat", pairs, 6400, 64, dim=0) for _ in range(5)]
    for group in plan("memwall", b.graph(*joined)).groups:
        assert len(group.op_ids) + len(group.recomputes) <= MAX_OPS


def test_what_forward_made_cheaply_is_made_again_in_backward(b):
    """relu(x) for a product's gradient needs x, which is in memory, and no copy of its own. The product itself reads
    it, so that it is stored all the same; its gradient mask is not."""
    x, w = full(b), b.given(COLS, COLS, role="parameter")
    hidden = b.call("aten.mm", [("self", x), ("mat2", w)], ROWS, COLS)
    wide = b.call("aten._to_copy", [("self", hidden)], ROWS, COLS, dtype="float64")
    y = b.like("aten.mul.Tensor", ("self", wide), ("other", wide))
    b.phase = "backward"
    grad = b.like("aten.exp", ("self", wide))
    groups = {g.op_ids: g for g in plan("memwall", b.graph(y, grad)).groups}
    assert groups[(3,)].recomputes == (1,)
    assert groups[(3,)].cost.read_bytes == N
    assert groups[(1, 2)].cost.write_bytes == 2 * N


# -- refusals


def pair(b, first, second):
    """x → first → second."""
    x = full(b)
    return b.graph(b.like(second, ("self", b.like(first, ("self", x)))))


def across_break():
    return pair(Builder(), "aten.exp", "aten.neg"), {"regions": [0, 1]}


def outside_a_graph():
    return pair(Builder(), "aten.exp", "aten.neg"), {"regions": [0, EAGER]}


def across_phases():
    b = Builder()
    middle = b.like("aten.exp", ("self", full(b)))
    b.phase = "backward"
    b.op("aten.rand", [], [b.tensor(2, 2)])
    return b.graph(middle, b.like("aten.neg", ("self", middle))), {}


def into_a_product():
    b = Builder()
    x, w = full(b), b.given(COLS, COLS, role="parameter")
    return b.graph(b.like("aten.mm", ("self", b.like("aten.exp", ("self", x))), ("mat2", w))), {}


def out_of_a_product():
    b = Builder()
    x, w = full(b), b.given(COLS, COLS, role="parameter")
    return b.graph(b.like("aten.exp", ("self", b.like("aten.mm", ("self", x), ("mat2", w))))), {}


def into_a_sort():
    b = Builder()
    out = [b.tensor(ROWS, COLS), b.tensor(ROWS, COLS, dtype="int64")]
    b.op("aten.sort", [("self", b.like("aten.exp", ("self", full(b))))], out, dim=-1)
    return b.graph(*out), {}


def one_of_a_list():
    b = Builder()
    x, y = (b.like("aten.exp", ("self", full(b))) for _ in range(2))
    out = [b.tensor(ROWS, COLS) for _ in range(2)]
    b.op("aten._foreach_sqrt", [("self", x), ("self", y)], out)
    return b.graph(*out), {}


def picked_rows():
    b = Builder()
    x, places = b.like("aten.exp", ("self", full(b))), b.given(ROWS, dtype="int64")
    return b.graph(b.like("aten.index_select", ("self", x), ("index", places), dim=0)), {}


def minus_its_sum():
    b = Builder()
    x = full(b)
    total = b.call("aten.sum.dim_IntList", [("self", x)], COLS, dim=[0])
    return b.graph(b.like("aten.sub.Tensor", ("self", x), ("other", total))), {}


def rows_then_columns():
    b = Builder()
    rows = b.like("aten._softmax", ("self", full(b)), dim=1, half_to_float=False)
    return b.graph(b.like("aten._softmax", ("self", rows), dim=0, half_to_float=False)), {}


def half_of_a_norm():
    b = Builder()
    y = b.like("aten._softmax", ("self", full(b)), dim=1, half_to_float=False)
    half = b.view(y, (ROWS // 2, COLS), (COLS, 1))
    return b.graph(b.call("aten.exp", [("self", half)], ROWS // 2, COLS)), {}


def turned_norm(b=None, op="aten.neg"):
    """The result of an op on a transposed softmax."""
    b = b or Builder()
    y = b.like("aten._softmax", ("self", full(b)), dim=1, half_to_float=False)
    return b.call(op, [("self", b.view(y, (COLS, ROWS), (1, COLS)))], COLS, ROWS)


def turned_and_computed():
    b = Builder()
    return b.graph(turned_norm(b)), {}


def flipped_in_place():
    b = Builder()
    x = full(b)
    b.op("aten.copy_", [("src", b.like("aten.flip", ("self", x), dims=[0]))], [x])
    return b.graph(), {}


def too_long():
    b = Builder()
    x = full(b)
    for _ in range(MAX_OPS + 1):
        x = b.like("aten.neg", ("self", x))
    return b.graph(x), {}


def wide_norm_backward():
    """Two affine gradients of 32,768 columns: 256 KiB of accumulators in each block beside a row of 128 KiB."""
    b = Builder()
    rows, cols = 4096, 32768
    grad, x = (b.given(rows, cols, dtype="float16") for _ in range(2))
    out = [b.tensor(rows, cols, dtype="float16"), b.tensor(cols), b.tensor(cols)]
    scaled = b.like("aten.mul.Tensor", ("self", grad), other=0.5)
    b.op("aten.native_layer_norm_backward", [("grad_out", scaled), ("input", x)], out,
         normalized_shape=[cols], output_mask=[True, True, True])  # fmt: skip
    return b.graph(*out), {}


REFUSED = {
    "graph break": (across_break, "graph breaks between"),
    "phase": (across_phases, "forward and backward"),
    "outside the graph": (outside_a_graph, "outside the compiler's graph"),
    "contraction without epilogue": (out_of_a_product, "contraction is a library kernel without an epilogue"),
    "contraction without prologue": (into_a_product, "contraction is a library kernel without a prologue"),
    "library kernel": (into_a_sort, "no kernel is generated"),
    "tensor lists": (one_of_a_list, "list of tensors"),
    "data-dependent index": (picked_rows, "index_select reads the tensor at places of its own choice"),
    "unfinished sum": (minus_its_sum, "the sum of sum is whole only when its kernel ends"),
    "reduction axes differ": (rows_then_columns, "over other axes"),
    "shape change": (half_of_a_norm, "4194304 elements against 2097152"),
    "order of elements": (turned_and_computed, "another order than written"),
    "in-place hazard": (flipped_in_place, "overwritten that is also read"),
    "too many live values": (too_long, f"{MAX_OPS + 1} ops in one kernel (at most {MAX_OPS})"),
    "shared memory": (wide_norm_backward, "256 KiB of column sums in each block (at most 128)"),
}


@pytest.mark.parametrize(("phase", "kernels"), [("backward", [(0, 2), (1,)]), ("optimizer", [(0,), (1,), (2,)])])
def test_forward_and_backward_of_one_program_share_kernels(phase, kernels):
    """As jax.jit hands them to XLA; the optimizer's stay apart."""
    graph, _ = across_phases()
    ops = tuple(replace(op, phase=phase) if op.phase == "backward" else op for op in graph.ops)
    assert sorted(groups_of(plan("memwall", replace(graph, ops=ops, one_program=True)))) == kernels


def test_every_rule_has_a_graph_that_it_refuses():
    assert REFUSED.keys() == RULES.keys()


@pytest.mark.parametrize("rule", REFUSED)
def test_a_rule_refuses_with_its_reason(rule):
    make, reason = REFUSED[rule]
    graph, options = make()
    made = plan("memwall", graph, **options)
    assert {r.rule for r in made.refusals} == {rule}
    assert reason in made.refusals[0].reason
    assert made.refusals[0].consumer == len(graph.ops) - 1


@pytest.mark.defect("31")
@pytest.mark.parametrize(("make", "lacks"), [(into_a_product, "prologue"), (out_of_a_product, "epilogue")])
def test_what_a_product_lacks_is_named(make, lacks):
    """One rule refused what comes before a product and what comes after it, and named the epilogue for both."""
    (found,) = plan("memwall", make()[0]).refusals
    assert found.rule == f"contraction without {lacks}"
    assert found.reason.endswith(f" {lacks} for it")


@pytest.mark.defect("31")
@pytest.mark.parametrize("name", ["triton.add_kernel", "mylib.add"])
def test_a_kernel_of_the_users_own_is_named_where_it_refuses(b, name):
    """Nothing told a kernel that the model brings along, in Triton or as a custom op, from a library's."""
    y = b.like(name, ("x", b.like("aten.exp", ("self", full(b)))))
    assert refusal(b.graph(y)) == (
        "library kernel", f"{name} is a kernel of the user's own, into which no compiler looks"
    )  # fmt: skip


def test_a_refusal_says_what_the_fusion_would_have_saved():
    """The write and the read of exp's result: 2 N bytes, 33.6 us at 1 TB/s."""
    found = plan("memwall", into_a_product()[0]).refusals[0]
    assert (found.producer, found.consumer, found.saved_bytes) == (0, 1, 2 * N)
    assert found.saved_s == pytest.approx(2 * N / 1e12)


def test_a_union_that_would_wait_for_itself_is_refused(b):
    """a → product → b, and b reads a too."""
    x, w = full(b), b.given(COLS, COLS, role="parameter")
    a = b.like("aten.exp", ("self", x))
    product = b.like("aten.mm", ("self", a), ("mat2", w))
    hidden = b.like("aten.sin", ("self", product))
    y = b.like("aten.mul.Tensor", ("self", a), ("other", hidden))
    made = plan("memwall", b.graph(y))
    assert ("cycle", 0, 3) in {(r.rule, r.producer, r.consumer) for r in made.refusals}
    assert groups_of(made)[:2] == [(0,), (1,)]


def test_two_chains_that_cross_in_products_become_no_circle(b):
    """a and k fuse around the product of c; c and z may then no longer fuse around the product of a."""
    x, y, w = full(b), full(b), b.given(COLS, COLS, role="parameter")
    a = b.like("aten.relu", ("self", x))
    h = b.like("aten.mm", ("self", a), ("mat2", w))
    c = b.like("aten.relu", ("self", y))
    m = b.like("aten.mm", ("self", c), ("mat2", w))
    k = b.like("aten.mul.Tensor", ("self", a), ("other", m))
    z = b.like("aten.mul.Tensor", ("self", c), ("other", h))
    order = [group.op_ids for group in plan("memwall", b.graph(k, z)).groups]
    assert [op for ops in order for op in ops].index(1) < [op for ops in order for op in ops].index(5)
    assert len(order) >= 4


def test_a_fusion_that_leaves_the_board_idle_is_declined(b):
    """Four rows of a million columns, M bytes, softmax of a sum of five tensors that is kept. Four blocks would take 25
    times as long; cut over several, they read all five tensors twice: 12 M, against 6 M for the sum and 3 M for the
    softmax alone, cut likewise."""
    total = b.given(4, 1 << 20)
    for _ in range(4):
        total = b.like("aten.add.Tensor", ("self", total), ("other", b.given(4, 1 << 20)))
    y = b.like("aten._softmax", ("self", total), dim=-1, half_to_float=False)
    made = plan("memwall", b.graph(total, y), round_gpu(launch_overhead_s=1e-9))
    assert groups_of(made) == [(0, 1, 2, 3), (4,)]
    assert made.refusals[0].rule == "slower when fused"
    assert "4 rows leave 96 of 100 multiprocessors idle" in made.refusals[0].reason


def test_on_a_small_board_the_same_rows_fuse(b):
    x = b.given(400, 4096)
    e = b.like("aten.exp", ("self", x))
    y = b.like("aten._softmax", ("self", e), dim=-1, half_to_float=False)
    assert groups_of(plan("memwall", b.graph(e, y), round_gpu(sm_count=4))) == [(0, 1)]


# -- what cannot be written as one launch


def sums_over_images(b):
    x = b.given(32, 64, 56, 56)
    mean = b.call("aten.mean.dim", [("self", x)], 1, 64, 1, 1, dim=[0, 2, 3], keepdim=True)
    return b.graph(b.like("aten.sub.Tensor", ("self", x), ("other", mean)))


def global_norm(b):
    x = full(b)
    return b.graph(b.like("aten.div.Tensor", ("self", x), ("other", b.call("aten.sum", [("self", x)]))))


def other_tensor_by_a_sum(b):
    total = b.call("aten.sum", [("self", full(b))])
    return b.graph(b.like("aten.mul.Tensor", ("self", b.given(8192, 4096)), ("other", total)))


def added_rows(b):
    x, places, rows = b.like("aten.relu", ("self", full(b))), b.given(100, dtype="int64"), b.given(100, COLS)
    b.op("aten.index_add_", [("self", x), ("index", places), ("source", rows)], [x], dim=0)
    return b.graph(x)


def flipped_softmax(b):
    y = b.like("aten._softmax", ("self", full(b)), dim=1, half_to_float=False)
    return b.graph(b.like("aten.flip", ("self", y), dims=[0]))


def reordered_cache(b):
    cache, beams = full(b, role="buffer"), b.given(ROWS, dtype="int64")
    picked = b.like("aten.index_select", ("self", cache), ("index", beams), dim=0)
    b.op("aten.copy_", [("src", picked)], [cache])
    return b.graph()


def product_into_its_operand(b):
    x, w = full(b, role="buffer"), b.given(COLS, COLS, role="parameter")
    product = b.call("aten.mm", [("self", x), ("mat2", w)], ROWS, COLS)
    b.op("aten.add_.Tensor", [("self", x), ("other", product)], [x], alpha=1)
    return b.graph()


def crossed_lists(b):
    middle, out = ([b.tensor(ROWS, COLS) for _ in range(2)] for _ in range(2))
    b.op("aten._foreach_sqrt", [("self", full(b)), ("self", full(b))], middle)
    b.op("aten._foreach_exp", [("self", middle[1]), ("self", middle[0])], out)
    return b.graph(*out)


APART = (
    sums_over_images, global_norm, other_tensor_by_a_sum, added_rows, flipped_softmax, reordered_cache,
    product_into_its_operand, crossed_lists,
)  # fmt: skip


@pytest.mark.parametrize("make", APART, ids=lambda make: make.__name__)
def test_what_needs_all_blocks_to_meet_is_two_kernels(make):
    made = plan("memwall", make(Builder()))
    assert [group.op_ids for group in made.groups] == [(0,), (1,)]
    assert not any(group.recomputes for group in made.groups)


# -- odd ops


def test_what_no_compiler_sees_runs_as_eager_runs_it():
    """Region -1: between graph breaks, op by op."""
    graph = pair(Builder(), "aten.exp", "aten.neg")
    made = plan("memwall", graph, regions=[-1, -1])
    assert [group.op_ids for group in made.groups] == [(0,), (1,)]
    assert [group.cost for group in made.groups] == [group.cost for group in plan("eager", graph).groups]


def test_ops_without_results_inputs_or_elements_are_planned(b):
    x, nothing = full(b), b.given(0, COLS)
    noise = b.call("aten.rand", [], ROWS, COLS)
    b.op("aten._assert_async.msg", [("self", x)], [])
    empty = b.like("aten.relu", ("self", nothing))
    empty_rows = b.like("aten._softmax", ("self", empty), dim=-1, half_to_float=False)
    no_columns = b.call("aten.sum.dim_IntList", [("self", b.given(ROWS, 0))], ROWS, dim=[1])
    wave = b.call("aten.mul.Tensor", [("self", b.given(8, 8, dtype="complex64"))], 8, 8, dtype="complex64")
    mixed = b.like("aten.mul.Tensor", ("self", noise), ("other", x))
    graph = b.graph(empty_rows, no_columns, wave, mixed)
    for policy in ("memwall", "ideal"):
        made = plan(policy, graph)
        assert sorted(op for group in made.groups for op in group.op_ids) == list(range(len(graph.ops)))


@pytest.mark.parametrize("name", [
    "aten.native_layer_norm_backward", "aten.native_layer_norm", "aten._softmax", "aten.sum.dim_IntList",
    "aten.native_group_norm_backward", "aten.native_batch_norm", "aten.nll_loss_forward", "aten.mse_loss",
    "aten.cat", "aten._foreach_add_.List", "aten.embedding", "aten.add.Tensor",
])  # fmt: skip
@pytest.mark.parametrize("attributes", [{}, None], ids=["empty", "none"])
def test_a_record_without_attributes_is_planned(b, name, attributes):
    """An old record, or one written by hand, may lack them."""
    x = b.given(8, 4, 6, 6)
    out = [b.tensor(8, 4, 6, 6), b.tensor(4), b.tensor(4)]
    b.op(name, [x, x, x], out)
    graph = b.graph(*out)
    graph = replace(graph, ops=tuple(replace(op, attributes=attributes) for op in graph.ops))
    costs = [Cost({}, 8 * 4 * 36 * 4, 8 * 4 * 36 * 4 + 32)]
    assert [g.op_ids for g in memwall_plan(graph, costs, round_gpu()).groups] == [(0,)]


# -- the layer of the paper on data movement in transformers (Ivanov et al. 2021)

LAYER = Path(__file__).parents[3] / "profiles" / "bert_layer" / "model.py"
#: its kernels by hand: bias, dropout, residual and norm; bias, ReLU and dropout; softmax and dropout; and their twins
FUSED_BY_HAND = (
    ("forward", {"softmax", "attn_dropout"}),
    ("forward", {"out_bias", "dropout1", "residual1", "norm1"}),
    ("forward", {"bias1", "relu", "dropout2"}),
    ("forward", {"bias2", "dropout3", "residual2", "norm2"}),
    ("backward", {"norm2", "dropout3", "bias2"}),
    ("backward", {"dropout2", "relu", "bias1"}),
    ("backward", {"norm1", "dropout1", "out_bias"}),
    ("backward", {"attn_dropout", "softmax"}),
)  # fmt: skip


@pytest.fixture(scope="module")
def layer():
    """The layer's graph, and its groups on a V100 as (phase, modules, group)."""
    pytest.importorskip("torch")
    import memwall

    profile = memwall.profile(str(LAYER), gpu="v100", mode="training")
    graph = profile.graphs[0]
    made = memwall_plan(graph, profile.costs[0], memwall.load_gpu("v100-sxm2-16gb"))
    return graph, [
        (graph.ops[g.op_ids[0]].phase, {graph.ops[i].module for i in g.op_ids} - {""}, g) for g in made.groups
    ]


@pytest.mark.parametrize(
    ("phase", "modules"), FUSED_BY_HAND, ids=lambda x: x if isinstance(x, str) else "+".join(sorted(x))
)
def test_the_planner_finds_what_the_paper_fused_by_hand(layer, phase, modules):
    graph, groups = layer
    found = [group for in_phase, inside, group in groups if in_phase == phase and modules <= inside]
    assert len(found) == 1
    assert not any(graph.ops[op].op_class == "contraction" for op in found[0].op_ids)


def test_the_bytes_of_bias_relu_and_dropout_by_hand(layer):
    """H = 512 · 8 · 4096 float16: the product is read, the dropped result and its mask (a byte each) are written; the
    ReLU's own result is made again in backward from the product, which must be kept for it."""
    h, bias = 512 * 8 * 4096 * 2, 4096 * 2
    _, groups = layer
    costs = {phase: g.cost for phase, inside, g in groups if {"bias1", "relu", "dropout2"} <= inside}
    forward, backward = costs["forward"], costs["backward"]
    assert (forward.read_bytes, forward.write_bytes) == (h + bias, h + h // 2)
    # the gradient, the mask, the product and the bias; the gradient before the bias and the bias's own
    assert (backward.read_bytes, backward.write_bytes) == (h + h // 2 + h + bias, h + bias)


def test_the_layers_products_stay_with_their_libraries(layer):
    """18 products forward and backward; at most the addition of a bias or of a gradient rides along."""
    graph, groups = layer
    products = [g for _, _, g in groups if any(graph.ops[i].op_class == "contraction" for i in g.op_ids)]
    assert len(products) == 18
    assert {len(g.op_ids) for g in products} <= {1, 2}
    assert {graph.ops[g.op_ids[-1]].name for g in products if len(g.op_ids) == 2} == {"aten.add.Tensor"}


def test_random_numbers_are_stored_for_backward(b):
    x = b.given(64, 64)
    out, mask = b.tensor(64, 64), b.tensor(64, 64, dtype="bool")
    b.op("aten.native_dropout", [("input", x)], [out, mask], p=0.1, train=True)
    b.phase = "backward"
    grad = b.like("aten.native_dropout_backward", ("grad_output", b.given(64, 64)), ("mask", mask), scale=1.1)
    made = plan("memwall", b.graph(out, grad))
    (refusal,) = [r for r in made.refusals if r.rule == "random state"]
    assert (refusal.producer, refusal.consumer, refusal.saved_bytes) == (0, 1, 64 * 64)
    assert "other numbers" in refusal.reason


def test_what_a_product_reads_is_stored_though_backward_could_make_it_again(b):
    active = b.like("aten.relu", ("self", b.given(64, 64)))
    out = b.call("aten.mm", [("self", active), ("mat2", b.given(64, 64))], 64, 64)
    b.phase = "backward"
    grad = b.like("aten.threshold_backward", ("grad_output", b.given(64, 64)), ("self", active), threshold=0)
    made = plan("memwall", b.graph(out, grad))
    (refusal,) = [r for r in made.refusals if r.rule == "another consumer"]
    assert (refusal.producer, refusal.consumer) == (0, 2)
    assert refusal.reason == "mm reads it from memory anyway"


def test_bits_that_are_read_as_another_dtype_are_written_first():
    """A kernel holds numbers, not their bits: none is generated for the two as one."""
    torch = pytest.importorskip("torch")
    import memwall
    from tests.unit.one_call import Call

    bits = Call(lambda x: torch.softmax(x, -1).view(torch.int32).t().contiguous())
    made = memwall.profile(bits, (torch.zeros(64, 96),), policy="memwall")
    assert [kernel.op_ids for kernel in made.simulations[0].kernels] == [(0,), (1,)]
