"""Graph -> FX: the traced ops of a region once more, as one functional joint graph like the one AOTAutograd makes.

Every op is called on fake CPU tensors under ``make_fx``, with Inductor's decompositions and functionalization on. Each
FX node carries, under ``meta["custom"]``, the id of the op that it came from; views carry none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx

from memwall.fusion.inductor.calls import NoOperator, Operators, arguments_of, dtype_of
from memwall.fusion.inductor.opaque import Opaque
from memwall.fusion.inductor.scope import Feed, Scope
from memwall.fusion.inductor.views import view_steps
from memwall.graph import Graph, Op, TensorSpec

#: Keys under ``node.meta["custom"]``: the op's id, whether the node is what the op hands on, and further ops that went
#: into the node.
OP, RESULT, ALSO = "memwall_op", "memwall_result", "memwall_also"


@dataclass(frozen=True)
class Joint:
    """A region as one FX graph.

    Placeholders are the scope's feeds, renamed ``primals_N`` and ``tangents_N``. Outputs are the forward keeps, the
    mutated storages, then the backward keeps. ``opaque`` names ops that stand in the graph by name only.
    """

    module: GraphModule
    scope: Scope
    tangents: tuple[bool, ...]
    opaque: tuple[str, ...]

    def feeds_in_order(self) -> list[Feed]:
        """The feeds in the order of the placeholders: primals, then tangents."""
        return sorted(self.scope.feeds, key=lambda feed: feed.tangent)

    def names(self) -> dict[int, str]:
        """Storage -> the placeholder that held it first."""
        result: dict[int, str] = {}
        counts = {True: 0, False: 0}
        for feed in self.feeds_in_order():
            counts[feed.tangent] += 1
            name = f"{'tangents' if feed.tangent else 'primals'}_{counts[feed.tangent]}"
            result.setdefault(feed.storage, name)
        return result

    @property
    def forward_outputs(self) -> int:
        """How many outputs the forward graph has, mutated storages included."""
        return len(self.scope.forward_keeps) + len(self.scope.mutated)


def replay(
    graph: Graph, scope: Scope, operators: Operators, table: Mapping[Any, Callable[..., Any]], opaque: Opaque,
    device: str = "cpu",
) -> Joint:  # fmt: skip
    """Trace the ops of a scope into one FX graph, decomposed by ``table``.

    Called under a ``FakeTensorMode`` it makes fake inputs; otherwise real, empty ones. ``opaque`` has to stay open as
    long as the result is used.
    """
    player = _Player(graph, scope, operators, opaque, device)
    inputs = [_empty(feed.spec, device) for feed in scope.feeds]
    with fx_traceback.preserve_node_meta(), torch.no_grad():
        module = make_fx(player.play, decomposition_table=dict(table))(*inputs)
    tangents = tuple(feed.tangent for feed in scope.feeds)
    _rename(module, tangents)
    _mark_results(module)
    return Joint(module, scope, tangents, tuple(player.by_name))


def _empty(spec: TensorSpec, device: str) -> torch.Tensor:
    return torch.empty_strided(spec.shape, spec.strides, dtype=dtype_of(spec.dtype), device=device)


class _Player:
    """Calls the ops one after another; a storage is the tensor that holds it, a value a view of that tensor."""

    def __init__(self, graph: Graph, scope: Scope, operators: Operators, opaque: Opaque, device: str) -> None:
        self.graph, self.scope, self.operators, self.opaque = graph, scope, operators, opaque
        self.device = device
        self.by_name: dict[str, None] = {}
        self._bases: dict[int, tuple[torch.Tensor, TensorSpec, int]] = {}
        self._views: dict[int, torch.Tensor] = {}
        self._views_of: dict[int, list[int]] = {}
        self._spread: dict[tuple[int, int, int], torch.Tensor] = {}

    def play(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Run all ops; returns what the scope keeps."""
        scope = self.scope
        wrapped = [torch._to_functional_tensor(tensor) for tensor in inputs]
        feeds = sorted(zip(scope.feeds, wrapped, strict=True), key=lambda pair: -pair[0].before_op)
        torch._enable_functionalization(reapply_views=True)
        try:
            for op_id in scope.op_ids:
                while feeds and feeds[-1][0].before_op <= op_id:
                    feed, tensor = feeds.pop()
                    self._bind(feed.storage, tensor, feed.spec, 0)
                self._play(self.graph.ops[op_id])
        finally:
            torch._disable_functionalization()
        fx_traceback.current_meta.pop("custom", None)
        kept = (*scope.forward_keeps, *scope.mutated, *scope.backward_keeps)
        return [_unwrapped(self._bases[number][0]) for number in kept]

    def _play(self, op: Op) -> None:
        target = self.operators.find(op)
        self._tag(None)
        inputs = [self._tensor(i) for i in op.inputs]
        into = self.operators.overwritten(op)
        for value_id in into:
            self._allocate(value_id)
        result = None
        if target is not None:
            try:
                positional, keywords = arguments_of(self.graph, op, target, self._tensor, self.device)
                self._tag(op)
                result = _flat(target.function(*positional, **keywords))
            except (NoOperator, NotImplementedError, RuntimeError, TypeError) as error:
                if not _has_no_form(error):
                    raise
        if result is None:
            self.by_name.setdefault(op.name)
            self._tag(op)
            result = self._call_by_name(op, inputs, into)
        self._take(op, result, into)

    def _call_by_name(
        self, op: Op, inputs: Sequence[torch.Tensor], into: Sequence[int]
    ) -> list[torch.Tensor]:
        """Leave an op that torch cannot call here in the graph by its name, shapes and dtypes alone."""
        specs = [self.graph.values[i].spec for i in op.outputs]
        results = self.opaque.call(op.name, inputs, specs, self.device)
        for value_id, tensor in zip(op.outputs, results, strict=True):
            if value_id in into:
                self._tensor(value_id).copy_(tensor)
        return results

    def _take(self, op: Op, result: list[torch.Tensor], into: Sequence[int]) -> None:
        """Let the tensors that the op made hold the storages of its outputs."""
        values = self.graph.values
        made = [i for i in op.outputs if i not in into]
        fresh = [t for t in result if not any(t is self._views.get(i) for i in into)] if into else result
        for value_id, tensor in zip(made, fresh, strict=False):
            value = values[value_id]
            if value.storage not in self._bases or value_id not in op.inputs:
                self._bind(value.storage, tensor, value.spec, value.offset)
                self._views[value_id] = tensor
                self._views_of.setdefault(value.storage, []).append(value_id)
        for value_id in into:  # what other views of it see is worked out now, as part of this op
            torch._sync(self._bases[values[value_id].storage][0])  # type: ignore[attr-defined]

    def _tag(self, op: Op | None) -> None:
        meta = fx_traceback.current_meta
        meta["custom"] = {} if op is None else {OP: op.id}
        if op is not None and op.module:
            meta["nn_module_stack"] = {op.module: (op.module, "")}
        else:
            meta.pop("nn_module_stack", None)

    def _bind(self, storage: int, tensor: torch.Tensor, spec: TensorSpec, offset: int) -> None:
        for value_id in self._views_of.pop(storage, ()):
            self._views.pop(value_id, None)
        for key in [key for key in self._spread if key[0] == storage]:
            del self._spread[key]
        self._bases[storage] = (tensor, spec, offset)

    def _allocate(self, value_id: int) -> None:
        """A storage that nothing has written yet: ``empty`` is not in the trace."""
        value = self.graph.values[value_id]
        if value.storage in self._bases:
            return
        count = self.graph.storages[value.storage].nbytes // value.spec.itemsize
        spec = value.spec
        if spec.numel != count or spec.distinct_elements != count or value.offset:
            spec = TensorSpec((count,), (1,), spec.dtype)
        self._bind(value.storage, _empty(spec, self.device), spec, 0)

    def _tensor(self, value_id: int) -> torch.Tensor:
        known = self._views.get(value_id)
        if known is not None:
            return known
        value = self.graph.values[value_id]
        tensor, spec, offset = self._bases[value.storage]
        one_element = value.spec.numel > 1 and not any(value.spec.strides)
        same_size = self._spread.get((value.storage, value.offset, value.spec.numel)) if one_element else None
        if (
            same_size is not None
        ):  # the gradient of a sum, in another shape: autograd reshapes what it expanded
            tensor, spec = same_size.reshape(value.spec.shape), value.spec
            offset = value.offset
        if spec.dtype != value.spec.dtype:
            tensor, spec, offset = _in_dtype(tensor, spec, offset, value.spec)
        for step in view_steps(spec, offset, value.spec, value.offset):
            tensor = _VIEWS[step.name](tensor, *step.arguments)
        if one_element:
            self._spread.setdefault((value.storage, value.offset, value.spec.numel), tensor)
        self._views[value_id] = tensor
        self._views_of.setdefault(value.storage, []).append(value_id)
        return tensor


