"""What is asked of the machine that is measured: the same questions to each device (:mod:`.clock`, :mod:`.cuda`)."""

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
    """A call that can be timed. ``restore`` puts back what the call writes over; ``note`` qualifies the samples.

    ``refused``: it could not be made quick to repeat, and the attempt has left the device's library in doubt.
    """

    call: Call
    restore: Call = lambda: None
    note: str = ""
    #: keeps alive what a captured graph points into
    held: Any = None
    refused: bool = False


class Device(Protocol):
    """What is asked of the machine that is measured."""

    kind: str
    torch_device: str

    def ready(self, call: Call, restore: Call = ..., *, graphed: bool = True) -> Ready:
        """Warm a call up and make it quick to repeat, by a graph of it where there is such a thing."""
        ...

    def samples(self, ready: Ready, count: int, budget_s: float) -> tuple[list[float], Sensors]:
        """Up to ``count`` timings in seconds, one at least, of which no new one begins after ``budget_s``."""
        ...

    def steps(self, step: Call, count: int) -> tuple[list[float], tuple[str, ...]]:
        """Seconds of each of ``count`` steps one after another, and what the device says against them."""
        ...

    def describe(self) -> dict[str, Any]:
        """Name, versions and sizes, for the record."""
        ...

    def free_bytes(self) -> int:
        """Memory that can still be taken."""
        ...

    def wait(self) -> None:
        """Until all that was begun is done."""
        ...

    def clear(self) -> None:
        """Give back what is not in use."""
        ...


def versions() -> dict[str, Any]:
    """The versions that a time depends on."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    triton = None
    with contextlib.suppress(PackageNotFoundError):
        triton = version("triton")
    return {"torch": torch.__version__, "python": platform.python_version(), "triton": triton}
