"""What is kept of the values in storages on ``meta``: their shadows, which :mod:`memwall.frontend.torch.values.known`
explains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from memwall.core import compat
from memwall.frontend.torch.dispatch.tensors import is_freed, sparse_of, sparse_parts
from memwall.frontend.torch.values.assumptions import Basis
from memwall.frontend.torch.values.value_rules import MOST_OF_INTEGERS, distinct, is_small, is_uniform, once

#: Bytes of shadows at which shadows of tensors that are gone are let go.
_SWEPT_BYTES = 1 << 28
_HOST = torch.device("cpu")


class Shadow(NamedTuple):
    """The bytes of a storage on ``meta``, which is kept so that its address stays its own; or, where it is ``uniform``,
    one element that all of them equal. ``assumed`` is what its values rest on."""

    raw: torch.UntypedStorage
    shadow: torch.UntypedStorage
    uniform: bool = False
    assumed: tuple[Basis, ...] = ()

    def is_one_of(self, tensor: torch.Tensor) -> bool:
        """Whether its single element is one of the tensor, which may see the bytes as another dtype."""
        return self.uniform and self.shadow.nbytes() == tensor.itemsize


def address_of(tensor: torch.Tensor) -> int:
    """What a tensor's storage is known by."""
    address: int = compat.cdata(tensor.untyped_storage())
    return address


