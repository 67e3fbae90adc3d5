"""Data-dependent branch: Python reads a value by .item() and picks a layer; needs real values."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.small = nn.Linear(width, width)
        self.large = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        if x.abs().mean().item() > 0.5:
            return self.large(x)
        return self.small(x)


def get_init_inputs():
    return [1024]


def get_inputs():
    return [torch.randn(16, 1024)]
