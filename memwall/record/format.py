"""How the parts of a saved record are written and read. Reading checks every key and never runs code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from operator import attrgetter
from typing import Any

from memwall.core.graph import ITEMSIZE, PHASES, ROLES, Graph, Op, Pipe, Storage, TensorSpec, Value, contiguous
from memwall.core.structure import BadRecord
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost, graph_costs
from memwall.perfmodel.roofline import Estimate
from memwall.simulate.launch_queue import issue_s, waits_within
from memwall.simulate.memory import MemoryPeak
from memwall.simulate.schedule import Schedule, Totals


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


# -- writing -----------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def graph_to_dict(graph: Graph, costs: tuple[Cost, ...]) -> dict[str, Any]:
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
        record["attributes"] = plain(op.attributes)
    if op.source:
        record["source"] = op.source
    return record


_COST_NUMBERS = attrgetter(
    "read_bytes",
    "write_bytes",
    "modeled",
    "dense_flops",
    "extra_bytes",
    "extra_flops",
    "kernels",
    "least_flops",
    "programs",
)
_COUNTS = attrgetter("read_bytes", "write_bytes", "modeled", "kernels")
_COST_EXTRAS: dict[str, Any] = {
    "dense_flops": None, "extra_bytes": 0, "extra_flops": 0, "kernels": 1, "least_flops": None,
    "programs": None,
}  # fmt: skip


def schedule_to_dict(schedule: Schedule) -> dict[str, Any]:
    record: dict[str, Any] = {"gpu": schedule.gpu.name, "policy": schedule.policy}
    if schedule.graph:
        record["graph"] = schedule.graph
    record["kernels"] = [_kernel_to_dict(kernel) for kernel in schedule.kernels]
    record["totals"] = asdict(schedule.totals)
    record["memory"] = asdict(schedule.memory)
    return record


def _kernel_to_dict(k: Estimate) -> dict[str, Any]:
    record: dict[str, Any] = {
        "id": k.id, "name": k.name, "op_ids": list(k.op_ids), "class": k.op_class, "flops": k.flops,
        "read_bytes": k.read_bytes, "write_bytes": k.write_bytes, "bound_s": k.bound_s, "time_s": k.time_s,
        "compute_s": k.compute_s, "memory_s": k.memory_s, "overhead_s": k.overhead_s, "limited_by": k.limited_by,
        "low_s": k.low_s, "high_s": k.high_s,
    }  # fmt: skip
    if k.launches != 1:
        record["launches"] = k.launches
    if k.recomputes:
        record["recomputes"] = list(k.recomputes)
    return record


#: JSON paths whose items stand one a line; everything else is compact.
_LINED = frozenset(
    (("graph", "storages"), ("graph", "values"), ("graph", "ops"), ("graphs", "storages"), ("graphs", "values"),
     ("graphs", "ops"), ("simulations", "kernels"))
)  # fmt: skip


def json_lines(record: Mapping[str, Any]) -> Iterator[str]:
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


#: beyond any count of a model, and any time of a step; larger numbers are damage
_MOST, _LONGEST_S = 1 << 96, 1e15


def take(record: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    if not isinstance(record, dict):
        raise BadRecord(f"{where} is not an object")
    if key not in record:
        raise BadRecord(f"{where} has no {key!r}")
    value = record[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadRecord(f"{where}.{key} is {type(value).__name__}, which is not what the format says")
    return value


def _count(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise BadRecord(f"{where} must be a whole number that is not negative, not {str(value)[:40]!r}")
    return value


def _seconds(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not 0 <= value < _LONGEST_S:
        raise BadRecord(f"{where} must be a number that is not negative, not {str(value)[:40]!r}")
    return float(value)


def _ids(values: Any, limit: int, where: str) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise BadRecord(f"{where} is not a list")
    for item in values:
        if type(item) is not int or not 0 <= item < limit:
            raise BadRecord(f"{where} names {str(item)[:40]!r}, which does not exist")
    return tuple(values)


def read_workload(record: dict[str, Any]) -> WorkloadInfo:
    text = {key: take(record, key, str, "workload") for key in ("name", "target", "mode", "dtype")}
    inputs = take(record, "inputs", list, "workload")
    for item in inputs:
        take(item, "shape", list, "workload.inputs[]")
        take(item, "dtype", str, "workload.inputs[]")
    optional: dict[str, Any] = {key: record.get(key) for key in ("samples", "tokens", "optimizer", "autocast")}
    for key in ("samples", "tokens"):
        if optional[key] is not None:
            _count(optional[key], f"workload.{key}")
    for key in ("optimizer", "autocast"):
        if optional[key] is not None and type(optional[key]) is not str:
            raise BadRecord(f"workload.{key} is not text")
    parameters = _count(record.get("parameters"), "workload.parameters")
    return WorkloadInfo(**text, inputs=tuple(inputs), parameters=parameters, **optional)


def read_graph(record: Any, where: str) -> tuple[Graph, tuple[Cost, ...]]:
    storages = []
    for i, item in enumerate(take(record, "storages", list, where)):
        if not isinstance(item, list) or len(item) not in (2, 3) or item[1] not in ROLES:
            raise BadRecord(f"{where}.storages[{i}] is not [bytes, role, name]")
        storages.append(
            Storage(i, _count(item[0], f"{where}.storages[{i}]"), item[1], str(item[2]) if item[2:] else "")
        )
    values = _read_values(take(record, "values", dict, where), len(storages), f"{where}.values")
    ops: list[Op] = []
    costs: list[Cost] = []
    known: dict[tuple[Any, ...], Cost] = {}
    shared: dict[str, Mapping[str, Any]] = {}
    for i, item in enumerate(take(record, "ops", list, where)):
        op, cost = _read_op(item, i, len(values), shared, f"{where}.ops[{i}]")
        ops.append(op)
        costs.append(known.setdefault((*cost.flops.items(), *_COST_NUMBERS(cost)), cost))  # one object for equal costs
    inputs, parameters, outputs = (
        _ids(record.get(key, []), len(values), f"{where}.{key}") for key in ("inputs", "parameters", "outputs")
    )
    free_calls = {str(k): _count(v, f"{where}.free_calls") for k, v in record.get("free_calls", {}).items()}
    attention = str(record.get("attention", "flash"))
    graph = Graph(tuple(values), tuple(storages), tuple(ops), inputs, parameters, outputs, free_calls, attention)
    return graph, _with_works(graph, costs)


def _with_works(graph: Graph, saved: Sequence[Cost]) -> tuple[Cost, ...]:
    """The costs with their launches, which the formulas give again: a record holds counts alone. An op that no formula
    here knows, or that one now counts otherwise, keeps what was saved, as one streaming kernel."""
    try:
        fresh = graph_costs(graph)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # damage that no check above saw
        return tuple(saved)
    return tuple(
        new if (new.flops, _COUNTS(new)) == (old.flops, _COUNTS(old)) else old
        for old, new in zip(saved, fresh, strict=True)
    )


def _read_values(record: dict[str, Any], storages: int, where: str) -> list[Value]:
    values: list[Value] = []
    specs: dict[TensorSpec, TensorSpec] = {}
    for i, (key, item) in enumerate(record.items()):
        if key != str(i):
            raise BadRecord(f"{where} must be numbered in order; found {key[:40]!r} where {i} was due")
        shape = take(item, "shape", list, f"{where}.{i}")
        strides = item.get("strides")
        for number in (*shape, *(strides or ())):
            _count(number, f"{where}.{i}.shape")
        dtype = take(item, "dtype", str, f"{where}.{i}")
        if dtype not in ITEMSIZE:
            raise BadRecord(f"{where}.{i}.dtype is {dtype[:40]!r}, which no tensor has")
        if strides is not None and len(strides) != len(shape):
            raise BadRecord(f"{where}.{i} has {len(shape)} axes and {len(strides)} strides")
        spec = contiguous(shape, dtype) if strides is None else TensorSpec(tuple(shape), tuple(strides), dtype)
        storage = _ids([item.get("storage")], storages, f"{where}.{i}.storage")[0]
        offset = _count(item.get("offset", 0), f"{where}.{i}.offset")
        values.append(Value(i, specs.setdefault(spec, spec), storage, offset))
    return values


def _read_op(record: Any, index: int, values: int, shared: dict[str, Mapping[str, Any]], where: str) -> tuple[Op, Cost]:
    """One op and its cost; ``shared`` keeps one object for equal attributes."""
    if take(record, "id", int, where) != index:
        raise BadRecord(f"{where}.id is out of order")
    phase = take(record, "phase", str, where)
    if phase not in PHASES:
        raise BadRecord(f"{where}.phase is {phase[:40]!r}; want one of {', '.join(PHASES)}")
    inputs = _ids(record.get("inputs"), values, f"{where}.inputs")
    arguments = tuple(map(str, record.get("arguments", ())))
    if arguments and len(arguments) != len(inputs):
        raise BadRecord(f"{where} has {len(inputs)} inputs and {len(arguments)} arguments")
    attributes = take({"attributes": {}, **record}, "attributes", dict, where)
    source = take({"source": "", **record}, "source", str, where)
    op = Op(
        index, take(record, "name", str, where), take(record, "class", str, where), phase,
        take(record, "module", str, where), inputs, _ids(record.get("outputs"), values, f"{where}.outputs"),
        arguments, shared.setdefault(repr(attributes), attributes), source,
    )  # fmt: skip
    flops = {Pipe.parse(k): _count(v, f"{where}.pipes") for k, v in record.get("pipes", {}).items()}
    if sum(flops.values()) != _count(record.get("flops"), f"{where}.flops"):
        raise BadRecord(f"{where}: pipes do not add up to flops")
    cost = Cost(
        flops,
        _count(record.get("read_bytes"), f"{where}.read_bytes"),
        _count(record.get("write_bytes"), f"{where}.write_bytes"),
        take(record, "modeled", bool, where),
        **{
            key: default if record.get(key) is None else _count(record[key], f"{where}.{key}")
            for key, default in _COST_EXTRAS.items()
        },
        works=(),
    )
    return op, cost


def read_schedule(record: Any, gpus: dict[str, Gpu], pairs: list[Any], where: str) -> Schedule:
    gpu = take(record, "gpu", str, where)
    if gpu not in gpus:
        raise BadRecord(f'{where}.gpu is {gpu[:40]!r}, which "gpus" does not describe')
    graph = _ids([record.get("graph", 0)], len(pairs), f"{where}.graph")[0]
    ops = len(pairs[graph][0].ops)
    kernels = []
    for i, item in enumerate(take(record, "kernels", list, where)):
        at = f"{where}.kernels[{i}]"
        numbers: dict[str, Any] = {
            key: _count(item.get(key), f"{at}.{key}") for key in ("flops", "read_bytes", "write_bytes")
        }
        for key in ("bound_s", "compute_s", "memory_s", "overhead_s"):
            numbers[key] = _seconds(item.get(key), f"{at}.{key}")
        for key in ("low_s", "high_s"):  # older records have no interval
            numbers[key] = _seconds(item.get(key, item.get("time_s")), f"{at}.{key}")
        op_ids = _ids(item.get("op_ids"), ops, f"{at}.op_ids")
        if not op_ids:
            raise BadRecord(f"{at}.op_ids is empty: a kernel runs at least one op")
        numbers["launches"] = _count(item.get("launches", 1), f"{at}.launches")
        numbers["recomputes"] = _ids(item.get("recomputes", []), ops, f"{at}.recomputes")
        numbers["issue_s"] = issue_s(gpus[gpu], pairs[graph][0].ops[op_ids[0]].phase, numbers["launches"])
        name, op_class = take(item, "name", str, at), take(item, "class", str, at)
        kernels.append(Estimate(id=i, name=name, op_ids=op_ids, op_class=op_class, **numbers))
    waits = waits_within((k.issue_s, k.time_s, k.overhead_s) for k in kernels)
    kernels = [replace(kernel, wait_s=wait_s) for kernel, wait_s in zip(kernels, waits, strict=True)]
    totals, memory = take(record, "totals", dict, where), take(record, "memory", dict, where)
    sums: dict[str, Any] = {}
    for name in (f.name for f in fields(Totals)):
        read = _seconds if name.endswith("_s") or name == "mfu" else _count
        saved = totals.get("time_s") if name in ("low_s", "high_s") and name not in totals else totals.get(name)
        sums[name] = read(saved, f"{where}.totals.{name}")
    peak = {f.name: _count(memory.get(f.name), f"{where}.memory.{f.name}") for f in fields(MemoryPeak)}
    for name in ("flops", "dram_bytes"):
        if sums[name] != sum(k.flops if name == "flops" else k.bytes for k in kernels):
            raise BadRecord(f"{where}.totals.{name} is not the sum over the kernels")
    policy = take(record, "policy", str, where)
    if policy == "eager" and sorted(k.op_ids for k in kernels) != [(i,) for i in range(ops)]:
        raise BadRecord(f"{where}.kernels: eager launches each op alone and once, and these do not")
    return Schedule(gpus[gpu], policy, tuple(kernels), Totals(**sums), MemoryPeak(**peak), graph)
