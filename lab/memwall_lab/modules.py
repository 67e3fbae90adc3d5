"""A whole module that others timed: the profile of it, how it ran, and the model's time of the run.

Its figures are sums over the module's kernels; the second roofline, R1, adds its 3 us for each kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from memwall.analysis.validation import TimedRow
from memwall.bench.accuracy.halves import module_in_fit_half
from memwall.bench.accuracy.kinds import Timed
from memwall.bench.accuracy.samples import Sample, held_out_gpu, r1_s
from memwall.core.graph import Graph, Op
from memwall.fusion import Plan
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost, graph_costs
from memwall.perfmodel.roofline import peak_compute_s
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule


@dataclass(frozen=True, slots=True)
class ModuleSample(Timed):
    """One measured run of a module. ``label`` is the data set's name for the GPU; ``policy``, ``launch`` and ``plan``
    are as of :meth:`memwall.record.profile.Profile.schedule`."""

    dataset: str
    label: str
    gpu: Gpu
    op_class: str
    module: str
    profile: Profile
    policy: str
    launch: str
    measured_s: float
    plan: Plan | None = None

    @property
    def in_fit_half(self) -> bool:
        """Whether the constants may see the module."""
        return module_in_fit_half(self.module)

    def left_out(self) -> ModuleSample:
        """The run as if no kernel had been measured on its GPU."""
        return replace(self, gpu=held_out_gpu(self.gpu))

    def kernels(self) -> Sample | None:
        """The run as a sample that constants can be fitted to; None where the host or a compiler has a part in it."""
        if (self.policy, self.launch) != ("eager", "graph"):
            return None
        profile = self.profile.on([self.gpu])
        cost = sum(profile.costs[profile.graph_for(self.gpu)], Cost(launches=()))
        return ModuleKernels(
            self.dataset, self.label, self.gpu, self.op_class, profile.workload.dtype, self.module, cost, "graph", 0,
            self.measured_s,
        )  # fmt: skip

    def ran(self) -> Profile:
        """The profile of what ran: a replay of compiled code first copies its inputs to where the CUDA graph reads
        them; of eager's kernels, it runs them as AOTAutograd hands them on."""
        profile = self.profile.on([self.gpu])
        if self.launch != "replay":
            return profile
        number = profile.graph_for(self.gpu)
        graph, costs = profile.graphs[number], profile.costs[number]
        if self.policy == "eager" and len((made := functional(graph)).ops) > len(graph.ops):
            graph, costs = made, graph_costs(made)
        graph = with_copied_inputs(graph)
        costs = (*graph_costs(graph)[: len(graph.inputs)], *costs)
        return replace(profile, graphs=(graph,), costs=(costs,), simulations=(), attention=None)

    def schedule(self) -> Schedule:
        return self._scheduled(self.ran())

    def _scheduled(self, ran: Profile) -> Schedule:
        return ran.schedule(self.gpu, self.policy, launch=self.launch, plan=self.plan)

    def row(self) -> TimedRow:
        """The run, modeled and measured."""
        profile = self.ran()
        schedule = self._scheduled(profile)
        assert schedule.plan is not None
        costs = [group.cost for group in schedule.plan.groups]
        terms = [(peak_compute_s(cost, self.gpu), cost.bytes / self.gpu.dram_bytes_per_s) for cost in costs]
        totals = schedule.totals
        return TimedRow(
            self.dataset, self.label, self.op_class, profile.workload.dtype, totals.time_s, self.measured_s,
            profile.step_bound_s(schedule) if totals.dram_bytes > 2 * self.gpu.l2_bytes else None, shape=self.module,
            low_s=totals.low_s, high_s=totals.high_s, r0_s=sum(max(pair) for pair in terms),
            r1_s=sum(r1_s(*pair) for pair in terms),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModuleKernels(Sample):
    """All kernels of a module, one after another."""

    @property
    def in_fit_half(self) -> bool:
        """As the module is: a fit and a score of modules are of the same halves."""
        return module_in_fit_half(self.shape)


def functional(graph: Graph) -> Graph:
    """The graph as AOTAutograd makes it functional: what updates a buffer makes a new one, which is then copied to the
    old; a batch norm gets clones of its running statistics too."""
    ops, values, storages = list[Op](), graph.values, graph.storages
    for op in graph.ops:
        buffers = [i for i in op.inputs if storages[values[i].storage].role == "buffer"]
        is_norm = "batch_norm" in op.name and op.attributes.get("training")
        copied = 2 * buffers if is_norm else [i for i in buffers if i in op.outputs]
        ops.append(replace(op, id=len(ops)))
        ops += [
            Op(number, "aten.copy_.default", "movement", op.phase, op.module, (i,), (i,), ("src",))
            for number, i in enumerate(copied, len(ops))
        ]
    return replace(graph, ops=tuple(ops))


def with_copied_inputs(graph: Graph) -> Graph:
    """The graph with a copy of each input before its first op; the other ops read the copies."""
    values, storages, ops = list(graph.values), list(graph.storages), list[Op]()
    for number in graph.inputs:
        value, storage = values[number], storages[values[number].storage]
        values.append(replace(value, id=len(values), storage=len(storages)))
        storages.append(replace(storage, id=len(storages)))
        copy = len(values) - 1, number
        ops.append(Op(len(ops), "aten.copy_.default", "movement", "forward", "", copy[:1], copy[1:], ("src",)))
    first, given = len(ops), tuple(range(len(graph.values), len(values)))
    ops += [replace(op, id=op.id + first) for op in graph.ops]
    return replace(graph, values=tuple(values), storages=tuple(storages), ops=tuple(ops), inputs=given)
