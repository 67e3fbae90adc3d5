"""What an op costs: FLOPs per compute pipe and the bytes that must move. Formulas by class in one registry."""

from memwall.ops.base import Call, Cost
from memwall.ops.registry import classify, cost_of, graph_costs, register_cost

__all__ = ["Call", "Cost", "classify", "cost_of", "graph_costs", "register_cost"]
