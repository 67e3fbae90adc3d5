"""Whole networks on one GPU, as their libraries' authors and users timed them.

- timm's benchmark (huggingface/pytorch-image-models): forward under autocast, a mean that ends with a synchronize
- Stable Diffusion's U-Net (huggingface/diffusers): an iteration of float16 and channels last, eager and compiled with
  CUDA graphs, of twice as many latents as pictures
- torchvision's networks by a user (ryujaehun/pytorch-gpu-benchmark), forward and backward without an optimizer; the
  pictures are copied from pageable memory inside the time
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from memwall.analysis.validation import TimedRow
from memwall.bench.accuracy.halves import module_in_fit_half
from memwall.bench.accuracy.kinds import Record, Skip, TableKind, Timed, seconds
from memwall.bench.accuracy.samples import held_out_gpu
from memwall.hardware.constants import AttentionConstants
from memwall.hardware.host import default_host
from memwall.hardware.lookup import Gpu
from memwall.hardware.torch_versions import TORCH
from memwall.perfmodel.base import constants
from memwall_lab.modules import ModuleSample
from memwall_lab.network_models import OLDEST, NetworkStep, traced
from memwall_lab.tables.base import gpu_named, known, size


@dataclass(frozen=True, slots=True)
class NetworkSample(Timed):
    """One measured step of a network, which is traced when it is modeled. ``policy`` and ``launch`` are as of
    :class:`ModuleSample`."""

    IS_SIMULATED: ClassVar[bool] = True

    dataset: str
    label: str
    gpu: Gpu
    op_class: str
    dtype: str
    step: NetworkStep
    policy: str
    launch: str
    measured_s: float
    #: seconds of the measured time beside the step, in which the GPU waits for the CPU
    beside_s: float = 0.0

    @property
    def shape(self) -> str:
        return f"{self.step.name}, {self.step.batch} x {self.step.side}"

    @property
    def in_fit_half(self) -> bool:
        """Whether the constants may see the network, whatever its batch."""
        return module_in_fit_half(self.step.name)

    def left_out(self) -> NetworkSample:
        """The step as if no kernel had been measured on its GPU."""
        return replace(self, gpu=held_out_gpu(self.gpu))

    def module(self) -> ModuleSample:
        """The step as a module that was traced."""
        return ModuleSample(
            self.dataset, self.label, self.gpu, self.op_class, self.step.name, traced(self.step), self.policy,
            self.launch, self.measured_s,
        )  # fmt: skip

    def row(self) -> TimedRow:
        return _row(self)

    @classmethod
    def model(cls, samples: Sequence[NetworkSample], skipped: Counter[str]) -> list[TimedRow]:
        """The rows of the steps that can be traced: their library is installed, and has the network."""
        rows = []
        for sample in samples:
            try:
                rows.append(sample.row())
            except Skip as reason:
                skipped[str(reason)] += 1
        return rows


@lru_cache(maxsize=2048)
def _row(sample: NetworkSample) -> TimedRow:
    """The row of a sample, which is in several sets of a score."""
    row, more_s = sample.module().row(), sample.beside_s
    assert row.low_s is not None and row.high_s is not None
    return replace(
        row, dtype=sample.dtype, shape=sample.shape, modeled_s=row.modeled_s + more_s, low_s=row.low_s + more_s,
        high_s=row.high_s + more_s,
    )  # fmt: skip


#: first words of the versions of torch whose flash attention is FlashAttention's first, and its time over the second's:
#: torch 2.2 has the latter, "around 2x speedups" (release notes of 2.2; the abstract of arXiv 2307.08691 says the same)
_FIRST_FLASH, _FIRST_OVER_SECOND = ("2.0", "2.1", "nightly-2023"), 2.0


def gpu_of(record: Record) -> Gpu:
    """The GPU of a row, with the attention of its version of torch."""
    gpu = gpu_named(record["gpu"])
    if not record["torch"].startswith(_FIRST_FLASH):
        return gpu
    flash = constants(AttentionConstants, gpu, "flash")
    slower = {
        "attention.flash.plateau": flash.plateau / _FIRST_OVER_SECOND,
        "attention.flash.softmax_instructions": flash.softmax_instructions * _FIRST_OVER_SECOND,
    }
    return replace(gpu, utilization={**gpu.utilization, **slower})


class Networks(TableKind):
    """timm's table."""

    def read(self, record: Record, source: Path) -> Iterator[NetworkSample]:
        if record["gpu"].startswith("cpu:"):
            raise Skip("a CPU")
        gpu, precision, layout = gpu_of(record), record["precision"], record["layout"]
        dtype, autocast = known(_PRECISIONS, precision, "precision")
        step = NetworkStep(
            "timm", record["model"], size(record, "batch"), size(record, "img"),
            known({"infer": "inference"}, record["phase"], "phase"), dtype, autocast,
            known(_LAYOUTS, layout, "layout"), torch=record["torch"] if record["torch"] in TORCH else OLDEST,
        )  # fmt: skip
        compiled = record["compiled"] == "1"
        kind = f"{record['phase']} {layout}{' compiled' if compiled else ''}"
        policy = "inductor" if compiled else "eager"
        yield NetworkSample(
            self.name, record["gpu"], gpu, kind, precision, step, policy, "eager", seconds(record, "step_ms")
        )


