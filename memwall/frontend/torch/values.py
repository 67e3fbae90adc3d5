"""Values that are known though tensors are on ``meta``.

A storage on ``meta`` may have a *shadow*: a host storage of its size with the true bytes. A tensor's value is then its
view of the shadow, so that views, aliases and in-place writes follow by themselves. A call whose tensors are all known
and small runs on their values too; what it returns has shadows in turn. A write of something unknown drops the shadow.

Values come from constants, ranges, seeded random numbers, integer and boolean inputs, and small buffers; never from
parameters or floating inputs, so that activations stay unknown. What decides of activations, as a top-k, a rounding or
the count of a mask, has the value that is assumed, which is noted once something depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from memwall.frontend.torch.assumed_values import assume, assume_places
from memwall.frontend.torch.assumptions import RANDOM, Assumptions, assumed_result
from memwall.frontend.torch.distributed import has_other_ranks
from memwall.frontend.torch.draws import Draws, as_drawn
from memwall.frontend.torch.results import Results
from memwall.frontend.torch.sent_values import handed
from memwall.frontend.torch.shadows import Shadow, address_of
from memwall.frontend.torch.tensors import flat_tensors, is_freed
from memwall.frontend.torch.value_rules import (
    ARE_ZERO,
    BY_FEW,
    FILLS,
    INTEGERS,
    MOST_FLOATS,
    MOST_INTEGERS,
    MOST_OF_INTEGERS,
    NUMBERED,
    PICKS,
    UNIQUE,
    UNSET,
    Kind,
    arguments_at,
    by_few,
    elements,
    is_of_integers,
    is_small,
    is_uniform,
    selected,
    wrong_picks,
)
from memwall.ops.signatures import Signature

#: Bytes of shadows at which those of tensors that are gone are let go.
_SWEPT_BYTES = 1 << 28
_HOST = torch.device("cpu")


class KnownValues:
    """The values of one trace. Where there are ``assumptions``, they answer what depends on activations. ``asked``
    counts the calls whose result left the tensors or gave one its shape: what Python or the kernels may depend on."""

    def __init__(self) -> None:
        self.asked = 0
        self.draws = Draws()
        self.said: dict[str, None] = {}  # of the values, for the report
        self.assumptions: Assumptions | None = None
        self._shadows: dict[int, Shadow] = {}
        self._results = Results()
        #: random numbers that were drawn on the host, and unknown normal numbers, none of which is zero
        self._numbers: dict[int, torch.UntypedStorage] = {}
        self._normal: dict[int, torch.UntypedStorage] = {}
        self._bytes = 0
        self._swept_at = _SWEPT_BYTES
        self._kinds: dict[str, Kind] = {}

    # -- shadows ---------------------------------------------------------------------------------------------------

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

    @property
    def by_module(self) -> bool:
        """Whether some modules have assumptions of their own."""
        return self.assumptions is not None and self.assumptions.by_module

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

    def give(self, tensor: torch.Tensor, value: torch.Tensor, *assumed: str) -> None:
        """Make the value of a tensor known that is all there is in its storage."""
        self._shadow(tensor).copy_(value)
        self._rest_on(tensor, assumed)

    def _rest_on(self, tensor: torch.Tensor, assumed: Iterable[str]) -> None:
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
        """No element of ``tensor`` is zero where ``source``, whose copy it is, is of normal numbers."""
        if address_of(source) in self._normal:
            self._normal[address_of(tensor)] = tensor.untyped_storage()

    def give_uniform(self, tensor: torch.Tensor, value: Any, *assumed: str) -> None:
        """All elements of a tensor equal one number."""
        element = torch.as_tensor(value, device=_HOST).detach().to(tensor.dtype).clone()
        raw = tensor.untyped_storage()
        self._shadows[raw._cdata] = Shadow(raw, element.untyped_storage(), uniform=True, assumed=assumed)

    def _shadow(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor's view of its shadow, which is made if it does not exist."""
        found = self.of(tensor)
        if found is not None:
            return found
        raw = tensor.untyped_storage()
        shadow = torch.empty(raw.nbytes(), dtype=torch.uint8, device=_HOST).untyped_storage()
        self._shadows[raw._cdata] = Shadow(raw, shadow)
        self._bytes += shadow.nbytes()
        if self._bytes > self._swept_at:
            self._sweep()
        return torch.empty(0, dtype=tensor.dtype, device=_HOST).set_(
            shadow, tensor.storage_offset(), tensor.shape, tensor.stride()
        )

    def _sweep(self) -> None:
        """Let go of the shadows whose tensors are gone."""
        for address, found in list(self._shadows.items()):
            if torch._C._storage_Use_Count(found.raw._cdata) <= 1:
                del self._shadows[address]
                self._bytes -= found.shadow.nbytes()
        self._swept_at = max(_SWEPT_BYTES, 2 * self._bytes)

    def drawn_on_host(self, number: torch.Tensor) -> None:
        """A random number was drawn on the host, where a CUDA run has it."""
        self.draws.count += 1
        self._numbers[number.untyped_storage()._cdata] = number.untyped_storage()

    def _with_numbers(self, args: tuple, any_number: bool) -> tuple:
        """The arguments with random numbers of the host on ``meta`` where other tensors are: a model that is written
        for one device has them where its tensors are. Or with ``any_number`` of the host there."""
        if not any(t.is_meta for t in flat_tensors(args)):
            return args

        def is_number(item: Any) -> bool:
            if not isinstance(item, torch.Tensor) or item.is_meta:
                return False
            return (any_number and not item.dim()) or address_of(item) in self._numbers

        return tuple(self.made(item) if is_number(item) else item for item in args)

    # -- calls -----------------------------------------------------------------------------------------------------

    def call(self, signature: Signature, args: tuple, kwargs: dict[str, Any], guess: bool = False) -> Any:
        """What a call returns; its value is carried along where all that the call reads is known. Assumptions answer
        what depends on activations where it may ``guess``."""
        func = signature.function
        kind = self._kinds.get(signature.name)
        if kind is None:
            kind = self._kinds[signature.name] = Kind.of(signature)
        if kind.free:
            out = func(*args, **kwargs)
            if signature.name in UNSET and out.is_meta and out.dtype in INTEGERS and out.numel() <= MOST_FLOATS:
                self._shadow(out).zero_()  # parts of it may be written, each with its values
            return out
        if self._numbers or signature.name in NUMBERED:
            args = self._with_numbers(args, signature.name in NUMBERED)
        if kind.sends and has_other_ranks():
            return self._sent(signature, kind, args, kwargs)
        count = len(args)
        for place, name in kind.reads:
            value = args[place] if place < count else kwargs.get(name)
            if value is not None and self._is_unknown(value):
                return self._called_unknown(signature, kind, args, kwargs, guess)
        tensors = [*flat_tensors(args), *flat_tensors(tuple(kwargs.values()))]
        if any(t.is_meta for t in tensors) or _is_meta(kwargs.get("device")):
            return self._called_known(signature, kind, args, kwargs, tensors)
        return func(*args, **kwargs)

    def _sent(self, signature: Signature, kind: Kind, args: tuple, kwargs: dict[str, Any]) -> Any:
        """What a collective returns; the values of other ranks are assumed to be this one's."""
        read, written = (arguments_at(places, args, kwargs) for places in (kind.reads, kind.writes))
        alike, text = self.assumptions.unasked("ranks") if self.assumptions is not None else (False, "")
        known = alike and not any(map(self._is_unknown, read)) and all(map(self._is_overwritable, written))
        values = [value.clone() for tensor in read if (value := self.of(tensor)) is not None] if known else []
        assumed = (text, *(each for tensor in read for each in self.assumed(tensor)))
        if not values:
            self.forget(written)
        out = signature.function(*args, **kwargs)
        made = written or [tensor for tensor in flat_tensors(out) if tensor.is_meta]
        if values and (parts := handed(signature, values, args, kwargs, [tensor.shape for tensor in made])):
            for tensor, part in zip(made, parts, strict=True):
                if is_small(tensor):
                    self.give(tensor, part, *assumed)
        else:
            self.forget(written)
        return out

    def _is_unknown(self, value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                return True
            if not value.is_meta:
                return False
            found = self._found(value)
            if found is None:
                return True
            return not found.uniform and value.numel() > MOST_INTEGERS and elements(value) > MOST_INTEGERS
        return isinstance(value, (list, tuple)) and any(
            self._is_unknown(item) for item in value if isinstance(item, torch.Tensor)
        )

    def _called_unknown(
        self, signature: Signature, kind: Kind, args: tuple, kwargs: dict[str, Any], guess: bool
    ) -> Any:
        """The result where something that is read is unknown: so is what is written."""
        if kind.writes:
            self.forget(arguments_at(kind.writes, args, kwargs))
        self.draws.missed |= kind.random
        if signature.updates:
            return None
        if signature.name in PICKS:
            self.said |= wrong_picks(self, signature.name, args)
        if signature.name == "aten.masked_select":
            mask = self.of(args[1])
            if mask is not None and not mask.is_meta:
                self._note(self.assumed(args[1]))
                self.asked += 1
                return selected(args[0], mask)
        if signature.name in ARE_ZERO and args[1] == 0 and address_of(args[0]) in self._normal:
            out = signature.function(*args, **kwargs)
            self.give_uniform(out, ARE_ZERO[signature.name])
            return out
        if self.assumptions is None or not guess:
            return self._ran(signature, kind, args, kwargs)
        if kind.asks:
            self.asked += 1
            result = assumed_result(self.assumptions, signature.name, args)
            if signature.name in UNIQUE:
                assume_places(self, self.assumptions, *result[1:])
            return signature.function(*args, **kwargs) if result is NotImplemented else result
        out = self._ran(signature, kind, args, kwargs)
        assume(self, self.assumptions, signature.name, out, args, kwargs)
        return out

    def _ran(self, signature: Signature, kind: Kind, args: tuple, kwargs: dict[str, Any]) -> Any:
        """What a call returns on ``meta``."""
        if kind.fresh:
            return self._results.of(signature.function, args, kwargs)
        return signature.function(*args, **kwargs)

    def _called_known(
        self, signature: Signature, kind: Kind, args: tuple, kwargs: dict[str, Any], tensors: list[torch.Tensor]
    ) -> Any:
        func, written = signature.function, arguments_at(kind.writes, args, kwargs)
        leaves = kwargs.get("device") == _HOST or any(not t.is_meta for t in written)
        missed = [RANDOM] if kind.random and self.draws.missed else []
        assumed = tuple(dict.fromkeys([*missed, *(text for t in tensors if t.is_meta for text in self.assumed(t))]))
        if signature.name in UNIQUE and any(text.startswith("rounded=") for text in assumed):
            return self._called_unknown(signature, kind, args, kwargs, guess=True)  # of which one number stands for all
        if kind.asks or leaves:
            self.asked += 1
            self._note(assumed)
            result = self._on_host(func, kind, args, kwargs)
            if written:
                return written[0]
            return result if leaves else tree_map_only(torch.Tensor, self.made, result)
        out = None if signature.updates else self._ran(signature, kind, args, kwargs)
        results = [t for t in flat_tensors(out) if t.is_meta]
        if not all(map(is_small, results)):
            self.forget(written)
            self._fill(signature, kind, args, kwargs, results, assumed)
            if kind.random and len(tensors) == len(written):  # of no tensor, or fills one
                self.draws.wait(as_drawn(func, args, kwargs), results[0].numel())
            if not (kind.pointwise and all(is_of_integers(t, tensors) and not self.has(t) for t in results)):
                return out
        too_large = kind.reduces and func not in BY_FEW and any(t.numel() > MOST_INTEGERS for t in tensors)
        if too_large or not all(map(self._is_overwritable, written)):
            self.forget(written)
            return out
        for tensor in written:
            self._shadow(tensor)
        try:
            values = self._on_host(func, kind, args, kwargs)
        except Exception:  # what the CPU cannot run, or what fails on a device later
            self.forget(written)
            return out
        given = {address_of(t) for t in tensors if t.is_meta}
        for tensor, value in zip(results, flat_tensors(values), strict=False):
            if address_of(tensor) not in given and tensor.shape == value.shape:
                self.give(tensor, value, *assumed)
        for tensor in written:
            self._rest_on(tensor, assumed)
        return out

    def assumed(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """What a tensor's value rests on."""
        return found.assumed if (found := self._shadows.get(address_of(tensor))) else ()

    def _note(self, assumed: Iterable[str]) -> None:
        if self.assumptions is not None:
            for text in assumed:
                self.assumptions.note(text)

    def _fill(
        self, signature: Signature, kind: Kind, args: tuple, kwargs: dict[str, Any], results: list[torch.Tensor],
        assumed: tuple[str, ...],
    ) -> None:  # fmt: skip
        """Large tensors of one value: masks of ones, and what is computed of them element by element."""
        if signature.name == "aten.randn":
            self._normal[address_of(results[0])] = results[0].untyped_storage()
        if kind.writes or len(results) != 1 or results[0].is_complex():
            return
        name = signature.name.removeprefix("aten.").removeprefix("new_").removesuffix("_like")
        if name in FILLS:
            self.give_uniform(results[0], FILLS[name](args))
        elif kind.pointwise and not kind.random:
            tensors = [self.of(t) for t in flat_tensors([*args, *kwargs.values()])]
            if all(t is not None and is_uniform(t) for t in tensors):
                one = tree_map_only(torch.Tensor, lambda t: self._first(t), (args, kwargs))
                value = self._on_host(signature.function, kind, *one)
                self.give_uniform(results[0], value, *assumed)

    def _first(self, tensor: torch.Tensor) -> torch.Tensor:
        value = self.of(tensor)
        assert value is not None
        return value[(0,) * value.dim()]

    def _is_overwritable(self, tensor: torch.Tensor) -> bool:
        """Whether what is written into a tensor leaves all of its storage known."""
        raw = tensor.untyped_storage()
        found = self._shadows.get(raw._cdata)
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
        self._shadows[raw._cdata] = Shadow(raw, spread, assumed=found.assumed)
        self._bytes += spread.nbytes()
        return True

    def _on_host(self, func: Any, kind: Kind, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The call on the values of its tensors."""

        def value(item: Any) -> Any:
            if isinstance(item, torch.Tensor):
                known = self.of(item)  # of an unread tensor the kind alone matters
                return torch.empty((), dtype=item.dtype, device=_HOST).expand(item.shape) if known is None else known
            if isinstance(item, (list, tuple)):
                return [value(each) for each in item]
            return _HOST if _is_meta(item) else item

        if func in BY_FEW and args[0].numel() > MOST_INTEGERS and (first := self.of(args[0])) is not None:
            return by_few(func, first, *args[1:], **{name: value(item) for name, item in kwargs.items()})
        given = [value(item) for item in args], {name: value(item) for name, item in kwargs.items()}
        call = partial(func, *given[0], **given[1])
        return self.draws.draw(call) if kind.random else call()


def _is_meta(device: Any) -> bool:
    return isinstance(device, torch.device) and device.type == "meta"
