"""Figures of a whole profile, or of one of its schedules, that :mod:`memwall.analysis.quantities` lists.

Nothing slow is imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memwall.core.graph import Graph, Op, TensorSpec
    from memwall.record.profile import Profile
    from memwall.simulate.schedule import Schedule

Read = Callable[["Profile", "Schedule"], "float | None"]


def wall_share(name: str) -> Read:
    """The share of the time under a wall; None where no kernel can hit it."""

    def read(profile: Profile, schedule: Schedule) -> float | None:
        from memwall.record.kernels import wall_shares

        return wall_shares(schedule).get(name)

    return read


def of_messages(name: str) -> Read:
    """A figure of :mod:`memwall.analysis.communication`."""

    def read(profile: Profile, schedule: Schedule) -> float:
        from memwall.analysis import communication

        found: float = getattr(communication, name)(profile, schedule)
        return found

    return read


def of_every_rank(name: str, read: Read) -> Read:
    """The figure of the traced rank, or of another one of its program where that is larger."""

    def most(profile: Profile, schedule: Schedule) -> float | None:
        from memwall.record.job import figures_of

        own, others = read(profile, schedule), (getattr(row, name) for row in figures_of(profile, schedule))
        return None if own is None else max((own, *others))

    return most


def graph_breaks(profile: Profile, schedule: Schedule | None = None) -> float | None:
    """TorchDynamo's graph breaks in the step, each line as often as it is reached; None without a capture."""
    capture = profile.traced.dynamo
    return None if capture is None or capture.failure else float(sum(b.count for b in capture.breaks))


def coverage(profile: Profile, schedule: Schedule | None = None) -> float:
    """Fraction of ops that a formula models, in the worst graph: GPUs may run different attention kernels."""
    return min(sum(cost.modeled for cost in costs) / len(costs) if costs else 1.0 for costs in profile.costs)


def nchw_bytes(profile: Profile, schedule: Schedule | None = None) -> float:
    """Bytes that convolutions read or write in NCHW."""
    return float(sum(spec.nbytes for op in profile.graph.ops for spec in nchw_tensors(profile.graph, op) or ()))


def nchw_tensors(graph: Graph, op: Op) -> list[TensorSpec] | None:
    """What a convolution reads or writes in NCHW, gradients and weights too; None of any other op."""
    from memwall.core.graph import is_channels_last

    if op.op_class != "convolution":
        return None
    data = [spec for spec in graph.specs((*op.inputs, *op.outputs)) if len(spec.shape) in (4, 5)]
    either = [spec for spec in data if min(spec.shape[1], max(spec.shape[2:])) > 1]  # else NHWC is NCHW
    return [s for s in either if not is_channels_last(s.shape, s.strides)] if data else None


def unmodeled(profile: Profile) -> tuple[str, ...]:
    """Names of the ops that no formula models, in any of the graphs."""
    return tuple(
        sorted(
            {
                op.name
                for graph, costs in zip(profile.graphs, profile.costs, strict=True)
                for op, cost in zip(graph.ops, costs, strict=True)
                if not cost.modeled
            }
        )
    )


def materialized_bytes(profile: Profile, schedule: Schedule) -> int:
    """Bytes of intermediates that kernels write to memory: activations and gradients, each storage once."""
    graph, plan = profile.graphs[schedule.graph], schedule.plan
    kept = {graph.values[i].storage for i in graph.outputs}
    if plan is not None:
        written = {graph.values[i].storage for group in plan.groups for i in group.writes}
    else:
        written = _written_apart(graph, schedule)
    return sum(graph.storages[i].nbytes for i in written if graph.storages[i].role == "activation" and i not in kept)


def _written_apart(graph: Graph, schedule: Schedule) -> set[int]:
    """Storages that one kernel writes and another touches: known also for a saved schedule, which has no plan."""
    kernel_of = {op: kernel.id for kernel in schedule.kernels for op in kernel.op_ids}
    touchers: dict[int, set[int]] = {}
    for op in graph.ops:
        for i in (*op.inputs, *op.outputs):
            touchers.setdefault(graph.values[i].storage, set()).add(kernel_of.get(op.id, -1))
    written = {graph.values[i].storage for op in graph.ops for i in op.outputs}
    return {storage for storage in written if len(touchers[storage]) > 1}


def rate(name: str) -> Read:
    """A figure of :func:`memwall.record.kernels.rates`."""

    def read(profile: Profile, schedule: Schedule) -> float | None:
        from memwall.record.kernels import rates

        found: float | None = getattr(rates(profile, schedule), name)
        return found

    return read


def world(profile: Profile, schedule: Schedule) -> int:
    """The GPUs of the program."""
    return profile.traced.job.world if profile.traced.job else 1


def energy(profile: Profile, schedule: Schedule) -> float | None:
    """Joules of a step of all GPUs, by what their kernels keep busy; None where their power limit is not known."""
    watts = power(profile, schedule)
    return None if watts is None else watts * world(profile, schedule) * schedule.totals.time_s


def power(profile: Profile, schedule: Schedule) -> float | None:
    """Watts of a GPU, mean of a step; None where its power limit is not known."""
    from memwall.perfmodel.power import above_idle_j, mean_w

    if not (time_s := schedule.totals.time_s):
        return None
    gpu = schedule.gpu
    return mean_w(sum(above_idle_j(kernel, gpu) for kernel in schedule.kernels), time_s, gpu)


def cost(per: str) -> Callable[..., float | None]:
    """USD of a step, or of a million of what comes at a rate of :func:`memwall.record.kernels.rates`; None without a
    price."""

    def read(profile: Profile, schedule: Schedule, usd_per_gpu_hour: float | None = None) -> float | None:
        if usd_per_gpu_hour is None:
            return None
        usd_per_s = usd_per_gpu_hour / 3600 * world(profile, schedule)
        if not per:
            return usd_per_s * schedule.totals.time_s
        per_s = rate(per)(profile, schedule)
        return usd_per_s / per_s * 1e6 if per_s else None

    return read


def limited_by(profile: Profile, schedule: Schedule) -> str:
    """The wall with the largest share of the time."""
    from memwall.record.kernels import wall_shares

    shares = wall_shares(schedule)
    return max(shares, key=shares.__getitem__)
