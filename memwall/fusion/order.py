"""The groups of a plan in an order in which they can run."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from memwall.core.flow import Flow
from memwall.fusion.plan import Group


def in_order(flow: Flow, groups: Sequence[Group]) -> list[Group]:
    """The groups so that each runs after what it depends on; among those that may run, by their last op.

    Raises:
        ValueError: the groups depend on each other in a circle.
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
