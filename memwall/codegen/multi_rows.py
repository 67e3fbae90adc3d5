"""Lists of tensors → one row for each position: the tensors that lie there and the arithmetic on their elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from memwall.codegen.kernel import NotGenerated
from memwall.codegen.multi_fused import FUSED, NUMBERS
from memwall.core.flow import Flow
from memwall.core.graph import Graph, Op, TensorSpec, Value
from memwall.fusion import Group
from memwall.fusion.rules import aligned
from memwall.ops.expressions import Operands, write
from memwall.ops.registry import find_row

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_PERSISTENT = frozenset(("parameter", "buffer", "input", "optimizer_state"))

#: what the lists and numbers of a ``_foreach_`` op are called in its pointwise namesake
_NAMESAKES = {
    "lerp": {"tensors1": "end", "weights": "weight", "scalars": "weight"},
    "addcmul": {"scalars": "value"},
    "addcdiv": {"scalars": "value"},
    "clamp_min": {"scalar": "min", "scalars": "min", "other": "min"},
    "clamp_max": {"scalar": "max", "scalars": "max", "other": "max"},
    "pow": {"scalar": "exponent"},
}
_NAMESAKE = {"scalar": "other", "scalars": "other"}


@dataclass
class Column:
    """A tensor of one row. ``is_number``: one element for all of the row's. ``is_given``: it exists before the kernel.
    ``stored`` is the variable that is stored to it, as the value ``output``."""

    value: Value
    is_number: bool
    is_given: bool = True
    is_loaded: bool = False
    stored: str = ""
    output: int = -1


@dataclass
class Row:
    """What happens at one position of the lists: tensors, lines of arithmetic, and per-tensor numbers."""

    elements: int
    columns: list[Column] = field(default_factory=list)
    #: for the tensor as a whole, and for each of its elements
    before: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    #: values made so far with the variable that holds them, the latest last
    made: list[tuple[Value, str]] = field(default_factory=list)
    dtype: str = "float32"

    def column(self, value: Value, *, is_given: bool = True, is_number: bool = False) -> int:
        """The number of the column of a tensor; a new one where there is none."""
        for number, column in enumerate(self.columns):
            if column.value.storage == value.storage and _same_place(column.value, value):
                return number
        self.columns.append(Column(value, is_number or value.spec.numel == 1 != self.elements, is_given))
        return len(self.columns) - 1

    def read(self, value: Value, *, is_number: bool = False) -> str:
        """The variable that holds a value."""
        for made, name in reversed(self.made):
            if made.storage == value.storage and _same_place(made, value):
                return name
            if made.storage == value.storage and _overlap(made, value):
                raise NotGenerated("a tensor is read otherwise than it was written")
        number = self.column(value, is_number=is_number)
        self.columns[number].is_loaded = True
        return f"x{number}"

    @property
    def variables(self) -> set[str]:
        """Those that hold what was made."""
        return {name for _, name in self.made}

    def name(self, wanted: str) -> str:
        """A variable that is not taken."""
        taken = self.variables
        names = (wanted if n == 1 else f"{wanted}_{n}" for n in range(1, len(taken) + 2))
        return next(name for name in names if name not in taken)


def _same_place(a: Value, b: Value) -> bool:
    return a.spec.dtype == b.spec.dtype and a.spec.numel == b.spec.numel and aligned(a, b)


def _overlap(a: Value, b: Value) -> bool:
    (low, high), (start, stop) = a.byte_range, b.byte_range
    return low < stop and start < high


class Lists:
    """Turns the ops of a group into rows."""

    def __init__(self, graph: Graph, flow: Flow, group: Group) -> None:
        self.graph, self.flow, self.group = graph, flow, group
        self.ops = [graph.ops[i] for i in sorted((*group.op_ids, *group.recomputes))]
        for op in self.ops:
            if not op.name.startswith("aten._foreach_") and (packet_of(op.name) not in FUSED or len(self.ops) > 1):
                raise NotGenerated(f"{op.name} is no op over lists of tensors with a rule")
        lengths = {len(self._targets(op)) for op in self.ops}
        if len(lengths) != 1:
            raise NotGenerated("its lists of tensors differ in length")
        self.length = lengths.pop()
        self.first_version: dict[int, int] = {}
        for version, storage in enumerate(flow.storage):
            self.first_version.setdefault(storage, version)

    def _targets(self, op: Op) -> tuple[int, ...]:
        """The list that gives each position its size: the results, or the parameters of an optimizer."""
        if packet_of(op.name) not in FUSED:
            return op.outputs
        return tuple(i for name, i in zip(op.arguments, op.inputs, strict=True) if name == "self")

    def rows(self) -> list[Row]:
        """One row for each position of the lists."""
        values = self.graph.values
        rows = [Row(values[i].spec.numel) for i in self._targets(self.ops[0])]
        for number, row in enumerate(rows):
            row.dtype = self._compute_dtype(number)
        for op in self.ops:
            if packet_of(op.name) in FUSED:
                self._add_optimizer(op, rows)
            else:
                self._add(op, rows)
        written = frozenset(self.group.writes)
        for op in reversed(self.ops):
            versions = dict(self.flow.writes[op.id])
            for place, value_id in enumerate(op.outputs):  # one list after another
                if value_id in written:
                    self._store(rows[place % self.length], values[value_id], versions[value_id])
        return rows

    def _compute_dtype(self, number: int) -> str:
        dtypes = {self.graph.values[op.outputs[number]].spec.dtype for op in self.ops}
        for op in self.ops:
            dtypes.update(self.graph.values[i].spec.dtype for i in self._inputs(op, number).values())
        other = sorted(dtypes.difference(_FLOATS))
        if other:
            raise NotGenerated(f"lists of {other[0]}")
        return "float64" if "float64" in dtypes else "float32"

    def _inputs(self, op: Op, number: int) -> dict[str, int]:
        """Argument → its value at a position; a tensor that is no list stands at all of them."""
        found = {}
        for name in dict.fromkeys(op.arguments):
            start, count = op.arguments.index(name), op.arguments.count(name)
            if count not in (1, self.length):
                raise NotGenerated(f"{name} of {packet_of(op.name)} is a list of another length")
            found[name] = op.inputs[start + (number if count > 1 else 0)]
        return found

    def _add(self, op: Op, rows: Sequence[Row]) -> None:
        """One line of arithmetic in each row."""
        packet, values = packet_of(op.name), self.graph.values
        renamed = {**_NAMESAKE, **_NAMESAKES.get(packet, {})}
        fixed = {renamed.get(k, k): v for k, v in op.attributes.items() if not isinstance(v, (tuple, list))}
        per_tensor = {renamed.get(k, k): v for k, v in op.attributes.items() if isinstance(v, (tuple, list))}
        for name in [name for name, numbers in per_tensor.items() if len(set(numbers)) == 1]:
            fixed[name] = per_tensor.pop(name)[0]
        for number, row in enumerate(rows):
            target = values[op.outputs[number]]
            _check(row, target)
            arguments = {}
            for name, value_id in self._inputs(op, number).items():
                arguments[renamed.get(name, name)] = _read(row, values[value_id], target)
            for name, numbers in per_tensor.items():
                arguments[name] = f"n{len(row.numbers)}"
                row.numbers.append(float(numbers[number]))
            text = "0.0" if packet == "zero" else _text(packet, Operands(arguments, fixed, row.dtype))
            variable = row.name(packet)
            row.lines.append(f"{variable} = {text}")
            row.made.append((target, variable))

    def _add_optimizer(self, op: Op, rows: Sequence[Row]) -> None:
        """A whole step in each row."""
        values = self.graph.values
        for number, row in enumerate(rows):
            inputs = {name: values[i] for name, i in self._inputs(op, number).items()}
            _check(row, inputs["self"])
            names = {
                name: _read(row, value, inputs["self"], is_number=name in NUMBERS) for name, value in inputs.items()
            }
            step = FUSED[packet_of(op.name)](names, op.attributes, row.dtype)
            row.before, row.lines = step.before, step.lines
            row.made = [(inputs[name], variable) for name, variable in step.results.items()]

    def _store(self, row: Row, value: Value, version: int) -> None:
        """Store the latest that was made of a value, in the memory that it has or in new memory; none was made of a
        gradient that an optimizer says it writes."""
        storage = self.graph.storages[value.storage]
        before = self.first_version[value.storage]
        given = self.flow.writer[before] not in self.group.op_ids or storage.role in _PERSISTENT
        if not given and value.spec.nbytes < storage.nbytes:
            raise NotGenerated("a part of new memory is written")
        column = row.columns[row.column(value, is_given=given)]
        if column.output < 0:
            name = row.read(value)
            column.stored, column.output = name * (name in row.variables), value.id
            if given and column.value.spec != value.spec:
                raise NotGenerated("a tensor is handed on as another view than it was given as")


def _check(row: Row, value: Value) -> None:
    if value.spec.numel != row.elements or not _is_dense(value.spec):
        raise NotGenerated("tensors with gaps, or of several sizes at one position")


def _read(row: Row, value: Value, target: Value, *, is_number: bool = False) -> str:
    """The variable of an operand at the place of what is made of it."""
    if value.spec.numel not in (1, row.elements):
        raise NotGenerated("tensors of several sizes at one position")
    if value.spec.numel > 1 and not _same_order(value.spec, target.spec):
        raise NotGenerated("tensors of one position hold their elements in different orders")
    return row.read(value, is_number=is_number)


def _text(packet: str, operands: Operands) -> str:
    """The arithmetic of the pointwise namesake."""
    row = find_row(f"aten.{packet}")
    if row is None or row.expression is None:
        raise NotGenerated(f"no expression for {packet}")
    return write(row.expression, operands)


def packet_of(name: str) -> str:
    """``add`` of ``aten._foreach_add_.Scalar``, ``_fused_adamw`` of ``aten._fused_adamw_``."""
    return name.split(".")[1].removeprefix("_foreach_").rstrip("_")


def _is_dense(spec: TensorSpec) -> bool:
    """Whether the elements fill a run of memory, in any order."""
    span = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.strides, strict=True))
    return spec.numel == 0 or spec.distinct_elements == spec.numel == span


def _same_order(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether the elements of both lie in memory in the same order."""
    return aligned(Value(0, replace(a, dtype=b.dtype), 0, 0), Value(0, b, 0, 0))


def refuse_races(rows: Sequence[Row]) -> None:
    """What is stored at one place of the tables may be read or stored at no other."""
    spans: dict[int, dict[tuple[int, int, int], bool]] = {}
    for number, row in enumerate(rows):
        for column in row.columns:
            low, high = column.value.byte_range
            if low < high:
                where = number if column.stored or not column.is_number else -1
                key = (low, high, where)
                storage = spans.setdefault(column.value.storage, {})
                storage[key] = storage.get(key, False) or bool(column.stored)
    for storage in spans.values():
        reach = reach_of_stores = 0
        for (low, high, _), is_stored in sorted(storage.items()):
            if low < reach_of_stores or (is_stored and low < reach):
                raise NotGenerated("a tensor is written that is also read through another view or list place")
            reach = max(reach, high)
            reach_of_stores = max(reach_of_stores, high if is_stored else 0)
