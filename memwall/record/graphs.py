"""How graphs are saved: their values, storages and ops with the counts of their costs, and what is lowered as traced.

:mod:`memwall.core.structure` reads and writes the rows; what one row alone cannot know is checked here: that ids exist,
that an op which is lowered fits what each choice launches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Annotated, Any, ClassVar

from memwall.core.graph import ITEMSIZE, PHASES, ROLES, Graph, Op, Pipe, Storage, TensorSpec, Value, contiguous
from memwall.core.structure import BadRecord, count, one_of
from memwall.hardware.torch_versions import TorchVersion
from memwall.ops import Cost, classify, graph_costs
from memwall.ops.launches import Plain
from memwall.ops.lowering import LOWERED, CallKind, LowerableGraph, call_of

#: a graph and the cost of each of its ops
Costed = tuple[Graph, tuple[Cost, ...]]


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
    stream: int = 0
    waits: tuple[int, ...] = ()
    again: bool = False

    def check(self) -> None:
        if self.waits and max(self.waits) >= self.id:
            raise BadRecord(f"waits for op {max(self.waits)}, which is no earlier one")
        if self.arguments and len(self.arguments) != len(self.inputs):
            raise BadRecord(f"has {len(self.inputs)} inputs and {len(self.arguments)} arguments")
        if sum(self.pipes.values()) != self.flops:
            raise BadRecord(": pipes do not add up to flops")


@dataclass(slots=True, kw_only=True)
class GraphRow:
    attention: str = "flash"
    backends: tuple[str, ...] = ()
    inputs: tuple[int, ...] = ()
    parameters: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    free_calls: Mapping[str, int] = field(default_factory=dict)
    gradients: bool = False
    one_program: bool = False
    storages: tuple[Annotated[tuple[Any, ...], _storage], ...]
    values: Mapping[str, _Value]
    ops: tuple[_Op, ...]


@dataclass(slots=True)
class AttentionOpRow:
    """An op that is lowered, as traced, which is ops ``start`` up to ``stop`` of the record's graph."""

    start: int
    stop: int
    name: Annotated[str, one_of(LOWERED)]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arguments: tuple[str, ...]
    attributes: Mapping[str, Any]

    def check(self) -> None:
        if len(self.arguments) != len(self.inputs):
            raise BadRecord(f"has {len(self.inputs)} inputs and {len(self.arguments)} arguments")


@dataclass(slots=True)
class KindRow:
    """A kind of calls that are lowered: numbers of ops in the traced graph, and what each backend launches."""

    op: int
    backward: int | None
    forms: Mapping[str, GraphRow]


@dataclass(slots=True)
class AttentionRow:
    """The traced graph: the first values and storages of the record's graph, and as ``ops`` the ops that are
    lowered."""

    preferred: str
    values: int
    storages: int
    free_calls: Mapping[str, int]
    ops: tuple[AttentionOpRow, ...]
    kinds: tuple[KindRow, ...]


def graph_to_row(graph: Graph, costs: Sequence[Cost]) -> GraphRow:
    """A graph as it is saved."""
    return GraphRow(
        attention=graph.attention,
        backends=graph.backends,
        inputs=graph.inputs,
        parameters=graph.parameters,
        outputs=graph.outputs,
        free_calls=dict(sorted(graph.free_calls.items())),
        gradients=graph.gradients,
        one_program=graph.one_program,
        storages=tuple((s.nbytes, s.role, s.name) if s.name else (s.nbytes, s.role) for s in graph.storages),
        values={
            str(v.id): _Value(v.spec.shape, v.spec.dtype, v.storage, _strides(v.spec), v.offset) for v in graph.values
        },
        ops=tuple(map(_op_row, graph.ops, costs)),
    )


