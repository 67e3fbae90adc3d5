"""Start the process that measures, and turn what it found into a spec."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwall.bench.calibrate.cpu_spec import cpu_spec
from memwall.bench.calibrate.cuda_spec import cuda_spec
from memwall.bench.calibrate.sampling import WIDE, Quantity
from memwall.core.errors import MemwallError, MissingError, UsageError

DEVICES = ("cpu", "cuda")
#: samples of each benchmark
ROUNDS = 15
#: seconds after which the process that measures is given up
LIMIT_S = 600.0

#: One thread that keeps its memory: glibc neither maps large blocks apart nor hands them back.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "{threads}", "MKL_NUM_THREADS": "{threads}", "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_TOP_PAD_": str(1 << 28),
}  # fmt: skip


@dataclass(frozen=True)
class Calibration:
    """What was measured: the text of a spec, and the quantities that it was made from."""

    device: str
    spec: str
    quantities: tuple[Quantity, ...]

    @property
    def uncertain(self) -> tuple[Quantity, ...]:
        """Those whose samples lie far apart."""
        return tuple(q for q in self.quantities if q.spread > WIDE)


def default_spec_path(device: str = "cpu") -> Path:
    """Where the spec of this machine's device lies: ``MEMWALL_CACHE``, else ``XDG_CACHE_HOME/memwall``, else
    ``~/.cache/memwall``."""
    own = os.environ.get("MEMWALL_CACHE")
    caches = os.environ.get("XDG_CACHE_HOME")
    folder = Path(own) if own else (Path(caches) if caches else Path.home() / ".cache") / "memwall"
    return folder / f"{device}.toml"


def cpu_environment(threads: int) -> dict[str, str]:
    """This process's environment with what a process needs whose CPU kernels are timed."""
    return {**os.environ, **{name: text.format(threads=threads) for name, text in _ENVIRONMENT.items()}}


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
        MissingError: there is no such device, no torch, or the machine is too busy to tell.
    """
    if device not in DEVICES:
        raise UsageError(f"no device {device!r}; there is {' and '.join(DEVICES)}")
    (progress or (lambda message: None))(f"measuring this machine's {device}, {rounds} rounds")
    job = {"device": device, "threads": threads, "rounds": rounds, "accept_busy": accept_busy}
    answer = _ask(job, cpu_environment(threads))
    if "busy" in answer:
        raise MissingError(f"this machine is too busy to be measured: {answer['busy']}; stop what else runs, or"
                           " accept rough figures with --accept-busy")  # fmt: skip
    if "missing" in answer:
        raise MissingError(answer["missing"])
    quantities = {q["name"]: Quantity(**q) for q in answer["quantities"]}
    spec = (cuda_spec if device == "cuda" else cpu_spec)(answer, quantities, job)
    return Calibration(device, spec, tuple(quantities.values()))


def _ask(job: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """The answer of the process that measures."""
    root = Path(__file__).resolve().parents[3]
    paths = os.pathsep.join(filter(None, (str(root), environment.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "memwall.bench.calibrate.child", json.dumps(job)]
    try:
        done = subprocess.run(
            command, env={**environment, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise MissingError(f"measuring took longer than {LIMIT_S:.0f} s and was given up") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        if "No module named 'torch'" in last:
            raise MissingError("this needs torch, which is not installed")
        raise MemwallError(f"measuring failed (exit {done.returncode}): {last[:300]}")
    return json.loads(done.stdout.splitlines()[-1])
