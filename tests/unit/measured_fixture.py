"""The made-up training step with made-up times on a device that does not exist: round numbers to check by hand.

Nothing here was measured. On GPU ``old`` (1 TB/s, 100 TFLOP/s, 1 us a launch) the model says of one launch, in us:

==========================  ========  =======  ===========
kernel                      bytes     bound    modeled
==========================  ========  =======  ===========
product, 2^31 FLOP          6 MiB     21.47    22.47
GELU                        4 MiB      4.19     5.19
layer norm, 2 MiB again     4 MiB      4.19     7.29
attention, 2^31 FLOP        8 MiB     21.47    22.47
GELU and norm as one        4 MiB      4.19     5.19
==========================  ========  =======  ===========
"""

from dataclasses import replace

from memwall.fusion import Plan, eager_plan
from memwall.record.measurement import EXECUTORS, MeasuredKernel, Measurement, Sensors, Timing
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule, simulate
from tests.unit.fused_fixture import fused_plan
from tests.unit.report_fixture import OLD, make_profile

US = 1e-6
DEVICE = "Maker old 16GB"
COPY_BYTES_PER_S = 0.8e12

#: executor -> op names -> made-up median in us, or a status and its reason
EAGER = {
    "aten.mm": 25.0,
    "aten.gelu": 5.0,
    "aten.native_layer_norm": 8.0,
    "aten._scaled_dot_product_flash_attention": 20.0,  # below its bound of 21.47: a violation
    "mylib.mystery": ("failed", "no operator of that name"),
    "aten._fused_adamw_": 100.0,
}
FUSED = "gelu+native_layer_norm"
TIMES = {
    "eager": EAGER,
    "inductor": {**EAGER, FUSED: 6.5},
    "generated": {**dict.fromkeys(EAGER, ("not generated", "left to the library")), FUSED: 5.2},
}


def timing(us: float, spread: float = 0.02) -> Timing:
    """A median with an interval of ``spread`` to either side."""
    return Timing(us * US, us * US * (1 - spread), us * US * (1 + spread), 30, us * US * 0.9, us * US * 1.5)


def measured(schedule: Schedule, executor: str, **changes) -> Measurement:
    """A measurement of each kernel once, equal names being equal kernels."""
    firsts: dict[tuple, list] = {}
    for kernel in schedule.kernels:
        firsts.setdefault((kernel.name, kernel.bytes), []).append(kernel)
    kernels = []
    for (name, _), equal in firsts.items():
        k, found = equal[0], TIMES[executor].get(name, 2.0)
        status, reason = found if isinstance(found, tuple) else ("ok", "")
        kernels.append(
            MeasuredKernel(
                k.id, k.name, k.op_ids, k.op_class, len(equal), k.flops, k.bytes, k.time_s, k.bound_s, status, reason,
                timing=None if isinstance(found, tuple) else timing(found), error=0.25 if status == "ok" else None,
                schedule="persistent" if executor == "generated" and status == "ok" else "",
                config={"ROWS": 4} if executor == "generated" and status == "ok" else {},
                sensors=Sensors(1.4e9, None, 250.0, 61.0),
            )
        )  # fmt: skip
    return replace(
        Measurement(
            device=DEVICE, kind="cuda", gpu=schedule.gpu.name, executor=executor, policy=EXECUTORS[executor],
            copy_bytes_per_s=COPY_BYTES_PER_S, complete=True, environment={"driver": "made up", "torch": "0.0"},
            step=timing(300.0), step_modeled_s=schedule.totals.time_s, kernels=tuple(kernels),
        ),
        **changes,
    )  # fmt: skip


def make_measured(executors=("eager", "inductor", "generated"), **changes) -> Profile:
    """The profile with what the executors took; ``changes`` are of every measurement."""
    profile = make_profile(gpus=())
    plans = {
        "eager": eager_plan(profile.graph, profile.costs[0]),
        "memwall": Plan("memwall", fused_plan(profile).groups),
    }
    schedules = {policy: simulate(profile.graph, plan, OLD) for policy, plan in plans.items()}
    wanted = dict.fromkeys(EXECUTORS[executor] for executor in executors)
    found = [measured(schedules[EXECUTORS[e]], e, **changes).to_dict() for e in executors]
    return replace(profile, simulations=tuple(schedules[policy] for policy in wanted), measurements=tuple(found))
