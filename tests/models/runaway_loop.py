"""A selective-scan recurrence as a Python loop over 20,000 time steps: far too many operations to trace."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.decay = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        """x [batch, time, width]"""
        state = torch.zeros_like(x[:, 0])
        outputs = []
        for t in range(x.shape[1]):
            state = torch.sigmoid(self.decay) * state + x[:, t]
            outputs.append(torch.tanh(state))
        return torch.stack(outputs, dim=1)


def get_init_inputs():
    return [16]


def get_inputs():
    return [torch.randn(4, 20_000, 16)]
