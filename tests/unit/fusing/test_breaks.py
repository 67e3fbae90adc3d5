"""The price of graph breaks against hand arithmetic: 1 TB/s, 1 us a launch, tensors of 2 MB (2 us)."""

from itertools import pairwise

import pytest

from memwall.core.graph import Graph
from memwall.fusing.breaks import MAX_PRICED, Cut, Loss, healed, is_broken, planned, price_breaks, whole
from memwall.fusion import plan_graph
from tests.unit.report_fixture import Builder, make_gpu

GPU = make_gpu()
MB2 = 2_000_000
US = 1e-6


def chain(length: int = 4) -> tuple[Graph, tuple]:
    """``length`` pointwise ops in a row, each reading what the one before wrote."""
    b = Builder()
    values = [b.value((1000, 1000), "input" if i == 0 else "activation") for i in range(length + 1)]
    for before, after in pairwise(values):
        b.op("aten.gelu", "elementwise", "forward", "", (before,), (after,))
    graph = Graph(tuple(b.values), tuple(b.storages), tuple(b.ops), (0,), (), (values[-1],))
    return graph, tuple(b.costs)


def step() -> tuple[Graph, tuple]:
    """Two forward ops, a break between them, their backward, a gradient added up, and an optimizer step of two.

    The forward ops draw random numbers, so that nothing is computed again.
    """
    b = Builder()
    x, h, y, d, g = (b.value((1000, 1000), "input" if i == 0 else "activation") for i in range(5))
    kept = b.value((1000, 1000), "gradient")
    weight = b.value((1000, 1000), "parameter")
    b.op("aten.native_dropout", "elementwise", "forward", "", (x,), (h,))
    b.op("aten.native_dropout", "elementwise", "forward", "", (h,), (y,))
    b.op("aten.gelu_backward", "elementwise", "backward", "", (y, h), (d,))
    b.op("aten.gelu_backward", "elementwise", "backward", "", (d, x), (g,))
    b.op("aten.add_.Tensor", "elementwise", "backward", "", (kept, g), (kept,))
    b.op("aten.mul_.Tensor", "elementwise", "optimizer", "", (weight, kept), (weight,))
    b.op("aten.add_.Tensor", "elementwise", "optimizer", "", (weight, kept), (weight,))
    graph = Graph(tuple(b.values), tuple(b.storages), tuple(b.ops), (0,), (weight,), ())
    return graph, tuple(b.costs)


#: two partial graphs, forward and backward; the gradient and the optimizer in none
STEP = (0, 1, 1, 0, -1, -1, -1)


def test_a_break_in_a_chain():
    """Broken: two kernels of 4 MB, 5 us each. Whole: one of 4 MB, 5 us."""
    graph, costs = chain()
    prices = price_breaks(graph, costs, GPU, (0, 0, 1, 1), [Cut((1,))])
    assert prices.together.dram_bytes == 2 * MB2
    assert prices.together.time_s == pytest.approx(5 * US)
    assert prices.together.kernels == 1
    assert prices.each == (prices.together,)


def test_an_op_that_ran_eagerly_in_between():
    """Broken: three kernels of 4 MB. Whole: one."""
    graph, costs = chain(3)
    prices = price_breaks(graph, costs, GPU, (0, -1, 1), [Cut((0,))])
    assert (prices.together.dram_bytes, prices.together.kernels) == (4 * MB2, 2)
    assert prices.each == (prices.together,)


def test_each_of_two_breaks_is_healed_alone():
    """Three kernels; two where one break is healed; one where both are."""
    graph, costs = chain(3)
    prices = price_breaks(graph, costs, GPU, (0, 1, 2), [Cut((0,)), Cut((1,))])
    assert [loss.kernels for loss in prices.each] == [1, 1]
    assert [loss.dram_bytes for loss in prices.each] == [2 * MB2, 2 * MB2]
    assert (prices.together.dram_bytes, prices.together.kernels) == (4 * MB2, 2)


def test_a_break_that_is_met_twice_is_healed_in_both_places():
    graph, costs = chain(3)
    prices = price_breaks(graph, costs, GPU, (0, 1, 2), [Cut((0, 1))])
    assert prices.each == (prices.together,)


def test_a_break_before_all_ops_costs_no_fusion():
    graph, costs = chain(2)
    assert price_breaks(graph, costs, GPU, (0, 0), [Cut(())]).each == (None,)


