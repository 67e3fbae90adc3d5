"""Products that Inductor pads to multiples of 16 bytes (torch/_inductor/fx_passes/pad_mm.py): which, and at what cost.

Expected bytes are counted by hand: a copy of an operand reads it and writes it with zeros added.
"""

import importlib
import importlib.util
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
import torch
from torch import nn

import memwall
from memwall.analysis.explanation import explanations
from memwall.hardware.lookup import load_gpu
from memwall.ops.launches import Stream
from memwall.ops.product_launches import Gemm

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

HALF = 2


def planned(module, *shapes, gpu="a100-80gb-sxm", dtype=torch.float16, policy="inductor", mode="inference", **more):
    """The profile, its schedule and the launches of each kernel."""
    given = tuple(torch.empty(*shape, device="meta", dtype=dtype) for shape in shapes)
    profile = memwall.profile(module.to(dtype=dtype), given, gpu=gpu, policy=policy, mode=mode, **more)
    (schedule,) = profile.simulations
    return profile, schedule, [group.cost.launches for group in profile.plan(schedule).groups]


def sizes(launch):
    return launch.m, launch.n, launch.k


def moved(launches):
    return sorted((launch.read_bytes, launch.write_bytes) for launch in launches)


@pytest.mark.parametrize("policy", ["inductor", "max-autotune"])
def test_a_large_product_between_16_bytes_is_padded_by_two_copies(policy):
    """[4096, 4095] x [4095, 4095] becomes [4096, 4096] x [4096, 4096]; the caller gets a view of the result."""
    _, schedule, ((product, *copies),) = planned(nn.Linear(4095, 4095, bias=False), (4096, 4095), policy=policy)
    assert (sizes(product), product.aligned) == ((4096, 4096, 4096), True)
    assert (sizes(product.padded_from), product.padded_from.aligned) == ((4096, 4095, 4095), False)
    weight, data, whole = HALF * 4095**2, HALF * 4096 * 4095, HALF * 4096**2
    assert moved(copies) == [(weight, whole), (data, whole)]
    assert (product.read_bytes, product.write_bytes) == (2 * whole, whole)
    (kernel,) = schedule.kernels
    assert (kernel.launches, kernel.flops) == (3, 2 * 4096 * 4095 * 4095)  # what must be done is that of the model
    assert (kernel.read_bytes, kernel.write_bytes) == (weight + data, data)


def test_the_bias_is_padded_too():
    _, _, ((product, *copies),) = planned(nn.Linear(4095, 4095), (4096, 4095))
    weight, data, whole = HALF * 4095**2, HALF * 4096 * 4095, HALF * 4096**2
    assert moved(copies) == [(HALF * 4095, HALF * 4096), (weight, whole), (data, whole)]
    assert product.read_bytes == 2 * whole + HALF * 4095


def test_what_a_kernel_before_makes_is_written_padded():
    """The relu writes into the padded matrix: only the strip of 4096 x 1 zeros is written by a kernel of its own."""
    module = nn.Sequential(nn.ReLU(), nn.Linear(4095, 4095, bias=False))
    _, _, (relu, (product, *copies)) = planned(module, (4096, 4095))
    assert moved(relu) == [(HALF * 4096 * 4095, HALF * 4096 * 4095)]
    assert sizes(product) == (4096, 4096, 4096)
    strip, weight = HALF * 4096, (HALF * 4095**2, HALF * 4096**2)
    assert [one for one in moved(copies) if one != weight] in ([(0, strip)], [(strip, strip)])
    assert weight in moved(copies)


def test_a_batch_of_products_is_padded_on_both_sides_but_not_along_the_batch():
    class Batched(nn.Module):
        def forward(self, left, right):
            return torch.bmm(left, right)

    _, _, ((product, *copies),) = planned(Batched(), (8, 4096, 4095), (8, 4095, 4095))
    assert (product.batch, sizes(product)) == (8, (4096, 4096, 4096))
    whole = HALF * 8 * 4096**2
    assert moved(copies) == [(HALF * 8 * 4095**2, whole), (HALF * 8 * 4096 * 4095, whole)]


