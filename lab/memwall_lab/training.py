"""A training step that others timed on many GPUs: a language model by its sizes, a layout, and the model's time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from memwall.analysis.validation import TimedRow
from memwall.bench.accuracy.halves import in_fit_half
from memwall.bench.accuracy.kinds import Timed
from memwall.bench.accuracy.samples import held_out_gpu
from memwall.core.files import uncollected
from memwall.core.graph import Pipe
from memwall.hardware.links import Cluster
from memwall.hardware.lookup import Gpu
from memwall.record.profile import Profile
from memwall.simulate.memory import reserved_bytes
from memwall.training.blocks import Blocks
from memwall.training.layout import Parallelism
from memwall.training.rank import blocks_of, trace_rank
from memwall.training.step import TrainingStep, training_step
from memwall_lab.sizes import Sizes

#: layers that are traced: the first, one between, and the last
_TRACED = 3
#: a trivial model: the FLOPs of the model and of what is computed again, at this share of the peak
_R1_PEAK = 0.4


@dataclass(frozen=True, slots=True)
class TrainingSample(Timed):
    """One measured step. ``microbatch`` are sequences; ``state`` and ``overlap`` are as of
    :func:`memwall.training.step.training_step`; ``label`` is the data set's name for the GPUs."""

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
    #: whether all of each layer is computed again where its activations do not fit: the table does not say
    recomputes_to_fit: bool = False
    #: layers of each stage, where the program says so
    stages: tuple[int, ...] = ()
    #: whether the loss is one kernel
    fused_loss: bool = False
    #: whether fused kernels are written by hand, in one module each; else ops run as PyTorch has them
    hand_fused: bool = True
    #: how many times longer attention takes than in the kernels that are modeled
    attention: float = 1.0

    @property
    def shape(self) -> str:
        #: what the table does not have is left out
        sizes, layout = self.sizes, replace(self.layout, async_tp=False, dispatcher="alltoall", a2a_overlap=False)
        return f"{sizes.width} x {sizes.layers}, {sizes.heads} heads, {self.microbatch} x {sizes.seq} tokens, {layout}"

    @property
    def in_fit_half(self) -> bool:
        """Whether the constants may see its model and layout: the parity of a SHA-256. They were fitted when a shared
        optimizer, of which the tables say nothing, was written as shared gradients: a row stays in its half."""
        return in_fit_half(self.shape.replace("fsdp=optimizer", "fsdp=grad"))

    def left_out(self) -> TrainingSample:
        """The sample as if no kernel had been measured on its GPU."""
        return replace(self, gpu=held_out_gpu(self.gpu))

    def step(self) -> TrainingStep:
        """The step, modeled."""
        found = self._step(self.layout)
        most = max(memory.total for memory in found.memory)
        if self.recomputes_to_fit and most + reserved_bytes(self.gpu, most) > self.gpu.dram_bytes:
            return self._step(replace(self.layout, recompute="full"))
        return found

    def _step(self, layout: Parallelism) -> TrainingStep:
        stretched = _blocks(self).stretched(self.sizes.layers, max(self.sizes.dense, 1))
        stretched = replace(stretched, stages=self.stages)
        return training_step(stretched, layout, self.cluster, state=self.state, overlap=self.overlap)

    def row(self) -> TimedRow:
        """The step, modeled and measured."""
        step = self.step()
        peak = self.gpu.peak(Pipe("tensor", self.sizes.products or self.dtype)) * self.layout.world
        r0_s = step.hardware_flops / peak
        return TimedRow(
            self.dataset,
            self.label,
            self.op_class,
            self.dtype,
            step.time_s,
            self.measured_s,
            shape=self.shape,
            r0_s=r0_s,
            r1_s=r0_s / _R1_PEAK,
        )


_KNOWN: dict[tuple[object, ...], Blocks] = {}


def _blocks(of: TrainingSample) -> Blocks:
    """The blocks of a rank, read once for each cluster, by its name."""
    rank = (replace(of.sizes, layers=_TRACED, dense=min(of.sizes.dense, 1)), of.microbatch, of.layout.traced, of.dtype,
            of.fused_loss or not of.hand_fused)  # fmt: skip
    key = (*rank, of.hand_fused, of.cluster.name, of.gpu, of.attention)
    if key not in _KNOWN:
        policy = "memwall" if of.hand_fused else "eager"
        _KNOWN[key] = blocks_of(_profile(*rank), of.cluster, policy, gpu=of.gpu, within_modules=of.hand_fused,
                                slower={"attention": of.attention})  # fmt: skip
    return _KNOWN[key]


@lru_cache(maxsize=512)
@uncollected()
def _profile(sizes: Sizes, batch: int, layout: Parallelism, dtype: str, fused_loss: bool) -> Profile:
    """A microbatch of a rank's model, traced once for all GPUs. Attention is FlashAttention's where the model asks for
    no other: all runs are older than a torch that prefers cuDNN's. What tensor parallelism splits does not depend on
    how products are computed."""
    import torch

    from memwall.frontend.targets import Workload
    from memwall.frontend.torch import TraceOptions, trace
    from memwall.hardware.torch_versions import TORCH, UNSAID
    from memwall.ops.sdpa import GENERATIONS, Backends
    from memwall.training.sharding import find_split
    from memwall_lab.language_model import LanguageModel, next_token_loss, vocab_parallel_loss

    def workload(sizes: Sizes, loss: Any) -> Workload:
        kind: Any = getattr(torch, dtype)
        ids = partial(torch.zeros, batch, sizes.seq, dtype=torch.long)
        return Workload(lambda: LanguageModel(sizes).to(kind), lambda: (ids(),), loss, None)

    plain = workload(replace(sizes, products="", cudnn=False, adapters=0), None)
    split = find_split(trace(plain, TraceOptions("inference")).graph) if layout.tp > 1 else None
    if split is not None and sizes.adapters:  # Megatron-LM divides the second product as the layer that it adapts
        groups = ((columns, row) for columns, row in split.groups)
        split = replace(split, groups=tuple((_with_adapters(columns), row) for columns, row in groups))
    loss = next_token_loss if fused_loss else vocab_parallel_loss
    ran = TraceOptions(attention=Backends(GENERATIONS["cudnn"], TORCH[UNSAID]))
    return trace_rank(workload(sizes, loss), layout, ran, split)


def _with_adapters(columns: tuple[str, ...]) -> tuple[str, ...]:
    return (*columns, *(f"{path}_adapter.up" for path in columns if path.endswith(".qkv")))
