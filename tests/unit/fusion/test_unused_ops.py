"""Ops whose results nothing needs, and recurrent layers, which no compiler replaces: what each policy launches."""

import importlib.util

import pytest
import torch
from torch import nn

import memwall
from memwall.analysis.savings import policy_sets
from memwall.core.flow import Flow
from memwall.core.graph import EAGER
from tests.unit.fusion_graphs import Builder, plan

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
LAYERS, STEPS, WIDTH = 2, 32, 256
#: one product of a layer's input weights with all steps, then one of its recurrent weights and the cell at each step
LSTM_LAUNCHES = LAYERS * (1 + 2 * STEPS)


@pytest.fixture
def b():
    """A graph to build."""
    return Builder()


def unused(graph):
    return sorted(Flow.of(graph).unused(graph))


def test_a_chain_that_ends_nowhere_is_unused(b):
    x = b.given(64, 64)
    y = b.like("aten.exp", ("self", x))
    b.like("aten.sin", ("self", b.like("aten.cos", ("self", y))))
    assert unused(b.graph(y)) == [1, 2]


def test_a_write_to_a_buffer_is_needed_with_all_that_leads_to_it(b):
    x, state = b.given(64, 64), b.given(64, 64, role="buffer")
    grown = b.like("aten.exp", ("self", x))
    b.op("aten.add_.Tensor", [("self", state), ("other", grown)], [state])
    assert unused(b.graph()) == []


def test_a_write_to_half_of_a_result_needs_what_it_leaves(b):
    x = b.given(64, 64)
    whole = b.like("aten.exp", ("self", x))
    b.op("aten.mul_.Scalar", [("self", b.view(whole, (32, 64), (64, 1)))], [b.view(whole, (32, 64), (64, 1))])
    assert unused(b.graph(whole)) == []
    assert unused(b.graph(x)) == [0, 1]


def test_messages_and_gradients_of_inputs_are_needed(b):
    x = b.given(64, 64)
    b.like("_c10d_functional.all_reduce", ("input", b.like("aten.exp", ("self", x))))
    b.phase = "backward"
    b.like("aten.mul.Tensor", ("self", x), ("other", b.like("aten.cos", ("self", x))))
    assert unused(b.graph()) == []


def test_ideal_does_not_run_what_nothing_needs(b):
    x, w = b.given(64, 64), b.given(64, 64, role="parameter")
    y = b.like("aten.exp", ("self", x))
    b.call("aten.mm", [("self", y), ("mat2", w)], 64, 64)
    groups = plan("ideal", b.graph(y)).groups
    assert [(g.op_ids, g.cost.kernels, g.cost.bytes, g.cost.total_flops) for g in groups if 1 in g.op_ids] == [
        ((1,), 0, 0, 0)
    ]
    assert sum(g.cost.bytes for g in groups) == 2 * 64 * 64 * 4  # x in, y out


class Lstm(nn.Module):
    """A linear layer, an LSTM, and what is done with its results."""

    def __init__(self, tail):
        super().__init__()
        self.up, self.fc = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 20)
        self.lstm = nn.LSTM(WIDTH, WIDTH, LAYERS, batch_first=True)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.register_buffer("count", torch.zeros(WIDTH))
        self.tail = tail

    def forward(self, x):
        return self.tail(self, *self.lstm(self.up(x)))


def unused_linear(net, out, state):
    net.fc(out[:, -1])
    return state[0]


def folded(net, out, state):
    return out * 1 + 0


def unused_gru(net, out, state):
    torch.relu(net.gru(out)[0])
    return net.fc(out)


def two_layers(net, out, state):
    return net.fc(torch.relu(net.gru(torch.relu(out))[0]))


def counted(net, out, state):
    net.count.add_(out.mean((0, 1)))
    torch.dropout(net.fc(out), 0.5, True)
    return state[0]


POLICIES = ("eager", "inductor", "memwall", "ideal")


def profiled(tail, mode="inference"):
    return memwall.profile(
        Lstm(tail), (torch.randn(4, STEPS, WIDTH),), gpu="a100", policy=POLICIES, mode=mode, optimizer=None,
        loss=(lambda out: out.sum()) if mode == "training" else None,
    )  # fmt: skip


@needs_triton
@pytest.mark.parametrize("tail", [unused_linear, folded])
def test_a_recurrent_layer_keeps_its_launches(tail):
    """Whatever the compiler removes next to it: the linear layer behind it, or arithmetic that changes nothing."""
    profile = profiled(tail)
    lstm = next(op.id for op in profile.graph.ops if "rnn" in op.name)
    for schedule in profile.simulations:
        (kernel,) = [kernel for kernel in schedule.kernels if lstm in kernel.op_ids]
        assert kernel.launches == LSTM_LAUNCHES, schedule.policy


@needs_triton
def test_only_what_nothing_needs_vanishes():
    """Eager launches the linear layer that nobody reads; Inductor and ideal do not; memwall plans what it is given."""
    kernels = {s.policy: s.totals.kernels for s in profiled(unused_linear).simulations}
    assert kernels["eager"] - kernels["inductor"] == 1
    assert kernels["memwall"] == kernels["eager"]


@needs_triton
@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("tail", [unused_linear, folded, unused_gru, two_layers, counted])
def test_no_policy_saves_more_than_ideal(tail, mode):
    (found,) = policy_sets(profiled(tail, mode))
    for row in found.rows():
        assert row.byte_score is None or row.byte_score <= 1.0, row.policy
        assert row.time_score is None or row.time_score <= 1.0, row.policy


class Nothing(nn.Module):
    """All but one addition is without use."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        torch.softmax(self.fc(x), -1)
        return x + 1


@needs_triton
def test_without_a_recurrent_layer_no_policy_saves_more_than_ideal():
    profile = memwall.profile(Nothing(), (torch.randn(256, WIDTH),), gpu="a100", policy=POLICIES)
    (found,) = policy_sets(profile)
    kernels = {row.policy: row.kernels for row in found.rows()}
    assert kernels == {"eager": 3, "inductor": 1, "memwall": kernels["memwall"], "ideal": 1}
    assert all(max(row.byte_score, row.time_score) <= 1.0 for row in found.rows())


def test_backward_belongs_to_the_region_of_its_forward():
    """The GRU behind the LSTM has no gradient where only the LSTM's result is used: regions are told by what a gradient
    reads, not by counting."""
    from memwall.inductor.lowering import _between_recurrent_layers

    for tail, regions in ((two_layers, [0, 1, 2, 1, 0]), (unused_gru, [0, 1, 2, 0])):
        graph = memwall.profile(
            Lstm(tail), (torch.randn(4, STEPS, WIDTH),), gpu="a100", mode="training", optimizer=None,
            loss=lambda out: out.sum(),
        ).graph  # fmt: skip
        found = [r for r in _between_recurrent_layers(graph) if r != EAGER]
        assert [r for i, r in enumerate(found) if i == 0 or found[i - 1] != r] == regions
