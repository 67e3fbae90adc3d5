"""Values that are known though tensors are on ``meta``.

A storage on ``meta`` may have a *shadow*: a host storage of its size with the true bytes. A tensor's value is then its
view of the shadow, so that views, aliases and in-place writes follow by themselves. A call whose tensors are all known
and small runs on their values too; what it returns has shadows in turn. A write of something unknown drops the shadow.

Values come from constants, ranges, seeded random numbers, integer and boolean inputs, and small buffers; never from
parameters or floating inputs, so that activations stay unknown.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy
import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from memwall.frontend.torch.tensors import flat_tensors, is_wrapper
from memwall.ops.signatures import Signature, signature_of

#: Elements up to which values are kept: integers and booleans, and floating numbers.
MOST_INTEGERS = 1 << 20
MOST_FLOATS = 1 << 14
#: Bytes of shadows at which those of tensors that are gone are let go.
_SWEPT_BYTES = 1 << 28

_HOST = torch.device("cpu")
_TAGS = torch.Tag
#: Ops that take tensors on the host and the device alike.
COPIES = frozenset(("aten.copy_", "aten._to_copy"))
#: Ops that take masks as indices, which the recorder turns into places first; and the dtypes of masks.
INDEXED = frozenset(
    ("aten.index.Tensor", "aten._unsafe_index.Tensor", "aten.index_put", "aten.index_put_", "aten._index_put_impl_",
     "aten._unsafe_index_put")
)  # fmt: skip
MASKS = (torch.bool, torch.uint8)


class _Kind(NamedTuple):
    """How values pass through an operator: the arguments (by position and name) that it reads and those that it writes;
    whether it moves no data, whether its result or its result's shape depends on values, whether it draws random
    numbers."""

    reads: tuple[tuple[int, str], ...]
    writes: tuple[tuple[int, str], ...]
    free: bool
    asks: bool
    random: bool

    @classmethod
    def of(cls, signature: Signature) -> _Kind:
        tags = signature.function.tags
        asks = (_TAGS.dynamic_output_shape in tags or _TAGS.data_dependent_output in tags) and (
            signature.name not in INDEXED
        )
        numbered = [(place, argument.name, argument) for place, argument in enumerate(signature.arguments)]
        return cls(
            tuple((place, name) for place, name, a in numbered if not a.unread and "Tensor" in a.kind),
            tuple((place, name) for place, name, a in numbered if a.written),
            signature.free and not asks, asks, _TAGS.nondeterministic_seeded in tags,
        )  # fmt: skip


class KnownValues:
    """The values of one trace.

    ``asked`` counts the calls whose result left the tensors or gave one its shape: what the model's Python, or the
    kernels that run, may depend on.
    """

    def __init__(self) -> None:
        self.asked = self._drawn = 0
        self._shadows: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._bytes = 0
        self._swept_at = _SWEPT_BYTES
        self._kinds: dict[Any, _Kind] = {}
        self._random_state = torch.Generator().manual_seed(0).get_state()

    def mark(self) -> tuple[Any, ...]:
        """Equal to an earlier mark if no value was asked for in between, and no random number drawn."""
        return self.asked, self._drawn, hash(random.getstate()), str(numpy.random.get_state(legacy=False))

    # -- shadows ---------------------------------------------------------------------------------------------------

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor's value as a host tensor that shares the shadow's bytes; None where it is not known."""
        if not tensor.is_meta:
            return tensor
        found = self._shadows.get(_address(tensor))
        if found is None or tensor.is_conj() or tensor.is_neg():
            return None
        empty = torch.empty(0, dtype=tensor.dtype, device=_HOST)
        return empty.set_(found[1], tensor.storage_offset(), tensor.shape, tensor.stride())

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor on ``meta`` has a known value."""
        return tensor.layout is torch.strided and _address(tensor) in self._shadows

    def give(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Make the value of a tensor known that is all there is in its storage."""
        self._shadow(tensor).copy_(value)

    def keep(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        """Give ``tensor`` the value of ``source``, whose copy it is, where that is known and small enough."""
        if tensor.is_meta and source.layout is torch.strided and is_small(source):
            value = self.of(source)
            if value is not None:
                self.give(tensor, value.detach())

    def made(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor on ``meta`` with the layout of a host tensor, and its value where that is small enough."""
        tensor = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        self.keep(tensor, value)
        return tensor

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """The values of some tensors are no longer known."""
        for tensor in tensors:
            if self._shadows and (found := self._shadows.pop(_address(tensor), None)):
                self._bytes -= found[1].nbytes()

    def _shadow(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor's view of its shadow, which is made where there is none."""
        found = self.of(tensor)
        if found is not None:
            return found
        raw = tensor.untyped_storage()
        shadow = torch.empty(raw.nbytes(), dtype=torch.uint8, device=_HOST).untyped_storage()
        self._shadows[raw._cdata] = raw, shadow
        self._bytes += shadow.nbytes()
        if self._bytes > self._swept_at:
            self._sweep()
        return torch.empty(0, dtype=tensor.dtype, device=_HOST).set_(
            shadow, tensor.storage_offset(), tensor.shape, tensor.stride()
        )

    def _sweep(self) -> None:
        """Let go of the shadows whose tensors are gone."""
        for address, (raw, shadow) in list(self._shadows.items()):
            if torch._C._storage_Use_Count(raw._cdata) <= 1:
                del self._shadows[address]
                self._bytes -= shadow.nbytes()
        self._swept_at = max(_SWEPT_BYTES, 2 * self._bytes)

    # -- calls -----------------------------------------------------------------------------------------------------

    def call(self, signature: Signature, args: tuple, kwargs: dict[str, Any]) -> Any:
        """What a call returns; its value is carried along where all that the call reads is known."""
        func = signature.function
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _Kind.of(signature)
        if kind.free:
            return func(*args, **kwargs)
        count = len(args)
        for place, name in kind.reads:
            value = args[place] if place < count else kwargs.get(name)
            if value is not None and self._is_unknown(value):
                return self._called_unknown(signature, kind, args, kwargs)
        tensors = [*flat_tensors(args), *flat_tensors(tuple(kwargs.values()))]
        if any(t.is_meta for t in tensors) or _is_meta(kwargs.get("device")):
            return self._called_known(signature, kind, args, kwargs, tensors)
        return func(*args, **kwargs)

    def _is_unknown(self, value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                return True
            return value.is_meta and (_address(value) not in self._shadows or value.numel() > MOST_INTEGERS)
        return isinstance(value, (list, tuple)) and any(
            self._is_unknown(item) for item in value if isinstance(item, torch.Tensor)
        )

    def _called_unknown(self, signature: Signature, kind: _Kind, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result where something that is read is unknown: so is what is written."""
        if kind.writes:
            self.forget(_at(kind.writes, args, kwargs))
        if signature.updates:
            return None
        if signature.name == "aten.masked_select":
            mask = self.of(args[1])
            if mask is not None and not mask.is_meta:
                return self._selected(args[0], mask)
        return signature.function(*args, **kwargs)

    def _selected(self, tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """``masked_select`` of a tensor without data by a known mask."""
        self.asked += 1
        shape = torch.broadcast_shapes(tensor.shape, mask.shape)
        count = int(mask.expand(shape).count_nonzero())
        return torch.empty(count, dtype=tensor.dtype, device="meta")

    def _called_known(
        self, signature: Signature, kind: _Kind, args: tuple, kwargs: dict[str, Any], tensors: list[torch.Tensor]
    ) -> Any:
        func, written = signature.function, _at(kind.writes, args, kwargs)
        leaves = kwargs.get("device") == _HOST or any(not t.is_meta for t in written)
        if kind.asks or leaves:
            self.asked += 1
            result = self._on_host(func, kind, args, kwargs)
            if written:
                return written[0]
            return result if leaves else tree_map_only(torch.Tensor, self.made, result)
        out = None if signature.updates else func(*args, **kwargs)
        results = [t for t in flat_tensors(out) if t.is_meta]
        if not all(map(is_small, results)) or not all(map(self._is_overwritable, written)):
            self.forget(written)
            return out
        for tensor in written:
            self._shadow(tensor)
        try:
            values = self._on_host(func, kind, args, kwargs)
        except Exception:  # what the CPU cannot run, or what fails on a device later
            self.forget(written)
            return out
        given = {_address(t) for t in tensors if t.is_meta}
        for tensor, value in zip(results, flat_tensors(values), strict=False):
            if _address(tensor) not in given and tensor.shape == value.shape:
                self.give(tensor, value)
        return out

    def _is_overwritable(self, tensor: torch.Tensor) -> bool:
        """Whether what is written into a tensor leaves all of its storage known."""
        raw = tensor.untyped_storage()
        whole = tensor.numel() * tensor.itemsize == raw.nbytes() and is_small(tensor)
        return raw._cdata in self._shadows or (whole and 0 not in tensor.stride())

    def _on_host(self, func: Any, kind: _Kind, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The call on the values of its tensors."""

        def value(item: Any) -> Any:
            if isinstance(item, torch.Tensor):
                known = self.of(item)  # of an unread tensor the kind alone matters
                return torch.empty((), dtype=item.dtype, device=_HOST).expand(item.shape) if known is None else known
            if isinstance(item, (list, tuple)):
                return [value(each) for each in item]
            return _HOST if _is_meta(item) else item

        given = [value(item) for item in args], {name: value(item) for name, item in kwargs.items()}
        if not kind.random:
            return func(*given[0], **given[1])
        self._drawn += 1
        before = torch.get_rng_state()
        torch.set_rng_state(self._random_state)
        try:
            return func(*given[0], **given[1])
        finally:
            self._random_state = torch.get_rng_state()
            torch.set_rng_state(before)


class Carrying(TorchDispatchMode):
    """While open, values are carried along and nothing is recorded: a module is built so. What is on the host meets
    what is on ``meta`` as if it were there too, as both would be on the host where weights are built with data."""

    supports_higher_order_operators = True

    def __init__(self, values: KnownValues) -> None:
        super().__init__()
        self._values = values

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(is_wrapper, types)):
            return NotImplemented
        if not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        signature = signature_of(func)
        if signature.name not in COPIES:
            tensors = flat_tensors(args)
            if any(t.is_meta for t in tensors) and not all(t.is_meta for t in tensors):
                args = tree_map_only(torch.Tensor, lambda t: t if t.is_meta else self._values.made(t), args)
        return self._values.call(signature, args, kwargs)


def is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor is small enough for its value to be kept."""
    floats = tensor.is_floating_point() or tensor.is_complex()
    return tensor.numel() <= (MOST_FLOATS if floats else MOST_INTEGERS)


def _at(places: tuple[tuple[int, str], ...], args: tuple, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments at some places."""
    return flat_tensors([args[place] if place < len(args) else kwargs.get(name) for place, name in places])


def _address(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


def _is_meta(device: Any) -> bool:
    return isinstance(device, torch.device) and device.type == "meta"
