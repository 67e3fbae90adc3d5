"""The ideal policy by hand: operands and results of products, what was there before, what lives on, and no more."""

import pytest
import torch

import memwall
from memwall.core.flow import Flow
from memwall.fusion.pricing import Pricer
from memwall.ops import graph_costs
from tests.unit.fusion_graphs import Builder, groups_of, moved, plan, round_gpu

TOKENS, WIDTH, FFN = 4096, 1024, 4096
X, W, H = TOKENS * WIDTH * 4, WIDTH * FFN * 4, TOKENS * FFN * 4


@pytest.fixture
def b():
    """A graph to build."""
    return Builder()


def product(b, a, w, rows, cols):
    return b.call("aten.mm", [("self", a), ("mat2", w)], rows, cols)


def mlp(b):
    """x → x·w1 → +bias → gelu → ·w2 → +x; returns what it reads, the hidden sum and the results."""
    x, w1, w2 = (b.given(TOKENS, WIDTH), b.given(WIDTH, FFN, role="parameter"), b.given(FFN, WIDTH, role="parameter"))
    bias = b.given(FFN, role="parameter")
    hidden = b.like("aten.add.Tensor", ("self", product(b, x, w1, TOKENS, FFN)), ("other", bias))
    active = b.like("aten.gelu", ("self", hidden), approximate="none")
    down = product(b, active, w2, TOKENS, WIDTH)
    return x, (w1, w2, bias), hidden, active, b.like("aten.add.Tensor", ("self", down), ("other", x))


def test_an_mlp_moves_its_products_operands_and_results(b):
    """First product: x, w1 and the bias in, hidden out. Second: gelu's result, w2 and x (the residual) in, the sum out,
    which lives on; the product itself, which nobody else needs, never leaves the chip."""
    *_, y = mlp(b)
    made = plan("ideal", b.graph(y))
    assert moved(made) == (X + W + FFN * 4 + H) + (H + W + X + X)
    assert groups_of(made) == [(0, 1, 2), (3, 4)]
    assert all(group.cost.kernels == 1 for group in made.groups)


def test_an_epilogue_costs_no_round_trip(b):
    """x·w + x: the operand is read once, for the product and for the sum."""
    x, w = b.given(TOKENS, WIDTH), b.given(WIDTH, WIDTH, role="parameter")
    y = b.like("aten.add.Tensor", ("self", product(b, x, w, TOKENS, WIDTH)), ("other", x), alpha=1)
    for policy in ("ideal", "memwall"):
        assert moved(plan(policy, b.graph(y))) == X + WIDTH * WIDTH * 4 + X


def test_a_collective_is_a_kernel_of_its_own(b):
    """x·w, summed over GPUs, + x: the product's result is written for the message; what follows waits for it."""
    x, w = b.given(TOKENS, WIDTH), b.given(WIDTH, WIDTH, role="parameter")
    summed = b.like("_c10d_functional.all_reduce", ("input", product(b, x, w, TOKENS, WIDTH)))
    graph = b.graph(b.like("aten.add.Tensor", ("self", summed), ("other", x), alpha=1))
    made = plan("ideal", graph)
    assert groups_of(made) == [(0,), (1,), (2,)]
    assert made.groups[0].cost.bytes == X + WIDTH * WIDTH * 4 + X
    assert made.groups[1].cost == graph_costs(graph)[1]


def test_backward_computes_again_what_it_needs(b):
    """The gradient's two products and the weight's two: operands and results. gelu's derivative needs the hidden sum,
    which moves nothing; the bias gradient and the input's are written once, for they live on."""
    x, (w1, w2, _), hidden, active, y = mlp(b)
    before = moved(plan("ideal", b.graph(y)))
    b.phase = "backward"
    grad = b.given(TOKENS, WIDTH)
    turned = [b.view(v, b.values[v].spec.shape[::-1], (1, b.values[v].spec.shape[1])) for v in (active, w2, x, w1)]
    dw2, dw1 = b.tensor(FFN, WIDTH, role="gradient"), b.tensor(WIDTH, FFN, role="gradient")
    b.op("aten.mm", [("self", turned[0]), ("mat2", grad)], [dw2])
    dactive = product(b, grad, turned[1], TOKENS, FFN)
    dhidden = b.like("aten.gelu_backward", ("grad_output", dactive), ("self", hidden), approximate="none")
    dbias = b.tensor(FFN, role="gradient")
    b.op("aten.sum.dim_IntList", [("self", dhidden)], [dbias], dim=[0])
    b.op("aten.mm", [("self", turned[2]), ("mat2", dhidden)], [dw1])
    dx = product(b, dhidden, turned[3], TOKENS, WIDTH)
    after = moved(plan("ideal", b.graph(y, dx)))
    assert after - before == (H + X + W) + (X + W + H) + FFN * 4 + (X + H + W) + (H + W + X)


