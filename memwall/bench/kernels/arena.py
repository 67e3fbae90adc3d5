"""Memory for the values of a graph: one guarded allocation for each storage, values as views of it; and random contents
for what a group of ops reads.

Guard bands surround each allocation. In one arena they are NaN, so that out-of-bounds reads show in the results; in
another small numbers, as NaN that is read and written back out of bounds would leave the bands unchanged. Bands of
integers are -1, which is no valid index. :class:`WideMemory` holds the same values in float64.

Floats are at the right scale and never zeros, indices within their tables. The requirements of a tensor follow from the
ops that read it (:mod:`memwall.ops.domains`), directly or through other ops of the group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memwall.core.errors import Unsupported
from memwall.core.flow import Flow
from memwall.core.graph import Graph, Op, TensorSpec
from memwall.fusion import Group
from memwall.ops.domains import Domain
from memwall.ops.evaluate import dtype_of
from memwall.ops.registry import call_of, find_row

#: bytes of the guard bands of floats, and of all else
GUARDS, GUARD_OF_INTEGERS = (0xFF, 0x3C), 0xFF
#: bytes to which the start and the end of an allocation are aligned
ALIGNMENT = 512
#: bytes of a guard band
GUARD_BYTES = 64 * 1024
#: the two fillings of a kernel's output memory: NaN, and numbers far from correct
POISONS = 0xFF, 0x5A


class _Block(NamedTuple):
    """An allocation: ``inside`` is ``memory`` without its two guard bands."""

    label: str
    dtype: torch.dtype
    memory: Tensor
    inside: Tensor
    guard: int

    def is_whole(self, guard_bytes: int) -> bool:
        """Whether the guard bands are as they were."""
        bands = self.memory[:guard_bytes], self.memory[guard_bytes + self.inside.numel() :]
        return all(bool((band == self.guard).all()) for band in bands)


class Arena:
    """Value id → tensor. A storage is allocated, and filled with poison, when one of its values is first requested.

    ``number`` picks one of the poisons and one of the guards.
    """

    def __init__(self, graph: Graph, device: str = "cpu", guard_bytes: int = GUARD_BYTES, number: int = 0) -> None:
        self.graph, self.device, self.guard_bytes, self.number = graph, device, guard_bytes, number
        #: that random contents were drawn from
        self.seed = 0
        self._blocks: dict[int, _Block] = {}
        self._scratch: list[_Block] = []

    def __getitem__(self, value_id: int) -> Tensor:
        value = self.graph.values[value_id]
        dtype, spec = dtype_of(value.spec.dtype), value.spec
        flat = self._block(value.storage, dtype).memory.view(dtype)
        offset = self.guard_bytes // spec.itemsize + value.offset
        return flat.as_strided(spec.shape, spec.strides, offset)

    @property
    def storages(self) -> tuple[int, ...]:
        """The storages that are allocated."""
        return tuple(self._blocks)

    def flat(self, storage: int, dtype: torch.dtype) -> Tensor:
        """A whole storage as elements of a dtype; a remainder smaller than an element is left out."""
        inside = self._block(storage, dtype).inside
        return inside[: inside.numel() // dtype.itemsize * dtype.itemsize].view(dtype)

    def empty(self, shape: Sequence[int], strides: Sequence[int], **options: Any) -> Tensor:
        """``torch.empty_strided`` with guards and poison, for a kernel's allocations."""
        dtype = options.get("dtype") or torch.get_default_dtype()
        size = dtype.itemsize
        count = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        block = self._allocate(f"its {len(self._scratch)}th allocation", count * size, dtype)
        self._scratch.append(block)
        return block.memory.view(dtype).as_strided(shape, strides, self.guard_bytes // size)

    def copy(self, number: int = 0) -> Arena:
        """Another arena with the same contents in the same storages."""
        made = Arena(self.graph, self.device, self.guard_bytes, number)
        for storage, block in self._blocks.items():
            made._block(storage, block.dtype).inside.copy_(block.inside)
        return made

    def broken(self) -> list[str]:
        """The allocations that were written past their ends."""
        return [b.label for b in (*self._blocks.values(), *self._scratch) if not b.is_whole(self.guard_bytes)]

    @property
    def blocks(self) -> list[Tensor]:
        """All bytes that a kernel could reach, guard bands included."""
        return [block.memory for block in (*self._blocks.values(), *self._scratch)]

    def _block(self, storage: int, dtype: torch.dtype) -> _Block:
        if storage not in self._blocks:
            known = self.graph.storages[storage]
            label = f"storage {storage}" + (f" ({known.name})" if known.name else "")
            self._blocks[storage] = self._allocate(label, known.nbytes, dtype)
        return self._blocks[storage]

    def _allocate(self, label: str, nbytes: int, dtype: torch.dtype) -> _Block:
        guard = GUARDS[self.number] if dtype.is_floating_point or dtype.is_complex else GUARD_OF_INTEGERS
        room = -(-nbytes // ALIGNMENT) * ALIGNMENT
        memory = torch.full((2 * self.guard_bytes + room,), guard, dtype=torch.uint8, device=self.device)
        inside = memory[self.guard_bytes : self.guard_bytes + nbytes].fill_(POISONS[self.number])
        return _Block(label, dtype, memory, inside, guard)


class WideMemory:
    """Value id → float64 (integers unchanged) tensor; values of one storage are views of one tensor."""

    def __init__(self, graph: Graph, arena: Arena) -> None:
        self.graph, self.arena = graph, arena
        self._flat: dict[int, tuple[str, Tensor]] = {}

    def __getitem__(self, value_id: int) -> Tensor:
        value = self.graph.values[value_id]
        if value.storage not in self._flat:
            self._flat[value.storage] = value.spec.dtype, self._widened(value.storage, value.spec.dtype)
        dtype, flat = self._flat[value.storage]
        if dtype != value.spec.dtype:
            raise Unsupported(f"one memory is read as {dtype} and as {value.spec.dtype}")
        return flat.as_strided(value.spec.shape, value.spec.strides, value.offset)

    def _widened(self, storage: int, dtype: str) -> Tensor:
        wide = widened(dtype_of(dtype))
        if storage in self.arena.storages:
            return self.arena.flat(storage, dtype_of(dtype)).to(wide, copy=True)
        count = self.graph.storages[storage].nbytes // TensorSpec((), (), dtype).itemsize
        fill = math.nan if wide.is_floating_point else 0
        return torch.full((count,), fill, dtype=wide, device=self.arena.device)


def widened(dtype: torch.dtype) -> torch.dtype:
    """float64 for floats, complex128 for complex numbers, others as they are."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


# -- contents ----------------------------------------------------------------------------------------------------------

#: special values; the last two are denormals of float32 and bfloat16, and of float16
SPECIALS = (math.inf, -math.inf, math.nan, -0.0, 0.0, 1e-39, 6e-7)
#: one in this many targets of a loss is ignored
IGNORED_EVERY = 7


def fill(
    graph: Graph, flow: Flow, group: Group, tensors: Mapping[int, Tensor], seed: int, special: bool = False
) -> None:
    """Fill the tensors of every value whose memory existed before the group, by value id; ``special`` puts infinities,
    NaN, both zeros and denormals among the floats."""
    needs = _needs(graph, flow, group)
    plain = [v for v in tensors if v not in needs]
    for value_id in (*plain, *(v for v in tensors if v in needs)):  # views may overlap: what is asked for comes last
        tensor = tensors[value_id]
        generator = torch.Generator(tensor.device).manual_seed(seed * 1_000_003 + value_id)
        need = needs.get(value_id, _default(tensor.dtype))
        distinct = _once(tensor)
        if distinct.numel():
            made = _FILLS[need.kind](need, distinct, generator).to(distinct.dtype)
            if special and need.kind == "normal":
                _sprinkle(made, generator)
            distinct.copy_(made)


def _needs(graph: Graph, flow: Flow, group: Group) -> dict[int, Domain]:
    """Value id → what it has to hold, for values that need particular numbers."""
    asked: dict[tuple[int, int], Domain] = {}
    for op_id in sorted((*group.op_ids, *group.recomputes), reverse=True):
        op = graph.ops[op_id]
        written = {value: asked[value, version] for value, version in flow.writes[op_id] if (value, version) in asked}
        row, call = find_row(op.name), call_of(graph, op)
        for i, (argument, key) in enumerate(zip(op.arguments, flow.reads[op_id], strict=True)):
            rule = row.domains.get(argument) if row else None
            need = rule(call, op.arguments[:i].count(argument)) if rule else _handed_on(op, key[0], written)
            if need is not None and graph.values[key[0]].spec.dtype != "bool":
                asked.setdefault(key, need)
    return {value: need for (value, _), need in reversed(asked.items())}


def _default(dtype: torch.dtype) -> Domain:
    if dtype.is_floating_point or dtype.is_complex:
        return Domain("normal")
    return Domain("mask") if dtype == torch.bool else Domain("index", high=100)


def _once(tensor: Tensor) -> Tensor:
    """The tensor with each broadcast axis cut to one."""
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _sprinkle(tensor: Tensor, generator: torch.Generator) -> None:
    """A few elements become special: one in a hundred, and at least one of each kind where there is room."""
    flat = tensor.view(-1)
    count = max(flat.numel() // 100, min(len(SPECIALS), flat.numel() // 4))
    places = torch.randperm(flat.numel(), generator=generator, device=flat.device)[:count]
    kinds = torch.arange(count, device=flat.device) % len(SPECIALS)
    flat[places] = torch.tensor(SPECIALS, dtype=torch.float64, device=flat.device)[kinds].to(flat.dtype)


# -- the ways to fill --------------------------------------------------------------------------------------------------


def _floats(like: Tensor, generator: torch.Generator, draw: Callable[..., Tensor] = torch.rand) -> Tensor:
    return draw(like.shape, generator=generator, device=like.device, dtype=torch.float32)


def _index(need: Domain, like: Tensor, generator: torch.Generator) -> Tensor:
    shape = tuple(like.shape)
    return torch.randint(max(need.high, 1), shape, generator=generator, device=like.device).to(like.dtype)


def _target(need: Domain, like: Tensor, generator: torch.Generator) -> Tensor:
    """Class numbers, a few of them ``need.dim``, which means that the row does not count."""
    made = _index(need, like, generator)
    made.view(-1)[IGNORED_EVERY - 1 :: IGNORED_EVERY] = need.dim
    return made


def _places(need: Domain, like: Tensor, generator: torch.Generator) -> Tensor:
    """Indices below ``high``, distinct along an axis."""
    shape = list(like.shape) or [1]
    axis = need.dim % len(shape)
    room = max(need.high, shape[axis])
    drawn = torch.rand([*shape[:axis], room, *shape[axis + 1 :]], generator=generator, device=like.device)
    return drawn.argsort(axis).narrow(axis, 0, shape[axis]).reshape(like.shape)


def _ascending(need: Domain, like: Tensor, generator: torch.Generator) -> Tensor:
    """Non-decreasing numbers, the first 0."""
    made = _index(need, like, generator).view(-1).sort().values
    made[0] = 0
    return made.view(like.shape)


def _ends(need: Domain, like: Tensor, generator: torch.Generator) -> Tensor:
    """Ends of equal groups, the last ``high``."""
    ends = torch.arange(1, like.numel() + 1, device=like.device) * need.high
    return ends // like.numel()


def _pooled(need: Domain, like: Tensor, generator: torch.Generator) -> Tensor:
    """The places of the maxima of some image."""
    shape, kernel, stride, padding, dilation = need.window
    image = torch.randn(shape, generator=generator, device=like.device)
    call = torch.ops.aten.max_pool2d_with_indices
    places: Tensor = call(image, kernel, stride, padding, dilation, bool(need.high))[1]
    return places


#: kind of domain -> its numbers, of any dtype
_FILLS: Mapping[str, Callable[[Domain, Tensor, torch.Generator], Tensor]] = {
    "normal": lambda need, like, generator: _floats(like, generator, torch.randn) * need.scale,
    # between half of the scale and one and a half
    "positive": lambda need, like, generator: (_floats(like, generator) + 0.5) * need.scale,
    "mask": lambda need, like, generator: _floats(like, generator) < 0.75,
    "log_probabilities": lambda need, like, generator: torch.log_softmax(
        _floats(like, generator, torch.randn), need.dim
    ),
    "probabilities": lambda need, like, generator: torch.softmax(_floats(like, generator, torch.randn), need.dim),
    "index": _index, "target": _target, "places": _places, "ascending": _ascending, "ends": _ends, "pooled": _pooled,
}  # fmt: skip


def _handed_on(op: Op, value_id: int, written: Mapping[int, Domain]) -> Domain | None:
    """What an argument has to hold so that the results of the op hold what they must."""
    in_place = any(i in op.inputs for i in op.outputs)
    need = written.get(value_id) if in_place else next(iter(written.values()), None)
    row = find_row(op.name)
    preserves = row.preserves if row else ""
    if need is None or not preserves or (preserves == "sign" and need.kind not in ("positive", "normal")):
        return None
    if op.name.startswith("aten.floor_divide"):
        return replace(need, high=need.high * int(op.attributes.get("other", 1)))
    return need
