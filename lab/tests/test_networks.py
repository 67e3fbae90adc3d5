"""Whole networks that others timed: which step a row is, by hand."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from memwall.bench.accuracy import read_measured
from memwall.hardware.constants import AttentionConstants
from memwall.hardware.lookup import load_gpu
from memwall.perfmodel.base import constants
from memwall_lab.convnets import NETS
from memwall_lab.network_models import NetworkStep, traced
from memwall_lab.tables.networks import NetworkSample

TIMM = "gpu,torch,cuda,phase,precision,layout,compiled,model,batch,img,step_ms\n"
CLASSIC = "gpu,precision,phase,model,batch,img,median_ms,min_ms,mean_ms,n,file\n"
UNET = "gpu,pipeline,images,unet_batch,torch,compiled,iterations_per_s,ms_per_iteration\n"


@pytest.fixture
def sample(tmp_path):
    def read(text):
        (tmp_path / "t.csv").write_text(text, encoding="utf-8")
        return read_measured(tmp_path / "t.csv").of(NetworkSample)

    return read


def test_a_row_of_timm(sample):
    rows = sample(
        TIMM
        + "rtx-4090,2.9,cu128,infer,autocast-fp16,nhwc,0,resnet50,256,224,40\n"
        + "rtx-4090,2.4,cu124,infer,bf16,nchw,1,resnet50,256,224,30\n"
        + "cpu:i9_10940x,2.2,,infer,fp32,nchw,1,resnet50,1,224,30\n"
    )
    assert [(row.op_class, row.policy, row.measured_s) for row in rows] == [
        ("infer nhwc", "eager", 0.04), ("infer nchw compiled", "inductor", 0.03)
    ]  # fmt: skip
    assert rows[0].step == NetworkStep("timm", "resnet50", 256, 224, autocast="fp16", channels_last=True)
    assert (rows[1].step.dtype, rows[1].step.autocast, rows[1].step.channels_last) == ("bf16", None, False)


def test_an_iteration_of_stable_diffusion(sample):
    (row,) = sample(UNET + "t4,SD - inpaint,4,8,2.0,1,2.5,400\n")
    assert (row.step.name, row.step.batch, row.step.side, row.step.searched) == ("SD inpaint", 8, 64, False)
    assert (row.step.dtype, row.step.channels_last) == ("fp16", True)
    assert (row.policy, row.launch, row.measured_s) == ("inductor", "graph", 0.4)
    assert row.beside_s == 5.8e-3


def test_attention_of_torch_before_2_2_takes_twice_as_long(sample):
    """FlashAttention's first version: half of the second's rate in matmuls, twice its instructions of softmax; 2.4 has
    the second."""
    text = "rtx-3090,{},cu121,infer,autocast-fp16,nchw,0,resnet50,256,224,40\n"
    old, new = (row.gpu for row in sample(TIMM + text.format("2.1") + text.format("2.4")))
    first, second = (constants(AttentionConstants, gpu, "flash") for gpu in (old, new))
    assert new == load_gpu("rtx-3090")
    assert first.plateau == second.plateau / 2
    assert first.softmax_instructions == 2 * second.softmax_instructions


def test_a_row_of_torchvision_holds_the_copy_of_the_pictures(sample):
    """12 x 3 x 224 x 224 numbers of 4 bytes are 7.23 MB: 1.2 ms at 6 GB/s, 3.6 at 2."""
    text = "{},fp32,inference,resnet18,12,224,6,5.9,6.1,50,x\n"
    rows = sample(CLASSIC + text.format("GeForce RTX 2080 Ti") + text.format("A100-SXM4-40GB"))
    assert [row.beside_s for row in rows] == pytest.approx([1.204e-3, 3.613e-3], rel=1e-3)
    with_copy, without = rows[0].row(), replace(rows[0], beside_s=0.0).row()
    assert with_copy.modeled_s - without.modeled_s == pytest.approx(1.204e-3, rel=1e-3)


@pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")
def test_the_multiply_adds_of_a_resnet_and_the_dtype_of_its_steps():
    """timm states 4.1 G for resnet50 at 224 pixels (its model card): 8.2 GFLOP a picture; convolutions under autocast
    run in float16, and cuDNN searches."""
    profile = traced(NetworkStep("timm", "resnet50", 2, 224, autocast="fp16", channels_last=True))
    assert sum(cost.total_flops for cost in profile.costs[0]) / 2 == pytest.approx(8.2e9, rel=0.02)
    convolutions = [op for op in profile.graph.ops if op.op_class == "convolution"]
    assert len(convolutions) == 53
    for op in convolutions:
        assert profile.graph.values[op.outputs[0]].spec.dtype == "float16"
        assert op.attributes["benchmark"]


@pytest.mark.skipif(find_spec("diffusers") is None, reason="diffusers is not installed")
def test_the_parameters_of_a_u_net():
    """Stable Diffusion 1.5's has 859.5 M parameters (its model card: 860 M)."""
    graph = traced(NetworkStep("diffusers", "SD", 2, 64, dtype="fp16", channels_last=True)).graph
    nbytes = sum(storage.nbytes for storage in graph.storages if storage.role == "parameter")
    assert nbytes / 2 == pytest.approx(859.5e6, rel=1e-3)


#: millions of parameters in torchvision's documentation
@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("resnet18", 11.690), ("resnet34", 21.798), ("resnet152", 60.193), ("resnext101_32x8d", 88.791),
        ("wide_resnet50_2", 68.883), ("wide_resnet101_2", 126.887), ("vgg16", 138.358), ("vgg16_bn", 138.366),
        ("vgg19", 143.667), ("vgg19_bn", 143.678), ("shufflenet_v2_x0_5", 1.367), ("shufflenet_v2_x1_5", 3.504),
        ("shufflenet_v2_x2_0", 7.394),
    ],
)  # fmt: skip
def test_classic_networks_have_as_many_parameters_as_published(name, millions):
    with torch.device("meta"):
        made = NETS[name][0]()
    assert sum(p.numel() for p in made.parameters()) / 1e6 == pytest.approx(millions, abs=6e-4)


def test_kept_gradients_are_zeroed_and_added_to():
    """Of a ResNet-18's 62 parameters each gradient is a fill and an addition."""
    step = NetworkStep("torchvision", "resnet18", 2, 64, mode="training")
    names = [op.name for op in traced(step).graph.ops if op.phase == "optimizer"]
    assert [sum(name in each for each in names) for name in ("zero_", "add_")] == [62, 62]
