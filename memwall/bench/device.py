"""The interface of a measured device, CPU or GPU (:mod:`.clock`, :mod:`.cuda`)."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from memwall.record.measurement import Sensors

Call = Callable[[], Any]

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Ready:
    """A call that can be timed. ``restore`` puts back what the call overwrites; ``note`` qualifies the samples.

    ``refused``: no graph of it could be captured, and the attempt may have broken the device's library.
    """

    call: Call
    restore: Call = lambda: None
    note: str = ""
    #: keeps alive what a captured graph points into
    held: Any = None
    refused: bool = False


class Device(Protocol):
    """A measured device."""

    kind: str
    torch_device: str

    def ready(self, call: Call, restore: Call = ..., *, graphed: bool = True) -> Ready:
        """Warm a call up and make it quick to repeat, with a graph of it if the device has graphs."""
        ...

    def samples(self, ready: Ready, count: int, budget_s: float) -> tuple[list[float], Sensors]:
        """Up to ``count`` timings in seconds, at least one; no new one begins after ``budget_s``."""
        ...

    def steps(self, step: Call, count: int) -> tuple[list[float], tuple[str, ...]]:
        """Seconds of each of ``count`` steps one after another, and the device's objections to them."""
        ...

    def describe(self) -> dict[str, Any]:
        """Name, versions and sizes, for the record."""
        ...

    def free_bytes(self) -> int:
        """Free memory in bytes."""
        ...

    def wait(self) -> None:
        """Wait until all queued work is done."""
        ...

    def clear(self) -> None:
        """Free cached memory."""
        ...


def versions() -> dict[str, Any]:
    """The versions that a time depends on."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    triton = None
    with contextlib.suppress(PackageNotFoundError):
        triton = version("triton")
    return {"torch": torch.__version__, "python": platform.python_version(), "triton": triton}
