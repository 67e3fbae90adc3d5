"""BERT as PyTorch ran it from 2019 to 2022: attention written out, and linear layers of three axes as a matmul and an
addition of the bias.

``F.linear`` calls ``addmm`` for matrices alone; of a batch of sequences it called ``matmul``, then added the bias in
place (torch/nn/functional.py of 1.7, aten/src/ATen/native/Linear.cpp of 1.8 to 1.10). Attention is that of
transformers 2.5 and of NVIDIA's DeepLearningExamples: two batched matmuls, with a division, the mask, a softmax and
dropout between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from memwall_lab.convnets import KeptGradients


@dataclass(frozen=True)
class Sizes:
    """The sizes of a BERT: layers, channels, heads, channels within the feed-forward part."""

    layers: int
    width: int
    heads: int
    vocabulary: int = 30522
    positions: int = 512

    @property
    def inner(self) -> int:
        return 4 * self.width


BASE, LARGE = Sizes(12, 768, 12), Sizes(24, 1024, 16)


class Linear(nn.Linear):
    """``nn.Linear`` on sequences before torch 1.11."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.matmul(self.weight.t()).add_(self.bias)


class Attention(nn.Module):
    """Attention with its output's projection, [batch, sequence, width] → the same."""

    def __init__(self, sizes: Sizes, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = sizes.heads, nn.Dropout(dropout)
        self.query, self.key, self.value, self.out = (Linear(sizes.width, sizes.width) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.shape[-1]) + mask
        weights = self.dropout(F.softmax(scores, dim=-1))
        return self.out(torch.matmul(weights, value).transpose(1, 2).contiguous().flatten(2))


class Layer(nn.Module):
    """A layer with its norms after the residuals."""

    def __init__(self, sizes: Sizes, dropout: float) -> None:
        super().__init__()
        self.attention, self.dropout = Attention(sizes, dropout), nn.Dropout(dropout)
        self.wide, self.narrow = Linear(sizes.width, sizes.inner), Linear(sizes.inner, sizes.width)
        self.norms = nn.ModuleList(nn.LayerNorm(sizes.width, eps=1e-12) for _ in range(2))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norms[0](self.dropout(self.attention(x, mask)) + x)
        return self.norms[1](self.dropout(self.narrow(F.gelu(self.wide(x)))) + x)


class Encoder(nn.Module):
    """The layers alone: hidden states and the mask that is added to scores → hidden states."""

    def __init__(self, sizes: Sizes, dropout: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(sizes, dropout) for _ in range(sizes.layers))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x


class Answers(nn.Module):
    """BERT for SQuAD: token numbers → logits of the first and the last token of the answer, each [batch, sequence]."""

    def __init__(self, sizes: Sizes, dropout: float = 0.1) -> None:
        super().__init__()
        width = sizes.width
        self.words = nn.Embedding(sizes.vocabulary, width, padding_idx=0)
        self.places, self.segments = nn.Embedding(sizes.positions, width), nn.Embedding(2, width)
        self.norm, self.dropout = nn.LayerNorm(width, eps=1e-12), nn.Dropout(dropout)
        self.encoder, self.ends = Encoder(sizes, dropout), Linear(width, 2)

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor, kept: torch.Tensor) -> list[torch.Tensor]:
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x = self.words(tokens) + self.places(places) + self.segments(segments)
        mask = (1.0 - kept[:, None, None, :].to(x.dtype)) * -10000.0
        return [end.squeeze(-1) for end in self.ends(self.encoder(self.dropout(self.norm(x)), mask)).split(1, dim=-1)]


def answers_loss(ends: list[torch.Tensor]) -> torch.Tensor:
    """The mean of both ends' cross entropies, whose targets are the first tokens."""
    targets = torch.zeros(ends[0].shape[0], dtype=torch.long, device=ends[0].device)
    return sum((F.cross_entropy(end, targets) for end in ends), start=torch.zeros((), device=ends[0].device)) / 2


class MasterAdam(torch.optim.Optimizer):
    """apex's FusedAdam under amp's O2: gradients of float16 are unscaled into float32, their norm is taken and they are
    clipped, Adam updates the float32 master weights, which are copied to the model's."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        super().__init__(parameters, {})
        self.model = list(parameters)
        self.masters = [torch.empty_like(p, dtype=torch.float32) for p in self.model]
        self.adam = torch.optim.AdamW(self.masters, fused=True)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # takes no closure
        aten: Any = torch.ops.aten
        gradients = [torch.empty_like(master) for master in self.masters]
        aten._foreach_copy_(gradients, [p.grad for p in self.model if p.grad is not None])
        torch.stack(aten._foreach_norm(gradients)).norm()
        aten._foreach_mul_(gradients, 0.5)
        for master, gradient in zip(self.masters, gradients, strict=True):
            master.grad = gradient
        self.adam.step()
        aten._foreach_copy_(self.model, self.masters)


class BertAdam(torch.optim.Optimizer):
    """The optimizer of NVIDIA's BERT in float32 (DeepLearningExamples, PyTorch/LanguageModeling/BERT/optimization.py):
    element-wise ops one after another for each parameter, next to gradients that are zeroed and added to."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {})
        self.gradients = KeptGradients(p for group in self.param_groups for p in group["params"])
        self.moments = [[torch.empty_like(p) for p in self.gradients.kept] for _ in range(2)]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # takes no closure
        aten: Any = torch.ops.aten
        self.gradients.step()
        torch.stack(aten._foreach_norm(self.gradients.kept)).norm()
        parts = zip(self.gradients.parameters, self.gradients.kept, *self.moments, strict=True)
        for parameter, gradient, mean, square in parts:
            clipped = parameter * 1.0 / 2.0
            mean.mul_(0.9).add_(gradient, alpha=0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            update = mean / (square.sqrt() + 1e-6)
            update += 0.01 * clipped
            parameter.add_(-(1e-5 * update))
