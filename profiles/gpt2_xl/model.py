"""GPT-2 XL (Radford et al. 2019, table 2; openai-community/gpt2-xl config.json), bf16, tied head."""

import torch
from torch import nn
from torch.nn import functional as F

VOCAB, POSITIONS = 50257, 1024
WIDTH, HEADS, LAYERS, DROPOUT = 1600, 25, 48, 0.1


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (heads(part) for part in self.qkv(x).chunk(3, dim=-1))
        p = DROPOUT if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def heads(x):
    """[batch, seq, width] -> [batch, heads, seq, width / heads]"""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """Pre-norm decoder block."""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = MLP()
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCAB, WIDTH)
        nn.init.normal_(self.word.weight, std=0.02)
        self.position = nn.Embedding(POSITIONS, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.word.weight

    def forward(self, ids):
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self.word(ids) + self.position(positions))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def model():
    return GPT2().to(torch.bfloat16)


def inputs(batch=1, seq=1024):
    return (torch.randint(VOCAB, (batch, seq)),)


def loss(logits):
    labels = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4)
