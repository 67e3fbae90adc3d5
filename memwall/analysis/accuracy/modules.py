"""A whole module that others timed: the profile of it, how it ran, and the model's time of the run.

Its figures are sums over the module's kernels; the second roofline, R1, adds its 3 us for each kernel.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from memwall.analysis.accuracy.samples import r1_s
from memwall.analysis.validation import Row
from memwall.hardware.lookup import Gpu
from memwall.perfmodel.roofline import peak_compute_s
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule


@dataclass(frozen=True, slots=True)
class ModuleSample:
    """One measured run of a module. ``label`` is the data set's name for the GPU; ``policy`` and ``launch`` are those
    of :meth:`memwall.record.profile.Profile.schedule`."""

    dataset: str
    label: str
    gpu: Gpu
    op_class: str
    module: str
    profile: Profile
    policy: str
    launch: str
    measured_s: float

    @property
    def in_fit_half(self) -> bool:
        """Whether the constants may see the module: the parity of the CRC-32 of its name, the same on every GPU."""
        return zlib.crc32(self.module.encode()) % 2 == 0

    def schedule(self) -> Schedule:
        return self.profile.on([self.gpu]).schedule(self.gpu, self.policy, launch=self.launch)


def module_rows(samples: Iterable[ModuleSample]) -> list[Row]:
    """One row for each sample."""
    return [_row(sample) for sample in samples]


def _row(sample: ModuleSample) -> Row:
    gpu, profile, schedule = sample.gpu, sample.profile, sample.schedule()
    assert schedule.plan is not None
    costs = [group.cost for group in schedule.plan.groups]
    terms = [(peak_compute_s(cost, gpu), cost.bytes / gpu.dram_bytes_per_s) for cost in costs]
    totals = schedule.totals
    return Row(
        sample.dataset, sample.label, sample.op_class, profile.workload.dtype, totals.time_s, sample.measured_s,
        profile.step_bound_s(schedule) if totals.dram_bytes > 2 * gpu.l2_bytes else None, shape=sample.module,
        low_s=totals.low_s, high_s=totals.high_s, r0_s=sum(max(pair) for pair in terms),
        r1_s=sum(r1_s(*pair) for pair in terms),
    )  # fmt: skip
