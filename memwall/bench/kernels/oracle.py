"""What a kernel should have computed: random inputs for a group of ops, its results in float64, and the comparison.

The tolerance of an element that should be ``e`` is

    unit(dtype) · |e|  +  3 · spread  +  16 · 2⁻²⁴ · max |e|

The first term is the rounding to the output's dtype. ``spread`` is how far the output moves, at most, in some runs in
float64 whose ops read rounded numbers: each number that an op reads is multiplied by 1 + u · a, u uniform in ±1. For a
number that the group itself made, a is the unit of the dtype that the graph gives it (a kernel may round it, as eager
does, or keep it in float32). To it comes what float32 arithmetic loses: 2⁻²⁴ · √n for an op that adds up n numbers, as
sums of n terms in any order err. The last term is for elementary functions in float32. No term grows with what a wrong
mask, a wrong neighbour or a sum in 16 bits would do. Groups that only move numbers, and integers and booleans, are
compared exactly. NaN and infinities must be where they should be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from memwall.bench.kernels.arena import GUARD_BYTES, POISONS, Arena
from memwall.bench.kernels.evaluate import UNIT_FLOAT32, Noise, WideMemory, run_group, unit
from memwall.bench.kernels.fill import fill
from memwall.bench.kernels.philox import uniform
from memwall.codegen.kernel import Kernel
from memwall.core.flow import Flow
from memwall.core.graph import Graph
from memwall.fusion import Group
from memwall.ops.evaluate import Operators, dtype_of

#: tolerance in units of the spread, and in float32 roundings of the largest element
SPREADS, ROUNDINGS = 3.0, 16.0
#: runs with noise; more where an output has few elements, so that chance makes none of them too small
RUNS, RUNS_OF_FEW, FEW = 4, 12, 256
#: results of a group over lists of tensors: more than this many, and chance is not looked at so closely
FEW_TENSORS = 16
#: standard deviations by which the share of kept elements of a dropout may be off
DEVIATIONS = 6.0

#: ops that move numbers and change none
_MOVING = frozenset((
    "clone", "cat", "stack", "embedding", "index", "index_select", "gather", "select_backward", "slice_backward",
    "copy_", "zeros", "zeros_like", "new_zeros", "fill_", "zero_", "neg", "ones_like", "upsample_nearest2d",
))  # fmt: skip

#: storages with these roles are there before the step
_PERSISTENT = ("parameter", "buffer", "input", "optimizer_state")

#: A generated kernel's ``run``.
Run = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True)
class Check:
    """Whether a kernel did what it should. ``error`` is the worst deviation in units of the tolerance (up to 1
    passes; infinite for what is no matter of degree), ``where`` the value and the element, ``message`` what is wrong
    in a line."""

    passed: bool
    error: float = 0.0
    where: str = ""
    message: str = ""


PASSED = Check(True)


@dataclass(frozen=True)
class Dropout:
    """The value that holds its mask, the share that it keeps, and its place among the ops of the group."""

    mask: int
    share: float
    place: int


class Oracle:
    """Inputs and expected results of one group of a graph's ops."""

    def __init__(self, graph: Graph, flow: Flow, group: Group, operators: Operators | None = None) -> None:
        self.graph, self.flow, self.group = graph, flow, group
        self.operators = operators or Operators()
        self.external = self._external()
        self.effects = self._effects()

    # -- inputs ------------------------------------------------------------------------------------------------------

    def inputs(
        self, seed: int = 0, device: str = "cpu", *, special: bool = False, guard_bytes: int = GUARD_BYTES
    ) -> Arena:
        """Random tensors by value id; those of one storage are views of one allocation. The same for the same seed.

        Args:
            special: infinities, NaN, both zeros and denormals are among the floats.
        """
        arena = Arena(self.graph, device, guard_bytes)
        fill(self.graph, self.flow, self.group, {v: arena[v] for v in self.external}, seed, special)
        return arena

    def _external(self) -> tuple[int, ...]:
        """The values that the group touches in memory that was there before it."""
        flow, values = self.flow, self.graph.values
        op_ids = sorted((*self.group.op_ids, *self.group.recomputes))
        inside = frozenset(op_ids)
        found: dict[int, None] = {}
        for op_id in op_ids:
            for value_id, version in flow.reads[op_id]:
                if flow.writer[version] not in inside:
                    found[value_id] = None
            for value_id, version in flow.writes[op_id]:
                if self._existed(values[value_id].storage, version):
                    found[value_id] = None
        return tuple(found)

    def _effects(self) -> tuple[int, ...]:
        """Values that the group writes over beside those that it hands on: running statistics."""
        ops = [self.graph.ops[i] for i in (*self.group.op_ids, *self.group.recomputes)]
        written = {v for op in ops for v in self.operators.overwritten(op) if v not in op.outputs}
        return tuple(sorted(v for v in written if v in self.external and v not in self.group.writes))

    @property
    def results(self) -> tuple[int, ...]:
        """All values that are compared."""
        return (*self.group.writes, *self.effects)

    def _existed(self, storage: int, version: int) -> bool:
        """Whether a storage was there before the group made a version of it."""
        inside = frozenset((*self.group.op_ids, *self.group.recomputes))
        before = [v for v in range(version) if self.flow.storage[v] == storage]
        if any(self.flow.writer[v] not in inside for v in before):
            return True
        return self.graph.storages[storage].role in _PERSISTENT

    # -- results -----------------------------------------------------------------------------------------------------

    def eager(self, arena: Arena, kept: Mapping[int, Tensor] | None = None) -> dict[int, Tensor]:
        """What eager PyTorch gives, by value id. The arena stays as it is.

        Raises:
            NotRun: PyTorch has no such kernel on the arena's device.
        """
        memory = arena.copy()
        run_group(self.graph, self.group, memory, self.operators, kept)
        return {v: memory[v].clone() for v in self.results}

    def float64(
        self, arena: Arena, kept: Mapping[int, Tensor] | None = None, noise: Noise | None = None
    ) -> dict[int, Tensor]:
        """The results in float64 (integers as they are), by value id. The arena stays as it is.

        Args:
            kept: what the kernel returned: the masks of its dropouts are taken from there.

        Raises:
            NotRun: PyTorch has no such kernel on the arena's device.
        """
        memory = WideMemory(self.graph, arena)
        run_group(self.graph, self.group, memory, self.operators, self._masks(kept or {}), noise)
        return {v: memory[v].clone() for v in self.results}

    def _masks(self, kept: Mapping[int, Tensor]) -> dict[int, Tensor]:
        return {drop.mask: kept[drop.mask] for drop in self.dropouts() if drop.mask in kept}

    def dropouts(self) -> list[Dropout]:
        """The dropouts of the group."""
        op_ids = sorted((*self.group.op_ids, *self.group.recomputes))
        ops = [(place, self.graph.ops[i]) for place, i in enumerate(op_ids)]
        return [
            Dropout(op.outputs[1], 1.0 - op.attributes["p"], place)
            for place, op in ops
            if op.name == "aten.native_dropout"
        ]

    def drawn(self, seed: int, device: str) -> dict[int, Tensor]:
        """The masks that a generated kernel draws from a seed, by value id: element ``i`` of the ``n``-th op's result
        is kept where Philox gives for ``seed + n`` and ``i`` at least the share that is dropped."""
        masks = {}
        for drop in self.dropouts():
            shape = self.graph.values[drop.mask].spec.shape
            places = torch.arange(math.prod(shape), device=device).reshape(shape)
            masks[drop.mask] = uniform(seed + drop.place, places) >= 1.0 - drop.share
        return masks

    @property
    def is_moving(self) -> bool:
        """Whether all that the group does is to move numbers."""
        ops = [self.graph.ops[i] for i in (*self.group.op_ids, *self.group.recomputes)]
        return all(op.name.split(".")[1] in _MOVING for op in ops)

    # -- the comparison ----------------------------------------------------------------------------------------------

    def check(self, outputs: Mapping[int, Tensor], arena: Arena, eager: Mapping[int, Tensor] | None = None) -> Check:
        """Hold a kernel's results against float64.

        Args:
            outputs: what the kernel returned, by value id, and the values of ``effects``.
            arena: the inputs as they were before it ran.
            eager: what eager gave on the same inputs: as far from float64 as that is, twice, a kernel may be too.

        Raises:
            NotRun: there is nothing to compare with here.
        """
        for value_id in self.results:
            if value_id not in outputs:
                return _wrong(f"value {value_id}", "the kernel does not return it")
        shares = self._check_masks(outputs)
        if not shares.passed:
            return shares
        expected = self.float64(arena, outputs)
        spreads = {} if self.is_moving else self._spreads(arena, outputs, expected)
        worst = PASSED
        for value_id in self.results:
            allowed = spreads.get(value_id, 0.0)
            if eager is not None and expected[value_id].is_floating_point():
                allowed = max(allowed, 2 / SPREADS * _distance(eager[value_id], expected[value_id]))
            one = self._compare(value_id, outputs[value_id], expected[value_id], allowed)
            if one.error > worst.error or (not one.passed and worst.passed):
                worst = one
        return worst

    def _spreads(self, arena: Arena, outputs: Mapping[int, Tensor], expected: Mapping[int, Tensor]) -> dict[int, float]:
        floats = {v: e for v, e in expected.items() if e.is_floating_point()}
        few = any(e.numel() < FEW for e in floats.values()) and len(floats) <= FEW_TENSORS
        spreads = dict.fromkeys(floats, 0.0)
        for number in range(RUNS_OF_FEW if few else RUNS):
            noisy = self.float64(arena, outputs, Noise(number, arena.device))
            for value_id, e in floats.items():
                spreads[value_id] = max(spreads[value_id], _distance(noisy[value_id], e))
        return spreads

    def _compare(self, value_id: int, got: Tensor, expected: Tensor, spread: float) -> Check:
        spec = self.graph.values[value_id].spec
        if got.dtype != dtype_of(spec.dtype) or tuple(got.shape) != spec.shape:
            return _wrong(f"value {value_id}", f"{got.dtype}{[*got.shape]}, not {spec.dtype}{[*spec.shape]}")
        if not expected.is_floating_point():
            different = got.to(expected.dtype) != expected
            return self._first(value_id, different, got, expected, "differs")
        wanted = expected.to(got.dtype)
        odd = ~torch.isfinite(wanted) | ~torch.isfinite(got)
        agree = (torch.isnan(wanted) & torch.isnan(got)) | (wanted == got)
        if bool((odd & ~agree & ~_at_the_edge(expected, got)).any()):
            return self._first(value_id, odd & ~agree, got, expected, "NaN or infinity out of place")
        if self.is_moving:
            different = ~agree | (~odd & (wanted.signbit() != got.signbit()))
            return self._first(value_id, different, got, expected, "moved wrong")
        return self._graded(value_id, got, expected, odd, spread)

    def _graded(self, value_id: int, got: Tensor, expected: Tensor, odd: Tensor, spread: float) -> Check:
        dtype = self.graph.values[value_id].spec.dtype
        e = torch.where(odd, 0.0, expected)
        deviation = (torch.where(odd, 0.0, got.to(torch.float64)) - e).abs()
        largest = float(e.abs().max()) if e.numel() else 0.0
        smallest = torch.finfo(got.dtype).smallest_normal * unit(dtype) * 2
        tolerance = unit(dtype) * e.abs() + SPREADS * spread + ROUNDINGS * UNIT_FLOAT32 * largest + smallest
        ratio = deviation / tolerance
        error = float(ratio.max()) if ratio.numel() else 0.0
        if error <= 1.0:
            return Check(True, error, f"value {value_id}")
        place = _place(ratio, int(ratio.argmax()))
        allowed = float(tolerance[place])
        message = f"{float(got[place]):.7g}, not {float(expected[place]):.7g} ± {allowed:.2g}"
        message += f"; {int((ratio > 1).sum()):,} of {ratio.numel():,} elements are off"
        return Check(False, error, f"value {value_id} {[*place]}", message)

    def _first(self, value_id: int, wrong: Tensor, got: Tensor, expected: Tensor, what: str) -> Check:
        count = int(wrong.sum())
        if not count:
            return Check(True, 0.0, f"value {value_id}")
        place = _place(wrong, int(wrong.to(torch.uint8).argmax()))
        text = f"{what}: {got[place].item()}, not {expected[place].item()}; {count:,} of {wrong.numel():,} elements"
        return _wrong(f"value {value_id} {[*place]}", text)

    def _check_masks(self, outputs: Mapping[int, Tensor]) -> Check:
        """Dropouts keep the share that they should, by chance alone."""
        for drop in self.dropouts():
            mask, share = drop.mask, drop.share
            count = outputs[mask].numel() if mask in outputs else 0
            if not count:
                continue
            kept = float(outputs[mask].to(torch.float64).mean())
            off = abs(kept - share) / max(math.sqrt(share * (1 - share) / count), 1e-300)
            if off > DEVIATIONS and abs(kept - share) * count > 1:
                return _wrong(f"value {mask}", f"a dropout keeps {kept:.4f}, not {share:.4f}")
        return PASSED

    # -- all of it ---------------------------------------------------------------------------------------------------

    def verify(
        self, kernel: Kernel, run: Run, *, seed: int = 0, device: str = "cpu", special: bool = False,
        guard_bytes: int = GUARD_BYTES, repeatable: bool = True, with_eager: bool = False,
        around: Callable[[Arena, Callable[[], Any]], Any] | None = None,
    ) -> Check:  # fmt: skip
        """Run a kernel twice, on memory that is poisoned in two ways, and hold it against float64.

        Both runs must give the same bits: what is not written shows the poison, what depends on the order of
        programs differs from run to run. Nothing but what the group writes may change.

        Args:
            run: of the loaded source; ``run(*tensors, seed=..., empty=...)``.
            repeatable: False where sums run in no fixed order (atomics): the runs are then only held to the tolerance.
            with_eager: eager's own distance from float64 widens the tolerance.
            around: called as ``around(arena, call)`` for the second run; by default it is just called.

        Raises:
            NotRun: there is nothing to compare with here.
        """
        before = self.inputs(seed, device, special=special, guard_bytes=guard_bytes)
        runs: list[dict[int, Tensor]] = []
        for number in range(len(POISONS)):
            arena = before.copy(number)

            def call(arena: Arena = arena) -> dict[int, Tensor]:
                made = run(*(arena[v] for v in kernel.inputs), seed=seed, empty=arena.empty)
                return dict(zip(kernel.outputs, made, strict=True)) | {v: arena[v] for v in self.effects}

            outputs = around(arena, call) if around and number else call()
            done = self._check_memory(arena, before)
            if not done.passed:
                return done
            runs.append(outputs)
        drawn = self.drawn(seed, device) if kernel.is_random else {}
        for mask in {*drawn} & {*runs[0]}:
            if not torch.equal(drawn[mask], runs[0][mask]):
                return _wrong(f"value {mask}", "its dropout draws other numbers than Philox does")
        runs = [drawn | outputs for outputs in runs]
        if repeatable:
            same = self._same(*runs)
            if not same.passed:
                return same
        eager = self.eager(before, self._masks(runs[0])) if with_eager else None
        return max(
            (self.check(outputs, before, eager) for outputs in (runs if not repeatable else runs[:1])),
            key=lambda check: check.error,
        )

    def _check_memory(self, arena: Arena, before: Arena) -> Check:
        """The guard bands are whole, and only what the group writes has changed."""
        broken = arena.broken()
        if broken:
            return _wrong(broken[0], f"written out of bounds: {', '.join(broken[:4])}")
        #: 0 where the group may write, else the poison
        written = Arena(self.graph, arena.device, arena.guard_bytes)
        inside = (*self.group.op_ids, *self.group.recomputes)
        for value_id in {v for i in inside for v in self.graph.ops[i].outputs} | {*self.results}:
            if self.graph.values[value_id].storage in before.storages:
                _bytes_of(written, value_id).fill_(0)
        for storage in before.storages:
            changed = arena.flat(storage, torch.uint8) != before.flat(storage, torch.uint8)
            if storage in written.storages:
                changed &= written.flat(storage, torch.uint8) == POISONS[0]
            if bool(changed.any()):
                name = self.graph.storages[storage].name
                return _wrong(f"storage {storage} {name}".rstrip(), "overwritten, though the group only reads it")
        return PASSED

    def _same(self, first: Mapping[int, Tensor], second: Mapping[int, Tensor]) -> Check:
        for value_id, tensor in first.items():
            other = second[value_id]
            if tensor.shape != other.shape:
                return _wrong(f"value {value_id}", "differs in shape from run to run")
            nan = torch.isnan(tensor) & torch.isnan(other) if tensor.is_floating_point() else tensor != tensor
            different = (tensor != other) & ~nan
            if bool(different.any()):
                what = "differs from run to run, as unwritten memory, races and reads out of bounds do"
                return self._first(value_id, different, tensor, other, what)
        return PASSED


