"""Plan × GPU → Schedule.

In: a graph and the plan of its kernels (:mod:`memwall.fusion`), and a GPU. Out: a :class:`Schedule`, every kernel's
seconds in launch order with its wall, the sums over them, and the device memory that the step needs.

:mod:`~memwall.simulate.schedule` is where to start reading; it prices each kernel with :mod:`memwall.perfmodel`.
:mod:`~memwall.simulate.launch_queue` says when each one starts, :mod:`~memwall.simulate.memory` what is alive and what
is still in L2.
"""

from memwall.simulate.launch_queue import issue_s, queue, waits_within
from memwall.simulate.memory import MemoryPeak, memory_levels, memory_peak, reuse_distances
from memwall.simulate.schedule import MODEL_CLASSES, PlanContext, Schedule, Totals, simulate

__all__ = [
    "MODEL_CLASSES", "MemoryPeak", "PlanContext", "Schedule", "Totals", "issue_s", "memory_levels", "memory_peak",
    "queue", "reuse_distances", "simulate", "waits_within",
]  # fmt: skip
