"""Whole networks on one GPU, as their libraries' authors and users timed them.

- timm's benchmark (huggingface/pytorch-image-models): forward under autocast, a mean that ends with a synchronize
- Stable Diffusion's U-Net (huggingface/diffusers): an iteration of float16 and channels last, eager and compiled with
  CUDA graphs, of twice as many latents as pictures
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
from memwall.hardware.lookup import Gpu
from memwall.hardware.torch_versions import TORCH
from memwall_lab.modules import ModuleSample
from memwall_lab.network_models import OLDEST, NetworkStep, traced
from memwall_lab.tables.base import gpu_named, known, size


@dataclass(frozen=True, slots=True)
class NetworkSample(Timed):
    """One measured step of a network, which is traced when it is modeled. ``policy`` and ``launch`` are those of
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
    return replace(sample.module().row(), dtype=sample.dtype, shape=sample.shape)


class Networks(TableKind):
    """timm's table."""

    def read(self, record: Record, source: Path) -> Iterator[NetworkSample]:
        if record["gpu"].startswith("cpu:"):
            raise Skip("a CPU")
        gpu, precision, layout = gpu_named(record["gpu"]), record["precision"], record["layout"]
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
        policy, launch, kind = _WAYS[record["compiled"] == "1"]
        yield NetworkSample(
            self.name, record["gpu"], gpu_named(record["gpu"]), kind, "float16", step, policy, launch,
            seconds(record, "ms_per_iteration"),
        )  # fmt: skip


#: whether it was compiled → policy, launch, kind
_WAYS = {False: ("eager", "eager", "iteration"), True: ("inductor", "graph", "iteration compiled")}
#: pipeline → its U-Net, the side of a latent
_PIPELINES: Mapping[str, tuple[str, int]] = {
    "SD - txt2img": ("SD", 64), "SD - img2img": ("SD", 64), "SD - inpaint": ("SD inpaint", 64),
    "SD - controlnet": ("SD + ControlNet", 64), "SDXL - txt2img": ("SDXL", 128),
}  # fmt: skip

TIMM = Networks("timm", "gpu torch phase precision layout compiled model batch img step_ms")
DIFFUSERS = UNets("diffusers", "gpu pipeline unet_batch compiled ms_per_iteration")
