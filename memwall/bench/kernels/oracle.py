"""What a kernel should have computed: random inputs for a group of ops, its results in float64, and the check of both.

A kernel is checked before it is timed (:func:`check_numerics`): a wrong one gets no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from memwall.bench.device import Device
from memwall.bench.kernels.arena import GUARD_BYTES, POISONS, Arena, WideMemory, fill
from memwall.bench.kernels.evaluate import left_undefined, run_group
from memwall.bench.kernels.executors import BuiltKernel
from memwall.bench.kernels.numerics import PASSED, SPREADS, NumericsCheck, compare, distance, same, uniform, wrong
from memwall.core.errors import Unsupported
from memwall.core.flow import Flow
from memwall.core.graph import Graph
from memwall.fusion import Group
from memwall.ops.evaluate import Operators
from memwall.wings import part

#: runs with noise; more if an output has few elements, so that none is too small by chance
RUNS, RUNS_OF_FEW, FEW = 4, 12, 256
#: with more results than this (groups over lists of tensors), fewer noise runs are made
FEW_TENSORS = 16
#: standard deviations by which a dropout's share of kept elements may be off
DEVIATIONS = 6.0

#: ops that move numbers without changing them
_MOVING = frozenset((
    "clone", "cat", "stack", "embedding", "index", "index_select", "gather", "select_backward", "slice_backward",
    "copy_", "zeros", "zeros_like", "new_zeros", "fill_", "zero_", "neg", "ones_like", "upsample_nearest2d",
))  # fmt: skip


class Oracle:
    """Inputs and expected results of one group of a graph's ops."""

    def __init__(self, graph: Graph, flow: Flow, group: Group, operators: Operators | None = None) -> None:
        self.graph, self.flow, self.group = graph, flow, group
        self.operators = operators or Operators()
        self.ops = [graph.ops[i] for i in sorted((*group.op_ids, *group.recomputes))]
        self._inside = frozenset(op.id for op in self.ops)
        #: the values that the group touches in memory that was there before it
        self.external = self._external()
        written = {v for op in self.ops for v in self.operators.overwritten(op) if v not in op.outputs}
        #: values that the group overwrites in addition to its outputs: running statistics
        self.effects = tuple(sorted(v for v in written if v in self.external and v not in group.writes))
        undefined = {v for op in self.ops for v in left_undefined(op)}
        #: all values that are compared
        self.results = (*(v for v in group.writes if v not in undefined), *self.effects)
        #: whether the group only moves numbers
        self.is_moving = all(op.name.partition(".")[2].partition(".")[0] in _MOVING for op in self.ops)
        #: of each dropout the value that holds its mask, the share that it keeps, its place among the ops of the group
        self.dropouts = [
            (op.outputs[1], 1.0 - op.attributes["p"], place)
            for place, op in enumerate(self.ops)
            if op.name == "aten.native_dropout"
        ]

    def inputs(
        self, seed: int = 0, device: str = "cpu", *, special: bool = False, guard_bytes: int = GUARD_BYTES
    ) -> Arena:
        """Random tensors by value id; tensors of one storage are views of one allocation. The same for the same seed.
        ``special``: infinities, NaN, both zeros and denormals are among the floats."""
        arena = Arena(self.graph, device, guard_bytes)
        arena.seed = seed
        fill(self.graph, self.flow, self.group, {v: arena[v] for v in self.external}, seed, special)
        return arena

    def _external(self) -> tuple[int, ...]:
        found: list[int] = []
        for op in self.ops:
            found += [v for v, version in self.flow.reads[op.id] if self.flow.writer[version] not in self._inside]
            writes = self.flow.writes[op.id]
            found += [v for v, version in writes if self._existed(self.graph.values[v].storage, version)]
        return tuple(dict.fromkeys(found))

    def _existed(self, storage: int, version: int) -> bool:
        """Whether a storage existed before the group wrote a version of it."""
        writers = (self.flow.writer[v] for v in range(version) if self.flow.storage[v] == storage)
        return self.graph.storages[storage].is_persistent or any(op_id not in self._inside for op_id in writers)

    def eager(self, arena: Arena, kept: Mapping[int, Tensor] | None = None) -> dict[int, Tensor]:
        """Eager PyTorch's results, by value id; ``Unsupported`` where it has no such kernel on the arena's device. The
        arena is not changed."""
        memory = arena.copy()
        run_group(self.graph, self.group, memory, self.operators, kept)
        return {v: memory[v].clone() for v in self.results}

    def float64(
        self, arena: Arena, kept: Mapping[int, Tensor] | None = None, noise: torch.Generator | None = None
    ) -> dict[int, Tensor]:
        """The results in float64 (integers unchanged), as :meth:`eager`; the masks of dropouts are taken from ``kept``,
        what the kernel returned."""
        memory = WideMemory(self.graph, arena)
        run_group(self.graph, self.group, memory, self.operators, self._masks(kept or {}), noise)
        return {v: memory[v].clone() for v in self.results}

    def _masks(self, kept: Mapping[int, Tensor]) -> dict[int, Tensor]:
        return {mask: kept[mask] for mask, _, _ in self.dropouts if mask in kept}

    def drawn(self, seed: int, device: str) -> dict[int, Tensor]:
        """The masks that a generated kernel draws from a seed, by value id: element ``i`` of the ``n``-th op's result
        is kept where Philox's number ``i`` of ``seed + n`` is at least the share that is dropped."""
        masks = {}
        for mask, share, place in self.dropouts:
            shape = self.graph.values[mask].spec.shape
            places = torch.arange(math.prod(shape), device=device).reshape(shape)
            masks[mask] = uniform(seed + place, places) >= 1.0 - share
        return masks

    def check(
        self, outputs: Mapping[int, Tensor], arena: Arena, eager: Mapping[int, Tensor] | None = None
    ) -> NumericsCheck:
        """Compare a kernel's results with float64.

        Args:
            outputs: what the kernel returned, by value id, and the values of ``effects``.
            arena: the inputs as they were before it ran.
            eager: eager's results on the same inputs: a kernel may be twice as far from float64 as those are.
        """
        missing = [value_id for value_id in self.results if value_id not in outputs]
        if missing:
            return wrong(f"value {missing[0]}", "the kernel does not return it")
        shares = self._check_masks(outputs)
        if not shares.passed:
            return shares
        expected = self.float64(arena, outputs)
        spreads = {} if self.is_moving else self._spreads(arena, outputs, expected)
        worst = PASSED
        for value_id in self.results:
            allowed = spreads.get(value_id, 0.0)
            if eager is not None and expected[value_id].is_floating_point():
                allowed = max(allowed, 2 / SPREADS * distance(eager[value_id], expected[value_id]))
            spec = self.graph.values[value_id].spec
            one = compare(value_id, spec, outputs[value_id], expected[value_id], allowed, exact=self.is_moving)
            if one.error > worst.error or (not one.passed and worst.passed):
                worst = one
        return worst

    def _spreads(self, arena: Arena, outputs: Mapping[int, Tensor], expected: Mapping[int, Tensor]) -> dict[int, float]:
        floats = {v: e for v, e in expected.items() if e.is_floating_point()}
        few = any(e.numel() < FEW for e in floats.values()) and len(floats) <= FEW_TENSORS
        spreads = dict.fromkeys(floats, 0.0)
        for number in range(RUNS_OF_FEW if few else RUNS):
            noisy = self.float64(arena, outputs, torch.Generator(arena.device).manual_seed(number))
            for value_id, e in floats.items():
                spreads[value_id] = max(spreads[value_id], distance(noisy[value_id], e))
        return spreads

    def _check_masks(self, outputs: Mapping[int, Tensor]) -> NumericsCheck:
        """Dropouts keep the share that they should, by chance alone."""
        for mask, share, _ in self.dropouts:
            count = outputs[mask].numel() if mask in outputs else 0
            if not count:
                continue
            kept = float(outputs[mask].to(torch.float64).mean())
            off = abs(kept - share) / max(math.sqrt(share * (1 - share) / count), 1e-300)
            if off > DEVIATIONS and abs(kept - share) * count > 1:
                return wrong(f"value {mask}", f"a dropout keeps {kept:.4f}, not {share:.4f}")
        return PASSED

    def verify(
        self,
        kernel: Runnable,
        run: Callable[..., Sequence[Tensor]],
        before: Arena,
        *,
        repeatable: bool = True,
        with_eager: bool = False,
        around: Callable[[Arena, Callable[[], Any]], Any] | None = None,
    ) -> NumericsCheck:
        """Run a kernel twice, on memory that is poisoned in two ways, and compare it with float64.

        Both runs must give the same bits: unwritten memory shows the poison, results that depend on the order of
        thread blocks differ from run to run. Nothing but the group's outputs may change.

        Args:
            run: of the loaded source; ``run(*tensors, seed=..., empty=...)``.
            before: its inputs, from whose seed it draws numbers too.
            repeatable: False if sums have no fixed order (atomics): the runs are then only compared within tolerance.
            with_eager: eager's own distance from float64 widens the tolerance.
            around: called as ``around(arena, call)`` for the second run; by default it is just called.
        """
        runs: list[dict[int, Tensor]] = []
        for number in range(len(POISONS)):
            arena = before.copy(number)

            def call(arena: Arena = arena) -> dict[int, Tensor]:
                made = run(*(arena[v] for v in kernel.inputs), seed=before.seed, empty=arena.empty)
                return dict(zip(kernel.outputs, made, strict=True)) | {v: arena[v] for v in self.effects}

            outputs = around(arena, call) if around and number else call()
            done = self._check_memory(arena, before)
            if not done.passed:
                return done
            runs.append(outputs)
        drawn = self.drawn(before.seed, before.device) if kernel.is_random else {}
        for mask in {*drawn} & {*runs[0]}:
            if not torch.equal(drawn[mask], runs[0][mask]):
                return wrong(f"value {mask}", "its dropout draws other numbers than Philox does")
        runs = [drawn | outputs for outputs in runs]
        if repeatable and not (repeated := same(*runs)).passed:
            return repeated
        eager = self.eager(before, self._masks(runs[0])) if with_eager else None
        checks = [self.check(outputs, before, eager) for outputs in (runs[:1] if repeatable else runs)]
        return max(checks, key=lambda check: check.error)

    def _check_memory(self, arena: Arena, before: Arena) -> NumericsCheck:
        """The guard bands are whole, and only what the group writes has changed."""
        broken = arena.broken()
        if broken:
            return wrong(broken[0], f"written out of bounds: {', '.join(broken[:4])}")
        #: 0 where the group may write, else the poison
        written = Arena(self.graph, arena.device, arena.guard_bytes)
        for value_id in {v for op in self.ops for v in op.outputs} | {*self.results}:
            if self.graph.values[value_id].storage in before.storages:
                _bytes_of(written, value_id).fill_(0)
        for storage in before.storages:
            changed = arena.flat(storage, torch.uint8) != before.flat(storage, torch.uint8)
            if storage in written.storages:
                changed &= written.flat(storage, torch.uint8) == POISONS[0]
            if bool(changed.any()):
                name = self.graph.storages[storage].name
                return wrong(f"storage {storage} {name}".rstrip(), "overwritten, though the group only reads it")
        return PASSED


