"""The layers of Liger-Kernel's benchmarks as in Hugging Face and PyTorch, and the rest of a timed call.

Adapted from benchmark/scripts of linkedin/Liger-Kernel (BSD-2-Clause). The second half are layers that compute what
Liger's kernels do if that differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

# -- what a timed call does around the layer ---------------------------------------------------------------------------


class Seed(torch.autograd.Function):
    """Represents ``output.backward(gradient)``: a scalar that is an element of the output, so that this is needed.

    Its gradient is what was given, or drawn where nothing was.
    """

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
        ctx.output, ctx.gradient = output, gradient
        return output[(0,) * output.dim()]

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.randn_like(ctx.output) if ctx.gradient is None else ctx.gradient, None


class Accumulate(torch.autograd.Function):
    """A leaf whose ``.grad`` exists before the call: the gradient is added to it."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        ctx.grad = grad
        return leaf.view_as(leaf)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None]:
        ctx.grad.add_(gradient)
        return None, None


class Step(nn.Module):
    """A layer called on ``leaves``, which want gradients, and on other tensors behind them.

    The last ``seeds`` tensors of a call are the gradients of the outputs; none where they are ``drawn`` or the output
    is a loss. Gradients are added to the weights' gradients, and to the leaves' where these ``accumulate``.
    """

    def __init__(
        self, layer: nn.Module, leaves: tuple[torch.Tensor, ...], seeds: int, drawn: bool, accumulate: bool
    ) -> None:
        super().__init__()
        self.layer, self.seeds, self.drawn = layer, seeds, drawn
        self.leaves = nn.ParameterList(leaves)
        kept = [*layer.parameters(), *(leaves if accumulate else ())]
        for index, leaf in enumerate(kept):
            self.register_buffer(f"grad{index}", torch.empty_like(leaf))
        self.kept = len(kept)

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        count = len(tensors) - self.seeds
        named = dict(self.layer.named_parameters())
        names = tuple(named)
        sources = [*named.values(), *self.leaves]
        for index in range(self.kept):
            sources[index] = Accumulate.apply(sources[index], getattr(self, f"grad{index}"))
        inputs = (*sources[len(names) :], *tensors[:count])
        outputs = torch.func.functional_call(self.layer, dict(zip(names, sources, strict=False)), inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if not self.drawn and not self.seeds:
            return outputs[0]
        seeds = tensors[count:] or (None,) * len(outputs)
        first, *rest = (Seed.apply(output, seed) for output, seed in zip(outputs, seeds, strict=True))
        return sum(rest, start=first)


# -- the layers --------------------------------------------------------------------------------------------------------


class RmsNorm(nn.Module):
    """As in Hugging Face's Llama: in float32, back to the input's dtype, times the weight."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class AddRmsNorm(RmsNorm):
    """The residual added first; returns the sum too."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x.to(torch.float32) + residual.to(torch.float32)
        wide = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype), total.to(x.dtype)


class Rope(nn.Module):
    """As in Hugging Face's Llama: queries and keys [1, heads, tokens, size] turned by cos and sin [1, tokens, size]."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return tuple(x * cos + self.rotate(x) * sin for x in (q, k))

    @staticmethod
    def rotate(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class GatedMlp(nn.Module):
    """As in Hugging Face's Llama: down(act(gate(x)) * up(x)), no biases."""

    def __init__(self, size: int, inner: int, act: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.gate = nn.Linear(size, inner, bias=False, dtype=dtype)
        self.up = nn.Linear(size, inner, bias=False, dtype=dtype)
        self.down = nn.Linear(inner, size, bias=False, dtype=dtype)
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


class LossWithGradient(torch.autograd.Function):
    """Cross entropy that overwrites its logits with their gradient in forward, as Liger's kernel does."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        shifted = logits - logits.amax(-1, keepdim=True)
        exponential = shifted.exp()
        total = exponential.sum(-1, keepdim=True)
        hit = torch.arange(logits.shape[1], device=logits.device) == target[:, None]
        loss = (total.log() - torch.where(hit, shifted, 0.0).sum(-1, keepdim=True)).sum() / len(target)
        ctx.gradient = logits.detach().copy_((exponential / total - hit.to(logits.dtype)) / len(target))
        return loss

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.gradient, None


class FusedCrossEntropy(nn.Module):
    """``.grad`` of the logits is their own memory, so the accumulation adds it to itself."""

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return LossWithGradient.apply(Accumulate.apply(logits, logits.detach()), target)


class AtomicEmbedding(torch.autograd.Function):
    """Rows fetched; their gradients added to zeros by atomic adds, as Liger's kernel does, instead of sorted first."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        ctx.weight, ctx.ids = weight, ids
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        flat = gradient.reshape(-1, gradient.shape[-1])
        return torch.zeros_like(ctx.weight).index_add_(0, ctx.ids.reshape(-1), flat), None


class FusedEmbedding(nn.Module):
    def __init__(self, rows: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, size))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return AtomicEmbedding.apply(self.weight, ids)
