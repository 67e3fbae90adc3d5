"""Masks: tril, where, masked_fill, padding with causal masks, attention with a boolean and a float mask."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads
        self.decay = nn.Parameter(torch.ones(heads, 1, 1))

    def forward(self, q, k, v, lengths):
        """q, k, v [batch, heads, seq, width]; lengths [batch]"""
        seq = q.shape[2]
        positions = torch.arange(seq, device=q.device)
        causal = torch.ones(seq, seq, dtype=torch.bool, device=q.device).tril()
        padding = positions < lengths[:, None]
        mask = causal & padding[:, None, None, :]

        by_hand = (q @ k.transpose(-2, -1)).masked_fill(~mask, float("-inf")).softmax(dim=-1)
        by_hand = torch.where(mask.any(dim=-1, keepdim=True), by_hand.nan_to_num(), 0.0) @ v

        distance = (positions[:, None] - positions).clamp(min=0)
        bias = (-self.decay * distance).masked_fill(~causal, float("-inf"))
        with_bias = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(q.shape[0], -1, -1, -1))
        with_mask = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return by_hand + with_bias + with_mask


def get_init_inputs():
    return [8]


def get_inputs():
    q, k, v = (torch.randn(4, 8, 256, 64, requires_grad=True) for _ in range(3))
    return [q, k, v, torch.randint(1, 257, (4,))]
