"""NVIDIA's own measurements of whole networks in PyTorch: FasterTransformer's guides (NVIDIA/FasterTransformer) and
DeepLearningExamples' READMEs.

The networks are of 2019 to 2022 (:mod:`memwall_lab.old_bert`, :mod:`memwall_lab.convnets`; Swin and ViT are
transformers'), each row traced here. Longformer is left out: which tokens are global decides what it runs. TorchScript
of that time is taken for eager kernels. ``amp`` of a ConvNet is autocast in channels_last; of BERT, apex's O2, a model
in float16.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from memwall.bench.accuracy.kinds import Record, Skip, TableKind, number, seconds
from memwall.hardware.host import default_host
from memwall.record.profile import Profile
from memwall_lab.modules import ModuleSample
from memwall_lab.tables.base import gpu_named, known, size

#: engines of FasterTransformer's guides that are PyTorch
_ENGINES = {name: name for name in ("torchscript", "torch.jit.trace", "torch-eager", "hf-eager")}
#: training batches of ConvNets on one GPU, which the table leaves empty (its header)
_BATCHES = {
    ("resnet50v1.5", "amp"): 256, ("resnet50v1.5", "tf32"): 256, ("resnet50v1.5", "fp32"): 112,
    ("resnext101-32x4d", "amp"): 128, ("resnext101-32x4d", "tf32"): 128, ("resnext101-32x4d", "fp32"): 64,
    ("se-resnext101-32x4d", "amp"): 128, ("se-resnext101-32x4d", "tf32"): 128, ("se-resnext101-32x4d", "fp32"): 64,
}  # fmt: skip
#: GPU → the CPU of its DGX and Python of that time relative to bare-metal: the median over rows of DeepLearningExamples
#: of half of the modules, those whose kernels take less than two thirds of the measured time
_HOSTS = {"a100-80gb-sxm": 1.74, "v100-sxm2-16gb": 2.84, "v100-sxm2-32gb": 2.84}


@dataclass(frozen=True)
class Case:
    """A network as it ran: ``length`` is tokens of a sequence or pixels of a side."""

    name: str
    batch: int
    length: int
    precision: str
    mode: str = "inference"


class FasterTransformer(TableKind):
    """Latencies of encoders."""

    def read(self, record: Record, source: Path) -> Iterator[ModuleSample]:
        engine, precision = known(_ENGINES, record["engine"], "engine"), record["precision"]
        name = record["model"].split()[0]
        known(_BUILDERS, name, "model")
        case = Case(name, size(record, "batch"), size(record, "seq_or_img"), precision)
        yield _sample(self.name, record["gpu"], f"{engine} {name} {precision}", case, seconds(record, "latency_ms"))


class DeepLearningExamples(TableKind):
    """Throughputs of training and inference on one GPU."""

    def read(self, record: Record, source: Path) -> Iterator[ModuleSample]:
        name, precision, phase = record["model"], record["precision"], record["phase"]
        if record["gpus"] != "1":
            raise Skip("several GPUs")
        if phase == "pretraining":
            raise Skip("the table does not state its microbatch")
        known(_BUILDERS, name, "model")
        training = phase.endswith("training")
        stated = record["batch_per_gpu"]
        batch = size(record, "batch_per_gpu") if stated else known(_BATCHES, (name, precision), "the batch of")
        length = size(record, "seq_or_img") if record["seq_or_img"] else _LENGTHS[name]
        case = Case(name, batch, length, precision, "training" if training else "inference")
        measured_s = batch / number(record, "throughput", 1e-3, 1e6, "a throughput")
        op_class = f"{case.mode} {_family(name)} {precision}"
        sample = _sample(self.name, record["gpu"], op_class, case, measured_s)
        yield replace(sample, gpu=replace(sample.gpu, host=default_host().scaled(known(_HOSTS, record["gpu"], "host"))))


def _family(name: str) -> str:
    return re.split(r"[-\d]", name)[0] if name.startswith(("bert", "resn")) else name


def _sample(table: str, label: str, op_class: str, case: Case, measured_s: float) -> ModuleSample:
    module = f"{case.name} {case.mode} {case.batch}x{case.length} {case.precision}"
    return ModuleSample(table, label, gpu_named(label), op_class, module, traced(case), "eager", "eager", measured_s)


@cache
def traced(case: Case) -> Profile:
    """The profile of a network as it ran."""
    import torch

    import memwall
    from memwall.frontend.targets import Workload

    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [each.allow_tf32 for each in switches]
    for each in switches:
        each.allow_tf32 = case.precision == "tf32"
    try:
        workload, step = _BUILDERS[case.name](case)
        return memwall.profile(
            Workload(**workload, name=case.name), gpu="a100-80gb-sxm", mode=case.mode, attention="math", **step
        )
    finally:
        for each, was in zip(switches, before, strict=True):
            each.allow_tf32 = was


# -- networks: the fields of a workload, and the options of a step --------------------------------------------------

Built = tuple[dict[str, Any], dict[str, Any]]


def _half(case: Case) -> Any:
    import torch

    return torch.float16 if case.precision in ("fp16", "amp") else torch.float32


def _encoder(case: Case) -> Built:
    import torch

    from memwall_lab.old_bert import BASE, Encoder

    dtype = _half(case)
    with torch.device("meta"):
        inputs = (
            torch.empty(case.batch, case.length, BASE.width, dtype=dtype),
            torch.empty(case.batch, 1, 1, case.length, dtype=dtype),
        )
        return {"model": Encoder(BASE).to(dtype), "inputs": inputs}, {}


def _answers(case: Case) -> Built:
    import torch

    from memwall_lab.old_bert import LARGE, Answers, BertAdam, MasterAdam, answers_loss

    dtype = _half(case)
    optimizer: Any = MasterAdam if dtype == torch.float16 else BertAdam
    with torch.device("meta"):
        inputs = tuple(torch.zeros(case.batch, case.length, dtype=torch.long) for _ in range(3))
        model = Answers(LARGE).to(dtype)
    return {"model": model, "inputs": inputs, "loss": answers_loss, "optimizer": optimizer}, {}


def _convolutional(case: Case) -> Built:
    import torch
    from torch.nn import functional as F

    from memwall_lab.convnets import NETS

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, torch.zeros(case.batch, dtype=torch.long, device=logits.device))

    layout = torch.channels_last if case.precision == "amp" else torch.contiguous_format
    with torch.device("meta"):
        pictures = torch.empty(case.batch, 3, case.length, case.length).contiguous(memory_format=layout)
        net: Any = NETS[case.name][0]()
    made = {"model": net.to(memory_format=layout), "inputs": (pictures,), "loss": loss, "optimizer": "sgd"}
    return made, {"autocast": "fp16"} if case.precision == "amp" else {}


def _of_transformers(kind: str, **sizes: Any) -> Callable[[Case], Built]:
    """A vision tower with attention written out."""

    def built(case: Case) -> Built:
        import torch
        import transformers

        config = getattr(transformers, f"{kind}Config")(**sizes, attn_implementation="eager")
        with torch.device("meta"):
            model = getattr(transformers, f"{kind}Model")(config).to(_half(case))
            pictures = torch.empty(case.batch, 3, case.length, case.length, dtype=_half(case))
        return {"model": model, "inputs": {"pixel_values": pictures}}, {}

    return built


_BUILDERS: Mapping[str, Callable[[Case], Built]] = {
    "bert-base": _encoder,
    "bert-large": _answers,
    "vit_base_patch16_384": _of_transformers("ViT", image_size=384),
    "swin_tiny_patch4_window7_224": _of_transformers("Swin"),
    "swinv2_tiny": _of_transformers("Swinv2", image_size=256, window_size=8),
    **dict.fromkeys(
        ("resnet50v1.5", "resnext101-32x4d", "se-resnext101-32x4d", "efficientnet-b0", "efficientnet-b4",
         "efficientnet-widese-b0", "efficientnet-widese-b4"),
        _convolutional,
    ),
}  # fmt: skip
#: what the table leaves empty: tokens of SQuAD, pixels of a side
_LENGTHS = {"bert-large": 384, "efficientnet-b4": 380, "efficientnet-widese-b4": 380} | dict.fromkeys(
    ("resnet50v1.5", "resnext101-32x4d", "se-resnext101-32x4d", "efficientnet-b0", "efficientnet-widese-b0"), 224
)

FASTER_TRANSFORMER = FasterTransformer("fastertransformer", "model gpu engine precision batch seq_or_img latency_ms")
EXAMPLES = DeepLearningExamples("dle_pytorch", "model gpu gpus phase precision batch_per_gpu seq_or_img throughput")