def test_a_step_between_no_products_reads_each_tensor_once():
    """m ← 0.9 m + g, p ← p - lr m, in three ops over one parameter: five passes of eager's eight."""
    b = Builder("optimizer")
    p, g, m = (b.given(1000, 1000, role=role) for role in ("parameter", "input", "optimizer_state"))
    b.op("aten.mul_.Tensor", [("self", m)], [m], other=0.9)
    b.op("aten.add_.Tensor", [("self", m), ("other", g)], [m])
    b.op("aten.add_.Tensor", [("self", p), ("other", m)], [p], alpha=-0.1)
    assert moved(plan("ideal", b.graph())) == 5 * 4_000_000
    assert moved(plan("eager", b.graph())) == 8 * 4_000_000


HEADS, SEQ, DIM = 16, 2048, 64
Q, S = HEADS * SEQ * DIM * 4, HEADS * SEQ * SEQ * 4


def turned(b, value):
    """A batch of matrices, each turned."""
    n, rows, cols = b.values[value].spec.shape
    return b.view(value, (n, cols, rows), (rows * cols, 1, cols))


def bmm(b, left, right):
    shapes = [b.values[v].spec.shape for v in (left, right)]
    return b.call("aten.bmm", [("self", left), ("mat2", right)], shapes[0][0], shapes[0][1], shapes[1][2])


def attention(b, q, k, v, bias=None, softmax="aten._softmax"):
    """Returns the probabilities and the result."""
    scores = b.like("aten.mul.Tensor", ("self", bmm(b, q, turned(b, k))), other=0.125)
    if bias is not None:
        scores = b.like("aten.add.Tensor", ("self", scores), ("other", bias))
    weights = b.like(softmax, ("self", scores), dim=-1, half_to_float=False)
    return weights, bmm(b, weights, v)


def test_attention_spelled_out_moves_what_flash_moves():
    for softmax in ("aten._softmax", "aten._safe_softmax"):
        b = Builder()
        q, k, v = (b.given(HEADS, SEQ, DIM) for _ in range(3))
        _, out = attention(b, q, k, v, softmax=softmax)
        made = plan("ideal", b.graph(out))
        assert groups_of(made) == [(0, 1, 2, 3)]
        assert moved(made) == 4 * Q  # q, k, v in, the result out; the scores, S = 256 MiB, never


def test_a_softmax_that_is_written_out_stays_on_chip(b):
    """The largest of each row subtracted, exponentials, their sum, a division: as JAX writes it."""
    q, k, v = (b.given(HEADS, SEQ, DIM) for _ in range(3))
    scores = bmm(b, q, turned(b, k))
    most = b.call("lax.reduce_max", [("x", scores)], HEADS, SEQ, axes=[2])
    powers = b.like("lax.exp", b.like("lax.sub", ("x", scores), ("y", b.view(most, (HEADS, SEQ, SEQ), (SEQ, 1, 0)))))
    total = b.call("lax.reduce_sum", [("x", powers)], HEADS, SEQ, axes=[2])
    weights = b.like("lax.div", ("x", powers), ("y", b.view(total, (HEADS, SEQ, SEQ), (SEQ, 1, 0))))
    assert moved(plan("ideal", b.graph(bmm(b, weights, v)))) == 4 * Q


def test_exponentials_that_are_not_summed_are_no_softmax(b):
    q, k, v = (b.given(HEADS, SEQ, DIM) for _ in range(3))
    out = bmm(b, b.like("lax.exp", bmm(b, q, turned(b, k))), v)
    assert moved(plan("ideal", b.graph(out))) == 4 * Q + 2 * S


def test_its_backward_keeps_the_scores_on_chip_too(b):
    """q, k, v and the gradient of the result in, three gradients out: flash's backward without its statistics."""
    q, k, v, grad = (b.given(HEADS, SEQ, DIM) for _ in range(4))
    weights, out = attention(b, q, k, v)
    b.phase = "backward"
    dv = bmm(b, turned(b, weights), grad)
    dweights = bmm(b, grad, turned(b, v))
    dscores = b.like("aten._softmax_backward_data", ("grad_output", dweights), ("output", weights), dim=-1)
    scaled = b.like("aten.mul.Tensor", ("self", dscores), other=0.125)
    dq, dk = bmm(b, scaled, k), bmm(b, turned(b, scaled), q)
    made = plan("ideal", b.graph(out, dq, dk, dv))
    assert groups_of(made) == [(0, 1, 2, 3), (4, 5, 6, 7, 8, 9)]
    assert made.groups[0].cost.bytes == 4 * Q
    assert made.groups[1].cost.bytes == (4 + 3) * Q


