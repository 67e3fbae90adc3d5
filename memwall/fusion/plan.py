"""What every policy produces: groups of ops that share a launch, in launch order, and the refusals with reasons."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from memwall.core.flow import Flow
from memwall.ops import Cost


@dataclass(frozen=True, slots=True)
class Group:
    """Ops that share one launch, with the values that the launch reads from and writes to memory, and its cost.

    ``recomputes`` are ops of other groups whose results this one recomputes instead of reading them. A group with
    ``cost.kernels`` above 1 needs more launches: a second stage of a reduction, or the two passes of a batch norm.
    ``name`` and ``source`` are those of the kernel, where the policy knows them.
    """

    op_ids: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    cost: Cost
    recomputes: tuple[int, ...] = ()
    name: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A fusion of a producer and a consumer (op ids) that was not made: the rule that forbade it, the reason in words,
    and the bytes and seconds that it would have saved.

    ``count`` is how often the same pair occurs in repeated layers; bytes and seconds are for one.
    """

    rule: str
    reason: str
    producer: int
    consumer: int
    saved_bytes: int
    saved_s: float
    count: int = 1


@dataclass(frozen=True)
class Plan:
    """How a policy executes a graph: its groups in launch order, and what it refused to fuse and why."""

    policy: str
    groups: tuple[Group, ...]
    refusals: tuple[Refusal, ...] = ()


def in_order(flow: Flow, groups: Sequence[Group]) -> list[Group]:
    """The groups in dependency order; among those that may run, by their last op.

    Raises:
        ValueError: the groups' dependencies form a cycle.
    """
    owner = {op: i for i, group in enumerate(groups) for op in group.op_ids}
    waits: list[set[int]] = [set() for _ in groups]
    followers: list[list[int]] = [[] for _ in groups]
    for index, group in enumerate(groups):
        copies = set(group.recomputes)
        inside = copies.union(group.op_ids)
        waits[index].update(owner[dep] for op in group.op_ids for dep in flow.deps[op] if dep not in copies)
        for version in (v for op in copies for _, v in flow.reads[op] if flow.writer[v] not in inside):
            if flow.writer[version] >= 0:
                waits[index].add(owner[flow.writer[version]])
            if version in flow.overwriter:
                waits[owner[flow.overwriter[version]]].add(index)
    for index, needed in enumerate(waits):
        needed.discard(index)
        for other in needed:
            followers[other].append(index)
    missing = [len(needed) for needed in waits]
    ready = [(max(group.op_ids), i) for i, group in enumerate(groups) if not missing[i]]
    heapq.heapify(ready)
    result = []
    while ready:
        _, index = heapq.heappop(ready)
        result.append(groups[index])
        for follower in followers[index]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, (max(groups[follower].op_ids), follower))
    if len(result) != len(groups):
        raise ValueError("the groups depend on each other in a circle")
    return result
