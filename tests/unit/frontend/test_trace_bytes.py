"""DRAM bytes of single calls against hand arithmetic, through the whole trace."""

import pytest
import torch
from torch import nn

import memwall
from tests.unit.one_call import Call, meta


def profile(function, *inputs, **options):
    return memwall.profile(Call(function), inputs, gpu="h100-sxm", **options)


def update(cache, new):
    cache[:, :, 7:8] = new
    return cache


CACHE = meta(8, 32, 4096, 128, dtype=torch.float16)
SQUARE = meta(1024, 1024)
WIDE = meta(8192, 8192, dtype=torch.bfloat16)

#: function, inputs -> (read, written) bytes
MOVED = {
    # three tensors of 8192 * 8192 * 2 B = 134,217,728 B
    "a sum in bfloat16": (torch.add, (WIDE, torch.empty_like(WIDE)), (268_435_456, 134_217_728)),
    "an operand used twice is read once": (lambda t: t * t, (SQUARE,), (4_194_304, 4_194_304)),
    # 512*1024*4 + 1024*256*4 read, 512*256*4 written
    "a product in float32": (torch.mm, (meta(512, 1024), meta(1024, 256)), (2_097_152 + 1_048_576, 524_288)),
    # 8 * 32 * 128 * 128 * 2 B = 8,388,608 of 268,435,456
    "a slice of a KV cache is the slice": (lambda c: c[:, :, :128] + 1, (CACHE,), (8_388_608, 8_388_608)),
    # 8 * 32 * 128 * 2 B each
    "writing a slice writes the slice": (update, (CACHE, meta(8, 32, 1, 128, dtype=torch.float16)), (65_536, 65_536)),
    # 128 rows of 2048 B and 128 ids of 8 B
    "an embedding reads rows, not the table": (
        nn.functional.embedding,
        (torch.zeros(128, dtype=torch.long, device="meta"), meta(50_000, 1024, dtype=torch.float16)),
        (262_144 + 1_024, 262_144),
    ),
    # input 8*64*56*56*4 = 6,422,528, weight 128*64*9*4 = 294,912, output 8*128*56*56*4 = 12,845,056
    "a convolution in float32": (
        lambda a, b: nn.functional.conv2d(a, b, padding=1), (meta(8, 64, 56, 56), meta(128, 64, 3, 3)),
        (6_717_440, 12_845_056),
    ),
    "expanding is not billed": (
        lambda r, t: r.expand(4096, 1024) + t, (meta(1, 1024), meta(4096, 1024)), (4_096 + 16_777_216, 16_777_216),
    ),
    "adding in place reads two and writes one": (
        lambda a, b: a.add_(b), (SQUARE, meta(1024, 1024)), (2 * 4_194_304, 4_194_304),
    ),
    "filling reads nothing": (lambda a: a.zero_(), (SQUARE,), (0, 4_194_304)),
    "only the shape is read: ones": (torch.ones_like, (SQUARE,), (0, 4_194_304)),
    "only the shape is read: zeros": (torch.zeros_like, (SQUARE,), (0, 4_194_304)),
    "only the shape is read: random": (torch.rand_like, (SQUARE,), (0, 4_194_304)),
    "only the shape is read: full": (lambda a: a.new_full((1024, 1024), 7.0), (SQUARE,), (0, 4_194_304)),
    "a boolean is one byte": (lambda a: a > 0, (meta(1024),), (4_096, 1_024)),
    "overlapping slices of one tensor are read once": (lambda a: a[1:] - a[:-1], (meta(1025),), (1025 * 4, 1024 * 4)),
}  # fmt: skip


@pytest.mark.parametrize("what", MOVED)
def test_bytes_of_the_only_op(what):
    function, inputs, moved = MOVED[what]
    (cost,) = profile(function, *inputs).costs[0]
    assert (cost.read_bytes, cost.write_bytes) == moved


@pytest.mark.parametrize("function", [
    lambda x: x.view(-1), lambda x: x.t(), lambda x: x[3], lambda x: x.expand(4, 64, 64), lambda x: x.detach(),
    torch.ops.aten.alias, lambda x: torch.ops.aten._reshape_alias(x, [4096], [1]), torch.empty_like,
    lambda x: torch.ops.aten._unsafe_view(x, [4096]), lambda x: x.chunk(2)[0], lambda x: x.device and x,
])  # fmt: skip
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
