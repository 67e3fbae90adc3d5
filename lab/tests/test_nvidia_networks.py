"""NVIDIA's networks of 2019 to 2022: their sizes, the kernels of a layer by hand, and what a row is taken for."""

from collections import Counter

import pytest
import torch

from memwall.bench.accuracy import read_measured
from memwall.core.errors import UsageError
from memwall_lab.convnets import NETS
from memwall_lab.modules import ModuleSample
from memwall_lab.old_bert import BASE, Encoder
from memwall_lab.tables.nvidia import Case, traced

FASTER = "model,gpu,engine,precision,batch,seq_or_img,latency_ms,file\n"
EXAMPLES = "model,gpu,gpus,phase,precision,batch_per_gpu,seq_or_img,throughput,unit,latency_ms,heading,file\n"


def _read(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    return read_measured(path)


#: millions of parameters: torchvision's documentation of resnet50, resnext101_32x4d (timm) and efficientnet_b0, b4
@pytest.mark.parametrize(
    ("name", "millions"),
    [("resnet50v1.5", 25.557), ("resnext101-32x4d", 44.178), ("efficientnet-b0", 5.289), ("efficientnet-b4", 19.342)],
)
def test_networks_have_as_many_parameters_as_published(name, millions):
    with torch.device("meta"):
        made = NETS[name][0]()
    assert sum(p.numel() for p in made.parameters()) / 1e6 == pytest.approx(millions, abs=5e-4)


def test_an_encoder_layer_of_that_time_by_hand():
    """Six linear layers are a matmul and an addition each; attention copies query, key, value and its result, and has
    two matmuls, a division, the mask and a softmax; then GELU, two residuals and two norms: 26. BERT-base's layers have
    12 x (12 x 768^2 + 13 x 768) = 85,054,464 parameters."""
    with torch.device("meta"):
        made = Encoder(BASE)
    assert sum(p.numel() for p in made.parameters()) == 85_054_464
    assert len(traced(Case("bert-base", 2, 32, "fp16")).graph.ops) == 12 * 26


def test_nvidias_adam_in_float32_goes_over_each_parameter_alone():
    """24 layers of 16 parameters, three embeddings, and weight and bias of the norm and of the ends are 391. For each
    its gradient is zeroed and added to; the weight is clipped by a product and a division; the moments take four ops
    in place; the update a root, a sum and a quotient, and the decay and itself are added in place."""
    graph = traced(Case("bert-large", 1, 32, "fp32", "training")).graph
    count = Counter(op.name.removeprefix("aten.") for op in graph.ops if op.phase == "optimizer")
    assert [count[name] for name in ("zero_", "addcmul_", "sqrt", "add.Tensor")] == 4 * [391]
    assert [count[name] for name in ("mul_.Tensor", "div.Tensor", "add_.Tensor")] == [782, 782, 4 * 391]


def test_rows_of_fastertransformer(tmp_path):
    rows = (
        '"bert-base encoder (12 layers)",a10,torchscript,fp16,1,32,2.5,x\n'
        '"bert-base encoder (12 layers)",a10,ft,fp16,1,32,1.5,x\n'
    )
    found = _read(tmp_path, FASTER + rows)
    (sample,) = found.of(ModuleSample)
    assert (sample.gpu.name, sample.op_class, sample.measured_s) == ("a10", "torchscript bert-base fp16", 2.5e-3)
    assert dict(found.skipped) == {"engine 'ft' is not known": 1}


def test_rows_of_deeplearningexamples_are_of_one_gpu(tmp_path):
    """16 sequences at 32 a second take half a second."""
    rows = (
        "bert-large,v100-sxm2-32gb,1,inference,amp,16,384,32,seq/s,,,\n"
        "bert-large,v100-sxm2-32gb,8,inference,amp,16,384,250,seq/s,,,\n"
    )
    found = _read(tmp_path, EXAMPLES + rows)
    (sample,) = found.of(ModuleSample)
    assert (sample.op_class, sample.measured_s) == ("inference bert amp", 0.5)
    assert sample.gpu.host.launch_s > 2 * 6.2e-6  # of a DGX-1 and the Python of its time
    with pytest.raises(UsageError, match="several GPUs"):
        _read(tmp_path, EXAMPLES + rows.splitlines(keepends=True)[1])
