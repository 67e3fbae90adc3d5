"""memwall's plan with its kernels generated and compiled: coverage, resources, and no kernel that spills.

Each distinct kernel is generated once, for all groups that do the same to other tensors.
A kernel that spills registers at its chosen block sizes is tried at the others. One that spills at all of them is
refused: the graph is planned again without it (:data:`memwall.fusion.rules.REGISTER_SPILL`), until no new one spills.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from memwall.codegen import generate
from memwall.codegen.compiling import Resources, compile_all
from memwall.codegen.kernel import Kernel, NotGenerated
from memwall.codegen.occupancy import architecture_of
from memwall.core.flow import Flow
from memwall.core.graph import Graph
from memwall.core.progress import tell
from memwall.fusion import Group, Plan
from memwall.fusion.planner import memwall_plan
from memwall.fusion.rules import Spills, Work, has_matrix_op, is_library_call, work_of
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost

#: plans made before kernels that still spill are accepted and flagged
MAX_ROUNDS = 8

Generate = Callable[[Graph, Flow, Group, Gpu], Kernel]
#: kernels with architectures → the resources of each launch
Compile = Callable[..., Sequence[tuple[Resources, ...]]]


@dataclass(frozen=True)
class Compiled:
    """A kernel with its ops, the places in the plan of the groups that it runs, the DRAM bytes of all of these, and the
    resources of each of its launches by architecture."""

    kernel: Kernel
    ops: tuple[str, ...]
    groups: tuple[int, ...]
    dram_bytes: int
    has_contraction: bool
    resources: Mapping[str, tuple[Resources, ...]] = field(default_factory=dict)

    @property
    def spilled(self) -> Resources | None:
        """The launch that spills most, where one does."""
        worst = max((r for some in self.resources.values() for r in some), key=lambda r: r.spilled_bytes, default=None)
        return worst if worst and worst.spilled_bytes else None

    @property
    def has_other_blocks(self) -> bool:
        """Whether it spilled or failed with the block sizes that the generator chose, so that others were taken."""
        return bool(self.kernel.configs) and dict(self.kernel.config) != dict(self.kernel.configs[0])

    @property
    def failed(self) -> Resources | None:
        """The first launch that does not compile or cannot be launched."""
        return next((r for some in self.resources.values() for r in some if r.status == "failed"), None)


@dataclass(frozen=True)
class Left:
    """Equal groups that no kernel is generated for: their ops, why, and the DRAM bytes of all of them together."""

    ops: tuple[str, ...]
    reason: str
    groups: tuple[int, ...]
    dram_bytes: int


def distinct_kernels(
    graph: Graph, flow: Flow, plan: Plan, gpu: Gpu, generate: Generate, spills: Spills
) -> tuple[list[Compiled], tuple[Left, ...]]:
    """The kernels of a plan in order of their first launch, not compiled yet, and the groups that have none.

    A contraction alone in its launch is its library's, and is in neither. A group in ``spills`` has no kernel: ops that
    the planner could not separate run as eager kernels.
    """
    twins: dict[Hashable, list[int]] = {}
    for place, group in enumerate(plan.groups):
        if not is_library_call(graph, group.op_ids):
            twins.setdefault(_group_key(graph, flow, group), []).append(place)
    made: dict[tuple[str, str], Compiled] = {}
    left = []
    for places in twins.values():
        group = plan.groups[places[0]]
        ops = tuple(graph.ops[i].name for i in sorted((*group.op_ids, *group.recomputes)))
        dram_bytes = sum(plan.groups[place].cost.bytes for place in places)
        has_contraction = has_matrix_op(graph, (*group.op_ids, *group.recomputes))
        reason = spills.get(work_of(graph, (*group.op_ids, *group.recomputes)))
        try:
            if reason is not None:
                raise NotGenerated(reason)
            kernel = generate(graph, flow, group, gpu)
        except NotGenerated as error:
            if not has_contraction:
                left.append(Left(ops, str(error), tuple(places), dram_bytes))
            continue
        key = kernel.source, str(kernel.launches)
        old = made.get(key, Compiled(kernel, ops, (), 0, has_contraction))
        made[key] = replace(old, groups=(*old.groups, *places), dram_bytes=old.dram_bytes + dram_bytes)
    return list(made.values()), tuple(left)


def _group_key(graph: Graph, flow: Flow, group: Group) -> Hashable:
    """All that a kernel of a group depends on, with values and storages numbered as they first appear: groups of equal
    keys have equal kernels but for the names in comments."""
    values: dict[int, int] = {}
    storages: dict[int, int] = {}

    def numbered(value_id: int) -> tuple[Hashable, ...]:
        value = graph.values[value_id]
        storage = graph.storages[value.storage]
        number = values.setdefault(value_id, len(values))
        place = storages.setdefault(value.storage, len(storages))
        return number, place, value.spec, value.offset, storage.nbytes, storage.role

    inside = frozenset((*group.op_ids, *group.recomputes))
    steps = []
    for i in sorted(inside):
        op = graph.ops[i]
        reads = tuple((*numbered(v), flow.writer[n] in inside) for v, n in flow.reads[i])
        writes = tuple((*numbered(v), n == flow.first[flow.storage[n]]) for v, n in flow.writes[i])
        attributes = repr(sorted((op.attributes or {}).items()))
        steps.append((op.name, op.arguments, attributes, reads, writes, i in group.recomputes))
    return tuple(steps), tuple(map(numbered, (*group.reads, *group.writes))), len(group.reads)


@dataclass(frozen=True)
class CompiledPlan:
    """A plan for one GPU, its kernels, the groups that have none, and how many plans were made until none spilled.

    Bytes are of groups without a contraction, over all launches of a step.
    """

    gpu: str
    architectures: tuple[str, ...]
    plan: Plan
    kernels: tuple[Compiled, ...]
    left: tuple[Left, ...]
    rounds: int = 1

    @property
    def generated_bytes(self) -> int:
        """DRAM bytes of the groups that a kernel is generated for, and compiles."""
        return sum(k.dram_bytes for k in self.kernels if not (k.has_contraction or k.failed))

    @property
    def dram_bytes(self) -> int:
        """DRAM bytes of all groups without a contraction."""
        made = sum(kernel.dram_bytes for kernel in self.kernels if not kernel.has_contraction)
        return made + sum(left.dram_bytes for left in self.left)

    @property
    def coverage(self) -> float:
        """The share of the DRAM bytes that are in generated kernels; 1 where there are none."""
        return self.generated_bytes / self.dram_bytes if self.dram_bytes else 1.0

    def schedules(self) -> dict[str, int]:
        """How many distinct kernels take each path."""
        return dict(sorted(Counter(one.kernel.schedule for one in self.kernels).items()))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, base units; sources left out."""
        return {
            "gpu": self.gpu,
            "architectures": list(self.architectures),
            "dram_bytes": self.dram_bytes,
            "generated_bytes": self.generated_bytes,
            "coverage": self.coverage,
            "plans": self.rounds,
            "kernels": [
                {
                    "name": one.kernel.name,
                    "ops": list(one.ops),
                    "op_ids": list(one.kernel.op_ids),
                    "groups": len(one.groups),
                    "dram_bytes": one.dram_bytes,
                    "schedule": one.kernel.schedule,
                    "config": dict(one.kernel.config),
                    "has_other_blocks": one.has_other_blocks,
                    "launches": [asdict(r) for some in one.resources.values() for r in some],
                }
                for one in self.kernels
            ],
            "left": [{**asdict(left), "groups": len(left.groups)} for left in self.left],
        }


