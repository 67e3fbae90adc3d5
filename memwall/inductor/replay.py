"""Graph -> FX: the traced ops of a region replayed into one functional joint graph like AOTAutograd's.

Every op is called on fake CPU tensors under ``make_fx``, with Inductor's decompositions and functionalization on. Each
FX node carries, under ``meta["custom"]``, the id of the op that it came from; views carry none.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx

from memwall.core import compat
from memwall.core.errors import Unsupported
from memwall.core.graph import Graph, Op, TensorSpec
from memwall.core.progress import counting
from memwall.inductor.origins import OP, mark_results, op_of
from memwall.inductor.scope import Feed, RegionScope
from memwall.inductor.storages import Storages
from memwall.ops.evaluate import EvaluatedCall, Operators, empty, evaluate

_ATEN: Any = torch.ops.aten


@dataclass(frozen=True)
class Joint:
    """A region as one FX graph.

    Placeholders are the scope's feeds, renamed ``primals_N`` and ``tangents_N``. Outputs are the forward keeps, the
    mutated storages, then the backward keeps. ``opaque`` names ops that are in the graph by name only.
    """

    module: GraphModule
    scope: RegionScope
    tangents: tuple[bool, ...]
    opaque: tuple[str, ...]

    def feeds_in_order(self) -> list[Feed]:
        """The feeds in the order of the placeholders: primals, then tangents."""
        return sorted(self.scope.feeds, key=lambda feed: feed.tangent)

    def names(self) -> dict[int, str]:
        """Storage -> the placeholder that held it first."""
        named = zip(self.scope.feeds, _placeholder_names(self.tangents), strict=True)
        result: dict[int, str] = {}
        for feed, name in sorted(named, key=lambda pair: pair[0].tangent):
            result.setdefault(feed.storage, name)
        return result

    def calls(self) -> dict[int, Counter[str]]:
        """Op -> the calls of each operator that it was decomposed into, without views."""
        found: dict[int, Counter[str]] = {}
        for node in self.module.graph.nodes:
            op = op_of(node)
            if op is not None and not str(node.target).startswith("<"):
                found.setdefault(op, Counter())[str(node.target).removesuffix(".default")] += 1
        return found

    @property
    def forward_outputs(self) -> int:
        """How many outputs the forward graph has, mutated storages included."""
        return len(self.scope.forward_keeps) + len(self.scope.mutated)


def replay(
    graph: Graph,
    scope: RegionScope,
    operators: Operators,
    table: Mapping[Any, Callable[..., Any]],
    opaque: OpaqueKernels,
    device: str = "cpu",
) -> Joint:
    """Trace the ops of a scope into one FX graph, decomposed by ``table``.

    Called under a ``FakeTensorMode`` it makes fake inputs; otherwise real, empty ones. ``opaque`` must stay open while
    the result is used.
    """
    player = _Player(graph, scope, operators, opaque, device)
    inputs = [empty(feed.spec, device) for feed in scope.feeds]
    with fx_traceback.preserve_node_meta(), torch.no_grad():
        module = make_fx(player.play, decomposition_table=dict(table))(*inputs)
    tangents = tuple(feed.tangent for feed in scope.feeds)
    _rename(module, tangents)
    _expand_products(module, {i for i in scope.op_ids if graph.ops[i].phase == "forward"})
    mark_results(module)
    return Joint(module, scope, tangents, tuple(player.by_name))


class OpaqueKernels:
    """Context manager: while open, an operator represents any kernel that torch cannot call here (another library's,
    sparse ones, whole recurrent layers), given the specs of its results. A compiler sees a library call.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._specs: list[tuple[TensorSpec, ...]] = []
        self._library: Any = None

    def __enter__(self) -> OpaqueKernels:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._library is not None:
            compat.destroy_library(self._library)
            self._library = None

    def call(
        self, name: str, inputs: Sequence[torch.Tensor], specs: Sequence[TensorSpec], device: str
    ) -> list[torch.Tensor]:
        """Tensors of the given specs that depend on the inputs."""
        if self._library is None:
            self._library = torch.library.Library("memwall", "DEF")
            self._library.define("opaque(Tensor[] inputs, int number) -> Tensor[]")
            for key in ("Meta", "CPU"):
                self._library.impl("opaque", self._results, key)
        self.names.append(name)
        self._specs.append(tuple(specs))
        given = list(inputs) or [torch.zeros((), device=device)]
        result: list[torch.Tensor] = torch.ops.memwall.opaque(given, len(self.names) - 1)
        return result

    def _results(self, inputs: list[torch.Tensor], number: int) -> list[torch.Tensor]:
        return [
            torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, spec.dtype), device=inputs[0].device)
            for spec in self._specs[number]
        ]


