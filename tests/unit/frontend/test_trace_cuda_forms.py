"""Kernels that a CUDA device runs and ``meta`` would not."""

import pytest
import torch

import memwall
from tests.unit.one_call import Call


def ops(function, *inputs, **options):
    return [op.name for op in memwall.profile(Call(function), inputs, optimizer=None, **options).graph.ops]


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_half_to_float_softmax_is_one_kernel(name):
    function = getattr(torch.nn.functional, name)
    half = torch.empty(4, 8, dtype=torch.float16, device="meta", requires_grad=True)
    forward = ops(lambda x: function(x, -1, dtype=torch.float32), half)
    assert forward == [f"aten._{name}"]
    assert ops(lambda x: function(x, -1), half, autocast="fp16") == forward
    backward = ops(lambda x: function(x, -1, dtype=torch.float32), half, mode="training")
    assert backward[-1] == f"aten._{name}_backward_data"
    bfloat16 = torch.empty(4, 8, dtype=torch.bfloat16, device="meta")
    assert ops(lambda x: function(x, -1, dtype=torch.float32), bfloat16) == ["aten._to_copy", f"aten._{name}"]
    assert ops(lambda x: function(x, -1), bfloat16) == [f"aten._{name}"]


def test_one_hot_is_zeros_and_a_scatter():
    index = torch.zeros(32, dtype=torch.int64)
    called = ops(lambda i: torch.nn.functional.one_hot(i, 100), index)
    assert called == ["aten.new_zeros", "aten.scatter_.value"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_grouped_products_of_any_float(dtype):
    def run(rows, weights, offsets):
        return torch._grouped_mm(rows, weights, offs=offsets).float() * 2

    inputs = (
        torch.empty(256, 64, dtype=dtype, device="meta", requires_grad=True),
        torch.empty(8, 64, 32, dtype=dtype, device="meta", requires_grad=True),
        torch.empty(8, dtype=torch.int32, device="meta"),
    )
    profile = memwall.profile(Call(run), inputs, mode="training", optimizer=None)
    products = [c for op, c in zip(profile.graph.ops, profile.costs[0], strict=True) if op.name == "aten._grouped_mm"]
    assert [cost.total_flops for cost in products] == [2 * 256 * 64 * 32] * 3


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_batch_norm_copies_what_is_strided(mode):
    """cuDNN takes [8, 32, 24] in one piece: 24,576 bytes are read and written; data with channels last is."""
    norm, x = torch.nn.BatchNorm1d(32), torch.zeros(8, 24, 32)
    made = memwall.profile(Normed(norm), (x,), mode=mode, optimizer=None)
    copy = next(i for i, op in enumerate(made.graph.ops) if op.name == "aten.clone")
    assert (made.costs[0][copy].read_bytes, made.costs[0][copy].write_bytes) == (4 * 8 * 24 * 32,) * 2
    following = next(op for op in made.graph.ops[copy:] if op.name == "aten.native_batch_norm")
    assert following.inputs[0] == made.graph.ops[copy].outputs[0]
    assert made.graph.values[following.outputs[0]].spec.strides == (768, 24, 1)


@pytest.mark.parametrize(("norm", "x"), [
    (torch.nn.BatchNorm2d(4), torch.zeros(2, 4, 8, 8).to(memory_format=torch.channels_last)),
    (torch.nn.BatchNorm2d(4), torch.zeros(2, 4, 8, 8)),
    (torch.nn.BatchNorm1d(4), torch.zeros(4, 8).t()),  # of two axes: PyTorch's own kernel
    (torch.nn.BatchNorm1d(4, affine=False), torch.zeros(2, 8, 4).transpose(1, 2)),
])  # fmt: skip
def test_batch_norm_takes_other_data_as_it_is(norm, x):
    assert "aten.clone" not in ops(norm.eval(), x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_flash_attention_has_the_layout_of_its_query(dtype):
    """torch allocates it with ``empty_like(query)``. MultiheadAttention's queries lie as [tokens, batch, heads, size],
    so that turning the result back copies nothing; the memory-efficient kernel of a V100 writes [batch, tokens, heads,
    size] in any case, which is copied (as bfloat16 runs in products of matrices there, it is not asked)."""
    made = memwall.profile(Attending(), (torch.zeros(32, 8, 64),), gpu=["v100", "a100"], dtype=dtype)
    names = {run.gpu.name: [kernel.name for kernel in run.kernels] for run in made.simulations}
    flash, efficient = (f"aten._scaled_dot_product_{name}_attention" for name in ("flash", "efficient"))
    newer, older = names["a100-80gb-sxm"], names["v100-sxm2-16gb"]
    assert newer[newer.index(flash) + 1 :] == ["aten.addmm"]
    if dtype == "float16":
        assert older[older.index(efficient) + 1 :] == ["aten.clone", "aten.addmm"]


class Attending(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Normed(torch.nn.Module):
    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.transpose(1, 2))
