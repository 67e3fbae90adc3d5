"""Op counts by IR level: how many distinct ops, and how many calls of them, a workload has at each level of a compiler.

Levels: ATen as called; core ATen (``torch._decomp.core_aten_decompositions``); prims (PrimTorch: every registered
decomposition and reference); and, from Inductor's own lowering where it is given, its graph, its loop-level IR and its
kernels. Each distinct call of a traced Graph is decomposed once, on tensors without data, and multiplied by how often
it occurs; below ATen, in-place calls count as their functional form. Calls that move nothing (views, allocations) are
counted separately: the model's own are the same at the first three levels, those of decompositions are added. The
optimizer is left out, as in ``torch.compile(model)``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from memwall.core.graph import Graph, Op

if TYPE_CHECKING:
    pass

PHASES = ("forward", "backward")

#: Level -> number of operators in the announcement of PyTorch 2.0.
PUBLISHED: Mapping[str, str] = {"ATen": "~2000+", "prims": "~250", "loop IR": "~50"}
PUBLISHED_SOURCE = (
    "PrimTorch takes ~2000+ operators to a closed set of ~250 primitive operators, TorchInductor's core loop level IR "
    "contains only ~50 (pytorch.org/get-started/pytorch-2.0; the ASPLOS 2024 paper counts 54)"
)


@dataclass(frozen=True)
class Level:
    """One level: ``ops`` has the calls of each operator that does work, ``free_calls`` counts views and allocations."""

    name: str
    ops: Mapping[str, int]
    free_calls: int = 0

    @property
    def distinct(self) -> int:
        """Different operators."""
        return len(self.ops)

    @property
    def calls(self) -> int:
        """Calls of them all."""
        return sum(self.ops.values())


@dataclass(frozen=True)
class OpCounts:
    """All levels, from ATen down.

    ``no_decomposition`` has the ATen operators that are left at the level of prims, with their calls; ``fallbacks``
    those for which Inductor calls a library. ``failed`` says, by operator, why a decomposition did not run without
    data; the operator then counts as itself.
    """

    levels: tuple[Level, ...]
    no_decomposition: Mapping[str, int]
    fallbacks: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)

    def level(self, name: str) -> Level | None:
        """The level of that name."""
        return next((level for level in self.levels if level.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "levels": [
                {
                    "name": level.name,
                    "distinct": level.distinct,
                    "calls": level.calls,
                    "free_calls": level.free_calls,
                    "ops": dict(level.ops),
                }
                for level in self.levels
            ],
            "no_decomposition": dict(self.no_decomposition),
            "fallbacks": list(self.fallbacks),
            "failed": dict(self.failed),
        }


def op_counts(
    graph: Graph,
    *,
    inductor_ops: Mapping[str, int] | None = None,
    loop_ops: Mapping[str, int] | None = None,
    kernels: Mapping[str, int] | None = None,
    fallbacks: tuple[str, ...] = (),
    phases: tuple[str, ...] = PHASES,
) -> OpCounts:
    """The op counts of a traced graph.

    Args:
        inductor_ops: calls of each operator in Inductor's graph, after its own decompositions.
        loop_ops: calls of each op in the bodies of Inductor's loops (``LoopBody.op_counts``, added up).
        kernels: launches of each distinct kernel.
        fallbacks: operators for which Inductor calls a library.
        phases: the phases that are compiled.
    """
    from torch._decomp import core_aten_decompositions, decomposition_table

    for module in _REFERENCES:
        import_module(module)
    distinct = _distinct_calls(graph, phases)
    own_free = sum(graph.free_calls.values())
    failed: dict[str, str] = {}
    called: Counter[str] = Counter()
    for op, times in distinct:
        called[op.name] += times
    core = _lowered(graph, distinct, dict(core_aten_decompositions()), failed)
    prims = _lowered(graph, distinct, dict(decomposition_table), failed)
    levels = [
        Level("ATen", _ranked(called), own_free),
        Level("core ATen", _ranked(core.ops), own_free + core.free_calls),
        Level("prims", _ranked(prims.ops), own_free + prims.free_calls),
    ]
    for name, counts in (("Inductor graph", inductor_ops), ("loop IR", loop_ops), ("kernels", kernels)):
        if counts is not None:
            levels.append(Level(name, _ranked(counts)))
    kept = {name: calls for name, calls in _ranked(prims.ops).items() if not name.startswith("prims.")}
    return OpCounts(tuple(levels), kept, fallbacks, failed)


#: Modules that register references, and so decompositions into prims, when they are imported.
_REFERENCES = tuple(
    f"torch._refs{part}" for part in ("", ".fft", ".linalg", ".nn.functional", ".special", "._conversions")
)


def operator_sets() -> dict[str, int]:
    """How many operators the installed torch has at each level, for all models together.

    ``ATen`` counts names in the dispatcher, ``ATen overloads`` their overloads, ``core ATen`` the names tagged core,
    ``prims`` those of PrimTorch, ``loop IR`` the methods of Inductor's ops handler.
    """
    import torch
    import torch._prims
    from torch._inductor.ops_handler import OpsHandler

    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    packets = {name.partition(".")[0] for name in names}
    core = {name.partition(".")[0] for name in names if torch.Tag.core in _overload(name).tags}
    prims = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("prims::")]
    loop = [name for name, item in vars(OpsHandler).items() if callable(item) and not name.startswith("_")]
    return {
        "ATen": len(packets), "ATen overloads": len(names), "core ATen": len(core), "prims": len(prims),
        "loop IR": len(set(loop) - _NO_LOOP_OPS),
    }  # fmt: skip


#: Methods of the ops handler that are not ops: the ends of a traced loop body.
_NO_LOOP_OPS = frozenset(("output", "placeholder"))


def _overload(name: str) -> Any:
    import torch

    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _ranked(counts: Mapping[str, int]) -> dict[str, int]:
    """Most calls first, then by name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _distinct_calls(graph: Graph, phases: tuple[str, ...]) -> list[tuple[Op, int]]:
    """One op of each kind (name, shapes, arguments) and how often it occurs."""
    kinds: dict[Any, list[Any]] = {}
    for op in graph.ops:
        if op.phase in phases:
            specs = graph.specs((*op.inputs, *op.outputs))
            key = (op.name, specs, op.arguments, repr(op.attributes))
            kinds.setdefault(key, [op, 0])[1] += 1
    return [(op, times) for op, times in kinds.values()]


