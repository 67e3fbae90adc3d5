"""A training step on many GPUs: blocks of a model (:mod:`memwall.training.blocks`), a layout and a cluster → time and
memory of each rank (the latter in :mod:`memwall.training.memory`).

The pipeline of microbatches is simulated (:mod:`memwall.simulate.pipeline`). Gradients are summed over the replicas
block by block while the last backward pass runs, with ``fsdp=grad`` and ``full`` while each backward pass runs. Sharded
weights are gathered one block ahead. Both run in streams (:mod:`memwall.simulate.streams`), where a collective takes
multiprocessors from the blocks next to it. What does not fit beside the blocks is exposed, and so is what they take
longer. Asynchronous tensor parallelism, which exchanges parts of a matmul, hides three quarters of what could be
hidden, and all of it on TPUs. Ranks that share matmuls each send a part of what the next stage reads, which is gathered
there.

With ``a2a_overlap`` a backward pass runs together with the forward pass of another microbatch that follows it. The two
take the longer of their arithmetic and of their messages to experts of other ranks and back. These messages take
multiprocessors too. The first passes forward and the last ones backward have nothing next to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from memwall.core.errors import unknown
from memwall.hardware.cluster import all_at_once, hardware_of
from memwall.hardware.links import Cluster
from memwall.perfmodel.collectives import collective_s, levels_of, taken_shares
from memwall.simulate.pipeline import PipelineRun, Stage, in_flight, least_ends_s, run_pipeline
from memwall.simulate.streams import Sent, Sides, beside_s, one_ahead
from memwall.training.blocks import Block, Blocks, BlockWork, merged
from memwall.training.layout import Parallelism
from memwall.training.memory import Memory, Ranks, ReplicaMessage
from memwall.training.messages import passed_bytes
from memwall.training.states import STATES

#: of exchanges that run next to parts of a matmul, the share that these hide: they take multiprocessors, and parts are
#: slower than the whole. Fitted to half of the rows of megatron_training.csv and megatron_tables.csv. Of TPUs all of
#: them is: links move data without their cores, and parts are long enough to fill matrix units
_HIDDEN = 0.75


#: of a step the share by which it is longer for each doubling of the slices of TPUs, the slowest of which all wait for:
#: fitted to half of the rows of maxtext_tpu.csv, 1 to 32 slices
_SLOWEST = 0.02


#: the 80 % interval of a step, measured over modeled: 10th and 90th percentile of 512 measured steps, the fit half of
#: five tables (lab/fits/whole_intervals.py); 78 % of the other half are between them
STEP_INTERVAL = (0.90, 1.21)


@dataclass(frozen=True)
class TrainingStep:
    """A step: seconds in all, of the pipeline, of communication that nothing hides (``exposed_s``: between replicas;
    ``tensor_s``: within layers, between ranks that share matmuls, sequences or experts, on the slowest rank), and of
    the optimizer. ``memory`` is by stage; ``model_flops`` are the FLOPs of the
    model, each once; ``hardware_flops`` the FLOPs that all GPUs compute: with what is computed again, and on every rank
    that shares matmuls; ``model_s`` and ``hardware_s`` are the seconds of both on one GPU at the datasheet's peaks of
    the pipes that multiply them."""

    layout: Parallelism
    cluster: Cluster
    pipeline: PipelineRun
    time_s: float
    exposed_s: float
    tensor_s: float
    optimizer_s: float
    memory: tuple[Memory, ...]
    model_flops: int
    hardware_flops: int
    model_s: float
    hardware_s: float

    @property
    def interval_s(self) -> tuple[float, float]:
        """The 80 % interval of the seconds."""
        return self.time_s * STEP_INTERVAL[0], self.time_s * STEP_INTERVAL[1]

    @property
    def peak_rank(self) -> int:
        """The stage that holds most, the first of equal ones."""
        return max(range(len(self.memory)), key=lambda rank: self.memory[rank].total)

    @property
    def bubble_s(self) -> float:
        """Seconds that the slowest rank waits for others (0 where it is rounding)."""
        wait_s = self.pipeline.time_s - self.pipeline.busy_s[self.pipeline.slowest]
        return wait_s if wait_s > 1e-9 * self.pipeline.time_s else 0.0

    @property
    def mfu(self) -> float:
        """FLOPs of the model, each once, over what all GPUs could do of them in the time of a step."""
        return self.model_s / (self.time_s * self.layout.world)

    @property
    def hfu(self) -> float:
        """As :attr:`mfu`, with the FLOPs that are computed again, or on every rank that shares matmuls."""
        return self.hardware_s / (self.time_s * self.layout.world)


def training_step(
    blocks: Blocks, layout: Parallelism, cluster: Cluster, *, state: str = "mixed", overlap: bool = True
) -> TrainingStep:
    """One step of a model that was traced with one microbatch, on one rank of ``layout.tp``.

    Args:
        state: how numbers are kept, a key of :data:`STATES`.
        overlap: whether gradients are summed, shards of weights gathered and activations sent to the next stage while
            blocks run, or in between.

    Raises:
        UsageError: the layout does not fit the layers or the cluster, or has what is not modeled.
    """
    job = _job(blocks, layout, cluster, state, overlap)
    run = run_pipeline([job.stage(k) for k in range(job.count)], layout.pp, layout.microbatches, layout.schedule)
    run = replace(run, in_flight=tuple(held + _held_beside(layout) for held in run.in_flight))
    exposed = [job.exposed_s(rank) for rank in range(layout.pp)]
    summed_s = max(end + more for end, more in zip(run.done_s, exposed, strict=True)) * _slowest(layout, cluster)
    optimizer_s = max(job.optimizer_s(rank) for rank in range(layout.pp))
    once, computed = job.matrix
    tensor_s = job.tensor_s(run.slowest) - run.hidden_s[run.slowest]
    return TrainingStep(
        layout,
        cluster,
        run,
        summed_s + optimizer_s,
        summed_s - run.time_s,
        tensor_s,
        optimizer_s,
        tuple(job.memory(rank, run.in_flight[rank]) for rank in range(layout.pp)),
        once.flops,
        computed.flops,
        once.matrix_s,
        computed.matrix_s,
    )


def step_memory(
    blocks: Blocks, layout: Parallelism, cluster: Cluster, *, state: str = "mixed", overlap: bool = True
) -> tuple[Memory, ...]:
    """The memory of each rank as of :func:`training_step`, without running the pipeline; errors as there."""
    job = _job(blocks, layout, cluster, state, overlap)
    held = in_flight(layout.pp, layout.chunks, layout.microbatches, layout.schedule)
    return tuple(job.memory(rank, held[rank] + _held_beside(layout)) for rank in range(layout.pp))


def _held_beside(layout: Parallelism) -> int:
    """Microbatches held more where a forward pass runs next to the backward pass of another."""
    return int(layout.a2a_overlap and layout.microbatches > 1)


def least_step_s(
    blocks: Blocks, layout: Parallelism, cluster: Cluster, *, state: str = "mixed", overlap: bool = True
) -> float:
    """Seconds that :func:`training_step` does not stay below, by :func:`memwall.simulate.pipeline.least_ends_s`."""
    job = _job(blocks, layout, cluster, state, overlap)
    ends = least_ends_s([job.stage(k) for k in range(job.count)], layout.pp, layout.microbatches, layout.schedule)
    summed_s = max(end + job.exposed_s(rank) for rank, end in enumerate(ends)) * _slowest(layout, cluster)
    return summed_s + max(job.optimizer_s(rank) for rank in range(layout.pp))


def _slowest(layout: Parallelism, cluster: Cluster) -> float:
    """How many times as long as alone slices of TPUs take that wait for the slowest; 1 on GPUs: no row tells."""
    slices = layout.world / cluster.gpus_per_node
    return 1 + _SLOWEST * math.log2(slices) if hardware_of(cluster).tpu and slices > 1 else 1.0


def _job(blocks: Blocks, layout: Parallelism, cluster: Cluster, state: str, overlap: bool) -> _Job:
    layout.check(layers=len(blocks.layers))
    if state not in STATES:
        raise unknown("state", state, STATES)
    could = 1 - 1 / layout.tp if layout.async_tp else 0.0
    hidden = could if hardware_of(cluster).tpu else _HIDDEN * could
    if layout.dispatcher == "hybridep":
        blocks = blocks.dispatched
    return _Job(blocks, layout, STATES[state], all_at_once(cluster), overlap, hidden)


@dataclass(frozen=True)
class _Job(Ranks):
    cluster: Cluster
    overlap: bool
    #: share of the collectives between the ranks that share matmuls that runs next to them
    hidden: float

    # -- one microbatch ------------------------------------------------------------------------------------------------

    def stage(self, k: int) -> Stage:
        """The times of a stage."""
        part = self.parts[k]
        weight = _sum(block.weight for block in part)
        forward_s = self._pass_s([block.forward for block in part])
        backward_s = self._pass_s([self._whole_backward(block) for block in reversed(part)])
        if self.layout.sums_each and self.layout.replicas > 1:
            forward_s, backward_s = self._sharded(part, forward_s, backward_s)
        weight_s = weight.busy_s + self._accumulate_s(part)
        hidden = self._hidden_s(part, forward_s, backward_s) if self.layout.a2a_overlap else (0.0, 0.0)
        stage = Stage(forward_s, max(backward_s - weight.busy_s, 0.0), weight_s, self._send_s, *hidden)
        return stage if self.overlap else self._waiting(stage, k)

    def _waiting(self, stage: Stage, k: int) -> Stage:
        """The times of a stage that waits for its sends."""
        forward_s = stage.forward_s + stage.send_s * (k < self.count - 1)
        backward_s = stage.backward_s + stage.send_s * (k > 0)
        return Stage(forward_s, backward_s, stage.weight_s, 0.0, stage.hidden_forward_s, stage.hidden_backward_s)

    def _hidden_s(self, part: Sequence[Block], forward_s: float, backward_s: float) -> tuple[float, float]:
        """Seconds less that forward and backward take next to each other, by what of them are messages to experts."""
        forward, backward = _sum(block.forward for block in part), _sum(map(self._whole_backward, part))
        sent_s = forward.a2a_s + backward.a2a_s
        if not sent_s:
            return 0.0, 0.0
        computed_s, issued_s = forward_s + backward_s - sent_s, forward.issue_s + backward.issue_s
        together_s = beside_s([computed_s], [Sent(sent_s)], self._taken_by(self.layout.ep))
        hidden_s = max(forward_s + backward_s - max(together_s, issued_s), 0.0)
        return hidden_s * forward.a2a_s / sent_s, hidden_s * backward.a2a_s / sent_s

    def _whole_backward(self, block: Block) -> BlockWork:
        return block.backward + self._again(block)

    def _pass_s(self, works: Sequence[BlockWork]) -> float:
        """Seconds of blocks one after another. A stage that waits for its sends has nothing issued when a pass begins
        (Megatron-LM synchronizes after them); else the CPU may be ahead."""
        if self.overlap or self.layout.pp == 1:
            return self._longer(_sum(works))
        issued_s = done_s = 0.0
        for work in works:
            done_s = max(max(done_s, issued_s) + self._busy_s(work), issued_s + work.issue_s)
            issued_s += work.issue_s
        return done_s

    def _longer(self, work: BlockWork) -> float:
        """Seconds of the GPU, or of the CPU that issues its kernels."""
        return max(self._busy_s(work), work.issue_s)

    def _busy_s(self, work: BlockWork) -> float:
        """Seconds of the GPU, without exchanges that run next to matmuls."""
        return work.busy_s - self.hidden * work.tensor_s

    def _again(self, block: Block) -> BlockWork:
        """What backward computes again."""
        if self.is_end(block):
            return BlockWork()
        return {"none": BlockWork(), "selective": block.core, "full": block.forward}[self.layout.recompute]

    def _accumulate_s(self, part: Iterable[Block]) -> float:
        """Gradients of a microbatch are added to the gradients of earlier ones, or a share to a share."""
        added = self.added_up(merged(part))
        return self._memory_s(self.state.accumulate * added) if self.layout.microbatches > 1 else 0.0

    def _memory_s(self, nbytes: float) -> float:
        gpu = hardware_of(self.cluster)
        return nbytes / (gpu.dram_bytes_per_s * gpu.achievable["dram"])

    @property
    def _send_s(self) -> float:
        if self.layout.pp == 1:
            return 0.0
        apart = self.layout.tp * self.layout.replicas >= self.cluster.gpus_per_node
        nbytes, tp = passed_bytes(self.blocks), self.layout.tp
        if self.layout.sp or tp == 1:
            return self._pair_s("send_recv", nbytes, apart)
        passed_s = self._pair_s("send_recv", nbytes / tp, apart)
        return passed_s + collective_s("all_gather", nbytes, tp, self.cluster).time_s

    def _pair_s(self, op: str, nbytes: float, apart: bool) -> float:
        return collective_s(op, nbytes, 2, self.cluster, per_node=1 if apart else None).time_s

    # -- between replicas ----------------------------------------------------------------------------------------------

    def _between_s(self, messages: Iterable[ReplicaMessage]) -> float:
        return sum(map(self._apart_s, messages))

    def _apart_s(self, message: ReplicaMessage) -> float:
        if message not in self._sent_s:  # blocks are alike
            op, nbytes, ranks, apart = message
            per_node = math.gcd(ranks, max(self.cluster.gpus_per_node // apart, 1))
            self._sent_s[message] = collective_s(op, nbytes, ranks, self.cluster, per_node=per_node).time_s
        return self._sent_s[message]

    @cached_property
    def _sent_s(self) -> dict[ReplicaMessage, float]:
        return {}

    def _reduce_s(self, block: Block) -> float:
        return self._between_s(self.reduces(block))

    def _gather_s(self, block: Block) -> float:
        return self._between_s(self.gathers(block))

    def _sharded(self, part: Sequence[Block], forward_s: float, backward_s: float) -> tuple[float, float]:
        """Forward and backward where each layer's weights, if they are sharded, are gathered before it, and its
        gradients summed after. What stands around the layers is gathered before forward, kept, and its gradients are
        summed in the end."""
        ends = merged([block for block in part if self.is_end(block)])
        gather_s = self._gather_s if self.layout.fsdp == "full" else lambda block: 0.0
        gathers, reduces = (
            [0.0 if self.is_end(block) else seconds(block) for block in part] for seconds in (gather_s, self._reduce_s)
        )
        first = [gather_s(ends) + gathers[0], *gathers[1:]]
        last = [self._reduce_s(ends) + reduces[0], *reduces[1:]]
        if not self.overlap:
            return forward_s + sum(first), backward_s + sum(gathers) + sum(last)
        forward = [self._busy_s(block.forward) for block in part]
        backward = [self._busy_s(self._whole_backward(block)) for block in part]
        through_s = self._streamed_s(forward, one_ahead(first, [0.0] * len(part)))
        back_s = self._streamed_s(backward[::-1], one_ahead(gathers[::-1], last[::-1]))
        return max(through_s, forward_s), max(back_s, backward_s)

    def exposed_s(self, rank: int) -> float:
        """Seconds after a rank's last backward until the gradients are summed and the weights are whole again."""
        blocks, tied_s = self.of_rank(rank), self._tied_s(rank)
        if self.layout.sums_each:
            return tied_s + self._regather_s(blocks)
        if not self.overlap:
            return tied_s + self._reduce_s(merged(blocks)) + self._regather_s(blocks)
        last = self.parts[rank][::-1]  # the chunk whose backward is last
        early = merged([block for block in blocks if block not in last])
        passes = [self._longer(self._whole_backward(block)) for block in last]
        reduces = [Sent(self._reduce_s(block), (at,)) for at, block in enumerate(last)]
        done_s = self._streamed_s(passes, [Sent(self._reduce_s(early)), *reduces])
        return tied_s + done_s - sum(passes) + self._regather_s(blocks)

    def _regather_s(self, blocks: Sequence[Block]) -> float:
        """Until weights that were updated in shares are whole: with overlap, while the next forward pass runs."""
        if self.layout.fsdp not in ("optimizer", "grad"):
            return 0.0
        gather_s, beside_s = self._gather_s(merged(blocks).trained), _sum(block.forward for block in blocks).busy_s
        return self._streamed_s([beside_s], [Sent(gather_s)]) - beside_s if self.overlap else gather_s

    def _streamed_s(self, passes: Sequence[float], messages: Sequence[Sent]) -> float:
        return beside_s(passes, messages, self._taken)

    @cached_property
    def _taken(self) -> Sides:
        """What a message between replicas takes of the GPU."""
        return self._taken_by(self.layout.tp * self.layout.replicas)

    def _taken_by(self, ranks: int) -> Sides:
        between = levels_of(self.cluster, ranks)
        return Sides(*taken_shares(between[-1].link, hardware_of(self.cluster))) if between else Sides()

    def _tied_s(self, rank: int) -> float:
        """The gradients of the embedding that is the head too, where another rank has that."""
        if self.layout.pp == 1 or not self.blocks.tied_trained or rank not in (0, self.layout.pp - 1):
            return 0.0
        nbytes = self.blocks.tied_trained * self.state.gradient
        return self._pair_s("all_reduce", nbytes, self.layout.world > self.cluster.gpus_per_node)

    # -- a rank --------------------------------------------------------------------------------------------------------

    def optimizer_s(self, rank: int) -> float:
        """The update, and gradients set to zero."""
        held, state = self._held(rank), self.state
        return self._memory_s(self.updated(held) * state.update_bytes + self.added_up(held) * state.gradient)

    def tensor_s(self, rank: int) -> float:
        """Seconds of exposed communication within layers, in a step."""
        blocks = self.of_rank(rank)
        once = _sum(work for block in blocks for work in (block.forward, self._whole_backward(block)))
        return (once.link_s - self.hidden * once.tensor_s) * self.layout.microbatches

    @property
    def matrix(self) -> tuple[BlockWork, BlockWork]:
        """FLOPs of the model in a step, and FLOPs that all GPUs compute, with the seconds that they take one GPU at the
        peaks."""
        every, tp = self.blocks.every, self.layout.tp
        times, again = self.layout.microbatches * self.layout.replicas, _sum(map(self._again, every))
        once = _sum(work for block in every for work in (block.forward, block.backward))
        model = BlockWork(
            flops=times * (tp * once.flops - (tp - 1) * once.repeated),
            matrix_s=times * (tp * once.matrix_s - (tp - 1) * once.repeated_s),
        )
        whole = once + again
        every_flops, every_s = whole.flops + whole.again, whole.matrix_s + whole.again_s
        return model, BlockWork(flops=times * tp * every_flops, matrix_s=times * tp * every_s)


def _sum(works: Iterable[BlockWork]) -> BlockWork:
    return sum(works, BlockWork())
