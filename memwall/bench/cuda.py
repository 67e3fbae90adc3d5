"""A CUDA device: graphs of kernels replayed between two events, L2 cleared before each sample."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from memwall.bench.device import Call, Ready, merged, open_nvml, versions
from memwall.core import compat
from memwall.record.measurement import Sensors

#: the buffer that clears L2 is at least this large: reading it takes longer than it takes the CPU to queue a sample
LEAST_FLUSH_BYTES = 256 << 20
#: samples queued before waiting for the device, if they fit into the remaining time
QUEUED = 10
#: first samples of a block that do not count: the clocks ramp up, and they show how long one takes
SETTLING = 2
#: a block of steps that takes this long begins no new one
LONGEST_BLOCK_S = 60.0
#: calls before a graph is captured: lazy initialisation and autotuning are over then
WARM_UP = 3


class Cuda:
    """The current CUDA device.

    A sample is a replay of the call's graph between two events. Before it the GPU reads a buffer larger than L2; the
    CPU queues the rest meanwhile, so no wait for the CPU falls between the events. It reads rather than writes, as
    dirty lines would be written back to DRAM in the timed part.
    """

    kind = "cuda"
    torch_device = "cuda"

    def __init__(self) -> None:
        self._torch: Any = torch  # what is asked of it goes through here
        self._properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._l2_bytes = int(getattr(self._properties, "L2_cache_size", 0))
        self._flush = torch.zeros(max(2 * self._l2_bytes, LEAST_FLUSH_BYTES) // 4, device="cuda")
        self._drain = torch.zeros((), device="cuda")
        self._bus_id = _bus_id(self._properties)
        self._sensing = open_nvml(self._bus_id)

    def ready(self, call: Call, restore: Call = lambda: None, *, graphed: bool = True) -> Ready:
        stream = self._torch.cuda.Stream()
        stream.wait_stream(self._torch.cuda.current_stream())
        with self._torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                call()
        self._torch.cuda.current_stream().wait_stream(stream)
        self._torch.cuda.synchronize()
        if not graphed:
            return Ready(call, restore, "no CUDA graph, plain launches")
        restore()
        graph = self._torch.cuda.CUDAGraph()
        room = self._torch.empty(ROOM_BYTES, dtype=torch.uint8, device="cuda")
        try:
            with capturing(room), self._torch.cuda.graph(graph):
                held = call()
        except RuntimeError as error:
            self._torch.cuda.synchronize()  # raises what has broken the device rather than the capture
            said = next(iter(str(error).splitlines()), type(error).__name__)[:200]
            return Ready(call, restore, f"no CUDA graph, plain launches: {said}", refused=True)
        return Ready(graph.replay, restore, held=(call, held))  # the graph reads the memory of the call's tensors

    def samples(self, ready: Ready, count: int, budget_s: float) -> tuple[list[float], Sensors]:
        samples: list[float] = []
        readings: list[Sensors] = []
        began = time.monotonic()
        deadline = began + budget_s
        for _ in range(SETTLING):
            self._queue(ready)
        self._torch.cuda.synchronize()
        each_s = (time.monotonic() - began) / SETTLING
        while len(samples) < count and (not samples or time.monotonic() < deadline):
            fit = (deadline - time.monotonic()) / each_s if each_s else count
            pairs = [self._queue(ready) for _ in range(max(1, int(min(QUEUED, count - len(samples), fit))))]
            readings.append(self._sensing())
            self._torch.cuda.synchronize()
            samples += [start.elapsed_time(end) / 1e3 for start, end in pairs]
        return samples, merged(readings)

    def steps(self, step: Call, count: int) -> tuple[list[float], tuple[str, ...]]:
        samples, sensors = self.samples(self.ready(step, graphed=False), count, LONGEST_BLOCK_S)
        return samples, sensors.flags

    def alone_s(self, call: Call) -> float:
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        self._torch.cuda.synchronize()
        return float(start.elapsed_time(end) / 1e3)

    def _queue(self, ready: Ready) -> tuple[Any, Any]:
        """Queue one sample between two events."""
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        ready.restore()
        self._torch.sum(self._flush, 0, out=self._drain)
        start.record()
        ready.call()
        end.record()
        return start, end

    def describe(self) -> dict[str, Any]:
        properties, driver = self._properties, None
        with contextlib.suppress(Exception):  # no NVML: the record goes without the driver's version
            import pynvml

            pynvml.nvmlInit()
            version = pynvml.nvmlSystemGetDriverVersion()
            driver = version.decode() if isinstance(version, bytes) else str(version)
        return {
            "device": properties.name,
            "bus_id": self._bus_id,
            "sm_count": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "cache_bytes": self._l2_bytes,
            **versions(),
            "cuda": self._torch.version.cuda,
            "driver": driver,
            "note": "L2 cleared before each sample",
        }

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
    """The PCI bus id as NVML writes it; None if torch does not have it."""
    try:
        return f"{properties.pci_domain_id:08X}:{properties.pci_bus_id:02X}:{properties.pci_device_id:02X}.0"
    except AttributeError:
        return None


# -- what a kernel copies to the device while a graph of it is captured ------------------------------------------------
#
# Pageable memory cannot be copied during a capture, so it is copied after it, once, into memory from before it: what is
# allocated within may be memory that an earlier kernel of the graph writes to, at each replay.
# Kernels over lists of tensors pass the device a table of addresses, made again for other addresses: within the graph
# of a whole step they are the graph's own.

#: bytes for all copies of a capture, and those to which each is aligned
ROOM_BYTES, ALIGNED_TO = 16 << 20, 256
#: the active captures: one or none
_captures: list[Uploads] = []


class Uploads(compat.TorchDispatchMode):
    """While active, copies from the host to the device of ``room``, bytes that take them, are deferred until
    :meth:`finish`."""

    def __init__(self, room: Tensor) -> None:
        super().__init__()
        self._room, self._used = room, 0
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        target = given.get("device")
        is_copy = func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu"
        if not is_copy or target is None or torch.device(target).type != self._room.device.type:
            return func(*args, **given)
        source = args[0].contiguous()
        made = self._place(source.shape, given.get("dtype") or source.dtype)
        self._waiting.append((made, source))
        return made

    def _place(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """A tensor in the room. Raises ``RuntimeError``: the room is full."""
        begin, end = self._used, self._used + shape.numel() * dtype.itemsize
        if end > self._room.numel():
            raise RuntimeError(f"more than {self._room.numel():,} bytes are copied to the device")
        self._used = -(-end // ALIGNED_TO) * ALIGNED_TO
        return self._room[begin:end].view(dtype).view(shape)

    def finish(self) -> None:
        """Make the deferred copies."""
        waiting, self._waiting = self._waiting, []
        for made, source in waiting:
            made.copy_(source)


@contextlib.contextmanager
def capturing(room: Tensor) -> Iterator[None]:
    """Around a capture: at its end, also if it failed, the deferred copies are made."""
    uploads = Uploads(room)
    _captures.append(uploads)
    try:
        yield
    finally:
        _captures.remove(uploads)
        uploads.finish()


def put_off(run: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel's function that, called in a capture, defers its copies to the device."""

    def called(*tensors: Tensor, **options: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for uploads in _captures:
                stack.enter_context(uploads)
            return run(*tensors, **options)

    return called
