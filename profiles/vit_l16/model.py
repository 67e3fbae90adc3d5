"""ViT-L/16 at 224x224 (Dosovitskiy et al. 2020, table 1), bf16: 196 patches and a class token."""

import torch
from torch import nn
from torch.nn import functional as F

IMAGE, PATCH, CLASSES = 224, 16, 1000
WIDTH, HEADS, FFN, LAYERS, DROPOUT = 1024, 16, 4096, 24, 0.1


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (heads(part) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


def heads(x):
    """[batch, seq, width] -> [batch, heads, seq, width / heads]"""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Block(nn.Module):
    """Pre-norm encoder block."""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.linear1 = nn.Linear(WIDTH, FFN)
        self.linear2 = nn.Linear(FFN, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        hidden = self.dropout(F.gelu(self.linear1(self.norm2(x))))
        return x + self.dropout(self.linear2(hidden))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position = nn.Parameter(torch.zeros(1, (IMAGE // PATCH) ** 2 + 1, WIDTH))
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.dropout(x + self.position)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def model():
    return ViT().to(torch.bfloat16)


def inputs(batch=32):
    return (torch.randn(batch, 3, IMAGE, IMAGE, dtype=torch.bfloat16),)


def loss(logits):
    labels = torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)
    return F.cross_entropy(logits, labels)


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)
