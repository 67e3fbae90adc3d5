"""3D convolution, softmax over channels and two 3D max-pools, on a small video."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, kernel_size: int):
        super().__init__()
        self.conv = nn.Conv3d(channels_in, channels_out, kernel_size)
        self.pool = nn.MaxPool3d(2)

    def forward(self, x):
        return self.pool(self.pool(self.conv(x).softmax(dim=1)))


def get_init_inputs():
    return [3, 16, 3]


def get_inputs():
    return [torch.randn(16, 3, 16, 32, 32)]
