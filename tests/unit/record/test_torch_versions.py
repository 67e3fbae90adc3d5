"""Which attention kernel each version of torch runs on each GPU (sdp_utils.cpp), and what records say of it."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import memwall
from memwall.analysis.dtypes import emulations
from memwall.core.errors import UsageError
from memwall.hardware.torch_versions import NEWEST, TORCH
from memwall.pipeline import resimulate
from memwall.sweeping.compare import compare


class Attention(nn.Module):
    """Causal attention of four heads of a size to itself, or of two key heads."""

    def __init__(self, size=64, key_heads=4, dropout=0.0):
        super().__init__()
        self.size, self.key_heads, self.dropout = size, key_heads, dropout
        self.q, self.kv = nn.Linear(64, 4 * size), nn.Linear(64, 2 * key_heads * size)

    def forward(self, x, mask=None):
        q, k, v = (t.unflatten(-1, (-1, self.size)).transpose(1, 2) for t in (self.q(x), *self.kv(x).chunk(2, -1)))
        grouped = self.key_heads != 4
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, dropout_p=self.dropout * self.training, enable_gqa=grouped
        )


X = torch.empty(2, 96, 64, device="meta")
MASK = torch.empty(2, 1, 96, 96, device="meta", dtype=torch.bool)
GPUS = ("h100-sxm", "b200", "a100-sxm-80gb", "rtx-5090", "v100-sxm2-16gb")


@pytest.mark.parametrize(("net", "inputs", "dtype", "version", "expected"), [
    # cuDNN first on 9.0 and 10.x, where it is newer than 9.15: from 2.11 on, whose wheel brings 9.19
    (Attention(), (X,), "bfloat16", "2.10", ("flash", "flash", "flash", "flash", "math")),
    (Attention(), (X,), "bfloat16", "2.11", ("cudnn", "cudnn", "flash", "flash", "math")),
    (Attention(), (X,), "float16", "2.13", ("cudnn", "cudnn", "flash", "flash", "efficient")),
    # it takes a mask, which flash does not, and no float32
    (Attention(), (X, MASK), "float16", "2.9", ("efficient",) * 5),
    (Attention(), (X, MASK), "float16", "2.13", ("cudnn", "cudnn", "efficient", "efficient", "efficient")),
    (Attention(), (X,), "float32", "2.13", ("efficient",) * 5),
    (Attention(key_heads=2), (X,), "float16", "2.13", ("cudnn", "cudnn", "flash", "flash", "math")),
    # heads of more than 128 numbers from cuDNN 9.23 on, which 2.14 brings; in steps of 8
    (Attention(256), (X,), "bfloat16", "2.13", ("flash", "flash", "flash", "flash", "math")),
    (Attention(256), (X,), "bfloat16", "2.14", ("cudnn", "cudnn", "flash", "flash", "math")),
    (Attention(100), (X,), "bfloat16", "2.13", ("flash", "flash", "flash", "flash", "math")),
])  # fmt: skip
def test_each_version_takes_the_backend_of_its_rules(net, inputs, dtype, version, expected):
    made = memwall.profile(net, inputs, gpu=GPUS, dtype=dtype, torch=version)
    assert tuple(made.graphs[s.graph].backends[0] for s in made.simulations) == expected


@pytest.mark.parametrize(("size", "dropout", "version", "expected"), [
    (64, 0.0, "2.13", "cudnn"), (64, 0.125, "2.13", "cudnn"),
    (64, 0.1, "2.13", "flash"),  # dropout in sixteenths
    (192, 0.0, "2.14", "flash"),  # heads of 192 in training with values of 128 alone
    (256, 0.0, "2.14", "cudnn"), (256, 0.0, "2.13", "flash"),
])  # fmt: skip
def test_training_has_rules_of_its_own(size, dropout, version, expected):
    made = memwall.profile(
        Attention(size, dropout=dropout), (X,), gpu="h100-sxm", dtype="bfloat16", mode="training", torch=version
    )
    assert made.graphs[0].backends == (expected,)


@pytest.mark.parametrize("asked", ["cudnn", "flash", "efficient", "math"])
def test_the_backend_that_is_asked_for_runs_whatever_the_version(asked):
    for version in ("2.9", NEWEST):
        made = memwall.profile(Attention(), (X,), gpu="h100-sxm", dtype="bfloat16", torch=version, attention=asked)
        assert made.graphs[0].backends == (asked,)


def test_a_record_keeps_its_version_on_other_gpus():
    made = memwall.profile(Attention(), (X,), gpu="a100", dtype="bfloat16", torch="2.9")
    read = memwall.Profile.from_dict(json.loads(made.to_json()))
    assert read.traced.version is TORCH["2.9"]
    assert read.on([memwall.load_gpu("h100-sxm")]).graph.backends == ("flash",)


def test_a_record_that_says_no_version_has_the_kernels_of_2_9():
    record = json.loads(memwall.profile(Attention(), (X,), gpu="h100", dtype="bfloat16", torch="2.9").to_json())
    del record["capture"]["torch"]
    assert memwall.Profile.from_dict(record).traced.version is TORCH["2.9"]


def test_versions_side_by_side_are_named_and_compared_on_the_same_gpu():
    found = compare(Attention(), gpu=("h100-sxm", "a100"), torch=("2.9", "2.13"), inputs=(X,), dtype="bfloat16")
    old, a100, new, same = found.entries
    assert (old.label, new.label) == ("Attention (torch 2.9) on h100-sxm", "Attention (torch 2.13) on h100-sxm")
    assert new.speedup == pytest.approx(old.time_s / new.time_s)
    assert (a100.time_s, same.speedup) == (same.time_s, 1.0)  # nothing changed there


def test_what_is_traced_has_one_version():
    made = memwall.profile(Attention(), (X,), gpu="h100", dtype="bfloat16")
    with pytest.raises(UsageError, match="already traced, for one version of torch"):
        compare(made, gpu=("h100", "a100"), torch="2.9")


def test_a_version_that_nobody_knows_is_refused():
    with pytest.raises(UsageError, match=r"torch is '1\.13'; want one of 2\.9, "):
        memwall.profile(Attention(), (X,), gpu="h100", torch="1.13")


class Experts(nn.Module):
    """Rows of two experts through a weight each."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, 64, 64))

    def forward(self, x, ends):
        return torch._grouped_mm(x, self.weight, ends)


