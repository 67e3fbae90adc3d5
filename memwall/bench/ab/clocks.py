"""How steps are timed on each device: one after another, as a program runs them."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

from memwall.bench.kernels.devices import Call, open_device, versions
from memwall.core.errors import UsageError

#: threads of torch on the CPU: with one, a second core is enough for everything else on the machine
THREADS = 1
#: a block that takes this long begins no new step on a CUDA device
LONGEST_BLOCK_S = 60.0


class Clock(Protocol):
    """Times steps on one device."""

    torch_device: str

    def time(self, step: Call, count: int) -> tuple[float, tuple[str, ...]]:
        """The median of ``count`` steps in seconds, and what the device says against it."""
        ...

    def describe(self) -> dict[str, Any]:
        """The device and the versions."""
        ...


class CpuClock:
    """This machine's CPU, one thread, caches as the step before has left them."""

    torch_device = "cpu"

    def __init__(self) -> None:
        import torch

        # numbers near zero are slow, and weights that are trained on noise for long come near zero
        torch.set_flush_denormal(True)

    def time(self, step: Call, count: int) -> tuple[float, tuple[str, ...]]:
        import torch

        torch.set_num_threads(THREADS)  # the model's file may have asked for others
        gc.collect()
        gc.disable()
        try:
            if count > 1:
                step()  # the other side has had the caches; of a long step they are little
            samples = []
            for _ in range(count):
                began = time.perf_counter()
                step()
                samples.append(time.perf_counter() - began)
        finally:
            gc.enable()
        return statistics.median(samples), ()

    def describe(self) -> dict[str, Any]:
        from memwall.bench.calibrate.machine import cpu_name

        return {"device": cpu_name(), "cores": os.cpu_count(), "threads": THREADS, **versions()}


class CudaClock:
    """The current CUDA device, by the clock of :mod:`memwall.bench.kernels.cuda`: L2 is cleared before each step."""

    torch_device = "cuda"

    def __init__(self) -> None:
        self._device = open_device("cuda")

    def time(self, step: Call, count: int) -> tuple[float, tuple[str, ...]]:
        ready = self._device.ready(step, _nothing, graphed=False)
        samples, sensors = self._device.samples(ready, count, LONGEST_BLOCK_S)
        return statistics.median(samples), sensors.flags

    def describe(self) -> dict[str, Any]:
        return self._device.describe()


CLOCKS: dict[str, Callable[[], Clock]] = {"cpu": CpuClock, "cuda": CudaClock}


def open_clock(kind: str) -> Clock:
    """The clock of a device.

    Raises:
        UsageError: there is no such kind of device.
        MissingError: this machine has none.
    """
    if kind not in CLOCKS:
        raise UsageError(f"no device {kind!r}; there is {', '.join(CLOCKS)}")
    return CLOCKS[kind]()


def _nothing() -> None:
    """There is nothing to put back."""