def test_scores_that_the_caller_gets_are_written(b):
    q, k, v = (b.given(HEADS, SEQ, DIM) for _ in range(3))
    weights, out = attention(b, q, k, v)
    assert moved(plan("ideal", b.graph(out, weights))) == 4 * Q + S


def test_two_layers_that_share_a_position_bias_are_two_attentions(b):
    """The bias of the scores has their size and is read by both layers; it ties their kernels into no one."""
    table = b.given(HEADS, SEQ, SEQ, role="parameter")
    bias = b.like("aten.mul.Tensor", ("self", table), other=2.0)
    x, w = b.given(HEADS, SEQ, DIM), b.given(HEADS, DIM, DIM, role="parameter")
    _, first = attention(b, x, x, x, bias)
    between = bmm(b, first, w)
    _, second = attention(b, between, between, between, bias)
    made = plan("ideal", b.graph(second))
    products = [[op for op in group if b.ops[op].op_class == "contraction"] for group in groups_of(made)]
    assert sorted(filter(None, products)) == [[1, 5], [6], [7, 11]]


def test_a_routers_softmax_is_no_attention(b):
    """Logits of eight experts, and an expert whose result the first probability scales: products on both sides, but no
    product of the probabilities. The logits are handed on; the expert's own result is not."""
    x, w = b.given(TOKENS, WIDTH), b.given(WIDTH, 8, role="parameter")
    expert = b.given(WIDTH, WIDTH, role="parameter")
    logits = product(b, x, w, TOKENS, 8)
    weights = b.like("aten._softmax", ("self", logits), dim=-1, half_to_float=False)
    first = b.view(weights, (TOKENS, 1), (8, 1))
    out = b.like("aten.mul.Tensor", ("self", product(b, x, expert, TOKENS, WIDTH)), ("other", first))
    made = plan("ideal", b.graph(out))
    assert groups_of(made) == [(0, 1), (2, 3)]
    assert moved(made) == (X + WIDTH * 8 * 4 + TOKENS * 8 * 4) + (X + WIDTH * WIDTH * 4 + X)


def test_a_choice_of_experts_needs_no_logits_in_memory(b):
    x, w = b.given(TOKENS, WIDTH), b.given(WIDTH, 8, role="parameter")
    logits = product(b, x, w, TOKENS, 8)
    weights = b.like("aten._softmax", ("self", logits), dim=-1, half_to_float=False)
    best, chosen = b.tensor(TOKENS, 2), b.tensor(TOKENS, 2, dtype="int64")
    b.op("aten.topk", [("self", weights)], [best, chosen], k=2, dim=-1)
    made = plan("ideal", b.graph(best, chosen))
    assert moved(made) == X + WIDTH * 8 * 4 + TOKENS * 2 * (4 + 8)


def test_a_classifiers_softmax_is_no_attention(b):
    """Forward it has one product before it; the two of backward do not make it one."""
    x, w = b.given(TOKENS, WIDTH), b.given(WIDTH, 1000, role="parameter")
    logits = product(b, x, w, TOKENS, 1000)
    weights = b.like("aten._softmax", ("self", logits), dim=-1, half_to_float=False)
    b.phase = "backward"
    grad = b.given(TOKENS, 1000)
    dlogits = b.like("aten._softmax_backward_data", ("grad_output", grad), ("output", weights), dim=-1)
    dw = b.tensor(WIDTH, 1000, role="gradient")
    b.op("aten.mm", [("self", b.view(x, (WIDTH, TOKENS), (1, WIDTH))), ("mat2", dlogits)], [dw])
    made = plan("ideal", b.graph(weights))
    size, weight = TOKENS * 1000 * 4, WIDTH * 1000 * 4
    # product, the probabilities for the caller, the gradient that came in, the product of backward
    assert moved(made) == (X + weight + size) + size + size + (X + size + weight)


