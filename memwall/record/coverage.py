"""How much of a graph has formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memwall.core.graph import Graph
from memwall.ops import Cost


@dataclass(frozen=True)
class Coverage:
    """Fractions of ops, FLOPs and bytes that a formula models, and the names of the unmodeled ops, which have no FLOP
    count: ``flops`` is the share of ops, the best that can be said."""

    ops: float
    flops: float
    bytes: float
    unmodeled: tuple[str, ...]


def coverage_of(graph: Graph, costs: Sequence[Cost]) -> Coverage:
    """The coverage of a graph; all of one without ops."""
    known = [cost for cost in costs if cost.modeled]
    names = sorted({op.name for op, cost in zip(graph.ops, costs, strict=True) if not cost.modeled})
    total_bytes = sum(cost.bytes for cost in costs)
    by_ops = len(known) / len(costs) if costs else 1.0
    by_bytes = sum(cost.bytes for cost in known) / total_bytes if total_bytes else 1.0
    return Coverage(by_ops, by_ops, by_bytes, tuple(names))
