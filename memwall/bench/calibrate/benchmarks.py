"""What is timed on a CPU and on a CUDA device. Sizes are chosen for what they measure, and come from no model.

Memory rates count each byte once, as everywhere here: a copy reads and writes, a triad reads two and writes one. What
the processor moves beyond that (a line is read before it is written) is part of the rate.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn.functional import max_pool2d, scaled_dot_product_attention

from memwall.bench.calibrate.sampling import Benchmark
from memwall.core import compat
from memwall.hardware.gpu import CACHES

#: elements of the arrays of :func:`kernels`: two of them fit the second cache of most cores
KERNEL_ELEMENTS = 1 << 16
#: one array in DRAM, in caches of the last level, and at least so many bytes
DRAM_CACHES, DRAM_LEAST = 8, 256 << 20
_PAGE = 4096


def cpu_benchmarks(caches: Mapping[str, int]) -> list[Benchmark]:
    """Everything that makes a CPU's spec; ``call`` is an add of one element: the overhead of a call."""
    x, y = torch.ones(1), torch.ones(1)
    last = max(caches.values(), default=0)
    inner = [bench for name in CACHES[1:] if name in caches for bench in _in_cache(name, caches[name])]
    return [
        *memory(max(DRAM_CACHES * last, DRAM_LEAST) // 4, "cpu"),
        *inner,
        *products(),
        *traffic(caches),
        *contractions(),
        *kernels(),
        Benchmark("call", 1, lambda: x + y),
    ]


def memory(count: int, device: str) -> list[Benchmark]:
    """Copy, triad, sum and, on a CPU, a scaling in place of arrays of ``count`` float32 in DRAM. On a GPU a kernel
    copies: a CUDA graph leaves a plain copy to engines that reach 60 % of a kernel's bandwidth (H200)."""
    a, b, c = (torch.full((count,), 0.5, device=device) for _ in range(3))
    total = torch.zeros((), device=device)
    copy = partial(c.copy_, a) if device == "cpu" else partial(torch.mul, a, 1.0, out=c)
    in_place = Benchmark("dram.in_place", 8 * count, lambda: a.mul_(1.0))
    return [
        Benchmark("dram.copy", 8 * count, copy),
        Benchmark("dram.triad", 12 * count, lambda: torch.add(a, b, alpha=2.0, out=c)),
        Benchmark("dram.read", 4 * count, lambda: torch.sum(a, 0, out=total)),
        *([in_place] if device == "cpu" else ()),
    ]


def arrays(count: int, number: int) -> list[Any]:
    """Arrays of ``count`` float32 (whole pages) that start 1 KiB apart within a page. Where the last 12 bits of their
    addresses are equal, a load waits for an earlier store to another array, and the time depends on malloc."""
    step = count + _PAGE // 4 // 4
    buffer = torch.full((number * step,), 0.5)
    return [buffer[n * step : n * step + count] for n in range(number)]


def _in_cache(name: str, size: int) -> tuple[Benchmark, Benchmark]:
    """A triad of three arrays in half of a cache, and one of them scaled in place."""
    x, y, z = arrays(size // 2 // 3 // _PAGE * _PAGE // 4, 3)
    return (
        Benchmark(f"{name}.triad", 12 * x.numel(), lambda: torch.add(x, y, alpha=2.0, out=z)),
        Benchmark(f"{name}.in_place", 8 * x.numel(), lambda: x.mul_(1.0)),
    )


#: dtype -> side of the square product: float16 has no fast library on most CPUs and takes a hundred times longer
_SIDES = {"float64": 768, "float32": 1024, "bfloat16": 1024, "float16": 128, "int8": 512}
#: the same on a CUDA device; the slow dtypes get half of it
_CUDA_SIDES = {"bfloat16": 8192, "float16": 8192, "tf32": 8192, "float32": 4096, "float64": 4096, "int8": 8192}


def product(dtype: str, side: int, device: str = "cpu") -> Benchmark:
    """A square product."""
    name, work = f"product.{dtype}", 2 * side**3
    if dtype == "int8":
        q = torch.randint(-8, 8, (side, side), dtype=torch.int8, device=device)
        return Benchmark(name, work, partial(compat.int_mm, q, q if device == "cpu" else q.t()))
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    a, b, out = (torch.randn(side, side, device=device).to(kind) for _ in range(3))
    return Benchmark(name, work, partial(torch.mm, a, b, out=out))


def products() -> list[Benchmark]:
    """Square products of each dtype, and linear layers: 256 rows, 1024 to 1024, with a bias."""
    found = [product(dtype, side) for dtype, side in _SIDES.items()]
    for dtype in ("float32", "bfloat16"):
        given = [torch.randn(*shape).to(getattr(torch, dtype)) for shape in ((256, 1024), (1024, 1024), (1024,))]
        found.append(Benchmark(f"linear.{dtype}", 2 * 256 * 1024**2, partial(torch.nn.functional.linear, *given)))
    return found


def cuda_products() -> Iterator[Benchmark]:
    """Square products of each dtype, TF32 on for its own; dtypes that this device or build of torch lacks are left out
    here or raise when they run."""
    for dtype, side in _CUDA_SIDES.items():
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        try:
            yield product(dtype, side, "cuda")
        except RuntimeError:
            continue


#: rows, and weights of [side, side] float32: (in a cache again and again, each from DRAM)
COLD_ROWS, COLD_SIDE = 64, 768


def traffic(caches: Mapping[str, int]) -> list[Benchmark]:
    """The same linear layer on one weight, and on weights that no cache holds together, per layer."""
    size = 4 * COLD_SIDE**2
    number = 4 * max(caches.values(), default=DRAM_LEAST // 4) // size + 1
    weights = [torch.randn(COLD_SIDE, COLD_SIDE) for _ in range(number)]
    x, linear, turn = torch.randn(COLD_ROWS, COLD_SIDE), torch.nn.functional.linear, itertools.cycle(weights)
    return [
        Benchmark("weights.cached", size, lambda: linear(x, weights[0])),
        Benchmark("weights.dram", size, lambda: linear(x, next(turn))),
    ]


#: name -> images, channels in and out, side, kernel, stride, groups
_CONVOLUTIONS = {
    "pointwise_convolution": (4, 128, 256, 32, 1, 1, 1),
    "pointwise_convolution_batched": (16, 128, 256, 32, 1, 1, 1),
    "window_convolution": (4, 128, 128, 32, 3, 1, 1),
    "strided_convolution": (4, 128, 128, 32, 3, 2, 1),
    "depthwise_convolution": (4, 128, 128, 32, 3, 1, 128),
    "peak.float32": (16, 256, 256, 16, 3, 1, 1),
}


def contractions() -> list[Benchmark]:
    """Convolutions of each kind and one that runs at the processor's best, and attention of 8 heads over 256 tokens."""
    found = []
    for name, (images, inner, outer, side, kernel, stride, groups) in _CONVOLUTIONS.items():
        x, weight = torch.randn(images, inner, side, side), torch.randn(outer, inner // groups, kernel, kernel)
        flops = 2 * images * outer * (side // stride) ** 2 * weight[0].numel()
        convolve = partial(torch.nn.functional.conv2d, stride=stride, padding=kernel // 2, groups=groups)
        found.append(Benchmark(name, flops, partial(convolve, x, weight)))
    q, k, v = (torch.randn(1, 8, 256, 64) for _ in range(3))
    return [*found, Benchmark("attention", 4 * 8 * 256 * 256 * 64, partial(scaled_dot_product_attention, q, k, v))]


def kernels() -> list[Benchmark]:
    """Each of :data:`memwall.hardware.gpu.KERNELS` on values that take no special path, in the second cache."""
    aten = torch.ops.aten
    x, out = arrays(KERNEL_ELEMENTS, 2)
    x.uniform_(0.1, 1.1)
    rows, rows_out, mask = x.view(-1, 256), out.view(-1, 256), x > 0.5
    images, channels = x.view(1, 16, 64, -1), [torch.ones(16) for _ in range(4)]
    weight, normal = torch.ones(256), (256,)
    _, mean, deviation = aten.native_layer_norm(rows, normal, weight, weight, 1e-5)
    _, batch_mean, batch_deviation = aten.native_batch_norm(images, *channels, True, 0.1, 1e-5)
    functions = ("exp", "log", "sqrt", "rsqrt", "sin", "erf", "tanh", "sigmoid")
    runs: dict[str, Callable[[], Any]] = {
        **{name: partial(getattr(torch, name), x, out=out) for name in functions},
        "pow": lambda: torch.pow(x, x, out=out),
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
    pooled = Benchmark("max_pool", KERNEL_ELEMENTS // 4 * 9, lambda: max_pool2d(images, 3, 2, 1))
    return [*(Benchmark(name, KERNEL_ELEMENTS, run) for name, run in runs.items()), pooled]
