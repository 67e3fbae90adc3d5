"""The launch queue: the CPU issues ops one after another, and the GPU runs them in order.

The CPU takes ``dispatch_s`` for an op of the forward pass and less in the other phases; further launches of an op
follow at the GPU's own pace. The GPU waits when nothing has been issued, and the wait is charged to the late kernel, so
a run of tiny ops is overhead-bound as a whole.

The host's time for an op is a property of a machine that no GPU's file can know: unless ``dispatch_s`` is stated
otherwise it is an assumption, and the interval of a schedule covers :data:`HOST_RANGE_S`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from memwall.hardware.lookup import Gpu

#: The CPU's time to issue an op of a phase, relative to the forward pass: launch after launch of a ResNet-50 step on a
#: V100 (torch-tb-profiler's sample trace: 63, 57 and 37 us, the profiler's own time in all three)
_DISPATCH: Mapping[str, float] = {"forward": 1.0, "backward": 0.9, "optimizer": 0.6}


#: CPU seconds for an op that GPUs' files assume, and the range that an 80 % interval allows for it. Modules of 15 ops
#: and more that the host decides (KernelBench, eager, over twice the modeled time of their kernels) take 9 to 19 us an
#: op on an L40S's own machine, and at the median 26, 32 and 38 us on cloud machines with an A10G, an A100 and a T4. The
#: low end is an assumption about faster hosts
ASSUMED_HOST_S, HOST_RANGE_S = 5e-6, (3e-6, 30e-6)


def host_is_assumed(gpu: Gpu) -> bool:
    """Whether the CPU's time for an op is memwall's assumption; a CPU that runs the ops itself has none."""
    return gpu.cpu is None and gpu.dispatch_s == ASSUMED_HOST_S


def issue_s(gpu: Gpu, phase: str, launches: int) -> float:
    """CPU seconds to issue an op of a phase; the launches after its first go out as fast as the GPU takes them."""
    if not launches:
        return 0.0
    return gpu.dispatch_s * _DISPATCH[phase] + (launches - 1) * min(gpu.launch_overhead_s, gpu.dispatch_s)


def queue(kernels: Iterable[tuple[float, float]], launch: str = "eager") -> tuple[list[float], float]:
    """Run kernels, (seconds of the CPU to issue it, seconds of the GPU once it was issued) of each, through the queue;
    in a CUDA ``graph`` all are issued beforehand, so that nothing waits. The seconds that the GPU waits for the CPU
    before each, and those from the first issue to the end of the last.
    """
    waits, issued_s, gpu_s = [], 0.0, 0.0
    for issue, busy_s in kernels:
        issued_s += issue
        wait_s = issued_s - gpu_s if launch == "eager" and issued_s > gpu_s else 0.0
        waits.append(wait_s)
        gpu_s += busy_s + wait_s
    return waits, gpu_s


def waits_within(kernels: Iterable[tuple[float, float, float]]) -> list[float]:
    """The waits that the times of finished kernels hold, as records do: (seconds to issue it, its whole time, the
    overhead in that time) of each. No wait is longer than the overhead that was saved."""
    waits, issued_s, gpu_s = [], 0.0, 0.0
    for issue, time_s, overhead_s in kernels:
        issued_s += issue
        waits.append(min(max(0.0, issued_s - gpu_s), overhead_s))
        gpu_s += time_s
    return waits
