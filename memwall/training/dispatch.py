"""How tokens get to the experts of other GPUs and back: the dispatchers of Megatron-LM.

- ``alltoall``: a row for each expert that a token chose, in one all-to-all between the GPUs that share the experts.
- ``hybridep``: a token once to each node that has one of its experts, from GPU to GPU of equal place there, and inside
  the node once to each GPU that has one; what these make of it is summed on the way back (NVIDIA's HybridEP and
  DeepEP). Pieces are passed on as they arrive, so that the slower of both levels counts.

Tokens choose experts by chance, all alike, as with a router that is balanced.
"""

from __future__ import annotations

from typing import NamedTuple

from memwall.core.ranks import read_ranks
from memwall.hardware.links import Cluster
from memwall.ops.launches import Message
from memwall.ops.routing import expected_groups
from memwall.perfmodel.collectives import CollectiveTime, collective_s, placed


class Routing(NamedTuple):
    """How many experts a token chooses, and of how many."""

    top_k: int
    experts: int


class DispatchLeg(NamedTuple):
    """An all-to-all of ``nbytes`` between ``ranks`` GPUs, ``per_node`` of each node."""

    nbytes: float
    ranks: int
    per_node: int


def hybrid_legs(nbytes: int, ranks: int, per_node: int, routing: Routing) -> list[DispatchLeg]:
    """What HybridEP sends in place of an all-to-all of so many bytes, in which each token has a row for each of its
    experts: between nodes, and inside them."""
    token_bytes, nodes = nbytes / routing.top_k, ranks // per_node
    reached = {groups: expected_groups(*routing[::-1], groups) for groups in (nodes, ranks)}
    legs = (
        DispatchLeg(token_bytes * reached[nodes], nodes, 1),
        DispatchLeg(token_bytes * reached[ranks], per_node, per_node),
    )
    return [leg for leg in legs if leg.ranks > 1]


def hybrid_time(message: Message, cluster: Cluster, routing: Routing) -> CollectiveTime:
    """HybridEP in place of an all-to-all: the slower of its legs.

    Raises:
        UsageError: as :func:`memwall.perfmodel.collectives.message_time`.
    """
    legs = hybrid_legs(message.nbytes, len(read_ranks(message.group)), placed(message, cluster)[1], routing)
    found = (collective_s("all_to_all", leg.nbytes, leg.ranks, cluster, per_node=leg.per_node) for leg in legs)
    return max(found, key=lambda each: each.time_s)
