"""What a rank of a layout sends in a step: within its layers as they were traced, between replicas, and from stage to
stage; as many messages as :mod:`memwall.training.step` takes the time of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from memwall.core.graph import Graph
from memwall.core.ranks import read_ranks
from memwall.training.block_reader import traced_messages
from memwall.training.blocks import Block, Blocks, merged
from memwall.training.dispatch import DispatchLeg, hybrid_legs
from memwall.training.layout import Parallelism
from memwall.training.memory import Ranks
from memwall.training.states import ParameterState

#: collective, bytes of its message as nccl-tests define them, GPUs that take part
Sent = tuple[str, int, int]


def rank_messages(
    graph: Graph, blocks: Blocks, layout: Parallelism, state: ParameterState, rank: int, per_node: int
) -> Counter[Sent]:
    """The messages of a stage's rank in a step, on nodes of so many GPUs → how often it takes part in them.

    Args:
        graph: of the traced microbatch, of which ``blocks`` are.
    """
    found: Counter[Sent] = Counter()
    ranks = Ranks(blocks, layout, state)
    within = traced_messages(graph)
    for number in (number for stage in ranks.numbers[rank :: layout.pp] for number in stage):
        again = layout.recompute if 0 < number < len(blocks.every) - 1 else "none"
        for (phase, is_core, op, nbytes, group, routing), times in within[number].items():
            is_again = phase == "forward" and (again == "full" or (again == "selective" and is_core))
            members = len(read_ranks(group))
            legs = [DispatchLeg(nbytes, members, members)]
            if routing and layout.dispatcher == "hybridep":
                legs = hybrid_legs(nbytes, members, min(per_node, members), routing)
            for leg in legs:
                found[op, round(leg.nbytes), leg.ranks] += times * layout.microbatches * (1 + is_again)
    for message in _between(ranks, rank):
        found[message] += 1
    passed = passed_bytes(blocks) // (1 if layout.sp else layout.tp)
    neighbours = sum((stage > 0) + (stage < ranks.count - 1) for stage in range(rank, ranks.count, layout.pp))
    found["send_recv", passed, 2] += 2 * layout.microbatches * neighbours * (layout.pp > 1)
    if layout.pp > 1 and rank in (0, layout.pp - 1):
        found["all_reduce", blocks.tied_trained * state.gradient, 2] += blocks.tied_trained > 0
    return +found


def passed_bytes(blocks: Blocks) -> int:
    """What one stage hands to the next for a microbatch, as a rank holds it. The first layer is never the first of a
    later stage; with ``sp`` it reads the whole sum of the embedding, of which each rank keeps its part."""
    return max(block.input_bytes for block in blocks.layers[1:] or blocks.layers)


def _between(ranks: Ranks, rank: int) -> Iterator[Sent]:
    """The messages between GPUs that have the same numbers: layer by layer, and what stands around them together."""
    own = ranks.of_rank(rank)
    around = merged(block for block in own if ranks.is_end(block))
    yield from _of_block(around, ranks, 1)
    for block in own:
        if not ranks.is_end(block):
            yield from _of_block(block, ranks, 2)


def _of_block(block: Block, ranks: Ranks, gathers: int) -> Iterator[Sent]:
    layout = ranks.layout
    is_full, is_sharded = layout.fsdp == "full", layout.fsdp != "none"
    times = layout.microbatches if layout.sums_each else 1
    gathered = ranks.gathers(block if is_full else block.trained) * is_sharded
    for found, count in ((ranks.reduces(block), times), (gathered, times * gathers if is_full else 1)):
        for op, nbytes, members, _ in found:
            yield from [(op, nbytes, members)] * count
