"""One table from op name to class and formula. Built by :func:`register_cost`; duplicates are refused.

An op without a formula is kept, marked ``modeled = False`` and charged its bytes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

from memwall.core.errors import UsageError
from memwall.core.graph import Graph, Op, distinct_bytes
from memwall.ops.base import Call, Cost

#: Classes of ops, in the order in which reports list them.
OP_CLASSES = (
    "contraction", "convolution", "attention", "normalization", "reduction",
    "elementwise", "movement", "optimizer", "other",
)  # fmt: skip

Formula = Callable[[Call], Cost]


class Rule(NamedTuple):
    """The class of an op and the formula of its cost."""

    op_class: str
    formula: Formula


_RULES: dict[str, Rule] = {}
_FAMILIES = ("contraction", "convolution", "attention", "normalization", "elementwise", "reduction", "movement",
             "optimizer")  # fmt: skip
_loaded = False


def register_cost(*names: str, op_class: str = "other", replace: bool = False) -> Callable[[Formula], Formula]:
    """Register a formula for one or more ops: ``aten.mm``, or ``mylib::myop`` for your own.

    The formula gets a :class:`Call` and returns a :class:`Cost`, usually ``call.cost({Pipe("vector", "float32"): n})``.
    A name without an overload stands for all its overloads; ``aten.sum.dim_IntList`` for that one.

    Args:
        names: the ops.
        op_class: one of ``OP_CLASSES``, under which reports sum the op.
        replace: put it in the place of a formula that the op has already.

    Raises:
        ValueError: the op has a formula already and ``replace`` is False, or the class is unknown.
    """
    if op_class not in OP_CLASSES:
        raise ValueError(f"unknown op class {op_class!r}; one of {', '.join(OP_CLASSES)}")

    def decorate(formula: Formula) -> Formula:
        _load_families()
        for name in map(_normalize, names):
            if name in _RULES and not replace:
                raise ValueError(f"{name} has a cost formula already; pass replace=True to put yours in its place")
            _RULES[name] = Rule(op_class, formula)
        return formula

    return decorate


def classify(name: str) -> str:
    """The class of an op, ``other`` when no formula knows it."""
    rule = find_rule(name)
    return rule.op_class if rule else "other"


def find_rule(name: str) -> Rule | None:
    """The rule of ``aten.add.Tensor``: that of the overload, else that of ``aten.add``."""
    _load_families()
    return _RULES.get(name) or _RULES.get(_packet(name))


def cost_of(call: Call) -> Cost:
    """The cost of one call; charged its bytes and marked unmodeled where no formula knows it.

    Raises:
        UsageError: a formula that the user registered failed, or returned no :class:`Cost`.
    """
    unmodeled = Cost({}, call.read_bytes, call.write_bytes, modeled=False)
    rule = find_rule(call.name)
    if rule is None:
        return unmodeled
    try:
        cost = rule.formula(call)
    except (LookupError, ArithmeticError, ValueError, TypeError) as error:
        if rule.formula.__module__.startswith("memwall."):
            return unmodeled  # a form of the op that the formula does not know
        raise UsageError(f"the cost formula of {call.name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(cost, Cost):
        raise UsageError(f"the cost formula of {call.name} returned {type(cost).__name__}, not a memwall.Cost")
    return cost


def graph_costs(graph: Graph) -> tuple[Cost, ...]:
    """The cost of every op of a graph, in its order. Equal calls are costed once."""
    costs = {first: cost_of(call_of(graph, graph.ops[first])) for first in dict.fromkeys(graph.alike)}
    return tuple([costs[first] for first in graph.alike])


def call_of(graph: Graph, op: Op) -> Call:
    """An op as its formula sees it."""
    reads, writes = ([graph.values[i] for i in ids] for ids in (op.inputs, op.outputs))
    return Call(
        op.name, tuple([v.spec for v in reads]), op.arguments, tuple([v.spec for v in writes]), op.attributes,
        distinct_bytes(reads), distinct_bytes(writes),
    )  # fmt: skip


def _normalize(name: str) -> str:
    return name.replace("::", ".")


def _packet(name: str) -> str:
    return ".".join(name.split(".")[:2])


def _load_families() -> None:
    global _loaded
    if not _loaded:
        _loaded = True
        for family in _FAMILIES:
            importlib.import_module(f"memwall.ops.{family}")
