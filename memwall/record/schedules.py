"""Graphs × policy × GPU → schedules: the only place that plans and simulates, each plan and each schedule once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from memwall.core.graph import Graph
from memwall.fusion import UNIVERSAL, Plan, plan_graph
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.simulate.plan_context import PlanContext
from memwall.simulate.schedule import Schedule, simulate

#: policies whose plan can be made again from a saved record without a compiler or torch
CHEAP = ("eager", "memwall", "ideal")


@dataclass
class Schedules:
    """Plans and schedules of some graphs. ``costs[i][j]`` is the cost of ``graphs[i].ops[j]``."""

    graphs: Sequence[Graph]
    costs: Sequence[Sequence[Cost]]
    _plans: dict[Any, tuple[Plan, PlanContext]] = field(default_factory=dict, repr=False)
    _made: dict[Any, Schedule] = field(default_factory=dict, repr=False)
    #: by the plan's id, with the plan itself so that the id stays its own
    _contexts: dict[tuple[int, int], tuple[Plan, PlanContext]] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Schedules, (self.graphs, self.costs)  # what was made can be made again

    def schedule(
        self,
        gpu: Gpu,
        policy: str = "eager",
        *,
        graph: int = 0,
        launch: str = "eager",
        regions: Sequence[int] | None = None,
        plan: Plan | None = None,
    ) -> Schedule:
        """As :meth:`memwall.record.profile.Profile.schedule`."""
        apart = None if regions is None else tuple(regions)
        key: Any = (gpu, policy if plan is None else id(plan), graph, launch, apart)
        if plan is not None and key not in self._made:
            context = self._context(graph, plan)
            self._made[key] = simulate(self.graphs[graph], plan, gpu, context=context, graph_index=graph, launch=launch)
        elif key not in self._made:
            known = policy, None if policy in UNIVERSAL else gpu, graph, apart
            if known not in self._plans:
                plan = plan_graph(policy, self.graphs[graph], self.costs[graph], gpu, apart)
                self._plans[known] = plan, self._context(graph, plan)
            plan, context = self._plans[known]
            context = context.cold() if launch == "alone" else context
            self._made[key] = simulate(self.graphs[graph], plan, gpu, context=context, graph_index=graph, launch=launch)
        return self._made[key]

    def _context(self, graph: int, plan: Plan) -> PlanContext:
        """What a plan determines on any GPU, once for each plan."""
        known = (graph, id(plan))
        if known not in self._contexts:
            self._contexts[known] = plan, PlanContext.of(self.graphs[graph], plan, self.costs[graph])
        return self._contexts[known][1]
