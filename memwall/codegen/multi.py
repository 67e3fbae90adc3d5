"""Ops over lists of tensors (multi-tensor optimizers) → one launch that walks over every tensor of the lists.

Every list value at one position goes through the whole chain of ops in registers, in float32 (float64 where a tensor
is), and only what the group writes is stored. A table holds the addresses, one row per tensor; a second one assigns
a chunk of a tensor to each thread block. Positions that need other code (other dtypes) get their own launch. The
tensors of a position must be dense and hold their elements in one memory order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memwall.codegen.kernel import Kernel, NotGenerated, TritonLaunch
from memwall.codegen.lowering import is_given
from memwall.codegen.multi_text import ListRow, source_of
from memwall.core.flow import Flow
from memwall.core.graph import Graph, Op, Value
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


def multi_kernel(graph: Graph, flow: Flow, group: Group, gpu: Gpu) -> Kernel:
    """The kernel of a group of ``aten._foreach_*`` ops, or of one optimizer step (``aten._fused_adamw_`` and the like).

    Raises:
        NotGenerated: an op without a rule, tensors of one position laid out differently, or other than floats.
    """
    lists = _Lists(graph, flow, group)
    rows = lists.rows()
    _refuse_races(rows)
    classes: dict[Hashable, list[ListRow]] = {}
    for row in rows:
        classes.setdefault(row.code, []).append(row)
    variants = {f"_{n}" if len(classes) > 1 else "": same for n, same in enumerate(classes.values())}
    places: dict[int, int] = {}
    outputs = []
    for same in variants.values():
        for columns in zip(*(row.columns for row in same), strict=True):
            if columns[0].is_given:
                for column in columns:
                    places.setdefault(column.value.id, len(places))
            if columns[0].output >= 0:
                outputs += [column.output for column in columns]
    config, *others = _configs(sum(row.elements for row in rows), gpu)
    return Kernel(
        name=f"lists_{'_'.join(_packet(op.name) for op in lists.ops)}",
        source=source_of(variants, places, config),
        inputs=tuple(places),
        outputs=tuple(outputs),
        op_ids=group.op_ids,
        launches=tuple(_launch(f"update{ending}", same, config) for ending, same in variants.items()),
        schedule="tensor list",
        config=config,
        configs=(config, *others),
    )


def covers(name: str) -> bool:
    """Whether an op over lists of tensors has a rule."""
    packet = _packet(name)
    if not name.startswith("aten._foreach_"):
        return packet in FUSED
    row = find_row(f"aten.{packet}")
    return packet == "zero" or (row is not None and row.expression is not None)


def _configs(elements: int, gpu: Gpu) -> tuple[dict[str, int], ...]:
    """The chosen blocks, twice the threads, and twice the threads for as many elements."""
    warps = 4
    chunk = block = _PER_THREAD * warps * chip_of(gpu).warp_size
    while chunk < _MAX_CHUNK and elements > chunk * _PROGRAMS_PER_SM * gpu.sm_count:
        chunk *= 2
    sizes = ((block, chunk, warps), (2 * block, max(chunk, 2 * block), 2 * warps), (block, chunk, 2 * warps))
    return tuple(dict(zip(("BLOCK", "CHUNK", "NUM_WARPS"), some, strict=True)) for some in sizes)


def _launch(function: str, rows: Sequence[ListRow], config: dict[str, int]) -> TritonLaunch:
    chunks = sum(-(-row.elements // config["CHUNK"]) for row in rows)
    numbers = (("numbers", "*fp64"),) if rows[0].numbers else ()
    constants = {name: config[name] for name in ("BLOCK", "CHUNK")}
    return TritonLaunch(
        function, (("rows", "*i64"), ("blocks", "*i32"), *numbers), constants, (chunks,), config["NUM_WARPS"]
    )


def _refuse_races(rows: Sequence[ListRow]) -> None:
    """Refuse if what one table entry stores is read or stored by another."""
    spans: dict[int, dict[tuple[int, int, int], bool]] = {}
    for number, row in enumerate(rows):
        for column in row.columns:
            low, high = column.value.byte_range
            if low < high:
                where = number if column.stored or not column.is_number else -1
                storage = spans.setdefault(column.value.storage, {})
                storage[low, high, where] = storage.get((low, high, where), False) or bool(column.stored)
    for storage in spans.values():
        reach = reach_of_stores = 0
        for (low, high, _), is_stored in sorted(storage.items()):
            if low < reach_of_stores or (is_stored and low < reach):
                raise NotGenerated("a tensor is written that is also read through another view or list place")
            reach = max(reach, high)
            reach_of_stores = max(reach_of_stores, high if is_stored else 0)


# -- lists → rows -----------------------------------------------------------------------------------------------------


class _Lists:
    """Turns the ops of a group into rows."""

    def __init__(self, graph: Graph, flow: Flow, group: Group) -> None:
        self.graph, self.flow, self.group = graph, flow, group
        self.ops = [graph.ops[i] for i in sorted((*group.op_ids, *group.recomputes))]
        for op in self.ops:
            if not op.name.startswith("aten._foreach_") and (_packet(op.name) not in FUSED or len(self.ops) > 1):
                raise NotGenerated(f"{op.name} is no op over lists of tensors with a rule")
        lengths = {len(self._targets(op)) for op in self.ops}
        if len(lengths) != 1:
            raise NotGenerated("its lists of tensors differ in length")
        self.length = lengths.pop()
        if not self.length:
            raise NotGenerated("an optimizer without parameters")

    def _targets(self, op: Op) -> tuple[int, ...]:
        """The list that gives each position its size: the results, or the parameters of an optimizer."""
        if _packet(op.name) not in FUSED:
            return op.outputs
        return tuple(i for name, i in zip(op.arguments, op.inputs, strict=True) if name == "self")

    def rows(self) -> list[ListRow]:
        """One row for each position of the lists."""
        values = self.graph.values
        numels = [values[i].spec.numel for i in self._targets(self.ops[0])]
        rows = [ListRow(numel, self._compute_dtype(number)) for number, numel in enumerate(numels)]
        for op in self.ops:
            self._add(op, rows)
        for op in reversed(self.ops):
            versions = dict(self.flow.writes[op.id])
            for place, value_id in enumerate(op.outputs):  # one list after another
                if value_id in self.group.writes:
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
                raise NotGenerated(f"{name} of {_packet(op.name)} is a list of another length")
            found[name] = op.inputs[start + (number if count > 1 else 0)]
        return found

    def _add(self, op: Op, rows: Sequence[ListRow]) -> None:
        """An op's line of arithmetic in each row, or a whole optimizer step."""
        packet, values = _packet(op.name), self.graph.values
        fused = FUSED.get(packet)
        renamed = {} if fused else {**_NAMESAKE, **_NAMESAKES.get(packet, {})}
        given = {renamed.get(name, name): value for name, value in op.attributes.items()}
        listed = {name: value for name, value in given.items() if isinstance(value, (tuple, list))}
        equal = {name: numbers[0] for name, numbers in listed.items() if len(set(numbers)) == 1}
        fixed = {name: value for name, value in given.items() if name not in listed} | equal
        differ = {name: numbers for name, numbers in listed.items() if name not in equal}
        for number, (row, target_id) in enumerate(zip(rows, self._targets(op), strict=True)):
            target = values[target_id]
            if target.spec.numel != row.elements or not target.spec.is_dense:
                raise NotGenerated("tensors with gaps, or of several sizes at one position")
            inputs = self._inputs(op, number)
            names = {renamed.get(name, name): _read(row, values[i], target, name) for name, i in inputs.items()}
            if fused:
                results = fused(row, names, op.attributes)
                row.made = [(values[inputs[name]], variable) for name, variable in results.items()]
                continue
            for name, numbers in differ.items():
                names[name] = f"n{len(row.numbers)}"
                row.numbers.append(float(numbers[number]))
            variable = row.name(packet)
            row.lines.append(f"{variable} = {_text(packet, Operands(names, fixed, row.dtype))}")
            row.made.append((target, variable))

    def _store(self, row: ListRow, value: Value, version: int) -> None:
        """Store the latest result for a value, in its memory or in new memory; a gradient that an optimizer only
        claims to write has none."""
        given = is_given(self.graph, self.flow, value.id, self.group.op_ids)
        if not given and value.spec.nbytes < self.graph.storages[value.storage].nbytes:
            raise NotGenerated("a part of new memory is written")
        column = row.columns[row.column(value, is_given=given)]
        if column.output < 0:
            name = row.read(value)
            column.stored, column.output = name * (name in row.variables), value.id
            if given and column.value.spec != value.spec:
                raise NotGenerated("a tensor is handed on as another view than it was given as")


