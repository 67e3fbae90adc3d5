"""Traces with and without data, and one after another, record the same."""

from __future__ import annotations

import functools

import torch
from torch import nn

import memwall


def names(made: memwall.Profile) -> list[str]:
    return [op.name.removeprefix("aten.") for op in made.graph.ops]


def test_f51_a_number_written_at_indices_takes_no_kernel_of_its_own(folder):
    """On meta torch makes a tensor of a number that is assigned at indices, by a kernel that a GPU does not run."""

    class Cleared(nn.Module):
        def forward(self, x, places):
            x = x * 2
            x[places] = 0.0
            return x

    made = memwall.profile(Cleared(), (torch.zeros(64, 8), torch.arange(5)), gpu="h100")
    assert names(made) == ["mul.Tensor", "index_put_"]


def test_f51_a_mask_is_an_index_of_places_with_real_tensors_too(folder):
    """With real tensors a mask as index was recorded without the kernels of nonzero that a GPU runs first."""

    class Kept(nn.Module):
        def forward(self, x, mask):
            return x[mask] * 2

    given = (torch.randn(64, 8), torch.arange(64) % 2 == 0)
    on_meta, real = (memwall.profile(Kept(), given, gpu="h100", real=real) for real in (False, True))
    assert names(on_meta) == names(real) == ["nonzero", "index.Tensor", "mul.Tensor"]


def test_f51_attention_of_real_tensors_is_laid_out_as_a_gpu_does(folder):
    """The CPU's attention has another layout than a GPU's, and the copies that mend it were counted."""

    class Attention(nn.Module):
        def forward(self, x):
            q = x.unflatten(-1, (4, 64)).transpose(1, 2)
            return nn.functional.scaled_dot_product_attention(q, q, q, scale=1.0).transpose(1, 2).flatten(2)

    given = (torch.randn(1, 256, 256),)
    on_meta, real = (memwall.profile(Attention(), given, gpu="h100", real=real) for real in (False, True))
    assert names(on_meta) == names(real)
    assert on_meta.simulations[0].totals.dram_bytes == real.simulations[0].totals.dram_bytes


@functools.lru_cache
def _positions(count: int, device: torch.device) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32, device=device)


class Remembering(nn.Module):
    """What detectors of transformers do: anchors are made once, in a function with a cache."""

    def forward(self, x):
        return x + _positions(x.shape[-1], x.device)


def test_f43_a_trace_leaves_nothing_in_the_caches_of_functions(folder):
    """Tensors of a trace stayed in functools.lru_cache, and the next trace missed the ops that make them."""
    first, second = (memwall.profile(Remembering(), (torch.zeros(4, 64),), gpu="h100") for _ in range(2))
    assert names(first) == names(second) == ["arange", "add.Tensor"]
    assert Remembering()(torch.zeros(4, 64)).sum() == 4 * 63 * 64 / 2  # and the caller's own run works
