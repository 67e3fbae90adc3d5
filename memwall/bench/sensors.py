"""A device's state while samples are taken: NVML for a GPU, the load average for a CPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from memwall.record.measurement import Sensors

#: the share of a CPU used by others from which on a sample is in doubt
LEAST_SHARE = 0.95

#: bits of nvmlClocksEventReasons (nvml.h) that slow a kernel down, and what they say
THROTTLES = {
    0x04: "throttled: power cap",
    0x08: "throttled: hardware slowdown",
    0x20: "throttled: temperature (software)",
    0x40: "throttled: temperature (hardware)",
    0x80: "throttled: power brake",
}


class Sensing(Protocol):
    """Reads the device once, while it is at work."""

    def read(self) -> Sensors:
        """The sensors now."""
        ...


class Nvml:
    """The NVIDIA GPU with a certain PCI bus id, through ``pynvml``.

    ``ours`` gives the processes of this measurement.
    """

    def __init__(self, nvml: Any, handle: Any, ours: Callable[[], frozenset[int]]) -> None:
        self._nvml = nvml
        self._handle = handle
        self._ours = ours

    def read(self) -> Sensors:
        """Clocks, power, temperature, throttle reasons and other processes; None where the GPU does not say."""
        nvml, handle = self._nvml, self._handle
        clock = self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        memory = self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
        power = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        degrees = self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        reasons = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
        return Sensors(
            clock_hz=None if clock is None else clock * 1e6,
            memory_clock_hz=None if memory is None else memory * 1e6,
            power_w=None if power is None else power / 1e3,
            temperature_c=None if degrees is None else float(degrees),
            flags=(*(text for bit, text in THROTTLES.items() if int(reasons) & bit), *self._others()),
        )

    def _others(self) -> tuple[str, ...]:
        """A flag where other processes compute on the GPU. In a container NVML may number processes as the host
        does: then only their count is meaningful."""
        running = self._ask(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)) or []
        pids = {process.pid for process in running}
        ours = self._ours() if pids else frozenset()
        others = len(pids - ours) if pids & ours else max(len(pids) - len(ours), 0)
        return (f"shared: {others} other process{'es' * (others > 1)} on the device",) if others else ()

    def _ask(self, question: Any) -> Any:
        try:
            return question()
        except self._nvml.NVMLError:
            return None


class NullSensors:
    """A GPU that cannot be queried; every sample says so."""

    def __init__(self, why: str) -> None:
        self._sensors = Sensors(flags=(why,))

    def read(self) -> Sensors:
        """Nothing but the reason."""
        return self._sensors


def family(processes: Path = Path("/proc")) -> frozenset[int]:
    """This process, its parent and the parent's other children: the workers of one measurement."""
    parent = os.getppid()
    children = []
    for path in processes.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            # number, name in parentheses, state, parent
            if int(path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]) == parent:
                children.append(int(path.parent.name))
    return frozenset((os.getpid(), parent, *children))


def open_nvml(bus_id: str | None) -> Sensing:
    """The sensors of the GPU at a PCI bus id (None: the first one)."""
    try:
        import pynvml
    except ImportError:
        return NullSensors("unknown clocks: pynvml is not installed")
    try:
        pynvml.nvmlInit()
        handle = (
            pynvml.nvmlDeviceGetHandleByIndex(0)
            if bus_id is None
            else pynvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode())
        )
    except pynvml.NVMLError as error:
        return NullSensors(f"unknown clocks: {error}")
    return Nvml(pynvml, handle, family)


class CpuLoad:
    """How busy other processes keep this machine."""

    def read(self) -> Sensors:
        """A flag if more processes want to run than there are cores."""
        try:
            wanting = os.getloadavg()[0]
        except OSError:
            return Sensors()
        cores = os.cpu_count() or 1
        return Sensors(flags=(f"shared: more processes want to run than the {cores} cores",) * (wanting > cores))


def merged(readings: Iterable[Sensors]) -> Sensors:
    """Several readings as one: the mean of each number, every flag once."""
    known = list(readings)
    means = {}
    for name in ("clock_hz", "memory_clock_hz", "power_w", "temperature_c"):
        numbers = [v for v in (getattr(s, name) for s in known) if v is not None]
        means[name] = sum(numbers) / len(numbers) if numbers else None
    flags = dict.fromkeys(flag for sensors in known for flag in sensors.flags)
    return Sensors(**means, flags=tuple(flags))


def in_doubt(flags: Iterable[str]) -> tuple[str, ...]:
    """The flags of a device that was slowed down or shared, rather than unknown."""
    return tuple(flag for flag in flags if flag.startswith(("throttled", "shared", "contended")))
