"""What the system says about this machine: its processor, caches and memory, and whether it was quiet while steps ran.

Linux reports who else used its cores and whether it was slowed down: ``/proc/stat`` the time of all processes and the
time stolen by the hypervisor, ``/proc/self/schedstat`` how long this thread was ready without a core (other containers
on the same machine show there), the cgroup how long a quota throttled it, and the cores how often they overheated. A
GPU's sensors come as flags. Neighbours behind a hypervisor that reports no steal time show only in the spread of the
samples.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from memwall.bench.device import LEAST_SHARE, in_doubt
from memwall.core.units import percent

#: share of a round that this thread may be ready without a core
MOST_WAITED = 1.0 - LEAST_SHARE
#: share of the machine's time that other processes may take in one round: its clock ticks only every 10 ms
MOST_OTHERS_IN_ROUND = 0.25
#: the same over all rounds together, as ticks average out
MOST_OTHERS = 0.05
#: share of the machine's time that the hypervisor may steal, over all rounds together
MOST_STOLEN = 0.02

#: prefix of a flag for what cannot be known
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Usage:
    """How a span of time was used; spans add up."""

    #: seconds and core-seconds that passed
    wall_s: float = 0.0
    capacity_s: float = 0.0
    #: CPU seconds of other processes, and those stolen by the hypervisor
    others_s: float = 0.0
    stolen_s: float = 0.0
    #: seconds that this thread was ready without a core
    waited_s: float = 0.0
    #: times that a core was slowed down because of its temperature
    throttles: int = 0
    #: the device's objections to the samples, or that it reports none
    flags: tuple[str, ...] = ()

    def __add__(self, other: Usage) -> Usage:
        sums = {item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)}
        return Usage(**{**sums, "flags": tuple(dict.fromkeys(sums["flags"]))})

    def disturbances(self, kind: str) -> tuple[str, ...]:
        """Why one round does not count; empty if it does. ``kind`` is the device that was timed."""
        return (
            *_over(self.waited_s, self.wall_s, MOST_WAITED, "no core was free for {} of the time"),
            *self._others(kind, MOST_OTHERS_IN_ROUND),
            *("the CPU was throttled by its temperature",) * bool(self.throttles),
            *in_doubt(self.flags),
        )

    def doubts(self, kind: str) -> tuple[str, ...]:
        """Why all rounds that count do not allow a verdict; empty if they do."""
        return (
            *self._others(kind, MOST_OTHERS),
            *_over(self.stolen_s, self.capacity_s, MOST_STOLEN, "the hypervisor took {} of the machine's time"),
            *(flag for flag in self.flags if flag.startswith(UNKNOWN)),
        )

    def _others(self, kind: str, most: float) -> Iterable[str]:
        """Other work on a GPU's host is normal and not counted; waiting for a core would still show."""
        if kind != "cpu":
            return ()
        return _over(self.others_s, self.capacity_s, most, "other processes took {} of the machine's time")


def _over(part_s: float, whole_s: float, most: float, text: str) -> Iterable[str]:
    share = part_s / whole_s if whole_s > 0 else 0.0
    return (text.format(percent(share, 0)),) if share > most else ()


@dataclass(frozen=True)
class Counters:
    """The system's counters at one moment; None if not reported."""

    wall_s: float
    own_s: float
    cores: int
    #: CPU seconds of all processes, and those stolen by the hypervisor
    busy_s: float | None
    stolen_s: float | None
    #: seconds that the main thread has run, and has waited for a core
    ran_s: float | None
    queued_s: float | None
    #: seconds that a quota has throttled this cgroup
    held_s: float
    throttles: int

    def usage(self, end: Counters, flags: tuple[str, ...] = ()) -> Usage:
        """What happened between this moment and a later one."""
        wall_s, own_s, others_s = end.wall_s - self.wall_s, end.own_s - self.own_s, 0.0
        if self.busy_s is None or end.busy_s is None:
            flags = (*flags, f"{UNKNOWN}: this system does not say what other processes use (no /proc/stat)")
        else:
            others_s = end.busy_s - self.busy_s - own_s
        if not end.ran_s or end.queued_s is None or self.queued_s is None:
            waited_s = max(wall_s - own_s, 0.0)  # the scheduler does not say: the time that this thread did not run
        else:
            waited_s = end.queued_s - self.queued_s
        return Usage(
            wall_s,
            wall_s * end.cores,
            others_s,
            (end.stolen_s or 0.0) - (self.stolen_s or 0.0),
            waited_s + end.held_s - self.held_s,
            end.throttles - self.throttles,
            flags,
        )


def read_counters(root: Path = Path("/"), clock: Callable[[], float] = time.perf_counter) -> Counters:
    """The counters of this machine and this process now. ``root`` holds ``proc`` and ``sys``."""
    held_s, throttles, ran_s, queued_s = 0.0, 0, None, None
    with contextlib.suppress(OSError, ValueError):
        ran, queued, _ = _text(root / "proc/self/schedstat").split()  # ns of the main thread
        ran_s, queued_s = int(ran) / 1e9, int(queued) / 1e9
    with contextlib.suppress(OSError, ValueError):
        found = re.search(r"^throttled_usec (\d+)$", _text(root / "sys/fs/cgroup/cpu.stat"), re.MULTILINE)
        held_s = int(found[1]) / 1e6 if found else 0.0
    for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_count"):
        with contextlib.suppress(OSError, ValueError):
            throttles += int(_text(path))
    busy = _machine_time(root / "proc/stat")
    return Counters(clock(), time.process_time(), os.cpu_count() or 1, *busy, ran_s, queued_s, held_s, throttles)


def machine_busy_s(stat: Path = Path("/proc/stat")) -> float:
    """Seconds that all cores together were busy, or stolen, since the start; 0 if the system does not report it."""
    busy_s, stolen_s = _machine_time(stat)
    return (busy_s or 0.0) + (stolen_s or 0.0)


def _machine_time(path: Path) -> tuple[float | None, float | None]:
    """``cpu user nice system idle iowait irq softirq steal ...`` in clock ticks."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with path.open(encoding="ascii") as file:
            ticks = [int(field) for field in file.readline().split()[1:9]]
        tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        user, nice, system, _, _, irq, softirq, steal = ticks
        return (user + nice + system + irq + softirq) * tick_s, steal * tick_s
    return None, None


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()


# -- the processor -----------------------------------------------------------------------------------------------------

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine() or "CPU"


def vendor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Who made the processor."""
    name = cpu_name(cpuinfo).lower()
    return next((vendor for vendor in ("AMD", "Intel", "Apple") if vendor.lower() in name), "CPU")


def cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, int]:
    """Bytes of the caches that hold data, as one core sees them, by name: l1, l2, l3."""
    sizes = {}
    for index in sorted(folder.glob("index*")):
        with contextlib.suppress(OSError):
            level, kind, size = (_text(index / name) for name in ("level", "type", "size"))
            known = re.fullmatch(r"(\d+)([KMG]?)", size)
            if kind != "Instruction" and known:
                sizes[f"l{level}"] = int(known[1]) * _UNITS[known[2]]
    return {name: sizes[name] for name in ("l1", "l2", "l3") if name in sizes}


def memory_bytes() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_bytes() -> int:
    """Free memory of the machine; all of it where the system does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(ValueError):  # macOS knows no such number
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return memory_bytes()