@pytest.mark.parametrize(("module", "shape", "dtype", "gpu"), [
    pytest.param(nn.Linear(4096, 4096), (4096, 4096), torch.float16, "a100-80gb-sxm", id="rows are multiples"),
    pytest.param(nn.Linear(4095, 4095), (4, 4095), torch.float16, "a100-80gb-sxm", id="bound by the weight's bytes"),
    pytest.param(nn.Linear(255, 255), (256, 255), torch.float16, "a100-80gb-sxm", id="shorter than its copies"),
    pytest.param(nn.Linear(4095, 4095), (4096, 4095), torch.float32, "a100-80gb-sxm", id="on vector units"),
    pytest.param(nn.Linear(4095, 4095), (4096, 4095), torch.float64, "a100-80gb-sxm", id="a dtype without padding"),
])  # fmt: skip
def test_what_is_not_padded(module, shape, dtype, gpu):
    _, _, (launches,) = planned(module, shape, dtype=dtype, gpu=gpu)
    (product,) = launches
    assert isinstance(product, Gemm)
    assert product.padded_from is None
    assert sizes(product) == (shape[0], module.out_features, module.in_features)


def test_tf32_products_are_padded_to_four_elements():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        _, _, ((product, *_),) = planned(nn.Linear(8190, 8190, bias=False), (8192, 8190), dtype=torch.float32)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert (product.pipe.dtype, sizes(product)) == ("tf32", (8192, 8192, 8192))


def test_each_gradient_is_asked_about_by_itself():
    """The gradient of the data multiplies [4096, 4095] by the weight, that of the weight [4095, 4096] by the data."""
    _, _, kernels = planned(
        nn.Linear(4095, 4095, bias=False), (4096, 4095), mode="training", optimizer=None,
        loss=lambda made: made.square().sum(),
    )  # fmt: skip
    padded = [launch for launches in kernels for launch in launches if isinstance(launch, Gemm) and launch.padded_from]
    assert sorted(sizes(launch.padded_from) for launch in padded) == [(4095, 4095, 4096), (4096, 4095, 4095)]


def test_settings_of_torch_decide_before_the_model():
    """Nothing is timed in deterministic mode; torch's trees of timings know A100, H100 and H200."""
    from torch._inductor import config

    large, small = nn.Linear(8191, 8191, bias=False), nn.Linear(255, 255, bias=False)
    with config.patch(deterministic=True):
        has_trees = config.use_autoheuristic("pad_mm")  # since torch 2.13
        found = {gpu: planned(large, (8192, 8191), gpu=gpu)[2][0][0] for gpu in ("t4", "h200")}
    assert {gpu: product.padded_from is not None for gpu, product in found.items()} == {"t4": False, "h200": has_trees}
    assert planned(large, (8192, 8191), gpu="t4")[2][0][0].padded_from is not None
    with config.patch(force_shape_pad=True):
        _, _, ((product, *copies),) = planned(small, (256, 255))
    assert (sizes(product), len(copies)) == ((256, 256, 256), 2)
    with config.patch(shape_padding=False):
        assert planned(large, (8192, 8191))[2][0][0].padded_from is None


