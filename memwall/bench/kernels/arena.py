"""Memory for the values of a graph: one guarded allocation for each storage, values as views of it.

Guard bands surround each allocation. In one arena they are NaN, so that out-of-bounds reads show in the results; in
another small numbers, as NaN that is read and written back out of bounds would leave the bands unchanged. Those of
integers are -1, which is no valid index. :class:`WideMemory` holds the same values in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memwall.core.errors import Unsupported
from memwall.core.graph import Graph, TensorSpec
from memwall.ops.evaluate import dtype_of

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
