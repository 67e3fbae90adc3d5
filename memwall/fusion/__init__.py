"""Graph → Plan: which ops share a launch. Eager is the plan of singletons.

In: a graph, the costs of its ops, and a GPU where the policy needs one. Out: a :class:`Plan`: groups of ops in
launch order with the cost of each, and the refused fusions with the reason.

``policies`` lists the policies: start there. ``memwall`` is ``planner``, by the rules of ``rules``, priced by
``pricing``, then ``recompute``; layers that repeat are planned once (``repeats``). ``ideal`` is the lower bound;
``hand_fused`` puts whole modules into one kernel for a what-if. The policies ``inductor``, ``max-autotune`` and
``server`` are from wings (:mod:`memwall.wings`): what torch's compiler and what inference engines run.
"""

from memwall.fusion.plan import Group, Plan, Refusal
from memwall.fusion.policies import (
    COMPILED,
    POLICIES,
    REWRITING,
    UNIVERSAL,
    check_policies,
    eager_plan,
    plan_graph,
    why_not,
)

__all__ = [
    "COMPILED", "POLICIES", "REWRITING", "UNIVERSAL", "Group", "Plan", "Refusal", "check_policies", "eager_plan",
    "plan_graph", "why_not",
]  # fmt: skip
