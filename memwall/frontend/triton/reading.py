"""A reading of a kernel over some of its programs: the values that it has met, and what it has counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from memwall.core.graph import Pipe
from memwall.frontend.triton.ir import IrBlock, KernelIr, Operation, Type
from memwall.frontend.triton.ledger import Ledger
from memwall.frontend.triton.places import counted
from memwall.frontend.triton.rules import FLOPS, RULES, unknown
from memwall.frontend.triton.values import Apart, Array, Known, at_depth, lifted, number


@dataclass(frozen=True, slots=True)
class LaunchRead:
    """What is read: a kernel, of each of its arguments the number (None: a pointer or a float), the programs along x, y
    and z, and the iterations of a loop whose number depends on data."""

    kernel: KernelIr
    arguments: Sequence[int | None]
    grid: tuple[int, int, int]
    trips: int = 1


class Reading:
    """A reading over some programs. ``rough``: what does not fit in memory is not followed, instead of read in parts.
    ``sizes`` are of the axes of programs and loops, ``active`` conditions under which what is read runs, and
    ``by_data`` says that data decides it too."""

    def __init__(self, asked: LaunchRead, programs: Array, structures: Mapping[str, Structure], *, rough: bool) -> None:
        self.kernel, self.rough, self.trips = asked.kernel, rough, asked.trips
        self.structures = structures
        self.ledger = Ledger()
        self.values: dict[str, Known] = {}
        self.sizes: list[int] = [len(programs)]
        self.active: tuple[Array, ...] = ()
        self.by_data = False
        self.grid = x, y, _ = asked.grid
        self.program = (programs % x, programs // x % y, programs // (x * y))
        self.counting = True
        for (name, kind), given in zip(asked.kernel.arguments, asked.arguments, strict=True):
            self.values[name] = self._argument(name, kind, given)

    def _argument(self, name: str, kind: Type, given: int | None) -> Known:
        if kind.pointee:
            return replace(number(kind, 0, 1), base=name)
        if kind.element == "i1" and given is not None:
            return Known(kind, (np.full((1,), bool(given)),))
        return Known(kind, vague=True) if given is None or kind.is_float else number(kind, given, 1)

    @property
    def depth(self) -> int:
        return len(self.sizes)

    def run(self) -> None:
        """Read the whole kernel: its blocks in order, each under the conditions under which it is jumped to."""
        entered: dict[str, list[tuple[tuple[Array, ...], Sequence[Known]]]] = {}
        doubtful: set[str] = set()
        for block in self.kernel.blocks:
            if block.label:
                ways = entered.get(block.label, [])
                if not ways:
                    continue
                self.active = ways[0][0] if len(ways) == 1 else self._either([way for way, _ in ways])
                self.by_data = block.label in doubtful
                for at, (name, kind) in enumerate(block.arguments):
                    found = [given[at] for _, given in ways]
                    self.values[name] = found[0] if len(found) == 1 else unknown(kind, found)
            self.block(block)
            if block.ops and (last := block.ops[-1]).name in ("cf.cond_br", "cf.br"):
                for label, conditions, given in self._jumps(last):
                    entered.setdefault(label, []).append(((*self.active, *conditions), given))
                    if self.by_data or (last.name == "cf.cond_br" and not conditions):
                        doubtful.add(label)

    def _either(self, ways: list[tuple[Array, ...]]) -> tuple[Array, ...]:
        """What holds where one of several ways leads: none of them, where they are many."""
        shared = [array for array in ways[0] if all(any(array is own for own in way) for way in ways[1:])]
        return tuple(shared)

    def _jumps(self, op: Operation) -> list[tuple[str, tuple[Array, ...], Sequence[Known]]]:
        labels = [part.partition("(")[0].strip() for part in op.text.split("^")[1:]]
        labels = [label.rstrip(", ") for label in labels]
        if op.name == "cf.br":
            return [(labels[0], (), self.operands(op))]
        condition, *rest = self.operands(op)
        first = op.text.partition("^")[2].partition("^")[0].count("%") if "(" in op.text else 0
        yes, no = self.conditions(condition)
        given = (rest[:first], rest[first:])
        return [(labels[0], yes, given[0]), (labels[1], no, given[1])]

    def conditions(self, condition: Known) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Under which programs a condition holds, and under which not; both are open where data decides."""
        condition = condition.resolved()
        if not condition.is_known:
            self.note("a branch depends on data: both ways are counted")
            return (), ()
        terms = condition.terms
        joined = terms[0].astype(bool) if len(terms) == 1 else np.logical_and.reduce(np.broadcast_arrays(*terms))
        return (joined,), (~joined,)

    # -- operations ----------------------------------------------------------------------------------------------------

    def block(self, block: IrBlock, only: frozenset[str] | None = None) -> None:
        """Read a block; ``only`` the operations that make some of these names."""
        for op in block.ops:
            if only is None or not only.isdisjoint(op.results):
                self.step(op)

    def step(self, op: Operation) -> None:
        """Read one operation."""
        try:
            made = self._made(op)
        except Apart:
            if not self.rough:
                raise
            made = [Known(kind, vague=True) for kind in result_types(op)]
        self.values.update(zip(op.results, made, strict=True))

    def operands(self, op: Operation) -> list[Known]:
        return [self.get(name) for name in op.operands]

    def get(self, name: str) -> Known:
        """A value as it is seen here."""
        return at_depth(self.values[name], self.depth)

    def _made(self, op: Operation) -> Sequence[Known]:
        if op.name in self.structures:
            return self.structures[op.name](self, op)
        given, kinds = self.operands(op), result_types(op)
        if not kinds:
            return ()
        kind = kinds[0]
        if op.name in RULES:
            made = RULES[op.name](op, given, kind, self.depth)
        else:
            made = unknown(kind, given)
        if op.name in FLOPS and kind.is_float:
            work, flops = FLOPS[op.name]
            self.spend(work, kind, flops, made.live)
        elif self.counting and made.vague and not (kind.is_float or kind.pointee or made.is_condition):
            self.ledger.instructions += self.times((), kind.shape)
        return [made, *(Known(other, vague=True) for other in kinds[1:])]

    # -- what is counted -----------------------------------------------------------------------------------------------

    def times(self, conditions: Sequence[Array], shape: Sequence[int]) -> int:
        """How many elements of a block are met under some conditions, over all programs and iterations."""
        rank = len(shape)
        outer = [lifted(array, 0, self.depth).reshape(_outer(array, self.depth) + (1,) * rank) for array in self.active]
        return counted([*outer, *(lifted(c, rank, self.depth) for c in conditions)], [*self.sizes, *shape])

    def spend(self, work: str, kind: Type, flops: int, live: Sequence[Array], pipe: Pipe | None = None) -> None:
        """Count FLOPs for each element of a block, of what was loaded, and of the whole block."""
        if not self.counting or not flops:
            return
        pipe = pipe or Pipe("vector", "float64" if kind.element == "f64" else "float32")
        whole_block = self.times((), kind.shape)
        try:
            loaded = self.times(live, kind.shape) if live else whole_block
        except Apart:
            if not self.rough:
                raise
            loaded = whole_block
        self.ledger.flops[work, pipe] += flops * loaded
        self.ledger.block_flops[pipe] += flops * whole_block

    def note(self, text: str) -> None:
        if self.counting:
            self.ledger.notes[text] = None


def _outer(array: Array, depth: int) -> tuple[int, ...]:
    return array.shape + (1,) * (depth - array.ndim)


def result_types(op: Operation) -> tuple[Type, ...]:
    """The types of the results: the last ones that it states; of a load what its pointer points to."""
    count = len(op.results)
    if not count:
        return ()
    if op.name in ("tt.load", "tt.addptr"):
        kind = op.types[0]
        return (Type(kind.shape, kind.pointee),) if op.name == "tt.load" else (kind,)
    if op.name in ("arith.cmpi", "arith.cmpf"):
        return (Type(op.types[0].shape, "i1"),)
    if not op.types:
        return (Type((), "i1"),) * count
    return op.types[-count:]


#: an operation that is more than a rule: one on memory, a loop, a branch
Structure = Callable[[Reading, Operation], Sequence[Known]]
