"""Compulsory bytes are no more than an op can touch: compared with the elements that its result depends on."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import memwall
from tests.unit.one_call import Call

CPU = torch.Generator().manual_seed(0)


def some(*shape):
    return torch.rand(*shape, generator=CPU)


def index(*rows):
    return torch.tensor(rows)


#: points between pixels, no two of which share one
APART = torch.tensor([[[[-0.7, -0.7], [0.7, 0.7]]]])

CASES = {
    "tril": (lambda x: x.tril(), some(16, 16)),
    "triu above the diagonal": (lambda x: x.triu(1), some(16, 16)),
    "tril of wide matrices": (lambda x: x.tril(-3), some(2, 6, 16)),
    "grid_sample": (lambda x, at: F.grid_sample(x, at, align_corners=False), some(1, 2, 12, 12), APART),
    "grid_sample, nearest": (
        lambda x, at: F.grid_sample(x, at, mode="nearest", align_corners=False), some(1, 2, 12, 12), APART,
    ),
    "max_pool2d, stride over window": (lambda x: F.max_pool2d(x, 1, 3), some(1, 2, 12, 12)),
    "avg_pool2d, stride over window": (lambda x: F.avg_pool2d(x, 2, 4), some(1, 2, 12, 12)),
    "max_pool3d, stride over window": (lambda x: F.max_pool3d(x, 1, 2), some(1, 1, 6, 6, 6)),
    "unfold": (lambda x: F.unfold(x, 2, stride=5), some(1, 1, 12, 12)),
    "interpolate, nearest": (lambda x: F.interpolate(x, scale_factor=0.25), some(1, 2, 12, 12)),
    "interpolate, bilinear": (lambda x: F.interpolate(x, scale_factor=0.25, mode="bilinear"), some(1, 1, 16, 16)),
    "conv2d, stride over window": (lambda x, w: F.conv2d(x, w, stride=3), some(1, 2, 12, 12), some(2, 2, 1, 1)),
    "conv1d, dilated": (lambda x, w: F.conv1d(x, w, dilation=4, stride=9), some(1, 2, 18), some(2, 2, 2)),
    "index_select": (lambda x, i: x.index_select(0, i), some(16, 4), index(3, 1)),
    "gather": (lambda x, i: x.gather(1, i), some(4, 16), index([1], [2], [3], [0])),
    "index": (lambda x, i: x[i], some(16, 4), index(3, 1)),
    "embedding": (lambda i, w: F.embedding(i, w), index(3, 1), some(16, 4)),
    "embedding_bag": (lambda i, at, w: F.embedding_bag(i, w, at), index(3, 1), index(0), some(16, 4)),
    "diagonal_copy": (torch.diagonal_copy, some(8, 8)),
    "slice_copy": (lambda x: torch.slice_copy(x, 0, 0, 2), some(16, 4)),
    "select_copy": (lambda x: torch.select_copy(x, 0, 0), some(16, 4)),
    "narrow_copy": (lambda x: torch.narrow_copy(x, 0, 0, 2), some(16, 4)),
    "unfold_copy": (lambda x: torch.unfold_copy(x, 0, 2, 8), some(16, 4)),
    "trace": (torch.trace, some(8, 8)),
    "slice": (lambda x: x[::4].clone(), some(16, 4)),
    "constant_pad, cut": (lambda x: F.pad(x, (-3, -3)), some(1, 1, 16)),
    "roll": (lambda x: x.roll(1, 0), some(4, 4)),
    "broadcast": (torch.add, some(1, 4), some(8, 4)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 2), some(1, 1, 8, 8)),
}  # fmt: skip


def touched_bytes(function, inputs):
    """Of float32 inputs the elements on which the result depends, of indices all."""
    total = 0
    for number, tensor in enumerate(inputs):
        if not tensor.is_floating_point():
            total += tensor.numel() * tensor.element_size()
            continue
        for place in range(tensor.numel()):
            changed = tensor.flatten().clone()
            changed[place] = 99.0
            given = [*inputs[:number], changed.view_as(tensor), *inputs[number + 1 :]]
            total += 4 * (not torch.equal(function(*given), function(*inputs)))
    return total


@pytest.mark.defect("A 10")
@pytest.mark.parametrize("name", CASES)
def test_no_more_is_read_than_the_result_depends_on(name):
    """grid_sample was charged its whole image and tril and triu the triangle that they only clear, so bound_s could
    exceed a real time."""
    function, *inputs = CASES[name]
    (cost,) = memwall.profile(Call(function), tuple(inputs), gpu="h100-sxm").costs[0]
    indices = 8 if name == "embedding_bag" else 0  # the offsets count as read though one bag needs none
    assert cost.modeled
    assert cost.read_bytes <= touched_bytes(function, inputs) + indices


def test_tril_in_place_clears_the_other_triangle_alone():
    (cost,) = memwall.profile(Call(lambda x: x.tril_()), (some(16, 16),), gpu="h100-sxm").costs[0]
    assert (cost.read_bytes, cost.write_bytes) == (0, 4 * 120)  # 15 x 16 / 2 elements above the diagonal


def test_keys_that_no_query_meets_are_not_read():
    # causal from the top left: 4 queries meet the first 4 of 16 keys and values of 8 numbers
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    made = memwall.profile(Call(attend), (some(1, 1, 4, 8), some(1, 1, 16, 8), some(1, 1, 16, 8)), gpu="h100-sxm")
    assert made.costs[0][0].read_bytes == 3 * 4 * 8 * 4


def test_a_search_loads_one_edge_per_halving():
    # 2 values in 64 edges: at most 7 loads each, and the values
    made = memwall.profile(Call(torch.searchsorted), (torch.arange(64.0), some(2)), gpu="h100-sxm")
    assert made.costs[0][0].read_bytes == 2 * 4 + 2 * 7 * 4


def test_the_gradient_of_grid_sample_reads_the_taps():
    class Samples(nn.Module):
        def __init__(self):
            super().__init__()
            self.image = nn.Parameter(some(1, 2, 12, 12))

        def forward(self, at):
            return F.grid_sample(self.image, at, align_corners=False)

    made = memwall.profile(Samples(), (APART,), gpu="h100-sxm", mode="training", optimizer=None)
    cost = next(c for op, c in zip(made.graph.ops, made.costs[0], strict=True) if op.name.endswith("2d_backward"))
    # gradients of 2 channels at 2 points (one number, as the sum's are equal), 2 coordinates each, 4 taps each
    assert cost.modeled
    assert cost.read_bytes <= 4 * 4 + 2 * 2 * 4 + 4 * 4 * 4
