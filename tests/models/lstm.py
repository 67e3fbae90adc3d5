"""Two-layer bidirectional LSTM over [batch, time, features], with a classifier on the last step."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features: int, hidden: int, layers: int, classes: int):
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, x):
        states, _ = self.lstm(x)
        return self.head(states[:, -1])


def get_init_inputs():
    return [128, 256, 2, 10]


def get_inputs():
    return [torch.randn(16, 64, 128)]
