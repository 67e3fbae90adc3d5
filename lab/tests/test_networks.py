"""Whole networks that others timed: which step a row is, by hand."""

from importlib.util import find_spec

import pytest

from memwall.bench.accuracy import read_measured
from memwall_lab.network_models import NetworkStep, traced
from memwall_lab.tables.networks import NetworkSample

TIMM = "gpu,torch,cuda,phase,precision,layout,compiled,model,batch,img,step_ms\n"
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
