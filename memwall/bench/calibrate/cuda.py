"""What is timed on a CUDA device: bandwidths, products of each dtype, launch latency, the CPU's time per op.

Kernels are captured into graphs and replayed between events (:mod:`memwall.bench.cuda`), so that the CPU's time per
launch is no part of the figures. Not every device, driver and build of torch has every product: those that raise are
left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from memwall.bench.calibrate.sampling import Quantity
from memwall.bench.clock import Clocks, open_device
from memwall.bench.device import Device
from memwall.core.errors import MissingError

#: elements of an array in DRAM: 1 GiB of float32, less on a small device
ARRAY_ELEMENTS = 1 << 28
#: side of the square products; the slow dtypes get half of it
SIDE = 8192
#: kernels of one graph, for the launch latency and for the slow sizes
TINY, FEW = 200, 4


def measure_cuda(rounds: int) -> dict[str, Any]:
    """The quantities of this machine's first CUDA device.

    Raises:
        MissingError: there is none.
    """
    import torch

    if not torch.cuda.is_available():
        raise MissingError("there is no CUDA device that torch can use here")
    count = min(ARRAY_ELEMENTS, torch.cuda.mem_get_info()[0] // 4 // 8)
    device = open_device("cuda")
    found = [
        *_memory(torch, device, count, rounds),
        *_products(torch, device, rounds),
        *_overheads(torch, device, rounds),
    ]
    return {
        "torch": torch.__version__,
        "name": torch.cuda.get_device_name(),
        "dram_bytes": torch.cuda.get_device_properties(0).total_memory,
        "sm_count": torch.cuda.get_device_properties(0).multi_processor_count,
        "compute_capability": "{}.{}".format(*torch.cuda.get_device_capability()),
        "quantities": found,
    }


def _memory(torch: Any, device: Device, count: int, rounds: int) -> list[Quantity]:
    a, b, c = (torch.full((count,), 0.5, device="cuda") for _ in range(3))
    total = torch.zeros((), device="cuda")
    runs: dict[str, tuple[int, Callable[[], Any]]] = {
        "dram.copy": (8 * count, lambda: c.copy_(a)),
        "dram.triad": (12 * count, lambda: torch.add(a, b, alpha=2.0, out=c)),
        "dram.read": (4 * count, lambda: torch.sum(a, 0, out=total)),
    }
    return [_quantity(device, name, work, run, FEW, rounds) for name, (work, run) in runs.items()]


def _products(torch: Any, device: Device, rounds: int) -> list[Quantity]:
    found = []
    for dtype in ("bfloat16", "float16", "tf32", "float32", "float64", "int8"):
        side = SIDE // 2 if dtype in ("float32", "float64") else SIDE
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        try:
            run = _product(torch, dtype, side)
            found.append(_quantity(device, f"product.{dtype}", 2 * side**3, run, FEW, rounds))
        except RuntimeError:  # this device or build has no such product
            continue
    return found


def _product(torch: Any, dtype: str, side: int) -> Callable[[], Any]:
    if dtype == "int8":
        q = torch.randint(-8, 8, (side, side), dtype=torch.int8, device="cuda")
        return lambda: torch._int_mm(q, q.t())
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    a, b, out = (torch.randn(side, side, device="cuda").to(kind) for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


def _overheads(torch: Any, device: Device, rounds: int) -> list[Quantity]:
    x, y, z = (torch.ones(1, device="cuda") for _ in range(3))

    def add() -> Any:
        return torch.add(x, y, out=z)

    floor = _quantity(device, "launch", 1, add, TINY, rounds)
    samples = []
    for _ in range(rounds):
        device.wait()
        samples.append(Clocks().time(add, TINY)[0] / TINY)
    return [floor, Quantity.of("dispatch", 1, samples, 0)]


def _quantity(device: Device, name: str, work: float, run: Callable[[], Any], calls: int, rounds: int) -> Quantity:
    """Seconds per call of a graph that holds ``calls`` of them.

    Raises:
        RuntimeError: the device has no such kernel, or cannot capture it.
    """

    def repeated() -> None:
        for _ in range(calls):
            run()

    ready = device.ready(repeated)
    if ready.note:  # plain launches would count the CPU's time
        raise RuntimeError(ready.note)
    samples, _ = device.samples(ready, rounds, math.inf)
    return Quantity.of(name, work, [seconds / calls for seconds in samples], 0)
