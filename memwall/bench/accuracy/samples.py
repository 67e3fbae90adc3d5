"""One measured row as the model sees it, its prediction, and the parts of a data set to fit to and to score.

The parts are by a hash of the shape, and by leaving a GPU out. A prediction has two rooflines to beat: R0 is that of
the datasheet; R1 reaches 75 % of the peak and 85 % of the bandwidth, and adds 3 us.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

from memwall.analysis.explanation import calibration_of
from memwall.analysis.validation import TimedRow
from memwall.bench.accuracy.halves import in_fit_half
from memwall.bench.accuracy.kinds import Timed
from memwall.hardware.constants import LaunchConstants
from memwall.hardware.gpu import UNKNOWN_TRAINED
from memwall.hardware.lookup import Gpu, stated, with_nearest_constants
from memwall.ops import Cost
from memwall.ops.launches import Launch, Rows, Stream
from memwall.ops.product_launches import Convolution, Gemm
from memwall.perfmodel.families import constants, interval
from memwall.perfmodel.roofline import Prediction, launch_floor_s, launches_of, peak_compute_s, predict_cost
from memwall.simulate.launch_queue import QueuedKernel, queue

_R1_PEAK, _R1_DRAM, _R1_S = 0.75, 0.85, 3e-6


@dataclass(frozen=True, slots=True)
class Sample(Timed):
    """A measured launch, or the launches of one op. ``launch`` names the way of timing
    (:class:`memwall.hardware.constants.LaunchConstants`): ``graph``, ``kernel`` or ``call``. ``resident_bytes`` of what
    it reads were in L2 before it began. ``shape`` identifies its shape, for the split into rows to fit and rows to
    score."""

    dataset: str
    #: the data set's name for the GPU, and the GPU
    label: str
    gpu: Gpu
    op_class: str
    dtype: str
    shape: str
    cost: Cost
    launch: str
    resident_bytes: int
    measured_s: float
    #: seconds to which the data are rounded
    resolution_s: float = 0.0
    #: the key of the half that it belongs to; empty: its shape, so that rows of one shape, on any GPU, are in one half
    split: str = ""
    #: its bytes and FLOPs bound nothing: those expected of a random draw that the table does not state, or of a
    #: difference of two times
    drawn: bool = False
    #: of several kernels: the family whose constants it may show, because the others have rows of their own
    shows: str = ""

    @property
    def in_fit_half(self) -> bool:
        """Whether the constants may see its shape: the parity of a SHA-256, the same on every GPU."""
        return in_fit_half(self.split or self.shape)

    def left_out(self) -> Self:
        """The sample on its GPU as if no data of it existed."""
        return replace(self, gpu=held_out_gpu(self.gpu))

    def kernels(self) -> Self:
        return self

    @classmethod
    def model(cls, samples: Sequence[Sample], skipped: Counter[str]) -> list[TimedRow]:
        """One row for each sample; equal shapes are modeled once."""
        return model_rows(samples)


def halves(samples: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """The samples to fit, and the samples to score; equal shapes, or modules, are in one half."""
    parts: tuple[list[Any], list[Any]] = ([], [])
    for sample in samples:
        parts[not sample.in_fit_half].append(sample)
    return parts


@lru_cache(maxsize=64)
def held_out_gpu(gpu: Gpu) -> Gpu:
    """The GPU as if no kernel had been measured on it: with the constants of the most similar other GPU. The host
    overhead of an eager call is kept: it is not a property of the GPU."""
    host = {key: n for key, n in gpu.utilization.items() if key.startswith("launch.call.")}
    others = [other for other in stated() if other.name != gpu.name]
    unknown = replace(gpu, utilization=host, fitted_on={}, trained_products=UNKNOWN_TRAINED)
    return with_nearest_constants(unknown, others)


def model_rows(samples: Iterable[Sample]) -> list[TimedRow]:
    """One row for each sample; equal calls are modeled once."""
    known: dict[tuple[str, Cost, str, int], Prediction] = {}
    rows = []
    for sample in samples:
        key = (sample.gpu.name, sample.cost, sample.launch, sample.resident_bytes)
        if key not in known:
            known[key] = predicted(sample)
        rows.append(_row(sample, known[key]))
    return rows


def predicted(sample: Sample) -> Prediction:
    """The model's prediction, with the host overhead of the launch if that was timed too."""
    cost, gpu, launch = sample.cost, sample.gpu, sample.launch
    found = predict_cost(cost, gpu, sample.resident_bytes, launch)
    if launch != "call":
        return found
    kernels_s = found.time_s - cost.kernels * launch_floor_s(gpu, launch)
    time_s = _eager_call_s(gpu, cost, kernels_s)
    # what the host and what the kernel is off by have nothing to do with each other
    host_s = time_s - kernels_s
    down_s, up_s = (
        math.hypot(host_s * (of_host - 1), kernels_s * (end_s / found.time_s - 1))
        for of_host, end_s in zip(
            interval(LaunchConstants, gpu, "call").at(host_s), (found.low_s, found.high_s), strict=True
        )
    )
    overhead_s = found.overhead_s + time_s - found.time_s
    low_s = max(time_s - down_s, found.bound_s)
    return replace(found, overhead_s=overhead_s, low_s=low_s, high_s=time_s + up_s)


