"""Layers whose products are in 8 or 4 bits, as TransformerEngine runs them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from memwall.core import compat


class Linear8(nn.Linear):
    """A layer whose products are in 8 bits, as in TransformerEngine: what is multiplied is cast, and transposed for
    the gradient of weights, once; weights are cast once a step, with the optimizer."""

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = _Product8.apply(x.flatten(0, -2), self.weight)
        return made.unflatten(0, x.shape[:-1]) if self.bias is None else made.unflatten(0, x.shape[:-1]) + self.bias


class _Product8(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x8, cast = x.to(torch.float8_e4m3fn), torch.empty_like(weight, dtype=torch.float8_e4m3fn)
        ctx.save_for_backward(x8.t().contiguous() if ctx.needs_input_grad[1] else None, cast)
        return times8(x8, cast)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        transposed, cast = ctx.saved_tensors
        g8 = gradient.to(torch.float8_e5m2)
        back = times8(g8, torch.empty_like(cast.t(), memory_format=torch.contiguous_format))
        return back, times8(g8.t().contiguous(), transposed) if ctx.needs_input_grad[1] else None


def times8(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """The product of rows with rows, in 16 bits."""
    one = torch.empty((), device=a.device)
    return compat.scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, out=out)


class Linear4(nn.Linear):
    """A layer whose products are in NVFP4, as in TransformerEngine: all three of a training step (NVIDIA, 2025, arXiv
    2509.25149). What is multiplied is read once for the tensor's scale, and once to be cast, for both directions."""

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = _Product4.apply(x.flatten(0, -2), self.weight)
        return made.unflatten(0, x.shape[:-1]) if self.bias is None else made.unflatten(0, x.shape[:-1]) + self.bias


class _Product4(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x4, cast = _cast4(x), weight.new_empty(len(weight), weight.shape[1] // 2, dtype=torch.float4_e2m1fn_x2)
        ctx.save_for_backward(_transposed4(x4) if ctx.needs_input_grad[1] else None, cast)
        return _times4(x4, cast)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        transposed, cast = ctx.saved_tensors
        g4 = _cast4(gradient)
        back = _times4(g4, cast.new_empty(2 * cast.shape[1], len(cast) // 2))
        return back, _times4(_transposed4(g4), transposed) if ctx.needs_input_grad[1] else None


def _cast4(x: Tensor) -> Tensor:
    """Two numbers of 16 bits become a byte; the largest is found first."""
    x.abs().amax()
    return x.view(torch.int32).to(torch.uint8).view(torch.float4_e2m1fn_x2)


def _transposed4(x: Tensor) -> Tensor:
    rows, pairs = x.shape
    return x.view(torch.uint8).t().contiguous().view(2 * pairs, rows // 2).view(torch.float4_e2m1fn_x2)


def _times4(a: Tensor, b: Tensor) -> Tensor:
    """The product of rows with rows, in 16 bits; a scale for 16 numbers of each."""
    of_a, of_b = (each.new_empty(each.numel() // 8, dtype=torch.float8_e4m3fn) for each in (a, b))
    return compat.scaled_mm(a, b.t(), of_a, of_b, out_dtype=torch.bfloat16)


#: format of products → layer
LINEAR: dict[str, type[nn.Linear]] = {"": nn.Linear, "fp8": Linear8, "fp4": Linear4}
