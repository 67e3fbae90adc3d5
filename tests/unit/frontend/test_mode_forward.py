"""``mode="forward"``: the module as it stands, and what autograd keeps of it."""

import pytest
import torch
from torch import nn

import memwall
from memwall.core.errors import UsageError

ROWS, COLUMNS, HIDDEN, OUT = 4000, 1000, 2000, 500
MB = 1_000_000


class Net(nn.Module):
    """A layer, dropout, a layer, batch norm."""

    def __init__(self):
        super().__init__()
        self.first, self.drop = nn.Linear(COLUMNS, HIDDEN), nn.Dropout(0.5)
        self.second, self.norm = nn.Linear(HIDDEN, OUT), nn.BatchNorm1d(OUT)

    def forward(self, x):
        return self.norm(self.second(self.drop(torch.relu(self.first(x)))))


def profile(module=None, **options):
    return memwall.profile(module or Net(), (torch.zeros(ROWS, COLUMNS),), **options)


def activations(**options):
    return profile(mode="forward", **options).simulations[0].memory.activations


def names(**options):
    return [op.name for op in profile(**options).graph.ops]


def test_neither_eval_nor_train_is_called():
    assert "aten.native_dropout" in names(mode="forward")
    assert names(module=Net().eval(), mode="forward") == names(mode="inference")
    module = Net()
    profile(module, mode="forward")
    assert module.training


def test_what_a_backward_pass_would_read_stays_alive():
    # relu's result 32 MB, dropout's 32 and its mask 8, the second layer's 8, the norm's 8 and two numbers a column
    assert activations() == 88 * MB + 2 * 4 * OUT
    # relu's result, dropout's and its mask, one by one; then nothing is kept
    assert activations(no_grad=True) == 72 * MB


def test_repeated_blocks_are_traced_one_by_one_as_each_saves_its_own():
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(1000, 1000), nn.ReLU()) for _ in range(4)))
    found = memwall.profile(blocks, (torch.zeros(ROWS, 1000),), mode="forward")
    # each ReLU's result is what the next layer's gradient reads too; a layer's own is gone when ReLU has run
    assert found.simulations[0].memory.activations == (4 + 1) * 16 * MB


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_no_grad_is_of_forward_alone(mode):
    with pytest.raises(UsageError, match="no_grad goes with mode 'forward': inference"):
        profile(mode=mode, no_grad=True)


def test_the_mode_is_recorded(tmp_path):
    found = profile(mode="forward")
    assert found.workload.mode == "forward"
    found.save(tmp_path / "net.json")
    assert memwall.Profile.load(tmp_path / "net.json").workload.mode == "forward"
