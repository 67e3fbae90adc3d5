"""Max, average and adaptive pools in one, two and three dimensions."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(self, sequence, image, video):
        return (
            F.max_pool1d(sequence, 4, stride=2, padding=1),
            F.avg_pool1d(sequence, 4),
            F.max_pool2d(image, 3, stride=2, padding=1, dilation=1),
            F.avg_pool2d(image, 3, stride=2, padding=1),
            F.adaptive_avg_pool2d(image, 7),
            F.adaptive_max_pool2d(image, 1),
            F.max_pool3d(video, 2),
            F.avg_pool3d(video, 2),
            F.adaptive_avg_pool3d(video, (1, 4, 4)),
        )


def get_inputs():
    shapes = (16, 64, 1024), (16, 64, 56, 56), (4, 32, 16, 32, 32)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]