def _lowered(
    graph: Graph, distinct: list[tuple[Op, int]], table: Mapping[Any, Callable[..., Any]], failed: dict[str, str]
) -> Level:
    """What is left of each call after the table has decomposed all it can."""
    total: Counter[str] = Counter()
    free = 0
    for op, times in distinct:
        try:
            ops, made = _leaves(graph, op, table)
        except Exception as error:  # a decomposition may raise anything
            failed.setdefault(op.name, (str(error) or type(error).__name__).partition("\n")[0])
            ops, made = Counter({_functional(op.name): 1}), 0
        for name, count in ops.items():
            total[name] += count * times
        free += made * times
    return Level("", total, free)


def _leaves(graph: Graph, op: Op, table: Mapping[Any, Callable[..., Any]]) -> tuple[Counter[str], int]:
    """Run one op on tensors without data under the table: the calls that are left, and how many move nothing.

    Raises:
        LookupError: the op has no operator of its own (recorded by name only), or does not take its arguments.
    """
    import torch

    from memwall.ops.evaluate import Call, Operators, evaluate

    mode = _leaf_counter(table)

    def call(one: Call) -> None:
        if one.operator is None:
            raise LookupError("no operator of this name to decompose")
        positional, keywords = one.arguments()
        with torch.no_grad(), mode:
            one.operator.function(*positional, **keywords)

    evaluate(graph, [op.id], _WithoutData(graph), call, Operators())
    return mode.ops, mode.free_calls


class _WithoutData:
    """Every value as a separate tensor on the meta device."""

    device = "meta"

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def begin(self, op: Op, into: Sequence[int]) -> None:
        """Nothing is kept from op to op."""

    def tensor(self, value_id: int) -> Any:
        """An empty tensor of the value's shape, strides and dtype."""
        from memwall.ops.evaluate import empty

        return empty(self.graph.values[value_id].spec, self.device)


def _leaf_counter(table: Mapping[Any, Callable[..., Any]]) -> Any:
    """A dispatch mode that decomposes by the table, and counts the ops that are not in it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from memwall.ops.signatures import signature_of

    class LeafCounter(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
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
            rule = table.get(func) or (func.decompose if _is_composite(func) else None)
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

    return LeafCounter()


def _functional_form(func: Any) -> Any:
    """The functional form of an in-place operator, or None."""
    import torch

    name = str(func._schema.name)
    namespace, _, packet = name.partition("::")
    if not _is_in_place(packet):
        return None
    family = getattr(getattr(torch.ops, namespace), packet[:-1], None)
    return getattr(family, func._overloadname, None)


def _is_in_place(packet: str) -> bool:
    return packet.endswith("_") and not packet.endswith("__")


def _is_composite(func: Any) -> bool:
    """Whether the dispatcher itself decomposes an operator."""
    from torch._C import DispatchKey, _dispatch_has_kernel_for_dispatch_key

    return _dispatch_has_kernel_for_dispatch_key(func.name(), DispatchKey.CompositeImplicitAutograd)


def _functional(name: str) -> str:
    """``aten.add.Tensor`` for ``aten.add_.Tensor``, but ``aten.__and__`` for itself."""
    namespace, packet, *overload = name.split(".")
    return ".".join((namespace, packet[:-1] if _is_in_place(packet) else packet, *overload))
