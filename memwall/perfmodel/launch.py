"""The time of a launch, given its kernel's: plus the launch latency, or the host's time around an eager call."""

from __future__ import annotations

from memwall.hardware.constants import LaunchConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.launches import Convolution, Gemm, Launch, Rows, Stream
from memwall.perfmodel.base import constants

#: host time from the launch to the second event, relative to a binary operator's: nn.Module's call returns through more
#: frames (V100 relu and gelu against add and mul, NeuSight). No op takes longer
_MODULE_BACK = 1.2


def call_s(gpu: Gpu, kernel_s: float, launch: Launch | None = None) -> float:
    """Seconds between events around one eager call on an idle GPU whose kernel takes ``kernel_s``."""
    known = constants(LaunchConstants, gpu, "call")
    if not known.back_share:
        return known.floor_s + kernel_s
    way = way_of(known, launch)
    back = known.back_share * min(way, _MODULE_BACK)
    return known.floor_s * max(way, way - back + kernel_s / known.floor_s)


def way_of(known: LaunchConstants, launch: Launch | None) -> float:
    """Host time of one eager call of the op, relative to a binary operator's."""
    if isinstance(launch, Gemm):
        return known.batched if launch.batch > 1 else known.linear
    if isinstance(launch, Convolution):
        return known.convolution
    if isinstance(launch, Rows):
        return known.softmax if launch.kind.startswith("softmax") else known.layer_norm
    if isinstance(launch, Stream) and launch.kind in ("relu", "gelu"):
        return known.gelu if launch.kind == "gelu" else known.relu
    return known.operator
