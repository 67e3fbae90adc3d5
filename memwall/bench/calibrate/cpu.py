"""What is timed on a CPU. Sizes are chosen for what they measure, and come from no model.

Memory rates count each byte once, as everywhere here: a copy reads and writes, a triad reads two and writes one. What
the processor moves beyond that (a line is read before it is written) is part of the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memwall.bench.calibrate.sampling import Benchmark, measure
from memwall.bench.machine import cache_bytes
from memwall.hardware.cpu_rates import CACHES

#: elements of the arrays of :func:`kernels`: two of them fit the second cache of most cores
KERNEL_ELEMENTS = 1 << 16
#: one array in DRAM, in caches of the last level, and at least so many bytes
DRAM_CACHES, DRAM_LEAST = 8, 256 << 20
_PAGE = 4096


def memory(torch: Any, caches: Mapping[str, int]) -> list[Benchmark]:
    """Copy, triad, sum and a scaling in place in DRAM, and a triad in each cache from the second on."""
    last = max(caches.values(), default=0)
    count = max(DRAM_CACHES * last, DRAM_LEAST) // 4
    a, b, c = (torch.full((count,), 0.5) for _ in range(3))
    found = [
        Benchmark("dram.copy", 8 * count, lambda: c.copy_(a)),
        Benchmark("dram.triad", 12 * count, lambda: torch.add(a, b, alpha=2.0, out=c)),
        Benchmark("dram.read", 4 * count, lambda: a.sum()),
        Benchmark("dram.in_place", 8 * count, lambda: a.mul_(1.0)),
    ]
    inner = [_in_cache(torch, name, caches[name]) for name in CACHES[1:] if name in caches]
    return found + [bench for pair in inner for bench in pair]


def arrays(torch: Any, count: int, number: int) -> list[Any]:
    """Arrays of ``count`` float32 (whole pages) that start 1 KiB apart within a page. Where the last 12 bits of their
    addresses are equal, a load waits for an earlier store to another array, and the time depends on malloc."""
    step = count + _PAGE // 4 // 4
    buffer = torch.full((number * step,), 0.5)
    return [buffer[n * step : n * step + count] for n in range(number)]


def _in_cache(torch: Any, name: str, size: int) -> tuple[Benchmark, Benchmark]:
    """A triad of three arrays in half of a cache, and one of them scaled in place."""
    x, y, z = arrays(torch, size // 2 // 3 // _PAGE * _PAGE // 4, 3)
    count = x.numel()
    return (
        Benchmark(f"{name}.triad", 12 * count, lambda: torch.add(x, y, alpha=2.0, out=z)),
        Benchmark(f"{name}.in_place", 8 * count, lambda: x.mul_(1.0)),
    )


#: dtype -> side of the square product: float16 has no fast library on most CPUs and takes a hundred times longer
_SIDES = {"float64": 768, "float32": 1024, "bfloat16": 1024, "float16": 128}


def products(torch: Any) -> list[Benchmark]:
    """Square products of each dtype, and a linear layer of float32: 256 rows, 1024 to 1024, with a bias."""
    found = []
    for dtype, side in _SIDES.items():
        a, b, out = (torch.randn(side, side).to(getattr(torch, dtype)) for _ in range(3))
        found.append(Benchmark(f"product.{dtype}", 2 * side**3, _product(torch, a, b, out)))
    q = torch.randint(-8, 8, (512, 512), dtype=torch.int8)
    found.append(Benchmark("product.int8", 2 * 512**3, lambda: torch._int_mm(q, q)))
    for dtype in ("float32", "bfloat16"):
        kind = getattr(torch, dtype)
        x, weight, bias = (torch.randn(*shape).to(kind) for shape in ((256, 1024), (1024, 1024), (1024,)))
        found.append(Benchmark(f"linear.{dtype}", 2 * 256 * 1024**2, _linear(torch, x, weight, bias)))
    return found


def _product(torch: Any, a: Any, b: Any, out: Any) -> Callable[[], Any]:
    return lambda: torch.mm(a, b, out=out)


def _linear(torch: Any, x: Any, weight: Any, bias: Any) -> Callable[[], Any]:
    return lambda: torch.nn.functional.linear(x, weight, bias)


#: rows, and weights of [side, side] float32: (in a cache again and again, each from DRAM)
COLD_ROWS, COLD_SIDE = 64, 768


def traffic(torch: Any, caches: Mapping[str, int]) -> list[Benchmark]:
    """The same linear layer on one weight, and on weights that no cache holds together, per layer."""
    size = 4 * COLD_SIDE**2
    number = 4 * max(caches.values(), default=DRAM_LEAST // 4) // size + 1
    weights = [torch.randn(COLD_SIDE, COLD_SIDE) for _ in range(number)]
    x, linear = torch.randn(COLD_ROWS, COLD_SIDE), torch.nn.functional.linear
    turn = iter(_cycle(number))
    return [
        Benchmark("weights.cached", size, lambda: linear(x, weights[0])),
        Benchmark("weights.dram", size, lambda: linear(x, weights[next(turn)])),
    ]


def _cycle(number: int) -> Any:
    while True:
        yield from range(number)


#: name -> images, channels in and out, side, kernel, stride, groups
_CONVOLUTIONS = {
    "pointwise_convolution": (4, 128, 256, 32, 1, 1, 1),
    "pointwise_convolution_batched": (16, 128, 256, 32, 1, 1, 1),
    "window_convolution": (4, 128, 128, 32, 3, 1, 1),
    "strided_convolution": (4, 128, 128, 32, 3, 2, 1),
    "depthwise_convolution": (4, 128, 128, 32, 3, 1, 128),
    "peak.float32": (16, 256, 256, 16, 3, 1, 1),
}


def contractions(torch: Any) -> list[Benchmark]:
    """Convolutions of each kind and one that runs at the processor's best, and attention of 8 heads over 256 tokens."""
    found = [_convolution(torch, name, *shape) for name, shape in _CONVOLUTIONS.items()]
    q, k, v = (torch.randn(1, 8, 256, 64) for _ in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    return [*found, Benchmark("attention", 4 * 8 * 256 * 256 * 64, lambda: attend(q, k, v))]


def _convolution(
    torch: Any, name: str, images: int, inner: int, outer: int, side: int, kernel: int, stride: int, groups: int
) -> Benchmark:
    x, weight = torch.randn(images, inner, side, side), torch.randn(outer, inner // groups, kernel, kernel)
    flops = 2 * images * outer * (side // stride) ** 2 * weight[0].numel()
    convolve = torch.nn.functional.conv2d
    return Benchmark(name, flops, lambda: convolve(x, weight, stride=stride, padding=kernel // 2, groups=groups))


def kernels(torch: Any) -> list[Benchmark]:
    """Each of :data:`memwall.hardware.cpu_rates.KERNELS` on values that take no special path, in the second cache."""
    functional, aten = torch.nn.functional, torch.ops.aten
    x, out = arrays(torch, KERNEL_ELEMENTS, 2)
    x.uniform_(0.1, 1.1)
    rows, rows_out, mask = x.view(-1, 256), out.view(-1, 256), x > 0.5
    images, channels = x.view(1, 16, 64, -1), [torch.ones(16) for _ in range(4)]
    weight, normal = torch.ones(256), (256,)
    _, mean, deviation = aten.native_layer_norm(rows, normal, weight, weight, 1e-5)
    _, batch_mean, batch_deviation = aten.native_batch_norm(images, *channels, True, 0.1, 1e-5)
    runs: dict[str, Callable[[], Any]] = {
        "exp": lambda: torch.exp(x, out=out),
        "log": lambda: torch.log(x, out=out),
        "sqrt": lambda: torch.sqrt(x, out=out),
        "rsqrt": lambda: torch.rsqrt(x, out=out),
        "sin": lambda: torch.sin(x, out=out),
        "pow": lambda: torch.pow(x, x, out=out),
        "erf": lambda: torch.erf(x, out=out),
        "tanh": lambda: torch.tanh(x, out=out),
        "sigmoid": lambda: torch.sigmoid(x, out=out),
        "silu": lambda: aten.silu.out(x, out=out),
        "gelu": lambda: aten.gelu.out(x, out=out),
        "gelu_tanh": lambda: aten.gelu.out(x, approximate="tanh", out=out),
        "compare": lambda: torch.gt(x, 0.5),
        "where": lambda: torch.where(mask, x, out),
        "dropout": lambda: aten.native_dropout(x, 0.1, True),
        "softmax": lambda: aten._softmax.out(rows, -1, False, out=rows_out),
        "log_softmax": lambda: aten._log_softmax.out(rows, -1, False, out=rows_out),
        "layer_norm": lambda: aten.native_layer_norm(rows, normal, weight, weight, 1e-5),
        "batch_norm": lambda: aten.native_batch_norm(images, *channels, False, 0.1, 1e-5),
        "batch_norm_training": lambda: aten.native_batch_norm(images, *channels, True, 0.1, 1e-5),
        "variance": lambda: x.var(),
        "gelu_backward": lambda: aten.gelu_backward.grad_input(x, x, grad_input=out),
        "softmax_backward": lambda: aten._softmax_backward_data(rows, rows, -1, torch.float32),
        "layer_norm_backward": lambda: aten.native_layer_norm_backward(
            rows, rows, normal, mean, deviation, weight, weight, [True, True, True]
        ),
        "batch_norm_backward": lambda: aten.native_batch_norm_backward(
            images, images, *channels[:3], batch_mean, batch_deviation, True, 1e-5, [True, True, True]
        ),
    }
    pooled = Benchmark("max_pool", KERNEL_ELEMENTS // 4 * 9, lambda: functional.max_pool2d(images, 3, 2, 1))
    return [*(Benchmark(name, KERNEL_ELEMENTS, run) for name, run in runs.items()), pooled]


def overhead(torch: Any) -> list[Benchmark]:
    """An add of one element: the overhead of a call."""
    x, y = torch.ones(1), torch.ones(1)
    return [Benchmark("call", 1, lambda: x + y)]


def all_benchmarks(torch: Any, caches: Mapping[str, int]) -> list[Benchmark]:
    """Everything that makes a CPU's spec."""
    return [
        *memory(torch, caches), *products(torch), *traffic(torch, caches), *contractions(torch),
        *kernels(torch), *overhead(torch),
    ]  # fmt: skip


def measure_cpu(rounds: int, threads: int, accept_busy: bool) -> dict[str, Any]:
    """The quantities of this machine's CPU.

    Raises:
        Busy: other processes ran.
    """
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    caches = cache_bytes()
    with torch.no_grad():
        found = measure(all_benchmarks(torch, caches), rounds, accept_busy=accept_busy)
    return {
        "torch": torch.__version__,
        "isa": torch.backends.cpu.get_cpu_capability(),
        "cache_bytes": caches,
        "quantities": list(found.values()),
    }
