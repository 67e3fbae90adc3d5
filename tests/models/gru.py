"""Two-layer GRU with an explicit initial state; returns the outputs and the last state."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features: int, hidden: int, layers: int):
        super().__init__()
        self.gru = nn.GRU(features, hidden, layers)

    def forward(self, x, state):
        return self.gru(x, state)


def get_init_inputs():
    return [128, 256, 2]


def get_inputs():
    return [torch.randn(64, 16, 128), torch.randn(2, 16, 256)]
