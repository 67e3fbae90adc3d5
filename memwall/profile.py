"""The one saved record, ``memwall.profile/1``: what was traced, what it costs, and what it takes on each GPU.

History of the format: 1 is the first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from memwall._version import __version__
from memwall.cost import Cost
from memwall.errors import UsageError
from memwall.files import read_json, write_whole
from memwall.graph import ITEMSIZE, PHASES, ROLES, Graph, Op, Pipe, Storage, TensorSpec, Value, contiguous
from memwall.hardware import Gpu
from memwall.roofline import Estimate
from memwall.simulate import MODEL_CLASSES, MemoryPeak, Schedule, Totals

SCHEMA = "memwall.profile/1"
_SCHEMA_FAMILY, _SCHEMA_VERSION = "memwall.profile", 1


@dataclass(frozen=True)
class WorkloadInfo:
    """What was profiled. ``parameters`` is a count of elements; ``samples`` and ``tokens`` are per step."""

    name: str
    target: str
    mode: str
    dtype: str
    inputs: tuple[Mapping[str, Any], ...]
    parameters: int
    samples: int | None = None
    tokens: int | None = None
    optimizer: str | None = None
    autocast: str | None = None


@dataclass(frozen=True)
class Coverage:
    """Fractions of ops, FLOPs and bytes that a formula models, and the names of the ops that none does.

    An unmodeled op has no FLOP count, so ``flops`` is 1.0 only when every op is modeled; otherwise it is the share
    of ops, the best that can be said.
    """

    ops: float
    flops: float
    bytes: float
    unmodeled: tuple[str, ...]


@dataclass(frozen=True)
class Profile:
    """A traced workload, its costs and its simulations. Everything but making one works without torch.

    ``graphs[0]`` is the graph of the first GPU; more follow only where another GPU would run another attention kernel.
    ``costs[i][j]`` is the cost of ``graphs[i].ops[j]``.
    """

    workload: WorkloadInfo
    graphs: tuple[Graph, ...]
    costs: tuple[tuple[Cost, ...], ...]
    simulations: tuple[Schedule, ...] = ()
    capture: Mapping[str, Any] = field(default_factory=dict)
    measurements: tuple[Mapping[str, Any], ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    memwall_version: str = __version__

    @property
    def graph(self) -> Graph:
        """The graph of the first GPU."""
        return self.graphs[0]

    @cached_property
    def flops(self) -> int:
        """FLOPs of all ops, causal attention counted as causal."""
        return sum(cost.total_flops for cost in self.costs[0])

    @cached_property
    def model_flops(self) -> int:
        """FLOPs of contractions, convolutions and attention."""
        return sum(
            cost.total_flops
            for op, cost in zip(self.graph.ops, self.costs[0], strict=True)
            if op.op_class in MODEL_CLASSES
        )

    @cached_property
    def dense_model_flops(self) -> int:
        """Like :attr:`model_flops` with attention counted dense, as most other tools do."""
        return sum(
            cost.total_flops if cost.dense_flops is None else cost.dense_flops
            for op, cost in zip(self.graph.ops, self.costs[0], strict=True)
            if op.op_class in MODEL_CLASSES
        )

    @cached_property
    def dram_bytes(self) -> int:
        """Compulsory DRAM bytes of all ops, unfused."""
        return sum(cost.bytes for cost in self.costs[0])

    @cached_property
    def coverage(self) -> Coverage:
        """How much of the graph is modeled."""
        costs = self.costs[0]
        known = [c for c in costs if c.modeled]
        names = sorted({op.name for op, c in zip(self.graph.ops, costs, strict=True) if not c.modeled})
        total_bytes = sum(c.bytes for c in costs)
        by_ops = len(known) / len(costs) if costs else 1.0
        by_bytes = sum(c.bytes for c in known) / total_bytes if total_bytes else 1.0
        return Coverage(by_ops, by_ops, by_bytes, tuple(names))

    def simulation(self, gpu: str, policy: str = "eager") -> Schedule:
        """The simulation on a GPU, by its canonical name.

        Raises:
            KeyError: it was not simulated.
        """
        for schedule in self.simulations:
            if schedule.gpu.name == gpu and schedule.policy == policy:
                return schedule
        raise KeyError(f"no simulation of policy {policy} on {gpu}")

    def with_simulations(self, simulations: tuple[Schedule, ...]) -> Profile:
        """A copy with other simulations."""
        return replace(self, simulations=simulations)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record, whole or not at all.

        Raises:
            UsageError: the file cannot be written.
        """
        write_whole(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a record; never runs code.

        Raises:
            UsageError: not a record, damaged, or written by a newer memwall; says which key.
        """
        return cls.from_dict(read_json(path), source=str(path))

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON types, keys in the order of the format."""
        coverage = asdict(self.coverage)
        gpus = {schedule.gpu.name: schedule.gpu.to_dict() for schedule in self.simulations}
        record: dict[str, Any] = {
            "schema": SCHEMA,
            "memwall_version": self.memwall_version,
            "workload": _plain(asdict(self.workload)),
            "graph": _graph_to_dict(self.graphs[0], self.costs[0]),
        }
        if len(self.graphs) > 1:
            record["graphs"] = [
                _graph_to_dict(g, c) for g, c in zip(self.graphs[1:], self.costs[1:], strict=True)
            ]
        record["coverage"] = _plain(coverage)
        record["gpus"] = {name: gpus[name] for name in sorted(gpus)}
        record["simulations"] = [_schedule_to_dict(schedule) for schedule in self.simulations]
        record["capture"] = _plain(dict(self.capture))
        record["measurements"] = _plain(list(self.measurements))
        record["environment"] = _plain(dict(self.environment))
        return record

    def to_json(self) -> str:
        """The record as text: one op, value or kernel a line, byte-identical for equal profiles."""
        return "".join(_json_lines(self.to_dict())) + "\n"

    @classmethod
    def from_dict(cls, record: Any, source: str = "record") -> Profile:
        """The profile of a parsed record.

        Raises:
            UsageError: a key is missing, of the wrong type or out of range; names it.
        """
        check_schema(record, _SCHEMA_FAMILY, _SCHEMA_VERSION, source)
        try:
            return _read_profile(record)
        except _Bad as error:
            raise UsageError(f"{source}: {error}") from None
        except UsageError as error:
            raise UsageError(f"{source}: {error}") from None
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            raise UsageError(f"{source}: damaged record ({type(error).__name__}: {error})") from None


def check_schema(record: Any, family: str, version: int, source: str) -> None:
    """Refuse what is not a record of this family, or newer than we read.

    Raises:
        UsageError: says what it is instead.
    """
    schema = record.get("schema") if isinstance(record, dict) else None
    if not isinstance(schema, str):
        raise UsageError(f"{source} is not a {family} record: it has no \"schema\"")
    name, _, number = schema.partition("/")
    if name != family or not number.isdecimal():
        raise UsageError(f"{source} is not a {family} record: its schema is {schema[:60]!r}")
    if len(number) > 6 or int(number) > version:
        raise UsageError(f"{source} was written by a newer memwall (schema {schema[:60]}); this one reads {family}/{version}")
    if int(number) < 1:
        raise UsageError(f"{source}: there is no schema {schema}")


# -- writing -----------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def _graph_to_dict(graph: Graph, costs: tuple[Cost, ...]) -> dict[str, Any]:
    return {
        "attention": graph.attention,
        "inputs": list(graph.inputs),
        "parameters": list(graph.parameters),
        "outputs": list(graph.outputs),
        "free_calls": {name: graph.free_calls[name] for name in sorted(graph.free_calls)},
        "storages": [[s.nbytes, s.role, s.name] if s.name else [s.nbytes, s.role] for s in graph.storages],
        "values": {str(v.id): _value_to_dict(v) for v in graph.values},
        "ops": [_op_to_dict(op, cost) for op, cost in zip(graph.ops, costs, strict=True)],
    }


def _value_to_dict(value: Value) -> dict[str, Any]:
    spec = value.spec
    record: dict[str, Any] = {"shape": list(spec.shape), "dtype": spec.dtype, "storage": value.storage}
    if not spec.is_contiguous:
        record["strides"] = list(spec.strides)
    if value.offset:
        record["offset"] = value.offset
    return record


def _op_to_dict(op: Op, cost: Cost) -> dict[str, Any]:
    record: dict[str, Any] = {
        "id": op.id, "name": op.name, "class": op.op_class, "phase": op.phase, "module": op.module,
        "inputs": list(op.inputs), "outputs": list(op.outputs),
        "flops": cost.total_flops, "read_bytes": cost.read_bytes, "write_bytes": cost.write_bytes,
        "modeled": cost.modeled,
    }  # fmt: skip
    if cost.flops:
        record["pipes"] = {str(pipe): cost.flops[pipe] for pipe in sorted(cost.flops)}
    for key, default in _COST_EXTRAS.items():
        if getattr(cost, key) != default:
            record[key] = getattr(cost, key)
    if op.arguments:
        record["arguments"] = list(op.arguments)
    if op.attributes:
        record["attributes"] = _plain(op.attributes)
    return record


_COST_NUMBERS = attrgetter("read_bytes", "write_bytes", "modeled", "dense_flops", "extra_bytes", "extra_flops", "kernels")
_COST_EXTRAS: dict[str, int | None] = {"dense_flops": None, "extra_bytes": 0, "extra_flops": 0, "kernels": 1}


def _schedule_to_dict(schedule: Schedule) -> dict[str, Any]:
    record: dict[str, Any] = {"gpu": schedule.gpu.name, "policy": schedule.policy}
    if schedule.graph:
        record["graph"] = schedule.graph
    record["kernels"] = [
        {
            "id": k.id, "name": k.name, "op_ids": list(k.op_ids), "class": k.op_class, "flops": k.flops,
            "read_bytes": k.read_bytes, "write_bytes": k.write_bytes, "bound_s": k.bound_s, "time_s": k.time_s,
            "compute_s": k.compute_s, "memory_s": k.memory_s, "overhead_s": k.overhead_s, "limited_by": k.limited_by,
        }
        for k in schedule.kernels
    ]  # fmt: skip
    record["totals"] = asdict(schedule.totals)
    record["memory"] = asdict(schedule.memory)
    return record


#: JSON paths whose items stand one a line; everything else is compact.
_LINED = frozenset(
    (("graph", "storages"), ("graph", "values"), ("graph", "ops"), ("graphs", "storages"), ("graphs", "values"),
     ("graphs", "ops"), ("simulations", "kernels"))
)  # fmt: skip


def _json_lines(record: Mapping[str, Any]) -> Iterator[str]:
    compact = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode

    def emit(value: Any, path: tuple[str, ...]) -> Iterator[str]:
        lined = path in _LINED
        if isinstance(value, dict) and (len(path) < 2 or lined):
            yield "{"
            for i, (key, item) in enumerate(value.items()):
                yield (",\n" if i else "\n") + compact(key) + ":"
                yield from emit(item, (*path, key) if not lined else (*path, "", ""))
            yield "\n}"
        elif isinstance(value, list) and (lined or path in (("graphs",), ("simulations",))):
            yield "["
            for i, item in enumerate(value):
                yield ",\n" if i else "\n"
                yield from emit(item, path if not lined else (*path, "", ""))
            yield "\n]"
        else:
            yield compact(value)

    return emit(dict(record), ())


# -- reading -----------------------------------------------------------------------------------------------------------


class _Bad(ValueError):
    """A key of the record is not as the format says."""


def _take(record: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    if not isinstance(record, dict):
        raise _Bad(f"{where} is not an object")
    if key not in record:
        raise _Bad(f"{where} has no {key!r}")
    value = record[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _Bad(f"{where}.{key} is {type(value).__name__}, which is not what the format says")
    return value


def _count(value: Any, where: str) -> int:
    if type(value) is not int or value < 0:
        raise _Bad(f"{where} must be a whole number that is not negative, not {str(value)[:40]!r}")
    return value


def _seconds(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise _Bad(f"{where} must be a number that is not negative, not {str(value)[:40]!r}")
    return float(value)


def _ids(values: Any, limit: int, where: str) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise _Bad(f"{where} is not a list")
    for item in values:
        if type(item) is not int or not 0 <= item < limit:
            raise _Bad(f"{where} names {str(item)[:40]!r}, which does not exist")
    return tuple(values)


def _read_profile(record: dict[str, Any]) -> Profile:
    pairs = [_read_graph(_take(record, "graph", dict, "record"), "graph")]
    pairs += [_read_graph(g, f"graphs[{i}]") for i, g in enumerate(record.get("graphs", []))]
    gpus = {name: Gpu.from_dict(spec) for name, spec in _take(record, "gpus", dict, "record").items()}
    simulations = _take(record, "simulations", list, "record")
    return Profile(
        workload=_read_workload(_take(record, "workload", dict, "record")),
        graphs=tuple(graph for graph, _ in pairs),
        costs=tuple(costs for _, costs in pairs),
        simulations=tuple(
            _read_schedule(s, gpus, pairs, f"simulations[{i}]") for i, s in enumerate(simulations)
        ),
        capture=_take(record, "capture", dict, "record"),
        measurements=tuple(_take(record, "measurements", list, "record")),
        environment=_take(record, "environment", dict, "record"),
        memwall_version=_take(record, "memwall_version", str, "record"),
    )


def _read_workload(record: dict[str, Any]) -> WorkloadInfo:
    text = {key: _take(record, key, str, "workload") for key in ("name", "target", "mode", "dtype")}
    inputs = _take(record, "inputs", list, "workload")
    for item in inputs:
        _take(item, "shape", list, "workload.inputs[]")
        _take(item, "dtype", str, "workload.inputs[]")
    optional = {key: record.get(key) for key in ("samples", "tokens", "optimizer", "autocast")}
    for key, kind in (("samples", int), ("tokens", int), ("optimizer", str), ("autocast", str)):
        if optional[key] is not None and type(optional[key]) is not kind:
            raise _Bad(f"workload.{key} is not {kind.__name__}")
    parameters = _count(record.get("parameters"), "workload.parameters")
    return WorkloadInfo(**text, inputs=tuple(inputs), parameters=parameters, **optional)


def _read_graph(record: Any, where: str) -> tuple[Graph, tuple[Cost, ...]]:
    storages = []
    for i, item in enumerate(_take(record, "storages", list, where)):
        if not isinstance(item, list) or len(item) not in (2, 3) or item[1] not in ROLES:
            raise _Bad(f"{where}.storages[{i}] is not [bytes, role, name]")
        storages.append(Storage(i, _count(item[0], f"{where}.storages[{i}]"), item[1], str(item[2]) if item[2:] else ""))
    values = _read_values(_take(record, "values", dict, where), len(storages), f"{where}.values")
    ops, costs, known = [], [], {}
    for i, item in enumerate(_take(record, "ops", list, where)):
        op, cost = _read_op(item, i, len(values), f"{where}.ops[{i}]")
        ops.append(op)
        costs.append(known.setdefault((*cost.flops.items(), *_COST_NUMBERS(cost)), cost))  # one object for equal costs
    limit = len(values)
    graph = Graph(
        tuple(values), tuple(storages), tuple(ops),
        *(_ids(record.get(key, []), limit, f"{where}.{key}") for key in ("inputs", "parameters", "outputs")),
        {str(k): _count(v, f"{where}.free_calls") for k, v in record.get("free_calls", {}).items()},
        str(record.get("attention", "flash")),
    )  # fmt: skip
    return graph, tuple(costs)


def _read_values(record: dict[str, Any], storages: int, where: str) -> list[Value]:
    values: list[Value] = []
    specs: dict[TensorSpec, TensorSpec] = {}
    for i, (key, item) in enumerate(record.items()):
        if key != str(i):
            raise _Bad(f"{where} must be numbered in order; found {key[:40]!r} where {i} was due")
        shape = _take(item, "shape", list, f"{where}.{i}")
        strides = item.get("strides")
        for number in (*shape, *(strides or ())):
            _count(number, f"{where}.{i}.shape")
        dtype = _take(item, "dtype", str, f"{where}.{i}")
        if dtype not in ITEMSIZE:
            raise _Bad(f"{where}.{i}.dtype is {dtype[:40]!r}, which no tensor has")
        if strides is not None and len(strides) != len(shape):
            raise _Bad(f"{where}.{i} has {len(shape)} axes and {len(strides)} strides")
        spec = contiguous(shape, dtype) if strides is None else TensorSpec(tuple(shape), tuple(strides), dtype)
        storage = _ids([item.get("storage")], storages, f"{where}.{i}.storage")[0]
        offset = _count(item.get("offset", 0), f"{where}.{i}.offset")
        values.append(Value(i, specs.setdefault(spec, spec), storage, offset))
    return values


def _read_op(record: Any, index: int, values: int, where: str) -> tuple[Op, Cost]:
    if _take(record, "id", int, where) != index:
        raise _Bad(f"{where}.id is out of order")
    phase = _take(record, "phase", str, where)
    if phase not in PHASES:
        raise _Bad(f"{where}.phase is {phase[:40]!r}; want one of {', '.join(PHASES)}")
    inputs = _ids(record.get("inputs"), values, f"{where}.inputs")
    arguments = tuple(map(str, record.get("arguments", ())))
    if arguments and len(arguments) != len(inputs):
        raise _Bad(f"{where} has {len(inputs)} inputs and {len(arguments)} arguments")
    op = Op(
        index, _take(record, "name", str, where), _take(record, "class", str, where), phase,
        _take(record, "module", str, where), inputs, _ids(record.get("outputs"), values, f"{where}.outputs"),
        arguments, record.get("attributes", {}),
    )  # fmt: skip
    flops = {Pipe.parse(k): _count(v, f"{where}.pipes") for k, v in record.get("pipes", {}).items()}
    if sum(flops.values()) != _count(record.get("flops"), f"{where}.flops"):
        raise _Bad(f"{where}: pipes do not add up to flops")
    dense = record.get("dense_flops")
    cost = Cost(
        flops, _count(record.get("read_bytes"), f"{where}.read_bytes"),
        _count(record.get("write_bytes"), f"{where}.write_bytes"), _take(record, "modeled", bool, where),
        None if dense is None else _count(dense, f"{where}.dense_flops"),
        *(_count(record.get(key, _COST_EXTRAS[key]), f"{where}.{key}") for key in ("extra_bytes", "extra_flops", "kernels")),
    )  # fmt: skip
    return op, cost


def _read_schedule(record: Any, gpus: dict[str, Gpu], pairs: list[Any], where: str) -> Schedule:
    name = _take(record, "gpu", str, where)
    if name not in gpus:
        raise _Bad(f"{where}.gpu is {name[:40]!r}, which \"gpus\" does not describe")
    graph = _ids([record.get("graph", 0)], len(pairs), f"{where}.graph")[0]
    ops = len(pairs[graph][0].ops)
    kernels = []
    for i, item in enumerate(_take(record, "kernels", list, where)):
        at = f"{where}.kernels[{i}]"
        counts = [_count(item.get(key), f"{at}.{key}") for key in ("flops", "read_bytes", "write_bytes")]
        times = [_seconds(item.get(key), f"{at}.{key}") for key in ("bound_s", "compute_s", "memory_s", "overhead_s")]
        kernels.append(
            Estimate(i, _take(item, "name", str, at), _ids(item.get("op_ids"), ops, f"{at}.op_ids"),
                     _take(item, "class", str, at), *counts, *times)
        )  # fmt: skip
    totals, memory = _take(record, "totals", dict, where), _take(record, "memory", dict, where)
    return Schedule(
        gpus[name], _take(record, "policy", str, where), tuple(kernels),
        Totals(**{f.name: (_seconds if f.name.endswith("_s") or f.name == "mfu" else _count)(
            totals.get(f.name), f"{where}.totals.{f.name}") for f in fields(Totals)}),
        MemoryPeak(**{f.name: _count(memory.get(f.name), f"{where}.memory.{f.name}") for f in fields(MemoryPeak)}),
        graph,
    )  # fmt: skip


def default_record_path() -> Path:
    """Where the last profile made in this directory is kept."""
    return Path(".memwall") / "last.json"
