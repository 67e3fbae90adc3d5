"""A 3-D U-Net for volumes of medical images (Cicek et al., 2016): twice convolution, batch norm, ReLU a level."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def _level(before: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(before, width // 2, 3, padding=1), nn.BatchNorm3d(width // 2), nn.ReLU(),
        nn.Conv3d(width // 2, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU(),
    )  # fmt: skip


class UNet3D(nn.Module):
    """Volumes (N, 1, D, H, W) → class scores (N, 3, D, H, W); D, H and W are multiples of 8."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()
        self.down = nn.ModuleList(_level(a, b) for a, b in pairwise((1, *widths)))
        self.pool = nn.MaxPool3d(2)
        upper = tuple(reversed(widths))
        self.up = nn.ModuleList(nn.ConvTranspose3d(width, width, 2, stride=2) for width in upper[:-1])
        self.merge = nn.ModuleList(_merge(a + b, b) for a, b in pairwise(upper))
        self.head = nn.Conv3d(widths[0], 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for number, level in enumerate(self.down):
            x = level(self.pool(x) if number else x)
            kept.append(x)
        kept.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat((kept.pop(), up(x)), 1))
        return self.head(x)


def _merge(before: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(before, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU(),
        nn.Conv3d(width, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU(),
    )  # fmt: skip
