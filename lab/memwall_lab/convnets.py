"""Convolutional networks of NVIDIA's DeepLearningExamples: ResNets of bottlenecks, grouped or with squeeze and
excitation, and EfficientNets (PyTorch/Classification/ConvNets/image_classification/models); and of torchvision: the
same ResNets, ResNets of two windows a block, VGGs and ShuffleNets (torchvision/models)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

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


class Basic(nn.Module):
    """3 x 3 (with the stride), 3 x 3, and the shortcut."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = _normed(c_in, c_out, 3, stride), _normed(c_out, c_out, 3)
        self.relu = nn.ReLU(inplace=True)
        self.short = _normed(c_in, c_out, 1, stride) if stride > 1 or c_in != c_out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.second(self.relu(self.first(x)))
        return self.relu(made.add_(self.short(x)))


def _stem() -> list[nn.Module]:
    return [*_normed(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]


def _head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]


def basic_resnet(blocks: tuple[int, ...]) -> nn.Module:
    """A ResNet of 1000 classes of blocks of two windows."""
    layers, channels = _stem(), 64
    for stage, count in enumerate(blocks):
        for number in range(count):
            layers.append(Basic(channels, 64 << stage, 2 if stage and not number else 1))
            channels = 64 << stage
    return nn.Sequential(*layers, *_head(channels))


def resnet(blocks: tuple[int, ...], groups: int = 1, group_width: int = 64, squeezes: bool = False) -> nn.Module:
    """A ResNet of 1000 classes; in the first stage a bottleneck has ``groups`` groups of ``group_width`` channels."""
    layers, channels = _stem(), 64
    for stage, count in enumerate(blocks):
        width, c_out = groups * group_width << stage, 256 << stage
        for number in range(count):
            stride = 2 if stage and not number else 1
            layers.append(Bottleneck(channels, width, c_out, stride, groups, squeezes))
            channels = c_out
    return nn.Sequential(*layers, *_head(channels))


def vgg(convolutions: tuple[int, ...], normed: bool = False) -> nn.Module:
    """A VGG of 1000 classes with so many convolutions in each stage (Simonyan, Zisserman 2015, table 1)."""
    layers, channels = list[nn.Module](), 3
    for stage, count in enumerate(convolutions):
        c_out = min(64 << stage, 512)
        for _ in range(count):
            norm = (nn.BatchNorm2d(c_out),) if normed else ()
            layers += [nn.Conv2d(channels, c_out, 3, padding=1), *norm, nn.ReLU(inplace=True)]
            channels = c_out
        layers.append(nn.MaxPool2d(2, 2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    for c_in in (49 * channels, 4096):
        layers += [nn.Linear(c_in, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(4096, 1000))


class Shuffled(nn.Module):
    """ShuffleNet V2's block: half of the channels pass, or with a stride are made narrower by a window each; then the
    channels of both halves take turns (Ma et al. 2018, figure 3)."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        width, self.stride = c_out // 2, stride
        relu = nn.ReLU(inplace=True)
        given = c_in if stride > 1 else width
        short = (*_normed(given, given, 3, stride, groups=given), *_normed(given, width, 1), relu)
        self.short = nn.Sequential(*short) if stride > 1 else nn.Identity()
        self.made = nn.Sequential(
            *_normed(given, width, 1), relu, *_normed(width, width, 3, stride, groups=width), *_normed(width, width, 1),
            relu,
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, used = (x, x) if self.stride > 1 else x.chunk(2, dim=1)
        both = torch.cat((self.short(kept), self.made(used)), dim=1)
        images, channels, height, width = both.shape
        turned = both.view(images, 2, channels // 2, height, width).transpose(1, 2).contiguous()
        return turned.view(images, channels, height, width)


def shufflenet(channels: tuple[int, int, int], last: int = 1024) -> nn.Module:
    """A ShuffleNet V2 of 1000 classes (Ma et al. 2018, table 5)."""
    layers: list[nn.Module] = [*_normed(3, 24, 3, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    before = 24
    for c_out, count in zip(channels, (4, 8, 4), strict=True):
        for number in range(count):
            layers.append(Shuffled(before, c_out, 1 if number else 2))
            before = c_out
    return nn.Sequential(*layers, *_normed(before, last, 1), nn.ReLU(inplace=True), *_head(last))


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
    """An EfficientNet of 1000 classes whose channels and blocks are B0's times a factor; ``widely``: squeezed to
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
    "resnet18": (lambda: basic_resnet((2, 2, 2, 2)), 224),
    "resnet34": (lambda: basic_resnet((3, 4, 6, 3)), 224),
    "resnet152": (lambda: resnet((3, 8, 36, 3)), 224),
    "resnext101_32x8d": (lambda: resnet((3, 4, 23, 3), 32, 8), 224),
    "wide_resnet50_2": (lambda: resnet((3, 4, 6, 3), 1, 128), 224),
    "wide_resnet101_2": (lambda: resnet((3, 4, 23, 3), 1, 128), 224),
    "vgg16": (lambda: vgg((2, 2, 3, 3, 3)), 224),
    "vgg16_bn": (lambda: vgg((2, 2, 3, 3, 3), normed=True), 224),
    "vgg19": (lambda: vgg((2, 2, 4, 4, 4)), 224),
    "vgg19_bn": (lambda: vgg((2, 2, 4, 4, 4), normed=True), 224),
    "shufflenet_v2_x0_5": (lambda: shufflenet((48, 96, 192)), 224),
    "shufflenet_v2_x1_5": (lambda: shufflenet((176, 352, 704)), 224),
    "shufflenet_v2_x2_0": (lambda: shufflenet((244, 488, 976), 2048), 224),
    "efficientnet-b0": (lambda: efficientnet(1.0, 1.0), 224),
    "efficientnet-b4": (lambda: efficientnet(1.4, 1.8), 380),
    "efficientnet-widese-b0": (lambda: efficientnet(1.0, 1.0, widely=True), 224),
    "efficientnet-widese-b4": (lambda: efficientnet(1.4, 1.8, widely=True), 380),
}


class KeptGradients(torch.optim.Optimizer):
    """No optimizer, but the gradients that torch before 2.0 keeps: zeroed, then added to."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {})
        self.parameters = [p for group in self.param_groups for p in group["params"]]
        self.kept = [torch.empty_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # takes no closure
        for parameter, gradient in zip(self.parameters, self.kept, strict=True):
            gradient.zero_()
            gradient.add_(parameter.grad)
