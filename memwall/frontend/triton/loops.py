"""Loops of a kernel: an axis more for what stands in them, which is read once for all iterations.

What a loop carries is known where each iteration adds the same to it; other integers are followed iteration by
iteration, by the operations that decide them alone; floats are not followed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from memwall.core.errors import Unsupported
from memwall.frontend.triton import values
from memwall.frontend.triton.ir import IrBlock, Operation, Type
from memwall.frontend.triton.reading import Reading, result_types
from memwall.frontend.triton.rules import RULES
from memwall.frontend.triton.values import LIMIT, Apart, Array, Known, at_depth, held, lifted, number, whole

#: iterations that are followed one by one
FOLLOWED = 4096
_INTEGER = Type((), "i32")


def counted_loop(reading: Reading, op: Operation) -> Sequence[Known]:
    """``scf.for``: as often as its bounds say, for each program."""
    counter, low, high, step, *pairs = op.operands
    bounds = [reading.get(name).resolved() for name in (low, high, step)]
    trips = _trips(reading, bounds)
    names, first = pairs[::2], [reading.get(name) for name in pairs[1::2]]
    most = int(trips.max())
    if most <= 0:
        return first
    body, loop = op.regions[0][0], _Loop(reading, names, first, trips)
    loop.carry(counter, bounds, body)
    with loop:
        counted = np.arange(most).reshape((1,) * (reading.depth - 1) + (-1,))
        inside = [at_depth(bound, reading.depth) for bound in bounds]
        steps = values.multiply(_INTEGER, inside[2], Known(_INTEGER, (counted,)))
        reading.values[counter] = values.add(bounds[0].kind, inside[0], steps)
        loop.enter()
        reading.block(body)
    if reading.counting:
        begun, before = reading.times((), ()), reading.ledger.trips.get(id(op), (0, 0))
        reading.ledger.trips[id(op)] = (before[0] + loop.iterations, before[1] + begun)
    return loop.last([value.kind for value in first])


def _trips(reading: Reading, bounds: Sequence[Known]) -> Array:
    """Iterations of each program, over the axes of programs and loops."""
    if not all(bound.is_known for bound in bounds):
        reading.note(f"the trips of a loop depend on data: {reading.trips} assumed")
        return np.full((1,) * reading.depth, reading.trips)
    low, high, step = (whole(bound.terms) for bound in bounds)
    return np.maximum(-((low - high) // np.where(step == 0, 1, step)), 0)


@dataclass
class _Loop:
    """What a loop carries: ``names`` begin as ``first``; ``steps`` are what is added to some of them each time,
    ``seen`` the values that others have, one for each iteration, and one more after the last."""

    reading: Reading
    names: Sequence[str]
    first: Sequence[Known]
    trips: Array
    steps: dict[str, Known] = field(default_factory=dict)
    seen: dict[str, list[Known]] = field(default_factory=dict)
    iterations: int = 0

    @property
    def most(self) -> int:
        return int(self.trips.max())

    def __enter__(self) -> None:
        reading = self.reading
        self._before = reading.active
        reading.sizes.append(self.most)
        if int(self.trips.min()) < self.most:
            if self.trips.size * self.most > LIMIT:
                raise Apart(_by_trips(self.trips))
            counted = np.arange(self.most).reshape((1,) * self.trips.ndim + (-1,))
            reading.active = (*reading.active, counted < self.trips[..., None])
        self.iterations = reading.times((), ()) if reading.counting else 0

    def __exit__(self, *raised: object) -> None:
        self.reading.sizes.pop()
        self.reading.active = self._before

    def carry(self, counter: str, bounds: Sequence[Known], body: IrBlock) -> None:
        """Find how each integer that is carried changes."""
        made = _Made(self.reading, {name: op for op in body.ops for name in op.results}, {counter, *self.names})
        yielded = dict(zip(self.names, body.ops[-1].operands, strict=True)) if self.names else {}
        first = dict(zip(self.names, self.first, strict=True))
        left = [name for name in self.names if not first[name].kind.is_float and first[name].late is None]
        for name in left:
            step = made.step(yielded[name], name)
            if step is not None and step.is_known:
                self.steps[name] = step
        self.follow(counter, bounds, body, [name for name in left if name not in self.steps], yielded)

    def follow(
        self, counter: str, bounds: Sequence[Known], body: IrBlock, left: list[str], yielded: Mapping[str, str]
    ) -> None:
        """Go through the iterations, and keep what ``left`` are in each."""
        first, reading = dict(zip(self.names, self.first, strict=True)), self.reading
        left = [name for name in left if first[name].is_known]
        if not left or self.most > FOLLOWED:
            return
        only = needed(body, [yielded[name] for name in left])
        state = {name: first[name] for name in left}
        seen = {name: [first[name]] for name in left}
        was, reading.counting = reading.counting, False
        for at in range(self.most):
            for name in self.names:
                reading.values[name] = state.get(name) or self._at(name, first[name], at)
            turned = values.multiply(_INTEGER, bounds[2], number(_INTEGER, at, reading.depth))
            reading.values[counter] = values.add(_INTEGER, bounds[0], turned)
            reading.block(body, only)
            state = {name: reading.get(yielded[name]).resolved() for name in left}
            for name in left:
                seen[name].append(state[name])
        reading.counting = was
        self.seen = {name: some for name, some in seen.items() if all(value.is_known for value in some)}

    def _at(self, name: str, first: Known, at: int) -> Known:
        if name not in self.steps:
            return Known(first.kind, vague=True)
        turns = number(first.kind, at, self.reading.depth)
        return replace(values.add(first.kind, first, values.multiply(first.kind, self.steps[name], turns)))

    def enter(self) -> None:
        """Name what is carried as it is inside, in all iterations at once."""
        reading = self.reading
        counted = np.arange(self.most)
        for name, first in zip(self.names, self.first, strict=True):
            rank = len(first.kind.shape)
            if name in self.steps:
                turns = Known(first.kind, (counted.reshape((1,) * (reading.depth - 1) + (-1,) + (1,) * rank),))
                first, step = at_depth(first, reading.depth), at_depth(self.steps[name], reading.depth)
                moved = values.multiply(first.kind, step, turns)
                reading.values[name] = values.add(first.kind, first, moved)
            elif name in self.seen:
                reading.values[name] = stacked(self.seen[name][: self.most], reading.depth - 1)
            else:
                reading.values[name] = Known(first.kind, vague=True, base=first.base)

    def last(self, kinds: Sequence[Type]) -> Sequence[Known]:
        """What is carried after the last iteration of each program."""
        found, depth = [], self.reading.depth
        for kind, name, first in zip(kinds, self.names, self.first, strict=True):
            rank = len(kind.shape)
            if name in self.steps:
                turns = Known(kind, (self.trips.reshape(self.trips.shape + (1,) * rank),))
                moved = values.multiply(kind, self.steps[name], turns)
                found.append(values.add(kind, first, moved))
            elif name in self.seen:
                found.append(_chosen(stacked(self.seen[name], depth), self.trips, depth))
            else:
                found.append(Known(kind, vague=True, base=first.base))
        return found


def while_loop(reading: Reading, op: Operation) -> Sequence[Known]:
    """``scf.while``: integers are followed from iteration to iteration until the condition holds for no program."""
    (before, *_), (after, *_) = op.regions
    names, first = op.operands[::2], [reading.get(name) for name in op.operands[1::2]]
    condition, *forwarded = before.ops[-1].operands
    handed = [name for name, _ in after.arguments]
    state, seen, trips = dict(zip(names, first, strict=True)), [], np.zeros((1,) * reading.depth, np.int64)
    running, was, reading.counting = np.ones((1,) * reading.depth, bool), reading.counting, False
    for _ in range(FOLLOWED + 1):
        reading.values.update(state)
        seen.append(dict(state))
        reading.block(before, needed(before, [condition, *forwarded]))
        holds = reading.get(condition).resolved()
        if not holds.is_known:
            reading.counting = was
            waits = all(op.name == "scf.yield" for op in after.ops)  # for a lock, which is taken to be free
            turns = 0 if waits else reading.trips
            reading.note(f"the trips of a loop depend on data: {turns} assumed")
            trips = np.full((1,) * reading.depth, turns)
            seen = [{name: Known(value.kind, vague=True) for name, value in state.items()}] * (turns + 1)
            break
        running = running & held(holds.terms)
        if not running.any():
            break
        trips = trips + running
        reading.values.update(zip(handed, [reading.get(name) for name in forwarded], strict=True))
        reading.block(after, needed(after, after.ops[-1].operands))
        state = dict(zip(names, [reading.get(name) for name in after.ops[-1].operands], strict=True))
    else:
        raise Unsupported(f"a loop of more than {FOLLOWED:,} iterations whose end only following it shows")
    reading.counting = was
    for region, more in ((before, 1), (after, 0)):
        loop = _Loop(reading, names, first, trips + more)
        if loop.most <= 0:
            continue
        with loop:
            for name in names:
                some = [turn[name] for turn in seen[: loop.most]]
                reading.values[name] = stacked(some, reading.depth - 1)
            if region is after:
                reading.block(before, needed(before, forwarded))
                reading.values.update(zip(handed, [reading.get(name) for name in forwarded], strict=True))
            reading.block(region)
    kinds = [reading.values[name].kind for name in names]
    exits = dict(zip(names, _Loop(reading, names, first, trips, seen={
        name: [turn[name] for turn in seen] for name in names if all(turn[name].is_known for turn in seen)
    }).last(kinds), strict=True))  # fmt: skip
    return [exits.get(name, Known(kind, vague=True)) for name, kind in zip(forwarded, result_types(op), strict=True)]


@dataclass
class _Made:
    """What an iteration adds to what it carries. ``inner`` are the operations of the body by what they make, ``moving``
    the names that differ between iterations."""

    reading: Reading
    inner: Mapping[str, Operation]
    moving: set[str]

    def step(self, name: str, carried: str) -> Known | None:
        """What is added to ``carried`` to make ``name``; None where it is not made so."""
        if name == carried:
            return number(_INTEGER, 0, self.reading.depth)
        op = self.inner.get(name)
        if op is None or op.name not in ("arith.addi", "tt.addptr", "arith.subi"):
            return None
        a, b = op.operands
        ways = [(a, b)] if op.name == "arith.subi" else [(a, b), (b, a)]
        for on, other in ways:
            before, added = self.step(on, carried), self.constant(other)
            if before is not None and added is not None:
                return values.add(added.kind, before_as(before, added), added, -1 if op.name == "arith.subi" else 1)
        return None

    def constant(self, name: str) -> Known | None:
        """A value that is the same in all iterations."""
        if name in self.moving:
            return None
        op = self.inner.get(name)
        if op is None:
            return self.reading.get(name).resolved()
        if op.name not in RULES or any(self.constant(each) is None for each in op.operands):
            return None
        self.reading.step(op)
        return self.reading.get(name).resolved()


def before_as(before: Known, added: Known) -> Known:
    """A step with the axes of another."""
    missing = len(added.kind.shape) - len(before.kind.shape)
    if not missing:
        return before
    return before.shaped(added.kind, lambda array: array.reshape(array.shape + (1,) * missing))


def needed(block: IrBlock, names: Sequence[str]) -> frozenset[str]:
    """The names that operations of a block make and that some of its names depend on."""
    wanted = set(names)
    for op in reversed(block.ops):
        if not wanted.isdisjoint(op.results):
            wanted.update(op.operands, op.results)
            wanted.update(each for region in op.regions for inner in region for each in _read(inner))
    return frozenset(wanted)


def _read(block: IrBlock) -> set[str]:
    found = {name for op in block.ops for name in op.operands}
    for op in block.ops:
        for region in op.regions:
            for inner in region:
                found |= _read(inner)
    return found


def stacked(some: Sequence[Known], depth: int) -> Known:
    """Values of one iteration after another, as one with an axis for the iterations behind the first ``depth``."""
    kind, rank = some[0].kind, len(some[0].kind.shape)
    if kind.is_float or not all(value.is_known and value.late is None for value in some):
        return Known(kind, vague=True, base=some[0].base)
    join = held if kind.element == "i1" else whole
    arrays = np.broadcast_arrays(*(lifted(join(value.terms), rank, depth) for value in some))
    if arrays[0].size * len(arrays) > LIMIT:
        return Known(kind, vague=True, base=some[0].base)
    return Known(kind, (np.stack(arrays, axis=depth),), base=some[0].base)


def _chosen(values_of_turns: Known, trips: Array, depth: int) -> Known:
    """Of values with an axis for the iterations, that after the last of each program."""
    if not values_of_turns.is_known:
        return Known(values_of_turns.kind, vague=True, base=values_of_turns.base)
    (array,), rank = values_of_turns.terms, len(values_of_turns.kind.shape)
    at = trips.reshape((*trips.shape, 1) + (1,) * rank)
    shape = (*np.broadcast_shapes(array.shape[:depth], trips.shape), 1, *array.shape[depth + 1 :])
    full = np.broadcast_to(array, (*shape[:depth], array.shape[depth], *array.shape[depth + 1 :]))
    found = np.take_along_axis(full, np.broadcast_to(at, shape), axis=depth)
    return replace(values_of_turns, terms=(np.squeeze(found, axis=depth),), _made=[])


def _by_trips(trips: Array) -> list[Array]:
    """Programs with as many iterations, in groups."""
    most = trips.reshape(trips.shape[0], -1).max(axis=1)
    if trips.shape[0] == 1:
        return []
    kinds, places = np.unique(most, return_inverse=True)
    return [np.flatnonzero(places == number) for number in range(len(kinds))]
