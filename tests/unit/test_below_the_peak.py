"""No share of a peak is above 100 %: MFU, HFU and MBU of workloads on GPUs, in every mode, and of training layouts."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import memwall

GPUS = ("p100", "v100", "t4", "a100", "l4", "h100", "b200", "mi100", "mi300x", "tpu-v5e")
POLICIES = ("eager", "memwall", "ideal")
CASTS = ({}, {"dtype": "bf16"}, {"autocast": "fp16"})


class Block(nn.Module):
    """Large products and attention, which come close to the peak."""

    def __init__(self, width=2048, heads=16):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (-1, x.shape[-1] // self.heads)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


class Tf32(nn.Module):
    """Products of float32 that the program allows to run in TF32."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(3)))

    def forward(self, x):
        torch.backends.cuda.matmul.allow_tf32 = True
        return self.layers(x)


WORKLOADS = {
    "blocks": (lambda: nn.Sequential(*(Block() for _ in range(2))), lambda: torch.ones(8, 1024, 2048)),
    "convolutions": (
        lambda: nn.Sequential(*(nn.Conv2d(256, 256, 3, padding=1) for _ in range(3))),
        lambda: torch.ones(64, 256, 56, 56),
    ),
    "tf32": (Tf32, lambda: torch.ones(8192, 4096)),
}


@pytest.fixture(autouse=True)
def as_before():
    """What a workload sets for the whole process is set back."""
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.sampled(8)
@pytest.mark.parametrize("cast", CASTS, ids=str)
@pytest.mark.parametrize("name", WORKLOADS)
def test_profiles(name, cast):
    made, inputs = WORKLOADS[name]
    for mode in ("inference", "training"):
        found = memwall.profile(made().to("meta"), inputs().to("meta"), gpu=GPUS, policy=POLICIES, mode=mode, **cast)
        for each in found.simulations:
            shares = each.totals.mfu, each.totals.hfu, each.mbu
            assert max(shares) <= 1, (each.gpu.name, each.policy, mode, shares)


@pytest.mark.sampled(8)
@pytest.mark.defect("5")
@pytest.mark.parametrize("cast", CASTS, ids=str)
@pytest.mark.parametrize("name", WORKLOADS)
def test_layouts(name, cast):
    """MFU and HFU of a layout were relative to the peak of one dtype, looked up by a name that no pipe has; whatever
    multiplies in another dtype came out above 100 %."""
    made, inputs = WORKLOADS[name]
    module, x = made().to("meta"), inputs().to("meta")
    layouts = product(("fsdp=none", "fsdp=full"), ("none", "full"))
    for cluster, (sharded, again) in product(("dgx-h100", "dgx-1-v100"), layouts):
        layout = f"dp=2,{sharded},recompute={again}"
        found = memwall.parallel(module, (x,), layout=layout, cluster=cluster, **cast)
        assert 0.1 < found.mfu <= found.hfu <= 1, (cluster, layout, found.mfu, found.hfu)
