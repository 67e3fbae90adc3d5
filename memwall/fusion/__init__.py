"""Graph → Plan: which ops share a launch. Eager is the plan of singletons."""

from memwall.fusion.plan import Group, Plan, Refusal
from memwall.fusion.policies import POLICIES, UNIVERSAL, eager_plan, plan_graph

__all__ = ["POLICIES", "UNIVERSAL", "Group", "Plan", "Refusal", "eager_plan", "plan_graph"]
