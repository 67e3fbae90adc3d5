"""What the system says of this machine's processor: its name, caches and memory. Linux; elsewhere less is known."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the processor calls itself."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine() or "CPU"


def vendor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Who made it."""
    name = cpu_name(cpuinfo)
    return next((vendor for vendor in ("AMD", "Intel", "Apple") if vendor.lower() in name.lower()), "CPU")


def cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, int]:
    """Bytes of the caches that hold data, as one core sees them, by name: l1, l2, l3."""
    sizes = {}
    for index in sorted(folder.glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text(encoding="ascii").strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        known = re.fullmatch(r"(\d+)([KMG]?)", size)
        if kind != "Instruction" and known:
            sizes[f"l{level}"] = int(known[1]) * _UNITS[known[2]]
    return {name: sizes[name] for name in ("l1", "l2", "l3") if name in sizes}


def memory_bytes() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
