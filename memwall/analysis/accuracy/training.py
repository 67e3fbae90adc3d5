"""A training step that others timed on many GPUs: a language model by its sizes, a layout, and the model's time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from memwall.analysis.accuracy.samples import held_out_gpu
from memwall.analysis.accuracy.sizes import Sizes
from memwall.analysis.training import blocks_of, trace_rank
from memwall.analysis.validation import Row
from memwall.core.files import uncollected
from memwall.core.graph import Pipe
from memwall.core.parallelism import Parallelism
from memwall.hardware.links import Cluster
from memwall.hardware.lookup import Gpu
from memwall.record.profile import Profile
from memwall.simulate.blocks import Blocks
from memwall.simulate.training import TrainingStep, training_step

#: layers that are traced: the first, one between, and the last
_TRACED = 3
#: a trivial model: the FLOPs of the model and of what is computed again, at this share of the peak
_R1_PEAK = 0.4


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One measured step. ``microbatch`` are sequences; ``state``, ``overlap`` and ``async_tp`` are those of
    :func:`memwall.simulate.training.training_step`; ``label`` is the data set's name for the GPUs."""

    dataset: str
    label: str
    cluster: Cluster
    gpu: Gpu
    op_class: str
    dtype: str
    sizes: Sizes
    microbatch: int
    layout: Parallelism
    measured_s: float
    state: str = "fused"
    overlap: bool = True
    async_tp: bool = False
    #: whether fused kernels are written by hand, in one module each; else ops run as PyTorch has them
    hand_fused: bool = True
    #: how many times longer attention takes than in the kernels that are modeled
    attention: float = 1.0

    @property
    def shape(self) -> str:
        sizes, batch = self.sizes, self.microbatch
        return f"{sizes.width} x {sizes.layers}, {sizes.heads} heads, {batch} x {sizes.seq} tokens, {self.layout}"

    @property
    def in_fit_half(self) -> bool:
        """Whether the constants may see its model and layout: the parity of a SHA-256."""
        return hashlib.sha256(self.shape.encode()).digest()[-1] % 2 == 0

    def left_out(self) -> TrainingSample:
        """The sample as if no kernel had been measured on its GPU."""
        return replace(self, gpu=held_out_gpu(self.gpu))

    def step(self) -> TrainingStep:
        """The step, modeled."""
        stretched = _blocks(self).stretched(self.sizes.layers)
        return training_step(stretched, self.layout, self.cluster, state=self.state, overlap=self.overlap,
                             async_tp=self.async_tp)  # fmt: skip

    def row(self) -> Row:
        """The step, modeled and measured."""
        step = self.step()
        peak = self.gpu.peak(Pipe("tensor", self.dtype)) * self.layout.world
        r0_s = step.hardware_flops / peak
        return Row(self.dataset, self.label, self.op_class, self.dtype, step.time_s, self.measured_s, shape=self.shape,
                   r0_s=r0_s, r1_s=r0_s / _R1_PEAK)  # fmt: skip


_KNOWN: dict[tuple[object, ...], Blocks] = {}


def _blocks(of: TrainingSample) -> Blocks:
    """The blocks of a rank, read once for each cluster, by its name."""
    rank = (replace(of.sizes, layers=_TRACED), of.microbatch, of.layout.traced, of.dtype, of.hand_fused)
    key = (*rank, of.cluster.name, of.gpu, of.attention)
    if key not in _KNOWN:
        policy = "memwall" if of.hand_fused else "eager"
        _KNOWN[key] = blocks_of(_profile(*rank), of.cluster, policy, gpu=of.gpu, within_modules=of.hand_fused,
                                slower={"attention": of.attention})  # fmt: skip
    return _KNOWN[key]


@lru_cache(maxsize=512)
@uncollected()
def _profile(sizes: Sizes, batch: int, layout: Parallelism, dtype: str, hand_fused: bool) -> Profile:
    """A microbatch of a rank's model, traced once for all GPUs. Megatron-LM, whose kernels are fused by hand, has a
    cross-entropy of its own."""
    import torch

    from memwall.analysis.accuracy.language_model import LanguageModel, next_token_loss, vocab_parallel_loss
    from memwall.frontend.torch import TraceOptions
    from memwall.frontend.workload import Workload

    def model() -> Any:
        return LanguageModel(sizes).to(getattr(torch, dtype))

    loss = vocab_parallel_loss if hand_fused else next_token_loss
    workload = Workload(model, lambda: (torch.zeros(batch, sizes.seq, dtype=torch.long),), loss, None)
    return trace_rank(workload, layout, TraceOptions())


def training_rows(samples: Iterable[TrainingSample]) -> list[Row]:
    """One row for each sample."""
    return [sample.row() for sample in samples]
