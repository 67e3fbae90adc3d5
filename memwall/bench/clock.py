"""How a call is timed on the CPU (:mod:`.cuda` is the other device).

A sample is cold: caches are cleared before it, outside the timed part. The CPU runs one thread, and a repetition that
lost its core is repeated. Steps (:meth:`Device.steps`) are timed warm, one after another, as a program runs them.
"""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memwall.bench.device import DEVICES, LEAST_SHARE, Call, Device, Ready, Sensing, cpu_load, merged, versions
from memwall.bench.machine import available_bytes, cache_bytes, cpu_name, machine_busy_s
from memwall.core.errors import MissingError, UsageError
from memwall.core.files import uncollected
from memwall.core.process import environment
from memwall.record.measurement import Sensors

#: a contended repetition is repeated, up to this many times the number of samples; then the samples so far count
MOST_TRIES = 4
#: the last-level cache size if the system does not report it
DEFAULT_CACHE_BYTES = 32 << 20

#: fresh memory would cost page faults at every call: glibc is set to keep it
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_TOP_PAD_": str(1 << 28)}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def timing_environment(kind: str, threads: int = 1) -> dict[str, str]:
    """The variables of a process in which kernels are timed: this package is found, and memory behaves (on the CPU)."""
    fixed = {**MALLOC, **dict.fromkeys(THREADS, str(threads))} if kind == "cpu" else {}
    # torch.compile starts a pool of compilers in every process; here the processes themselves are the pool
    return {"TORCHINDUCTOR_COMPILE_THREADS": "1", **environment(), **fixed}


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where time comes from, in seconds: the wall, this process's CPU time, and all cores' busy time."""

    wall: Callable[[], float] = time.perf_counter
    own: Callable[[], float] = time.process_time
    machine: Callable[[], float] = machine_busy_s

    def time(self, call: Call, calls: int = 1) -> tuple[float, float]:
        """Seconds of ``calls`` calls together, and the share of a core that they had."""
        own, wall = self.own(), self.wall()
        for _ in range(calls):
            call()
        seconds, own = self.wall() - wall, self.own() - own
        return seconds, own / seconds if seconds > 0 else 1.0


def open_device(kind: str) -> Device:
    """This machine's device of a kind. Raises ``UsageError``: there is no such kind; ``MissingError``: there is no such
    device."""
    if kind == "cpu":
        return CpuClock()
    if kind != "cuda":
        raise UsageError(f"no device {kind!r}; there is {', '.join(DEVICES)}")
    import torch

    if not torch.cuda.is_available():
        raise MissingError("no CUDA device here; --device cpu measures this machine's CPU")
    from memwall.bench.cuda import Cuda

    return Cuda()


class CpuClock:
    """One thread of this machine. A repetition that had less than ``LEAST_SHARE`` of a core is repeated."""

    kind = "cpu"
    torch_device = "cpu"

    def __init__(self, sensing: Sensing = cpu_load, clocks: Clocks | None = None) -> None:
        import torch

        self._torch = torch
        torch.set_num_threads(1)
        self._sensing, self._clocks = sensing, clocks or Clocks()
        self._cache_bytes = max(cache_bytes().values(), default=DEFAULT_CACHE_BYTES)
        self._cache = torch.ones(2 * self._cache_bytes // 4)
        self._one = torch.ones(1)

    def ready(self, call: Call, restore: Call = lambda: None, *, graphed: bool = True) -> Ready:
        call()
        return Ready(call, restore)

    def samples(self, ready: Ready, count: int, budget_s: float) -> tuple[list[float], Sensors]:
        good: list[float] = []
        contended: list[tuple[float, float]] = []
        deadline = time.monotonic() + budget_s
        while len(good) < count and len(good) + len(contended) < MOST_TRIES * count:
            if (good or contended) and time.monotonic() > deadline:
                break
            ready.restore()
            self._cache.add_(1.0)
            self._one.add(1.0)  # torch's own path to an op is warm again, as it is between the ops of a model
            with uncollected():
                wall_s, share = self._clocks.time(ready.call)
            if share >= LEAST_SHARE:
                good.append(wall_s)
            else:
                contended.append((share, wall_s))
        sensors = self._sensing()
        if good:
            return good, sensors
        flagged = Sensors(flags=(f"contended: no repetition had {LEAST_SHARE:.0%} of a core",))
        return [wall_s for _, wall_s in sorted(contended, reverse=True)[:count]], merged((sensors, flagged))

    def steps(self, step: Call, count: int) -> tuple[list[float], tuple[str, ...]]:
        self._torch.set_num_threads(1)  # the model's file may have asked for others
        gc.collect()
        with uncollected():
            if count > 1:
                step()  # others have had the caches; of a long step they are little
            return [self._clocks.time(step)[0] for _ in range(count)], ()

    def alone_s(self, call: Call) -> float:
        with uncollected():
            return self._clocks.time(call)[0]

    def describe(self) -> dict[str, Any]:
        return {
            "device": cpu_name(),
            "threads": 1,
            "cache_bytes": self._cache_bytes,
            **versions(),
            "kernel": platform.release(),
            "note": "caches cleared before each sample",
        }

    def free_bytes(self) -> int:
        return available_bytes()

    def wait(self) -> None:
        """A call on the CPU is done when it returns."""

    def clear(self) -> None:
        gc.collect()
