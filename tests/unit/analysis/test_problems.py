"""The size of a kernel's problem in words, next to shapes worked out by hand."""

import os

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import memwall
from memwall.analysis.table import kernel_rows


class Net(torch.nn.Module):
    """4 images of 3x16x16 through 8 filters of 3x3 at stride 2; 64 places of 8 features through one square layer."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.square = torch.nn.Linear(8, 8, bias=False)

    def forward(self, images):
        rows = self.conv(images).flatten(2).transpose(1, 2)  # [4, 64, 8]
        products = rows @ rows.transpose(1, 2)  # [4, 64, 64]
        heads = self.square(products @ rows).unflatten(-1, (1, 8)).transpose(1, 2)  # [4, 1, 64, 8]
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)


@pytest.fixture(scope="module", params=["float32", "autocast"])
def problems(request):
    how = {"autocast": "bf16"} if request.param == "autocast" else {}
    profile = memwall.profile(Net(), (torch.randn(4, 3, 16, 16),), mode="training", **how)
    return {(row.op_class, row.phase, row.problem) for row in kernel_rows(profile, profile.simulations[0])}


@pytest.mark.parametrize("row", [
    ("convolution", "forward", "4x3x16x16*8x3x3/2"),
    ("convolution", "backward", "dW 4x3x16x16*8x3x3/2"),  # images need no gradient
    ("contraction", "forward", "4x64x64x8"),
    ("contraction", "forward", "4x64x8x64"),
    ("contraction", "forward", "256x8x8"),  # 4 x 64 rows of 8
    ("contraction", "backward", "dX 256x8x8"),
    ("contraction", "backward", "dW 8x8x256"),
    ("contraction", "backward", "4x64x64x8"),  # of two activations: neither weight nor input
    ("attention", "forward", "4x1x64x8"),
])  # fmt: skip
def test_problems(problems, row):
    assert row in problems


def test_calls_of_many_tensors_count_them():
    linears = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(10)))
    profile = memwall.profile(linears, (torch.randn(2, 4),), mode="training")
    rows = kernel_rows(profile, profile.simulations[0])
    assert {row.problem for row in rows if row.phase == "optimizer"} == {"20 tensors"}


def test_an_activation_that_a_weight_was_added_to_is_no_weight():
    """As a vision transformer adds positions: products of what follows have neither dX nor dW."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.positions = torch.nn.Parameter(torch.zeros(8, 4))

        def forward(self, x):
            rows = x + self.positions
            return rows @ rows.transpose(1, 2)

    profile = memwall.profile(Net(), (torch.randn(2, 8, 4),), mode="training")
    rows = kernel_rows(profile, profile.simulations[0])
    products = {(row.phase, row.problem) for row in rows if row.op_class == "contraction"}
    assert products == {("forward", "2x8x8x4"), ("backward", "2x8x4x8"), ("backward", "2x4x8x8")}


def test_a_recurrent_layer_is_its_steps_rows_and_features_then_its_layers():
    class Last(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(24, 40, 2, bidirectional=True, batch_first=True)

        def forward(self, x):
            return self.lstm(x)[0]

    profile = memwall.profile(Last(), (torch.rand(3, 7, 24),), mode="training")
    rows = [row for row in kernel_rows(profile, profile.simulations[0]) if "rnn" in row.name]
    assert [row.problem for row in rows] == ["7x3x24*40x2x2"] * 2  # forward, and all gradients at once


def test_what_backward_computes_again_is_no_gradient():
    """Of a checkpointed product [8, 4] x [4, 6] backward has its forward again, then the gradient of its weight."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch.nn.Linear(4, 6, bias=False)

        def forward(self, x):
            return checkpoint(lambda rows: self.up(rows).sigmoid(), x, use_reentrant=False)

    profile = memwall.profile(Net(), (torch.randn(8, 4),), mode="training")
    rows = kernel_rows(profile, profile.simulations[0])
    products = [(row.phase, row.problem) for row in rows if row.op_class == "contraction"]
    assert sorted(products) == [("backward", "8x6x4"), ("backward", "dW 6x4x8"), ("forward", "8x6x4")]


def test_the_weights_of_a_fully_sharded_layer_are_gathered_and_its_gradients_scattered():
    """Two products of 8 rows: [8, 64] x [64, 256] and [8, 256] x [256, 64]; the inputs need no gradient."""

    def model():
        net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 64))
        mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
        for layer in net:
            fully_shard(layer, mesh=mesh)
        return fully_shard(net, mesh=mesh)

    target = memwall.Workload(model, (torch.zeros(8, 64),))
    profile = memwall.profile(target, mode="training", optimizer=None, cluster="dgx-h100", world=8)
    rows = kernel_rows(profile, profile.simulations[0])
    products = {row.problem for row in rows if row.op_class == "contraction" and row.phase == "backward"}
    assert products == {"dW 256x64x8", "dW 64x256x8", "dX 8x256x64"}


def test_gradients_of_a_jax_program_are_told_apart_though_they_are_transposed_and_stacked():
    jax = pytest.importorskip("jax", reason="needs jax: traces its program")

    def loss(weights, x):  # two layers of 16 x 16 over 64 rows
        return jax.lax.scan(lambda x, w: (x @ w, None), x, weights["w"])[0].sum()

    given = {"w": jax.ShapeDtypeStruct((2, 16, 16), "float32")}, jax.ShapeDtypeStruct((64, 16), "float32")
    profile = memwall.profile(loss, given, gpu="h100-sxm", mode="training", optimizer="none")
    rows = kernel_rows(profile, profile.simulations[0])
    products = {row.problem for row in rows if row.op_class == "contraction" and row.phase == "backward"}
    assert products == {"dX 64x16x16", "dW 16x16x64"}
