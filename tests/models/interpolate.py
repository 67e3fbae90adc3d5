"""Resampling: nearest, bilinear, bicubic and trilinear interpolation, pixel shuffle and a sampling grid."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(self, image, video, theta):
        """image [batch, c, h, w]; video [batch, c, d, h, w]; theta [batch, 2, 3]"""
        grid = F.affine_grid(theta, list(image.shape), align_corners=False)
        return (
            F.interpolate(image, scale_factor=2.0, mode="nearest"),
            F.interpolate(image, scale_factor=2.0, mode="bilinear", align_corners=False),
            F.interpolate(image, size=(48, 80), mode="bicubic"),
            F.interpolate(video, scale_factor=2.0, mode="trilinear", align_corners=True),
            F.pixel_shuffle(image, 2),
            F.grid_sample(image, grid, align_corners=False),
        )


def get_inputs():
    shapes = (16, 16, 64, 64), (4, 8, 8, 32, 32), (16, 2, 3)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]