class _Player:
    """Calls the ops one after another; each storage is a tensor, each value a view of it."""

    def __init__(
        self, graph: Graph, scope: RegionScope, operators: Operators, opaque: OpaqueKernels, device: str
    ) -> None:
        self.graph, self.scope, self.operators, self.opaque = graph, scope, operators, opaque
        self.device = device
        self.by_name: dict[str, None] = {}
        self.storages = Storages(graph, device)
        #: feeds that are not bound yet, the next one last
        self._feeds: list[tuple[Feed, torch.Tensor]] = []
        self._inputs: list[torch.Tensor] = []

    def play(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Run all ops; returns what the scope keeps."""
        scope = self.scope
        wrapped = [compat.to_functional_tensor(tensor) for tensor in inputs]
        self._feeds = sorted(zip(scope.feeds, wrapped, strict=True), key=lambda pair: -pair[0].before_op)
        compat.enable_functionalization(reapply_views=True)
        try:
            ops = counting(scope.op_ids, "compiling ops by Inductor")
            evaluate(self.graph, ops, self, self._call, self.operators)
        finally:
            compat.disable_functionalization()
        fx_traceback.current_meta.pop("custom", None)
        found = []
        for number in (*scope.forward_keeps, *scope.mutated, *scope.backward_keeps):
            tensor = self.storages.whole(number)
            if compat.is_functional_tensor(tensor):
                compat.sync_functional_tensor(tensor)
                tensor = compat.from_functional_tensor(tensor)
            found.append(tensor)
        return found

    def begin(self, op: Op, into: Sequence[int]) -> None:
        """Bind the feeds that are due, take the op's views (they carry no tag), and allocate what it writes."""
        while self._feeds and self._feeds[-1][0].before_op <= op.id:
            feed, tensor = self._feeds.pop()
            self.storages.bind(feed.storage, tensor, feed.spec, 0)
        self._tag(None)
        self.storages.begin(op.phase)
        self._inputs = [self.storages.view(i) for i in op.inputs]
        for value_id in into:
            self.storages.allocate(value_id)

    def tensor(self, value_id: int) -> torch.Tensor:
        """The tensor of a value."""
        return self.storages.view(value_id)

    def _call(self, call: EvaluatedCall) -> None:
        try:
            positional, keywords = call.arguments()
            self._tag(call.op)
            returned = compat.tree_leaves(call.target.function(*positional, **keywords))
            result = [leaf for leaf in returned if isinstance(leaf, torch.Tensor)]
        except (Unsupported, NotImplementedError, RuntimeError, TypeError) as error:
            if not _has_no_form(error):
                raise
            self.by_name.setdefault(call.op.name)
            self._tag(call.op)
            specs = [self.graph.values[i].spec for i in call.op.outputs]
            result = self.opaque.call(call.op.name, self._inputs, specs, self.device)
            for value_id, tensor in zip(call.op.outputs, result, strict=True):
                if value_id in call.into:
                    self.storages.view(value_id).copy_(tensor)
        self._take(call, result)

    def _take(self, call: EvaluatedCall, result: list[torch.Tensor]) -> None:
        """Bind the tensors that the op made to the storages of its outputs."""
        storages, values = self.storages, self.graph.values
        fresh = [t for t in result if not any(storages.is_view(t, i) for i in call.into)]
        for value_id, tensor in zip(call.made, fresh, strict=False):
            if not storages.holds(values[value_id].storage):  # else a part of a sparse result that already existed
                storages.made(value_id, tensor)
        for value_id in call.into:  # other views of it are updated now, as part of this op
            compat.sync_functional_tensor(storages.whole(values[value_id].storage))

    def _tag(self, op: Op | None) -> None:
        meta = fx_traceback.current_meta
        meta["custom"] = {} if op is None else {OP: op.id}
        if op is not None and op.module:
            meta["nn_module_stack"] = {op.module: (op.module, "")}
        else:
            meta.pop("nn_module_stack", None)


def _has_no_form(error: Exception) -> bool:
    """Whether torch says that it has no kernel or shape function for an op, rather than that the call is wrong."""
    named = type(error).__name__ in _DATA_DEPENDENT or isinstance(error, (Unsupported, NotImplementedError))
    return named or any(part in str(error) for part in ("Could not run", "sparse", "Sparse", "not implemented for"))


_DATA_DEPENDENT = frozenset(
    ("DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedOperatorException",
     "UnsupportedFakeTensorException", "GuardOnDataDependentSymNode")
)  # fmt: skip


# -- after tracing -----------------------------------------------------------------------------------------------------


def _placeholder_names(tangents: Sequence[bool]) -> list[str]:
    """``primals_N`` and ``tangents_N``, as the partitioner expects them."""
    numbers = itertools.count(1), itertools.count(1)
    return [f"{'tangents' if tangent else 'primals'}_{next(numbers[tangent])}" for tangent in tangents]


def _rename(module: GraphModule, tangents: Sequence[bool]) -> None:
    """Name the placeholders and put primals first, then tangents."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for node, name in zip(placeholders, _placeholder_names(tangents), strict=True):
        node.target = node.name = name
    if any(tangents):
        first = placeholders[tangents.index(True)]
        for node, tangent in zip(placeholders, tangents, strict=True):
            if not tangent:
                first.prepend(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _expand_products(module: GraphModule, forward: Collection[int]) -> None:
    """Put back the ``expand`` that a product of more than three axes begins with: it changes nothing and a trace does
    not keep it, but torch recognizes decomposed attention by it."""
    for node in [n for n in module.graph.nodes if n.target is _ATEN.bmm.default and op_of(n) in forward]:
        for operand in node.args[:2]:
            assert isinstance(operand, Node)
            if operand.target is _ATEN.view.default:
                _expand_source(module, operand)
    module.recompile()


def _expand_source(module: GraphModule, flattened: Node) -> None:
    source: Any = flattened.args[0]
    if source.meta["val"].dim() <= flattened.meta["val"].dim():
        return
    reader: Any = source if source.target is _ATEN.clone.default else flattened
    widened: Any = reader.args[0]
    if widened.target is not _ATEN.expand.default:
        with module.graph.inserting_before(reader):
            expanded = module.graph.call_function(_ATEN.expand.default, (widened, list(widened.meta["val"].shape)))
        expanded.meta = {"val": widened.meta["val"]}
        reader.replace_input_with(widened, expanded)
