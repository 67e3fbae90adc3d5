"""A CUDA device: graphs of kernels replayed between two events, L2 cleared before each sample."""

from __future__ import annotations

import contextlib
import gc
import time
from typing import Any

from memwall.bench.kernels.devices import Call, Ready, versions
from memwall.bench.kernels.sensors import merged, open_nvml
from memwall.bench.kernels.uploads import capturing
from memwall.record.measurement import Sensors

#: the buffer that clears L2 is at least this large: reading it takes longer than it takes the CPU to queue a sample
LEAST_FLUSH_BYTES = 256 << 20
#: samples that are queued before the device is waited for, where so many fit into the time that is left
QUEUED = 10
#: samples at the head of a block that do not count: the clocks rise, and they tell how long one takes
SETTLING = 2
#: calls before a graph is captured: lazy initialisation and autotuning are over then
WARM_UP = 3


class Cuda:
    """The current CUDA device.

    A sample is a replay of the call's graph between two events. Before it the GPU reads a buffer larger than L2; while
    it is busy with that the CPU queues the rest, so no wait for the CPU falls between the events. It reads rather than
    writes, as lines that were written would have to leave L2 for DRAM in the timed part.
    """

    kind = "cuda"
    torch_device = "cuda"

    def __init__(self) -> None:
        import torch

        torch.backends.cudnn.allow_tf32 = False  # as products are counted: float32 is float32
        torch.backends.cuda.matmul.allow_tf32 = False
        self._torch = torch
        self._properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._l2_bytes = int(getattr(self._properties, "L2_cache_size", 0))
        self._flush = torch.zeros(max(2 * self._l2_bytes, LEAST_FLUSH_BYTES) // 4, device="cuda")
        self._drain = torch.zeros((), device="cuda")
        self._bus_id = _bus_id(self._properties)
        self._sensing = open_nvml(self._bus_id)

    def ready(self, call: Call, restore: Call, *, graphed: bool = True) -> Ready:
        torch = self._torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        if not graphed:
            return Ready(call, restore, "no CUDA graph, plain launches")
        restore()
        graph = torch.cuda.CUDAGraph()
        try:
            with capturing(), torch.cuda.graph(graph):
                held = call()
        except RuntimeError as error:
            torch.cuda.synchronize()  # raises what has broken the device rather than the capture
            return Ready(call, restore, f"no CUDA graph, plain launches: {_first_line(error)}", refused=True)
        return Ready(graph.replay, restore, held=held)

    def samples(self, ready: Ready, count: int, budget_s: float) -> tuple[list[float], Sensors]:
        torch = self._torch
        samples: list[float] = []
        readings: list[Sensors] = []
        began = time.monotonic()
        deadline = began + budget_s
        for _ in range(SETTLING):
            self._queue(ready)
        torch.cuda.synchronize()
        each_s = (time.monotonic() - began) / SETTLING
        while len(samples) < count and (not samples or time.monotonic() < deadline):
            fit = int((deadline - time.monotonic()) / each_s) if each_s else count
            pairs = [self._queue(ready) for _ in range(max(1, min(QUEUED, count - len(samples), fit)))]
            readings.append(self._sensing.read())
            torch.cuda.synchronize()
            samples += [start.elapsed_time(end) / 1e3 for start, end in pairs]
        return samples, merged(readings)

    def _queue(self, ready: Ready) -> tuple[Any, Any]:
        """One sample put into the stream, between two events."""
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        ready.restore()
        self._torch.sum(self._flush, 0, out=self._drain)
        start.record()
        ready.call()
        end.record()
        return start, end

    def describe(self) -> dict[str, Any]:
        properties = self._properties
        return {
            "device": properties.name, "bus_id": self._bus_id, "sm_count": properties.multi_processor_count,
            "memory_bytes": properties.total_memory, "cache_bytes": self._l2_bytes, **versions(),
            "cuda": self._torch.version.cuda, "driver": _driver(), "tf32": False,
            "note": "L2 cleared before each sample",
        }  # fmt: skip

    def free_bytes(self) -> int:
        free, _ = self._torch.cuda.mem_get_info()
        cached = self._torch.cuda.memory_reserved() - self._torch.cuda.memory_allocated()
        return int(free + cached)

    def wait(self) -> None:
        self._torch.cuda.synchronize()

    def clear(self) -> None:
        gc.collect()
        self._torch.cuda.empty_cache()


def _bus_id(properties: Any) -> str | None:
    """The PCI bus id as NVML writes it; None from a torch that does not say."""
    try:
        return f"{properties.pci_domain_id:08X}:{properties.pci_bus_id:02X}:{properties.pci_device_id:02X}.0"
    except AttributeError:
        return None


def _driver() -> str | None:
    with contextlib.suppress(Exception):  # no NVML: the record goes without the driver's version
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    return None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]
