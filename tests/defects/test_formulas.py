"""Ops without formulas, and refused for want of a shape."""

import torch
from torch import nn
from torch.nn import functional as F

import memwall


class _Calls(nn.Module):
    """A function of a scaled input, so that there is something to train."""

    def __init__(self, function):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.function = function

    def forward(self, *args):
        return self.function(*(arg * self.scale if arg.is_floating_point() else arg for arg in args))


def _costs(function, *args):
    """The named op → its cost, of a training step that has a formula for every op."""
    made = memwall.profile(_Calls(function), args, mode="training", loss=lambda out: out.sum())
    pairs = list(zip(made.graph.ops, made.costs[0], strict=True))
    assert not [op.name for op, cost in pairs if not cost.modeled]
    return {op.name.removesuffix(".default"): cost for op, cost in pairs}


def test_f53_antialiased_interpolation_and_unpooling_are_trained():
    """Interpolation with ``antialias=True``, as every image processor's, and unpooling had no formula."""
    costs = _costs(lambda x: F.interpolate(x, (4, 4), mode="bilinear", antialias=True), torch.randn(1, 3, 8, 8))
    # windows of 3, 4, 4 and 3 pixels: 14 along each axis
    assert costs["aten._upsample_bilinear2d_aa_backward"].total_flops == 3 * 3 * 14 * 14
    _costs(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), torch.randn(2, 3, 8, 8))
