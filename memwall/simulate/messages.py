"""What a rank of a layout sends in a step: within its layers as they were traced, between replicas, and from stage to
stage; as many messages as :mod:`memwall.simulate.training` takes the time of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from memwall.core.graph import Graph
from memwall.core.parallelism import Parallelism
from memwall.core.ranks import read_ranks
from memwall.perfmodel.dispatch import Leg, hybrid_legs
from memwall.simulate.block_reader import traced_messages
from memwall.simulate.blocks import Block, Blocks, merged
from memwall.simulate.rank_memory import State

#: collective, bytes of its message as nccl-tests define them, GPUs that take part
Sent = tuple[str, int, int]


def rank_messages(
    graph: Graph, blocks: Blocks, layout: Parallelism, state: State, rank: int, per_node: int
) -> Counter[Sent]:
    """The messages of a stage's rank in a step, on nodes of so many GPUs → how often it takes part in them.

    Args:
        graph: of the traced microbatch, of which ``blocks`` are.
    """
    found: Counter[Sent] = Counter()
    count, every = layout.pp * layout.chunks, (blocks.before, *blocks.layers, blocks.after)
    cuts = [0, *(1 + cut for cut in blocks.cuts(count)[1:-1]), len(every)]
    stages = [range(*cut) for cut in pairwise(cuts)]
    own = [number for stage in range(rank, count, layout.pp) for number in stages[stage]]
    within = traced_messages(graph)
    for number in own:
        again = layout.recompute if 0 < number < len(every) - 1 else "none"
        for (phase, is_core, op, nbytes, group, routing), times in within[number].items():
            is_again = phase == "forward" and (again == "full" or (again == "selective" and is_core))
            ranks = len(read_ranks(group))
            legs = [Leg(nbytes, ranks, ranks)]
            if routing and layout.dispatcher == "hybridep":
                legs = hybrid_legs(nbytes, ranks, min(per_node, ranks), routing)
            for leg in legs:
                found[op, round(leg.nbytes), leg.ranks] += times * layout.microbatches * (1 + is_again)
    for op, nbytes, ranks in _between([every[number] for number in own], blocks, layout, state):
        found[op, nbytes, ranks] += 1
    passed = max(block.input_bytes for block in blocks.layers) // (1 if layout.sp else layout.tp)
    neighbours = sum((stage > 0) + (stage < count - 1) for stage in range(rank, count, layout.pp))
    found["send_recv", passed, 2] += 2 * layout.microbatches * neighbours * (layout.pp > 1)
    if layout.pp > 1 and rank in (0, layout.pp - 1):
        found["all_reduce", blocks.tied_trained * state.gradient, 2] += blocks.tied_trained > 0
    return +found


def _between(own: Sequence[Block], blocks: Blocks, layout: Parallelism, state: State) -> Iterator[Sent]:
    """The messages between GPUs that have the same numbers: layer by layer, and what stands around them together."""
    ends = [block for block in own if block is blocks.before or block is blocks.after]
    layers = [block for block in own if block not in ends]
    around = merged(ends)
    for block in (around, *layers):
        yield from _of_block(block, layout, state, 1 if block is around else 2)


def _of_block(block: Block, layout: Parallelism, state: State, gathers: int) -> Iterator[Sent]:
    trained, is_full = block.trained, layout.fsdp == "full"
    times = layout.microbatches if is_full else 1
    for held, updated, ranks in (
        (block.parameters - block.experts, trained.parameters - trained.experts, layout.replicas),
        (block.experts, trained.experts, layout.tp * layout.replicas // layout.ep),
    ):
        gathered, reduced = (held if is_full else updated) * state.weight, updated * state.gradient
        sent = {"all_reduce": (reduced, 1)} if layout.fsdp == "none" else {
            "reduce_scatter": (reduced, times), "all_gather": (gathered, times * gathers if is_full else 1),
        }  # fmt: skip
        for op, (nbytes, count) in sent.items():
            yield from [(op, nbytes, ranks)] * (count if nbytes and ranks > 1 else 0)
