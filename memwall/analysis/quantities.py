"""The quantities that a gate can limit: one row each, with its unit, its better direction and how it is read off.

A whole-workload figure is read off a schedule or a profile; where a quantity can be summed over kernels it can be
limited per module too. A kernel belongs to a module pattern if all its ops' common module, or a parent of it, matches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memwall.perfmodel.roofline import Estimate
from memwall.record.kernels import wall_shares
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure. ``unit`` is one of ``s``, ``B``, ``FLOP``, ``count``, ``fraction``; ``lower`` is better, or higher.

    ``per`` says what it depends on: ``schedule`` (GPU and policy), ``profile`` (neither), or ``machine`` (timed by
    :mod:`memwall.gate.measured`, and there alone). ``of_kernel`` is its part of one kernel, None where it has none.
    """

    name: str
    title: str
    unit: str
    lower: bool
    per: str
    read: Callable[[Profile, Schedule], float | None]
    of_kernel: Callable[[Estimate], float] | None = None


def _wall(name: str) -> Callable[[Profile, Schedule], float | None]:
    return lambda profile, schedule: wall_shares(schedule)[name]


def graph_breaks(profile: Profile, schedule: Schedule | None = None) -> float | None:
    """Breaks that TorchDynamo meets in the step, each line as often as it is reached; None without a capture."""
    from memwall.analysis.fused import capture_of

    capture = capture_of(profile.capture)
    return None if capture is None or capture.failure else float(sum(b.count for b in capture.breaks))


def coverage(profile: Profile, schedule: Schedule | None = None) -> float:
    """Fraction of ops that a formula models, in the graph that has least: GPUs may run other attention kernels."""
    return min(sum(cost.modeled for cost in costs) / len(costs) if costs else 1.0 for costs in profile.costs)


def unmodeled(profile: Profile) -> tuple[str, ...]:
    """Names of the ops that no formula models, in any of the graphs."""
    return tuple(sorted({
        op.name for graph, costs in zip(profile.graphs, profile.costs, strict=True)
        for op, cost in zip(graph.ops, costs, strict=True) if not cost.modeled
    }))  # fmt: skip


def materialized_bytes(schedule: Schedule, profile: Profile) -> int:
    """Bytes of intermediates that kernels write to memory: activations and gradients, each storage once."""
    graph = profile.graphs[schedule.graph]
    kept = {graph.values[i].storage for i in graph.outputs}
    plan = schedule.plan
    if plan is not None:
        written = {graph.values[i].storage for group in plan.groups for i in group.writes}
    else:
        written = _written_apart(profile, schedule)
    return sum(graph.storages[i].nbytes for i in written if graph.storages[i].role == "activation" and i not in kept)


def _written_apart(profile: Profile, schedule: Schedule) -> set[int]:
    """Storages that one kernel writes and another touches: what a saved schedule, which has no plan, still says."""
    graph = profile.graphs[schedule.graph]
    kernel_of = {op: kernel.id for kernel in schedule.kernels for op in kernel.op_ids}
    writers: dict[int, set[int]] = {}
    touchers: dict[int, set[int]] = {}
    for op in graph.ops:
        kernel = kernel_of.get(op.id, -1)
        for i in op.outputs:
            writers.setdefault(graph.values[i].storage, set()).add(kernel)
        for i in (*op.inputs, *op.outputs):
            touchers.setdefault(graph.values[i].storage, set()).add(kernel)
    return {storage for storage, kernels in writers.items() if len(touchers[storage]) > 1 or not kernels}


_ROWS = (
    Quantity("kernels", "kernels launched", "count", True, "schedule", lambda p, s: s.totals.kernels,
             lambda k: k.launches),
    Quantity("dram_bytes", "DRAM bytes", "B", True, "schedule", lambda p, s: s.totals.dram_bytes, lambda k: k.bytes),
    Quantity("flops", "FLOPs", "FLOP", True, "schedule", lambda p, s: s.totals.flops, lambda k: k.flops),
    Quantity("bound_s", "speed of light", "s", True, "schedule", lambda p, s: s.totals.bound_s, lambda k: k.bound_s),
    Quantity("time_s", "predicted time", "s", True, "schedule", lambda p, s: s.totals.time_s, lambda k: k.time_s),
    Quantity("peak_memory", "peak memory", "B", True, "schedule", lambda p, s: s.totals.peak_memory_bytes),
    Quantity("materialized_bytes", "materialized intermediates", "B", True, "schedule",
             lambda p, s: materialized_bytes(s, p)),
    Quantity("mfu", "MFU", "fraction", False, "schedule", lambda p, s: s.totals.mfu),
    Quantity("mbu", "MBU", "fraction", False, "schedule", lambda p, s: s.mbu),
    Quantity("compute_share", "share of the time under the compute wall", "fraction", False, "schedule",
             _wall("compute")),
    Quantity("bandwidth_share", "share of the time under the bandwidth wall", "fraction", True, "schedule",
             _wall("bandwidth")),
    Quantity("overhead_share", "share of the time under the overhead wall", "fraction", True, "schedule",
             _wall("overhead")),
    Quantity("graph_breaks", "graph breaks", "count", True, "profile", graph_breaks),
    Quantity("measured_s", "measured time", "s", True, "machine", lambda p, s: None),
    Quantity("coverage", "ops with a formula", "fraction", False, "profile", coverage),
)  # fmt: skip

#: name -> quantity
QUANTITIES = {row.name: row for row in _ROWS}

#: other spellings of a name
ALIASES = {"peak_memory_bytes": "peak_memory", "memory": "peak_memory", "launches": "kernels", "time": "time_s"}