def _wrong(where: str, message: str) -> Check:
    return Check(False, math.inf, where, message)


def _bytes_of(arena: Arena, value_id: int) -> Tensor:
    """The bytes of a value's elements, as the last axis."""
    tensor = arena[value_id]
    size = tensor.element_size()
    storage = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    strides = (*(s * size for s in tensor.stride()), 1)
    shape = (*tensor.shape, size)
    cut = [1 if s == 0 else n for n, s in zip(shape, strides, strict=True)]
    return storage.as_strided(cut, strides, tensor.storage_offset() * size)


def _distance(tensor: Tensor, expected: Tensor) -> float:
    """The largest difference of two tensors where both are finite."""
    apart = (tensor.to(torch.float64) - expected).abs()
    apart = apart[torch.isfinite(apart)]
    return float(apart.max()) if apart.numel() else 0.0


def _at_the_edge(expected: Tensor, got: Tensor) -> Tensor:
    """Finite numbers so near the end of the dtype's range that rounding decides whether they are infinite."""
    largest = torch.finfo(got.dtype).max
    near = torch.isfinite(expected) & (expected.abs() > 0.99 * largest)
    return near & ((got.abs() > 0.99 * largest) & ~torch.isnan(got))


def _place(tensor: Tensor, flat: int) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), tuple(tensor.shape)))
