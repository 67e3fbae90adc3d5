"""Llama 3 (Grattafiori et al. 2024, table 3), bf16: the 8B; llama3_70b and llama3_405b load this file."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

ROPE_BASE, NORM_EPS = 500_000.0, 1e-5


@dataclass(frozen=True)
class Config:
    width: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    ffn: int = 14336
    vocab: int = 128256

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


class RMSNorm(nn.Module):
    """As the published model writes it, op by op: fp32 inside, then cast back and scaled. nn.RMSNorm is one kernel."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + NORM_EPS)
        return y.to(x.dtype) * self.weight


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: Config):
        super().__init__()
        self.head_dim = config.head_dim
        kv_width = config.kv_heads * config.head_dim
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, kv_width, bias=False)
        self.value = nn.Linear(config.width, kv_width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (self.heads(project(x)) for project in (self.query, self.key, self.value))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def heads(self, x):
        """[batch, seq, n * head_dim] -> [batch, n, seq, head_dim]"""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class SwiGLU(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.gate = nn.Linear(config.width, config.ffn, bias=False)
        self.up = nn.Linear(config.width, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Pre-norm decoder block."""

    def __init__(self, config: Config):
        super().__init__()
        self.norm1 = RMSNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = RMSNorm(config.width)
        self.mlp = SwiGLU(config)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.head_dim = config.head_dim
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        cos, sin = rotary_tables(ids.shape[1], self.head_dim, x)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def rotary_tables(seq: int, head_dim: int, like):
    """cos and sin of position times frequency, each [seq, head_dim], computed in fp32."""
    exponents = torch.arange(0, head_dim, 2, device=like.device) / head_dim
    positions = torch.arange(seq, device=like.device)
    angles = positions[:, None] * ROPE_BASE**-exponents
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def model():
    return Llama(Config()).to(torch.bfloat16)


def inputs(batch=1, seq=4096):
    return (torch.randint(Config().vocab, (batch, seq)),)


def loss(logits):
    labels = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
