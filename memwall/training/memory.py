"""The ranks of a layout: the stages that each has, what it sends to others that have the same numbers, and its memory.

A rank's memory holds its parameters, what its microbatches in flight leave, and what comes on top at the worst moment.
That moment is in one of its blocks, while the activations of later ones are free already. The block's own activations
are whole (computed again, if not kept), next to results that die in their pass, such as gradients of activations.
Gradients stay allocated from step to step and are what is sent, as the buckets of Megatron-LM and of
``gradient_as_bucket_view`` are. What the replicas share changes what a rank holds:

- ``fsdp=optimizer``: gradients are whole and summed once a step, as in Megatron-LM's distributed optimizer (ZeRO-1).
- ``fsdp=grad``: gradients of each microbatch are scattered and added to a share (ZeRO-2, FSDP's ``SHARD_GRAD_OP``).
  Weights are whole, gradients only until they are scattered.
- ``fsdp=full``: weights are sharded too (ZeRO-3). Weights around the layers are gathered once, and weights of two
  layers at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from memwall.training.blocks import Block, Blocks, merged
from memwall.training.layout import Parallelism
from memwall.training.states import ParameterState


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a rank at its peak. ``gathered``: whole weights of other ranks' shards, and gradients before they are
    scattered; ``recomputed``: what one block computes again in its backward; ``temporaries``: what dies in its pass.
    ``block``: where that is, counted from the first of the rank's."""

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    recomputed: int
    temporaries: int
    block: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.gathered + self.growing

    @property
    def growing(self) -> int:
        """What grows with the samples of a microbatch."""
        return self.activations + self.recomputed + self.temporaries

    @property
    def parts(self) -> dict[str, int]:
        """What it is made of, by name."""
        names = ("weights", "gradients", "optimizer", "gathered", "activations", "recomputed", "temporaries")
        return {name: getattr(self, name) for name in names}


def worst_block(blocks: Sequence[Block], kept: Callable[[Block], int], beside: Sequence[int]) -> tuple[int, int, int]:
    """The block of a rank in whose backward most is alive: its number, what is kept of later ones (free by then), and
    what it computes again.

    Args:
        kept: bytes that a block leaves.
        beside: bytes that are alive besides activations in each block.
    """
    later, most, found = 0, -math.inf, (0, 0, 0)
    for number in range(len(blocks) - 1, -1, -1):
        again = blocks[number].activation_bytes - kept(blocks[number])
        alive = again + blocks[number].temporary_bytes + beside[number] - later
        if alive > most:
            most, found = alive, (number, later, again)
        later += kept(blocks[number])
    return found


class ReplicaMessage(NamedTuple):
    """A collective between GPUs that have the same numbers: its message, as nccl-tests define the size, the GPUs, and
    how far one is from the next."""

    op: str
    nbytes: int
    ranks: int
    apart: int


