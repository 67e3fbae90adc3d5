"""A module of HLO → Graph, in terms of ``jax.lax``, and the kernels that its instructions launch.

Every instruction that computes is an op, also inside fusions; a kernel is what one instruction launches outside of
fusions. Loops are written out as often as they run, where the text says so or their counters tell; of a conditional the
branch with most work is taken. Rearrangements are views, with layouts as strides; what a fusion slices or gathers
counts by the part that it touches, and of a buffer that is updated in place the part that is written. Whatever else a
kernel returns is written whole, in the layout that the text says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from memwall.core.errors import MALFORMED, UsageError
from memwall.frontend.hlo.convolutions import product_numbers
from memwall.frontend.hlo.module import HloArray, HloComputation, HloInstruction, HloModule, HloShape, arrays
from memwall.frontend.hlo.names import REARRANGED
from memwall.frontend.hlo.rules import computed
from memwall.frontend.hlo.scalars import Known, evaluated, number_of
from memwall.frontend.hlo.sheet import COPIES, MESSAGES, HloArgument, HloConstant, HloGraph, Node, Sheet, values_of
from memwall.frontend.writing import MAX_OPS

#: opcodes that launch nothing and yield their first operand, or nothing
_PASSED = frozenset((
    "after-all", "add-dependency", "opt-barrier", "optimization-barrier", "domain", "get-dimension-size",
    "set-dimension-size", "partition-id", "replica-id",
))  # fmt: skip
#: custom calls that stand for memory or say something to the compiler
_SAID = frozenset((
    "AllocateBuffer", "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "AssumeGatherIndicesInBound",
    "GatherScatterIndicesBitpacked", "annotate_device_placement", "MoveToHost", "MoveToDevice",
    "xla.sdy.FuncResultSharding", "LayoutConstraint", "X64Combine", "X64SplitLow", "X64SplitHigh",
))  # fmt: skip
#: opcodes that make no elements
_HANDED_ON = frozenset(("parameter", "constant", "tuple", "get-tuple-element", "bitcast"))
_UNKNOWN_LOOP = "A loop whose length the program does not say runs once: {}."


def graph_of(
    module: HloModule, known: Sequence[HloArgument] = (), max_ops: int = MAX_OPS, *, each_once: bool = False
) -> HloGraph:
    """The graph of a module's entry.

    Args:
        known: what the caller knows of its parameters. Each is the first of them, in order, that has its bytes, or
            says none.
        max_ops: the most ops, loops written out.
        each_once: every loop runs once with its condition, and every branch of a conditional: for a list of all kernels
            that there are.

    Raises:
        UsageError: there are more ops.
    """
    walk = HloWalk(module, max_ops)
    walk.each_once = each_once
    left = list(known)
    given = [walk.given(one, _first_of(left, one.shape)) for one in module.entry.parameters]
    results = walk.run(module.entry, given)
    values = [value for node in given for value in values_of(node)]
    held = [value for value in values if walk.storages[walk.values[value].storage].role == "parameter"]
    others = [value for value in values if value not in set(held)]
    graph = walk.graph(others, held, [*values_of(results)], one_program=True)
    return HloGraph(graph, tuple(walk.kernels), dict(walk.layouts), tuple(dict.fromkeys(walk.notes)))


def _first_of(left: list[HloArgument], shape: HloShape) -> HloArgument:
    """The first argument that is left and may have a shape; it is taken."""
    nbytes = sum(array.spec.nbytes for array in arrays(shape))
    found = next((one for one in left if one.nbytes in (0, nbytes)), None)
    if found is None:
        return HloArgument()
    left.remove(found)
    return found


class HloWalk(Sheet):
    """Writes a module's graph; ``each_once``: of loops an iteration, of conditionals all branches."""

    each_once = False

    def run(self, computation: HloComputation, arguments: Sequence[Node]) -> Node:
        """What a computation yields. Raises ``UsageError``: too many run, one after another, that write no op."""
        self.trip()
        found: dict[str, Node] = {}
        written = _written_in_place(computation)
        for one in computation.instructions:
            try:
                if one.opcode == "parameter":
                    found[one.name] = arguments[int(one.literal)]
                else:
                    operands = [found[name] for name in one.operands]
                    found[one.name] = self._yielded(computation, one, operands, one.name in written)
            except MALFORMED as error:
                raise UsageError(
                    f"{self.program.name}, line {one.line}: {one.opcode} {one.name} is not as XLA writes it"
                    f" ({' '.join(str(error).split())})"
                ) from error
        return found[computation.root]

    def _yielded(
        self, computation: HloComputation, one: HloInstruction, operands: Sequence[Node], in_place: bool
    ) -> Node:
        if (rule := _CONTROL.get(one.opcode)) is not None:
            return rule(self, computation, one, operands)
        if one.opcode in _PASSED or _is_said(one):
            return self._passed(one, operands)
        if one.opcode.endswith("-done"):
            return operands[0]
        if self.is_in_kernel:
            return self.step(computation, one, operands, in_place)
        return self._launched(computation, one, operands)

    def step(self, computation: HloComputation, one: HloInstruction, operands: Sequence[Node], in_place: bool) -> Node:
        """What an instruction yields within a kernel."""
        self.place(one)
        if one.opcode in ("fusion", "async"):
            return self.run(self.program.computations[one.called[0]], operands)
        shapes = [computation.by_name[name].shape for name in one.operands]
        return computed(self, one, operands, shapes, in_place)

    def _launched(self, computation: HloComputation, one: HloInstruction, operands: Sequence[Node]) -> Node:
        """What an instruction yields that launches a kernel. A bitcast launches none; before optimization no
        rearrangement does, and results are what the program says, wherever they lie."""
        stream = 0
        if one.opcode.endswith("-start"):
            one = replace(one, opcode=one.opcode.removesuffix("-start"), shape=_done(computation, one).shape)
            if not one.backend_config.get("collective_backend_config", {}).get("is_sync"):
                stream = COPIES if one.opcode in ("copy", "slice") else MESSAGES
        is_scheduled = self.program.is_scheduled
        with self.kernel(one, stream):
            yielded = self.step(computation, one, operands, is_scheduled)
            if one.opcode == "bitcast":
                return yielded
            if not is_scheduled:
                return self._unplanned(one, operands, yielded)
            root = self.program.computations[one.called[0]] if one.opcode == "fusion" else None
            last = root.by_name[root.root].opcode if root is not None else one.opcode
            return self.settled(yielded, one.shape, f"lax.{REARRANGED.get(last, 'copy')}")

    def _unplanned(self, one: HloInstruction, operands: Sequence[Node], yielded: Node) -> Node:
        """What an instruction yields before optimization; one that rearranges is an op that writes nothing."""
        if isinstance(one.shape, HloArray) and isinstance(yielded, int) and not self.is_made_here(yielded):
            name = f"lax.{REARRANGED.get(one.opcode, one.opcode)}"
            self.op(
                name, [node for node in operands[:1] if isinstance(node, int)], (), attributes={"view": one.shape.shape}
            )
        return yielded

    def _passed(self, one: HloInstruction, operands: Sequence[Node]) -> Node:
        if operands:
            return operands[0]
        return self._memory(one.shape)

    def _memory(self, shape: HloShape) -> Node:
        """Memory that nothing has written yet."""
        if isinstance(shape, HloArray):
            return self.new(shape) if shape.shape else HloConstant()
        return tuple(map(self._memory, shape))

    # -- control -------------------------------------------------------------------------------------------------------

    def loop(self, computation: HloComputation, one: HloInstruction, operands: Sequence[Node]) -> Node:
        """A loop, written out: as often as the text says, else as its condition says of numbers that can be told; of
        unknown length it runs once, with its condition."""
        state, count = operands[0], one.trip_count
        body, goes_on = (self.program.computations[_named(one, name)] for name in ("body", "condition"))
        if self.each_once:
            self.run(goes_on, [state])
            return self.run(body, [state])
        if count is not None:
            for _ in range(count):
                state = self.run(body, [state])
            return state
        known = evaluated(self.program, goes_on, [self._known(state)])
        if known is None:
            self.notes.append(_UNKNOWN_LOOP.format(one.name))
            self.run(goes_on, [state])
            return self.run(body, [state])
        while known:
            state = self.run(body, [state])
            known = evaluated(self.program, goes_on, [self._known(state)])
        return state

    def _known(self, node: Node) -> Known:
        if isinstance(node, int):
            return self.numbers.get(node)
        return node.number if isinstance(node, HloConstant) else tuple(map(self._known, node))

    def branch(self, computation: HloComputation, one: HloInstruction, operands: Sequence[Node]) -> Node:
        """The branch of a conditional with most work."""
        named = [name for name in one.called if name in self.program.computations]
        work = [self.work_of(name) for name in named]
        taken = work.index(max(work))
        if self.each_once:
            return [self.run(self.program.computations[name], [operands[1 + n]]) for n, name in enumerate(named)][taken]
        self.notes.append(f"A conditional takes the branch with most work: {named[taken]}.")
        return self.run(self.program.computations[named[taken]], [operands[1 + taken]])

    def work_of(self, name: str) -> int:
        """Elements that a computation and what it calls make, with the elements that products sum over."""
        if name in self._work:
            return self._work[name]
        total, computation = 0, self.program.computations[name]
        for one in computation.instructions:
            if one.opcode in _HANDED_ON:
                continue
            made = sum(prod(array.shape) for array in arrays(one.shape))
            (summed, _), _ = product_numbers(one)["dimension_numbers"]
            if summed and isinstance(left := computation.by_name[one.operands[0]].shape, HloArray):
                made = prod(next(arrays(one.shape)).shape) * prod(left.shape[axis] for axis in summed)
            total += made + sum(map(self.work_of, one.called))
        self._work[name] = total
        return total

    @cached_property
    def _work(self) -> dict[str, int]:
        return {}

    def call(self, computation: HloComputation, one: HloInstruction, operands: Sequence[Node]) -> Node:
        """A computation that is called as it is."""
        return self.run(self.program.computations[one.called[0]], operands)

    def constant(self, computation: HloComputation, one: HloInstruction, operands: Sequence[Node]) -> Node:
        """A scalar, or an array that the program brings along."""
        if not isinstance(one.shape, HloArray):
            return self._memory(one.shape)
        if one.shape.shape:
            made = self.new(one.shape, "buffer", one.name)
            self.layouts[made] = one.shape
            return made
        return HloConstant(number_of(one.literal))


