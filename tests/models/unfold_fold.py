"""Convolution by hand: unfold to columns, one product, fold back; and sliding windows by Tensor.unfold."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, kernel_size: int):
        super().__init__()
        self.kernel_size = kernel_size
        self.weight = nn.Parameter(torch.randn(channels_out, channels_in * kernel_size**2))

    def forward(self, x):
        """x [batch, channels, size, size]"""
        size = x.shape[-1] - self.kernel_size + 1
        columns = F.unfold(x, self.kernel_size)
        convolved = (self.weight @ columns).unflatten(2, (size, size))
        overlapped = F.fold(columns, x.shape[-2:], self.kernel_size)
        windows = x.unfold(3, 8, 4).mean(dim=-1)
        return convolved, overlapped, windows


def get_init_inputs():
    return [16, 32, 3]


def get_inputs():
    return [torch.randn(16, 16, 64, 64, requires_grad=True)]
