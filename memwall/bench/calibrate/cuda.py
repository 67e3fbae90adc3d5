"""What is timed on a CUDA device: bandwidths, products of each dtype, the launch floor, the CPU's time per op.

Kernels are captured into graphs and replayed between events, so that the CPU's time per launch is no part of the
figures. Not every device, driver and build of torch has every product: those that raise are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from memwall.bench.calibrate.sampling import Quantity

#: elements of an array in DRAM: 1 GiB of float32, less on a small device
ARRAY_ELEMENTS = 1 << 28
#: side of the square products; the slow dtypes get half of it
SIDE = 8192
#: kernels of one graph, for the launch floor and for the sizes that take long
TINY, FEW = 200, 4


def measure_cuda(rounds: int) -> dict[str, Any]:
    """The quantities of this machine's first CUDA device, or why there are none."""
    import torch

    if not torch.cuda.is_available():
        return {"missing": "there is no CUDA device that torch can use here"}
    count = min(ARRAY_ELEMENTS, torch.cuda.mem_get_info()[0] // 4 // 8)
    found = [*_memory(torch, count, rounds), *_products(torch, rounds), *_overheads(torch, rounds)]
    return {
        "torch": torch.__version__,
        "board": torch.cuda.get_device_name(),
        "dram_bytes": torch.cuda.get_device_properties(0).total_memory,
        "sm_count": torch.cuda.get_device_properties(0).multi_processor_count,
        "compute_capability": "{}.{}".format(*torch.cuda.get_device_capability()),
        "quantities": [quantity.to_dict() for quantity in found],
    }


def _memory(torch: Any, count: int, rounds: int) -> list[Quantity]:
    a, b, c = (torch.full((count,), 0.5, device="cuda") for _ in range(3))
    total = torch.zeros((), device="cuda")
    runs: dict[str, tuple[int, Callable[[], Any]]] = {
        "dram.copy": (8 * count, lambda: c.copy_(a)),
        "dram.triad": (12 * count, lambda: torch.add(a, b, alpha=2.0, out=c)),
        "dram.read": (4 * count, lambda: torch.sum(a, 0, out=total)),
    }
    return [_quantity(torch, name, work, run, FEW, rounds) for name, (work, run) in runs.items()]


def _products(torch: Any, rounds: int) -> list[Quantity]:
    found = []
    for dtype in ("bfloat16", "float16", "tf32", "float32", "float64", "int8"):
        side = SIDE // 2 if dtype in ("float32", "float64") else SIDE
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        try:
            run = _product(torch, dtype, side)
            found.append(_quantity(torch, f"product.{dtype}", 2 * side**3, run, FEW, rounds))
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


def _overheads(torch: Any, rounds: int) -> list[Quantity]:
    x, y, z = (torch.ones(1, device="cuda") for _ in range(3))
    floor = _quantity(torch, "launch", 1, lambda: torch.add(x, y, out=z), TINY, rounds)
    samples = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(TINY):
            torch.add(x, y, out=z)
        samples.append((time.perf_counter() - start) / TINY)
    return [floor, Quantity.of("dispatch", 1, samples, 0)]


def _quantity(torch: Any, name: str, work: float, run: Callable[[], Any], calls: int, rounds: int) -> Quantity:
    """Seconds per call of a graph that holds ``calls`` of them."""
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    samples = []
    for n in range(rounds + 2):  # the first two warm up
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        samples += [start.elapsed_time(stop) * 1e-3 / calls] if n >= 2 else []
    return Quantity.of(name, work, samples, 0)
