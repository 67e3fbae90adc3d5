"""What every policy produces: groups of ops that share a launch, in launch order, and the refusals with reasons."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from memwall.core.flow import Flow
from memwall.ops import Cost


class Part(NamedTuple):
    """Ops that will share a launch, and ops of others that it recomputes. ``source``: the number of the part that it is
    a copy of."""

    op_ids: tuple[int, ...]
    recomputes: tuple[int, ...] = ()
    source: int = -1


@dataclass(frozen=True, slots=True)
class Group:
    """Ops that share one launch, with the values that the launch reads from and writes to memory, and its cost.

    ``recomputes`` are ops of other groups whose results this one recomputes instead of reading them. A group with
    ``cost.kernels`` above 1 needs more launches: a second stage of a reduction, or the two passes of a batch norm.
    ``name`` and ``source`` are the kernel's, where the policy knows them.
    """

    op_ids: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    cost: Cost
    recomputes: tuple[int, ...] = ()
    name: str = ""
    source: str = ""


def not_run(op_ids: Sequence[int]) -> Group:
    """The group of ops that a policy does not run: no launch, no bytes."""
    return Group(tuple(op_ids), (), (), Cost(launches=()))


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
    """How a policy executes a graph: its groups in launch order, and what it refused to fuse and why. ``outside``:
    the ops that no compiled graph holds, which the host issues as without a compiler. ``peak_bytes``: of the buffers
    that a compiler has assigned, where it has; else lives of storages tell."""

    policy: str
    groups: tuple[Group, ...]
    refusals: tuple[Refusal, ...] = ()
    outside: frozenset[int] = frozenset()
    peak_bytes: int | None = None


class Grouped(Protocol):
    """What can be put in order: parts and groups."""

    @property
    def op_ids(self) -> tuple[int, ...]: ...

    @property
    def recomputes(self) -> tuple[int, ...]: ...


G = TypeVar("G", bound=Grouped)


def in_order(flow: Flow, groups: Sequence[G], rank: Callable[[int], Any] | None = None) -> list[G]:
    """The groups in dependency order, else by the rank of their number, or by their last op; a ValueError if there is a
    cycle."""
    order = topological(waits(flow, groups), rank or (lambda index: max(groups[index].op_ids)))
    if len(order) != len(groups):
        raise ValueError("the groups depend on each other in a circle")
    return [groups[index] for index in order]


def waits(flow: Flow, groups: Sequence[Grouped]) -> list[set[int]]:
    """For each group the groups that must run first, by number: they write what it reads, or touch what it
    overwrites."""
    owner = {op: i for i, group in enumerate(groups) for op in group.op_ids}
    found: list[set[int]] = [set() for _ in groups]
    for index, group in enumerate(groups):
        copies = set(group.recomputes)
        inside = copies.union(group.op_ids)
        found[index].update([owner[dep] for op in group.op_ids for dep in flow.deps[op] if dep not in copies])
        for version in (v for op in copies for _, v in flow.reads[op] if flow.writer[v] not in inside):
            if flow.writer[version] >= 0:
                found[index].add(owner[flow.writer[version]])
            if version in flow.overwriter:
                found[owner[flow.overwriter[version]]].add(index)
    for index, needed in enumerate(found):
        needed.discard(index)
    return found


def inverse(before: Sequence[Collection[int]]) -> list[list[int]]:
    """For each number the numbers that have it among theirs."""
    after: list[list[int]] = [[] for _ in before]
    for number, some in enumerate(before):
        for other in some:
            after[other].append(number)
    return after


def topological(before: Sequence[Collection[int]], rank: Callable[[int], Any]) -> list[int]:
    """The numbers, each after those ``before`` it, else by rank; numbers on a cycle, or behind one, are left out."""
    after, missing = inverse(before), [len(some) for some in before]
    ready = [(rank(number), number) for number, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for other in after[number]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, (rank(other), other))
    return order


class Placement:
    """Where each op runs: ``inside[g]`` are the ops that group ``g`` owns or recomputes; ``runs[op]`` are the groups
    that run it, its owner first."""

    def __init__(self, parts: Iterable[Grouped]) -> None:
        self.inside: list[set[int]] = []
        self.runs: dict[int, list[int]] = {}
        copies = []
        for number, part in enumerate(parts):
            self.inside.append({*part.op_ids, *part.recomputes})
            for op in part.op_ids:
                self.runs[op] = [number]
            copies += [(op, number) for op in part.recomputes]
        for op, number in copies:
            self.runs[op].append(number)

    def add(self, ops: Iterable[int], groups: Iterable[int]) -> list[tuple[int, int]]:
        """Let the groups also run the ops; returns what is new, for :meth:`remove`."""
        new = [(op, g) for g in groups for op in ops if op not in self.inside[g]]
        for op, group in new:
            self.inside[group].add(op)
            self.runs[op].append(group)
        return new

    def remove(self, added: Iterable[tuple[int, int]]) -> None:
        """Undo an :meth:`add`."""
        for op, group in added:
            self.inside[group].remove(op)
            self.runs[op].remove(group)

    def clear(self, group: int) -> None:
        """Let a group run nothing any more."""
        for op in self.inside[group]:
            self.runs[op].remove(group)
        self.inside[group] = set()

    def is_read(self, writer: int, readers: Iterable[int]) -> bool:
        """Whether some group runs a reader of the result of ``writer`` but not ``writer``."""
        for reader in readers:
            for group in self.runs[reader]:
                if writer not in self.inside[group]:
                    return True
        return False