def _eager_call_s(gpu: Gpu, cost: Cost, kernels_s: float) -> float:
    """Seconds of an eager call whose kernels take ``kernels_s``; kernels after the first wait only for their launch."""
    more_s = (cost.kernels - 1) * launch_floor_s(gpu)
    return call_s(gpu, kernels_s + more_s, cost.launches[0])


#: host time from the launch to the second event, relative to a binary operator's: nn.Module's call returns through more
#: frames (V100 relu and gelu against add and mul, NeuSight). No op takes longer
_MODULE_BACK = 1.2


def call_s(gpu: Gpu, kernel_s: float, launch: Launch | None = None, known: LaunchConstants | None = None) -> float:
    """Seconds between events around one eager call on an idle GPU whose kernel takes ``kernel_s``; with the GPU's own
    constants, or with the ones that are tried."""
    known = known or constants(LaunchConstants, gpu, "call")
    way = way_of(known, launch) if known.op_after else 1.0
    after = known.op_after * min(way, _MODULE_BACK)
    return queue([QueuedKernel(known.floor_s * (way - after), kernel_s, after_s=known.floor_s * after)])[1]


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


def r1_s(compute_s: float, memory_s: float) -> float:
    """The roofline R1 of a kernel, from its seconds at the datasheet's peak and bandwidth."""
    return max(compute_s / _R1_PEAK, memory_s / _R1_DRAM) + _R1_S


def _row(sample: Sample, predicted: Prediction) -> TimedRow:
    gpu, cost = sample.gpu, sample.cost
    compute_s, memory_s = peak_compute_s(cost, gpu), cost.bytes / gpu.dram_bytes_per_s
    return TimedRow(
        sample.dataset,
        sample.label,
        sample.op_class,
        sample.dtype,
        predicted.time_s,
        sample.measured_s,
        predicted.bound_s if cost.bytes > 2 * gpu.l2_bytes and not sample.drawn else None,
        shape=sample.shape,
        low_s=predicted.low_s,
        high_s=predicted.high_s,
        limited_by=_limited_by(sample, predicted),
        datasheet_limit="compute" if compute_s > memory_s else "bandwidth",
        r0_s=max(compute_s, memory_s),
        r1_s=r1_s(compute_s, memory_s),
        calibrated=calibration_of(cost, gpu)[0],
        resolution_s=sample.resolution_s,
    )


def _limited_by(sample: Sample, predicted: Prediction) -> str:
    """The model's own regime: overhead if the shortest such launch or call (nothing to compute, nothing to move) takes
    more than half as long, else the larger of arithmetic and traffic. Empty where latency is larger than both: measured
    times do not tell it from them."""
    gpu, cost = sample.gpu, sample.cost
    if sample.launch == "call":
        least_s = _eager_call_s(gpu, cost, 0.0)  # a long kernel hides the return to the host
    else:
        least_s = predicted.overhead_s + sum(terms.ends_s for _, terms in launches_of(cost, gpu))
    wall = "overhead" if 2 * least_s > predicted.time_s else replace(predicted, overhead_s=0.0).limited_by
    return "" if wall == "latency" else wall
