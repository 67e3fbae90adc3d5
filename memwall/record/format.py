"""How a profile is saved: the rows of ``memwall.profile/1``, and their conversion to memwall's types and back.

:mod:`memwall.core.structure` reads and writes the rows; what one row alone cannot know is checked here: that ids exist,
that sums are sums, that a schedule runs the graph it names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Annotated, Any, ClassVar

from memwall.core.structure import BadRecord, number, one_of, read, shown
from memwall.frontend.facts import WorkloadInfo
from memwall.hardware.lookup import Gpu
from memwall.ops.lowering import LowerableGraph
from memwall.perfmodel.roofline import Estimate
from memwall.record.graphs import AttentionRow, Costed, GraphRow, exist, read_attention, read_graph
from memwall.record.traced import Traced, read_traced
from memwall.simulate.issue import LAUNCHES, work_of
from memwall.simulate.launch_queue import waits_within
from memwall.simulate.memory import MemoryPeak
from memwall.simulate.schedule import Schedule, Totals

# -- the rows ----------------------------------------------------------------------------------------------------------


def _seconds(value: Any) -> float:
    """0, or seconds of which no quotient overflows: a wait may be the rest of rounded sums, about 10^-21 s."""
    if 0 < number(value) < 1e-30:
        raise BadRecord(f"must be a number that is not negative, not {shown(value)}")
    return float(value)


_Seconds = Annotated[float, _seconds]
#: sums of seconds are rounded
_ROUNDED = 1 + 1e-9


@dataclass(slots=True)
class _SavedKernel:
    OMIT_DEFAULTS: ClassVar[bool] = True

    id: int
    name: str
    op_ids: tuple[int, ...]
    op_class: str = field(metadata={"key": "class"})
    flops: int
    read_bytes: int
    write_bytes: int
    bound_s: _Seconds
    time_s: _Seconds
    compute_s: _Seconds
    memory_s: _Seconds
    overhead_s: _Seconds
    limited_by: str
    #: older records have none: there memory_s, compute_s and overhead_s hold these seconds
    latency_s: _Seconds = 0.0
    low_s: _Seconds | None = None  # older records have no interval
    high_s: _Seconds | None = None
    launches: int = 1
    recomputes: tuple[int, ...] = ()
    wait_s: _Seconds = 0.0
    link_s: _Seconds = 0.0
    hidden_s: _Seconds = 0.0

    def check(self) -> None:
        if not self.op_ids:
            raise BadRecord("is empty: a kernel runs at least one op", ".op_ids")
        whole_s = self.time_s + self.hidden_s
        for name in ("compute_s", "memory_s", "latency_s", "overhead_s", "link_s"):
            if getattr(self, name) > whole_s * _ROUNDED:
                raise BadRecord("is longer than the kernel, its time_s and hidden_s", f".{name}")
        if self.wait_s > self.overhead_s * _ROUNDED:
            raise BadRecord("is longer than the overhead_s that holds it", ".wait_s")
        if self.low_s is None or self.high_s is None:
            self.low_s = self.high_s = self.time_s


def _totals(record: Any) -> Totals:
    if isinstance(record, dict) and "time_s" in record:  # older records have no interval, and counted HFU as MFU
        record = {"low_s": record["time_s"], "high_s": record["time_s"], "hfu": record.get("mfu"), **record}
    return read(Totals, record, "")


@dataclass(slots=True, kw_only=True)
class _Schedule:
    OMIT_DEFAULTS: ClassVar[bool] = True

    gpu: str
    policy: str
    graph: int = 0
    #: older records have none: as a graph where the host takes no time, and their kernels do not state their waits
    launch: Annotated[str, one_of(("", *LAUNCHES))] = ""
    outside: tuple[int, ...] = ()
    kernels: tuple[_SavedKernel, ...]
    totals: Annotated[Totals, _totals]
    memory: MemoryPeak


@dataclass(slots=True, kw_only=True)
class SavedProfile:
    """``memwall.profile/1`` itself; GPUs and measurements are records of their own."""

    OMIT_DEFAULTS: ClassVar[bool] = True

    schema: str
    memwall_version: str
    workload: WorkloadInfo
    graph: GraphRow
    graphs: tuple[GraphRow, ...] = ()
    attention: AttentionRow | None = None
    coverage: Any
    gpus: Mapping[str, Any]
    simulations: tuple[_Schedule, ...]
    capture: Annotated[Traced, read_traced]
    measurements: tuple[Any, ...]
    environment: Mapping[str, Any]


# -- writing -----------------------------------------------------------------------------------------------------------


def schedule_to_row(schedule: Schedule) -> _Schedule:
    """A schedule as it is saved: without its plan."""
    kernels = tuple(_SavedKernel(*_kernel_fields(kernel)) for kernel in schedule.kernels)
    return _Schedule(
        gpu=schedule.gpu.name,
        policy=schedule.policy,
        graph=schedule.graph,
        launch=schedule.launch,
        outside=tuple(sorted(schedule.outside)),
        kernels=kernels,
        totals=schedule.totals,
        memory=schedule.memory,
    )


_kernel_fields = attrgetter(*_SavedKernel.__slots__)

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


#: an item of the long lists, which :func:`json_lines` writes on a line of its own
_ITEM = re.compile(r'\n(?:"\d+":)?[\[{][^\n]+')


def outline(text: str) -> str:
    """The text of a profile without values, ops and kernels: what its lists hold is left out, its totals stay. Text of
    other writers may stay whole, or be no JSON any more."""
    return _ITEM.sub("", text)


# -- reading -----------------------------------------------------------------------------------------------------------


#: what a saved kernel has of an estimate, its place in the list aside
_ESTIMATED = tuple(f.name for f in fields(Estimate) if f.name in _SavedKernel.__slots__ and f.name != "id")
_of_kernel = attrgetter(*_ESTIMATED)


def read_schedule(row: _Schedule, gpus: Mapping[str, Gpu], graphs: Sequence[Costed], where: str) -> Schedule:
    """The schedule of a row; refuses one whose GPU, graph or ops do not exist, or whose sums are not its kernels'."""
    if row.gpu not in gpus:
        raise BadRecord(f'is {row.gpu[:40]!r}, which "gpus" does not describe', f"{where}.gpu")
    exist((row.graph,), len(graphs), f"{where}.graph")
    ops, gpu = graphs[row.graph][0].ops, gpus[row.gpu]
    for i, kernel in enumerate(row.kernels):
        exist(kernel.op_ids, len(ops), f"{where}.kernels[{i}].op_ids")
        exist(kernel.recomputes, len(ops), f"{where}.kernels[{i}].recomputes")
    launch = row.launch or ("eager" if gpu.cpu or gpu.host.op_s else "graph")
    exist(row.outside, len(ops), f"{where}.outside")
    outside, calls = frozenset(row.outside), [(kernel.op_ids, kernel.launches) for kernel in row.kernels]
    work = work_of(graphs[row.graph][0], row.policy, calls, launch, outside)
    issues = list(map(gpu.host.issue_s, work))
    if not row.launch:
        _restore_waits(row.kernels, issues)
    kernels = [
        Estimate(**dict(zip(_ESTIMATED, _of_kernel(kernel), strict=True)), id=i, issue_s=issue)
        for i, (kernel, issue) in enumerate(zip(row.kernels, issues, strict=True))
    ]
    sums = {"flops": sum(k.flops for k in kernels), "dram_bytes": sum(k.bytes for k in kernels)}
    for name, total in sums.items():
        if getattr(row.totals, name) != total:
            raise BadRecord("is not the sum over the kernels", f"{where}.totals.{name}")
    if row.policy == "eager" and sorted(k.op_ids for k in kernels) != [(i,) for i in range(len(ops))]:
        raise BadRecord(": eager launches each op alone and once, and these do not", f"{where}.kernels")
    return Schedule(gpu, row.policy, tuple(kernels), row.totals, row.memory, row.graph, launch=launch, outside=outside)


