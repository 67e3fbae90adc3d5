"""A measured device: its interface (CPU in :mod:`.clock`, GPU in :mod:`.cuda`), and its state while samples are taken:
NVML for a GPU, the load average for a CPU."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from memwall.core.errors import MissingError, install
from memwall.frontend.targets.sizes import SIZES
from memwall.record.measurement import Sensors

Call = Callable[[], Any]
#: reads the device once, while it is at work
Sensing = Callable[[], Sensors]

DEVICES = ("cpu", "cuda")
#: options of :func:`memwall.profile` that say which step runs; the others say how it is modeled
RUN_OPTIONS = ("mode", "no_grad", *SIZES, "input_specs", "dtype", "autocast", "optimizer")
#: the share of a CPU used by others from which on a sample is in doubt
LEAST_SHARE = 0.95


@dataclass(frozen=True)
class Ready:
    """A call that can be timed. ``restore`` puts back what the call overwrites; ``note`` qualifies the samples;
    ``refused``: no graph of it could be captured, and the attempt may have broken the device's library."""

    call: Call
    restore: Call = lambda: None
    note: str = ""
    #: keeps alive what a captured graph points into
    held: Any = None
    refused: bool = False


class Device(Protocol):
    """A measured device.

    ``ready`` warms a call up and makes it quick to repeat, with a graph of it if the device has graphs. ``samples`` are
    up to ``count`` timings in seconds, at least one; no new one begins after ``budget_s``. ``steps`` are the seconds of
    each of ``count`` steps one after another, and the device's objections to them. ``alone_s``: seconds of one call on
    an idle device, warm, the host's way to its last kernel within. ``describe``: name, versions and
    sizes, for the record. ``wait`` until all queued work is done; ``clear`` cached memory.
    """

    kind: str
    torch_device: str

    def ready(self, call: Call, restore: Call = ..., *, graphed: bool = True) -> Ready: ...
    def samples(self, ready: Ready, count: int, budget_s: float) -> tuple[list[float], Sensors]: ...
    def steps(self, step: Call, count: int) -> tuple[list[float], tuple[str, ...]]: ...
    def alone_s(self, call: Call) -> float: ...
    def describe(self) -> dict[str, Any]: ...
    def free_bytes(self) -> int: ...
    def wait(self) -> None: ...
    def clear(self) -> None: ...


def versions() -> dict[str, Any]:
    """The versions that a time depends on."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    triton = None
    with contextlib.suppress(PackageNotFoundError):
        triton = version("triton")
    return {"torch": torch.__version__, "python": platform.python_version(), "triton": triton}


#: kind of device -> the variable that names a compiler, the usual ones, what it is for
_COMPILERS = {
    "cuda": ("CC", ("gcc", "clang", "cc"), "a C compiler, which Triton builds its launcher with"),
    "cpu": ("CXX", ("g++", "clang++"), "a C++ compiler"),
}


def need_compiler(kind: str) -> None:
    """Check that torch.compile has what it needs on a device (``cpu`` or ``cuda``), before anything runs. Raises
    ``MissingError``: no C++ compiler (CPU), no C compiler or no Triton (CUDA); names the program and how to fix it."""
    if kind == "cuda" and find_spec("triton") is None:
        raise MissingError(f"torch.compile needs Triton on a GPU: {install('triton')}")
    variable, names, what = _COMPILERS[kind]
    own = os.environ.get(variable)
    tried = (own,) if own else names
    if not any(shutil.which(name) for name in tried):
        missing = " or ".join(tried) + (f" (from {variable})" if own else "")
        raise MissingError(
            f"torch.compile needs {what} and found no {missing}; install one or leave the executor inductor out"
        )


# -- sensors -----------------------------------------------------------------------------------------------------------

#: bits of nvmlClocksEventReasons (nvml.h) that slow a kernel down, and what they say
THROTTLES = {
    0x04: "throttled: power cap",
    0x08: "throttled: hardware slowdown",
    0x20: "throttled: temperature (software)",
    0x40: "throttled: temperature (hardware)",
    0x80: "throttled: power brake",
}


def read_nvml(nvml: Any, handle: Any, ours: Callable[[], frozenset[int]]) -> Sensors:
    """Clocks, power, temperature, throttle reasons and other processes of a GPU, through ``pynvml``; None where it does
    not say. ``ours`` gives the processes of this measurement."""

    def ask(question: Callable[..., Any], *arguments: Any, scale: float = 1.0) -> float | None:
        try:
            return float(question(handle, *arguments) * scale)
        except nvml.NVMLError:
            return None

    reasons = int(ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0)
    try:
        pids = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except nvml.NVMLError:
        pids = set()
    # in a container NVML may number processes as the host does: then only their count is meaningful
    own = ours() if pids else frozenset()
    others = len(pids - own) if pids & own else max(len(pids) - len(own), 0)
    shared = (f"shared: {others} other process{'es' * (others > 1)} on the device",) if others else ()
    return Sensors(
        clock_hz=ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM, scale=1e6),
        memory_clock_hz=ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM, scale=1e6),
        power_w=ask(nvml.nvmlDeviceGetPowerUsage, scale=1e-3),
        temperature_c=ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        flags=(*(text for bit, text in THROTTLES.items() if reasons & bit), *shared),
    )


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
    """The sensors of the GPU at a PCI bus id (None: the first one); one that cannot be queried says so each time."""
    try:
        import pynvml as nvml
    except ImportError:
        return lambda: Sensors(flags=("unknown clocks: pynvml is not installed",))
    try:
        nvml.nvmlInit()
        find, place = (
            (nvml.nvmlDeviceGetHandleByIndex, 0)
            if bus_id is None
            else (nvml.nvmlDeviceGetHandleByPciBusId, bus_id.encode())
        )
        handle = find(place)
    except nvml.NVMLError as error:
        unknown = Sensors(flags=(f"unknown clocks: {error}",))
        return lambda: unknown
    return lambda: read_nvml(nvml, handle, family)


def cpu_load() -> Sensors:
    """A flag if more processes want to run than this machine has cores."""
    try:
        wanting = os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows has none
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
    return Sensors(**means, flags=tuple(dict.fromkeys(flag for sensors in known for flag in sensors.flags)))


def in_doubt(flags: Iterable[str]) -> tuple[str, ...]:
    """The flags of a device that was slowed down or shared, rather than unknown."""
    return tuple(flag for flag in flags if flag.startswith(("throttled", "shared", "contended")))