def _bytes_of(arena: Arena, value_id: int) -> Tensor:
    """The bytes of a value's elements, as the last axis."""
    tensor = arena[value_id]
    size = tensor.element_size()
    storage = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    strides = (*(s * size for s in tensor.stride()), 1)
    shape = (*tensor.shape, size)
    cut = [1 if s == 0 else n for n, s in zip(shape, strides, strict=True)]
    return storage.as_strided(cut, strides, tensor.storage_offset() * size)


# -- before a kernel is timed ------------------------------------------------------------------------------------------

#: PyTorch's own kernels, compiled ones too, round and sum in their own way: one that is off by up to this many
#: tolerances is timed, with a note
FOREIGN_TOLERANCES = 8.0


class Runnable(Protocol):
    """What is verified of a kernel (:class:`memwall.codegen.Kernel`): the values that it reads and makes."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers."""


@dataclass(frozen=True)
class OracleVerdict:
    """``error`` is the worst deviation from float64 in units of the tolerance, None where it was not checked;
    ``message`` says what is wrong, or why it was not checked."""

    passed: bool
    error: float | None = None
    message: str = ""


def check_numerics(oracle: Oracle, built: BuiltKernel, seed: int, device: Device, *, with_eager: bool) -> OracleVerdict:
    """Run a kernel on poisoned memory and compare it with float64, and with ``with_eager`` also with eager. If there is
    nothing to compare with, or no memory for it, the kernel passes unchecked, and the message says so."""
    try:
        return _checked(oracle, built, seed, device, with_eager)
    except Unsupported as error:
        return OracleVerdict(True, None, f"not checked: {error}")
    except (torch.OutOfMemoryError, MemoryError):
        verdict = OracleVerdict(True, None, "not checked: float64 takes more memory than there is")
    device.clear()
    return verdict