class Shadows:
    """The known values of tensors on ``meta``, each a view of its storage's shadow."""

    def __init__(self) -> None:
        self._shadows: dict[int, Shadow] = {}
        #: unknown normal numbers, none of which is zero
        self._normal: dict[int, torch.UntypedStorage] = {}
        self._bytes = 0
        self._swept_at = _SWEPT_BYTES

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor's value as a host tensor that shares the shadow's bytes; None where it is not known."""
        if not tensor.is_meta:
            return tensor
        found = self._found(tensor)
        if found is None:
            return None
        empty = torch.empty(0, dtype=tensor.dtype, device=_HOST)
        if found.uniform:
            return empty.set_(found.shadow, 0, (), ()).expand(tensor.shape)
        return empty.set_(found.shadow, tensor.storage_offset(), tensor.shape, tensor.stride())

    def _found(self, tensor: torch.Tensor) -> Shadow | None:
        """The shadow of a tensor on ``meta``, where it tells the tensor's value."""
        found = self._shadows.get(address_of(tensor))
        if found is None or (found.uniform and not found.is_one_of(tensor)) or tensor.is_conj() or tensor.is_neg():
            return None
        return found

    def digest(self, tensors: Iterable[torch.Tensor]) -> tuple[Any, ...]:
        """Equal for tensors whose values are equal, or equally unknown."""
        parts: list[Any] = []
        for tensor in tensors:
            found = self._found(tensor) if self.has(tensor) else None
            if found is None or found.uniform:
                parts.append(found and bytes(found.shadow.tolist()))
            else:
                parts.append(hash(self._shadow(tensor).flatten().view(torch.uint8).numpy().tobytes()))
        return tuple(parts)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor on ``meta`` has a known value."""
        return tensor.layout is torch.strided and self._found(tensor) is not None

    def give(self, tensor: torch.Tensor, value: torch.Tensor, *assumed: Basis) -> None:
        """Make the value of a tensor known that is all there is in its storage."""
        shadow = self._shadow(tensor)
        once(shadow).copy_(value.expand(shadow.shape)[distinct(shadow)])
        self._rest_on(tensor, assumed)

    def _rest_on(self, tensor: torch.Tensor, assumed: Iterable[Basis]) -> None:
        """The values in a tensor's storage rest on what is assumed, too."""
        if assumed and (found := self._shadows.get(address_of(tensor))):
            self._shadows[address_of(tensor)] = found._replace(assumed=tuple(dict.fromkeys((*found.assumed, *assumed))))

    def keep(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        """Give ``tensor`` the value of ``source``, whose copy it is, where that is known and small enough."""
        if not tensor.is_meta or source.layout is not torch.strided or is_freed(source):
            return
        value = self.of(source)
        if value is not None and is_small(source):
            self.give(tensor, value.detach())
        elif value is not None and is_uniform(value):
            self.give_uniform(tensor, value.flatten()[0])

    def made(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor on ``meta`` with the layout of a host tensor, and its value where that is small enough."""
        if value.layout is not torch.strided:
            return sparse_of(value, [self.made(part) for part in sparse_parts(value)])
        tensor = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        self.keep(tensor, value)
        return tensor

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """The values of some tensors are no longer known."""
        for tensor in tensors:
            if self._shadows and (found := self._shadows.pop(address_of(tensor), None)):
                self._bytes -= found.shadow.nbytes()
            if self._normal:
                self._normal.pop(address_of(tensor), None)

    def keep_nonzero(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        """No element of ``tensor`` is zero where ``source``, whose copy it is, is of normal numbers, or is known and
        has no zero."""
        value = self.of(source)
        if address_of(source) in self._normal or (value is not None and not value.is_meta and bool((value != 0).all())):
            self._normal[address_of(tensor)] = tensor.untyped_storage()

    def give_uniform(self, tensor: torch.Tensor, value: Any, *assumed: Basis) -> None:
        """All elements of a tensor equal one number."""
        element = torch.as_tensor(value, device=_HOST).detach().to(tensor.dtype).clone()
        raw = tensor.untyped_storage()
        self._shadows[compat.cdata(raw)] = Shadow(raw, element.untyped_storage(), uniform=True, assumed=assumed)

    def _shadow(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor's view of its shadow, which is made if it does not exist."""
        found = self.of(tensor)
        if found is not None:
            return found
        raw = tensor.untyped_storage()
        shadow = torch.empty(raw.nbytes(), dtype=torch.uint8, device=_HOST).untyped_storage()
        self._shadows[compat.cdata(raw)] = Shadow(raw, shadow)
        self._bytes += shadow.nbytes()
        if self._bytes > self._swept_at:
            self._sweep()
        return torch.empty(0, dtype=tensor.dtype, device=_HOST).set_(
            shadow, tensor.storage_offset(), tensor.shape, tensor.stride()
        )

    def _sweep(self) -> None:
        """Let go of the shadows whose tensors are gone."""
        for address, found in list(self._shadows.items()):
            if compat.storage_use_count(compat.cdata(found.raw)) <= 1:
                del self._shadows[address]
                self._bytes -= found.shadow.nbytes()
        self._swept_at = max(_SWEPT_BYTES, 2 * self._bytes)

    def assumed(self, tensor: torch.Tensor) -> tuple[Basis, ...]:
        """What a tensor's value rests on."""
        return found.assumed if (found := self._shadows.get(address_of(tensor))) else ()

    def _is_overwritable(self, tensor: torch.Tensor) -> bool:
        """Whether what is written into a tensor leaves all of its storage known."""
        raw = tensor.untyped_storage()
        found = self._shadows.get(compat.cdata(raw))
        if found is not None and found.uniform:
            return self._spread(tensor, found)
        whole = tensor.numel() * tensor.itemsize == raw.nbytes() and is_small(tensor)
        return found is not None or (whole and 0 not in tensor.stride())

    def _spread(self, tensor: torch.Tensor, found: Shadow) -> bool:
        """Give each element of a uniform storage its own bytes, unless it is too large."""
        raw = tensor.untyped_storage()
        element = torch.empty(0, dtype=tensor.dtype, device=_HOST).set_(found.shadow, 0, (), ())
        if raw.nbytes() > MOST_OF_INTEGERS * tensor.itemsize or not found.is_one_of(tensor):
            return False
        spread = element.expand(raw.nbytes() // tensor.itemsize).contiguous().untyped_storage()
        self._shadows[compat.cdata(raw)] = Shadow(raw, spread, assumed=found.assumed)
        self._bytes += spread.nbytes()
        return True
