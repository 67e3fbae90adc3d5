"""Graph → Plan: which ops share a launch. Eager is the plan of singletons.

In: a graph, the costs of its ops, and a GPU where the policy needs one. Out: a :class:`Plan`: groups of ops in
launch order with the cost of each, and the refused fusions with the reason.

``policies`` lists the policies: start there. ``memwall`` is ``planner``, by the rules of ``rules``, priced by
``pricing``, then ``recompute``; layers that repeat are planned once (``repeats``). ``inductor`` is
``compiled`` on top of ``inductor/``, which runs torch's compiler. ``server`` is what inference engines run in place of
a language model's own ops. ``ideal`` is the lower bound; ``hand_fused`` puts whole modules into one kernel for a
what-if.
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
