"""Mixtral 8x7B (Jiang et al. 2024, table 1; mistralai/Mixtral-8x7B-v0.1 config.json), bf16.

Every token runs through exactly two of eight experts. Tokens are sorted by expert and each expert's rows are
one group of a grouped matrix product, so all shapes are static and nothing waits for the router's choice.
"""

import torch
from torch import nn
from torch.nn import functional as F

VOCAB, WIDTH, LAYERS, FFN = 32000, 4096, 32, 14336
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
EXPERTS, EXPERTS_PER_TOKEN = 8, 2
ROPE_BASE, NORM_EPS = 1_000_000.0, 1e-5


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH, HEADS * HEAD_DIM, bias=False)
        self.key = nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False)
        self.value = nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (heads(project(x)) for project in (self.query, self.key, self.value))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def heads(x):
    """[batch, seq, n * HEAD_DIM] -> [batch, n, seq, HEAD_DIM]"""
    return x.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)


class Experts(nn.Module):
    """Eight SwiGLU networks as stacked weights: row group i of x goes through expert i."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.randn(EXPERTS, FFN, WIDTH) * WIDTH**-0.5)
        self.up = nn.Parameter(torch.randn(EXPERTS, FFN, WIDTH) * WIDTH**-0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, FFN) * FFN**-0.5)

    def forward(self, x, ends):
        hidden = F.silu(grouped_linear(x, self.gate, ends)) * grouped_linear(x, self.up, ends)
        return grouped_linear(hidden, self.down, ends)


def grouped_linear(x, weight, ends):
    """Rows ends[i-1]:ends[i] of x times weight[i] transposed."""
    return torch._grouped_mm(x, weight.transpose(-2, -1), offs=ends)


class MoE(nn.Module):
    """Route each token to its two best experts and add their outputs, weighted by the router."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = Experts()

    def forward(self, x):
        tokens = x.flatten(0, 1)
        scores, chosen = self.router(tokens).float().topk(EXPERTS_PER_TOKEN)
        weights = scores.softmax(dim=-1).to(x.dtype)

        # Copy j of token t is row t * EXPERTS_PER_TOKEN + j; `order` lists the copies expert by expert.
        expert_of_row, order = chosen.flatten().sort()
        experts = torch.arange(EXPERTS, device=x.device)
        ends = torch.searchsorted(expert_of_row, experts, right=True, out_int32=True)
        source = order // EXPERTS_PER_TOKEN

        rows = self.experts(tokens[source], ends) * weights.flatten()[order, None]
        mixed = torch.zeros_like(tokens).index_add(0, source, rows)
        return mixed.view_as(x)


class Block(nn.Module):
    """Pre-norm decoder block."""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.RMSNorm(WIDTH, eps=NORM_EPS)
        self.attention = Attention()
        self.norm2 = nn.RMSNorm(WIDTH, eps=NORM_EPS)
        self.moe = MoE()

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.moe(self.norm2(x))


class Mixtral(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=NORM_EPS)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        cos, sin = rotary_tables(ids.shape[1], x)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def rotary_tables(seq: int, like):
    """cos and sin of position times frequency, each [seq, HEAD_DIM], computed in fp32."""
    exponents = torch.arange(0, HEAD_DIM, 2, device=like.device) / HEAD_DIM
    positions = torch.arange(seq, device=like.device)
    angles = positions[:, None] * ROPE_BASE**-exponents
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def model():
    return Mixtral().to(torch.bfloat16)


def inputs(batch=1, seq=4096):
    return (torch.randint(VOCAB, (batch, seq)),)


def loss(logits):
    labels = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
