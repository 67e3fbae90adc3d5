"""The clock of each device: how one call is timed, cold, and what else there is to know of the machine.

A device is used by a worker process alone. Both kinds time a call with the caches cleared outside of the timed part:
a CUDA device a graph of it between two events, the CPU the call itself on one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from memwall.core.errors import MissingError, UsageError
from memwall.record.measurement import Sensors

Call = Callable[[], Any]


@dataclass(frozen=True)
class Ready:
    """A call that can be timed. ``restore`` puts back what the call writes over; ``note`` qualifies the samples.

    ``refused``: it could not be made quick to repeat, and the attempt has left the device's library in doubt.
    """

    call: Call
    restore: Call
    note: str = ""
    #: keeps alive what a captured graph points into
    held: Any = None
    refused: bool = False


class Device(Protocol):
    """What a worker needs of the machine that it measures."""

    kind: str
    torch_device: str

    def ready(self, call: Call, restore: Call, *, graphed: bool = True) -> Ready:
        """Warm a call up and make it quick to repeat, by a graph of it where there is such a thing."""
        ...

    def samples(self, ready: Ready, count: int, budget_s: float) -> tuple[list[float], Sensors]:
        """Up to ``count`` timings in seconds, one at least, of which no new one begins after ``budget_s``."""
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


def open_device(kind: str) -> Device:
    """The device of that kind (``cpu`` or ``cuda``) of this machine.

    Raises:
        MissingError: there is none.
    """
    import torch

    from memwall.bench.kernels.cpu import Cpu
    from memwall.bench.kernels.cuda import Cuda

    if kind == "cpu":
        return Cpu()
    if kind != "cuda":
        raise UsageError(f"no device {kind!r}; there is cuda and cpu")
    if not torch.cuda.is_available():
        raise MissingError("no CUDA device here; --device cpu measures this machine's CPU")
    return Cuda()


def versions() -> dict[str, Any]:
    """The versions that a time depends on."""
    import platform

    import torch

    return {"torch": torch.__version__, "python": platform.python_version(), "triton": _triton_version()}


def _triton_version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("triton")
    except PackageNotFoundError:
        return None