def _tuple(walk: HloWalk, computation: HloComputation, one: HloInstruction, operands: Sequence[Node]) -> Node:
    return tuple(operands)


def _element(walk: HloWalk, computation: HloComputation, one: HloInstruction, operands: Sequence[Node]) -> Node:
    whole = operands[0]
    return whole[int(one.attributes["index"])] if isinstance(whole, tuple) else whole


Rule = Callable[[HloWalk, HloComputation, HloInstruction, Sequence[Node]], Node]

_CONTROL: Mapping[str, Rule] = {
    "tuple": _tuple,
    "get-tuple-element": _element,
    "constant": HloWalk.constant,
    "while": HloWalk.loop,
    "conditional": HloWalk.branch,
    "call": HloWalk.call,
}


def _is_said(one: HloInstruction) -> bool:
    return one.opcode == "custom-call" and one.attributes.get("custom_call_target", "").strip('"') in _SAID


def _named(one: HloInstruction, attribute: str) -> str:
    return one.attributes[attribute].lstrip("%")


def _done(computation: HloComputation, start: HloInstruction) -> HloInstruction:
    """The instruction that waits for what another one has started.

    Raises:
        UsageError: no instruction waits for it.
    """
    name = start.name
    for one in computation.instructions:
        if name in one.operands and one.opcode.endswith("-update"):
            name = one.name
        elif name in one.operands and one.opcode.endswith("-done"):
            return one
    raise UsageError(f"line {start.line} of the HLO: nothing waits for {start.name}")


def _written_in_place(computation: HloComputation) -> frozenset[str]:
    """The instructions whose result a fusion returns, itself or another view of it: what it updates is in place."""
    found, waiting = set(), [computation.root]
    while waiting:
        one = computation.by_name[waiting.pop()]
        found.add(one.name)
        if one.opcode in ("tuple", "bitcast", "reshape"):
            waiting += one.operands
    return frozenset(found)