ENDS = torch.tensor([16, 32], dtype=torch.int32)


@pytest.mark.parametrize(("gpu", "dtype", "launches"), [
    ("h100-sxm", "bfloat16", [1]), ("b200", "bfloat16", [1]),
    # a copy of the ends of the groups, then a product for each of the two
    ("h100-sxm", "float16", [1, 2]), ("rtx-5090", "bfloat16", [1, 2]), ("a100-sxm-80gb", "bfloat16", [1, 2]),
    ("rtx-4090", "bfloat16", [1, 2]), ("v100-sxm2-16gb", "float16", [1, 2]), ("mi300x", "bfloat16", [1, 2]),
])  # fmt: skip
def test_a_grouped_matmul_is_one_kernel_of_bfloat16_on_9_0_and_10(gpu, dtype, launches):
    """GroupedBlas.cpp, ``_grouped_mm_cuda``: all else is a loop over the groups."""
    made = memwall.profile(Experts(), (torch.empty(32, 64), ENDS), gpu=gpu, dtype=dtype)
    assert [kernel.launches for kernel in made.simulations[0].kernels] == launches
    said = [text for text in emulations(made, made.simulations[0]) if "grouped matmul" in text]
    assert len(said) == len(launches) - 1


def test_a_loop_multiplies_as_much_as_one_kernel():
    made = memwall.profile(Experts(), (torch.empty(32, 64), ENDS), gpu=("h100-sxm", "a100-sxm-80gb"), dtype="bfloat16")
    # 32 rows of 64 numbers by 64 columns, 2 FLOP each; the copy has none
    assert [simulation.totals.flops for simulation in made.simulations] == [2 * 32 * 64 * 64] * 2
    one, loop = made.graphs
    assert (one.backends, loop.backends) == (("grouped",), ("looped",))
    assert [op.name for op in loop.ops] == ["aten._to_copy", "aten._grouped_mm"]


