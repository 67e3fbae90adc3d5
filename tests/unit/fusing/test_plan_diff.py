"""Two plans of one graph beside each other: by hand, and our planner beside Inductor's own decisions."""

from pathlib import Path

import pytest

import memwall
from memwall.fusing.plan_diff import plan_diff
from memwall.fusion import Plan, plan_graph
from memwall.fusion.pricing import Pricer
from memwall.ops import graph_costs
from tests.unit.fusion_graphs import Builder, round_gpu

PROFILES = Path(__file__).parents[3] / "profiles"


def plan_of(graph, *groups):
    """A plan of the groups given; a pair of tuples is what a group owns and what it computes again."""
    pricer = Pricer(graph, graph_costs(graph), round_gpu())
    made = [pricer.group(*group) if isinstance(group[0], tuple) else pricer.group(group) for group in groups]
    return Plan("by hand", tuple(made))


@pytest.fixture
def chain():
    """exp, neg, sqrt in a row on 64 floats, and a relu of what exp made."""
    b = Builder()
    x = b.given(8, 8)
    first = b.like("aten.exp", ("self", x))
    second = b.like("aten.neg", ("self", first))
    third = b.like("aten.sqrt", ("self", second))
    fourth = b.like("aten.relu", ("self", first))
    return b.graph(third, fourth)


def test_equal_plans_agree_on_every_pair(chain):
    plan = plan_of(chain, (0, 1), (2,), (3,))
    found = plan_diff(chain, plan, plan, round_gpu())
    # neighbours: exp-neg, neg-sqrt, exp-relu, and neg-relu, which both read what exp made
    assert (found.pairs, found.same, found.share) == (4, 4, 1.0)
    assert (found.all_pairs, found.all_same) == (6, 6)
    assert found.differences == ()


def test_one_op_on_the_other_side(chain):
    """neg with exp in the first plan, with sqrt in the second: exp-neg, neg-sqrt differ."""
    found = plan_diff(chain, plan_of(chain, (0, 1), (2,), (3,)), plan_of(chain, (0,), (1, 2), (3,)), round_gpu())
    assert (found.pairs, found.same, found.only_first, found.only_second) == (4, 2, 1, 1)
    assert (found.all_pairs, found.all_same) == (6, 4)
    assert found.kernels == (3, 3)
    tensor = 64 * 4
    # first: read x, write exp's (for relu) and neg's; read, write; read, write. Second: neg's result stays inside.
    assert found.dram_bytes == (7 * tensor, 6 * tensor)
    (difference,) = found.differences
    assert difference.bytes == -tensor
    assert difference.ours == ("exp+neg", "sqrt")
    assert difference.theirs == ("exp", "neg+sqrt")


def test_what_is_computed_again_is_there_too(chain):
    """relu computes exp again: the two are together for neighbours; who owns what is unchanged."""
    apart = plan_of(chain, (0, 1, 2), (3,))
    again = plan_of(chain, (0, 1, 2), ((3,), (0,)))
    found = plan_diff(chain, apart, again, round_gpu())
    assert (found.pairs, found.same, found.only_second) == (4, 3, 1)
    assert found.all_same == found.all_pairs == 6


def test_ops_of_two_phases_are_no_pair():
    b = Builder()
    x = b.given(8, 8)
    first = b.like("aten.exp", ("self", x))
    b.phase = "backward"
    last = b.like("aten.neg", ("self", first))
    graph = b.graph(last)
    found = plan_diff(graph, plan_of(graph, (0,), (1,)), plan_of(graph, (0,), (1,)), round_gpu())
    assert found.pairs == found.all_pairs == 0
    assert found.share == found.all_share == 1.0


@pytest.mark.parametrize(
    ("workload", "mode"),
    [("bert_large", "inference"), ("llama3_8b", "training")]
    + [
        pytest.param(workload, mode, marks=pytest.mark.whole)
        for workload, mode in (
            ("bert_large", "training"), ("gpt2_xl", "inference"), ("gpt2_xl", "training"), ("llama3_8b", "inference"),
            ("vit_l16", "inference"), ("vit_l16", "training"),
        )
    ],
)  # fmt: skip
def test_our_planner_beside_inductors(workload, mode):
    """At most 1.15x of its launches and 1.10x of its bytes; nine of ten pairs of ops together or apart as there."""
    pytest.importorskip("triton")
    gpu = memwall.load_gpu("a100-80gb-sxm")
    record = memwall.profile(PROFILES / workload / "model.py", gpu=gpu, mode=mode)
    graph, costs = record.graph, record.costs[0]
    ours, theirs = (plan_graph(policy, graph, costs, gpu) for policy in ("memwall", "inductor"))
    found = plan_diff(graph, ours, theirs, gpu)
    assert found.kernels[0] <= 1.15 * found.kernels[1]
    assert found.dram_bytes[0] <= 1.10 * found.dram_bytes[1]
    assert found.all_share >= 0.9
