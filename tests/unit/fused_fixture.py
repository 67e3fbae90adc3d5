"""The made-up training step under three policies whose plans are written out, so that no planner's choice matters.

``inductor`` fuses each block's GELU and layer norm: one kernel of 2 MiB in and 2 MiB out, where eager takes two that
move 4 MiB each and, in the norm, read 2 MiB once more. ``ideal`` moves nothing but the products and the attention.
"""

from dataclasses import replace

from memwall.fusion import Group, Plan, eager_plan
from memwall.ops import Cost
from memwall.record.profile import Profile
from memwall.simulate.schedule import simulate
from tests.unit.report_fixture import OLD, VECTOR, make_profile

MIB = 1024 * 1024
#: of each block: product, GELU, layer norm
GELU, NORM = (1, 4), (2, 5)


def fused_plan(profile: Profile) -> Plan:
    """Eager but for the two pairs of GELU and layer norm."""
    graph, costs = profile.graph, profile.costs[0]
    groups = []
    for group in eager_plan(graph, costs).groups:
        (op_id,) = group.op_ids
        if op_id in GELU:
            continue
        if op_id in NORM:
            gelu = graph.ops[op_id - 1]
            cost = Cost({VECTOR: 13 * MIB}, 2 * MIB, 2 * MIB)
            group = Group((gelu.id, op_id), gelu.inputs, graph.ops[op_id].outputs, cost)
        groups.append(group)
    return Plan("inductor", tuple(groups))


def ideal_plan(profile: Profile) -> Plan:
    """Four products and the attention; all else rides along for nothing with the one before."""
    costs = profile.costs[0]
    groups: list[Group] = []
    for group in eager_plan(profile.graph, costs).groups:
        op = profile.graph.ops[group.op_ids[0]]
        if op.op_class in ("contraction", "attention"):
            groups.append(group)
        else:
            groups[-1] = replace(groups[-1], op_ids=(*groups[-1].op_ids, op.id))
    return Plan("ideal", tuple(groups))


def make_fused(gpus=(OLD,), policies=("eager", "inductor", "ideal")) -> Profile:
    """The profile of the three policies on some GPUs."""
    profile = make_profile(gpus=())
    plans = {
        "eager": eager_plan(profile.graph, profile.costs[0]),
        "inductor": fused_plan(profile),
        "ideal": ideal_plan(profile),
    }
    return profile.with_simulations(
        tuple(simulate(profile.graph, plans[policy], gpu) for policy in policies for gpu in gpus)
    )