def attention_to_row(attention: LowerableGraph | None, graph: Graph) -> AttentionRow | None:
    """The ops that are lowered of a traced graph, next to the first graph that was made of it."""
    if attention is None:
        return None
    traced = attention.traced
    ops = tuple(
        AttentionOpRow(start, stop, op.name, op.inputs, op.outputs, op.arguments, op.attributes)
        for op, start, stop in attention.spans(graph)
    )
    kinds = tuple(
        KindRow(k.op, k.backward, {name: graph_to_row(form, graph_costs(form)) for name, form in k.forms.items()})
        for k in attention.kinds
    )
    return AttentionRow(
        attention.preferred,
        len(traced.values),
        len(traced.storages),
        dict(sorted(traced.free_calls.items())),
        ops,
        kinds,
    )


def _strides(spec: TensorSpec) -> tuple[int, ...] | None:
    """None for strides of :func:`contiguous`. Axes of size 1 may have other strides, which say NHWC or NCHW."""
    return None if spec == contiguous(spec.shape, spec.dtype) else spec.strides


def _op_row(op: Op, cost: Cost) -> _Op:
    return _Op(
        op.id,
        op.name,
        op.op_class,
        op.phase,
        op.module,
        op.inputs,
        op.outputs,
        cost.total_flops,
        cost.read_bytes,
        cost.write_bytes,
        cost.modeled,
        {pipe: cost.flops[pipe] for pipe in sorted(cost.flops)},
        cost.dense_flops,
        cost.extra_bytes,
        cost.extra_flops,
        cost.kernels,
        cost.least_flops,
        op.arguments,
        op.attributes,
        op.source,
        op.stream,
        op.waits,
        op.again,
    )


def exist(ids: Sequence[int], limit: int, path: str) -> None:
    if ids and max(ids) >= limit:
        raise BadRecord(f"names {max(ids)}, which does not exist", path)


_of_op = attrgetter(*(f.name for f in fields(Op)))


def read_graph(row: GraphRow, where: str) -> Costed:
    """The graph of a row, and the costs of its ops; refuses ids that are out of order or name nothing."""
    values = []
    specs: dict[TensorSpec, TensorSpec] = {}
    for i, (key, value) in enumerate(row.values.items()):
        if key != str(i):
            raise BadRecord(f"must be numbered in order; found {key[:40]!r} where {i} was due", f"{where}.values")
        exist((value.storage,), len(row.storages), f"{where}.values.{i}.storage")
        shape, strides, dtype = value.shape, value.strides, value.dtype
        spec = contiguous(shape, dtype) if strides is None else TensorSpec(shape, strides, dtype)
        values.append(Value(i, specs.setdefault(spec, spec), value.storage, value.offset))
    shared: dict[str, Mapping[str, Any]] = {}  # one object for equal attributes
    for i, op in enumerate(row.ops):
        op.attributes = shared.setdefault(repr(op.attributes), op.attributes)
        if op.id != i:
            raise BadRecord("is out of order", f"{where}.ops[{i}].id")
        exist(op.inputs, len(values), f"{where}.ops[{i}].inputs")
        exist(op.outputs, len(values), f"{where}.ops[{i}].outputs")
    for name in ("inputs", "parameters", "outputs"):
        exist(getattr(row, name), len(values), f"{where}.{name}")
    storages = tuple(Storage(i, *stored) for i, stored in enumerate(row.storages))
    ops = tuple(Op(*_of_op(op)) for op in row.ops)
    graph = Graph(
        tuple(values),
        storages,
        ops,
        row.inputs,
        row.parameters,
        row.outputs,
        row.free_calls,
        row.attention,
        row.backends,
        row.gradients,
        row.one_program,
    )
    return graph, _with_launches(graph, row.ops)


