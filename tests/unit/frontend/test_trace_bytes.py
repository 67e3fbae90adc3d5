"""DRAM bytes of single calls against hand arithmetic, through the whole trace."""

import pytest
import torch
from torch import nn

import memwall
from tests.unit.one_call import Call, meta


def profile(function, *inputs, **options):
    return memwall.profile(Call(function), inputs, gpu="h100-sxm", **options)


def moved(function, *inputs):
    """(read, written) bytes of the only op."""
    result = profile(function, *inputs)
    (cost,) = result.costs[0]
    return cost.read_bytes, cost.write_bytes


def test_bf16_add():
    x = meta(8192, 8192, dtype=torch.bfloat16)
    y = meta(8192, 8192, dtype=torch.bfloat16)
    # three tensors of 8192 * 8192 * 2 B = 134,217,728 B
    assert sum(moved(torch.add, x, y)) == 402_653_184


def test_an_operand_used_twice_is_read_once():
    x = meta(1024, 1024)
    assert moved(lambda t: t * t, x) == (4_194_304, 4_194_304)


def test_fp32_mm():
    # 512*1024*4 + 1024*256*4 read, 512*256*4 written
    assert moved(torch.mm, meta(512, 1024), meta(1024, 256)) == (2_097_152 + 1_048_576, 524_288)


def test_a_slice_of_a_kv_cache_is_the_slice():
    cache = meta(8, 32, 4096, 128, dtype=torch.float16)
    # 8 * 32 * 128 * 128 * 2 B = 8,388,608 of 268,435,456
    assert moved(lambda c: c[:, :, :128] + 1, cache) == (8_388_608, 8_388_608)


def test_writing_a_slice_writes_the_slice():
    cache, new = meta(8, 32, 4096, 128, dtype=torch.float16), meta(8, 32, 1, 128, dtype=torch.float16)

    def update(c, n):
        c[:, :, 7:8] = n
        return c

    assert moved(update, cache, new) == (65_536, 65_536)  # 8 * 32 * 128 * 2 B each


def test_embedding_reads_rows_not_the_table():
    table, ids = meta(50_000, 1024, dtype=torch.float16), torch.zeros(128, dtype=torch.long, device="meta")
    # 128 rows of 2048 B and 128 ids of 8 B
    assert moved(lambda t, i: nn.functional.embedding(i, t), table, ids) == (262_144 + 1_024, 262_144)


def test_fp32_convolution():
    x, w = meta(8, 64, 56, 56), meta(128, 64, 3, 3)
    # input 8*64*56*56*4 = 6,422,528, weight 128*64*9*4 = 294,912, output 8*128*56*56*4 = 12,845,056
    assert moved(lambda a, b: nn.functional.conv2d(a, b, padding=1), x, w) == (6_717_440, 12_845_056)


def test_expand_is_not_billed():
    row, x = meta(1, 1024), meta(4096, 1024)
    assert moved(lambda r, t: r.expand(4096, 1024) + t, row, x) == (4_096 + 16_777_216, 16_777_216)


def test_in_place_add_reads_two_and_writes_one():
    x, y = meta(1024, 1024), meta(1024, 1024)
    assert moved(lambda a, b: a.add_(b), x, y) == (2 * 4_194_304, 4_194_304)


def test_filling_reads_nothing():
    assert moved(lambda a: a.zero_(), meta(1024, 1024)) == (0, 4_194_304)


@pytest.mark.parametrize(
    "function", [torch.ones_like, torch.zeros_like, torch.rand_like, lambda a: a.new_full((1024, 1024), 7.0)]
)
def test_what_only_looks_at_a_shape_reads_nothing(function):
    assert moved(function, meta(1024, 1024)) == (0, 4_194_304)


def test_bool_is_one_byte():
    assert moved(lambda a: a > 0, meta(1024)) == (4_096, 1_024)


def test_overlapping_slices_of_one_tensor_are_read_once():
    assert moved(lambda a: a[1:] - a[:-1], meta(1025)) == (1025 * 4, 1024 * 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(-1), lambda x: x.t(), lambda x: x[3], lambda x: x.expand(4, 64, 64), lambda x: x.detach(),
        torch.ops.aten.alias, lambda x: torch.ops.aten._reshape_alias(x, [4096], [1]), torch.empty_like,
        lambda x: torch.ops.aten._unsafe_view(x, [4096]), lambda x: x.chunk(2)[0], lambda x: x.device and x,
    ],
)  # fmt: skip
def test_views_and_allocations_cost_nothing(function):
    result = profile(function, meta(64, 64))
    assert result.graph.ops == ()
    assert result.dram_bytes == 0
    assert result.simulations[0].totals.time_s == 0


def test_gradients_add_up_into_an_existing_one():
    linear = nn.Linear(64, 64, bias=False)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = linear

        def forward(self, x):
            return self.linear(self.linear(x))

    result = memwall.profile(Twice(), (torch.randn(8, 64),), mode="training", optimizer=None)
    adds = [
        c for o, c in zip(result.graph.ops, result.costs[0], strict=True)
        if o.name == "aten.add.Tensor" and o.phase == "backward"
    ]  # fmt: skip
    assert [(c.read_bytes, c.write_bytes) for c in adds] == [(2 * 64 * 64 * 4, 64 * 64 * 4)]
