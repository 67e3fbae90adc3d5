"""Graph → Plan: which ops share a launch. Eager is the plan of singletons."""

from memwall.fusion.plan import Group, Plan, eager_plan, plan_graph

__all__ = ["Group", "Plan", "eager_plan", "plan_graph"]
