"""What an op must do: one row per op, in a module per family.

In: a :class:`Call`, an op with specs instead of tensors. Out: its :class:`Cost` (FLOPs, bytes, launches), loop nest,
the Triton text of its element, the results of a recorded call, what a numerics check fills its inputs with. An op
without a row is kept and charged its bytes.

Start with :mod:`memwall.ops.registry` (what a row says) and :mod:`memwall.ops.elementwise` (the longest table); a
cost's launches come from :mod:`memwall.ops.passes` (over memory) or are products. An op of your own is one call of
:func:`memwall.ops.elementwise.pointwise` or :func:`register_cost`.
"""

from memwall.ops.base import Call, Cost
from memwall.ops.registry import classify, cost_of, graph_costs, register_cost

__all__ = ["Call", "Cost", "classify", "cost_of", "graph_costs", "register_cost"]
