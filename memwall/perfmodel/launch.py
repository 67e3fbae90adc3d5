"""The time of a launch once its kernel's is known: the launch floor, or the host's way around an eager call."""

from __future__ import annotations

from memwall.hardware.constants import LaunchConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.launches import Convolution, Gemm, Launch, Rows, Stream
from memwall.perfmodel.base import constants

#: way back to the second event, in that of a binary operator: nn.Module's call returns through more frames (V100 relu
#: and gelu against add and mul, NeuSight). No op's way back is longer
_MODULE_BACK = 1.2


def call_s(gpu: Gpu, kernel_s: float, work: Launch | None = None) -> float:
    """Seconds between events around one eager call on an idle GPU whose kernel takes ``kernel_s``."""
    known = constants(LaunchConstants, gpu, "call")
    if not known.back_share:
        return known.floor_s + kernel_s
    way = way_of(known, work)
    back = known.back_share * min(way, _MODULE_BACK)
    return known.floor_s * max(way, way - back + kernel_s / known.floor_s)


def way_of(known: LaunchConstants, work: Launch | None) -> float:
    """The host's way through one eager call of the op, in lengths of that of a binary operator."""
    if isinstance(work, Gemm):
        return known.batched if work.batch > 1 else known.linear
    if isinstance(work, Convolution):
        return known.convolution
    if isinstance(work, Rows):
        return known.softmax if work.kind.startswith("softmax") else known.layer_norm
    if isinstance(work, Stream) and work.kind in ("relu", "gelu"):
        return known.gelu if work.kind == "gelu" else known.relu
    return known.operator
