"""Op counts by IR level: how many distinct ops, and how many calls of them, a workload has at each level of a compiler.

Levels: ATen as called; core ATen (``torch._decomp.core_aten_decompositions``); prims (PrimTorch: every registered
decomposition and reference); and, from Inductor's own lowering where it is given, its graph, its loop-level IR and its
kernels. Each distinct call of a traced Graph is decomposed once, on tensors without data, and multiplied by how often
it occurs; below ATen, in-place calls count as their functional form. Calls that move nothing (views, allocations) are
counted separately: the model's own are the same at the first three levels, calls of decompositions are added. The
optimizer is left out, as in ``torch.compile(model)``. This module needs torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from memwall.core import compat
from memwall.core.graph import Graph, Op
from memwall.frontend.torch.process.light_imports import light_imports
from memwall.ops.evaluate import EvaluatedCall, Operators, empty, evaluate
from memwall.ops.signatures import signature_of

PHASES = ("forward", "backward")

#: Level -> number of operators in the announcement of PyTorch 2.0.
PUBLISHED: Mapping[str, str] = {"ATen": "~2000+", "prims": "~250", "loop IR": "~50"}
PUBLISHED_SOURCE = (
    "PrimTorch takes ~2000+ operators to a closed set of ~250 primitive operators, TorchInductor's core loop level IR "
    "contains only ~50 (pytorch.org/get-started/pytorch-2.0; the ASPLOS 2024 paper counts 54)"
)

#: Modules that register references, and so decompositions into prims, when they are imported.
_REFERENCES = tuple(
    compat.name_of("refs") + part for part in ("", ".fft", ".linalg", ".nn.functional", ".special", "._conversions")
)

Rules = Mapping[Any, Callable[..., Any]]


@dataclass(frozen=True)
class IrLevel:
    """One level: ``ops`` has the calls of each operator that does work, ``free_calls`` counts views and allocations."""

    SAVED: ClassVar = ("name", "distinct", "calls", "free_calls", "ops")

    name: str
    ops: Mapping[str, int]
    free_calls: int = 0

    @property
    def distinct(self) -> int:
        return len(self.ops)

    @property
    def calls(self) -> int:
        return sum(self.ops.values())


@dataclass(frozen=True)
class OpCounts:
    """All levels, from ATen down. ``no_decomposition`` has the ATen operators that are left at the level of prims, with
    their calls; ``fallbacks`` ops for which Inductor calls a library. ``failed`` says, by operator, why a
    decomposition did not run without data; the operator then counts as itself."""

    levels: tuple[IrLevel, ...]
    no_decomposition: Mapping[str, int]
    fallbacks: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)

    def level(self, name: str) -> IrLevel | None:
        return next((level for level in self.levels if level.name == name), None)


def op_counts(graph: Graph, lowered: Any = None) -> OpCounts:
    """The op counts of a traced graph, and of what Inductor lowered it to: its graph after its own decompositions, the
    bodies of its loops, the launches of each distinct kernel."""
    for module in _REFERENCES:
        import_module(module)
    times = Counter(first for op, first in zip(graph.ops, graph.alike, strict=True) if op.phase in PHASES)
    called: Counter[str] = Counter()
    for number, count in times.items():
        called[graph.ops[number].name] += count
    own_free = sum(graph.free_calls.values())
    failed: dict[str, str] = {}
    levels = [IrLevel("ATen", _ranked(called), own_free)]
    for name, rules in (("core ATen", compat.core_aten_decompositions()), ("prims", compat.decomposition_table)):
        with light_imports():
            ops, free_calls = _lowered(graph, times, dict(rules), failed)
        levels.append(IrLevel(name, _ranked(ops), own_free + free_calls))
    kept = {name: calls for name, calls in levels[-1].ops.items() if not name.startswith("prims.")}
    if lowered is None:
        return OpCounts(tuple(levels), kept, (), failed)
    made = (("Inductor graph", lowered.fx_ops), ("loop IR", lowered.loop_ops), ("kernels", lowered.launches))
    levels += [IrLevel(name, _ranked(counts)) for name, counts in made]
    return OpCounts(tuple(levels), kept, lowered.fallbacks, failed)


def _ranked(counts: Mapping[str, int]) -> dict[str, int]:
    """Most calls first, then by name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _lowered(graph: Graph, calls: Mapping[int, int], rules: Rules, failed: dict[str, str]) -> tuple[Counter[str], int]:
    """What is left of some calls (op → times) after the rules have decomposed all they can, and calls that are free."""
    total: Counter[str] = Counter()
    free = 0
    for number, times in calls.items():
        op = graph.ops[number]
        try:
            ops, made = _leaves(graph, op, rules)
        except Exception as error:  # a decomposition may raise anything
            failed.setdefault(op.name, (str(error) or type(error).__name__).partition("\n")[0])
            ops, made = Counter({_functional(op.name): 1}), 0
        for name, count in ops.items():
            total[name] += count * times
        free += made * times
    return total, free


def _leaves(graph: Graph, op: Op, rules: Rules) -> tuple[Counter[str], int]:
    """Run one op on tensors without data under the rules: the calls that are left, and how many move nothing. Raises
    LookupError: the op has no operator of its own (recorded by name only), or does not take its arguments."""
    mode = _LeafCounter(rules)

    def call(one: EvaluatedCall) -> None:
        if one.operator is None:
            raise LookupError("no operator of this name to decompose")
        positional, keywords = one.arguments()
        with torch.no_grad(), mode:
            one.operator.function(*positional, **keywords)

    without_data: Any = SimpleNamespace(
        device="meta", begin=lambda op, into: None, tensor=lambda value: empty(graph.values[value].spec, "meta")
    )
    evaluate(graph, [op.id], without_data, call, Operators())
    return mode.ops, mode.free_calls


class _LeafCounter(compat.TorchDispatchMode):
    """Decomposes by some rules, and counts the ops that have none."""

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.rules = rules
        self.ops: Counter[str] = Counter()
        self.free_calls = 0
        self._open: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        functional = _functional_form(func)
        if functional is not None:
            with self:
                functional(*args, **kwargs)
            return args[0]
        composite = compat.has_kernel(func.name(), compat.DispatchKey.CompositeImplicitAutograd)
        rule = self.rules.get(func) or (func.decompose if composite else None)
        if rule is not None and func not in self._open:  # some rules call the op that they decompose
            self._open.append(func)
            counted = Counter(self.ops), self.free_calls
            try:
                with self:
                    result = rule(*args, **kwargs)
            finally:
                self._open.pop()
            if result is not NotImplemented:
                return result
            self.ops, self.free_calls = counted
        signature = signature_of(func)
        if signature.free or signature.name.startswith("prims.empty"):
            self.free_calls += 1
        elif not signature.skipped:
            self.ops[_functional(signature.name)] += 1
        return func(*args, **kwargs)


def _functional_form(func: Any) -> Any:
    """The functional form of an in-place operator, or None."""
    namespace, _, packet = str(compat.schema(func).name).partition("::")
    if not _is_in_place(packet):
        return None
    return getattr(getattr(getattr(torch.ops, namespace), packet[:-1], None), compat.overload_name(func), None)


def _is_in_place(packet: str) -> bool:
    return packet.endswith("_") and not packet.endswith("__")


def _functional(name: str) -> str:
    """``aten.add.Tensor`` for ``aten.add_.Tensor``, but ``aten.__and__`` for itself."""
    namespace, packet, *overload = name.split(".")
    return ".".join((namespace, packet[:-1] if _is_in_place(packet) else packet, *overload))