@dataclass(frozen=True)
class Ranks:
    """The stages of a pipeline and the ranks that have them, and what these hold."""

    blocks: Blocks
    layout: Parallelism
    state: ParameterState

    @property
    def count(self) -> int:
        """Stages, all chunks counted."""
        return self.layout.pp * self.layout.chunks

    @cached_property
    def numbers(self) -> list[range]:
        """Of each stage its blocks, by their numbers in the model."""
        cuts = self.blocks.cuts(self.count)
        return [range(*cut) for cut in pairwise((0, *(1 + cut for cut in cuts[1:-1]), len(self.blocks.every)))]

    @cached_property
    def parts(self) -> list[tuple[Block, ...]]:
        """The blocks of each stage; one that holds nothing where a stage has none."""
        every = self.blocks.every
        return [every[stage.start : stage.stop] or (Block(),) for stage in self.numbers]

    def of_rank(self, rank: int) -> list[Block]:
        return [block for k in range(rank, self.count, self.layout.pp) for block in self.parts[k]]

    def is_end(self, block: Block) -> bool:
        """Whether a block stands before or after the layers."""
        return block is self.blocks.before or block is self.blocks.after

    @property
    def expert_replicas(self) -> int:
        """GPUs that have the same experts."""
        return self.layout.tp * self.layout.replicas // self.layout.ep

    def reduces(self, block: Block) -> list[ReplicaMessage]:
        """The messages that sum a block's gradients: over the holders of shares, then over the copies of a share."""
        layout, nbytes = self.layout, self.state.gradient
        op = "all_reduce" if layout.fsdp == "none" else "reduce_scatter"
        found = self._between(op, block.trained, nbytes)
        if layout.sharers < layout.replicas and block.trained.parameters:
            share, copies = self._shard(block.trained), layout.replicas // layout.sharers
            found.append(ReplicaMessage("all_reduce", share * nbytes, copies, layout.tp * layout.sharers))
        return found

    def gathers(self, block: Block) -> list[ReplicaMessage]:
        """The messages that make a block's weights whole of their shards."""
        return self._between("all_gather", block, self.state.weight)

    def _between(self, op: str, block: Block, nbytes: int) -> list[ReplicaMessage]:
        """A collective of so many bytes of each of a block's numbers: ``tp`` apart where they are not experts."""
        shared, layout = block.parameters - block.experts, self.layout
        groups = (shared, layout.sharers, layout.tp), (block.experts, self.expert_replicas, layout.ep)
        return [
            ReplicaMessage(op, count * nbytes, ranks, apart) for count, ranks, apart in groups if count and ranks > 1
        ]

    def _held(self, rank: int) -> Block:
        """The parameters of a rank, by what they are."""
        own = merged(self.of_rank(rank))
        if self.layout.pp == 1 or rank < self.layout.pp - 1:
            return own
        more = self.blocks.tied
        return replace(own, parameters=own.parameters + more, frozen=own.frozen + more - self.blocks.tied_trained)

    def _shard(self, held: Block) -> int:
        """Of parameters the share of a rank where GPUs that have the same hold one each."""
        shared = held.parameters - held.experts
        return -(-shared // self.layout.sharers) - (-held.experts // self.expert_replicas)

    def updated(self, held: Block) -> int:
        """Numbers of which a rank holds the optimizer's state."""
        return held.trained.parameters if self.layout.fsdp == "none" else self._shard(held.trained)

    def added_up(self, held: Block) -> int:
        """Numbers of which a rank holds gradients from microbatch to microbatch."""
        is_whole = self.layout.fsdp in ("none", "optimizer")
        return held.trained.parameters if is_whole else self._shard(held.trained)

    def memory(self, rank: int, in_flight: int) -> Memory:
        """The peak of a rank that holds the activations of so many microbatches, each of one of its chunks."""
        held = self._held(rank)
        shard = self._shard(held)
        state, part = self.state, self.parts[rank + self.layout.pp * (self.layout.chunks - 1)]
        kept = sum(map(self._kept_bytes, self.of_rank(rank))) * in_flight / self.layout.chunks
        beside = self._gathered_bytes(part) if shard < held.parameters else [0] * len(part)
        at, later, again = worst_block(part, self._kept_bytes, beside)
        return Memory(
            state.weight * (shard if self.layout.fsdp == "full" else held.parameters),
            state.gradient * self.added_up(held),
            state.optimizer * self.updated(held),
            beside[at],
            round(kept) - later,
            again,
            part[at].temporary_bytes,
            at,
        )

    def _gathered_bytes(self, part: Sequence[Block]) -> list[int]:
        """What replicas have whole of their shards while each block runs backward: weights of what stands around the
        layers and of two of these, and gradients that are not scattered yet, those around the layers in the end."""
        weight, gradient = self.state.weight * (self.layout.fsdp == "full"), self.state.gradient
        ends = merged(block for block in part if self.is_end(block)).parameters
        layer = max((block.parameters for block in part if not self.is_end(block)), default=0)
        later, found = 0, list[int]()
        for block in reversed(part):
            is_last = block is self.blocks.after
            own = 0 if is_last else block.trained.parameters
            found.append(weight * (ends + (1 if is_last else 2) * layer) + gradient * (later + own))
            later += block.trained.parameters * self.is_end(block)
        return found[::-1] if self.layout.fsdp in ("grad", "full") else [0] * len(part)

    def _kept_bytes(self, block: Block) -> int:
        """What a microbatch leaves in memory."""
        return block.kept_bytes("none" if self.is_end(block) else self.layout.recompute)
