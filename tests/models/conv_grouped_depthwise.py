"""Depthwise, pointwise, grouped and dilated convolutions in two and one dimensions."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.pointwise = nn.Conv2d(channels, 2 * channels, 1)
        self.grouped = nn.Conv2d(2 * channels, channels, (3, 5), stride=2, padding=(1, 2), groups=4)
        self.dilated = nn.Conv1d(channels, channels, 3, dilation=4)

    def forward(self, x):
        x = F.hardswish(self.pointwise(self.depthwise(x)))
        return self.dilated(self.grouped(x).flatten(2))


def get_init_inputs():
    return [64]


def get_inputs():
    return [torch.randn(16, 64, 56, 56)]
