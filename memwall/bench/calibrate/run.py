"""Start the process that measures, and turn what it found into a spec."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwall.bench.calibrate.host_spec import host_spec
from memwall.bench.calibrate.sampling import WIDE, Benchmark, SampledQuantity, measure
from memwall.bench.calibrate.spec import cpu_spec, cuda_spec
from memwall.bench.clock import Clocks, open_device, timing_environment
from memwall.bench.device import Device, need_compiler
from memwall.bench.machine import cache_bytes
from memwall.core.cache import cache_folder
from memwall.core.errors import MemwallError, MissingError, unknown
from memwall.core.process import Child, Lost
from memwall.core.progress import counting, heard, tell

#: seconds after which the process that measures is given up
LIMIT_S = 600.0
#: elements of an array in a CUDA device's DRAM: 1 GiB of float32, less on a small device
ARRAY_ELEMENTS = 1 << 28
#: kernels of one CUDA graph, for the launch latency and for the slow sizes
TINY, FEW = 200, 4


@dataclass(frozen=True)
class Calibration:
    """What was measured: the text of a spec, and the quantities that it was made from."""

    device: str
    spec: str
    quantities: tuple[SampledQuantity, ...]

    @property
    def uncertain(self) -> tuple[SampledQuantity, ...]:
        """The quantities whose samples scatter widely."""
        return tuple(q for q in self.quantities if q.spread > WIDE)


def default_spec_path(device: str = "cpu") -> Path:
    """The path of the spec of this machine's device."""
    return cache_folder() / f"{device}.toml"


@heard
def calibrate(
    device: str = "cpu",
    *,
    threads: int = 1,
    rounds: int = 15,
    accept_busy: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Calibration:
    """Measure this machine's ceilings, some 20 s.

    Args:
        device: ``cpu``, ``cuda``, or ``host``: the CPU as it issues kernels, to a GPU where there is one.
        threads: cores that a kernel uses; the figures of more than one are shaky wherever anything else runs.
        rounds: samples of each benchmark.
        accept_busy: measure although other processes run; every figure is then a lower limit of what the machine does.
        progress: called with one-line messages.

    Raises:
        MissingError: there is no such device, no torch, or the machine is too busy.
    """
    if device not in _SPECS:
        raise unknown("device", device, _SPECS)
    tell(f"measuring this machine's {device}, {rounds} rounds")
    job = {"device": device, "threads": threads, "rounds": rounds, "accept_busy": accept_busy}
    answer = _ask(job)
    quantities = {quantity.name: quantity for quantity in answer["quantities"]}
    return Calibration(device, _SPECS[device](answer, quantities, job), tuple(quantities.values()))


#: what is calibrated -> the text of its file
_SPECS = {"cpu": cpu_spec, "cuda": cuda_spec, "host": host_spec}


def _ask(job: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a process that measures, which says how far it is.

    It is separate because glibc's allocator reads its settings at the start: memory that is freed and allocated again
    costs a page fault per 4 KiB, which is slower than any kernel that writes there.
    """
    child = Child(measure_here, timing_environment("cpu", job["threads"]))
    try:
        answer: dict[str, Any] = child.ask(LIMIT_S, job, say=tell)
        return answer
    except Lost as lost:
        if lost.status == "timeout":
            raise MissingError(f"measuring took longer than {LIMIT_S:.0f} s and was given up") from None
        if "No module named 'torch'" in lost.last:
            raise MissingError("this needs torch, which is not installed") from None
        raise MemwallError(f"measuring failed: {lost}") from None
    finally:
        child.stop()


# -- in the process that measures --------------------------------------------------------------------------------------


def measure_here(job: Mapping[str, Any]) -> dict[str, Any]:
    """What a spec says of a device, and its quantities. Raises ``Busy``: other processes ran; ``MissingError``: there
    is no CUDA device."""
    return _MEASURED[job["device"]](job)


def _measure_cpu(job: Mapping[str, Any]) -> dict[str, Any]:
    """Bandwidths, products, functions, the time of a call."""
    import torch

    from memwall.bench.calibrate.benchmarks import cpu_benchmarks

    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    caches = cache_bytes()
    with torch.no_grad():
        found = measure(cpu_benchmarks(caches), job["rounds"], accept_busy=job["accept_busy"])
    isa = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "isa": isa, "cache_bytes": caches, "quantities": list(found.values())}


def _measure_cuda(job: Mapping[str, Any]) -> dict[str, Any]:
    """Bandwidths, products of each dtype, launch latency, the CPU's time per op."""
    import torch

    from memwall.bench.calibrate.benchmarks import cuda_products, memory

    if not torch.cuda.is_available():
        raise MissingError("there is no CUDA device that torch can use here")
    device, rounds = open_device("cuda"), job["rounds"]
    count = min(ARRAY_ELEMENTS, torch.cuda.mem_get_info()[0] // 4 // 8)
    kernels = counting(memory(count, "cuda"), "measuring this GPU's memory, kernels")
    found = [_quantity(device, bench, FEW, rounds) for bench in kernels]
    for bench in cuda_products():
        tell(f"measuring this GPU's {bench.name}")
        try:
            found.append(_quantity(device, bench, FEW, rounds))
        except RuntimeError:  # this device or build has no such product
            continue
    x, y, z = (torch.ones(1, device="cuda") for _ in range(3))
    add = Benchmark("launch", 1, lambda: torch.add(x, y, out=z))
    found.append(_quantity(device, add, TINY, rounds))
    samples = []
    for _ in range(rounds):
        device.wait()
        samples.append(Clocks().time(add.run, TINY)[0] / TINY)
    properties = torch.cuda.get_device_properties(0)
    return {
        "torch": torch.__version__,
        "name": torch.cuda.get_device_name(),
        "dram_bytes": properties.total_memory,
        "sm_count": properties.multi_processor_count,
        "compute_capability": "{}.{}".format(*torch.cuda.get_device_capability()),
        "quantities": [*found, SampledQuantity.of("dispatch", 1, samples, 0)],
    }


def _measure_host(job: Mapping[str, Any]) -> dict[str, Any]:
    """Calls of each kind in loops and in nets, issued to a GPU where there is one; compiled code where there is a
    compiler."""
    import torch

    from memwall.bench.calibrate import host_benchmarks as host

    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    nets = host.nets()
    work = host.net_work(nets)
    benchmarks = [*host.loops(device), *host.net_benchmarks(nets, device)]
    with contextlib.suppress(MissingError):
        need_compiler(device)
        benchmarks += host.compiled(device)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    benchmarks += host.recurrent() if device == "cuda" else []
    found = measure(benchmarks, job["rounds"], accept_busy=job["accept_busy"], wait=wait)
    return {"torch": torch.__version__, "device": device, "work": work, "quantities": list(found.values())}


_MEASURED = {"cpu": _measure_cpu, "cuda": _measure_cuda, "host": _measure_host}


def _quantity(device: Device, bench: Benchmark, calls: int, rounds: int) -> SampledQuantity:
    """Seconds per call of a graph that holds ``calls`` of them, replayed between events (:mod:`memwall.bench.cuda`), so
    that the CPU's time per launch is no part of the figure. Raises ``RuntimeError``: the device has no such kernel, or
    cannot capture it."""

    def repeated() -> None:
        for _ in range(calls):
            bench.run()

    ready = device.ready(repeated)
    if ready.note:  # plain launches would count the CPU's time
        raise RuntimeError(ready.note)
    samples, _ = device.samples(ready, rounds, math.inf)
    return SampledQuantity.of(bench.name, bench.work, [seconds / calls for seconds in samples], 0)
