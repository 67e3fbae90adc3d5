"""Modules that several tests profile."""

from __future__ import annotations

import torch
from torch import nn


class Mlp(nn.Module):
    """Two layers and a residual: 64 features, 256 between."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))
