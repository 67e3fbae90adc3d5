"""What a launch costs beside the work: a property of the GPU, of its host, and of how the time was taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memwall.work.base import Constants, constant


@dataclass(frozen=True, slots=True)
class LaunchConstants(Constants):
    """Seconds around a kernel.

    ``kernel``: a profiler's time of the kernel alone. ``call``: events around one eager call on an idle GPU. There the
    host's way to the launch, and its way back to the second event, pass whatever the kernel takes: the time is the
    longer of the host's whole way and of its way to the launch plus the kernel. The other constants are that way's
    length by op, in lengths of a binary operator. (Kernels back to back, as in a CUDA graph: ``launch_overhead_s``.)
    """

    FAMILY: ClassVar[str] = "launch"
    VARIANTS: ClassVar[tuple[str, ...]] = ("kernel", "call")
    floor_s: float = constant(2.5e-6, 0.0, 1e-3, "seconds of the shortest kernel, or of a call of a binary operator")
    back_share: float = constant(0.0, 0.0, 1.0, "share of the floor from the launch to the second event")
    operator: float = constant(1.0, 0.0, 10.0, "way of a binary operator; others where a host was slower for a while")
    relu: float = constant(1.2, 0.0, 10.0, "way of a module whose function is a lone op")
    gelu: float = constant(1.15, 0.0, 10.0, "way of nn.GELU")
    softmax: float = constant(1.25, 0.0, 10.0, "way of nn.Softmax")
    layer_norm: float = constant(1.76, 0.0, 10.0, "way of nn.LayerNorm: checks, three results")
    batched: float = constant(1.2, 0.0, 10.0, "way of torch.bmm")
    linear: float = constant(1.97, 0.0, 10.0, "way of a product of 3 axes with 2: views around the call of cuBLAS")
    convolution: float = constant(2.6, 0.0, 10.0, "way of nn.Conv2d: cuDNN's plan is looked up")
