"""How a profile is saved: the rows of ``memwall.profile/1``, and their conversion to memwall's types and back.

:mod:`memwall.core.structure` reads and writes the rows; what one row alone cannot know is checked here: that ids exist,
that sums are sums, that a schedule runs the graph it names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Annotated, Any, ClassVar

from memwall.core.graph import ITEMSIZE, PHASES, ROLES, Graph, Op, Pipe, Storage, TensorSpec, Value, contiguous
from memwall.core.structure import BadRecord, count, one_of, read
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost, graph_costs
from memwall.ops.launches import Plain
from memwall.perfmodel.roofline import Estimate
from memwall.simulate.launch_queue import issue_s, waits_within
from memwall.simulate.memory import MemoryPeak
from memwall.simulate.schedule import Schedule, Totals

#: a graph and the cost of each of its ops
Costed = tuple[Graph, tuple[Cost, ...]]


# -- the rows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tensor:
    shape: tuple[int, ...]
    dtype: str


def _input(value: Any) -> dict[str, Any]:
    read(_Tensor, value, "")
    return dict(value)


@dataclass(frozen=True)
class WorkloadInfo:
    """What was profiled. ``parameters`` is a count of elements; ``samples`` and ``tokens`` are per step."""

    name: str
    target: str
    mode: str
    dtype: str
    inputs: tuple[Annotated[Mapping[str, Any], _input], ...]
    parameters: int
    samples: int | None = None
    tokens: int | None = None
    optimizer: str | None = None
    autocast: str | None = None


def _storage(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) not in (2, 3) or value[1] not in ROLES:
        raise BadRecord("is not [bytes, role, name]")
    return (count(value[0]), *map(str, value[1:]))


@dataclass(slots=True)
class _Value:
    OMIT_DEFAULTS: ClassVar[bool] = True

    shape: tuple[int, ...]
    dtype: Annotated[str, one_of(ITEMSIZE)]
    storage: int
    strides: tuple[int, ...] | None = None
    offset: int = 0

    def check(self) -> None:
        if self.strides is not None and len(self.strides) != len(self.shape):
            raise BadRecord(f"has {len(self.shape)} axes and {len(self.strides)} strides")


@dataclass(slots=True)
class _Op:
    """An op and the counts of its cost."""

    OMIT_DEFAULTS: ClassVar[bool] = True

    id: int
    name: str
    op_class: str = field(metadata={"key": "class"})
    phase: Annotated[str, one_of(PHASES)]
    module: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    flops: int
    read_bytes: int
    write_bytes: int
    modeled: bool
    pipes: Mapping[Pipe, int] = field(default_factory=dict)
    dense_flops: int | None = None
    extra_bytes: int = 0
    extra_flops: int = 0
    kernels: int = 1
    least_flops: int | None = None
    arguments: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def check(self) -> None:
        if self.arguments and len(self.arguments) != len(self.inputs):
            raise BadRecord(f"has {len(self.inputs)} inputs and {len(self.arguments)} arguments")
        if sum(self.pipes.values()) != self.flops:
            raise BadRecord(": pipes do not add up to flops")


@dataclass(slots=True, kw_only=True)
class _Graph:
    attention: str = "flash"
    inputs: tuple[int, ...] = ()
    parameters: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    free_calls: Mapping[str, int] = field(default_factory=dict)
    storages: tuple[Annotated[tuple[Any, ...], _storage], ...]
    values: Mapping[str, _Value]
    ops: tuple[_Op, ...]


@dataclass(slots=True)
class _Kernel:
    OMIT_DEFAULTS: ClassVar[bool] = True

    id: int
    name: str
    op_ids: tuple[int, ...]
    op_class: str = field(metadata={"key": "class"})
    flops: int
    read_bytes: int
    write_bytes: int
    bound_s: float
    time_s: float
    compute_s: float
    memory_s: float
    overhead_s: float
    limited_by: str
    #: older records have none: there memory_s, compute_s and overhead_s hold these seconds
    latency_s: float = 0.0
    low_s: float | None = None  # older records have no interval
    high_s: float | None = None
    launches: int = 1
    recomputes: tuple[int, ...] = ()

    def check(self) -> None:
        if not self.op_ids:
            raise BadRecord("is empty: a kernel runs at least one op", ".op_ids")
        if self.low_s is None or self.high_s is None:
            self.low_s = self.high_s = self.time_s


def _totals(record: Any) -> Totals:
    if isinstance(record, dict) and "time_s" in record:  # older records have no interval
        record = {"low_s": record["time_s"], "high_s": record["time_s"], **record}
    return read(Totals, record, "")


@dataclass(slots=True, kw_only=True)
class _Schedule:
    OMIT_DEFAULTS: ClassVar[bool] = True

    gpu: str
    policy: str
    graph: int = 0
    kernels: tuple[_Kernel, ...]
    totals: Annotated[Totals, _totals]
    memory: MemoryPeak


@dataclass(slots=True, kw_only=True)
class SavedProfile:
    """``memwall.profile/1`` itself; GPUs and measurements are records of their own."""

    OMIT_DEFAULTS: ClassVar[bool] = True

    schema: str
    memwall_version: str
    workload: WorkloadInfo
    graph: _Graph
    graphs: tuple[_Graph, ...] = ()
    coverage: Any
    gpus: Mapping[str, Any]
    simulations: tuple[_Schedule, ...]
    capture: Mapping[str, Any]
    measurements: tuple[Any, ...]
    environment: Mapping[str, Any]


# -- writing -----------------------------------------------------------------------------------------------------------


def graph_to_row(graph: Graph, costs: Sequence[Cost]) -> _Graph:
    """A graph as it is saved."""
    return _Graph(
        attention=graph.attention, inputs=graph.inputs, parameters=graph.parameters, outputs=graph.outputs,
        free_calls=dict(sorted(graph.free_calls.items())),
        storages=tuple((s.nbytes, s.role, s.name) if s.name else (s.nbytes, s.role) for s in graph.storages),
        values={
            str(v.id): _Value(
                v.spec.shape, v.spec.dtype, v.storage, None if v.spec.is_contiguous else v.spec.strides, v.offset
            )
            for v in graph.values
        },
        ops=tuple(map(_op_row, graph.ops, costs)),
    )  # fmt: skip


def _op_row(op: Op, cost: Cost) -> _Op:
    return _Op(
        op.id, op.name, op.op_class, op.phase, op.module, op.inputs, op.outputs,
        cost.total_flops, cost.read_bytes, cost.write_bytes, cost.modeled,
        {pipe: cost.flops[pipe] for pipe in sorted(cost.flops)},
        cost.dense_flops, cost.extra_bytes, cost.extra_flops, cost.kernels, cost.least_flops,
        op.arguments, op.attributes, op.source,
    )  # fmt: skip


def schedule_to_row(schedule: Schedule) -> _Schedule:
    """A schedule as it is saved: without its plan."""
    kernels = tuple(_Kernel(*_kernel_fields(kernel)) for kernel in schedule.kernels)
    return _Schedule(
        gpu=schedule.gpu.name, policy=schedule.policy, graph=schedule.graph, kernels=kernels, totals=schedule.totals,
        memory=schedule.memory,
    )  # fmt: skip


_kernel_fields = attrgetter(*_Kernel.__slots__)

#: JSON paths whose items stand one a line; everything else is compact.
_LINED = frozenset(
    (("graph", "storages"), ("graph", "values"), ("graph", "ops"), ("graphs", "storages"), ("graphs", "values"),
     ("graphs", "ops"), ("simulations", "kernels"))
)  # fmt: skip


def json_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """The pieces of a profile's text."""
    compact = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode

    def emit(value: Any, path: tuple[str, ...]) -> Iterator[str]:
        if path in _LINED and isinstance(value, dict):
            yield "{" + ",".join(f"\n{compact(key)}:{compact(item)}" for key, item in value.items()) + "\n}"
        elif path in _LINED:
            yield "[" + ",".join("\n" + compact(item) for item in value) + "\n]"
        elif isinstance(value, dict) and len(path) < 2:
            yield "{"
            for i, (key, item) in enumerate(value.items()):
                yield (",\n" if i else "\n") + compact(key) + ":"
                yield from emit(item, (*path, key))
            yield "\n}"
        elif path in (("graphs",), ("simulations",)):
            yield "["
            for i, item in enumerate(value):
                yield ",\n" if i else "\n"
                yield from emit(item, path)
            yield "\n]"
        else:
            yield compact(value)

    return emit(dict(record), ())


