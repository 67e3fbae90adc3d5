"""The memory of a rank of a layout: what it keeps of parameters, what its microbatches in flight leave, and what comes
on top of that at the worst moment.

That moment is in one of its blocks, while the activations of later ones are free already: the block's own are whole
(computed again, if not kept), next to results that die in their pass, such as gradients of activations. Gradients stay
allocated from step to step and are what is sent, as the buckets of Megatron-LM and of ``gradient_as_bucket_view`` are.
Where weights are sharded (``fsdp=full``), those around the layers are gathered once, and those of two layers at a time;
gradients of as many parameters are whole until they are scattered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memwall.simulate.blocks import Block


class State(NamedTuple):
    """Bytes that each parameter takes: its weight, its gradient, and what the optimizer keeps; and those that move to
    add the gradient of a further microbatch."""

    weight: int
    gradient: int
    optimizer: int
    accumulate: int

    @property
    def update_bytes(self) -> int:
        """Bytes that move in memory for an update: gradients are set to zero, read for their norm and read again; the
        optimizer's are read and written, the weight is written."""
        return 3 * self.gradient + 2 * self.optimizer + self.weight


#: how numbers are kept -> bytes of a parameter. ``mixed``: 16-bit weights, gradients in float32, a master copy and
#: Adam's two moments (Korthikanti et al., 2022: 18 bytes); ``fused``: the same, gradients summed by the products that
#: make them (Megatron-LM's gradient accumulation fusion); ``half``: gradients of 16 bits; ``fused half``: both
STATES: Mapping[str, State] = {
    "mixed": State(2, 4, 12, 10), "fused": State(2, 4, 12, 0), "half": State(2, 2, 12, 6),
    "fused half": State(2, 2, 12, 0), "bf16": State(2, 2, 4, 6),
    "float32": State(4, 4, 8, 12),
}  # fmt: skip


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


def worst_block(
    blocks: Sequence[Block], kept: Callable[[Block], int], beside: Sequence[int]
) -> tuple[int, int, int]:  # fmt: skip
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