def _checked(oracle: Oracle, built: BuiltKernel, seed: int, device: Device, with_eager: bool) -> OracleVerdict:
    kernel = part("codegen.Kernel")(
        "", built.source, built.inputs, built.outputs, oracle.group.op_ids, (), built.schedule
    )
    specs = [oracle.graph.values[i].spec for i in built.outputs]
    #: ops whose CPU kernel has another precision than the GPU's
    other: dict[str, None] = {}

    def run(*tensors: torch.Tensor, seed: int, empty: Any) -> Any:
        if built.is_ours:
            return built.run(*tensors, seed=seed, empty=empty)
        made = built.run(*tensors)
        if device.kind == "cpu":
            for tensor, spec in zip(made, specs, strict=True):
                own = str(tensor.dtype).removeprefix("torch.")
                if tensor.is_floating_point() and own != spec.dtype:
                    other[f"{own} where a GPU gives {spec.dtype}"] = None
        return made

    before = oracle.inputs(seed, device.torch_device)
    found = oracle.verify(kernel, run, before, repeatable=built.is_ours, with_eager=with_eager)
    if other:
        return OracleVerdict(True, None, f"not checked: gives {', '.join(other)}")
    message = "" if found.passed else f"{found.where}: {found.message}"
    if not found.passed and not built.is_ours and found.error <= FOREIGN_TOLERANCES:
        return OracleVerdict(True, found.error, f"PyTorch's kernel rounds more than expected: {message}")
    return OracleVerdict(found.passed, found.error, message)
