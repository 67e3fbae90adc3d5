"""The one saved record, ``memwall.profile/1``: the traced workload, its costs, and its time on each GPU.

History of the format: 1 is the first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memwall.core.errors import UsageError
from memwall.core.files import read_json, uncollected, write_whole
from memwall.core.graph import Graph, Op
from memwall.core.structure import BadRecord, check_schema, read, write
from memwall.core.version import __version__
from memwall.core.views import view
from memwall.frontend.facts import WorkloadInfo
from memwall.fusion import Plan
from memwall.fusion.policies import COMPILING
from memwall.hardware.chips import chip_of
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost, graph_costs
from memwall.ops.lowering import LowerableGraph
from memwall.ops.sdpa import Backends, not_run_by
from memwall.record.coverage import Coverage, coverage_of
from memwall.record.format import SavedProfile, json_lines, read_profile, schedule_to_row
from memwall.record.graphs import attention_to_row, graph_to_row
from memwall.record.measurement import check_measurements
from memwall.record.schedules import CHEAP, Schedules
from memwall.record.traced import Traced
from memwall.simulate.plan_context import MODEL_CLASSES
from memwall.simulate.schedule import Schedule
from memwall.simulate.step_bound import step_bound_s

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

SCHEMA = "memwall.profile/1"
_SCHEMA_FAMILY, _SCHEMA_VERSION = "memwall.profile", 1


@dataclass(frozen=True)
class Profile:
    """A traced workload, its costs and its simulations. Everything but making one works without torch.

    ``graphs[0]`` is the graph of the first GPU; more follow only where another GPU would run another attention kernel.
    ``costs[i][j]`` is the cost of ``graphs[i].ops[j]``. ``measurements`` are as in
    :mod:`memwall.record.measurement`, as plain JSON types. ``attention`` has the attention ops as traced, from which
    :meth:`on` makes the graphs of other GPUs; None where there are none, or in a record of an older memwall.

    Policies of :data:`memwall.fusion.policies.COMPILING` bring a graph of their own for each GPU: ``own_plans`` has the
    number of the graph and the plan, by policy and name of the GPU. ``program`` makes what they compile of the name of
    a platform. Records have neither.
    """

    workload: WorkloadInfo
    graphs: tuple[Graph, ...]
    costs: tuple[tuple[Cost, ...], ...]
    simulations: tuple[Schedule, ...] = ()
    traced: Traced = field(default_factory=Traced)
    measurements: tuple[Mapping[str, Any], ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    memwall_version: str = __version__
    attention: LowerableGraph | None = field(default=None, repr=False)
    own_plans: Mapping[tuple[str, str], tuple[int, Plan]] = field(default_factory=dict, repr=False, compare=False)
    program: Any = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """What another process gets: all but the program, which functions of the user's are part of."""
        return {**self.__dict__, "program": None}

    def __repr__(self) -> str:
        """One line: a notebook keeps it next to the HTML, and a failed test prints it."""
        on = ", ".join(f"{s.gpu.name} {s.policy}" for s in self.simulations) or "no GPU"
        name = " ".join(self.workload.name.split())
        return f"<memwall.Profile of {name}: {self.workload.mode}, {len(self.graph.ops):,} ops; {on}>"

    @property
    def of_torch(self) -> bool:
        """Whether a PyTorch module was traced, not a program of another kind."""
        return not self.environment or "torch" in self.environment

    @property
    def graph(self) -> Graph:
        """The graph of the first GPU."""
        return self.graphs[0]

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs that it was simulated on, each once."""
        return list({schedule.gpu.name: schedule.gpu for schedule in self.simulations}.values())

    @property
    def policies(self) -> list[str]:
        """The policies that it was simulated under, each once."""
        return list(dict.fromkeys(schedule.policy for schedule in self.simulations))

    @property
    def launch(self) -> str:
        """How the kernels of its simulations are issued, but for kernels of compiled programs, which are captured; one
        after another where it has none."""
        return next((s.launch for s in self.simulations if s.policy not in COMPILING), "eager")

    @cached_property
    def flops(self) -> int:
        """FLOPs of all ops, causal attention counted as causal."""
        return sum(cost.total_flops for cost in self.costs[0])

    @cached_property
    def model_flops(self) -> int:
        """FLOPs of contractions, convolutions and attention."""
        return sum(cost.total_flops for _, cost in self._model_costs)

    @cached_property
    def dense_model_flops(self) -> int:
        """Like :attr:`model_flops` with attention counted dense, as most other tools do."""
        return sum(cost.total_flops if cost.dense_flops is None else cost.dense_flops for _, cost in self._model_costs)

    @cached_property
    def flops_again(self) -> int:
        """Of :attr:`model_flops`, the FLOPs that backward computes again."""
        return sum(cost.total_flops for op, cost in self._model_costs if op.again)

    @property
    def _model_costs(self) -> list[tuple[Op, Cost]]:
        pairs = zip(self.graph.ops, self.costs[0], strict=True)
        return [(op, cost) for op, cost in pairs if op.op_class in MODEL_CLASSES]

    @cached_property
    def dram_bytes(self) -> int:
        """Compulsory DRAM bytes of all ops, unfused."""
        return sum(cost.bytes for cost in self.costs[0])

    @cached_property
    def coverage(self) -> Coverage:
        """How much of the graph is modeled."""
        return coverage_of(self.graph, self.costs[0])

    def simulation(self, gpu: str, policy: str = "eager") -> Schedule:
        """The simulation on a GPU, by its canonical name; raises ``KeyError`` if that GPU was not simulated."""
        for schedule in self.simulations:
            if schedule.gpu.name == gpu and schedule.policy == policy:
                return schedule
        raise KeyError(f"no simulation of policy {policy} on {gpu}")

    def beside(self, schedule: Schedule) -> tuple[int, str]:
        """The number of the graph, and how its kernels are issued, of other policies next to a schedule."""
        if schedule.policy in COMPILING:
            return self.graph_for(schedule.gpu), self.launch
        return schedule.graph, schedule.launch

    def is_share(self, schedule: Schedule) -> bool:
        """Whether a compiled program is what one of several devices does of the traced one."""
        own = self.graphs[schedule.graph]
        return schedule.policy in COMPILING and _has_messages(own) and not _has_messages(self.graph)

    def graph_for(self, gpu: Gpu) -> int:
        """Which graph a GPU runs: the one it was simulated with, else that with its attention kernels, else 0."""
        known = {s.gpu.name: s.graph for s in self.simulations if s.policy not in COMPILING}
        if gpu.name in known:
            return known[gpu.name]
        chip = chip_of(gpu)
        label = Backends(chip, self.traced.version).label
        wanted: Any = label if self.attention is None else self.attention.backends(chip)
        has = [graph.attention if self.attention is None else graph.backends for graph in self.graphs]
        return has.index(wanted) if wanted in has else 0

    def on(self, gpus: Sequence[Gpu]) -> Profile:
        """The profile with the graphs of some GPUs: further ones where they run other attention kernels, and before it
        is simulated those alone.

        Raises:
            UsageError: the model allows only attention kernels that one of them has not.
        """
        if self.attention is None or not gpus:
            return self
        known = {graph.backends: (graph, costs) for graph, costs in zip(self.graphs, self.costs, strict=True)}
        found = dict(known) if self.simulations else {}
        for chip in map(chip_of, gpus):
            names = self.attention.backends(chip)
            if names not in found:
                found[names] = known.get(names) or _costed(self.attention.lower(names, self.attention.on(chip).label))
        graphs, costs = zip(*found.values(), strict=True)
        return self if found.keys() == known.keys() else replace(self, graphs=graphs, costs=costs)

    def doubts(self, gpu: Gpu) -> tuple[str, ...]:
        """What of the trace may not hold on a GPU, a sentence each: attention kernels that it does not have."""
        chip, graph = chip_of(gpu), self.graphs[self.graph_for(gpu)]
        if self.attention is not None and gpu.name not in {s.gpu.name for s in self.simulations}:
            graph = self.attention.lower(self.attention.backends(chip), self.attention.on(chip).label)
        kept = not_run_by(graph, chip)
        if not kept:
            return ()
        return (
            f"{gpu.name} has no {' or '.join(kept)} attention: the trace keeps that kernel, so time and memory are not"
            " this GPU's; profile the model again for it",
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the trace assumed, left out or counts as something else, a line each."""
        return self.traced.notes

    def noted(self, note: str) -> Profile:
        """A copy with a further note."""
        return self.with_facts(notes=(*self.notes, note))

    def noted_once(self, *notes: str) -> Profile:
        """A copy with the notes that it does not have yet."""
        fresh = tuple(note for note in notes if note not in self.notes)
        return self.with_facts(notes=(*self.notes, *fresh)) if fresh else self

    def with_facts(self, **facts: Any) -> Profile:
        """A copy that says other things of its trace, fields of :class:`~memwall.record.traced.Traced`."""
        return replace(self, traced=replace(self.traced, **facts))

    @property
    def capture(self) -> Mapping[str, Any]:
        """What it says of its trace, as the record has it."""
        found: Mapping[str, Any] = write(self.traced)
        return found

    @cached_property
    def _schedules(self) -> Schedules:
        return Schedules(self.graphs, self.costs)

    def schedule(
        self,
        gpu: Gpu,
        policy: str = "eager",
        *,
        graph: int | None = None,
        launch: str = "eager",
        regions: Sequence[int] | None = None,
        plan: Plan | None = None,
    ) -> Schedule:
        """The schedule of a policy on a GPU, with its plan: a simulation of this profile that has one, else made here.

        Args:
            graph: which of the graphs; None takes the graph of :meth:`graph_for`.
            launch: how kernels are issued, one of :data:`memwall.simulate.issue.LAUNCHES`.
            regions: for each op the region that it is in; the policy fuses within one only.
            plan: simulate this one, which another planner made.

        Raises:
            UsageError: no such policy.
            MissingError: the ``inductor`` policy needs a torch and a Triton that it knows.
        """
        if policy in COMPILING and plan is None:
            graph, plan = self._own_plan(policy, gpu)
            launch = "graph"
        number = self.graph_for(gpu) if graph is None else graph
        if plan is None and regions is None:
            wanted = policy, number, gpu, launch
            for known in self.simulations:
                if known.plan is not None and (known.policy, known.graph, known.gpu, known.launch) == wanted:
                    return known
        return self._schedules.schedule(gpu, policy, graph=number, launch=launch, regions=regions, plan=plan)

    def _own_plan(self, policy: str, gpu: Gpu) -> tuple[int, Plan]:
        if (policy, gpu.name) not in self.own_plans:
            raise UsageError(
                f"policy {policy} compiles a program, and this profile has none for {gpu.name}: name the program, or"
                " take another --policy"
            )
        return self.own_plans[policy, gpu.name]

    def with_plan(self, gpu: Gpu, graph: Graph, costs: Sequence[Cost], plan: Plan) -> Profile:
        """A copy with the plan that a compiler made for a GPU, of a graph of its own."""
        place = {(plan.policy, gpu.name): (len(self.graphs), plan)}
        graphs, all_costs = (*self.graphs, graph), (*self.costs, tuple(costs))
        return replace(self, graphs=graphs, costs=all_costs, own_plans={**self.own_plans, **place})

    def plan(self, schedule: Schedule) -> Plan | None:
        """The plan of a schedule of this profile; for a saved schedule it is made again where no compiler is needed,
        and None elsewhere, or where another memwall grouped otherwise."""
        if schedule.plan is not None or schedule.policy not in CHEAP:
            return schedule.plan
        plan = self.schedule(schedule.gpu, schedule.policy, graph=schedule.graph, launch=schedule.launch).plan
        fits = plan and [group.op_ids for group in plan.groups] == [kernel.op_ids for kernel in schedule.kernels]
        return plan if fits else None

    def step_bound_s(self, schedule: Schedule) -> float | None:
        """Seconds that no run of a schedule of this profile can beat, whatever stays in L2 between its kernels
        (:mod:`memwall.simulate.step_bound`); None on a CPU, and where there is no plan of it."""
        plan = None if schedule.gpu.cpu is not None else self.plan(schedule)
        return step_bound_s(self.graphs[schedule.graph], plan, schedule.gpu) if plan else None

    def with_simulations(self, simulations: tuple[Schedule, ...]) -> Profile:
        """A copy with other simulations; what was planned and simulated of either serves both."""
        made = replace(self, simulations=simulations)
        made.__dict__["_schedules"] = self._schedules
        return made

    def to_pandas(self, by: str = "kernel") -> DataFrame:
        """The simulations as a data frame; seconds and bytes in base units.

        Args:
            by: what a row is. ``kernel``: each kernel of each simulation in launch order, with the columns of the CSV
                and ``launches``. ``op``: equal kernels as one row with their ``count``, longest time first, figures
                summed. ``module``, ``class``, ``phase``: sums (``launches``, ``flops``, ``dram_bytes``, ``bound_s``,
                ``time_s``), the wall that most of the time stands under, and fractions of the simulation's total
                (``flop_share``, ``byte_share``, ``time_share``); repeated blocks are one module, ``layers.*.attn``.

        Raises:
            UsageError: no such ``by``.
        """
        frame: DataFrame = view("report.notebook.profile_frame", self, by)
        return frame

    def roofline(
        self, path: str | os.PathLike[str] | None = None, *, gpu: str | None = None, policy: str | None = None
    ) -> Figure:
        """The roofline of one simulation: modeled FLOP/s against FLOP per DRAM byte, each kernel a circle.

        ``figure.axes[0]`` are its axes, on log scales: ``figure.axes[0].scatter(flop_per_byte, flop_per_s)`` adds
        points of your own above what is drawn.

        Args:
            path: also write the picture there: ``.png``, ``.svg`` or ``.pdf``.
            gpu: the GPU's name; None takes the first simulation.
            policy: the policy's name; None takes the first simulation (on that GPU).

        Raises:
            UsageError: the profile has no such simulation, or the file cannot be written.
        """
        figure: Figure = view("report.notebook.roofline", self, path, gpu, policy)
        return figure

    def _repr_html_(self) -> str:
        """What a notebook shows of a profile."""
        text: str = view("report.notebook.profile_fragment", self)
        return text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record, whole or not at all; raises :class:`UsageError` where it cannot be written."""
        write_whole(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a record; never runs code.

        Raises:
            UsageError: not a record, damaged, or written by a newer memwall; says which key.
        """
        return cls.from_dict(read_json(path), source=str(path))

    @uncollected()
    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON types, keys in the order of the format."""
        gpus = {schedule.gpu.name: schedule.gpu.to_dict() for schedule in self.simulations}
        rows = [graph_to_row(graph, costs) for graph, costs in zip(self.graphs, self.costs, strict=True)]
        saved = SavedProfile(
            schema=SCHEMA,
            memwall_version=self.memwall_version,
            workload=self.workload,
            graph=rows[0],
            graphs=tuple(rows[1:]),
            attention=attention_to_row(self.attention, self.graph),
            coverage=self.coverage,
            gpus=dict(sorted(gpus.items())),
            simulations=tuple(map(schedule_to_row, self.simulations)),
            capture=self.traced,
            measurements=self.measurements,
            environment=self.environment,
        )
        record: dict[str, Any] = write(saved)
        return record

    def to_json(self, further: Mapping[str, Any] | None = None) -> str:
        """The record as text: one op, value or kernel a line, byte-identical for equal profiles; ``further`` are keys
        after the record's own, which no reader uses."""
        return "".join(json_lines({**self.to_dict(), **(further or {})})) + "\n"

    @classmethod
    @uncollected()
    def from_dict(cls, record: Any, source: str = "record") -> Profile:
        """The profile of a parsed record.

        Raises:
            UsageError: a key is missing, of the wrong type or out of range; names it.
        """
        check_schema(record, _SCHEMA_FAMILY, _SCHEMA_VERSION, source)
        try:
            row = read(SavedProfile, record)
            graphs, simulations, attention = read_profile(row)
            check_measurements(row.measurements, max(len(graph.ops) for graph, _ in graphs))
        except (BadRecord, UsageError) as error:
            raise UsageError(f"{source}: {error}") from None
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            raise UsageError(f"{source}: damaged record ({type(error).__name__}: {error})") from None
        return cls(
            row.workload,
            tuple(graph for graph, _ in graphs),
            tuple(costs for _, costs in graphs),
            simulations,
            row.capture,
            row.measurements,
            row.environment,
            row.memwall_version,
            attention,
        )


def _has_messages(graph: Graph) -> bool:
    return any(op.op_class == "communication" for op in graph.ops)


def _costed(graph: Graph) -> tuple[Graph, tuple[Cost, ...]]:
    return graph, graph_costs(graph)


def default_record_path() -> Path:
    """Where the last profile made in this directory is kept."""
    return Path(".memwall") / "last.json"