#: precision of the table → dtype of the model, of autocast
_PRECISIONS: Mapping[str, tuple[str | None, str | None]] = {
    "autocast-fp16": (None, "fp16"), "autocast-bf16": (None, "bf16"), "bf16": ("bf16", None), "fp16": ("fp16", None),
    "fp32": (None, None),
}  # fmt: skip
#: whether channels are last
_LAYOUTS = {"nchw": False, "nhwc": True}


class UNets(TableKind):
    """Iterations of Stable Diffusion."""

    def read(self, record: Record, source: Path) -> Iterator[NetworkSample]:
        name, side = known(_PIPELINES, record["pipeline"], "pipeline")
        step = NetworkStep(
            "diffusers", name, size(record, "unet_batch"), side, dtype="fp16", channels_last=True, searched=False
        )
        policy, launch, kind, beside_s = _WAYS[record["compiled"] == "1"]
        gpu = gpu_of(record)
        if gpu.name in _CLOUD:
            gpu = replace(gpu, host=default_host().scaled(_CLOUD_HOST))
        yield NetworkSample(
            self.name, record["gpu"], gpu, kind, "float16", step, policy, launch,
            seconds(record, "ms_per_iteration"), beside_s,
        )  # fmt: skip


#: whether it was compiled → policy, launch, kind, and seconds beside the step: guards in Python, copies into the CUDA
#: graph and the scheduler, which reads its number of the step from the GPU, before the next starts: the median of what
#: the four rows of one compiled picture that may be fitted to take longer, "SD - inpaint" on an A100 and an RTX 3090
#: (3.1 to 8.3 ms)
_WAYS = {
    False: ("eager", "eager", "iteration", 0.0), True: ("inductor", "graph", "iteration compiled", 5.8e-3)
}  # fmt: skip
#: boards of a cloud, and the CPU and Python of its machines relative to bare-metal, with the scheduler's step: what the
#: two rows of one eager picture that may be fitted to ask for, "SD - inpaint" on an A100 (2.8 and 2.9)
_CLOUD, _CLOUD_HOST = ("a100-80gb-sxm", "v100-sxm2-16gb", "t4"), 2.85
#: pipeline → its U-Net, the side of a latent
_PIPELINES: Mapping[str, tuple[str, int]] = {
    "SD - txt2img": ("SD", 64), "SD - img2img": ("SD", 64), "SD - inpaint": ("SD inpaint", 64),
    "SD - controlnet": ("SD + ControlNet", 64), "SDXL - txt2img": ("SDXL", 128),
}  # fmt: skip


class Classics(TableKind):
    """torchvision's networks."""

    def read(self, record: Record, source: Path) -> Iterator[NetworkSample]:
        precision, phase = record["precision"], record["phase"]
        dtype, itemsize = known(_DTYPES, precision, "precision")
        batch, side = size(record, "batch"), size(record, "img")
        host, bytes_per_s = known(_MACHINES, record["gpu"], "the machine of")
        gpu = gpu_named(record["gpu"])
        gpu = replace(gpu, host=default_host().scaled(host))
        step = NetworkStep("torchvision", record["model"], batch, side, phase, dtype)
        yield NetworkSample(
            self.name, record["gpu"], gpu, phase, precision, step, "eager", "eager", seconds(record, "median_ms"),
            3 * side * side * batch * itemsize / bytes_per_s,
        )  # fmt: skip


#: precision of the table → dtype of model and pictures, bytes of a number
_DTYPES: Mapping[str, tuple[str | None, int]] = {"fp16": ("fp16", 2), "fp32": (None, 4), "fp64": ("fp64", 8)}
#: GPU of the table → the CPU and Python of its machine relative to bare-metal: about the median of what rows of the
#: A100 ask for that the host binds and that may be fitted to, 1.2 to 3.0; and the rate of the copy from pageable
#: memory: what float32 pictures take longer than float16 in resnet18 and shufflenet_v2_x0_5 on the A100 (1.7 to 2.4
#: GB/s), 1.2 ms by the header of the table on the other
_MACHINES = {"A100-SXM4-40GB": (1.9, 2e9), "GeForce RTX 2080 Ti": (1.9, 6e9)}

TIMM = Networks("timm", "gpu torch phase precision layout compiled model batch img step_ms")
DIFFUSERS = UNets("diffusers", "gpu torch pipeline unet_batch compiled ms_per_iteration")
CLASSICS = Classics("torchvision", "gpu precision phase model batch img median_ms min_ms")
