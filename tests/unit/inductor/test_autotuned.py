"""Mode max-autotune: which kernels only timing chooses, and how low the quickest choice may be."""

import importlib.util

import pytest
import torch
from torch import nn

import memwall
from memwall.analysis.explanation import choices_text, explanations
from memwall.bench.accuracy.reading import read_measured
from memwall.core.units import duration
from memwall.ops.product_launches import Convolution, Gemm
from memwall.report import render
from memwall_lab.modules import ModuleSample
from tests.unit.places import truth

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


def planned(module, *shape, gpu="l40s", dtype=torch.float32):
    """The profile, its schedule and the groups of its plan."""
    given = (torch.empty(*shape, device="meta", dtype=dtype),)
    profile = memwall.profile(module.to(dtype=dtype), given, gpu=gpu, policy="max-autotune", mode="inference")
    (schedule,) = profile.simulations
    return profile, schedule, profile.plan(schedule).groups


def test_the_low_end_of_a_product_is_a_template_at_six_tenths_of_the_roofline():
    """8192 x 8192 x 8192 in float32 on vector units: 1.1e12 FLOPs at 91.6 TFLOP/s."""
    _, schedule, (group,) = planned(nn.Linear(8192, 8192, bias=False), 8192, 8192)
    (kernel,) = schedule.kernels
    assert group.cost.template is not None
    gpu = schedule.gpu
    flops_s = 2 * 8192**3 / gpu.peak(next(iter(group.cost.flops)))
    assert kernel.low_s - kernel.wait_s == pytest.approx(flops_s / 0.6 + gpu.launch_overhead_s)
    assert kernel.low_s < kernel.time_s < kernel.high_s


def test_without_68_multiprocessors_inductor_has_no_templates():
    """A T4 has 40 (is_big_gpu of torch/_inductor/utils.py)."""
    _, schedule, groups = planned(nn.Linear(1024, 1024), 1024, 1024, gpu="t4")
    assert [group.cost.template for group in groups] == [None] * len(groups)
    assert schedule.policy == "max-autotune"


@pytest.mark.parametrize(("module", "is_open"), [
    (nn.Conv2d(32, 64, 3, bias=False), True),
    (nn.Conv2d(32, 64, 3, dilation=2, bias=False), False),
    (nn.ConvTranspose2d(32, 64, 3, bias=False), False),
])  # fmt: skip
def test_templates_serve_neither_dilated_nor_transposed_convolutions(module, is_open):
    _, _, groups = planned(module, 4, 32, 56, 56)
    templates = [group.cost.template for group in groups if isinstance(group.cost.launches[0], Convolution)]
    assert [template is not None for template in templates] == [is_open]


def test_float64_has_no_templates():
    _, _, groups = planned(nn.Linear(1024, 1024), 1024, 1024, dtype=torch.float64)
    assert all(group.cost.template is None for group in groups)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_window_of_one_place_becomes_a_product_without_tf32(dtype):
    _, _, groups = planned(nn.Conv2d(64, 128, 1, bias=False), 8, 64, 56, 56, dtype=dtype)
    (product,) = [launch for group in groups for launch in group.cost.launches if isinstance(launch, Gemm)]
    assert (product.m, product.n, product.k) == (8 * 56 * 56, 128, 64)
    assert f"torch.{product.pipe.dtype}" == str(dtype)


def test_a_template_may_do_the_pointwise_kernel_behind_a_product():
    """The product's result, 16.8 MB, is then neither written nor read again."""
    _, _, groups = planned(nn.Sequential(nn.Linear(512, 1024, bias=False), nn.Sigmoid()), 4096, 512)
    product, sigmoid = groups
    result = 4 * 4096 * 1024
    assert product.cost.template.kernels == 1
    assert (sigmoid.cost.bytes, sigmoid.cost.template.bytes, sigmoid.cost.template.kernels) == (2 * result, 0, 0)


def test_the_choice_is_said_in_words():
    profile, schedule, _ = planned(nn.Sequential(nn.Linear(512, 1024, bias=False), nn.Sigmoid()), 4096, 512)
    product, sigmoid = (explanations(profile, schedule, number)[0] for number in ("0", "1"))
    assert "Which kernel runs is open: max-autotune times the library's" in product.launches[-1]
    assert sigmoid.launches[-1].startswith("A template of the matmul before it may do this too")
    assert choices_text(profile, schedule).startswith("2 kernels of ")
    assert "open choices" in render(profile, "text")
    assert "open choices" in render(profile, "html")
    several = profile.with_simulations((profile.schedule(schedule.gpu), schedule))
    said = " ".join(render(several, "text").split())
    low, high = duration(schedule.totals.low_s), duration(schedule.totals.high_s)
    assert f"max-autotune is a range, {low} to {high} (80 %) around" in said


def test_windows_that_the_library_has_no_tensor_cores_for_are_in_the_range():
    """KernelBench's 3-D convolutions of 3 channels on an L40S: templates take 0.58 to 0.61 of the library's time."""
    path = truth("kernelbench_v0_times.csv")
    if path is None:
        pytest.skip("kernelbench_v0_times.csv is not here")
    times_s = {"54": 2.71e-3, "60": 7.42e-3, "66": 32.7e-3}
    samples = [
        s for s in read_measured(path).of(ModuleSample) if s.gpu.name == "l40s" and s.op_class == "level 1 eager"
    ]
    for sample in samples:
        if measured_s := times_s.get(sample.module.split("_")[1]):
            profile = sample.profile.on([sample.gpu])
            totals = profile.schedule(sample.gpu, "max-autotune", launch="call").totals
            default = profile.schedule(sample.gpu, "inductor", launch="call").totals
            assert totals.low_s < measured_s < totals.high_s
            assert not default.low_s < measured_s, "the default mode runs the library's kernel"