def _read(row: ListRow, value: Value, target: Value, name: str) -> str:
    """The variable of an operand at the position of the result."""
    if value.spec.numel not in (1, row.elements):
        raise NotGenerated("tensors of several sizes at one position")
    if value.spec.numel > 1 and not aligned(replace(value, offset=target.offset), target):
        raise NotGenerated("tensors of one position hold their elements in different orders")
    return row.read(value, is_number=name in NUMBERS)


def _text(packet: str, operands: Operands) -> str:
    """The arithmetic of the pointwise namesake."""
    if packet == "zero":
        return "0.0"
    row = find_row(f"aten.{packet}")
    if row is None or row.expression is None:
        raise NotGenerated(f"no expression for {packet}")
    return write(row.expression, operands)


def _packet(name: str) -> str:
    """``add`` of ``aten._foreach_add_.Scalar``, ``_fused_adamw`` of ``aten._fused_adamw_``."""
    return name.split(".")[1].removeprefix("_foreach_").rstrip("_")


# -- optimizers that torch has as one op each (``fused=True``), after fused_adam_utils.cuh and FusedSgdKernel.cu. What
# depends only on the step is computed once per thread block, in float64: 1 - beta2 ** step loses its digits in float32

#: arguments that are one number on the device for all elements of a tensor
NUMBERS = frozenset(("state_steps",))

