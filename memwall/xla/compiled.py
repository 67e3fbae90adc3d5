"""The ``xla`` policy: the kernels that XLA compiles a program to, priced like the kernels of any other plan.

A plan has a group for each kernel of the optimized HLO, in the order of its schedule. A fusion is one generated kernel
that reads what its results ask for (:mod:`memwall.xla.demand`) and writes them, both once: XLA divides sums that need
several passes into kernels of their own.
A product keeps the shape in which libraries compute it, with what is fused to it, since the tiles that XLA chooses
without a device are not a run's. Bytes in a TPU's VMEM do not cross the border: copies of their own have moved
them there. The peak is from the buffer assignment; of text alone, which has none, it is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from memwall.core.errors import UsageError
from memwall.core.flow import Flow
from memwall.core.graph import Graph, Value, distinct_bytes
from memwall.core.units import size
from memwall.frontend.hlo import parse
from memwall.frontend.hlo.graph import graph_of
from memwall.frontend.hlo.module import HloArray
from memwall.frontend.hlo.sheet import HloArgument, HloGraph, HloKernel
from memwall.frontend.writing import MAX_OPS
from memwall.fusion.plan import Group, Part, Placement, Plan, not_run
from memwall.fusion.pricing import Pricer, with_launches
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost, graph_costs
from memwall.xla.compiling import LIMIT_S, Executable, check_installed, compile_program
from memwall.xla.demand import demand_of
from memwall.xla.target import target_of

#: memory spaces: a device's DRAM, and the host's memory
DRAM, HOST = 0, 5
#: kinds of kernels that a compiler generates: of fusions
GENERATED = frozenset(("loop", "input", "output", "custom"))
#: kinds that launch nothing: buffers that lie behind each other
_JOINED = frozenset(("ConcatBitcast",))


@dataclass(frozen=True)
class CompiledProgram:
    """A program as compiled: its graph, the cost of each op, the plan, bytes of the buffers at the peak, what was
    assumed, the optimized HLO, and how values in memory are laid out (tiles, memory spaces)."""

    graph: Graph
    costs: tuple[Cost, ...]
    plan: Plan
    peak: int | None
    notes: tuple[str, ...]
    text: str
    layouts: Mapping[int, HloArray] = field(default_factory=dict)


def compiled(
    program: Callable[[str], str | Callable[[], bytes]],
    gpu: Gpu,
    arguments: Sequence[HloArgument] = (),
    *,
    limit_s: float = LIMIT_S,
    max_ops: int = MAX_OPS,
) -> CompiledProgram:
    """What XLA compiles a program to for a GPU or a TPU.

    Args:
        program: for a platform, ``cuda`` or ``tpu``, text that is optimized already, or what has ``jax.export``
            serialize it (:meth:`memwall.frontend.program.Program.exported`).
        arguments: what is known of the program's arguments, in order: their roles and names.
        limit_s: seconds that the compiler may take.
        max_ops: the most ops, loops written out.

    Raises:
        MissingError: JAX or the compiler is not installed; says which extra brings it.
        UsageError: XLA compiles nothing for the GPU, or not the program.
    """
    exported = program("tpu" if gpu.tpu else "cuda")
    if isinstance(exported, str):
        return planned(exported, gpu, arguments, max_ops=max_ops)
    target = target_of(gpu)
    check_installed(target)
    made = compile_program(exported(), target, limit_s)
    found = planned(made.text, gpu, arguments, peak=made.peak_bytes, max_ops=max_ops)
    return replace(found, notes=(*found.notes, *_said(made)))


def _said(made: Executable) -> tuple[str, ...]:
    """What is to be known of the compilation."""
    notes = []
    if made.only_libraries:
        notes.append(
            "XLA finds no tiles for a product without timing: every product is a library's, nothing fused to it."
        )
    if made.devices > 1:
        notes.append(
            f"XLA divides the program among {made.devices} devices: kernels, time and memory are of one of them,"
            " and counts of the whole program are of all"
        )
    return tuple(notes)


def xla_plan(graph: Graph, costs: Sequence[Cost], gpu: Gpu, regions: Sequence[int] | None = None) -> Plan:
    """The policy plans no graph that another front end has made: XLA compiles the program itself.

    Raises:
        UsageError: always.
    """
    raise UsageError("policy xla compiles a JAX program or StableHLO, and this is a graph without one")


def planned(
    text: str,
    gpu: Gpu,
    arguments: Sequence[HloArgument] = (),
    *,
    peak: int | None = None,
    name: str = "HLO",
    max_ops: int = MAX_OPS,
) -> CompiledProgram:
    """What an optimized program does on a GPU or TPU, from its text alone; ``peak``: bytes of its buffers, if known.

    Raises:
        UsageError: it is no HLO, or has more ops than allowed.
    """
    read = graph_of(parse(text, name), arguments, max_ops)
    costs = graph_costs(read.graph)
    plan = plan_of(read, costs, gpu, peak)
    notes = read.notes
    if hosted := sum(array.spec.nbytes for array in read.layouts.values() if array.space == HOST):
        notes = (*notes, f"{size(hosted)} are moved to or from the host's memory, over a link that is not modeled.")
    return CompiledProgram(read.graph, costs, plan, peak, notes, text, read.layouts)


def plan_of(read: HloGraph, costs: Sequence[Cost], gpu: Gpu, peak: int | None = None) -> Plan:
    """The plan of a program's kernels, which write all that they return, also what nothing reads."""
    flow = Flow.of(read.graph)
    returned = {version for some in flow.writes for value, version in some if value in read.layouts}
    pricer = Pricer(read.graph, costs, gpu, flow=replace(flow, kept=flow.kept | returned))
    pricer.placement = Placement([Part(kernel.op_ids) for kernel in read.kernels])
    values = read.graph.values
    #: storage → the share of its bytes that are not in DRAM: all of another memory, half a byte of each 4 bits
    absent = {
        values[i].storage: 1.0 if array.space != DRAM else 1 - array.bits / 8
        for i, array in read.layouts.items()
        if array.space != DRAM or array.bits < 8
    }
    return Plan("xla", tuple(_group(pricer, kernel, absent) for kernel in read.kernels), peak_bytes=peak)


