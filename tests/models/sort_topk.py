"""Order statistics: sort, argsort, top-k, k-th value, median and argmax over rows of scores."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, k: int):
        super().__init__()
        self.k = k

    def forward(self, scores, values):
        ordered, _ = scores.sort(dim=1, descending=True)
        ranked = values.gather(1, scores.argsort(dim=1))
        best, where = scores.topk(self.k, dim=1)
        threshold, _ = scores.kthvalue(self.k, dim=1)
        return ordered, ranked, best, where, threshold, scores.median(dim=1).values, scores.argmax(dim=1)


def get_init_inputs():
    return [64]


def get_inputs():
    return [torch.randn(64, 8192, requires_grad=True), torch.randn(64, 8192, requires_grad=True)]