def test_a_break_between_ops_that_would_not_fuse_costs_nothing():
    """Two ops that share no tensor run as two kernels anyway."""
    b = Builder()
    x, y, u, v = (b.value((1000, 1000), "input" if i in (0, 2) else "activation") for i in range(4))
    b.op("aten.gelu", "elementwise", "forward", "", (x,), (y,))
    b.op("aten.gelu", "elementwise", "forward", "", (u,), (v,))
    graph = Graph(tuple(b.values), tuple(b.storages), tuple(b.ops), (x, u), (), (y, v))
    prices = price_breaks(graph, tuple(b.costs), GPU, (0, 1), [Cut((0,))])
    assert prices.together == Loss(0, 0.0, 0)


def test_a_function_given_up_costs_what_capturing_it_would_save():
    """Four ops, all left to Python by a break in a loop: four kernels of 4 MB. Captured: one."""
    graph, costs = chain()
    prices = price_breaks(graph, costs, GPU, (-1,) * 4, [Cut((), lost_from=0)])
    assert (prices.together.dram_bytes, prices.together.kernels) == (3 * 2 * MB2, 3)
    assert prices.each == (prices.together,)


def test_a_function_given_up_stays_cut_where_others_break():
    """Calls a module twice whose break parts it: | 0 | 1 |, | 2 | 3 |. Capturing the caller joins 1 and 2 alone."""
    graph, costs = chain()
    prices = price_breaks(graph, costs, GPU, (0, 1, 2, 3), [Cut((), lost_from=0), Cut((0, 2))])
    loop, inside = prices.each
    assert (loop.dram_bytes, loop.kernels) == (2 * MB2, 1)
    assert (inside.dram_bytes, inside.kernels) == (4 * MB2, 2)
    assert prices.together.kernels == 3 == loop.kernels + inside.kernels


def test_what_is_behind_the_model_is_no_break():
    """Three ops captured, then one that stands for a loss: nothing is lost across that border."""
    graph, costs = chain()
    regions = (0, 0, 0, -1)
    assert is_broken(graph, regions)
    assert not is_broken(graph, regions, behind=3)
    assert price_breaks(graph, costs, GPU, regions, [], behind=3).together == Loss(0, 0.0, 0)


def test_the_gradient_that_backward_begins_with_is_no_break():
    b = Builder()
    x, y, g, d = (b.value((1000, 1000), "input" if i == 0 else "activation") for i in range(4))
    b.op("aten.gelu", "elementwise", "forward", "", (x,), (y,))
    b.op("aten.ones_like", "movement", "backward", "", (y,), (g,))
    b.op("aten.gelu_backward", "elementwise", "backward", "", (x, g), (d,))
    graph = Graph(tuple(b.values), tuple(b.storages), tuple(b.ops), (x,), (), (d,))
    assert not is_broken(graph, (0, -1, 0))
    assert is_broken(graph, (0, -1, -1))


def test_only_so_many_are_priced():
    graph, costs = chain(2)
    prices = price_breaks(graph, costs, GPU, (0, 1), [Cut((0,))] * (MAX_PRICED + 2))
    assert prices.each[MAX_PRICED - 1] == prices.together
    assert prices.each[MAX_PRICED:] == (None, None)


def test_healing_joins_backward_too_and_leaves_gradients_and_optimizer_apart():
    graph, _ = step()
    assert healed(graph, STEP, whole(graph, STEP), (0,)) == (0, 0, 0, 0, -1, -1, -1)
    assert whole(graph, STEP) == (0, 0, 0, 0, -1, -1, -1)
    assert is_broken(graph, STEP)
    assert not is_broken(graph, (0, 0, 0, 0, -1, -1, -1))


def test_the_price_of_a_training_step_is_that_of_forward_and_backward():
    """Broken and whole differ in the bytes that cross the break alone; what is outside costs the same in both.

    Forward 4 + 4 MB as two kernels, 2 + 4 MB (x; h and y, which backward reads) as one. Backward: y, h -> d and
    d, x -> g are 6 + 6 MB as two kernels, and x, y, h -> g 8 MB as one.
    """
    graph, costs = step()
    prices = price_breaks(graph, costs, GPU, STEP, [Cut((0,))])
    assert prices.together.dram_bytes == (8 - 6 + 12 - 8) * 1_000_000
    assert prices.together.kernels == 2


def test_ops_outside_all_graphs_run_alone_and_the_optimizer_is_one_region():
    graph, _ = step()
    regions = planned(graph, STEP)
    assert regions[:4] == [0, 1, 1, 0]
    assert regions[5] == regions[6]
    assert len({regions[4], regions[5], 0, 1}) == 4


def test_fusion_never_crosses_a_break():
    graph, costs = chain(6)
    regions = (0, 0, -1, -1, 1, 1)
    plan = plan_graph("memwall", graph, costs, GPU, planned(graph, regions))
    assert [group.op_ids for group in plan.groups] == [(0, 1), (2,), (3,), (4, 5)]
