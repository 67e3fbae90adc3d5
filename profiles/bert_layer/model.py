"""One BERT-large encoder layer, operator by operator as in Ivanov et al. 2021 (arXiv 2007.00072), fp16.

Batch 8, sequence 512, 16 heads of 64, embedding 1024, feed-forward 4096, ReLU, dropout 0.1. Every forward
row of the paper's table is a submodule and, but for views, one PyTorch operation (softmax and its dropout are
two); biases are apart from products.

Two choices avoid work that the paper does not count. The sequence is the first axis and the projection's
columns are ordered head by head (q, k and v of head 0, then of head 1, ...), so that q, k and v are strided
views that a batched product reads in place. The 1/sqrt(64) of the scores is folded into the initial query
weights. Two copies remain: of the context forward, and of the joined gradients of q, k and v backward.
"""

import torch
from torch import nn

BATCH, SEQ = 8, 512
WIDTH, HEADS, HEAD_DIM, FFN, DROPOUT = 1024, 16, 64, 4096, 0.1


class MatMul(nn.Module):
    """x [seq, batch, in] times a weight [in, out], without bias."""

    def __init__(self, width_in: int, width_out: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width_in, width_out) * width_in**-0.5)

    def forward(self, x):
        return x @ self.weight


class QKV(MatMul):
    """All three projections in one product, the scale of the scores inside the query columns."""

    def __init__(self):
        super().__init__(WIDTH, 3 * WIDTH)
        with torch.no_grad():
            self.weight.view(WIDTH, HEADS, 3, HEAD_DIM)[:, :, 0] *= HEAD_DIM**-0.5


class Bias(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return x + self.bias


class BatchedMatMul(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b)


class Add(nn.Module):
    def forward(self, a, b):
        return a + b


class BertLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = QKV()
        self.qkv_bias = Bias(3 * WIDTH)
        self.scores = BatchedMatMul()
        self.softmax = nn.Softmax(dim=-1)
        self.attn_dropout = nn.Dropout(DROPOUT)
        self.context = BatchedMatMul()
        self.out = MatMul(WIDTH, WIDTH)
        self.out_bias = Bias(WIDTH)
        self.dropout1 = nn.Dropout(DROPOUT)
        self.residual1 = Add()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.linear1 = MatMul(WIDTH, FFN)
        self.bias1 = Bias(FFN)
        self.relu = nn.ReLU()
        self.dropout2 = nn.Dropout(DROPOUT)
        self.linear2 = MatMul(FFN, WIDTH)
        self.bias2 = Bias(WIDTH)
        self.dropout3 = nn.Dropout(DROPOUT)
        self.residual2 = Add()
        self.norm2 = nn.LayerNorm(WIDTH)

    def forward(self, x):
        """x [seq, batch, WIDTH]; q, k, v [seq, batch * heads, HEAD_DIM]"""
        seq, batch, _ = x.shape
        projected = self.qkv_bias(self.qkv(x))
        q, k, v = projected.view(seq, batch * HEADS, 3, HEAD_DIM).unbind(2)

        scores = self.scores(q.transpose(0, 1), k.permute(1, 2, 0))
        attention = self.attn_dropout(self.softmax(scores))
        context = self.context(attention, v.transpose(0, 1))
        context = context.transpose(0, 1).reshape(seq, batch, WIDTH)  # a copy: the heads side by side again

        x = self.residual1(x, self.dropout1(self.out_bias(self.out(context))))
        x = self.norm1(x)
        hidden = self.dropout2(self.relu(self.bias1(self.linear1(x))))
        x = self.residual2(x, self.dropout3(self.bias2(self.linear2(hidden))))
        return self.norm2(x)


def model():
    return BertLayer().to(torch.float16)


def inputs(batch=BATCH, seq=SEQ):
    """The layer's input needs a gradient, as it has inside the whole model."""
    return (torch.randn(seq, batch, WIDTH, dtype=torch.float16, requires_grad=True),)


def loss(output):
    return output.sum()
