"""The launch queue: the CPU issues kernels one after another, and the GPU runs them in order.

What the CPU does for each is counted in :mod:`memwall.simulate.issue` and timed by a
:class:`memwall.hardware.host.Host`. The GPU waits when nothing has been issued, and the wait is charged to the late
kernel, so a run of tiny ops is overhead-bound as a whole. In a loop the CPU issues a step while the GPU still runs the
one before it: a step then takes the longer of the two. A lone call starts on an idle GPU. Where the host reads a result
of a kernel, it waits until the GPU is done with that, and the GPU then waits for what the host issues next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class QueuedKernel(NamedTuple):
    """A kernel in the queue: seconds of the CPU up to its first launch and for later ones, seconds of the GPU once all
    are issued, the launches, which are taken to be alike, seconds of the CPU after the last of them, and whether the
    CPU waits until the GPU is done with it."""

    issue_s: float
    busy_s: float
    later_s: float = 0.0
    launches: int = 1
    after_s: float = 0.0
    awaited: bool = False

    def scaled(self, factor: float) -> QueuedKernel:
        """The same on a host that takes ``factor`` times as long for everything."""
        issue_s, busy_s, later_s, launches, after_s, awaited = self
        return QueuedKernel(factor * issue_s, busy_s, factor * later_s, launches, factor * after_s, awaited)


def queue(steps: Iterable[QueuedKernel], ahead_s: float = 0.0) -> tuple[list[float], float]:
    """Run kernels through the queue while the GPU is busy for ``ahead_s`` more. The seconds that the GPU waits for the
    CPU before or within each, and seconds from the first issue until both are done; where the CPU is last, the last
    kernel stands in for it."""
    waits, gpu_s, cpu_s = _ran(steps, ahead_s)
    if waits and (back_s := cpu_s - gpu_s) > 0:
        waits[-1] += back_s
        gpu_s = cpu_s
    return waits, gpu_s


def _ran(steps: Iterable[QueuedKernel], ahead_s: float) -> tuple[list[float], float, float]:
    """The waits of kernels, and when the GPU and the CPU are done with them."""
    waits, cpu_s, issued_s, gpu_s = list[float](), 0.0, 0.0, ahead_s
    for issue_s, busy_s, later_s, launches, after_s, awaited in steps:
        if issue_s:  # else it was issued with the one before it
            issued_s = cpu_s + issue_s
            cpu_s = issued_s + later_s + after_s
        wait_s = max(issued_s - gpu_s, 0.0)
        if later_s:
            wait_s = max(wait_s, issued_s + later_s - gpu_s - busy_s * (launches - 1) / launches)
        waits.append(wait_s)
        gpu_s += busy_s + wait_s
        if awaited:
            cpu_s = max(cpu_s, gpu_s)
    return waits, gpu_s, cpu_s


def step_in_loop(steps: Sequence[QueuedKernel]) -> tuple[list[float], float]:
    """The waits of a step's kernels where the same step is issued again and again, and the seconds of a step: of
    the CPU, or of the GPU where it never catches up with the CPU. A step in which the CPU waits begins each time with
    the GPU as far behind as it left it."""
    if any(step.awaited for step in steps):
        _, gpu_s, cpu_s = _ran(steps, 0.0)
        behind_s = max(gpu_s - cpu_s, 0.0)
        waits, end_s = queue(steps, behind_s)
        return waits, end_s - behind_s
    issued_s = sum(step.issue_s + step.later_s + step.after_s for step in steps)
    busy_s = sum(step.busy_s for step in steps)
    if busy_s >= issued_s:
        return [0.0] * len(steps), busy_s
    _, end_s = queue(steps)
    waits, _ = queue(steps, end_s - issued_s)
    return waits, busy_s + sum(waits)


def waits_within(kernels: Iterable[tuple[float, float, float]]) -> list[float]:
    """The waits that the times of finished kernels hold, in records that do not state them: (seconds to issue it, its
    whole time, the overhead in that time) of each. No wait is longer than the overhead that was saved."""
    waits, issued_s, gpu_s = [], 0.0, 0.0
    for issue, time_s, overhead_s in kernels:
        issued_s += issue
        waits.append(min(max(0.0, issued_s - gpu_s), overhead_s))
        gpu_s += time_s
    return waits
