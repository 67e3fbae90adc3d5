"""Products: einsum, batched and broadcast matmul, matrix-vector, outer, diagonal, triangular, bilinear."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, 768))
        self.bilinear = nn.Bilinear(64, 64, 32)

    def forward(self, blocks, matrix, other, vector):
        """blocks [batch, i, j, width]; matrix and other [n, n]; vector [n]"""
        return (
            torch.einsum("bijl,lk->bijk", blocks, self.weight),
            torch.einsum("bijl,bkjl->bik", blocks, blocks),
            blocks @ blocks.transpose(-2, -1),
            torch.tril(torch.tril(matrix) @ torch.tril(other)),
            matrix.T @ other.T,
            matrix @ vector,
            torch.outer(vector, vector),
            torch.diag(vector) @ matrix,
            torch.addmm(matrix, matrix, other, beta=0.5, alpha=2.0),
            self.bilinear(matrix[:, :64], other[:, :64]),
        )


def get_init_inputs():
    return [256]


def get_inputs():
    shapes = (8, 16, 32, 256), (512, 512), (512, 512), (512,)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]
