"""Vanilla RNN written as a loop over time: concatenate input and state, one linear map, tanh."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features: int, hidden: int, outputs: int):
        super().__init__()
        self.hidden = hidden
        self.step = nn.Linear(features + hidden, hidden)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x):
        state = x.new_zeros(x.shape[1], self.hidden)
        outputs = []
        for frame in x:
            state = torch.tanh(self.step(torch.cat((frame, state), dim=1)))
            outputs.append(self.head(state))
        return torch.stack(outputs)


def get_init_inputs():
    return [256, 512, 128]


def get_inputs():
    return [torch.randn(32, 16, 256)]
