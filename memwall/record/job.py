"""What a record says of the job that its rank is of: how many ranks there are, their pipeline, and which of them work
on the same inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from typing import Any

from memwall.core.graph import Graph
from memwall.core.ranks import read_ranks
from memwall.record.profile import Profile
from memwall.record.traced import RankFigures
from memwall.simulate.schedule import Schedule


def figures_of(profile: Profile, schedule: Schedule) -> list[RankFigures]:
    """The figures of other ranks under the same simulation; none in a record of one rank alone."""
    where = place_of(schedule)
    return [row for row in profile.traced.ranks if (row.gpu, row.cluster, row.policy) == where]


def place_of(schedule: Schedule) -> tuple[str, str, str]:
    """The GPU, the cluster and the policy of a simulation."""
    cluster = schedule.gpu.cluster
    return schedule.gpu.name, cluster.name if cluster else "", schedule.policy


def replicas(profile: Profile) -> float:
    """How many inputs like the traced rank's a step of the job has: its ranks over the ranks that share them. Ranks
    do that which exchange, forward, what follows from the inputs (products in shards, parts of a sequence) or are the
    stages of one pipeline; with an all-to-all only where one goes to one other, as each expert's ranks have inputs of
    their own."""
    job, pipeline = profile.traced.job, profile.traced.pipeline
    if job is None:
        return 1.0
    groups = {frozenset(pipeline.ranks)} if pipeline else set()
    groups |= _sharing(profile.graph, pipeline.microbatches if pipeline else 1)
    own = frozenset((job.rank,))
    apart = reduce(_joined, sorted(groups, key=lambda group: (len(group), sorted(group))), list[frozenset[int]]())
    return job.world / math.prod(len(group | own) for group in apart)


def _joined(apart: list[frozenset[int]], group: frozenset[int]) -> list[frozenset[int]]:
    """Groups that have one rank in common, with a further one; groups that have more become one."""
    within = [other for other in apart if len(other & group) > 1]
    return [*(other for other in apart if other not in within), group.union(*within)]


def _sharing(graph: Graph, microbatches: int) -> set[frozenset[int]]:
    """The groups of ranks that exchange what follows from the inputs in the forward pass, at least a number for each of
    the inputs': statistics and losses are less."""
    flowing = {graph.values[i].storage for i in graph.inputs}
    least = max((graph.values[i].spec.numel for i in graph.inputs), default=0) / microbatches
    found = set()
    for op in graph.ops:
        if op.phase != "forward" or not any(graph.values[i].storage in flowing for i in op.inputs):
            continue
        made = {graph.values[i].storage for i in op.outputs}
        flowing |= {number for number in made if graph.storages[number].role == "activation"}
        if op.op_class == "communication" and "group" in op.attributes and not _is_shuffle(op.attributes):
            ranks = frozenset(read_ranks(str(op.attributes["group"])))
            if max(spec.numel for spec in graph.specs((*op.inputs, *op.outputs))) * len(ranks) >= least:
                found.add(ranks)
    return found


def _is_shuffle(attributes: Mapping[str, Any]) -> bool:
    """Whether an all-to-all sends to more than one rank."""
    splits = attributes.get("input_split_sizes")
    return splits is not None and sum(map(bool, splits)) != 1
