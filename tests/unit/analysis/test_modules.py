"""The tree of modules: children add up to their parent; memory by hand."""

from collections import OrderedDict
from dataclasses import replace

import pytest

import memwall
from memwall.analysis.modules import ITSELF, levels, module_tree
from memwall.record.profile import Profile

torch = pytest.importorskip("torch")

SUMMED = ("flops", "bytes", "launches", "memory_bytes")


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def net():
    blocks = torch.nn.Sequential(*(Block() for _ in range(3)))
    return torch.nn.Sequential(OrderedDict(blocks=blocks, head=torch.nn.Linear(16, 4)))


@pytest.fixture(scope="module", params=["inference", "training"])
def profile(request):
    return memwall.profile(net(), (torch.randn(8, 16),), mode=request.param, policy=["eager", "memwall"])


def test_children_add_up_to_their_parent(profile):
    for schedule in profile.simulations:
        root = module_tree(profile, schedule)
        assert root.memory_bytes == schedule.totals.peak_memory_bytes
        assert root.flops == schedule.totals.flops
        for _, node in root.walk(99):
            if node.children:
                for name in SUMMED:
                    assert getattr(node, name) == sum(getattr(child, name) for child in node.children), (node.key, name)
                assert node.time_s == pytest.approx(sum(child.time_s for child in node.children))


def test_what_a_module_holds_by_hand():
    """Three blocks of 16x64 and 64x16 weights with biases, in float32: 4 x (2 x 1024 + 64 + 16) bytes each."""
    profile = memwall.profile(net(), (torch.randn(8, 16),))
    nodes = {node.key: node for _, node in module_tree(profile, profile.simulations[0]).walk(99)}
    assert nodes["blocks.*"].count == 3
    assert nodes["up"].flops == 3 * 2 * 8 * 16 * 64
    assert nodes["up"].memory_bytes >= 3 * 4 * (1024 + 64)
    assert nodes["head"].memory_bytes == 4 * (64 + 4)


def test_a_record_has_the_same_tree(profile):
    read = Profile.from_dict(profile.to_dict())
    for made, again in zip(profile.simulations, read.simulations, strict=True):
        first, second = (module_tree(*pair) for pair in ((profile, made), (read, again)))
        rows = [[(level, n.key, n.count, *(getattr(n, name) for name in SUMMED)) for level, n in root.walk(99)]
                for root in (first, second)]  # fmt: skip
        assert rows[0] == rows[1]


def test_no_compiler_runs_for_the_memory_of_a_record(profile):
    """What Inductor grouped is not in a record: its modules have no memory there, and are not compiled again."""
    eager = profile.simulations[0]
    root = module_tree(profile, replace(eager, policy="inductor", plan=None))
    assert (root.memory_bytes, root.memory_share) == (None, None)
    assert root.flops == eager.totals.flops


def test_depth(profile):
    root = module_tree(profile, profile.simulations[0])
    assert {level for level, _ in levels(root, 1, 99)} == {0, 1}
    assert len(levels(root, None, 4)) == len(levels(root, 1, 99))  # what does not fit is left out, the first level not
    assert {node.key for _, node in levels(root, None, 99)} >= {"up", "down", ITSELF}
