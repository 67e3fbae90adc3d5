"""nn.TransformerEncoder with a padding mask, then nn.MultiheadAttention over its output, weights returned."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int, heads: int, ffn: int, layers: int):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, ffn, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x, padding):
        """x [batch, seq, width]; padding [batch, seq], true where a token is padding"""
        x = self.encoder(x, src_key_padding_mask=padding)
        return self.attention(x, x, x, need_weights=True)


def get_init_inputs():
    return [512, 8, 2048, 4]


def get_inputs():
    return [torch.randn(8, 128, 512), torch.randint(2, (8, 128)).bool()]
