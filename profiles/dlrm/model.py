"""DLRM (Naumov et al. 2019) in the size of MLPerf training (Criteo Terabyte), fp32.

Rows per table are those of torchrec's DLRM for Criteo 1TB, capped at 10 million instead of 40 million
(facebookresearch/dlrm --max-ind-range=10000000), so that the tables, 28 GB, fit on one GPU. Each of the 26
categories looks up one row per sample. As in the reference code, the tables' gradients are sparse: a training
step touches the rows that it looked up and no others.
"""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

MAX_ROWS = 10_000_000
CRITEO_ROWS = (
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10,
    2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36,
)  # fmt: skip
TABLE_ROWS = tuple(min(rows, MAX_ROWS) for rows in CRITEO_ROWS)
DENSE_FEATURES, WIDTH = 13, 128
BOTTOM_MLP = (DENSE_FEATURES, 512, 256, WIDTH)
VECTORS = len(TABLE_ROWS) + 1  # one per table and the bottom MLP's output
TOP_MLP = (WIDTH + VECTORS * (VECTORS - 1) // 2, 1024, 1024, 512, 256, 1)


class Interaction(nn.Module):
    """Dot product of every pair of a sample's vectors [batch, vectors, width] -> [batch, pairs]."""

    def forward(self, vectors):
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        row, column = torch.tril_indices(VECTORS, VECTORS, offset=-1, device=vectors.device)
        return products[:, row, column]


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True) for rows in TABLE_ROWS
        )
        self.bottom = mlp(BOTTOM_MLP, last=nn.ReLU())
        self.interaction = Interaction()
        self.top = mlp(TOP_MLP, last=nn.Identity())

    def forward(self, dense, categories):
        """dense [batch, 13], categories [26, batch] -> click logits [batch]"""
        summary = self.bottom(dense)
        rows = [table(ids[:, None]) for table, ids in zip(self.tables, categories, strict=True)]
        pairs = self.interaction(torch.stack((summary, *rows), dim=1))
        return self.top(torch.cat((summary, pairs), dim=1)).squeeze(1)


def mlp(widths, last: nn.Module) -> nn.Sequential:
    layers = []
    for width_in, width_out in pairwise(widths):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1], last)


def model():
    return DLRM()


def inputs(batch=2048):
    categories = torch.stack([torch.randint(rows, (batch,)) for rows in TABLE_ROWS])
    return torch.randn(batch, DENSE_FEATURES), categories


def loss(logits):
    return F.binary_cross_entropy_with_logits(logits, torch.zeros_like(logits))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
