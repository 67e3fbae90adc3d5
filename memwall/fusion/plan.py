"""The types that every policy produces: groups of ops that share a launch, and what was refused and why."""

from __future__ import annotations

from dataclasses import dataclass

from memwall.ops import Cost


@dataclass(frozen=True, slots=True)
class Group:
    """Ops that share one launch, with the values that the launch reads from and writes to memory, and its cost.

    ``recomputes`` are ops of other groups whose results this one computes again instead of reading them. A group with
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

    ``count`` is how often the same pair stands in repeated layers; bytes and seconds are of one.
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
