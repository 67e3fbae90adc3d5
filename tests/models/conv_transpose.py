"""Transposed 2D convolutions: one with stride and output padding, one grouped and dilated."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels_in: int, channels_out: int):
        super().__init__()
        self.strided = nn.ConvTranspose2d(channels_in, channels_out, 3, stride=2, padding=1, output_padding=1)
        self.grouped = nn.ConvTranspose2d(channels_out, 16, (3, 5), groups=4, dilation=(2, 1), bias=False)

    def forward(self, x):
        return self.grouped(torch.relu(self.strided(x)))


def get_init_inputs():
    return [64, 32]


def get_inputs():
    return [torch.randn(16, 64, 32, 32)]