# -- reading -----------------------------------------------------------------------------------------------------------


def _exist(ids: Sequence[int], limit: int, path: str) -> None:
    if ids and max(ids) >= limit:
        raise BadRecord(f"names {max(ids)}, which does not exist", path)


_of_op = attrgetter(*(f.name for f in fields(Op)))


def read_graph(row: _Graph, where: str) -> Costed:
    """The graph of a row, and the costs of its ops; refuses ids that are out of order or name nothing."""
    values = []
    specs: dict[TensorSpec, TensorSpec] = {}
    for i, (key, value) in enumerate(row.values.items()):
        if key != str(i):
            raise BadRecord(f"must be numbered in order; found {key[:40]!r} where {i} was due", f"{where}.values")
        _exist((value.storage,), len(row.storages), f"{where}.values.{i}.storage")
        shape, strides, dtype = value.shape, value.strides, value.dtype
        spec = contiguous(shape, dtype) if strides is None else TensorSpec(shape, strides, dtype)
        values.append(Value(i, specs.setdefault(spec, spec), value.storage, value.offset))
    shared: dict[str, Mapping[str, Any]] = {}  # one object for equal attributes
    for i, op in enumerate(row.ops):
        op.attributes = shared.setdefault(repr(op.attributes), op.attributes)
        if op.id != i:
            raise BadRecord("is out of order", f"{where}.ops[{i}].id")
        _exist(op.inputs, len(values), f"{where}.ops[{i}].inputs")
        _exist(op.outputs, len(values), f"{where}.ops[{i}].outputs")
    for name in ("inputs", "parameters", "outputs"):
        _exist(getattr(row, name), len(values), f"{where}.{name}")
    storages = tuple(Storage(i, *stored) for i, stored in enumerate(row.storages))
    ops = tuple(Op(*_of_op(op)) for op in row.ops)
    graph = Graph(
        tuple(values), storages, ops, row.inputs, row.parameters, row.outputs, row.free_calls, row.attention
    )  # fmt: skip
    return graph, _with_launches(graph, row.ops)