_ATEN = torch.ops.aten

#: View step -> operator. ``reshape`` where a kernel here lays its result out in another way than was traced.
_VIEWS: dict[str, Callable[..., torch.Tensor]] = {
    "view": lambda t, shape: t.reshape(shape),
    "permute": _ATEN.permute.default,
    "slice": _ATEN.slice.Tensor,
    "select": _ATEN.select.int,
    "unsqueeze": _ATEN.unsqueeze.default,
    "expand": _ATEN.expand.default,
    "as_strided": _ATEN.as_strided.default,
}


def _in_dtype(
    tensor: torch.Tensor, spec: TensorSpec, offset: int, wanted: TensorSpec
) -> tuple[torch.Tensor, TensorSpec, int]:
    """The storage as elements of another dtype; real and imaginary parts are a last axis of two."""
    dtype = dtype_of(wanted.dtype)
    if tensor.is_complex() and not dtype.is_complex:
        strides = (*(2 * s for s in spec.strides), 1)
        return torch.view_as_real(tensor), TensorSpec((*spec.shape, 2), strides, wanted.dtype), 2 * offset
    flat = tensor.reshape(-1)
    if dtype.is_complex and not tensor.is_complex():
        flat = torch.view_as_complex(flat.reshape(-1, 2))
    else:
        flat = flat.view(dtype)
    return flat, TensorSpec(tuple(flat.shape), (1,), wanted.dtype), offset * spec.itemsize // wanted.itemsize


