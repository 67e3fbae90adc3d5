"""A training step on many GPUs: any module, a layout and a cluster → time, memory of each rank, and what would help.

One microbatch is traced on one of the ranks that share matmuls (:mod:`memwall.training.sharding`), cut into its blocks
(:mod:`memwall.training.block_reader`) and put on all GPUs (:mod:`memwall.training.step`). Ranks that are alike are
traced once: 4,096 GPUs take no longer than 8.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

from memwall.analysis.levers import NUMBERS, Number, kind_of
from memwall.analysis.pipes import peaks_of, peaks_text, product_flops
from memwall.analysis.whatif import GpuChange, parse_change
from memwall.core.errors import UsageError
from memwall.core.files import uncollected
from memwall.core.progress import heard, tell
from memwall.core.question import filled, part_of, signature_of
from memwall.core.views import ShownResult
from memwall.frontend.targets.seeds import seeded
from memwall.hardware.cluster import hardware_of, load_cluster
from memwall.hardware.gpu import Gpu
from memwall.hardware.host import Host
from memwall.hardware.links import Cluster
from memwall.record.kernels import short_name
from memwall.record.profile import Profile
from memwall.simulate.memory import reserved_bytes
from memwall.subjects import workload_of
from memwall.training.block_reader import peak_op
from memwall.training.blocks import Blocks
from memwall.training.layout import Parallelism
from memwall.training.messages import rank_messages
from memwall.training.question import Job, Microbatch, StateOptions
from memwall.training.rank import blocks_of, trace_rank
from memwall.training.states import STATES
from memwall.training.step import TrainingStep, training_step


@dataclass(frozen=True, slots=True)
class TrainingChange:
    """Another layout or policy, or another number of the hardware, with its step: what it does, the option that shows
    it, and the wall whose number it is (empty: none)."""

    name: str
    options: str
    wall: str
    step: TrainingStep


@dataclass(frozen=True, slots=True)
class Scaled:
    """The step on more GPUs: with as much work for each replica (``weak``), and with as much in all (``strong``; None
    where it does not divide)."""

    weak: TrainingStep
    strong: TrainingStep | None


@dataclass(frozen=True, repr=False)
class Training(ShownResult):
    """A step on many GPUs. ``profile`` is of the traced rank and microbatch; ``options`` are keywords of
    :func:`memwall.training.step.training_step`, ``policy`` is how kernels are fused, ``host`` issues them in place of
    the GPU's own."""

    profile: Profile
    blocks: Blocks
    gpu: Gpu
    step: TrainingStep
    options: Mapping[str, Any]
    policy: str = "eager"
    host: str | Path | Host | None = None

    @property
    def layout(self) -> Parallelism:
        return self.step.layout

    @property
    def tokens(self) -> int | None:
        """Tokens of a step on all GPUs; None where the inputs have none."""
        return self._of_step(self.profile.workload.tokens)

    @property
    def samples(self) -> int | None:
        """Samples of a step on all GPUs."""
        return self._of_step(self.profile.workload.samples)

    def _of_step(self, count: int | None) -> int | None:
        return None if count is None else count * self.layout.microbatches * self.layout.dp

    @property
    def tokens_per_s_per_gpu(self) -> float | None:
        return None if self.tokens is None else self.tokens / self.step.time_s / self.layout.world

    @property
    def mfu(self) -> float:
        """As of :class:`TrainingStep`."""
        return self.step.mfu

    @property
    def hfu(self) -> float:
        """As of :class:`TrainingStep`."""
        return self.step.hfu

    @property
    def mfu_base(self) -> str:
        """``989.40 TFLOP/s tensor.bfloat16``: the peaks that both are relative to; empty without matmuls."""
        on_gpu = self.profile.on([self.gpu])
        return peaks_text(peaks_of(product_flops(on_gpu, on_gpu.graph_for(self.gpu)), self.gpu))

    def fits(self, step: TrainingStep | None = None) -> bool:
        """Whether every rank's peak fits, with what is assumed for the context and the allocator; that of another step
        of the same model if one is given."""
        return self.held_bytes(step) <= self.gpu.dram_bytes

    def held_bytes(self, step: TrainingStep | None = None) -> int:
        """What the fullest GPU needs: its peak, and what is assumed for the context and the allocator."""
        return self._with_reserved(max(memory.total for memory in (step or self.step).memory))

    def _with_reserved(self, peak: int) -> int:
        return peak + reserved_bytes(self.gpu, peak)

    @property
    def largest_microbatch(self) -> int | None:
        """The most samples of a microbatch with which every rank's peak fits, activations growing with their number; 0
        where none does, None where the inputs have no samples."""
        samples, memory = self.profile.workload.samples, self.step.memory
        if not samples or not any(each.growing for each in memory):
            return None
        limit = self.gpu.dram_bytes * samples // max(each.growing for each in memory) + 1

        def is_too_large(count: int) -> bool:
            peak = max(each.total + each.growing * (count - samples) // samples for each in memory)
            return self._with_reserved(peak) > self.gpu.dram_bytes

        return bisect_left(range(1, limit + 1), True, key=is_too_large)

    @property
    def peak_op(self) -> str:
        """The pass, the op and the module in which the rank that holds most has its peak: ``backward pass at mm of
        layers.3``."""
        layout, rank = self.layout, self.step.peak_rank
        stage = layout.pp * (layout.chunks - 1) + rank
        first = self.blocks.cuts(layout.pp * layout.chunks)[stage] + 1 if stage else 0
        op = peak_op(self.profile.graph, first + self.step.memory[rank].block)
        return f"{op.phase} pass at {short_name(op.name)}" + (f" of {op.module}" if op.module else "")

    def messages(self, stage: int = 0) -> Counter[tuple[str, int, int]]:
        """What a rank of a stage sends and receives in a step: collective, bytes of its message, GPUs → how often."""
        blocks, kept = self.blocks, STATES[self.options["state"]]
        nodes = self.step.cluster.gpus_per_node
        return rank_messages(self.profile.graph, blocks, self.layout, kept, stage, nodes)

    @uncollected()
    def on(
        self,
        layout: str | Parallelism | None = None,
        cluster: str | Path | Cluster | None = None,
        *,
        world: int | None = None,
    ) -> Training:
        """The step under another layout, or on another cluster, from the same trace.

        Raises:
            UsageError: as :func:`parallel`; or a rank of the layout computes what the traced one does not.
        """
        asked = Parallelism.parse(layout) if isinstance(layout, str) else layout or self.layout
        asked.check(world=world)
        if asked.traced != self.layout.traced:
            raise UsageError(f"{asked}: a rank of {self.layout.traced} was traced; profile the module with this layout")
        if cluster is None:
            return replace(self, step=training_step(self.blocks, asked, self.step.cluster, **self.options))
        joined = load_cluster(cluster)
        gpu = hardware_of(joined, self.host)
        blocks = blocks_of(self.profile, joined, self.policy, gpu=gpu)
        step = training_step(blocks, asked, joined, **self.options)
        return replace(self, blocks=blocks, gpu=gpu, step=step)

    @uncollected()
    def scaled(self, most: int) -> tuple[Scaled, ...]:
        """The step on its GPUs, on twice as many, and so on, up to ``most``, by more replicas.

        Raises:
            UsageError: it has more GPUs than that.
        """
        layout, found = self.layout, list[Scaled]()
        if most < layout.world:
            raise UsageError(f"{layout} has {layout.world:,} GPUs already, more than {most:,}")
        for times in (1 << power for power in range((most // layout.world).bit_length())):
            wide = replace(layout, dp=layout.dp * times)
            fewer = replace(wide, microbatches=layout.microbatches // times)
            strong = None if layout.microbatches % times else self._step_or_none(fewer)
            found.append(Scaled(training_step(self.blocks, wide, self.step.cluster, **self.options), strong))
        return tuple(found)

    def _step_or_none(self, layout: Parallelism) -> TrainingStep | None:
        """The step, unless the schedule cannot have so few microbatches."""
        try:
            return training_step(self.blocks, layout, self.step.cluster, **self.options)
        except UsageError:
            return None

    @cached_property
    def changes(self) -> tuple[TrainingChange, ...]:
        """What would make the step faster, the most first: other layouts of as many GPUs, fused kernels, and other
        numbers of the hardware; what no compiler reaches comes last."""
        rows = chain(self._layouts(), self._policies(), (self.with_number(number) for number in NUMBERS))
        found = [each for each in rows if each.step.time_s < self.step.time_s]
        return tuple(sorted(found, key=lambda change: (kind_of(change.options) == "bound", change.step.time_s)))

    @property
    def bound_by(self) -> TrainingChange | None:
        """The number of the hardware that would save most; None where none does."""
        return next((change for change in self.changes if change.wall), None)

    def with_number(self, number: Number) -> TrainingChange:
        """The step with one number of the GPU, its host or its links changed.

        Raises:
            UsageError: the what-if changes something other than the GPU, its host or its links.
        """
        change = parse_change(number.change)
        if not isinstance(change, GpuChange):
            raise UsageError(f"--what-if {number.change}: of many GPUs numbers change, as in 'dram_bytes_per_s*=2'")
        changed = change.on(replace(self.gpu, cluster=self.step.cluster))
        assert changed.cluster is not None
        blocks = blocks_of(self.profile, changed.cluster, self.policy, gpu=replace(changed, cluster=None))
        step = training_step(blocks, self.layout, changed.cluster, **self.options)
        return TrainingChange(number.name, number.options, number.wall, step)

    def _policies(self) -> Iterator[TrainingChange]:
        for policy, name in (("memwall", "fusion by memwall"), ("ideal", "perfect fusion")):
            if self.policy == "eager":
                blocks = blocks_of(self.profile, self.step.cluster, policy, gpu=self.gpu)
                step = training_step(blocks, self.layout, self.step.cluster, **self.options)
                yield TrainingChange(name, f"--policy {policy}", "", step)

    def _layouts(self) -> Iterator[TrainingChange]:
        for name, changed in _LAYOUTS.items():
            if "schedule" in changed and self.layout.pp == 1:
                continue
            layout = replace(self.layout, **changed)
            with contextlib.suppress(UsageError):
                layout.check()
                step = training_step(self.blocks, layout, self.step.cluster, **self.options)
                yield TrainingChange(name, f"--parallel {layout}", "", step)


#: other layouts to try -> what of the layout changes
_LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "recompute=none": {"recompute": "none"},
    "recompute=selective": {"recompute": "selective"},
    "schedule=interleaved:2": {"schedule": "interleaved", "chunks": 2},
    "async": {"async_tp": True},
    "dispatcher=hybridep": {"dispatcher": "hybridep"},
    "a2a_overlap": {"a2a_overlap": True},
    "schedule=zb": {"schedule": "zb", "chunks": 1},
    "fsdp=optimizer": {"fsdp": "optimizer"},
    "fsdp=grad": {"fsdp": "grad"},
    "fsdp=none": {"fsdp": "none"},
}


@heard
@signature_of(Job)
def parallel(
    module_or_target: Any,
    inputs: Any = None,
    *,
    layout: str | Parallelism,
    loss: Callable[[Any], Any] | None = None,
    progress: Callable[[str], None] | None = None,
    **job: Unpack[Job],
) -> Training:
    """A training step of a module under a layout, on a cluster.

    Args:
        module_or_target: as for :func:`memwall.profile`: a module that knows nothing of other GPUs.
        inputs: of one microbatch on one replica.
        layout: such as ``tp=8,sp,pp=4,dp=16,microbatches=32,schedule=interleaved:2,recompute=selective``.
        loss: as for :func:`memwall.profile`.
        progress: called with one-line messages.

    Raises:
        UsageError: as :func:`memwall.profile`; the layout does not fit the module or the cluster.
    """
    asked, said = Parallelism.parse(layout) if isinstance(layout, str) else layout, filled(Job, job)
    asked.check(world=said.world)
    joined = load_cluster(said.cluster)
    gpu = hardware_of(joined, said.host)
    profile = rank_of(module_or_target, inputs, asked, gpu, loss=loss, **part_of(Microbatch, job))
    tell(f"simulating {asked.world:,} GPUs of {joined.name}")
    with uncollected():
        blocks = blocks_of(profile, joined, said.policy, gpu=gpu)
        return trained(profile, blocks, asked, joined, said.policy, said.host, **part_of(StateOptions, job))


def rank_of(
    module_or_target: Any,
    inputs: Any,
    layout: Parallelism,
    gpu: Gpu,
    *,
    loss: Callable[[Any], Any] | None = None,
    **sample: Unpack[Microbatch],
) -> Profile:
    """A microbatch on one rank of a layout, traced; arguments and errors as of :func:`parallel`."""
    from memwall.frontend.torch import TraceOptions

    with uncollected(), seeded():
        said = filled(Microbatch, sample)
        step = {"batch": said.batch, "seq": said.seq, "mode": "training"}
        workload = workload_of(module_or_target, step, gpu, inputs, loss)
        tell(f"tracing {workload.name}")
        return trace_rank(workload, layout, TraceOptions("training", said.dtype, said.autocast, gpu=gpu), warn=tell)


def trained(
    profile: Profile,
    blocks: Blocks,
    layout: Parallelism,
    cluster: Cluster,
    policy: str = "eager",
    host: str | Path | Host | None = None,
    **kept: Unpack[StateOptions],
) -> Training:
    """The step of a traced rank, whose ``blocks`` are on the cluster; arguments and errors as of
    :func:`parallel`."""
    said = filled(StateOptions, kept)
    state = said.state or ("float32" if profile.workload.dtype == "float32" else "mixed")
    options: dict[str, Any] = {"state": state, "overlap": said.overlap}
    step = training_step(blocks, layout, cluster, **options)
    return Training(profile, blocks, hardware_of(cluster, host), step, options, policy, host)
