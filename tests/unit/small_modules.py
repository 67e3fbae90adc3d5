"""Modules that several tests profile."""

import torch
from torch import nn


class Mlp(nn.Module):
    """Two layers and a residual: 64 features, 256 between."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Experts(nn.Module):
    """Two products of each expert with its rows, ``narrow`` wide between."""

    def __init__(self, count: int, width: int, narrow: int) -> None:
        super().__init__()
        self.num_experts = count
        self.up = nn.Parameter(torch.randn(count, width, narrow, dtype=torch.bfloat16))
        self.down = nn.Parameter(torch.randn(count, narrow, width, dtype=torch.bfloat16))

    def forward(self, x, ends):
        return torch._grouped_mm(torch.relu(torch._grouped_mm(x, self.up, offs=ends)), self.down, offs=ends)


class Routed(nn.Module):
    """Tokens sorted by expert, as in profiles/mixtral_8x7b; each chooses ``top_k`` of so many."""

    def __init__(self, experts: Experts, width: int, count: int, top_k: int) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(width, count, dtype=torch.bfloat16), experts
        self.own, self.top_k = experts.num_experts, top_k

    def choose(self, tokens):
        return self.router(tokens).topk(self.top_k)

    def forward(self, x):
        tokens = x.flatten(0, -2)
        weights, chosen = self.choose(tokens)
        order = chosen.flatten().sort()[1]
        ends = torch.arange(1, self.own + 1, dtype=torch.int32) * (len(order) // self.own)
        rows = self.experts(tokens[order // self.top_k], ends) * weights.flatten()[order, None]
        return x + torch.zeros_like(tokens).index_add(0, order // self.top_k, rows).view_as(x)
