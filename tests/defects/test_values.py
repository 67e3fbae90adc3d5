"""Models whose Python asks for values that follow from inputs, constants and shapes alone."""

import json
from collections import Counter

import pytest
import torch
from torch import nn

import memwall

ROUTED = """\
import torch
from torch import nn

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(64, 8)
        self.experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(x)
        for i in range(8):
            rows, places = torch.where(chosen == i)
            if rows.numel():
                out.index_add_(0, rows, self.experts[i](x[rows]) * weights[rows, places, None])
        return out

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Experts() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
            if torch.isnan(x).any() or not torch.isfinite(x).all():
                raise ValueError("not finite")
        return x[x > 0].sum()

def model():
    return Net()

def inputs():
    return (torch.randn(32, 64),)
"""


def _flops(record, name):
    return sum(op["flops"] for op in record["graph"]["ops"] if op["name"].startswith(name))


def test_f51_what_depends_on_activations_is_assumed_and_stated(run, folder):
    """What depended on activations had no assumption: routing, masks and branches were refused."""
    (folder / "routed.py").write_text(ROUTED, encoding="utf-8")
    done = run("profile", "routed.py", "--gpu", "h100", "--json")
    assert done.code == 0, done.err
    record = json.loads(done.out)
    # 32 rows choose 2 of 8 experts: 64 rows in all, 64 x 64 each, in three layers; the router is 32 x 64 x 8
    assert _flops(record, "aten.addmm") == 3 * (2 * 64 * 64 * 64 + 2 * 32 * 64 * 8)
    stated = " ".join(record["capture"]["notes"])
    assert "experts=balanced" in stated and "nonzero=0.5" in stated and "routed.py:" in stated
    fewer = run("profile", "routed.py", "--gpu", "h100", "--assume", "nonzero=0.25", "layers.*:experts=same", "--json")
    assert fewer.code == 0, fewer.err
    counts = [op for op in json.loads(fewer.out)["graph"]["ops"] if op["name"] == "aten.addmm"]
    assert len(counts) == 3 * (1 + 2)  # every row chooses the first two experts
    assert "nonzero=0.25" in fewer.out and "experts=same" in fewer.out


def test_f51_an_assumption_that_cannot_be_read_is_refused(run, folder):
    """There was no way to state an assumption."""
    for wrong, said in (("nonzero=2", "a fraction from 0 to 1"), ("nonzer=0.5", "did you mean nonzero?")):
        done = run("profile", "net.py", "--gpu", "h100", "--assume", wrong)
        assert done.code == 2 and said in done.err


def test_f51_replay_equals_no_replay_where_values_decide(run, folder):
    """A routed layer was refused, replayed or not."""
    (folder / "routed.py").write_text(ROUTED, encoding="utf-8")
    asked = ("profile", "routed.py", "--gpu", "h100", "--mode", "training", "--json")
    both = [run(*asked), run(*asked, "--no-replay")]
    assert [done.code for done in both] == [0, 0], both[0].err
    graphs = [json.loads(done.out)["graph"] for done in both]
    assert graphs[0]["ops"] == graphs[1]["ops"]


DRAWN = """\
import random
import numpy
import torch
from torch import nn

DRAWS = (
    lambda: torch.rand([]), lambda: torch.rand(1).item(), lambda: torch.empty(1).uniform_(0, 1).item(), random.random,
    numpy.random.uniform,
)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds = nn.ModuleList(
            nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(8)) for _ in DRAWS
        )

    def forward(self, x):
        for draw, layers in zip(DRAWS, self.kinds):
            for layer in layers:
                if draw() > 0.5:
                    x = layer(x)
        return x.sum()

def model():
    return Net()

def inputs():
    return (torch.randn(8, 64),)
"""


def test_f49_random_numbers_of_the_host(run, folder):
    """torch.rand without a device made a number on meta, and numbers of the host were drawn from any seed."""
    (folder / "drawn.py").write_text(DRAWN, encoding="utf-8")
    command = ("profile", "drawn.py", "--gpu", "h100", "--mode", "training", "--json")
    both = [run(*command), run(*command, "--no-replay")]
    assert [done.code for done in both] == [0, 0], both[0].err
    ops = [json.loads(done.out)["graph"]["ops"] for done in both]
    one, other = ([(op["name"], op["inputs"], op["module"]) for op in each] for each in ops)
    assert one == other
    kept = Counter(op["module"].split(".")[1] for op in ops[0] if op["name"] == "aten.addmm")
    assert len(kept) == 5 and all(0 < count < 8 for count in kept.values())
    assert not any(op["name"] in ("aten.rand", "aten.gt.Scalar") for op in ops[0])  # a CUDA run has them on the host


class Beams(nn.Module):
    """A search that goes on while scores could improve, and stops at its length at the latest."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.linear, self.steps = nn.Linear(8, 8), steps

    def forward(self, x):
        done, goes_on = 0, torch.tensor(True)
        while goes_on:
            x, done = self.linear(x), done + 1
            has_room = torch.full((4,), done < self.steps, device=x.device).any()
            ended = torch.full((), done >= self.steps, device=x.device) | (x > 3).any()
            goes_on = (x > 0).any() & has_room & ~torch.logical_and(ended, ~has_room)
        return x


@pytest.mark.parametrize("steps", [1, 5])
def test_a_known_operand_decides_what_an_unknown_one_cannot_change(steps):
    profile = memwall.profile(Beams(steps), (torch.randn(4, 8),))
    assert [op.name for op in profile.graph.ops].count("aten.addmm") == steps


def test_f51_lists_as_indices_and_numbers_in_texts(run, folder):
    """An index that is a list became a tensor without its numbers, and a known number was formatted as a tensor."""
    (folder / "asks.py").write_text(
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x, n):\n"
        "        assert f'expert_{n[0, 1]}, {n.sum():>4d}' == 'expert_1,   15'\n"
        "        assert n[:, [2, 0]].tolist() == [[2, 0], [5, 3]]\n        return x * 2\n\n"
        "def model():\n    return Net()\n\ndef inputs():\n"
        "    return torch.randn(4, 4), torch.arange(6).view(2, 3)\n",
        encoding="utf-8",
    )
    assert (result := run("profile", "asks.py", "--gpu", "h100")).code == 0, result.err
