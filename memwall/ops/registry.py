"""One table of ops: a row says all that memwall knows of an op. Built by :func:`define`; duplicates are refused.

A row's fields are its stages: how the op is costed, fused, written as Triton, read from a recorded call, filled for a
numerics check. A field that is not given is a stage that does not cover the op: an op without a cost formula is kept,
marked ``modeled = False`` and charged its bytes.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memwall.core.errors import UsageError
from memwall.core.graph import Graph, Op, distinct_bytes
from memwall.ops.base import Call, Cost
from memwall.ops.launches import Stream

if TYPE_CHECKING:
    from memwall.ops.domains import DomainRule
    from memwall.ops.expressions import Expression
    from memwall.ops.recorded import Rule as ResultRule

#: Classes of ops, in the order in which reports list them.
OP_CLASSES = (
    "contraction", "convolution", "attention", "normalization", "reduction",
    "elementwise", "movement", "optimizer", "communication", "other",
)  # fmt: skip


def class_order(op_class: str) -> tuple[int, str]:
    """The sort key that puts op classes in this order; one that this version does not know comes last."""
    return OP_CLASSES.index(op_class) if op_class in OP_CLASSES else len(OP_CLASSES), op_class


Formula = Callable[[Call], Cost]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """An op. ``expression`` and what follows from it are of elementwise ops; the Triton text of others is looked up by
    name in :mod:`memwall.codegen.ops`."""

    op_class: str = "other"
    cost: Formula | None = None
    #: of a pointwise op: FLOPs per element of its output, and what integers become (``floats``, ``bool``, ``integers``)
    flops: int | None = None
    integers: str = ""
    #: name of the launch, where its time depends on it (:class:`memwall.ops.launches.Stream`)
    launch_kind: str = ""
    #: the loop nest of a generated kernel; without one the nest of the op's class
    loop: Callable[[Any], Any] | None = None
    #: Triton text of the result's element
    expression: Expression | None = None
    #: dtype to which tensors are cast before: ``result``, ``common`` (of them all) or ``none``
    casts: str = "result"
    #: ``mylib::swish(Tensor self) -> Tensor``; schemas of aten are in ``traces/schemas.txt``, schemas of
    #: libraries that memwall knows in ``ops/library_schemas.txt``
    schema: str = ""
    #: specs of the results of a recorded call
    results: ResultRule | None = None
    #: argument → what a numerics check has to fill it with, where just any numbers would not do
    domains: Mapping[str, DomainRule] = field(default_factory=dict)
    #: what holds of the results where it holds of what is read: ``values`` within a range, or their ``sign``
    preserves: str = ""
    #: name of the op's rate in a CPU's spec
    cpu_rate: str = ""
    #: of a product: its left and right operand, floats of one dtype, and the tensor that is added if one can be
    operands: tuple[str, ...] = ()
    #: of a product that may run in TF32: which torch switch decides, ``matmul`` or ``cudnn``
    tf32_switch: str = ""
    #: overwrites its target without reading it
    overwrites: bool = False
    #: takes its first argument only to learn its shape, dtype and device
    shape_only: bool = False
    #: draws random numbers: recomputing it would draw others
    is_random: bool = False
    #: makes probabilities of scores, as attention does between its two products
    is_softmax: bool = False
    #: a recurrent network: its steps depend on each other, and compilers leave it to the library
    is_recurrent: bool = False
    #: writes elements at other positions than it read them from
    moves: bool = False


_ROWS: dict[str, OpRow] = {}
_found: dict[str, OpRow | None] = {}
_FAMILIES = ("contraction", "recurrent", "convolution", "attention", "flex", "normalization", "softmax", "elementwise",
             "sampling", "reduction", "pooling", "movement", "indexing", "optimizer", "linalg", "losses", "detection",
             "quantization", "sparse", "libraries", "collective", "linear_attention", "lax",
             "onnx", "triton")  # fmt: skip
#: families of ops whose kernels no measured row of any GPU shows, and such ops of others. Where a gradient is not of a
#: product, an attention, a softmax or a norm over rows, none does either
_UNMEASURED = ("detection", "indexing", "linalg", "sampling", "sparse")
_UNMEASURED_OPS = frozenset((
    "_cdist_forward", "_ctc_loss", "_cudnn_ctc_loss", "_euclidean_dist", "_fft_c2c", "_fft_c2r", "_fft_r2c",
    "_pdist_forward", "argsort", "bincount", "col2im", "histc", "im2col", "kthvalue", "median", "mode", "msort",
    "multinomial", "nanmedian", "segment_reduce", "sort", "topk",
))  # fmt: skip
_UNMEASURED_GRADIENTS = ("losses", "movement", "pooling", "reduction")
_EMPTY = {item.name: getattr(OpRow(), item.name) for item in dataclasses.fields(OpRow)}
_loaded = False


def define(names: str, **stages: Any) -> None:
    """Define fields of ops: ``define("_softmax _log_softmax", loop=softmax)``; ``names`` are packets of aten (``add``,
    ``max.other``), or whole names (``mylib::swish``).

    Raises:
        ValueError: an op has one of these already.
    """
    for name in map(full_name, names.split()):
        row = _ROWS.get(name, OpRow())
        for stage in stages:
            if getattr(row, stage) != _EMPTY[stage]:
                raise ValueError(f"{name} has a {stage.replace('_', ' ')} already")
        _ROWS[name] = dataclasses.replace(row, **stages)
    _found.clear()


def full_name(name: str) -> str:
    """``aten.add`` for ``add``, ``mylib.swish`` for ``mylib::swish``."""
    return name.replace("::", ".") if "::" in name or name.startswith("aten.") else f"aten.{name}"


def register_cost(*names: str, op_class: str = "other", replace: bool = False) -> Callable[[Formula], Formula]:
    """Register a formula for one or more ops: ``aten.mm``, or ``mylib::myop`` for your own.

    The formula gets a :class:`Call` and returns a :class:`Cost`, usually ``call.cost({Pipe("vector", "float32"): n})``.
    A name without an overload stands for all its overloads; ``aten.sum.dim_IntList`` for that one.

    Args:
        names: the ops.
        op_class: one of ``OP_CLASSES``, under which reports sum the op.
        replace: replace a formula that the op already has.

    Raises:
        ValueError: the op has a formula already and ``replace`` is False, or the class is unknown.
    """
    if op_class not in OP_CLASSES:
        raise ValueError(f"unknown op class {op_class!r}; one of {', '.join(OP_CLASSES)}")

    def decorate(formula: Formula) -> Formula:
        _load_families()
        for name in (name.replace("::", ".") for name in names):
            row = _ROWS.get(name, OpRow())
            if row.cost is not None and not replace:
                raise ValueError(f"{name} has a cost formula already; pass replace=True to put yours in its place")
            _ROWS[name] = dataclasses.replace(row, op_class=op_class, cost=formula)
        _found.clear()
        return formula

    return decorate


def formula(op_class: str, names: str, **stages: Any) -> Callable[[Formula], Formula]:
    """Define ops, named as for :func:`define`, whose cost the decorated function says, and further fields of them."""

    def decorate(cost: Formula) -> Formula:
        define(names, op_class=op_class, cost=cost, **stages)
        return cost

    return decorate


def classify(name: str, phase: str = "optimizer") -> str:
    """The class of an op, ``other`` when no formula knows it. One on lists of tensors is the optimizer's only in its
    step: elsewhere (a server's copies, a clipped norm) it has the class of the op that it does to each of the list."""
    row = find_row(name)
    _, _, each = name.partition("._foreach_")
    if each and phase != "optimizer":
        each = each.partition(".")[0].rstrip("_")
        row = find_row(f"aten.{_ONE_OF_LIST.get(each, each)}") or find_row(f"aten.{each}_") or row
    return row.op_class if row else "other"


#: what reductions of lists do to each, where no op has that name
_ONE_OF_LIST = {"powsum": "norm"}


def find_row(name: str) -> OpRow | None:
    """The row of ``aten.add.Tensor``: what is said of the overload, else of ``aten.add``; None of an unknown op."""
    if name not in _found:
        _load_families()
        own, shared = _ROWS.get(name), _ROWS.get(".".join(name.split(".")[:2]))
        own = own or (None if shared else _ROWS.get(f"{name.partition('.')[0]}.*"))  # of all of a namespace
        if own is not None and shared is not None and own is not shared:
            said = {stage: value for stage in _EMPTY if (value := getattr(own, stage)) != _EMPTY[stage]}
            own = dataclasses.replace(shared, **said)
        _found[name] = own or shared
    return _found[name]


#: namespaces of torch's own ops, and of what memwall records in their stead
_OF_TORCH = frozenset(
    ("aten", "prims", "c10d", "_c10d_functional", "_dtensor", "torchvision", "torchaudio", "quantized", "sparse",
     "higher_order", "memwall", "lax", "onnx", "microsoft")
)  # fmt: skip


def is_users_own(name: str) -> bool:
    """Whether an op is a kernel that the model brings along: one in Triton that it launches, or a custom op that no
    library has that memwall knows."""
    space, row = name.partition(".")[0], find_row(name)
    if row is None or row.cost is None:
        return space not in _OF_TORCH
    return space == "triton" or not row.cost.__module__.startswith("memwall.")


def is_recurrent(name: str) -> bool:
    """Whether an op is a whole recurrent layer, or the gradient of one."""
    row = find_row(name)
    return row is not None and row.is_recurrent


def flops_of(name: str) -> int:
    """FLOPs per element of a pointwise op; ``LookupError`` of others: a formula that looks it up is left unmodeled."""
    row = find_row(name)
    if row is None or row.flops is None:
        raise LookupError(f"{name} is no pointwise op")
    return row.flops


def rows() -> Iterator[tuple[str, OpRow]]:
    """(name, row) of all ops."""
    _load_families()
    return ((name, row) for name in sorted(_ROWS) if (row := find_row(name)))


def cost_of(call: Call) -> Cost:
    """The cost of one call; charged its bytes and marked unmodeled where no formula knows it.

    Raises:
        UsageError: a formula that the user registered failed, or returned no :class:`Cost`.
    """
    unmodeled = Cost({}, call.read_bytes, call.write_bytes, modeled=False)
    row = find_row(call.name)
    if row is None or row.cost is None:
        return unmodeled
    try:
        cost = row.cost(call)
    except (LookupError, ArithmeticError, ValueError, TypeError) as error:
        if row.cost.__module__.startswith("memwall."):
            return unmodeled  # a form of the op that the formula does not know
        raise UsageError(f"the cost formula of {call.name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(cost, Cost):
        raise UsageError(f"the cost formula of {call.name} returned {type(cost).__name__}, not a memwall.Cost")
    return cost if _is_measured(row.cost.__module__, call.name) else _unmeasured(cost)


def _is_measured(module: str, name: str) -> bool:
    """Whether measured rows of some GPU hold kernels of the op."""
    family, op = module.rpartition(".")[2], name.split(".")[1]
    if not module.startswith("memwall.ops") or op in ("embedding", "embedding_dense_backward"):
        return True
    gradient = "backward" in op and (family in _UNMEASURED_GRADIENTS or "batch_norm" in op)
    return not gradient and family not in _UNMEASURED and op not in _UNMEASURED_OPS


def _unmeasured(cost: Cost) -> Cost:
    launches = (dataclasses.replace(w, measured=False) if isinstance(w, Stream) else w for w in cost.launches)
    return dataclasses.replace(cost, launches=tuple(launches))


def graph_costs(graph: Graph) -> tuple[Cost, ...]:
    """The cost of every op of a graph, in its order. Equal calls are costed once, and equal costs are one object."""
    found = {first: cost_of(call_of(graph, graph.ops[first])) for first in dict.fromkeys(graph.alike)}
    one: dict[Cost, Cost] = {}
    costs = {first: one.setdefault(cost, cost) for first, cost in found.items()}
    return tuple([costs[first] for first in graph.alike])


def call_of(graph: Graph, op: Op) -> Call:
    """An op as its formula sees it."""
    reads, writes = ([graph.values[i] for i in ids] for ids in (op.inputs, op.outputs))
    return Call(
        op.name,
        tuple([v.spec for v in reads]),
        op.arguments,
        tuple([v.spec for v in writes]),
        op.attributes or {},
        distinct_bytes(reads),
        distinct_bytes(writes),
    )


def _load_families() -> None:
    global _loaded
    if not _loaded:
        _loaded = True
        for family in _FAMILIES:
            importlib.import_module(f"memwall.ops.{family}")
