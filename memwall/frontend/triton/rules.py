"""What an operation of Triton's IR makes of its operands, a row each: shapes move, integers are followed, and of floats
only the conditions under which they were loaded.

FLOPs are counted as :mod:`memwall.ops.elementwise` states: an add, a product or a transcendental call is one for each
element, a comparison, a selection, a conversion or a change of sign none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from memwall.frontend.triton import values
from memwall.frontend.triton.ir import Operation, Type
from memwall.frontend.triton.values import LIMIT, Array, Known

#: what a rule is given: the operation, its operands, the type of its result, and the axes of programs and loops
Rule = Callable[[Operation, Sequence[Known], Type, int], Known]


def _kinds(kind: str, flops: int, names: str) -> dict[str, tuple[str, int]]:
    return dict.fromkeys(names.split(), (kind, flops))


#: operation on floats → what kind of work it is, and its FLOPs for each element
FLOPS: Mapping[str, tuple[str, int]] = {
    **_kinds("arithmetic", 1, "arith.addf arith.subf arith.mulf arith.divf arith.remf tt.precise_divf"),
    **_kinds("arithmetic", 2, "math.fma"),
    **_kinds("transcendental", 1, "math.exp math.exp2 math.log math.log2 math.sin math.cos math.sqrt math.rsqrt"
             " math.erf math.tanh math.powf math.expm1 math.log1p tt.precise_sqrt tt.extern_elementwise"),
}  # fmt: skip


def _splat(op: Operation, given: Sequence[Known], kind: Type, depth: int) -> Known:
    return given[0].shaped(kind, lambda array: array.reshape(array.shape + (1,) * len(kind.shape)))


def _expand(op: Operation, given: Sequence[Known], kind: Type, depth: int) -> Known:
    axis = op.integer("axis")
    return given[0].shaped(kind, lambda array: np.expand_dims(array, depth + axis))


def _same(op: Operation, given: Sequence[Known], kind: Type, depth: int) -> Known:
    """The operand in another type: a broadcast, a cast between integers."""
    return given[0].shaped(kind, lambda array: array)


def _transposed(op: Operation, given: Sequence[Known], kind: Type, depth: int) -> Known:
    order = [int(axis) for axis in op.text.partition("i32:")[2].partition(">")[0].split(",")]
    axes = (*range(depth), *(depth + axis for axis in order))
    return given[0].shaped(kind, lambda array: np.transpose(array, axes))


def _reshaped(op: Operation, given: Sequence[Known], kind: Type, depth: int) -> Known:
    block = given[0].kind.shape

    def change(array: Array) -> Array:
        outer = array.shape[:depth]
        if all(size == 1 for size in array.shape[depth:]):
            return array.reshape(outer + (1,) * len(kind.shape))
        full = np.broadcast_to(array, (*outer, *block))
        full.size > LIMIT and values.whole([full])
        return full.reshape((*outer, *kind.shape))

    return given[0].shaped(kind, change)


def _joined(op: Operation, given: Sequence[Known], kind: Type, depth: int) -> Known:
    """Two blocks as one with a last axis of two: known where both are one value."""
    a, b = (value.resolved() for value in given)
    if a.is_known and b.is_known and not kind.is_float:
        pair = [np.broadcast_to(values.whole(x.terms), _shape(x, depth)) for x in (a, b)]
        return Known(kind, (np.stack(np.broadcast_arrays(*pair), axis=-1),))
    return replace(unknown(kind, given), live=tuple(np.expand_dims(array, array.ndim) for array in a.live))


def _shape(value: Known, depth: int) -> tuple[int, ...]:
    outer = np.broadcast_shapes(*(part.shape[:depth] for part in value.parts))
    return (*outer, *value.kind.shape)


def unknown(kind: Type, given: Sequence[Known]) -> Known:
    """A value that is not followed: what decides it is kept of integers, where all that does is."""
    if kind.is_float:
        return Known(kind, vague=True, live=_live(given, kind))
    if any(value.late is not None for value in given):
        return Known(kind, vague=True)
    return values.depending(kind, given)


def _live(given: Sequence[Known], kind: Type) -> tuple[Array, ...]:
    """The conditions under which all that an operation reads was loaded: of operands with as many axes."""
    found: dict[int, Array] = {}
    for value in given:
        if len(value.kind.shape) == len(kind.shape):
            found |= {id(array): array for array in value.live}
    return tuple(found.values())


def _integers(function: Callable[..., Known]) -> Rule:
    """A rule for integers; of floats, and where data decides, what is not followed."""

    def rule(op: Operation, given: Sequence[Known], kind: Type, depth: int) -> Known:
        if kind.is_float or any(value.kind.is_float for value in given):
            return unknown(kind, given)
        return function(op, [value.resolved() for value in given], kind)

    return rule


def _add(op: Operation, given: Sequence[Known], kind: Type) -> Known:
    if kind.element == "i1":
        return values.pointwise(kind, np.logical_xor, given)
    return values.add(kind, given[0], given[1], -1 if op.name.endswith("subi") else 1)


def _multiplied(op: Operation, given: Sequence[Known], kind: Type) -> Known:
    return values.both(kind, *given) if kind.element == "i1" else values.multiply(kind, *given)


def _divided(op: Operation, given: Sequence[Known], kind: Type) -> Known:
    return values.divide(kind, given[0], given[1], remainder=".rem" in op.name)


def _shifted(op: Operation, given: Sequence[Known], kind: Type) -> Known:
    a, by = given
    if not (by.is_known and values.size_of(by.terms) == 1):
        return values.depending(kind, given)
    power = replace(by, terms=(np.left_shift(1, by.terms[0]),))
    return (
        values.multiply(kind, a, power) if op.name == "arith.shli" else values.divide(kind, a, power, remainder=False)
    )


def _compared(op: Operation, given: Sequence[Known], kind: Type, depth: int) -> Known:
    a, b = given
    result = Type(a.kind.shape, "i1")
    if op.name == "arith.cmpf" or a.kind.is_float:
        return Known(result, vague=True)
    how = op.text.partition(",")[0]
    if a.is_condition:
        test = np.equal if how == "eq" else np.not_equal
        return values.pointwise(result, test, given)
    return values.compare(result, how, a.resolved(), b.resolved())


def _logical(op: Operation, given: Sequence[Known], kind: Type, depth: int) -> Known:
    """``and``, ``or`` and ``xor`` of conditions, and of integers where a mask of low bits is a remainder."""
    name = op.name.removeprefix("arith.")
    if kind.element == "i1":
        if name == "andi":
            return values.both(kind, *given)
        return values.pointwise(kind, np.logical_or if name == "ori" else np.logical_xor, given)
    a, b = (value.resolved() for value in given)
    if not (a.is_known and b.is_known):
        return values.depending(kind, (a, b))
    if name == "andi" and values.size_of(b.terms) == 1 and (low := int(b.terms[0].flat[0])) & (low + 1) == 0 < low:
        return values.divide(kind, a, replace(b, terms=(b.terms[0] + 1,)), remainder=True)
    if values.size_of((*a.terms, *b.terms)) > values.EAGER:
        return values.depending(kind, (a, b))
    functions: dict[str, Any] = {"andi": np.bitwise_and, "ori": np.bitwise_or, "xori": np.bitwise_xor}
    return values.pointwise(kind, functions[name], (a, b))


def _selected(op: Operation, given: Sequence[Known], kind: Type, depth: int) -> Known:
    condition, a, b = given
    if kind.is_float:
        return unknown(kind, (a, b))
    condition, a, b = (value.resolved() for value in given)
    if kind.pointee and a.base != b.base and condition.is_known:
        holds = values.held(condition.terms)
        values.part_by(holds)
        if holds.all() or not holds.any():
            return a if holds.all() else b
    if kind.pointee or not all(value.is_known for value in (condition, a, b)):
        return replace(unknown(kind, (condition, a, b)), base=values.same_base(a, b))
    scalar = len(condition.kind.shape) < len(kind.shape)
    if scalar:
        condition = _splat(op, (condition,), Type(kind.shape, "i1"), depth)
    return values.pointwise(kind, lambda c, x, y: np.where(c, x, y), (condition, a, b))


def _widened(op: Operation, given: Sequence[Known], kind: Type, depth: int) -> Known:
    """A cast between integers; one of a condition makes a number of it."""
    if kind.is_float or given[0].kind.is_float:
        return unknown(kind, given)
    if given[0].is_condition and kind.element != "i1":
        return values.pointwise(kind, lambda array: array.astype(np.int64), (given[0].resolved(),))
    if kind.element == "i1":
        return values.pointwise(kind, lambda array: array % 2 == 1, (given[0].resolved(),))
    return _same(op, given, kind, depth)


def _smaller(function: Callable[..., Array]) -> Rule:
    return _integers(lambda op, given, kind: _extreme(function, given, kind))


def _extreme(function: Callable[..., Array], given: Sequence[Known], kind: Type) -> Known:
    a, b = given
    if a.is_known and b.is_known:
        (low, high), (least, most) = values.span(a.terms), values.span(b.terms)
        for first, second, one in ((high, least, a), (most, low, b)):
            if first <= second:
                return one if function is np.minimum else (b if one is a else a)
    return values.pointwise(kind, function, given)


def _constant(op: Operation, given: Sequence[Known], kind: Type, depth: int) -> Known:
    """A number, the same for all elements (``dense<32>``); anything else is not followed."""
    text = op.text.split(" {")[0].removeprefix("dense<").removesuffix(">").strip()
    if text in ("true", "false"):
        return Known(Type(kind.shape, "i1"), (np.full((1,) * (depth + len(kind.shape)), text == "true"),))
    if kind.is_float:
        return Known(kind, vague=True)
    try:
        return values.number(kind, int(text, 0), depth)
    except ValueError:
        return Known(kind, vague=True)


def _range(op: Operation, given: Sequence[Known], kind: Type, depth: int) -> Known:
    numbers = np.arange(op.integer("start"), op.integer("end"), dtype=np.int64)
    return Known(kind, (numbers.reshape((1,) * depth + numbers.shape),))


def _each(rule: Rule, names: str, dialect: str = "arith") -> dict[str, Rule]:
    return {name if "." in name else f"{dialect}.{name}": rule for name in names.split()}


#: operation → what it makes; one that is not here is not followed
RULES: Mapping[str, Rule] = {
    **_each(_integers(_add), "addi subi tt.addptr tt.advance"),
    **_each(_integers(_multiplied), "muli"),
    **_each(_integers(_divided), "divsi divui remsi remui"),
    **_each(_integers(_shifted), "shli shrsi shrui"),
    **_each(_smaller(np.minimum), "minsi minui"),
    **_each(_smaller(np.maximum), "maxsi maxui"),
    **_each(_integers(lambda op, given, kind: values.pointwise(
        kind, lambda x, y: -(-x // np.where(y == 0, 1, y)), given)), "ceildivsi ceildivui"),
    **_each(_compared, "cmpi cmpf"),
    **_each(_logical, "andi ori xori"),
    **_each(_selected, "select"),
    **_each(_widened, "extsi extui trunci index_cast index_castui tt.bitcast bitcast"),
    "arith.constant": _constant,
    "tt.make_range": _range,
    "tt.splat": _splat,
    "tt.expand_dims": _expand,
    "tt.broadcast": _same,
    "tt.trans": _transposed,
    "tt.reshape": _reshaped,
    "tt.join": _joined,
}  # fmt: skip
