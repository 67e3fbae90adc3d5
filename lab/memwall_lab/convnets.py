"""Convolutional networks of NVIDIA's DeepLearningExamples: ResNets of bottlenecks, grouped or with squeeze and
excitation, and EfficientNets (PyTorch/Classification/ConvNets/image_classification/models)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn


def _normed(c_in: int, c_out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution without bias and its batch norm."""
    made = nn.Conv2d(c_in, c_out, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
    return nn.Sequential(made, nn.BatchNorm2d(c_out))


class Squeeze(nn.Module):
    """Channels weighed by two linear layers of their means."""

    def __init__(self, channels: int, inner: int, activation: nn.Module) -> None:
        super().__init__()
        self.narrow, self.wide, self.activation = nn.Linear(channels, inner), nn.Linear(inner, channels), activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.sigmoid(self.wide(self.activation(self.narrow(x.mean((2, 3))))))
        return x * weights[:, :, None, None]


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 (with the stride), 1 x 1, and the shortcut: v1.5."""

    def __init__(self, c_in: int, width: int, c_out: int, stride: int, groups: int, squeezes: bool) -> None:
        super().__init__()
        self.narrow, self.window = _normed(c_in, width, 1), _normed(width, width, 3, stride, groups)
        self.wide, self.relu = _normed(width, c_out, 1), nn.ReLU(inplace=True)
        self.squeeze = Squeeze(c_out, c_out // 16, nn.ReLU(inplace=True)) if squeezes else nn.Identity()
        self.short = _normed(c_in, c_out, 1, stride) if stride > 1 or c_in != c_out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.wide(self.relu(self.window(self.relu(self.narrow(x)))))
        return self.relu(self.squeeze(made).add_(self.short(x)))


def resnet(blocks: tuple[int, ...], groups: int = 1, group_width: int = 64, squeezes: bool = False) -> nn.Module:
    """A ResNet of 1000 classes; in the first stage a bottleneck has ``groups`` groups of ``group_width`` channels."""
    layers: list[nn.Module] = [*_normed(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, count in enumerate(blocks):
        width, c_out = groups * group_width << stage, 256 << stage
        for number in range(count):
            stride = 2 if stage and not number else 1
            layers.append(Bottleneck(channels, width, c_out, stride, groups, squeezes))
            channels = c_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class Inverted(nn.Module):
    """EfficientNet's block: expand, depthwise window, squeeze and excitation, project, and the shortcut."""

    def __init__(self, c_in: int, c_out: int, kernel: int, stride: int, expand: int, widely: bool) -> None:
        super().__init__()
        width = c_in * expand
        self.expand = nn.Sequential(*_normed(c_in, width, 1), nn.SiLU(inplace=True)) if expand > 1 else nn.Identity()
        self.window = nn.Sequential(*_normed(width, width, kernel, stride, groups=width), nn.SiLU(inplace=True))
        self.squeeze = Squeeze(width, (width if widely else c_in) // 4, nn.SiLU(inplace=True))
        self.project, self.adds = _normed(width, c_out, 1), stride == 1 and c_in == c_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.project(self.squeeze(self.window(self.expand(x))))
        return made + x if self.adds else made


#: kernel, stride, expansion, channels and blocks of each stage of EfficientNet-B0 (Tan, Le 2019, table 1)
_STAGES = ((3, 1, 1, 16, 1), (3, 2, 6, 24, 2), (5, 2, 6, 40, 2), (3, 2, 6, 80, 3), (5, 1, 6, 112, 3), (5, 2, 6, 192, 4),
           (3, 1, 6, 320, 1))  # fmt: skip


def efficientnet(width: float, depth: float, widely: bool = False) -> nn.Module:
    """An EfficientNet of 1000 classes whose channels and blocks are those of B0 times a factor; ``widely``: squeezed to
    a share of the expanded channels."""

    def channels(n: int) -> int:
        rounded = max(8, int(n * width + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * n * width else rounded

    before = channels(32)
    layers: list[nn.Module] = [*_normed(3, before, 3, 2), nn.SiLU(inplace=True)]
    for kernel, stride, expand, c_out, count in _STAGES:
        for number in range(math.ceil(count * depth)):
            layers.append(Inverted(before, channels(c_out), kernel, 1 if number else stride, expand, widely))
            before = channels(c_out)
    last = channels(1280)
    layers += [*_normed(before, last, 1), nn.SiLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(last, 1000))


#: name → how it is made, and the pixels of a side of its picture
NETS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "resnet50v1.5": (lambda: resnet((3, 4, 6, 3)), 224),
    "resnext101-32x4d": (lambda: resnet((3, 4, 23, 3), 32, 4), 224),
    "se-resnext101-32x4d": (lambda: resnet((3, 4, 23, 3), 32, 4, squeezes=True), 224),
    "efficientnet-b0": (lambda: efficientnet(1.0, 1.0), 224),
    "efficientnet-b4": (lambda: efficientnet(1.4, 1.8), 380),
    "efficientnet-widese-b0": (lambda: efficientnet(1.0, 1.0, widely=True), 224),
    "efficientnet-widese-b4": (lambda: efficientnet(1.4, 1.8, widely=True), 380),
}
