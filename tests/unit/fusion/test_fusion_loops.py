"""Loops in Python: their steps are found, and the plan is that of the graph with every step in it."""

from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memwall.core.loops import find_loops
from memwall.fusion import plan_graph
from memwall.fusion.repeats import shorten
from memwall.hardware.lookup import load_gpu
from memwall.ops import graph_costs
from tests.unit.fusion.test_fusion_invariants import GPUS, SIZES, Case, Maker

STEPS = 24
#: what a body may do; ops over lists and those that end the graph's data flow are left to the other test
BODY = (
    *("unary", "binary", "binary", "small", "cast", "reduce", "softmax", "layer_norm", "product", "product"),
    *("batch_norm", "dropout", "pick_rows", "flip", "transposed", "halves", "fresh", "in_place", "half_in_place"),
)


def alike(graph, gpu):
    """The groups of the short way and of the whole graph (one that is said to have no break is planned whole)."""
    costs = graph_costs(graph)
    plans = plan_graph("memwall", graph, costs, gpu), plan_graph("memwall", graph, costs, gpu, [0] * len(graph.ops))
    return [{group.op_ids: group for group in plan.groups} for plan in plans]


class Again:
    """Draws as Hypothesis does, and the same again in every further step."""

    def __init__(self, draw) -> None:
        self.draw, self.drawn, self.next = draw, [], None

    def __call__(self, strategy):
        if self.next is None:
            self.drawn.append(self.draw(strategy))
            return self.drawn[-1]
        self.next += 1
        return self.drawn[self.next - 1]


@st.composite
def loops(draw):
    """A random body, ``STEPS`` times: its state goes on from step to step, each step also reads its part of an input;
    the results of all steps are joined, or only the last is an output."""
    again = Again(draw)
    maker = Maker(again, *draw(st.sampled_from(SIZES)))
    b, rows, cols = maker.b, maker.rows, maker.cols
    names = draw(st.lists(st.sampled_from(BODY), min_size=1, max_size=6))
    parts = b.given(STEPS, rows, cols)
    joined, state, first = [], maker.full[0], [list(pool) for pool in (maker.row, maker.col, maker.scalar)]
    for step in range(STEPS):
        part = b.view(parts, (rows, cols), (cols, 1), step * rows * cols)
        maker.full = [part, b.like("aten.add.Tensor", ("self", state), ("other", part), alpha=1)]
        maker.row, maker.col, maker.scalar = (list(pool) for pool in first)
        again.next = 0 if step else None
        for name in names:
            getattr(maker, name)()
        state = maker.full[-1]
        joined.append(state)
    if draw(st.booleans()):
        state = b.call("aten.stack", [("tensors", x) for x in joined], STEPS, rows, cols, dim=0)
    return Case(b.graph(state), None, draw(st.sampled_from(GPUS)))


@settings(derandomize=True, suppress_health_check=list(HealthCheck))
@given(loops())
def test_a_loop_is_planned_as_if_each_step_were_planned(case):
    short, whole = alike(case.graph, case.gpu)
    assert short == whole


def recurrent(cell: str, layers: int):
    """An RNN cell in a Python loop over 40 steps."""
    import torch
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.ModuleList(getattr(nn, cell)(64, 64) for _ in range(layers))

        def forward(self, x):
            states, steps = [None] * layers, []
            for step in range(x.shape[1]):
                y = x[:, step]
                for number, one in enumerate(self.cells):
                    states[number] = one(y, states[number])
                    y = states[number][0] if cell == "LSTMCell" else states[number]
                steps.append(y)
            return torch.stack(steps, 1)

    return Recurrent(), (torch.randn(8, 40, 64),)


def scan():
    """A hand-written scan: a product and an update per step, over slices of larger tensors."""
    import torch
    from torch import nn

    class Scan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            gates, state, steps = torch.sigmoid(self.inner(x)), x.new_zeros(8, 64), []
            for step in range(x.shape[1]):
                state = gates[:, step] * state + x[:, step]
                state = torch.tanh(self.outer(state))
                steps.append(state)
            return torch.stack(steps, 1)

    return Scan(), (torch.randn(8, 40, 64),)


def sampler():
    """A denoising loop: the same network thirty times, with other numbers in each step."""
    import torch
    from torch import nn

    class Sampler(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64))

        def forward(self, x):
            for step in range(30):
                share = 1 - step / 100
                noise = self.network(x)
                x = (x - (1 - share) ** 0.5 * noise) / share**0.5 + (1 - share) ** 0.5 * noise
            return x

    return Sampler(), (torch.randn(8, 64),)


CASES = {
    "gru": lambda: recurrent("GRUCell", 1), "lstm": lambda: recurrent("LSTMCell", 2), "scan": scan, "sampler": sampler
}  # fmt: skip


@cache
def traced(name: str, mode: str):
    pytest.importorskip("torch")
    import memwall

    module, inputs = CASES[name]()
    return memwall.profile(module, inputs, gpu="h100", mode=mode).graph


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", CASES)
def test_traced_loops_are_planned_as_if_each_step_were_planned(name, mode):
    short, whole = alike(traced(name, mode), load_gpu("h100-sxm"))
    assert short == whole


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", CASES)
def test_the_steps_of_a_loop_are_found(name, mode):
    """In forward and, in training, in backward: at least 40 steps without the first three and the last nine."""
    graph = traced(name, mode)
    steps = 30 if name == "sampler" else 40
    (run,) = find_loops(graph, 6, 8, lambda run: True)
    assert run.count >= steps - 12
    assert [track.direction for track in run.tracks] == ([1] if mode == "inference" else [1, -1])
    short = shorten(graph)
    assert len(short.graph.ops) < len(graph.ops) * 0.6
    assert len(short.op_of) == len(short.graph.ops)


@pytest.mark.defect("F 54")
@pytest.mark.parametrize("name", ["gru", "lstm", "sampler"])
def test_an_rnn_in_inference_is_planned_from_its_kept_steps(name):
    """The planner walked every step of a loop over time, as if no step were like the one before it.

    Every part of the short graph's plan stands for those of the removed steps: nothing is planned again."""
    graph = traced(name, "inference")
    short = shorten(graph)
    plan = plan_graph("memwall", short.graph, graph_costs(short.graph), load_gpu("h100-sxm"))
    from memwall.fusion.plan import Part

    whole = short.expand([Part(group.op_ids, group.recomputes) for group in plan.groups])
    assert whole is not None
    assert sorted(op for part in whole for op in part.op_ids) == list(range(len(graph.ops)))


def test_a_step_that_differs_ends_the_loop():
    """Ops by hand: 30 steps of two ops; in step 15 the second is another one, so two loops of 15 and 14 are left, too
    short to be cut."""
    from tests.unit.fusion_graphs import Builder

    b = Builder()
    x, weight = b.given(64, 64), b.given(64, 64)
    for step in range(30):
        x = b.like("aten.mm", ("self", x), ("mat2", weight))
        x = b.like("aten.exp" if step == 15 else "aten.relu", ("self", x))
    assert find_loops(b.graph(x), 6, 8, lambda run: True) == []


def test_two_buffers_that_change_places_are_no_loop():
    """Step 2n reads a and writes b, step 2n + 1 the other way round: with steps cut out the parity would be lost."""
    from tests.unit.fusion_graphs import Builder

    b = Builder()
    one, other = b.given(64, 64, role="buffer"), b.given(64, 64, role="buffer")
    for _ in range(40):
        b.op("aten.copy_", [("src", one)], [other])
        one, other = other, one
    assert all(run.tracks[0].length == 2 for run in find_loops(b.graph(), 6, 8, lambda run: True))
