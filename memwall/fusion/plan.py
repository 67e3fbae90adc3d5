"""The Plan type that every policy produces, and the eager policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from memwall.cost import Cost
from memwall.errors import UsageError
from memwall.graph import Graph


@dataclass(frozen=True, slots=True)
class Group:
    """Ops that share one launch, with the values that the launch reads from and writes to memory, and its cost."""

    op_ids: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    cost: Cost


@dataclass(frozen=True)
class Plan:
    """How a policy executes a graph: its groups in launch order, and what it refused to fuse and why."""

    policy: str
    groups: tuple[Group, ...]
    refusals: Mapping[str, str] = field(default_factory=dict)


def eager_plan(graph: Graph, costs: tuple[Cost, ...]) -> Plan:
    """Every op alone, in call order: what PyTorch does without a compiler."""
    groups = tuple(
        Group((op.id,), op.inputs, op.outputs, cost) for op, cost in zip(graph.ops, costs, strict=True)
    )
    return Plan("eager", groups)


#: policy name -> planner
PLANNERS: dict[str, Callable[[Graph, tuple[Cost, ...]], Plan]] = {"eager": eager_plan}


def plan_graph(policy: str, graph: Graph, costs: tuple[Cost, ...]) -> Plan:
    """The plan of a policy.

    Raises:
        UsageError: no such policy.
    """
    if policy not in PLANNERS:
        raise UsageError(f"no policy named {policy!r}; there is {', '.join(PLANNERS)}")
    return PLANNERS[policy](graph, costs)
