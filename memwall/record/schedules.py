"""Profile × GPUs → schedules: which of its graphs each GPU runs, and one simulation for each policy."""

from __future__ import annotations

from collections.abc import Sequence

from memwall.fusion import UNIVERSAL, Plan, plan_graph
from memwall.hardware.lookup import Gpu
from memwall.record.profile import Profile
from memwall.simulate.schedule import PlanContext, Schedule, simulate


def attention_backend(gpu: Gpu) -> str:
    """The SDPA backend that PyTorch takes on a GPU.

    Flash from compute capability 8.0 on, memory-efficient before; on AMD flash from CDNA2 on; the others fuse too.
    """
    capability = gpu.compute_capability
    if capability is not None and capability[:1].isdigit():
        return "flash" if float(capability) >= 8.0 else "efficient"
    return "math" if gpu.architecture == "cdna" else "flash"


def graph_for(profile: Profile, gpu: Gpu) -> int:
    """Which graph of a profile a GPU runs: the one it was simulated with, else that of its backend, else 0."""
    known = {schedule.gpu.name: schedule.graph for schedule in profile.simulations}
    backends = [graph.attention for graph in profile.graphs]
    wanted = attention_backend(gpu)
    return known.get(gpu.name, backends.index(wanted) if wanted in backends else 0)


def simulate_profile(
    profile: Profile, gpus: Sequence[Gpu], policies: Sequence[str] = ("eager",), graphs: Sequence[int] | None = None
) -> tuple[Schedule, ...]:
    """The schedules of a profile, policy by policy; a plan that no GPU changes is made once per graph.

    Args:
        graphs: for each GPU the number of the graph that it runs; None looks it up with :func:`graph_for`.
    """
    numbers = [graph_for(profile, gpu) for gpu in gpus] if graphs is None else graphs
    contexts: dict[tuple[str, int], tuple[Plan, PlanContext]] = {}
    schedules = []
    for policy in policies:
        for gpu, number in zip(gpus, numbers, strict=True):
            graph = profile.graphs[number]
            if policy in UNIVERSAL and (policy, number) in contexts:
                plan, context = contexts[policy, number]
            else:
                plan = plan_graph(policy, graph, profile.costs[number], gpu)
                context = PlanContext.of(graph, plan)
                contexts[policy, number] = plan, context
            schedules.append(simulate(graph, plan, gpu, context=context, graph_index=number))
    return tuple(schedules)
