"""Samples → rows: the model's predictions, and the two rooflines that it has to beat.

R0 is the datasheet roofline. R1 reaches 75 % of the peak and 85 % of the bandwidth, and adds 3 us.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from memwall.analysis.accuracy.samples import Sample
from memwall.analysis.accuracy.scores import Row
from memwall.hardware.constants import CONSTANTS, LaunchConstants
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.perfmodel.families import CALIBRATED, as_run, calibrated, interval
from memwall.perfmodel.launch import call_s
from memwall.perfmodel.roofline import Prediction, launch_floor_s, peak_compute_s, predict_cost

_R1_PEAK, _R1_DRAM, _R1_S = 0.75, 0.85, 3e-6


def model_rows(samples: Iterable[Sample]) -> list[Row]:
    """One row for each sample; equal shapes are modeled once."""
    known: dict[tuple[str, str, str, str, str, int], Prediction] = {}
    rows = []
    for sample in samples:
        key = (sample.dataset, sample.gpu.name, sample.dtype, sample.shape, sample.launch, sample.resident_bytes)
        prediction = known.get(key)
        if prediction is None:
            known[key] = prediction = predicted(sample)
        rows.append(_row(sample, prediction))
    return rows


def predicted(sample: Sample) -> Prediction:
    """The model's prediction, with the host overhead of the launch if that was timed too."""
    cost, gpu, launch = sample.cost, sample.gpu, sample.launch
    found = predict_cost(cost, gpu, sample.resident_bytes, launch)
    if launch != "call":
        return found
    kernels_s = found.time_s - cost.kernels * launch_floor_s(gpu, launch)
    time_s = _eager_call_s(gpu, cost, kernels_s)
    host_s, ends = time_s - kernels_s, interval(LaunchConstants, gpu, "call")
    low_s, high_s = (
        host_s * of_host + kernels_s * end_s / found.time_s
        for of_host, end_s in zip(ends, (found.low_s, found.high_s), strict=True)
    )
    return replace(
        found, overhead_s=time_s - max(found.compute_s, found.memory_s), low_s=max(low_s, found.bound_s), high_s=high_s
    )


def _eager_call_s(gpu: Gpu, cost: Cost, kernels_s: float) -> float:
    """Seconds of an eager call whose kernels take ``kernels_s``; those after the first wait only for their launch."""
    more_s = (cost.kernels - 1) * launch_floor_s(gpu)
    return call_s(gpu, kernels_s + more_s, cost.launches[0])


def _row(sample: Sample, predicted: Prediction) -> Row:
    gpu, cost = sample.gpu, sample.cost
    compute_s, memory_s = peak_compute_s(cost, gpu), cost.bytes / gpu.dram_bytes_per_s
    return Row(
        sample.dataset, sample.label, sample.op_class, sample.dtype, predicted.time_s, sample.measured_s,
        predicted.bound_s if cost.bytes > 2 * gpu.l2_bytes else None,
        shape=sample.shape, low_s=predicted.low_s, high_s=predicted.high_s, limited_by=limited_by(sample, predicted),
        datasheet_limit="compute" if compute_s > memory_s else "bandwidth", r0_s=max(compute_s, memory_s),
        r1_s=max(compute_s / _R1_PEAK, memory_s / _R1_DRAM) + _R1_S, calibrated=known_by(cost, gpu),
        resolution_s=sample.resolution_s,
    )  # fmt: skip


def limited_by(sample: Sample, predicted: Prediction) -> str:
    """The largest term. An eager call is overhead if an empty one takes more than half as long: a long kernel hides the
    return to the host."""
    if sample.launch != "call":
        return predicted.limited_by
    empty_s = _eager_call_s(sample.gpu, sample.cost, 0.0)
    return "overhead" if 2 * empty_s > predicted.time_s else replace(predicted, overhead_s=0.0).limited_by


def known_by(cost: Cost, gpu: Gpu) -> str:
    """How a cost's launches are calibrated: the worst of ``memwall.perfmodel.families.CALIBRATED``."""
    works = (as_run(work, gpu) for work in cost.launches)
    known = {calibrated(CONSTANTS[work.FAMILY], gpu, work.variant) for work in works}
    return max(known, key=CALIBRATED.index)