def _cost(row: _Op) -> Cost:
    flops = dict(row.pipes)
    if flops and row.extra_flops:
        flops[max(flops, key=flops.__getitem__)] += row.extra_flops
    spared_flops = 0 if row.least_flops is None else max(row.flops - row.least_flops, 0)
    whole = Plain(
        read_bytes=row.read_bytes + row.extra_bytes, write_bytes=row.write_bytes, count=row.kernels, flops=flops,
        spared_flops=spared_flops,
    )  # fmt: skip
    return Cost(row.pipes, row.read_bytes, row.write_bytes, row.modeled, row.dense_flops, launches=(whole,))


def _with_launches(graph: Graph, rows: Sequence[_Op]) -> tuple[Cost, ...]:
    """The costs with their launches, recomputed by the formulas: a record holds only counts. An op without a formula,
    or with one that now counts differently, keeps what was saved, as one streaming kernel."""
    try:
        fresh: Sequence[Cost | None] = graph_costs(graph)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # damage that no check above found
        fresh = [None] * len(rows)
    return tuple(cost if cost and _counts_as(cost, row) else _cost(row) for row, cost in zip(rows, fresh, strict=True))


def _counts_as(cost: Cost, row: _Op) -> bool:
    saved = row.pipes, row.read_bytes, row.write_bytes, row.modeled, row.kernels
    return (cost.flops, cost.read_bytes, cost.write_bytes, cost.modeled, cost.kernels) == saved


#: what a saved kernel has of an estimate, its place in the list aside
_ESTIMATED = tuple(f.name for f in fields(Estimate) if f.name in _Kernel.__slots__ and f.name != "id")
_of_kernel = attrgetter(*_ESTIMATED)


def read_schedule(row: _Schedule, gpus: Mapping[str, Gpu], graphs: Sequence[Costed], where: str) -> Schedule:
    """The schedule of a row; refuses one whose GPU, graph or ops do not exist, or whose sums are not its kernels'."""
    if row.gpu not in gpus:
        raise BadRecord(f'is {row.gpu[:40]!r}, which "gpus" does not describe', f"{where}.gpu")
    _exist((row.graph,), len(graphs), f"{where}.graph")
    ops, gpu = graphs[row.graph][0].ops, gpus[row.gpu]
    for i, kernel in enumerate(row.kernels):
        _exist(kernel.op_ids, len(ops), f"{where}.kernels[{i}].op_ids")
        _exist(kernel.recomputes, len(ops), f"{where}.kernels[{i}].recomputes")
    issues = [issue_s(gpu, ops[kernel.op_ids[0]].phase, kernel.launches) for kernel in row.kernels]
    times = (max(k.compute_s, k.memory_s, k.latency_s) + k.overhead_s for k in row.kernels)
    waits = waits_within(zip(issues, times, (k.overhead_s for k in row.kernels), strict=True))
    kernels = [
        Estimate(**dict(zip(_ESTIMATED, _of_kernel(kernel), strict=True)), id=i, issue_s=issue, wait_s=wait)
        for i, (kernel, issue, wait) in enumerate(zip(row.kernels, issues, waits, strict=True))
    ]
    sums = {"flops": sum(k.flops for k in kernels), "dram_bytes": sum(k.bytes for k in kernels)}
    for name, total in sums.items():
        if getattr(row.totals, name) != total:
            raise BadRecord("is not the sum over the kernels", f"{where}.totals.{name}")
    if row.policy == "eager" and sorted(k.op_ids for k in kernels) != [(i,) for i in range(len(ops))]:
        raise BadRecord(": eager launches each op alone and once, and these do not", f"{where}.kernels")
    return Schedule(gpu, row.policy, tuple(kernels), row.totals, row.memory, row.graph)


def read_profile(row: SavedProfile) -> tuple[tuple[Costed, ...], tuple[Schedule, ...]]:
    """The graphs and the schedules of a record."""
    graphs = (read_graph(row.graph, "graph"), *(read_graph(g, f"graphs[{i}]") for i, g in enumerate(row.graphs)))
    gpus = {name: Gpu.from_dict(spec) for name, spec in row.gpus.items()}
    for name, gpu in gpus.items():
        if gpu.name != name:
            raise BadRecord(f"is named {gpu.name[:40]!r}", f"gpus.{name[:40]}")
    schedules = tuple(read_schedule(s, gpus, graphs, f"simulations[{i}]") for i, s in enumerate(row.simulations))
    return graphs, schedules