def test_a_batch_without_groups_is_one_product_anywhere():
    class Batch(nn.Module):
        def forward(self, x, y):
            return torch._grouped_mm(x, y)

    inputs = torch.empty(4, 16, 64), torch.empty(4, 64, 32)
    made = memwall.profile(Batch(), inputs, gpu="a100-sxm-80gb", dtype="bfloat16")
    assert [kernel.launches for kernel in made.simulations[0].kernels] == [1]


def test_the_gradient_of_the_weights_is_a_product_for_each_group_too():
    made = memwall.profile(
        Experts(), (torch.empty(32, 64), ENDS), gpu="a100-sxm-80gb", dtype="bfloat16", mode="training",
        loss=lambda made: (made * made).sum(),
    )  # fmt: skip
    loops = [kernel.launches for kernel in made.simulations[0].kernels if "grouped" in kernel.name]
    assert loops == [2, 2]  # forward, and the weights' gradient: the rows are an input, and need none


def test_a_record_of_loops_has_one_kernel_on_a_gpu_that_has_it():
    made = memwall.profile(Experts(), (torch.empty(32, 64), ENDS), gpu="a100-sxm-80gb", dtype="bfloat16")
    read = memwall.Profile.from_dict(json.loads(made.to_json()))
    assert read.graph.backends == ("looped",)
    found = resimulate(read, "h100-sxm")
    assert [kernel.launches for kernel in found.simulations[0].kernels] == [1]


def test_transformers_experts_are_loops_where_no_kernel_has_them():
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    sizes = {"hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
    with torch.device("meta"):
        block = Qwen3MoeSparseMoeBlock(Qwen3MoeConfig(**sizes, experts_implementation="grouped_mm"))
    gpus = ("h100-sxm", "a100-sxm-80gb")
    made = memwall.profile(block, (torch.empty(1, 512, 64, device="meta"),), gpu=gpus, dtype="bfloat16")
    hopper, ampere = (
        [kernel.launches for kernel in simulation.kernels if "grouped" in kernel.name]
        for simulation in made.simulations
    )
    # 512 tokens choose 2 of 8 experts: all have rows; gates and up projections are one matrix, down another
    assert (hopper, ampere) == ([1, 1], [8, 8])
    h100, a100 = made.simulations
    assert a100.totals.kernels - h100.totals.kernels == 2 * (8 - 1 + 1)  # more products, and a copy of the ends


@pytest.mark.parametrize(("asked", "gpu"), [("flash3", "h100-sxm"), ("flash4", "h100-sxm"), ("flash4", "b200")])
def test_flash_attention_is_switched_where_it_runs(asked, gpu):
    """_fa3.py wants compute capability 9.0, _fa4.py 9.0 or 10.0."""
    made = memwall.profile(Attention(), (X,), gpu=gpu, dtype="bfloat16", attention=asked)
    assert made.graphs[0].backends == (asked,)
    (kernel,) = [c.launches[0] for c in made.costs[0] if hasattr(c.launches[0], "head_size")]
    assert kernel.variant == asked


@pytest.mark.parametrize(("asked", "gpu", "version", "why"), [
    ("flash3", "b200", "2.13", "no such kernel for b200"), ("flash4", "a100", "2.13", "no such kernel for a100"),
    ("flash4", "rtx-5090", "2.13", "no such kernel for rtx-5090"),
    ("flash3", "h100-sxm", "2.10", r"FA3 since 2\.11, not 2\.10"), ("flash4", "h100-sxm", "2.9", r"FA4 since 2\.10"),
])  # fmt: skip
def test_flash_attention_is_not_switched_where_it_cannot_run(asked, gpu, version, why):
    with pytest.raises(UsageError, match=why):
        memwall.profile(Attention(), (X,), gpu=gpu, dtype="bfloat16", attention=asked, torch=version)


def test_flash_attention_3_has_no_dropout():
    with pytest.raises(UsageError, match="FA3 has no dropout"):
        memwall.profile(
            Attention(dropout=0.25), (X,), gpu="h100-sxm", dtype="bfloat16", attention="flash3", mode="training"
        )
