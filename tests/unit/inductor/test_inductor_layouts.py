"""Convolutions under ``inductor``: its layout optimization, the copies that it adds, and what they cost.

The expected kernels are those of torch/_inductor/graph.py (``decide_layout_opt``): 2-D convolutions run on channels
last; an image that comes from outside and a weight are copied to it, a result that the caller gets is copied back.
"""

import csv
import importlib.util

import pytest
import torch
from torch import nn

import memwall
from memwall.bench.accuracy.reading import read_measured
from memwall.ops.launches import Stream
from memwall.ops.product_launches import Convolution
from memwall_lab.modules import ModuleSample
from tests.unit.places import truth

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


def kernels(module, *shape, gpu="l40s", policy="inductor"):
    """The launches of each kernel."""
    profile = memwall.profile(module, (torch.empty(*shape, device="meta"),), gpu=gpu, policy=policy, mode="inference")
    (schedule,) = profile.simulations
    return [group.cost.launches for group in profile.plan(schedule).groups]


def test_a_lone_convolution_is_copied_to_channels_last_and_back():
    ((conv, *around),) = kernels(nn.Conv2d(3, 64, 3, bias=False), 16, 3, 256, 256)
    assert isinstance(conv, Convolution)
    assert conv.channels_last
    images, weight, result = 4 * 16 * 3 * 256**2, 4 * 64 * 3 * 9, 4 * 16 * 64 * 254**2
    assert sorted((copy.read_bytes, copy.write_bytes) for copy in around) == [
        (weight, weight), (images, images), (result, result),
    ]  # fmt: skip


def test_between_two_convolutions_nothing_is_copied_and_the_bias_is_added_by_the_kernel_behind():
    module = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))
    first, relu, second = kernels(module, 8, 64, 56, 56)
    tensor, weight = 4 * 8 * 64 * 56**2, 4 * 64 * 64 * 9
    assert [type(launch) for launch in first] == [Convolution, Stream, Stream]  # the image and the weight
    assert isinstance(relu[0], Stream)
    assert relu[0].read_bytes == tensor + 4 * 64  # with the bias of the convolution before
    # the weight; then one kernel adds the bias and writes the result as the caller expects it
    assert sorted(launch.read_bytes for launch in second[1:]) == [weight, tensor + 4 * 64]


def test_three_dimensions_keep_their_layout():
    ((conv, *around),) = kernels(nn.Conv3d(3, 16, 3, bias=False), 2, 3, 16, 32, 32)
    assert (conv.channels_last, around) == (False, [])


def test_the_layout_of_a_convolution_follows_cudnn_while_the_gpu_is_fake():
    from memwall.hardware.lookup import load_gpu
    from memwall.inductor.fake_gpu import fake_gpu

    one = torch.empty(2, 8, 4, 4, device="meta")
    weight = torch.empty(8, 8, 3, 3, device="meta")
    last = torch.channels_last
    with fake_gpu(load_gpu("l40s")):
        asked = torch._C._conv_determine_backend_memory_format
        assert asked(one, weight, None) is torch.contiguous_format
        assert asked(one.contiguous(memory_format=last), weight, None) is last
        assert asked(one, weight.contiguous(memory_format=last), None) is last
        doubles = one.contiguous(memory_format=last).double()
        assert asked(doubles, weight.double(), None) is torch.contiguous_format


def test_lone_convolutions_that_compiling_slows_down_are_named():
    """KernelBench's 2-D convolutions of few channels take 2.7 to 3.1 times as long compiled on an L40S."""
    path = truth("kernelbench_v0_times.csv")
    if path is None:
        pytest.skip("kernelbench_v0_times.csv is not here")
    with path.open() as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    took_s = {row["module"]: float(row["mean_ms"]) / 1e3 for row in rows
              if "L40S" in row["gpu"] and row["way"] == "compile_inductor_default"}  # fmt: skip
    samples = [
        s for s in read_measured(path).of(ModuleSample) if s.gpu.name == "l40s" and s.op_class == "level 1 eager"
    ]
    chosen = [s for s in samples if s.module.split("_")[1] in ("56", "62", "63", "80", "87")]
    assert len(chosen) == 5
    for sample in chosen:
        compiled = sample.profile.on([sample.gpu]).schedule(sample.gpu, "inductor", launch="graph")
        slower = compiled.totals.time_s / sample.schedule().totals.time_s
        assert slower == pytest.approx(took_s[sample.module] / sample.measured_s, rel=0.25), sample.module


def test_rows_that_no_cache_keeps_are_read_again():
    """1024 rows of 256 KiB: with four in flight on each of 142 multiprocessors, 149 MB, more than the 101 MB of L2.
    Of rows of 64 KiB, 37 MB are in flight."""
    for size, passes in ((256, 2), (128, 1)):
        ((kernel,),) = kernels(nn.InstanceNorm2d(64), 16, 64, size, size)
        nbytes = 4 * 16 * 64 * size**2
        assert (kernel.read_bytes, kernel.write_bytes) == (passes * nbytes, nbytes)


def test_copies_that_a_generated_kernel_writes_for_others_are_traffic():
    """A max pool and a convolution of one image: Inductor's kernel of the pool also writes the image to channels
    last."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool, self.conv = nn.MaxPool2d(3, 1, 1), nn.Conv2d(64, 64, 3, padding=1, bias=False)

        def forward(self, x):
            return self.pool(x), self.conv(x)

    image = 4 * 8 * 64 * 56**2
    generated = [launches for launches in kernels(Both(), 8, 64, 56, 56) if isinstance(launches[0], Stream)]
    ((kernel,),) = generated
    assert kernel.read_bytes + kernel.write_bytes == 3 * image