def read_attention(row: AttentionRow, graph: Graph, torch: TorchVersion) -> LowerableGraph:
    """The traced graph and its kinds of calls; each form of a kind must fit it."""
    ops: list[Op] = []
    done = 0
    for span in row.ops:
        if not done <= span.start < span.stop <= len(graph.ops):
            raise BadRecord(f"names ops {span.start} to {span.stop}", "attention.ops")
        exist((*span.inputs, *span.outputs), row.values, "attention.ops")
        ops += graph.ops[done : span.start]
        first, done = graph.ops[span.start], span.stop
        ops.append(
            Op(
                done - 1,
                span.name,
                classify(span.name),
                first.phase,
                first.module,
                span.inputs,
                span.outputs,
                span.arguments,
                span.attributes,
                first.source,
                first.stream,
                first.waits,
                first.again,
            )
        )
    ops += graph.ops[done:]
    numbers = {op.id: i for i, op in enumerate(ops)}
    traced = replace(
        graph,
        values=graph.values[: row.values],
        storages=graph.storages[: row.storages],
        ops=tuple(_renumbered(op, i, numbers) for i, op in enumerate(ops)),
        free_calls=row.free_calls,
        backends=(),
    )
    kinds = []
    for saved in row.kinds:
        exist((saved.op, saved.backward or 0), len(ops), "attention.kinds")
        forms = {name: read_graph(form, "attention.kinds")[0] for name, form in saved.forms.items()}
        kinds.append(CallKind(saved.op, saved.backward, forms))
    found = LowerableGraph(traced, tuple(kinds), torch, row.preferred)
    if found.lower(graph.backends, graph.attention).ops != graph.ops:
        raise BadRecord("is not what graph.ops was made of", "attention")
    for i, kind in enumerate(kinds):
        _check_forms(traced, kind, torch, f"attention.kinds[{i}]")
        lacking = set(call_of(traced, traced.ops[kind.op]).backends(torch)) - set(kind.forms)
        if lacking:
            raise BadRecord(f" lacks {', '.join(sorted(lacking))}", f"attention.kinds[{i}].forms")
    return found


def _renumbered(op: Op, number: int, numbers: Mapping[int, int]) -> Op:
    waits = tuple([numbers.get(each, 0) for each in op.waits])
    return op if (op.id, op.waits) == (number, waits) else replace(op, id=number, waits=waits)


def _check_forms(traced: Graph, kind: CallKind, torch: TorchVersion, where: str) -> None:
    """Whether every form has the inputs and results of its calls."""
    some = [traced.ops[i] for i in (kind.op, kind.backward) if i is not None]
    alone = replace(traced, ops=tuple(replace(op, id=i) for i, op in enumerate(some)))
    for name in kind.forms:
        one = replace(kind, op=0, backward=None if kind.backward is None else 1, forms={name: kind.forms[name]})
        try:
            LowerableGraph(alone, (one,), torch).lower((name,), "")
        except (ValueError, LookupError) as error:
            raise BadRecord(f": {name} does not fit its calls ({type(error).__name__}: {error})", where) from None


def _cost(row: _Op) -> Cost:
    flops = dict(row.pipes)
    if flops and row.extra_flops:
        flops[max(flops, key=flops.__getitem__)] += row.extra_flops
    spared_flops = 0 if row.least_flops is None else max(row.flops - row.least_flops, 0)
    whole = Plain(
        read_bytes=row.read_bytes + row.extra_bytes,
        write_bytes=row.write_bytes,
        count=row.kernels,
        flops=flops,
        spared_flops=spared_flops,
    )
    return Cost(row.pipes, row.read_bytes, row.write_bytes, row.modeled, row.dense_flops, launches=(whole,))


def _with_launches(graph: Graph, rows: Sequence[_Op]) -> tuple[Cost, ...]:
    """The costs with their launches, recomputed by the formulas: a record holds only counts. An op without a formula,
    or with one that now counts other FLOPs or bytes, keeps what was saved, as one streaming kernel; FLOPs of a pipe
    that the formula did not count then change no launch."""
    try:
        fresh: Sequence[Cost | None] = graph_costs(graph)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # damage that no check above found
        fresh = [None] * len(rows)
    return tuple(_as_saved(cost, row) or _cost(row) for row, cost in zip(rows, fresh, strict=True))


def _as_saved(cost: Cost | None, row: _Op) -> Cost | None:
    """The cost with the FLOPs that were saved; None where it counts something otherwise."""
    if cost is None or (cost.read_bytes, cost.write_bytes, cost.modeled) != (
        row.read_bytes,
        row.write_bytes,
        row.modeled,
    ):
        return None
    if cost.flops == row.pipes:
        return cost
    known = bool(row.pipes) and all(cost.flops.get(pipe) == count for pipe, count in row.pipes.items())
    return replace(cost, flops=row.pipes) if known else None