#: (row whose lines to write, argument → variable, attributes) → argument → the variable that it becomes
Rule = Callable[[ListRow, Mapping[str, str], Mapping[str, Any]], dict[str, str]]


def _gradient(names: Mapping[str, str], given: Mapping[str, Any], decay: float) -> str:
    """The gradient with its sign, and weight decay where that is added to it."""
    for name in ("lr", "grad_scale", "found_inf"):
        if name in names:
            raise NotGenerated(f"a fused optimizer whose {name} is a tensor")
    sign = "-" if given.get("maximize") else ""
    decayed = f" + {decay!r} * {names['self']}" if decay else ""
    return f"grad = {sign}{names['grads']}{decayed}"


def _adam(is_decoupled: bool) -> Rule:
    """Adam; with decoupled weight decay AdamW."""

    def rule(row: ListRow, names: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, str]:
        lr, decay = float(given["lr"]), float(given.get("weight_decay", 0))
        row.lines.append(_gradient(names, given, 0.0 if is_decoupled else decay))
        for name, beta, text in (
            ("step_size", given["beta1"], f"{lr!r} / (1.0 - {{power}})"),
            ("scale", given["beta2"], "tl.sqrt(1.0 - {power})"),
        ):
            steps = f"{names['state_steps']}.to(tl.float64)"
            power = f"tl.exp2({steps} * ({math.log2(beta)!r}))" if beta else f"0.0 * {steps}"
            row.before.append(f"{name} = ({text.format(power=power)}).to(tl.{row.dtype})")
        shrunk = f" * {1 - lr * decay!r}" if is_decoupled and decay else ""
        first, second = names["exp_avgs"], names["exp_avg_sqs"]
        row.lines += [
            f"exp_avg = {first} + {1 - given['beta1']!r} * (grad - {first})",
            f"exp_avg_sq = {second} + {1 - given['beta2']!r} * (grad * grad - {second})",
        ]
        results = {"exp_avgs": "exp_avg", "exp_avg_sqs": "exp_avg_sq", "self": "param"}
        square = "exp_avg_sq"
        if given.get("amsgrad"):
            square = results["max_exp_avg_sqs"] = "max_exp_avg_sq"
            largest = f"{names['max_exp_avg_sqs']}, exp_avg_sq, propagate_nan=tl.PropagateNan.ALL"
            row.lines.append(f"{square} = tl.maximum({largest})")
        row.lines += [
            f"denominator = tl.sqrt({square}) / scale + {float(given['eps'])!r}",
            f"param = {names['self']}{shrunk} - step_size * exp_avg / denominator",
        ]
        return results

    return rule


def _sgd(row: ListRow, names: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, str]:
    momentum, results = float(given.get("momentum", 0)), {}
    row.lines.append(_gradient(names, given, float(given.get("weight_decay", 0))))
    direction = "grad"
    if momentum:
        kept = 1 - float(given.get("dampening", 0))
        speed = f"{momentum!r} * {names['momentum_buffer_list']} + {f'{kept!r} * ' * (kept != 1)}grad"
        row.lines.append(f"speed = {'grad' if given.get('is_first_step') else speed}")
        results["momentum_buffer_list"] = direction = "speed"
        if given.get("nesterov"):
            row.lines.append(f"ahead = grad + {momentum!r} * speed")
            direction = "ahead"
    row.lines.append(f"param = {names['self']} - {float(given['lr'])!r} * {direction}")
    return results | {"self": "param"}


#: op → rule
FUSED: Mapping[str, Rule] = {
    "_fused_adam": _adam(is_decoupled=False),
    "_fused_adamw": _adam(is_decoupled=True),
    "_fused_sgd": _sgd,
}