def _group(pricer: Pricer, kernel: HloKernel, absent: Mapping[int, float]) -> Group:
    if kernel.kind in _JOINED:
        return not_run(kernel.op_ids)
    if len(kernel.op_ids) == 1 and kernel.kind not in GENERATED:
        group = pricer.alone(kernel.op_ids[0])
        reads: Mapping[int, int] = _by_storage(pricer.graph, group.reads)
    else:
        group = pricer.group(kernel.op_ids)
        demand = demand_of(pricer, group)
        reads = demand.reads
        cost = replace(group.cost, read_bytes=min(group.cost.read_bytes, demand.read_bytes), flops=demand.flops)
        rows = [loop.rows for i in kernel.op_ids if (loop := pricer.loops[i]).kind == "row"]
        group = replace(group, cost=with_launches(cost, thread_blocks=max(rows, default=None)))
    cost = _less(group.cost, *(_absent(some, absent) for some in (reads, _by_storage(pricer.graph, group.writes))))
    return replace(group, cost=cost, name=kernel.name, source=pricer.graph.ops[kernel.op_ids[-1]].source)


def _by_storage(graph: Graph, ids: Sequence[int]) -> dict[int, int]:
    """Storage → bytes of some values in it."""
    found: dict[int, list[Value]] = {}
    for value in (graph.values[i] for i in ids):
        found.setdefault(value.storage, []).append(value)
    return {storage: distinct_bytes(values) for storage, values in found.items()}


def _absent(moved: Mapping[int, int], absent: Mapping[int, float]) -> int:
    """Of bytes by storage, the bytes that are not in DRAM. ``absent``: storage → its share of them."""
    return round(sum(absent.get(storage, 0.0) * nbytes for storage, nbytes in moved.items()))


def _less(cost: Cost, reads: int, writes: int) -> Cost:
    """The cost with fewer bytes read and written."""
    if not reads and not writes:
        return cost
    less = replace(cost, read_bytes=max(cost.read_bytes - reads, 0), write_bytes=max(cost.write_bytes - writes, 0))
    return with_launches(less, kernels=cost.kernels, extra_bytes=cost.extra_bytes, extra_flops=cost.extra_flops)
