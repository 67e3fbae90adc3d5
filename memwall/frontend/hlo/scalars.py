"""Scalars that can be told without a run: counters of loops, and whether a loop goes on."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

from memwall.frontend.hlo.module import HloComputation, HloInstruction, HloModule
from memwall.frontend.hlo.names import ELEMENTWISE

#: what is known of scalars: a number, nothing, or this of each part of a tuple
Known = float | None | tuple["Known", ...]

#: primitive → what it makes of numbers
SCALARS: Mapping[str, Callable[..., float]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg, "max": max, "min": min,
    "div": lambda a, b: a // b if b else 0, "rem": lambda a, b: a % b if b else 0, "copy": lambda a: a,
    "convert_element_type": lambda a: a, "select_n": lambda which, on, off: on if which else off,
    "clamp": lambda low, a, high: min(max(a, low), high), "eq": operator.eq, "ne": operator.ne, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


def number_of(literal: str) -> float | None:
    """The number of a scalar constant."""
    if literal in ("true", "false"):
        return float(literal == "true")
    try:
        return float(literal)
    except ValueError:
        return None


def primitive_of(one: HloInstruction) -> str:
    """The primitive of an operation on each element; empty of others."""
    if one.opcode == "compare":
        return one.attributes["direction"].lower()
    return ELEMENTWISE.get(one.opcode.replace("-", "_"), "")


def folded(primitive: str, numbers: Sequence[Known]) -> float | None:
    """The result of a primitive on numbers, where all are known."""
    rule = SCALARS.get(primitive)
    if rule is None or not all(isinstance(number, float | int) for number in numbers):
        return None
    return float(rule(*numbers))


def evaluated(module: HloModule, computation: HloComputation, arguments: Sequence[Known]) -> Known:
    """What is known of a computation's result, from what is known of its arguments."""
    found: dict[str, Known] = {}
    for one in computation.instructions:
        given = [found[name] for name in one.operands]
        known: Known = None
        if one.opcode == "parameter":
            known = arguments[int(one.literal)]
        elif one.opcode == "constant":
            known = number_of(one.literal)
        elif one.opcode == "tuple":
            known = tuple(given)
        elif one.opcode == "get-tuple-element":
            known = given[0][int(one.attributes["index"])] if isinstance(given[0], tuple) else None
        elif one.opcode in ("fusion", "call"):
            known = evaluated(module, module.computations[one.called[0]], given)
        elif one.opcode in ("bitcast", "reshape"):
            known = given[0]
        elif primitive := primitive_of(one):
            known = folded(primitive, given)
        found[one.name] = known
    return found[computation.root]
