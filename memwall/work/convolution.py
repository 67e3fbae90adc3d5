"""Convolutions as a launch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from memwall.graph import Pipe
from memwall.work.base import Constants, Work, constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution(Work):
    """One pass of a convolution; which of its three tensors is made of the other two is its ``role``.

    The geometry is that of the forward pass, whatever the role: channels of one group, and the places of the input and
    of the output along each axis. A transposed convolution's forward pass is another's gradient of its input.
    """

    FAMILY: ClassVar[str] = "convolution"
    pipe: Pipe
    #: forward, input or weight: the output, or the gradient of an operand
    role: str
    images: int
    groups: int
    channels_in: int
    channels_out: int
    places_in: tuple[int, ...]
    places_out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int
    channels_last: bool = False

    @property
    def variant(self) -> str:
        return "float32" if self.pipe.dtype in ("float32", "float64") else "float16"

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        positions = self.images * math.prod(self.places_out) * math.prod(self.kernel)
        return {self.pipe: 2 * positions * self.groups * self.channels_in * self.channels_out}

    @property
    def depthwise(self) -> bool:
        """Each channel is convolved alone, by PyTorch's own kernels: no library's product."""
        return self.pipe.engine == "vector" and self.groups > 1 and self.channels_in == 1


@dataclass(frozen=True, slots=True)
class ConvolutionConstants(Constants):
    """How a library's kernels use a GPU: ``float32`` without TF32 (and float64), ``float16`` for all narrower types.

    A step of k is one multiply-add of every element of a tile.
    """

    FAMILY: ClassVar[str] = "convolution"
    VARIANTS: ClassVar[tuple[str, ...]] = ("float16", "float32")
    FOREIGN: ClassVar[tuple[float, float]] = (0.68, 1.85)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.61, 1.85)
    plateau: float = constant(0.6, 0.1, 1.0, "fraction of the peak of an implicit GEMM in 128 x 128 tiles")
    backward_input: float = constant(0.85, 0.1, 1.5, "the same for the input's gradient, over the plateau")
    backward_weight: float = constant(0.85, 0.1, 1.5, "the same for the weight's gradient, over the plateau")
    reuse: float = constant(0.45, 0.0, 1.0, "exponent of a tile's m n / (m + n) in its rate")
    ramp: float = constant(40.0, 0.0, 400.0, "steps of k that the start and the end of a tile cost")
    lone_tile: float = constant(1.2e4, 500.0, 6e4, "elements of a tile that fills a multiprocessor by itself")
    part_steps: float = constant(6000.0, 64.0, 1e5, "steps of k in the shortest part of a split product")
    channel_slice: float = constant(32.0, 1.0, 64.0, "tensor cores take channels in multiples of this")
    relayout: float = constant(0.2, 0.0, 1.0, "share of NCHW tensors that tensor cores need copied to NHWC")
    winograd: float = constant(0.6, 0.1, 1.0, "fraction of the peak that Winograd's products reach")
    winograd_traffic: float = constant(1.8, 0.1, 3.0, "rate of its transforms over that of the DRAM")
    winograd_stages_s: float = constant(4e-5, 0.0, 5e-5, "seconds of its three further kernels")
    depthwise: float = constant(0.125, 0.01, 1.0, "fraction of the peak of depthwise kernels")
