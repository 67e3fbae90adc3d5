"""Normalisations: batch, group, instance, layer and RMS, then division by the L1, L2 and Frobenius norms."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, channels: int, size: int):
        super().__init__()
        self.batch = nn.BatchNorm2d(channels)
        self.group = nn.GroupNorm(8, channels)
        self.instance = nn.InstanceNorm2d(channels, affine=True)
        self.layer = nn.LayerNorm([channels, size, size])
        self.rms = nn.RMSNorm(size)

    def forward(self, x):
        x = self.rms(self.layer(self.instance(self.group(self.batch(x)))))
        x = x / x.abs().mean(dim=1, keepdim=True)
        x = F.normalize(x, p=2.0, dim=1)
        return x / torch.linalg.norm(x)


def get_init_inputs():
    return [64, 32]


def get_inputs():
    return [torch.randn(16, 64, 32, 32)]
