"""A training step as the blocks of a model: what stands before the repeated layers, each layer, and what stands after,
each with what runs in it and what it holds.

Times are of one microbatch on one rank. :mod:`memwall.training.block_reader` finds them in a traced step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from memwall.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class BlockWork:
    """What runs in one direction: seconds of the GPU, of these seconds of collectives (``link_s``), of these seconds
    next to matmuls (``tensor_s``) and to experts of other ranks and back (``a2a_s``; with HybridEP they take
    ``hybrid_s``, 0 where it is not known how many experts a token chooses), and seconds of the CPU to issue it.
    ``flops``: of matmuls and attention, which take ``matrix_s`` at the peaks of their pipes; of both ``repeated`` and
    ``repeated_s`` are what every rank that shares matmuls computes alike; ``again`` and ``again_s`` are what
    attention's backward computes again of its forward, beyond them."""

    busy_s: float = 0.0
    link_s: float = 0.0
    issue_s: float = 0.0
    flops: int = 0
    tensor_s: float = 0.0
    repeated: int = 0
    a2a_s: float = 0.0
    hybrid_s: float = 0.0
    matrix_s: float = 0.0
    repeated_s: float = 0.0
    again: int = 0
    again_s: float = 0.0

    def __add__(self, other: BlockWork) -> BlockWork:
        return BlockWork(
            self.busy_s + other.busy_s,
            self.link_s + other.link_s,
            self.issue_s + other.issue_s,
            self.flops + other.flops,
            self.tensor_s + other.tensor_s,
            self.repeated + other.repeated,
            self.a2a_s + other.a2a_s,
            self.hybrid_s + other.hybrid_s,
            self.matrix_s + other.matrix_s,
            self.repeated_s + other.repeated_s,
            self.again + other.again,
            self.again_s + other.again_s,
        )

    @property
    def dispatched(self) -> BlockWork:
        """The work with HybridEP in place of all-to-alls."""
        more_s = self.hybrid_s - self.a2a_s
        return replace(self, busy_s=self.busy_s + more_s, link_s=self.link_s + more_s, a2a_s=self.hybrid_s)


#: what runs in a block, by its field
WORKS = ("forward", "backward", "weight", "core")


@dataclass(frozen=True, slots=True)
class Block:
    """A layer, or what stands before or after the layers. ``weight``: the part of backward that makes gradients of
    weights; ``core``: the part of forward between attention's scores and its result.

    Bytes: ``activation_bytes`` are kept from forward to backward, ``core_bytes`` of them by attention's core,
    ``input_bytes`` is what the block reads of the one before, ``temporary_bytes`` is what dies in its own pass, at its
    worst moment; ``parameters`` are numbers that it holds, ``experts`` of
    them of experts that it shares with other ranks; of both ``frozen`` and ``frozen_experts`` get no gradient."""

    forward: BlockWork = BlockWork()
    backward: BlockWork = BlockWork()
    weight: BlockWork = BlockWork()
    core: BlockWork = BlockWork()
    parameters: int = 0
    activation_bytes: int = 0
    core_bytes: int = 0
    input_bytes: int = 0
    experts: int = 0
    temporary_bytes: int = 0
    frozen: int = 0
    frozen_experts: int = 0

    @property
    def trained(self) -> Block:
        """The numbers that get a gradient, alone."""
        return Block(parameters=self.parameters - self.frozen, experts=self.experts - self.frozen_experts)

    @property
    def dispatched(self) -> Block:
        """The block with HybridEP in place of all-to-alls."""
        works: dict[str, Any] = {name: getattr(self, name).dispatched for name in WORKS}
        return replace(self, **works)

    def kept_bytes(self, recompute: str) -> int:
        """What a microbatch leaves of it in memory where the layers compute again so much."""
        if recompute == "none":
            return self.activation_bytes
        return self.input_bytes if recompute == "full" else self.activation_bytes - self.core_bytes


@dataclass(frozen=True, slots=True)
class Blocks:
    """A model as blocks. ``tied``: numbers that both ends hold, such as the embedding that is the head too; ``stages``:
    how many layers each has, where the program says so."""

    before: Block
    layers: tuple[Block, ...]
    after: Block
    tied: int = 0
    stages: tuple[int, ...] = ()

    @property
    def every(self) -> tuple[Block, ...]:
        """All blocks, in order."""
        return (self.before, *self.layers, self.after)

    def cuts(self, count: int) -> list[int]:
        """Where so many stages begin among the layers, and where the last ends; as equally many as can be where the
        program does not say."""
        if len(self.stages) == count:
            return [sum(self.stages[:number]) for number in range(count + 1)]
        return [number * len(self.layers) // count for number in range(count + 1)]

    @property
    def dispatched(self) -> Blocks:
        """The blocks with HybridEP in place of all-to-alls.

        Raises:
            UsageError: it is not known how many experts a token chooses.
        """
        every = {id(block): block for block in self.every}
        works = (work for block in every.values() for work in (block.forward, block.backward))
        if any(work.a2a_s and not work.hybrid_s for work in works):
            raise UsageError(
                "dispatcher=hybridep sends a token once, and no torch.topk of the model says how many"
                " experts each chooses: leave it out"
            )
        made = {number: block.dispatched for number, block in every.items()}
        layers = tuple(made[id(layer)] for layer in self.layers)
        return replace(self, before=made[id(self.before)], layers=layers, after=made[id(self.after)])

    @property
    def tied_trained(self) -> int:
        """The parameters of ``tied`` that get a gradient."""
        return self.tied if self.tied <= self.before.trained.parameters else 0

    def stretched(self, layers: int, first: int = 1) -> Blocks:
        """The model with so many layers, its first (as often as ``first`` says) and last as they are and the second
        between them."""
        one, inner, *_, last = self.layers
        return replace(self, layers=(*[one] * first, *[inner] * (layers - 1 - first), last))


def merged(blocks: Iterable[Block]) -> Block:
    """The numbers of several blocks as one block's."""
    names, blocks = ("parameters", "experts", "frozen", "frozen_experts"), tuple(blocks)
    return Block(**{name: sum(getattr(block, name) for block in blocks) for name in names})
