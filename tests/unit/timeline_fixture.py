"""The fixture's training step under several policies, on a GPU that waits for its CPU and on one that does not."""

from dataclasses import replace

from memwall.fusion import plan_graph
from memwall.simulate.schedule import simulate
from tests.unit.report_fixture import NEW, make_gpu, make_profile

#: its CPU needs 30 us to issue an op of the forward pass
SLOW_CPU = make_gpu("slow_cpu", dispatch_s=30e-6)
POLICIES = ("eager", "memwall", "ideal")


def several(gpus=(SLOW_CPU, NEW), policies=POLICIES, **options):
    """The step on each GPU under each policy."""
    profile = make_profile(gpus=(), **options)
    graph, costs = profile.graph, profile.costs[0]
    schedules = [simulate(graph, plan_graph(p, graph, costs, gpu), gpu) for p in policies for gpu in gpus]
    return profile.with_simulations(tuple(schedules))


def with_source(profile, sources):
    """The profile with a source line for some ops."""
    ops = tuple(replace(op, source=sources.get(op.id, "")) for op in profile.graph.ops)
    return replace(profile, graphs=(replace(profile.graph, ops=ops),))
