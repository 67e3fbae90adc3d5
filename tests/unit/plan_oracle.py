"""Executes a plan symbolically: what would each op read if the kernels of the plan ran one after another?

Written without :mod:`memwall.core.flow`. A storage is a set of cells, one for each set of elements that all views
treat alike. In call order every op writes a token of its own to the cells of its outputs; what it reads then is the
truth. A plan must hand every op the same tokens: from the registers of the kernel where the op that wrote last is
computed in it, else from memory, through a value that the kernel lists among its reads, after a kernel that lists it
among its writes.
"""

from collections.abc import Iterable

from memwall.core.graph import Graph, Value
from memwall.fusion import Group, Plan

#: (storage, element)
Cell = tuple[int, int]
#: (op, position of the output) that wrote a cell; op -1: there before the first op
Token = tuple[int, int]

LASTING = ("parameter", "buffer", "input", "optimizer_state", "gradient")


class Oracle:
    """The truth of a graph: what each op reads when the ops run in call order.

    A cell is named by its first element. Views must start, and be cut, at elements where some value begins or at the
    middle of an axis: the tests cut nowhere else.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        corners: dict[int, set[int]] = {}
        for value in graph.values:
            corners.setdefault(value.storage, set()).update(_corners(value))
        self.cells = {
            value.id: [(value.storage, e) for e in sorted(corners[value.storage]) if _covers(value, e)]
            for value in graph.values
        }
        self.truth, self.final = self._in_call_order()

    def _in_call_order(self) -> tuple[list[list[dict[Cell, Token]]], dict[Cell, Token]]:
        memory: dict[Cell, Token] = {}
        truth = []
        for op in self.graph.ops:
            truth.append([{c: memory.get(c, (-1, 0)) for c in self.cells[v]} for v in op.inputs])
            for position, value in enumerate(op.outputs):
                memory.update(dict.fromkeys(self.cells[value], (op.id, position)))
        return truth, memory

    def lasting(self) -> dict[Cell, Token]:
        """What must be in memory when the step is over."""
        graph = self.graph
        kept = {graph.values[i].storage for i in graph.outputs}
        return {
            cell: token
            for cell, token in self.final.items()
            if cell[0] in kept or graph.storages[cell[0]].role in LASTING
        }

    def faults(self, plan: Plan) -> list[str]:
        """What goes wrong when the plan runs, one line each."""
        memory: dict[Cell, Token] = {}
        found = []
        for number, group in enumerate(plan.groups):
            found += [f"group {number} {group.op_ids}: {fault}" for fault in self._launch(group, memory)]
        for cell, token in self.lasting().items():
            if memory.get(cell, (-1, 0)) != token:
                found.append(f"after the step {cell} holds {memory.get(cell)}, not {token}")
        return found

    def _launch(self, group: Group, memory: dict[Cell, Token]) -> list[str]:
        inside = {*group.op_ids, *group.recomputes}
        found = []
        for op_id in sorted(inside):
            if self.graph.ops[op_id].is_view:  # its copy, which a fused plan does not run
                continue
            for value, tokens in zip(self.graph.ops[op_id].inputs, self.truth[op_id], strict=True):
                outside = {cell: token for cell, token in tokens.items() if token[0] not in inside}
                if outside and value not in group.reads:
                    found.append(f"op {op_id} loads value {value}, which is not among the reads")
                for cell, token in outside.items():
                    if memory.get(cell, (-1, 0)) != token:
                        found.append(f"op {op_id} reads {cell} as {memory.get(cell)}, not {token}")
        for op_id in sorted(group.op_ids):
            for position, value in enumerate(self.graph.ops[op_id].outputs):
                if value in group.writes:
                    memory.update(dict.fromkeys(self.cells[value], (op_id, position)))
        return found


def _corners(value: Value) -> Iterable[int]:
    """The first element of a view and those halfway along each of its axes."""
    places = {value.offset}
    for size, stride in zip(value.spec.shape, value.spec.strides, strict=True):
        if size > 1 and stride:
            places |= {place + size // 2 * stride for place in places}
    return places


def _covers(value: Value, element: int) -> bool:
    """Whether an element of the storage is one of the view's: digits of its place in the mixed base of the strides."""
    rest = element - value.offset
    if rest < 0 or not value.spec.numel:
        return False
    axes = sorted(zip(value.spec.strides, value.spec.shape, strict=True), reverse=True)
    for stride, size in axes:
        if stride:
            digit = min(rest // stride, size - 1)
            rest -= digit * stride
    return rest == 0


def written_twice(graph: Graph) -> bool:
    """Whether any storage is written by more than one op, or one that is there before the step is written at all."""
    seen: set[int] = set()
    for op in graph.ops:
        for value in op.outputs:
            storage = graph.storages[graph.values[value].storage]
            if storage.id in seen or storage.role != "activation":
                return True
            seen.add(storage.id)
    return False
