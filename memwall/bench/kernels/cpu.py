"""The CPU as a device: one thread, caches cleared before each sample, repetitions that lost the core taken again."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from memwall.bench.kernels.devices import Call, Ready, versions
from memwall.bench.kernels.sensors import LEAST_SHARE, CpuLoad, Sensing, merged
from memwall.record.measurement import Sensors

#: a contended repetition is taken again; after this many times as many repetitions as samples, what there is counts
MOST_TRIES = 4
#: the last level of cache where /sys does not tell
DEFAULT_CACHE_BYTES = 32 << 20


class Cpu:
    """One thread of this machine. A repetition that had less than ``LEAST_SHARE`` of a core is taken again."""

    kind = "cpu"
    torch_device = "cpu"

    def __init__(self, sensing: Sensing | None = None, clock: Callable[[], tuple[int, int]] | None = None) -> None:
        import torch

        torch.set_num_threads(1)
        self._sensing = sensing or CpuLoad()
        self._clock = clock or (lambda: (time.process_time_ns(), time.perf_counter_ns()))
        self._cache = torch.ones(2 * cache_bytes() // 4)
        self._one = torch.ones(1)

    def ready(self, call: Call, restore: Call, *, graphed: bool = True) -> Ready:
        call()
        return Ready(call, restore)

    def samples(self, ready: Ready, count: int, budget_s: float) -> tuple[list[float], Sensors]:
        good: list[float] = []
        contended: list[tuple[float, float]] = []
        deadline = time.monotonic() + budget_s
        while len(good) < count and len(good) + len(contended) < MOST_TRIES * count:
            if (good or contended) and time.monotonic() > deadline:
                break
            wall_s, share = self._sample(ready)
            if share >= LEAST_SHARE:
                good.append(wall_s)
            else:
                contended.append((share, wall_s))
        sensors = self._sensing.read()
        if good:
            return good, sensors
        contended.sort(reverse=True)
        flag = f"contended: no repetition had {LEAST_SHARE:.0%} of a core"
        return [wall_s for _, wall_s in contended[:count]], merged((sensors, Sensors(flags=(flag,))))

    def _sample(self, ready: Ready) -> tuple[float, float]:
        """Seconds of one call, and the share of a core that it had."""
        ready.restore()
        self._cache.add_(1.0)
        self._one.add(1.0)  # torch's own path to an op is warm again, as it is between the ops of a model
        with _no_collection():
            cpu, wall = self._clock()
            ready.call()
            cpu_end, wall_end = self._clock()
        elapsed = max(wall_end - wall, 1)
        return elapsed / 1e9, (cpu_end - cpu) / elapsed

    def describe(self) -> dict[str, Any]:
        import platform

        return {"device": _cpu_name(), "threads": 1, "cache_bytes": cache_bytes(), **versions(),
                "kernel": platform.release(), "note": "caches cleared before each sample"}  # fmt: skip

    def free_bytes(self) -> int:
        return available_bytes()

    def wait(self) -> None:
        """A call on the CPU is done when it returns."""

    def clear(self) -> None:
        gc.collect()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Size of the largest cache of the first core."""
    sizes = []
    for path in folder.glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):
            text = path.read_text(encoding="ascii").strip()
            sizes.append(int(text.rstrip("KMG")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1], 1))
    return max(sizes, default=DEFAULT_CACHE_BYTES)


def available_bytes() -> int:
    """Memory of the machine that programs can still take, as Linux says."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "CPU"
