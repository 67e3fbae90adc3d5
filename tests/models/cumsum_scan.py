"""Prefix sums and products: forward, reverse, exclusive, masked, and a running maximum."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x, mask):
        total = x.cumsum(self.dim)
        reverse = x.flip(self.dim).cumsum(self.dim).flip(self.dim)
        exclusive = total - x
        masked = (x * mask).cumsum(self.dim)
        product = mask.cumprod(self.dim)
        maximum, _ = x.cummax(self.dim)
        return total, reverse, exclusive, masked, product, maximum, x.logcumsumexp(self.dim)


def get_init_inputs():
    return [1]


def get_inputs():
    return [torch.randn(128, 4000, requires_grad=True), torch.randint(2, (128, 4000)).bool()]