@dataclass(frozen=True)
class Toolchain:
    """What makes kernels of groups, and machine code of these for some architectures (``sm_90``)."""

    architectures: tuple[str, ...]
    generate: Generate = generate
    compile: Compile = compile_all

    def compiled(self, kernels: Sequence[Compiled]) -> list[Compiled]:
        """Kernels with their resources on each architecture."""
        answers = iter(self.compile([(one.kernel, name) for one in kernels for name in self.architectures]))
        return [replace(one, resources={name: next(answers) for name in self.architectures}) for one in kernels]


def compiled_plan(
    graph: Graph,
    costs: Sequence[Cost],
    gpu: Gpu,
    toolchain: Toolchain | None = None,
    *,
    regions: Sequence[int] | None = None,
) -> CompiledPlan:
    """Plan for a GPU, generate, compile, and plan again without the kernels that spill.

    Args:
        toolchain: None takes Triton for the GPU's own architecture.
        regions: as for :func:`memwall.fusion.planner.memwall_plan`.

    Raises:
        UsageError: Triton makes no code for the GPU.
        MissingError: Triton is not installed.
    """
    toolchain, flow = toolchain or Toolchain((architecture_of(gpu),)), Flow.of(graph)
    spills: dict[Work, str] = {}
    for number in range(1, MAX_ROUNDS + 1):
        tell(f"planning {len(graph.ops):,} ops for {gpu.name}, plan {number}")
        plan = memwall_plan(graph, costs, gpu, regions, spills)
        distinct, left = distinct_kernels(graph, flow, plan, gpu, toolchain.generate, spills)
        kernels = _settled(distinct, toolchain)
        fresh = [(one, worst) for one in kernels if (worst := one.spilled) and not one.has_contraction]
        if not fresh:
            break
        for one, worst in fresh:
            group = plan.groups[one.groups[0]]
            reason = f"{worst.spilled_bytes} bytes of registers spilled on {worst.architecture}"
            spills[work_of(graph, (*group.op_ids, *group.recomputes))] = reason
    return CompiledPlan(gpu.name, toolchain.architectures, plan, kernels, left, number)


# -- blocks ------------------------------------------------------------------------------------------------------------


def _settled(kernels: Sequence[Compiled], toolchain: Toolchain) -> tuple[Compiled, ...]:
    """The kernels compiled, each at the first of its configurations that neither spills nor fails, else the first."""
    settled = toolchain.compiled(kernels)
    for tried in itertools.count(1):
        again = [n for n, one in enumerate(settled) if _is_bad(one) and len(one.kernel.configs) > tried]
        if not again:
            break
        others = [replace(kernels[n], kernel=with_config(kernels[n].kernel, tried)) for n in again]
        for n, other in zip(again, toolchain.compiled(others), strict=True):
            if not _is_bad(other):
                settled[n] = other
    return tuple(settled)


def _is_bad(compiled: Compiled) -> bool:
    return bool(compiled.spilled or compiled.failed)


def with_config(kernel: Kernel, number: int) -> Kernel:
    """The kernel with another of its configurations: in its text, its launches, and as its chosen one.

    The launches' grids, which no compiler needs, stay as for the first values.
    """
    source, config, launches = kernel.source, kernel.configs[number], []
    for name, value in config.items():
        source = re.sub(rf"(?m)^{name} = \d+$", f"{name} = {value}", source)
    for place, launch in enumerate(kernel.launches):
        # constants of the second and later launches have its number as a suffix
        suffix = f"_{place}" if place and any(name.endswith(f"_{place}") for name in config) else ""
        constants = {name: config.get(f"{name}{suffix}", value) for name, value in launch.constants.items()}
        warps = config.get(f"NUM_WARPS{suffix}", launch.num_warps)
        launches.append(replace(launch, constants=constants, num_warps=warps))
    return replace(kernel, source=source, launches=tuple(launches), config={**kernel.config, **config})
