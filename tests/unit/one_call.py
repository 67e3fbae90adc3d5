"""A module that calls a function, and tensors without data to call it with."""

import torch
from torch import nn


class Call(nn.Module):
    """``forward`` is the function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def meta(*shape, dtype=torch.float32):
    """A tensor of that shape without data."""
    return torch.empty(shape, dtype=dtype, device="meta")
