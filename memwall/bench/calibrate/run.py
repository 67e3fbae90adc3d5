"""Start the process that measures, and turn what it found into a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwall.bench.calibrate.cuda_spec import cuda_spec
from memwall.bench.calibrate.sampling import WIDE, Quantity
from memwall.bench.calibrate.spec import cpu_spec
from memwall.bench.clock import timing_environment
from memwall.bench.device import DEVICES
from memwall.core.errors import MemwallError, MissingError, UsageError
from memwall.core.files import cache_folder
from memwall.core.process import Child, Lost

#: samples of each benchmark
ROUNDS = 15
#: seconds after which the process that measures is given up
LIMIT_S = 600.0


@dataclass(frozen=True)
class Calibration:
    """What was measured: the text of a spec, and the quantities that it was made from."""

    device: str
    spec: str
    quantities: tuple[Quantity, ...]

    @property
    def uncertain(self) -> tuple[Quantity, ...]:
        """The quantities whose samples scatter widely."""
        return tuple(q for q in self.quantities if q.spread > WIDE)


def default_spec_path(device: str = "cpu") -> Path:
    """The path of the spec of this machine's device (:func:`memwall.core.files.cache_folder`)."""
    return cache_folder() / f"{device}.toml"


def calibrate(
    device: str = "cpu",
    *,
    threads: int = 1,
    rounds: int = ROUNDS,
    accept_busy: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Calibration:
    """Measure this machine's ceilings, some 20 s.

    Args:
        device: ``cpu`` or ``cuda``.
        threads: cores that a kernel uses; the figures of more than one are shaky wherever anything else runs.
        rounds: samples of each benchmark.
        accept_busy: measure although other processes run; every figure is then a lower limit of what the machine does.
        progress: called with one-line messages.

    Raises:
        MissingError: there is no such device, no torch, or the machine is too busy.
    """
    if device not in DEVICES:
        raise UsageError(f"no device {device!r}; there is {' and '.join(DEVICES)}")
    (progress or (lambda message: None))(f"measuring this machine's {device}, {rounds} rounds")
    job = {"device": device, "threads": threads, "rounds": rounds, "accept_busy": accept_busy}
    answer = _ask(job)
    quantities = {quantity.name: quantity for quantity in answer["quantities"]}
    spec = (cuda_spec if device == "cuda" else cpu_spec)(answer, quantities, job)
    return Calibration(device, spec, tuple(quantities.values()))


def _ask(job: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a process that measures.

    It is separate because glibc's allocator reads its settings at the start: memory that is freed and allocated again
    costs a page fault per 4 KiB, which is slower than any kernel that writes there.
    """
    child = Child("memwall.bench.calibrate.run:measure_here", timing_environment("cpu", job["threads"]))
    try:
        answer: dict[str, Any] = child.ask(LIMIT_S, job)
        return answer
    except Lost as lost:
        if lost.status == "timeout":
            raise MissingError(f"measuring took longer than {LIMIT_S:.0f} s and was given up") from None
        if "No module named 'torch'" in lost.last:
            raise MissingError("this needs torch, which is not installed") from None
        raise MemwallError(f"measuring failed (exit {lost.code}): {lost.last[:300] or 'no message'}") from None
    finally:
        child.stop()


def measure_here(job: Mapping[str, Any]) -> dict[str, Any]:
    """The quantities of a device; in the process that measures."""
    if job["device"] == "cuda":
        from memwall.bench.calibrate.cuda import measure_cuda

        return measure_cuda(job["rounds"])
    from memwall.bench.calibrate.cpu import measure_cpu

    return measure_cpu(job["rounds"], job["threads"], job["accept_busy"])
