"""Lazy modules take their shapes from a first call, of which nothing else is left; and modes that need data."""

import functools

import pytest
import torch
from torch import nn

import memwall

X = torch.zeros(4, 8)


def layer(lazy: bool) -> nn.Module:
    return nn.LazyLinear(8) if lazy else nn.Linear(8, 8)


class Counts(nn.Module):
    def __init__(self, lazy: bool) -> None:
        super().__init__()
        self.layer, self.calls = layer(lazy), 0
        self.register_buffer("times", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.times += 1
        for _ in range(int(self.times) + self.calls):
            x = self.layer(x)
        return x


class Remembers(nn.Module):
    def __init__(self, lazy: bool) -> None:
        super().__init__()
        self.layer, self.sums = layer(lazy), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if self.sums is None:
            self.sums = y.new_zeros(4, 8).cumsum(0)
        return y + self.sums


@functools.lru_cache
def table(count: int) -> torch.Tensor:
    return torch.arange(count, device="cuda").float().cos()


class Tabled(Remembers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * table(8)


class Branches(Remembers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (self.layer(x),))


class Differentiates(Remembers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(self.layer(x).sum(), self.layer.weight)[0]


class Chooses(Remembers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[self.layer(x)[:, 0] > 0]


class Norms(nn.Module):
    """Modules that keep more than their parameters' shapes."""

    def __init__(self, lazy: bool) -> None:
        super().__init__()
        self.norm = nn.LazyInstanceNorm1d() if lazy else nn.InstanceNorm1d(8, affine=True, track_running_stats=True)
        self.batch = nn.LazyBatchNorm1d() if lazy else nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.batch(self.norm(x[..., None].expand(4, 8, 3)))


class Shaped(nn.Module):
    """A layer that makes its weight itself, as other libraries' do."""

    def __init__(self, lazy: bool) -> None:
        super().__init__()
        self.weight = nn.UninitializedParameter() if lazy else nn.Parameter(torch.zeros(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.weight, nn.UninitializedParameter):
            self.weight.materialize((8, x.shape[1]))
        return nn.functional.linear(x, self.weight)


class Hooked(Remembers):
    """Keeps the handle of a hook, as other libraries' lazy layers do until they have a shape."""

    def __init__(self, lazy: bool) -> None:
        super().__init__(lazy)
        self.hook = self.register_forward_pre_hook(lambda module, args: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Drops(Remembers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = self.layer(x) if torch.rand(1) > 0.5 else x
        return x


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "kind",
    [Counts, Remembers, Tabled, Branches, Differentiates, Chooses, Norms, Shaped, Hooked, Drops],
    ids=lambda k: k.__name__,
)
@pytest.mark.parametrize("options", [{}, {"mode": "training"}, {"autocast": "bf16"}], ids=str)
def test_a_lazy_module_is_traced_as_one_with_shapes(kind, options):
    if kind is Differentiates and options.get("mode"):
        options = {}
    lazy, plain = (memwall.profile(kind(lazy), (X,), gpu="a100", **options) for lazy in (True, False))
    assert [op.name for op in lazy.graph.ops] == [op.name for op in plain.graph.ops]
    held = [[v.spec.shape for v in found.graph.values] for found in (lazy, plain)]
    assert held[0] == held[1] and lazy.notes == plain.notes


def test_the_function_that_makes_the_inputs_is_called_once():
    calls = []

    def inputs() -> tuple[torch.Tensor]:
        calls.append(1)
        return (torch.zeros(4, 8),)

    memwall.profile(lambda: layer(lazy=True), inputs, gpu="a100")
    assert calls == [1]


class Merges(nn.Module):
    """Merges its weights when it is evaluated, if they are large, as their data would say."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.merged = nn.Linear(8, 8), False

    def train(self, mode: bool = True) -> "Merges":
        super().train(mode)
        self.merged = not mode and float(self.layer.weight.detach().abs().max()) > -1
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if self.merged else self.layer(x) + x.sin()


def test_a_mode_that_needs_data_is_noted():
    found = memwall.profile(Merges(), (X,), gpu="a100")
    assert any("the model's own eval() only sets flags" in note for note in found.notes)
    assert memwall.profile(Merges(), (X,), gpu="a100", mode="training").notes == ()