@pytest.mark.parametrize(("gpu", "tree", "dtype", "least"), [
    ("a100-80gb-sxm", "_PadMMA100.PadMMA100", "float16", 0.45), ("h200", "_PadMMH200.PadMMH200", "float16", 0.55),
    ("a100-80gb-sxm", "_PadMMA100.PadMMA100", "float32", 0.95), ("h200", "_PadMMH200.PadMMH200", "float32", 0.85),
])  # fmt: skip
def test_the_model_agrees_with_trees_that_timings_taught(gpu, tree, dtype, least):
    """torch/_inductor/autoheuristic/artifacts, of random products with sides of at least 768. Where the model pads, a
    tree nearly always does so too; in half precision it pads too few: its kernels for unaligned rows are too fast."""
    from torch._inductor.autoheuristic import autoheuristic_utils
    from torch._inductor.fx_passes import pad_mm

    from memwall.core.graph import contiguous
    from memwall.inductor.padding import seconds

    module, _, name = tree.partition(".")
    if importlib.util.find_spec("torch._inductor.autoheuristic.artifacts._PadMMH200") is None:
        pytest.skip("this torch has older trees")
    taught = getattr(importlib.import_module(f"torch._inductor.autoheuristic.artifacts.{module}"), name)()
    random, found = Random(0), Counter()
    for _ in range(200):
        m, k, n = (int(2 ** random.uniform(9.6, 14)) for _ in range(3))
        left, right = contiguous((m, k), dtype), contiguous((k, n), dtype)
        made = [torch.empty(spec.shape, dtype=getattr(torch, dtype), device="meta") for spec in (left, right)]
        added = [pad_mm.get_padded_length(size, 8 if dtype == "float16" else 4) for size in (m, k, n)]
        context = pad_mm.get_context(*made, False, False, *added)
        context.apply_operations(autoheuristic_utils.pad_mm_operations())
        sure, choice = max(taught.get_best_choices(context))
        if sure >= taught.get_confidence_threshold():
            plain_s, padded_s = seconds([left, right], (False, False), {}, load_gpu(gpu))
            found[bool(choice), plain_s > 1.1 * padded_s] += 1
    assert sum(found.values()) > 75
    assert (found[True, True] + found[False, False]) / sum(found.values()) > least
    assert found[False, True] <= 0.03 * sum(found.values())


def test_rows_that_inductor_lays_with_gaps_count_as_aligned():
    """Inductor lays rows of more than 1024 elements in its own tensors at multiples of 128 bytes
    (``padding_alignment_bytes``): the relu's rows of 1025 begin every 1088 elements. The product is
    too short to be padded."""
    module = nn.Sequential(nn.Linear(1024, 1025, bias=False), nn.ReLU(), nn.Linear(1025, 512, bias=False))
    *_, (product,) = planned(module, (1000, 1024))[2]
    assert (product.padded_from, sizes(product)) == (None, (1000, 512, 1025))
    from memwall.inductor.compiled import kernels_of

    profile = memwall.profile(
        module, (torch.empty(1000, 1024, device="meta", dtype=torch.float16),), gpu="a100-80gb-sxm"
    )
    *_, last = kernels_of(profile.graph, load_gpu("a100-80gb-sxm")).kernels
    assert last.operands[0] == ((1000, 1025), (1088, 1))


def test_padding_is_what_the_model_says_is_quicker():
    """By the published rates an H100 multiplies such rows at 0.71 x 0.629 of its rate; an A100 at 0.71."""
    from memwall.core.graph import contiguous
    from memwall.inductor.padding import seconds

    given = [contiguous((4096, 4095), "float16"), contiguous((4095, 4095), "float16")]
    for name in ("a100-80gb-sxm", "h100-sxm"):
        gpu = load_gpu(name)
        plain_s, padded_s = seconds(given, (False, False), {}, gpu)
        without_copies_s = seconds(given, (True, True), {}, gpu)[1]
        # each of the two eager copies writes zeros, reads and writes 33.5 MB
        copies_s = 2 * 3 * HALF * 4096**2 / gpu.dram_bytes_per_s
        assert padded_s - without_copies_s == pytest.approx(copies_s, rel=0.3)
        assert plain_s > 1.1 * padded_s


def test_the_explanation_says_what_the_padding_is_for():
    profile, schedule, ((product, *copies),) = planned(nn.Linear(4095, 4095, bias=False), (4096, 4095))
    assert all(isinstance(copy, Stream) for copy in copies)
    (one,) = explanations(profile, schedule, "0")
    said = " ".join(one.launches)
    assert "4096x4096x4096 in " in said
    assert said.count("Inductor's padding of an operand: ") == 2
    assert (
        "Inductor pads it from 4096x4095x4095, so that the rows of its matrices begin at multiples of 16 bytes" in said
    )
    assert replace(product, padded_from=None).flops == 2 * 4096**3