def _restore_waits(kernels: Sequence[_SavedKernel], issues: Sequence[float]) -> None:
    """Set the waits of the kernels of an older record, which were the waits of a lone step."""
    times = (max(k.compute_s, k.memory_s, k.latency_s) + k.overhead_s for k in kernels)
    waits = waits_within(zip(issues, times, (k.overhead_s for k in kernels), strict=True))
    for kernel, wait_s in zip(kernels, waits, strict=True):
        kernel.wait_s = wait_s


def read_profile(row: SavedProfile) -> tuple[tuple[Costed, ...], tuple[Schedule, ...], LowerableGraph | None]:
    """The graphs, the schedules and the traced attention of a record."""
    graphs = (read_graph(row.graph, "graph"), *(read_graph(g, f"graphs[{i}]") for i, g in enumerate(row.graphs)))
    gpus = {name: Gpu.from_dict(spec) for name, spec in row.gpus.items()}
    for name, gpu in gpus.items():
        if gpu.name != name:
            raise BadRecord(f"is named {gpu.name[:40]!r}", f"gpus.{name[:40]}")
    schedules = tuple(read_schedule(s, gpus, graphs, f"simulations[{i}]") for i, s in enumerate(row.simulations))
    attention = None if row.attention is None else read_attention(row.attention, graphs[0][0], row.capture.version)
    return graphs, schedules, attention