def test_an_embedding_fetches_its_rows_and_a_sparse_update_adds_to_them(b):
    """50,000 rows of 4 KiB, 4,096 of them touched: never the table."""
    table = b.given(50_000, WIDTH, role="parameter")
    places, w = b.given(TOKENS, dtype="int64"), b.given(WIDTH, WIDTH, role="parameter")
    rows = b.call("aten.embedding", [("weight", table), ("indices", places)], TOKENS, WIDTH)
    out = product(b, rows, w, TOKENS, WIDTH)
    fetched = X + TOKENS * 8
    assert moved(plan("ideal", b.graph(out))) == fetched + (X + WIDTH * WIDTH * 4 + X)
    assert moved(plan("eager", b.graph(out))) == fetched + X + (X + WIDTH * WIDTH * 4 + X)
    b.phase = "optimizer"
    step = b.given(TOKENS, WIDTH)
    before = moved(plan("ideal", b.graph(out)))
    b.op("aten.index_add_", [("self", table), ("index", places), ("source", step)], [table], dim=0)
    update = moved(plan("ideal", b.graph(out))) - before
    assert update == moved(plan("eager", b.graph(out))) - (before + X) - TOKENS * 8  # places are read once
    assert update < 4 * X


def test_classes_to_pick_from_what_the_step_made_are_read_whole(b):
    """The loss leaves most scores unread, which the step itself makes; its 4,096 classes cross, and the sum."""
    x, classes = b.given(TOKENS, 1000), b.given(TOKENS, dtype="int64")
    scores = b.like("aten._log_softmax", ("self", x), dim=-1, half_to_float=False)
    picked = b.call("aten.gather", [("self", scores), ("index", b.view(classes, (TOKENS, 1), (1, 1)))], TOKENS, 1)
    graph = b.graph(picked)
    read = TOKENS * 1000 * 4 + TOKENS * 8
    assert moved(plan("ideal", graph)) == read + TOKENS * 4
    assert Pricer(graph, graph_costs(graph), round_gpu()).group((0, 1)).cost.read_bytes == read


def test_what_the_step_began_with_is_read_once_by_all_that_lies_between_products(b):
    x, w = b.given(TOKENS, WIDTH), b.given(WIDTH, WIDTH, role="parameter")
    scale = b.given(TOKENS, WIDTH, role="parameter")
    y = x
    for _ in range(3):
        y = product(b, b.like("aten.mul.Tensor", ("self", y), ("other", scale)), w, TOKENS, WIDTH)
    # x and scale once; three products with their operands and results
    assert moved(plan("ideal", b.graph(y))) == 2 * X + 3 * (X + WIDTH * WIDTH * 4 + X)


def test_breaks_do_not_change_the_floor(b):
    *_, y = mlp(b)
    graph = b.graph(y)
    assert plan("ideal", graph, regions=[0, 1, 2, 3, 4]) == plan("ideal", graph)


@pytest.mark.defect("14")
def test_the_optimizer_in_the_kernel_of_a_convolution_is_no_convolution():
    """A group took the class of its one heavy op: the whole optimizer, which waits for a convolution's gradient, was a
    convolution."""
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 8192))
        inputs = torch.empty(4, 3, 8, 8)
    made = memwall.profile(model, (inputs,), gpu="h100-sxm", mode="training", policy="ideal")
    (schedule,) = made.simulations
    # AdamW writes a weight and two moments and reads the moments, 20 B for each of 288 x 8192 + 8192 weights;
    # the convolution moves 4 x 3 x 64 inputs and 4 x 8 x 36 results
    (longest,) = [kernel for kernel in schedule.kernels if kernel.bytes > 20 * (288 * 8192 + 8192) * 0.99]
    assert any(made.graph.ops[i].op_class == "convolution" for i in longest.op_ids)
    assert longest.op_class == "optimizer"
    assert schedule.totals.mfu > 0


@pytest.mark.defect("44b")
def test_a_long_group_is_gone_through_once(b, monkeypatch):
    """A set of all ops of a group was made anew for each of its results, so that the time of a plan grew with the
    square of the ops between two products."""
    x = b.given(4, 4)
    for _ in range(200):
        x = b.like("aten.relu", ("self", x))
    gone_through = []

    class Counted(frozenset):
        def union(self, *others):
            gone_through.extend(map(len, others))
            return frozenset.union(self, *others)

    unused = Flow.unused
    monkeypatch.setattr(Flow, "unused", lambda flow, graph: Counted(unused(flow, graph)))
    assert len(plan("ideal", b.graph(x)).groups[0].op_ids) == 200
    assert sum(gone_through) <= 200
