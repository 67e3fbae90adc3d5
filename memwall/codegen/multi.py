"""Ops over lists of tensors (multi-tensor optimizers) → one launch that walks over every tensor of the lists.

Every list value at one position goes through the whole chain of ops in registers, in float32 (float64 where a tensor
is), and only what the group writes is stored. A table holds the addresses, one row per tensor; a second one assigns
a chunk of a tensor to each thread block. Positions that need other code (other dtypes) get their own launch. The
tensors of a position must be dense and hold their elements in one memory order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memwall.codegen.kernel import Kernel, Launch, NotGenerated
from memwall.codegen.multi_optimizers import FUSED, NUMBERS
from memwall.codegen.multi_text import Operand, Variant, source_of
from memwall.core.flow import Flow
from memwall.core.graph import Graph, Op, TensorSpec, Value
from memwall.fusion import Group
from memwall.fusion.rules import aligned
from memwall.hardware.chips import chip_of
from memwall.hardware.lookup import Gpu
from memwall.ops.expressions import Operands, write
from memwall.ops.registry import find_row

#: elements that a thread handles in one pass: a load of 16 bytes where they are of 2 bytes
_PER_THREAD = 8
#: thread blocks per multiprocessor, so that none idles at the end, and the most elements of one block
_PROGRAMS_PER_SM, _MAX_CHUNK = 64, 16384


def multi_kernel(graph: Graph, flow: Flow, group: Group, gpu: Gpu) -> Kernel:
    """The kernel of a group of ``aten._foreach_*`` ops, or of one optimizer step (``aten._fused_adamw_`` and the like).

    Raises:
        NotGenerated: an op without a rule, tensors of one position laid out differently, or other than floats.
    """
    lists = Lists(graph, flow, group)
    variants = _variants(lists.rows())
    places: dict[int, int] = {}
    for value_id in (i for variant in variants for ids in variant.inputs for i in ids):
        places.setdefault(value_id, len(places))
    config = _config(sum(sum(variant.sizes) for variant in variants), gpu)
    return Kernel(
        name=f"lists_{'_'.join(packet_of(op.name) for op in lists.ops)}",
        source=source_of(variants, places, config),
        inputs=tuple(places),
        outputs=tuple(i for variant in variants for ids in variant.outputs for i in ids),
        op_ids=group.op_ids,
        launches=tuple(_launch(variant, config) for variant in variants),
        schedule="tensor list",
        config=config,
        configs=_configs(config),
    )


def covers(name: str) -> bool:
    """Whether an op over lists of tensors has a rule."""
    packet = packet_of(name)
    if not name.startswith("aten._foreach_"):
        return packet in FUSED
    row = find_row(f"aten.{packet}")
    return packet == "zero" or (row is not None and row.expression is not None)


# -- blocks ----------------------------------------------------------------------------------------------------------


def _config(elements: int, gpu: Gpu) -> dict[str, int]:
    warps = 4
    block = _PER_THREAD * warps * chip_of(gpu).warp_size
    chunk = block
    while chunk < _MAX_CHUNK and elements > chunk * _PROGRAMS_PER_SM * gpu.sm_count:
        chunk *= 2
    return {"BLOCK": block, "CHUNK": chunk, "NUM_WARPS": warps}


def _configs(chosen: dict[str, int]) -> tuple[dict[str, int], ...]:
    """The chosen configuration, twice the threads, and twice the threads for as many elements."""
    block, warps = 2 * chosen["BLOCK"], 2 * chosen["NUM_WARPS"]
    wide = {"BLOCK": block, "CHUNK": max(chosen["CHUNK"], block), "NUM_WARPS": warps}
    return chosen, wide, {**chosen, "NUM_WARPS": warps}


def _launch(variant: Variant, config: dict[str, int]) -> Launch:
    chunks = sum(-(-n // config["CHUNK"]) for n in variant.sizes)
    numbers = (("numbers", "*fp64"),) if variant.numbers else ()
    return Launch(
        variant.function,
        (("rows", "*i64"), ("blocks", "*i32"), *numbers),
        {"BLOCK": config["BLOCK"], "CHUNK": config["CHUNK"]},
        (chunks,),
        config["NUM_WARPS"],
    )


# -- variants --------------------------------------------------------------------------------------------------------


def _variants(rows: Sequence[Row]) -> list[Variant]:
    """Rows that run the same code, together."""
    refuse_races(rows)
    classes: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if not any(column.stored for column in row.columns):
            raise NotGenerated("nothing is written")
        operands = tuple(_operand(row, column) for column in row.columns)
        classes.setdefault((row.dtype, operands, tuple(row.before), tuple(row.lines)), []).append(row)
    several = len(classes) > 1
    return [
        Variant(
            function=f"update_{n}" if several else "update",
            dtype=key[0],
            operands=key[1],
            before=key[2],
            lines=key[3],
            sizes=tuple(row.elements for row in same),
            inputs=_ids(same, "value"),
            outputs=_ids(same, "output"),
            numbers=tuple(tuple(row.numbers) for row in same) if same[0].numbers else (),
        )
        for n, (key, same) in enumerate(classes.items())
    ]


def _operand(row: Row, column: Column) -> Operand:
    spec = column.value.spec
    like = -1
    if not column.is_given:
        shapes = [(c.value.spec.shape, c.value.spec.strides) if c.is_given else None for c in row.columns]
        if (spec.shape, spec.strides) not in shapes:
            raise NotGenerated("a new tensor is laid out unlike all that are read")
        like = shapes.index((spec.shape, spec.strides))
    return Operand(spec.dtype, column.is_number, column.is_loaded, column.stored, column.output >= 0, like)


def _ids(rows: Sequence[Row], which: str) -> tuple[tuple[int, ...], ...]:
    """The values of all rows for each input or output column."""
    columns = range(len(rows[0].columns))
    if which == "value":
        kept = [n for n in columns if rows[0].columns[n].is_given]
        return tuple(tuple(row.columns[n].value.id for row in rows) for n in kept)
    kept = [n for n in columns if rows[0].columns[n].output >= 0]
    return tuple(tuple(row.columns[n].output for row in rows) for n in kept)


# -- lists → rows -----------------------------------------------------------------------------------------------------

_FLOATS = ("float16", "bfloat16", "float32", "float64")

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
    """The work at one position of the lists: tensors, lines of arithmetic, and per-tensor numbers."""

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
        """The number of a tensor's column, which is new where there is none."""
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
        """The variables that hold results."""
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
        """Argument → its value at a position; a tensor that is not a list is at all of them."""
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
        """A whole optimizer step in each row."""
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
        """Store the latest result for a value, in its memory or in new memory; a gradient that an optimizer only
        claims to write has none."""
        storage = self.graph.storages[value.storage]
        given = self.flow.writer[self.flow.first[value.storage]] not in self.group.op_ids or storage.is_persistent
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
    """The variable of an operand at the position of the result."""
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
    """Whether both have the same memory order."""
    return aligned(Value(0, replace(a, dtype=b.dtype), 0, 0), Value(0, b, 0, 0))


def refuse_races(rows: Sequence[Row]) -> None:
    """Refuse if what one table entry stores is read or stored by another."""
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
