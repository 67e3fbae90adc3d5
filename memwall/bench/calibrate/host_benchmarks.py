"""What is timed of a host: loops of one call each, and whole small nets, which run in colder caches than any loop.

On a GPU everything is issued for one element, or one sample, whose kernels are shorter than the host's way to them. On
a CPU there is nothing to launch: tensors are empty, so that an op ends before its kernel and allocates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu

from memwall.bench.calibrate.sampling import Benchmark
from memwall.hardware.host import HostWork
from memwall.ops.registry import is_recurrent
from memwall.pipeline import profile
from memwall.record.profile import Profile
from memwall.simulate.issue import work_of

#: kernels of the larger compiled function; parameters, each of a module of its own, of the compiled net
KERNELS, PARAMETERS = 8, 8
#: steps of two recurrent layers, and their features: too many for a persistent kernel, which runs all steps at once
_STEPS, _FEATURES = (4, 12), 256
_SIDE, _WIDTH = 8, 16

Net = tuple[nn.Module, tuple[int, ...]]


def loops(device: str) -> list[Benchmark]:
    """A call of each kind; see :data:`memwall.bench.calibrate.host_spec.KINDS` for what is told from them."""
    made = partial(torch.ones, device=device)
    count = int(device == "cuda")
    empty, one, other, out, channel = made(0), made(1), made(1), made(1), made(4)
    rows, square, product = made(count, 8), made(8, 8), made(count, 8)
    image, weight = made(count, 4, _SIDE, _SIDE), made(4, 4, 3, 3)
    graded = made(1, requires_grad=True) * 1
    module = nn.Identity()

    def libraries() -> None:
        torch.conv2d(image, weight, padding=1)
        torch.batch_norm(image, channel, channel, channel, channel, False, 0.1, 1e-5, True)

    runs: Mapping[str, Callable[[], Any]] = {
        "nothing": lambda: None,
        "view": lambda: one.view(1),
        "module": lambda: module(one),
        "op": lambda: torch.add(empty, empty, out=empty),
        "add": lambda: torch.add(one, other),
        "add.out": lambda: torch.add(one, other, out=out),
        "add.node": lambda: torch.add(graded, other),
        "backward": lambda: graded.backward(retain_graph=True),
        "product": lambda: torch.mm(rows, square, out=product),
    }
    return [*(Benchmark(name, 1, run) for name, run in runs.items()), Benchmark("libraries", 2, libraries)]


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def compiled(device: str) -> list[Benchmark]:
    """Compiled code of one kernel, and with parameters; on a GPU also of :data:`KERNELS`, and replayed as a graph."""
    inputs = [torch.ones(16 * (n + 1), device=device) for n in range(KERNELS)]  # of one size they would be one kernel

    def one(x: Tensor) -> Tensor:
        return x.sin()

    def several(tensors: list[Tensor]) -> list[Tensor]:
        return [x.sin() for x in tensors]

    def replayed(x: Tensor) -> Tensor:
        return x.cos()

    net = nn.Sequential(*(_Scale() for _ in range(PARAMETERS))).to(device).requires_grad_(False)
    on_both = [
        Benchmark("compiled.one", 1, partial(torch.compile(one), inputs[0])),
        Benchmark("compiled.parameters", 1, partial(torch.compile(net), torch.ones(4, device=device))),
    ]
    on_gpu = [
        Benchmark("compiled.several", KERNELS - 1, partial(torch.compile(several), inputs)),
        Benchmark("compiled.replay", 1, partial(torch.compile(replayed, mode="reduce-overhead"), inputs[0])),
    ]
    return on_both + (on_gpu if device == "cuda" else [])


def recurrent() -> list[Benchmark]:
    """An LSTM on a GPU over few and over more steps; the work is the launches that these add. One call a sample: its
    kernels take longer than the host's way to them."""
    net = nn.LSTM(_FEATURES, _FEATURES).eval().requires_grad_(False)
    few, more = (torch.ones(steps, 1, _FEATURES) for steps in _STEPS)
    added = _library_launches(net, more) - _library_launches(net, few)
    net = net.to("cuda")
    return [
        Benchmark("recurrent.few", 1, partial(net, few.to("cuda")), calls=1),
        Benchmark("recurrent.more", added, partial(net, more.to("cuda")), calls=1),
    ]


def _library_launches(net: nn.Module, given: Tensor) -> int:
    traced = profile(net, (given,))
    ops = traced.graphs[0].ops
    return sum(kernel.launches for kernel in traced.simulations[0].kernels if is_recurrent(ops[kernel.op_ids[0]].name))


# -- nets --------------------------------------------------------------------------------------------------------------


class _Residual(nn.Module):
    """Two convolutions with batch norm, next to what comes in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last_norm = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return relu(x + self.last_norm(self.second(relu(self.norm(self.first(x))))))


class _Transformer(nn.Module):
    """A layer with two heads, attention as products and a softmax: no backend of a device's own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.last_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        samples, tokens, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(samples, tokens, 3, 2, width // 2).permute(2, 0, 3, 1, 4).unbind(0)
        attention = torch.softmax(q @ k.transpose(-2, -1) * 0.5, -1) @ v
        x = x + self.out(attention.transpose(1, 2).reshape(samples, tokens, width))
        return x + self.down(gelu(self.up(self.last_norm(x))))


def nets() -> dict[str, Net]:
    """Small nets of mixed ops, and the shape of a sample of each."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.LayerNorm(_WIDTH), nn.GELU())]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))
    stem = (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    found: dict[str, Net] = {
        "mlp": (nn.Sequential(*layers), (_WIDTH,)),
        "convolutional": (nn.Sequential(*stem, _Residual(4), _Residual(4), *head), (4, _SIDE, _SIDE)),
        "transformer": (nn.Sequential(_Transformer(_WIDTH), _Transformer(_WIDTH)), (_SIDE, _WIDTH)),
    }
    return {name: (net.eval().requires_grad_(False), shape) for name, (net, shape) in found.items()}


def net_benchmarks(found: Mapping[str, Net], device: str) -> list[Benchmark]:
    """Forward of each net; of empty tensors on a CPU."""
    count = int(device == "cuda")
    return [
        Benchmark(f"net.{name}", 1, partial(net.to(device), torch.ones(count, *shape, device=device)))
        for name, (net, shape) in found.items()
    ]


def net_work(found: Mapping[str, Net]) -> dict[str, HostWork]:
    """What each net asks of the host, as it is modeled of one sample."""
    return {name: _total(profile(net, (torch.ones(1, *shape),))) for name, (net, shape) in found.items()}


def _total(traced: Profile) -> HostWork:
    """The work of all kernels of an eager step."""
    schedule = traced.simulations[0]
    issued = [(kernel.op_ids, kernel.launches) for kernel in schedule.kernels]
    return HostWork(*map(sum, zip(*work_of(traced.graphs[schedule.graph], "eager", issued), strict=True)))
