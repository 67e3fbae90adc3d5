"""A custom operator known only by its fake implementation: memwall has no cost formula for it."""

import torch
from torch import nn


@torch.library.custom_op("memwall_tests::scaled_relu", mutates_args=())
def scaled_relu(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x.clamp(min=0) * scale


@scaled_relu.register_fake
def _(x, scale):
    return torch.empty_like(x)


def setup_context(ctx, inputs, output):
    x, ctx.scale = inputs
    ctx.save_for_backward(x)


def backward(ctx, gradient):
    (x,) = ctx.saved_tensors
    return gradient * (x > 0) * ctx.scale, None


scaled_relu.register_autograd(backward, setup_context=setup_context)


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return scaled_relu(self.linear(x), 2.0)


def get_init_inputs():
    return [1024]


def get_inputs():
    return [torch.randn(128, 1024)]