def _flat(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [t for item in result for t in _flat(item)]
    return []


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    if not torch._is_functional_tensor(tensor):
        return tensor
    torch._sync(tensor)  # type: ignore[attr-defined]
    return torch._from_functional_tensor(tensor)


def _has_no_form(error: Exception) -> bool:
    """Whether torch says that it has no kernel or shape function for an op, rather than that the call is wrong."""
    named = type(error).__name__ in _DATA_DEPENDENT or isinstance(error, (NoOperator, NotImplementedError))
    return named or any(part in str(error) for part in _NO_FORM)


_DATA_DEPENDENT = frozenset(
    ("DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedOperatorException",
     "UnsupportedFakeTensorException", "GuardOnDataDependentSymNode")
)  # fmt: skip
_NO_FORM = ("Could not run", "sparse", "Sparse", "not implemented for")


# -- after tracing -----------------------------------------------------------------------------------------------------


def _rename(module: GraphModule, tangents: Sequence[bool]) -> None:
    """Name the placeholders as the partitioner knows them: primals come first, then tangents."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    counts = {"primals": 0, "tangents": 0}
    for node, tangent in zip(placeholders, tangents, strict=True):
        kind = "tangents" if tangent else "primals"
        counts[kind] += 1
        node.target = node.name = f"{kind}_{counts[kind]}"
    first_primal_gap = next((n for n, t in zip(placeholders, tangents, strict=True) if t), None)
    if first_primal_gap is not None:
        for node, tangent in zip(placeholders, tangents, strict=True):
            if not tangent:
                first_primal_gap.prepend(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def op_of(node: Node) -> int | None:
    """The id of the op that an FX node computes a part of; None for views and for what no op asked for."""
    if is_view(node):
        return None
    number = (node.meta.get("custom") or {}).get(OP)
    return number if isinstance(number, int) else None


def ops_of(node: Node) -> tuple[int, ...]:
    """Like :func:`op_of`, with the further ops that a pass replaced by this node."""
    own = op_of(node)
    return () if own is None else (own, *node.meta["custom"].get(ALSO, ()))


def is_view(node: Node) -> bool:
    """Whether a node only looks at its input in another way."""
    target = node.target
    return node.op != "call_function" or getattr(target, "is_view", False) or target in _UNSEEN_VIEWS


def behind_views(node: Node) -> Node:
    """The node that a chain of views looks at."""
    while is_view(node) and node.args and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


_UNSEEN_VIEWS = frozenset(
    (_ATEN._unsafe_view.default, _ATEN.alias.default, _ATEN.detach.default, _ATEN.empty_strided.default)
)


def _mark_results(module: GraphModule) -> None:
    """Mark the nodes of an op that another op, or the caller, takes its result from."""
    for node in module.graph.nodes:
        own = op_of(node)
        if own is not None and any(op_of(user) != own for user in users_behind_views(node)):
            node.meta["custom"] = {**node.meta["custom"], RESULT: True}


def users_behind_views(node: Node) -> list[Node]:
    found: list[Node] = []
    pending = list(node.users)
    while pending:
        user = pending.pop()
        if user.op == "call_function" and is_view(user):
            pending.extend(user.users)
        else:
            found.append(user)
    return found
