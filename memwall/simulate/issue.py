"""What the host does to issue each kernel of a plan: calls, modules, views, autograd nodes, allocations, launches.

The kinds of work are the fields of :class:`memwall.hardware.host.HostWork`. An eager op is a call of the dispatcher,
from Python or from an autograd node. Calls that launch nothing have no place in a graph, which counts them: they are
spread evenly over its ops. Under a fused policy each phase is a call of compiled code, which does nothing but launch
its kernels, and what no compiled graph holds is issued as eager does; ``ideal`` is a call and its launches, the least
that any kernel asks for. A loop over the groups of a grouped matmul calls the dispatcher for each, within compiled code
too. A graph of JAX's primitives has calls, allocations and launches alone: scopes are names, gradients are part of the
program, and what is compiled is called once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from memwall.core.graph import Graph, Op
from memwall.hardware.host import HostWork
from memwall.ops.registry import is_recurrent

#: How the CPU issues kernels: one op after another, each step issued while the GPU still runs the one before it; the
#: same for a lone call on an idle GPU; as a CUDA graph, issued beforehand, so that nothing waits; a lone call of
#: compiled code that replays a CUDA graph; each alone, issued beforehand and with nothing in L2.
LAUNCHES = ("eager", "call", "graph", "replay", "alone")

#: views that a loop takes for each of its products: of both operands and of the result (GroupedMMUtils.h)
_VIEWS_OF_LOOP = 3
#: calls that launch nothing and make no view: they allocate
_ALLOCATING = ("aten.empty", "aten.new_empty")

#: how the names of ops begin that are primitives of JAX
_OF_JAX = "lax."

#: a kernel of a plan as the host sees it: its ops and its launches
Issued = tuple[Sequence[int], int]


def work_of(
    graph: Graph, policy: str, kernels: Sequence[Issued], launch: str = "eager", outside: Collection[int] = frozenset()
) -> list[HostWork]:
    """The work of each kernel of a plan, in launch order; ``outside`` as :class:`memwall.fusion.Plan` has it."""
    if launch in ("eager", "call"):
        kernels = [(op_ids, _launches(graph.ops[op_ids[0]], launches)) for op_ids, launches in kernels]
        return _ISSUED[policy](graph, kernels) if policy in _ISSUED else _compiled(graph, kernels, outside)
    work = [HostWork()] * len(kernels)
    if work and (launch == "replay" or (launch == "graph" and policy != "eager")):
        work[0] = HostWork(replay=1)
    return work


def _is_loop(op: Op) -> bool:
    """Whether each of its launches is a call of its own."""
    return "looped" in (op.attributes or ())


def _launches(op: Op, launches: int) -> int:
    """The launches that the host is asked for; launches of a recurrent layer are in its own model."""
    return min(launches, 1) if is_recurrent(op.name) else launches


def _eager(graph: Graph, kernels: Iterable[Issued]) -> list[HostWork]:
    host = _Eager(graph)
    return [host.work(graph.ops[op_ids[0]], launches) for op_ids, launches in kernels]


def _compiled(graph: Graph, kernels: Iterable[Issued], outside: Collection[int]) -> list[HostWork]:
    host, found, called = _Eager(graph), [], set()
    for op_ids, launches in kernels:
        op = graph.ops[op_ids[0]]
        if op.id in outside or _is_loop(op):
            found.append(host.work(op, launches))
            continue
        phase = op.phase if host.of_torch else ""
        first = bool(launches) and phase not in called
        called.update([phase] * first)
        guarded = first and phase == "forward" and bool(graph.parameters)
        node = first and host.of_torch and graph.takes_gradients  # autograd sees a phase of compiled code as one op
        found.append(
            HostWork(
                node=node,
                backward=host.begins(op),
                compiled_call=first,
                compiled_parameters=guarded,
                compiled_kernel=launches,
            )
        )
    return found


def _ideal(graph: Graph, kernels: Iterable[Issued]) -> list[HostWork]:
    return [HostWork(op=bool(launches), launch=launches) for _, launches in kernels]


#: policy -> how its kernels are issued; kernels of all others are compiled
_ISSUED: Mapping[str, Callable[[Graph, Iterable[Issued]], list[HostWork]]] = {"eager": _eager, "ideal": _ideal}


class _Eager:
    """The host while it runs a graph op by op."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.of_torch = not any(op.name.startswith(_OF_JAX) for op in graph.ops[:1])
        allocating = sum(n for name, n in graph.free_calls.items() if name.startswith(_ALLOCATING))
        ops = max(len(graph.ops), 1)
        self.views, self.allocations = (sum(graph.free_calls.values()) - allocating) / ops, allocating / ops
        held = (graph.values[i].storage for i in graph.parameters)
        #: storages whose contents depend on what is trained
        self.differentiated = set(held) if graph.takes_gradients else set()
        self.written: set[int] = set()
        self.module: list[str] = []
        self.phase = ""

    def work(self, op: Op, launches: int) -> HostWork:
        """What an op asks of the host; to be called in the order of the ops."""
        product = op.op_class == "contraction"
        library = op.op_class == "convolution" or "batch_norm" in op.name or is_recurrent(op.name)
        begins = self.begins(op)
        calls = launches if _is_loop(op) else bool(launches)
        return HostWork(
            op=calls,
            module=self._modules(op),
            view=self.views + _VIEWS_OF_LOOP * calls * _is_loop(op),
            node=self._nodes(op),
            backward=begins,
            launch=launches,
            allocation=self._made(op) + self.allocations,
            cudnn=library,
            cublas=product * max(calls, 1),
        )

    def begins(self, op: Op) -> bool:
        """Whether backward begins with an op; to be called in the order of the ops."""
        before, self.phase = self.phase, op.phase
        return self.of_torch and op.phase == "backward" != before

    def _modules(self, op: Op) -> int:
        """Modules called since the op before it; the backward pass and the optimizer call none."""
        if op.phase != "forward" or not self.of_torch:
            return 0
        before, self.module = self.module, op.module.split(".") if op.module else []
        shared = 0
        while shared < min(len(before), len(self.module)) and before[shared] == self.module[shared]:
            shared += 1
        return len(self.module) - shared

    def _nodes(self, op: Op) -> bool:
        """Whether autograd makes a node for a forward op, or runs one in backward."""
        if not self.of_torch:
            return False
        storages = self.graph.values
        if op.phase == "forward" and not self.differentiated.isdisjoint(storages[i].storage for i in op.inputs):
            self.differentiated.update(storages[i].storage for i in op.outputs)
            return True
        return op.phase == "backward"

    def _made(self, op: Op) -> int:
        """Results that it allocates: storages that nothing wrote before it."""
        results = {self.graph.values[i].storage for i in op.outputs}
        made = {i for i in results - self.written if not self.graph.storages[i].is_persistent}
        self.written |= results
        return len(made)
