"""Spectral filter: real FFT, product with learned complex weights, inverse FFT (complex tensors)."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels: int, length: int):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(channels, length // 2 + 1, dtype=torch.complex64))

    def forward(self, x):
        spectrum = torch.fft.rfft(x) * self.filter
        return torch.fft.irfft(spectrum, n=x.shape[-1]), spectrum.abs()


def get_init_inputs():
    return [64, 1024]


def get_inputs():
    return [torch.randn(16, 64, 1024)]
